/**
 * Translates in a browser, or in Node, with the folder `model/` that `kformer export` wrote.
 *
 *     import { Translator } from "./kformer/translator.mjs";
 *     const translator = await Translator.load("model/");
 *     const [{ translation }] = await translator.translate(["half past four"]);
 */

import { Vocabulary } from "./vocabulary.mjs";

const encoder = new TextEncoder();
const decoder = new TextDecoder("utf-8", { ignoreBOM: true });

/**
 * @typedef {object} Hypothesis
 * @property {string} translation
 * @property {number} score the sum of the log-probabilities of its tokens
 *
 * @typedef {object} Result
 * @property {string} translation
 * @property {number} score
 * @property {boolean} truncated whether the text was longer than the model reads
 * @property {Hypothesis[]} [hypotheses] if more than one was asked for, best first
 */

/** What reads a file of a folder: by HTTP, or in Node from the disk. */
async function readerOf(folder) {
  const page = globalThis.document?.baseURI ?? globalThis.location?.href;
  const here = page ?? (await import("node:url")).pathToFileURL("./");
  const base = new URL(String(folder).replace(/([^/])$/, "$1/"), here);
  if (!page && base.protocol === "file:") {
    const { readFile } = await import("node:fs/promises");
    return (name) => readFile(new URL(name, base));
  }
  return async (name) => {
    const answer = await fetch(new URL(name, base));
    if (!answer.ok) throw new Error(`${answer.url} cannot be read (${answer.status}).`);
    return new Uint8Array(await answer.arrayBuffer());
  };
}

function checkTexts(name, texts) {
  if (!Array.isArray(texts)) {
    throw new TypeError(`${name} must be an array of strings, but is of the type ${typeof texts}.`);
  }
  const index = texts.findIndex((text) => typeof text !== "string");
  if (index >= 0) throw new TypeError(`${name}[${index}] is ${texts[index]}, but must be a string.`);
}

export class Translator {
  /**
   * @param {string | URL} folder the address of `model/`, relative to the page; in Node a path, too
   * @param {object} [options]
   * @param {object} [options.runtime] the module onnxruntime-web; by default that in `ort/`
   * @param {number} [options.threads] of that in `ort/`, 1 by default; more need the headers of an
   *   isolated page (`crossOriginIsolated`), without which there is one
   * @param {(name: string) => Promise<Uint8Array>} [options.read] reads a file of the folder
   * @returns {Promise<Translator>}
   */
  static async load(folder, { runtime, threads = 1, read } = {}) {
    read ??= await readerOf(folder);
    const bytes = async (name) => {
      const file = await read(name);
      return new Uint8Array(file.buffer, file.byteOffset, file.length);
    };
    const json = async (name) => JSON.parse(decoder.decode(await bytes(name)));
    const vocabulary = async (text, name) => {
      const { pieces, model } = text.sides[name];
      const files = [bytes(`tokenizer/${model}`), pieces && json(`tokenizer/${pieces}`)];
      return [name, new Vocabulary(text, name, ...(await Promise.all(files)))];
    };
    const describe = async () => {
      const metadata = await json("kformer.json"), { text } = metadata;
      return [metadata, await Promise.all(Object.keys(text.sides).map((name) => vocabulary(text, name)))];
    };
    // All at once, so that what fails is awaited, too.
    const [[metadata, vocabularies], graph, data, ort] = await Promise.all([
      describe(), bytes("search.onnx"), bytes("weights.bin"), runtime ?? import("../ort/ort.wasm.min.mjs"),
    ]);
    if (!runtime) ort.env.wasm.numThreads = threads;
    const session = await ort.InferenceSession.create(graph, { externalData: [{ path: "weights.bin", data }] });
    return new Translator(metadata, Object.fromEntries(vocabularies), session, ort);
  }

  /** Use `Translator.load`. */
  constructor(metadata, vocabularies, session, ort) {
    Object.assign(this, { metadata, vocabularies, session, ort });
    /** The codes of the target languages; empty for a model of one direction. */
    this.languages = Object.keys(metadata.languages).filter(Boolean);
  }

