/**
 * SentencePiece in JavaScript: the segmentation of a text by a trained model, BPE or unigram.
 * Ids are equal to those of the C++ library.
 */

export const SPACE_SIGN = "\u2581";
const NORMAL = 1, UNKNOWN = 2, CONTROL = 3, USER_DEFINED = 4, UNUSED = 5, BYTE = 6;
const encoder = new TextEncoder();
const decoder = new TextDecoder("utf-8", { ignoreBOM: true });

/**
 * The fields of a protocol buffer, as pairs of number and value: a number or bytes.
 * @param {Uint8Array} bytes
 * @yields {[number, number | Uint8Array]}
 */
function* fields(bytes) {
  const view = new DataView(bytes.buffer, bytes.byteOffset, bytes.byteLength);
  let at = 0;
  const varint = () => {
    let value = 0;
    for (let scale = 1; ; scale *= 128) {
      const byte = bytes[at++];
      value += (byte & 127) * scale;
      if (byte < 128) return value;
    }
  };
  while (at < bytes.length) {
    const key = varint(), number = key >>> 3;
    if ((key & 7) === 0) yield [number, varint()];
    else if ((key & 7) === 5) { yield [number, view.getFloat32(at, true)]; at += 4; }
    else if ((key & 7) === 1) at += 8;
    else { const size = varint(); yield [number, bytes.subarray(at, at + size)]; at += size; }
  }
}

/** The table of a model's normalization: a double-array trie of UTF-8 bytes, and what they become. */
class Charsmap {
  /** @param {Uint8Array} blob */
  constructor(blob) {
    const size = new DataView(blob.buffer, blob.byteOffset).getUint32(0, true);
    this.units = new Uint32Array(blob.slice(4, 4 + size).buffer);
    this.texts = blob.subarray(4 + size);
  }

  /** The bytes that the longest prefix at a position becomes, and its length; null for none. */
  longest(bytes, start) {
    const { units, texts } = this;
    const offset = (unit) => (unit >>> 10) << ((unit & 512) >>> 6);
    let node = offset(units[0]), found = null;
    for (let at = start; at < bytes.length; at++) {
      node ^= bytes[at];
      const unit = units[node];
      if ((unit & 0x800000ff) >>> 0 !== bytes[at]) break;
      node ^= offset(unit);
      if ((unit >>> 8) & 1) found = [units[node] & 0x7fffffff, at + 1 - start];
    }
    if (!found) return null;
    return [texts.subarray(found[0], texts.indexOf(0, found[0])), found[1]];
  }
}

/** A trained SentencePiece model. */
export class SentencePiece {
  /** @param {Uint8Array} model the bytes of a `.model` file */
  constructor(model) {
    /** @type {string[]} */ this.pieces = [];
    /** @type {number[]} */ this.types = [];
    this.scores = [];
    this.byteFallback = false;
    this.unknownSurface = " \u2047 ";
    this.modelType = 1;
    this.addsSpace = this.joinsSpaces = this.escapes = true;
    for (const [number, value] of fields(model)) {
      if (number === 1) {
        let piece = "", score = 0, type = NORMAL;
        for (const [field, part] of fields(value)) {
          if (field === 1) piece = decoder.decode(part);
          else if (field === 2) score = part;
          else if (field === 3) type = part;
        }
        this.pieces.push(piece); this.scores.push(score); this.types.push(type);
      } else if (number === 2) {
        for (const [field, part] of fields(value)) {
          if (field === 3) this.modelType = part;
          else if (field === 35) this.byteFallback = !!part;
          else if (field === 44) this.unknownSurface = decoder.decode(part);
        }
      } else if (number === 3) {
        for (const [field, part] of fields(value)) {
          if (field === 2 && part.length) this.charsmap = new Charsmap(part);
          else if (field === 3) this.addsSpace = !!part;
          else if (field === 4) this.joinsSpaces = !!part;
          else if (field === 5) this.escapes = !!part;
        }
      }
    }
    this.ids = new Map();
    this.symbols = [];
    this.byteIds = [];
    let least = Infinity;
    this.longest = 0;
    this.pieces.forEach((piece, id) => {
      const type = this.types[id];
      if (type === UNKNOWN) this.unknownId = id;
      else if (type === BYTE) this.byteIds[parseInt(piece.slice(3, 5), 16)] = id;
      else if (type !== CONTROL) {
        this.ids.set(piece, id);
        this.longest = Math.max(this.longest, [...piece].length);
        if (type === USER_DEFINED) {
          this.symbols.push(piece);
          // The library's own rule, by the bytes of a symbol.
          this.scores[id] = Math.fround(0.1 * (encoder.encode(piece).length - 1));
        }
        if (type === NORMAL) least = Math.min(least, this.scores[id]);
      }
    });
    this.symbols.sort((a, b) => b.length - a.length);
    this.symbolBytes = this.symbols.map((symbol) => encoder.encode(symbol));
    this.unknownScore = Math.fround(least - 10);
  }

