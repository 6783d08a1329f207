"use strict";
// Attention as numbers and as pictures.

/** The weights of a map, as numbers from 0 to 1: [layers, heads, rows, columns], flat. */
function weightsOf(map) {
  const bytes = Uint8Array.from(atob(map.weights), (sign) => sign.charCodeAt(0));
  const view = new DataView(bytes.buffer);
  return Float32Array.from({ length: bytes.length / 2 }, (_, i) => view.getUint16(2 * i, true) / 65535);
}

/** One layer and head as [rows, columns], flat; -1 stands for the mean of all of them. */
function chosenWeights(map, layer, head) {
  const size = map.rows.length * map.columns.length;
  const sum = new Float32Array(size);
  const all = (chosen, count) => (chosen < 0 ? [...Array(count).keys()] : [chosen]);
  const layers = all(layer, map.layers);
  const heads = all(head, map.heads);
  for (const i of layers) {
    for (const j of heads) {
      const start = (i * map.heads + j) * size;
      for (let k = 0; k < size; k += 1) sum[k] += map.numbers[start + k];
    }
  }
  const count = layers.length * heads.length;
  return sum.map((value) => value / count);
}

/**
 * The share of each word of the source in each word of the target: [target words][source words].
 * Special tokens are no words, so the shares of a target word are made to sum to 1.
 */
function wordShares(weights, columns, source, target) {
  return target.map((word) => {
    const shares = source.map((other) => {
      let sum = 0;
      for (const row of word.tokens) {
        for (const column of other.tokens) sum += weights[row * columns + column];
      }
      return sum;
    });
    const total = shares.reduce((sum, value) => sum + value, 0);
    return shares.map((value) => (total > 0 ? value / total : 0));
  });
}

function bestIndex(shares) {
  return shares.reduce((best, value, i) => (value > (shares[best] ?? 0) ? i : best), -1);
}

// ---- colors ----

/** Two colors of the style sheet, between which weights are drawn: [r, g, b] of 0 and of 1. */
function scaleOfColors() {
  const style = getComputedStyle(document.documentElement);
  return ["--map-low", "--map-high"].map((name) => {
    const hex = style.getPropertyValue(name).trim().slice(1);
    return [0, 2, 4].map((at) => parseInt(hex.slice(at, at + 2), 16));
  });
}

/** Paints weights [rows, columns] into a canvas, a square of `cell` pixels for each. */
function paint(canvas, weights, rows, columns, cell, gap) {
  const ratio = window.devicePixelRatio || 1;
  canvas.width = Math.round(columns * cell * ratio);
  canvas.height = Math.round(rows * cell * ratio);
  canvas.style.width = `${columns * cell}px`;
  canvas.style.height = `${rows * cell}px`;
  const context = canvas.getContext("2d");
  context.scale(ratio, ratio);
  const [low, high] = scaleOfColors();
  for (let row = 0; row < rows; row += 1) {
    for (let column = 0; column < columns; column += 1) {
      // The square root shows small weights, too.
      const part = Math.sqrt(weights[row * columns + column]);
      const mixed = low.map((value, i) => Math.round(value + part * (high[i] - value)));
      context.fillStyle = `rgb(${mixed.join(",")})`;
      context.fillRect(column * cell, row * cell, cell - gap, cell - gap);
    }
  }
}

// ---- the map ----

/** A map of tokens by tokens: labels, cells, and a cell that pointer and arrow keys choose. */
class TokenMap {
  constructor(box, onCell) {
    this.box = box;
    this.onCell = onCell;
    this.at = null;
    box.addEventListener("keydown", (event) => this.move(event));
    box.addEventListener("focus", () => this.at || this.choose(0, 0));
    box.addEventListener("mouseleave", () => document.activeElement !== box && this.choose(null));
  }