  /**
   * @param {string[]} texts
   * @param {object} [options]
   * @param {string} [options.targetLanguage] one of `languages`
   * @param {number} [options.hypotheses] how many translations of each text, at most the beam's width
   * @param {string[]} [options.prefixes] how each translation begins
   * @returns {Promise<Result[]>}
   */
  async translate(texts, { targetLanguage = "", hypotheses = 1, prefixes } = {}) {
    const { search, languages } = this.metadata;
    checkTexts("texts", texts);
    prefixes ??= texts.map(() => "");
    checkTexts("prefixes", prefixes);
    if (!Object.hasOwn(languages, targetLanguage)) {
      const codes = this.languages.join(", ") || "none: leave it out";
      throw new RangeError(`The language "${targetLanguage}" is unknown; there are ${codes}.`);
    }
    if (!(Number.isInteger(hypotheses) && hypotheses >= 1 && hypotheses <= search.beam_size)) {
      throw new RangeError(
        `hypotheses is ${hypotheses}, but must be a whole number from 1 to ${search.beam_size}, the width of the beam.`,
      );
    }
    if (prefixes.length !== texts.length) {
      throw new RangeError(`There are ${texts.length} texts, but ${prefixes.length} prefixes.`);
    }
    const language = languages[targetLanguage];
    const begins = prefixes.map((prefix) => this.#prefixIds(prefix, language)), results = [];
    for (const [i, text] of texts.entries()) {
      results.push(await this.#translateOne(text, language, hypotheses, begins[i]));
    }
    return results;
  }

  #prefixIds(prefix, language) {
    const { max_length: most, shortlist } = this.metadata.search, ids = this.vocabularies.target.encode(prefix);
    const isOther = (id) => shortlist.length && !shortlist.includes(id);
    if (ids.includes(this.metadata.text.unknown_id) || ids.some(isOther)) {
      throw new RangeError(`The vocabulary, or its shortlist, cannot write the prefix "${prefix}".`);
    }
    const all = [...language.prefix_ids, ...ids];
    if (all.length > most) {
      throw new RangeError(`The prefix "${prefix}" has ${all.length} tokens, but a translation has at most ${most}.`);
    }
    return all;
  }

  async #translateOne(text, language, count, prefix) {
    const { ids, truncated } = this.sourceIds(text, language);
    let hypotheses = Array.from({ length: count }, () => ({ translation: "", score: 0 }));
    if (ids.length) {
      const most = this.metadata.search.max_length;
      const relative = Math.floor(ids.length * Math.min(language.length_ratio, most)) + language.length_offset;
      const limit = Math.min(Math.max(relative, language.least_limit, prefix.length), most);
      const { Tensor } = this.ort;
      const integers = (values, shape) => new Tensor("int64", BigInt64Array.from(values.map(BigInt)), shape);
      const output = await this.session.run({
        source_ids: integers(ids, [1, ids.length]),
        limits: integers([limit], [1]),
        prefix: integers(prefix, [prefix.length]),
        length_penalty: new Tensor("float32", Float32Array.of(language.length_penalty), []),
        n_best: integers([count], []),
      });
      const tokens = Array.from(output.ids.data, Number), size = output.ids.dims[2];
      hypotheses = hypotheses.map((_, i) => ({
        translation: this.vocabularies.target.decode(tokens.slice(i * size, (i + 1) * size)),
        score: output.scores.data[i],
      }));
      for (const tensor of Object.values(output)) tensor.dispose();
    }
    const result = { ...hypotheses[0], truncated };
    return count > 1 ? { ...result, hypotheses } : result;
  }

  /**
   * The ids that the model reads; none for an empty text.
   * @returns {{ids: number[], truncated: boolean}}
   */
  sourceIds(text, language = this.metadata.languages[""]) {
    const rules = this.metadata.text;
    // A lone surrogate counts as its three bytes, each of which is invalid.
    let bytes = encoder.encode(text.replace(/\p{Surrogate}/gu, "\ufffd\ufffd\ufffd"));
    let end = Math.min(rules.max_bytes, bytes.length), truncated = end < bytes.length;
    while (truncated && (bytes[end] & 0xc0) === 0x80) end--;
    text = decoder.decode(bytes.subarray(0, end));
    let prefix = language.source_prefix;
    const suffix = language.source_suffix, tag = rules.has_tags ? /^>>.*?<</s.exec(text)?.[0] : undefined;
    let least = prefix.length + suffix.length;
    if (tag !== undefined && (tag in rules.tags || !rules.only_known_tags)) {
      if (!prefix.length && tag in rules.tags) least++;
      prefix = [rules.tags[tag] ?? rules.unknown_id];
      text = text.slice(tag.length);
    }
    const ids = [...prefix, ...this.vocabularies.source.encode(text), ...suffix];
    const most = this.metadata.max_length;
    if (ids.length <= least) return { ids: [], truncated };
    if (ids.length <= most) return { ids, truncated };
    return { ids: [...ids.slice(0, most - suffix.length), ...suffix], truncated: true };
  }
}