  /** A text as the model's rules write it, with space signs. */
  normalize(text) {
    const bytes = encoder.encode(text), out = [];
    const symbols = this.symbolBytes;
    const prefix = (at) => {
      const symbol = symbols.find((each) => each.every((byte, i) => bytes[at + i] === byte));
      if (symbol) return [symbol, symbol.length];
      const mapped = this.charsmap?.longest(bytes, at);
      if (mapped) return mapped;
      const first = bytes[at], size = first < 0x80 ? 1 : first < 0xe0 ? 2 : first < 0xf0 ? 3 : 4;
      return [bytes.subarray(at, at + size), size];
    };
    let at = 0;
    if (this.joinsSpaces) {
      while (at < bytes.length) {
        const [mapped, size] = prefix(at);
        if (mapped.length !== 1 || mapped[0] !== 32) break;
        at += size;
      }
    }
    if (at === bytes.length) return "";
    const sign = this.escapes ? [0xe2, 0x96, 0x81] : [32];
    if (this.addsSpace) out.push(...sign);
    let afterSpace = this.joinsSpaces;
    while (at < bytes.length) {
      const [mapped, size] = prefix(at);
      let i = 0;
      while (afterSpace && mapped[i] === 32) i++;
      for (const byte of mapped.subarray(i)) {
        if (byte === 32) out.push(...sign);
        else out.push(byte);
      }
      if (i < mapped.length) afterSpace = mapped[mapped.length - 1] === 32;
      at += size;
      if (!this.joinsSpaces) afterSpace = false;
    }
    let end = out.length;
    if (this.joinsSpaces) {
      const ends = () => end >= sign.length && sign.every((x, i) => out[end - sign.length + i] === x);
      while (ends()) end -= sign.length;
    }
    return decoder.decode(new Uint8Array(out.slice(0, end)));
  }

  /**
   * The pieces of a text and their ids; neighbouring unknown characters are one piece.
   * @param {string} text
   * @returns {{id: number, piece: string}[]}
   */
  encode(text) {
    const normalized = this.normalize(text);
    const parts = this.modelType === 2 ? this.#bpe(normalized) : this.#unigram(normalized);
    const result = [];
    let afterUnknown = false;
    for (const piece of parts) {
      const id = this.ids.get(piece) ?? this.unknownId;
      const isUnknown = id === this.unknownId;
      if (isUnknown && this.byteFallback) {
        for (const byte of encoder.encode(piece)) {
          result.push({ id: this.byteIds[byte], piece: this.pieces[this.byteIds[byte]] });
        }
      } else if (isUnknown && afterUnknown) result[result.length - 1].piece += piece;
      else result.push({ id, piece });
      afterUnknown = isUnknown;
    }
    return result;
  }