  show(map, weights, languages) {
    this.rows = map.rows;
    this.columns = map.columns;
    this.weights = weights;
    const long = Math.max(this.rows.length, this.columns.length);
    this.cell = long <= 24 ? 30 : long <= 48 ? 22 : long <= 96 ? 16 : 8;
    this.canvas = make("canvas", { ariaHidden: "true" });
    paint(this.canvas, weights, this.rows.length, this.columns.length, this.cell, this.cell > 8 ? 1 : 0);
    this.canvas.addEventListener("mousemove", (event) => {
      const box = this.canvas.getBoundingClientRect();
      const row = Math.floor((event.clientY - box.top) / this.cell);
      const column = Math.floor((event.clientX - box.left) / this.cell);
      if (row >= 0 && row < this.rows.length && column >= 0 && column < this.columns.length) {
        this.choose(row, column);
      }
    });
    const labels = (tokens, language) =>
      tokens.map((token) => {
        const label = inTongue(make("span", {}, visible(token)), language);
        if (isUpright(token)) label.className = "upright";
        if (token.startsWith("<")) label.dir = "ltr"; // A special token is no text.
        label.style.setProperty("--cell", `${this.cell}px`);
        return label;
      });
    this.left = labels(this.rows, languages.rows);
    this.top = labels(this.columns, languages.columns);
    this.frame = make("div", { className: "cell-frame", hidden: true });
    this.frame.style.width = this.frame.style.height = `${this.cell - 1}px`;
    const hides = this.cell < 16 ? " unlabelled" : "";
    this.box.replaceChildren(
      make("div", { className: `grid${hides}` },
        make("div", { className: "labels-top" }, ...this.top),
        make("div", { className: "labels-left" }, ...this.left),
        make("div", { className: "cells" }, this.canvas, this.frame)),
    );
    const kept = this.at && this.at[0] < this.rows.length && this.at[1] < this.columns.length;
    if (kept) this.choose(...this.at);
    else this.choose(null);
  }

  choose(row, column) {
    if (this.at) {
      this.left[this.at[0]]?.classList.remove("on");
      this.top[this.at[1]]?.classList.remove("on");
    }
    this.at = row === null ? null : [row, column];
    this.frame.hidden = row === null;
    if (row === null) {
      this.onCell(null);
      return;
    }
    this.left[row].classList.add("on");
    this.top[column].classList.add("on");
    this.frame.style.transform = `translate(${column * this.cell}px, ${row * this.cell}px)`;
    this.onCell({
      row: this.rows[row],
      column: this.columns[column],
      weight: this.weights[row * this.columns.length + column],
    });
  }

  move(event) {
    const steps = { ArrowUp: [-1, 0], ArrowDown: [1, 0], ArrowLeft: [0, -1], ArrowRight: [0, 1] };
    const step = steps[event.key];
    if (!step || !this.rows || event.ctrlKey || event.metaKey || event.altKey) return;
    event.preventDefault();
    const [row, column] = this.at || [0, 0];
    const within = (value, count) => Math.min(Math.max(value, 0), count - 1);
    this.choose(
      within(row + step[0], this.rows.length),
      within(column + step[1], this.columns.length),
    );
    this.frame.scrollIntoView({ block: "nearest", inline: "nearest" });
  }
}

/** A token for the eye: the mark of a space as a thin open box. */
function visible(token) {
  return token.replaceAll("\u2581", "\u2423");
}

// ---- curves between words ----

/** Draws a curve from each word of the translation to its sources, thicker for larger shares. */
function drawCurves(svg, sources, targets, shares, active) {
  const isOneRow = (words) => words.length < 2 || words[0].offsetTop === words[words.length - 1].offsetTop;
  if (active === null && !(isOneRow(sources) && isOneRow(targets))) {
    svg.replaceChildren(); // Curves of all words would cross the rows between.
    return;
  }
  const box = svg.getBoundingClientRect();
  const bottom = sources.map((word) => word.getBoundingClientRect());
  const top = targets.map((word) => word.getBoundingClientRect());
  const curves = [];
  targets.forEach((_, i) => {
    if (active !== null && active !== i) return;
    const best = bestIndex(shares[i]);
    shares[i].forEach((share, j) => {
      // Faint curves for all words at rest, each source of the active word otherwise.
      if (active === null ? j !== best : share < 0.05) return;
      const x1 = bottom[j].left + bottom[j].width / 2 - box.left;
      const y1 = bottom[j].bottom - box.top;
      const x2 = top[i].left + top[i].width / 2 - box.left;
      const y2 = top[i].top - box.top;
      const bend = Math.max(12, (y2 - y1) * 0.5);
      const path = document.createElementNS("http://www.w3.org/2000/svg", "path");
      path.setAttribute("d", `M${x1} ${y1}C${x1} ${y1 + bend} ${x2} ${y2 - bend} ${x2} ${y2}`);
      path.setAttribute("stroke-width", String(active === null ? 1.25 : 1 + 3 * share));
      path.setAttribute("class", active === null ? "rest" : "active");
      curves.push(path);
    });
  });
  svg.replaceChildren(...curves);
}
