/** One side of a tokenizer: text to the translation model's ids, and back. */

import { isByte, isControl, isUnknown, SentencePiece, SPACE_SIGN } from "./sentencepiece.mjs";

const encoder = new TextEncoder();
const decoder = new TextDecoder("utf-8", { ignoreBOM: true });

const replaceAll = (text, pairs) => pairs.reduce((x, [old, fresh]) => x.replaceAll(old, fresh), text);
const escape = (word) => word.replace(/[.*+?^${}()|[\]\\/]/g, "\\$&");

export class Vocabulary {
  /**
   * @param {object} text `text` of the model's kformer.json
   * @param {"source" | "target"} name
   * @param {Uint8Array} model a SentencePiece model
   * @param {string[] | null} pieces every piece by its id, if ids are not SentencePiece's own
   */
  constructor(text, name, model, pieces) {
    const side = text.sides[name];
    this.text = text;
    this.signs = side.leading_space_signs;
    this.unknown = text.unknown_id;
    const own = (this.model = new SentencePiece(model));
    pieces = pieces ?? own.pieces;
    const ids = new Map(pieces.map((piece, i) => [piece, i]));
    const numbers = new Map(own.pieces.map((piece, i) => [piece, i]));
    const controls = new Set(side.control_ids);
    // No text becomes a control id.
    this.idMap = own.pieces.map((piece, n) => {
      const id = ids.get(piece) ?? this.unknown;
      const isWrong = isUnknown(own, n) || (controls.has(id) && !isControl(own, n));
      return isWrong ? this.unknown : id;
    });
    this.words = side.added_words;
    const signs = [...controls, this.unknown];
    const known = new Set([...own.pieces, ...signs.map((i) => pieces[i])]);
    Object.keys(this.words?.ids ?? {}).forEach((word) => known.add(word));
    this.foreign = new Map([...ids].filter(([piece]) => !known.has(piece)));
    if (text.is_words) {
      const words = [...ids].filter(([, id]) => !signs.includes(id));
      this.wordIds = new Map(words.map(([piece, id]) => [replaceAll(piece, text.before), id]));
      this.foreign = new Map();
    }
    this.surfaces = pieces.map((piece, id) => {
      const n = numbers.get(piece);
      if (controls.has(id) || (n !== undefined && isControl(own, n))) return encoder.encode("");
      if (id === this.unknown || (n !== undefined && isUnknown(own, n))) {
        return encoder.encode(own.unknownSurface);
      }
      if (n !== undefined && isByte(own, n)) return Uint8Array.of(parseInt(piece.slice(3, 5), 16));
      return encoder.encode(text.is_words ? SPACE_SIGN + replaceAll(piece, text.before) : piece);
    });
    this.patterns = Object.entries(this.words?.patterns ?? {}).map(([kind, words]) => [
      kind,
      new RegExp(`(${words.map(escape).join("|")})`, "u"),
    ]);
    this.spaceId = ids.get(SPACE_SIGN) ?? this.unknown;
  }

  /** The ids of a valid text, without special tokens. @returns {number[]} */
  encode(text) {
    text = replaceAll(text, this.text.before);
    if (!this.words) return this.#segment(text);
    const parts = this.#split(text);
    return parts.flatMap((part, i) => {
      if (typeof part === "number") return [part];
      const ids = this.#segment(part);
      return this.#writesSpace(parts, i) ? [...ids, this.spaceId] : ids;
    });
  }

  #segment(text) {
    if (this.wordIds) {
      const words = text.match(/[^ \t\n\v\f\r]+/g) ?? [];
      return words.map((word) => this.wordIds.get(word) ?? this.unknown);
    }
    return this.model.encode(text).map(({ id, piece }) => {
      const own = this.idMap[id];
      return own === this.unknown ? this.foreign.get(piece) ?? own : own;
    });
  }

  #normalize(text) {
    text = this.model.normalize(`0${text}0`).replaceAll(SPACE_SIGN, " ");
    return text.replace(/^ +| +$/g, "").slice(1, -1);
  }

  #split(text) {
    let parts = [text];
    for (const [kind, pattern] of this.patterns) {
      parts = parts.flatMap((part) => {
        if (typeof part === "number") return [part];
        const pieces = (kind === "raw" ? part : this.#normalize(part)).split(pattern);
        if (pieces.length < 2) return [part];
        return pieces.map((piece, i) => (i % 2 ? this.words.ids[piece] : piece));
      });
    }
    return parts;
  }

  #writesSpace(parts, index) {
    const { keeps_spaces, lstrip, rstrip } = this.words, follower = parts[index + 1];
    if (!keeps_spaces || follower === undefined || lstrip.includes(follower)) return false;
    const text = this.#normalize(parts[index]);
    const isBare = /^ *$/.test(text) && index > 0 && rstrip.includes(parts[index - 1]);
    return text.endsWith(" ") && !isBare;
  }

  /** The text of ids. @param {number[]} ids */
  decode(ids) {
    const surfaces = ids.map((id) => this.surfaces[id] ?? this.surfaces[this.unknown]);
    const bytes = new Uint8Array(surfaces.reduce((size, each) => size + each.length, 0));
    let at = 0;
    for (const each of surfaces) { bytes.set(each, at); at += each.length; }
    let text = decoder.decode(bytes);
    if (this.signs) text = text.replace(this.signs === 1 ? /^\u2581/ : /^\u2581+/, "");
    return replaceAll(text.replaceAll(SPACE_SIGN, " "), this.text.after);
  }
}