  /** The characters of a normalized text, in which each user-defined symbol is one. */
  #characters(text) {
    if (!this.symbols.length) return [...text].map((piece) => [piece, false]);
    const parts = [];
    for (let at = 0; at < text.length; ) {
      const symbol = this.symbols.find((each) => text.startsWith(each, at));
      const piece = symbol ?? String.fromCodePoint(text.codePointAt(at));
      parts.push([piece, symbol !== undefined]);
      at += piece.length;
    }
    return parts;
  }

  /** Merges neighbours of the highest score first; of equal ones the left. */
  #bpe(text) {
    const symbols = this.#characters(text), size = symbols.length;
    const pieces = symbols.map(([piece]) => piece);
    const next = pieces.map((_, i) => (i + 1 < size ? i + 1 : -1)), before = pieces.map((_, i) => i - 1);
    const heap = [], merged = new Map();
    const isBefore = (a, b) => a.score > b.score || (a.score === b.score && a.left < b.left);
    const add = (left, right) => {
      if (left < 0 || right < 0 || symbols[left][1] || symbols[right][1]) return;
      const piece = pieces[left] + pieces[right], id = this.ids.get(piece);
      if (id === undefined) return;
      if (this.types[id] === UNUSED) merged.set(piece, [pieces[left], pieces[right]]);
      heap.push({ left, right, piece, score: this.scores[id] });
      for (let i = heap.length - 1; i > 0; ) {
        const parent = (i - 1) >> 1;
        if (!isBefore(heap[i], heap[parent])) break;
        [heap[i], heap[parent]] = [heap[parent], heap[i]];
        i = parent;
      }
    };
    const pop = () => {
      const top = heap[0], last = heap.pop();
      if (!heap.length) return top;
      heap[0] = last;
      for (let i = 0; ; ) {
        let best = i;
        for (const child of [2 * i + 1, 2 * i + 2]) {
          if (child < heap.length && isBefore(heap[child], heap[best])) best = child;
        }
        if (best === i) return top;
        [heap[i], heap[best]] = [heap[best], heap[i]];
        i = best;
      }
    };
    for (let i = 1; i < size; i++) add(i - 1, i);
    while (heap.length) {
      const { left, right, piece } = pop();
      // One of the two may have been merged with another since.
      if (!pieces[left] || !pieces[right] || pieces[left] + pieces[right] !== piece) continue;
      if (next[left] !== right) continue;
      pieces[left] = piece;
      pieces[right] = "";
      next[left] = next[right];
      if (next[right] >= 0) before[next[right]] = left;
      add(before[left], left);
      add(left, next[left]);
    }
    const split = (piece) => {
      const pair = this.types[this.ids.get(piece)] === UNUSED ? merged.get(piece) : undefined;
      return pair ? pair.flatMap(split) : [piece];
    };
    return pieces.filter(Boolean).flatMap(split);
  }

  /** The segmentation of the highest sum of scores, in float32 as in the library. */
  #unigram(text) {
    const characters = [...text], size = characters.length;
    const scores = new Float32Array(size + 1), starts = new Int32Array(size + 1).fill(-1);
    for (let start = 0; start < size; start++) {
      let piece = "", hasSingle = false;
      const most = Math.min(size, start + this.longest);
      for (let end = start + 1; end <= most; end++) {
        piece += characters[end - 1];
        const id = this.ids.get(piece);
        if (id === undefined || this.types[id] === UNUSED) continue;
        const score = Math.fround(this.scores[id] + scores[start]);
        if (starts[end] < 0 || score > scores[end]) { scores[end] = score; starts[end] = start; }
        if (end === start + 1) hasSingle = true;
      }
      const score = Math.fround(this.unknownScore + scores[start]);
      if (!hasSingle && (starts[start + 1] < 0 || score > scores[start + 1])) {
        scores[start + 1] = score;
        starts[start + 1] = start;
      }
    }
    const pieces = [];
    for (let end = size; end > 0; end = starts[end]) {
      pieces.push(characters.slice(starts[end], end).join(""));
    }
    return pieces.reverse();
  }
}

export const isControl = (model, id) => model.types[id] === CONTROL;
export const isUnknown = (model, id) => model.types[id] === UNKNOWN;
export const isByte = (model, id) => model.types[id] === BYTE;
