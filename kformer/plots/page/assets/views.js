"use strict";
// The parts below the translation: words, hypotheses and their tree, attention.

const MOST_IN_TABLE = 64;

/** A table with names of rows and columns. */
function table(caption, columns, rows) {
  const head = make("tr", {}, ...columns.map((name) => make("th", { scope: "col" }, name)));
  const body = rows.map(([name, ...cells]) =>
    make("tr", {}, make("th", { scope: "row" }, name), ...cells.map((cell) => make("td", {}, cell))),
  );
  return make("table", {}, make("caption", {}, caption), make("thead", {}, head), make("tbody", {}, ...body));
}

/** Fills a table when it is opened, and again when what it shows changes while it is open. */
class LazyTable {
  constructor(details, box) {
    this.details = details;
    this.box = box;
    this.fill = null;
    details.addEventListener("toggle", () => this.refresh());
  }

  show(fill) {
    this.fill = fill;
    this.box.replaceChildren();
    this.refresh();
  }

  refresh() {
    if (this.details.open && this.fill) this.box.replaceChildren(...this.fill());
  }
}

// ---- words ----

class WordLinks {
  constructor() {
    this.list = new LazyTable(get("words-details"), get("words-table"));
    this.targets = [];
    const box = get("target-words");
    box.addEventListener("keydown", (event) => this.move(event));
    for (const type of ["focusin", "mouseover"]) {
      box.addEventListener(type, (event) => this.activate(this.targets.indexOf(event.target)));
    }
    box.addEventListener("mouseleave", () => this.activate(this.focused()));
    box.addEventListener("focusout", () => this.activate(-1));
    new ResizeObserver(() => this.draw()).observe(get("links"));
  }

  show(attention, weights, columns, languages) {
    this.words = { source: attention.source.words, target: attention.target.words };
    this.shares = wordShares(weights, columns, this.words.source, this.words.target);
    this.languages = languages;
    this.active = null;
    this.sources = this.words.source.map((word) =>
      make("span", { className: spaced("word", word) }, word.text));
    const focused = this.focused();
    this.targets = this.words.target.map((word, i) =>
      make("button", {
        type: "button", className: spaced("word", word), tabIndex: i ? -1 : 0,
      }, word.text));
    inTongue(get("source-words"), languages.source).replaceChildren(...this.sources);
    inTongue(get("target-words"), languages.target).replaceChildren(...this.targets);
    if (focused >= 0) this.targets[focused]?.focus();
    else this.activate(-1);
    this.list.show(() => [this.table()]);
  }

  focused() {
    return this.targets.indexOf(document.activeElement);
  }

  activate(index) {
    this.active = index < 0 ? null : index;
    const shares = this.active === null ? [] : this.shares[this.active];
    const best = bestIndex(shares);
    this.targets.forEach((word, i) => word.classList.toggle("on", i === this.active));
    this.sources.forEach((word, j) => {
      word.classList.toggle("on", j === best);
      word.classList.toggle("some", j !== best && (shares[j] || 0) >= 0.05);
    });
    get("words-reading").replaceChildren(...(this.active === null ? [] : this.reading(this.active)));
    this.draw();
  }

  reading(index) {
    const named = (word, language) => inTongue(make("b", {}, word.text), language);
    const word = named(this.words.target[index], this.languages.target);
    const found = this.shares[index]
      .map((share, j) => ({ share, word: named(this.words.source[j], this.languages.source) }))
      .filter(({ share }) => share >= 0.05)
      .sort((a, b) => b.share - a.share)
      .slice(0, 3)
      .map((source) => sayAround("wordSource", { ...source, share: percent(source.share) }));
    if (!found.length) return sayAround("wordFromNothing", { word });
    const comma = tongue === "zh" ? "、" : ", ";
    const sources = found.flatMap((one, i) => (i ? [comma, ...one] : one));
    return sayAround("wordReading", { word, sources });
  }

  draw() {
    if (this.shares) drawCurves(get("curves"), this.sources, this.targets, this.shares, this.active);
  }

  move(event) {
    const last = this.targets.length - 1;
    const at = this.focused();
    const forward = getComputedStyle(get("target-words")).direction === "rtl" ? -1 : 1;
    const next = {
      ArrowRight: at + forward, ArrowLeft: at - forward, Home: 0, End: last,
    }[event.key];
    if (next === undefined || at < 0) return;
    event.preventDefault();
    const to = Math.min(Math.max(next, 0), last);
    this.targets.forEach((word, i) => { word.tabIndex = i === to ? 0 : -1; });
    this.targets[to].focus();
  }

  table() {
    const rows = this.words.target.map((word, i) => {
      const best = bestIndex(this.shares[i]);
      const source = best < 0 ? "" : this.words.source[best].text;
      return [word.text, source, best < 0 ? "" : percent(this.shares[i][best])];
    });
    return table(say("wordsTable"), [say("targetWord"), say("sourceWord"), say("share")], rows);
  }
}

function spaced(name, word) {
  return word.space ? `${name} spaced` : name;
}

// ---- coverage ----

function isDoubtful({ coverage }) {
  return Boolean(coverage) && coverage.probability >= 0.5;
}

/** A text whose spans are marked, with a word for those who do not see the mark. */
function marked(text, spans, name) {
  const characters = [...text]; // Spans count whole characters.
  const parts = [];
  let end = 0;
  for (const { start, stop } of spans) {
    if (start < end) continue; // Two kinds of faults in one place.
    const unseen = make("span", { className: "unseen", lang: TONGUES[tongue] }, say(name));
    parts.push(characters.slice(end, start).join(""));
    parts.push(make("mark", { className: name }, unseen, characters.slice(start, stop).join("")));
    end = stop;
  }
  return [...parts, characters.slice(end).join("")];
}

function showCoverage(line, { source, target }) {
  get("coverage-card").hidden = !isDoubtful(line);
  if (!isDoubtful(line)) return;
  const { probability, missing, added } = line.coverage;
  get("coverage-hint").textContent = say("coverageHint", { share: percent(probability) });
  const texts = [[source, "source", line.source, missing, "missing"],
    [target, "target", line.hypotheses[0]?.text || "", added, "added"]];
  for (const [language, side, text, spans, name] of texts) {
    inTongue(get(`coverage-${side}`), language).replaceChildren(...marked(text, spans, name));
  }
}

// ---- hypotheses ----

/** A part of a hypothesis; a part of nothing but spaces gets a visible mark. */
function visiblePart(text) {
  return text && !text.trim() ? "\u2423".repeat(text.length) : text;
}

/** The end of a hypothesis that differs from the best one. */
function parting(tree, rank) {
  let rest = "";
  let node = tree;
  const holds = (one) => one.rank === rank || (one.children || []).some(holds);
  let isBest = true;
  while (node.children) {
    const [first] = node.children;
    node = node.children.find(holds);
    isBest = isBest && node === first;
    if (!isBest) rest += node.text;
  }
  return rest;
}

function showHypotheses(line, language) {
  const items = line.hypotheses.map(({ text, score }, rank) => {
    let rest = line.tree && rank ? parting(line.tree, rank) : "";
    // A line under the space before a word says nothing.
    if (rest.trim()) rest = rest.trimStart();
    const shared = text.slice(0, text.length - rest.length);
    const body = inTongue(make("span", { className: "text" }, shared), language);
    if (rest) body.append(make("mark", {}, visiblePart(rest)));
    if (score === null) return make("li", {}, body);
    const probability = Math.exp(score);
    const meter = make("span", { className: "meter", ariaHidden: "true" }, make("i"));
    meter.firstChild.style.width = `${100 * probability}%`;
    return make("li", {}, body,
      make("span", { className: "numbers" }, meter,
        make("span", { className: "probability" }, percent(probability)),
        make("span", { className: "score" }, say("score", { score: decimal(score, 2) }))));
  });
  get("hypotheses").replaceChildren(...items);
  get("tree-part").hidden = !line.tree;
  get("tree").replaceChildren(...(line.tree ? [make("ul", {}, branch(line.tree, language))] : []));
}

function branch(node, language) {
  const text = inTongue(make("span", { className: "part" }, visiblePart(node.text).trim()), language);
  const item = make("li", {}, ...(node.text ? [text] : []));
  if (node.children) {
    item.append(make("ul", {}, ...node.children.map((child) => branch(child, language))));
  } else {
    const name = say("rank", { rank: node.rank + 1 });
    if (!node.text) item.append(make("span", { className: "ends" }, say("ends")));
    item.append(make("span", { className: "leaf", title: name },
      make("span", { className: "unseen" }, name), make("span", { ariaHidden: "true" }, node.rank + 1)));
  }
  return item;
}

// ---- attention ----

class AttentionView {
  constructor() {
    this.words = new WordLinks();
    this.list = new LazyTable(get("map-details"), get("map-table"));
    this.map = new TokenMap(get("map"), (cell) => {
      get("map-reading").textContent = cell
        ? say("mapReading", {
          row: visible(cell.row), column: visible(cell.column), share: percent(cell.weight),
        })
        : "";
    });
    get("kind").addEventListener("change", () => this.choose());
    for (const name of ["layer", "head"]) get(name).addEventListener("change", () => this.draw());
    matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => {
      if (this.attention) this.draw();
    });
  }

  /** Shows attention, or says in the card why there is none (the name of a text). */
  show(attention, model, reason = "attentionLong") {
    const maps = attention ? attention.maps.filter((map) => map.weights !== null) : [];
    get("attention-parts").hidden = get("words-card").hidden = !maps.length;
    this.attention = null;
    if (!maps.length) {
      get("attention-hint").textContent = say(reason);
      return;
    }
    maps.forEach((map) => { map.numbers ||= weightsOf(map); });
    this.attention = attention;
    this.maps = maps;
    this.languages = { source: model.source, target: model.target };
    const kinds = maps.map((map) => [map.kind, say(`kinds.${map.kind}`)]);
    options(get("kind"), kinds, get("kind").value);
    get("kind-choice").hidden = maps.length < 2;
    this.choose();
  }

  chosen() {
    return this.maps.find((map) => map.kind === get("kind").value) || this.maps[0];
  }

  choose() {
    const map = this.chosen();
    const numbers = (count) => [...Array(count).keys()].map((i) => [String(i), String(i + 1)]);
    const mean = (name) => [["-1", say(name)]];
    const layers = numbers(map.layers);
    const heads = numbers(map.heads);
    // In deep decoders words align best in the layer before the last one (Garg et al. 2019).
    const usual = String(map.layers > 3 ? map.layers - 2 : map.layers - 1);
    options(get("layer"), [...mean("meanOfLayers"), ...layers], get("layer").value, usual);
    options(get("head"), [...mean("meanOfHeads"), ...heads], get("head").value);
    get("head").disabled = map.heads < 2;
    this.draw();
  }

  draw() {
    const map = this.chosen();
    const [layer, head] = [get("layer"), get("head")].map((select) => Number(select.value));
    const weights = chosenWeights(map, layer, head);
    const side = { cross: ["target", "source"], encoder: ["source", "source"] }[map.kind] ||
      ["target", "target"];
    const [rows, columns] = side.map((name) => this.languages[name]);
    this.map.show(map, weights, { rows, columns });
    const names = {
      rows: say(`rows.${map.kind}`), columns: say(`columns.${map.kind}`), whole: percent(1),
    };
    get("attention-hint").textContent =
      say("attentionHint", names) + (map.averaged ? ` ${say("attentionAveraged")}` : "");
    this.list.show(() => this.table(map, weights, names));
    this.drawOverview(map, layer, head);
    const cross = this.maps.find((one) => one.kind === "cross");
    if (!cross) return;
    // Kinds may have other numbers of layers.
    const own = [[layer, cross.layers], [head, cross.heads]].map(([i, n]) => (i < n ? i : -1));
    this.words.show(
      this.attention, chosenWeights(cross, ...own), cross.columns.length, this.languages);
  }

  table(map, weights, names) {
    const rows = map.rows.slice(0, MOST_IN_TABLE).map((token, i) => [
      visible(token),
      ...map.columns.slice(0, MOST_IN_TABLE).map((_, j) =>
        decimal(100 * weights[i * map.columns.length + j], 1)),
    ]);
    const columns = ["", ...map.columns.slice(0, MOST_IN_TABLE).map(visible)];
    const long = Math.max(map.rows.length, map.columns.length) > MOST_IN_TABLE;
    const note = long ? [make("p", { className: "small" }, say("tableLong", { number: MOST_IN_TABLE }))] : [];
    const found = table(say("mapTable", names), columns, rows);
    // An empty cell is no name of a column.
    found.querySelector("thead th").replaceWith(make("td"));
    return [...note, found];
  }

  drawOverview(map, layer, head) {
    const count = map.layers * map.heads;
    get("overview-part").hidden = count < 2 || map.averaged;
    if (get("overview-part").hidden) return;
    const cell = Math.max(0.5, Math.min(6, 44 / Math.max(map.rows.length, map.columns.length)));
    const pictures = [...Array(count).keys()].map((i) => {
      const at = [Math.floor(i / map.heads), i % map.heads];
      const canvas = make("canvas");
      paint(canvas, chosenWeights(map, ...at), map.rows.length, map.columns.length, cell, 0);
      const isOn = (layer < 0 || layer === at[0]) && (head < 0 || head === at[1]);
      const picture = make("span", { className: isOn ? "on" : "" }, canvas);
      picture.addEventListener("click", () => {
        [get("layer").value, get("head").value] = at;
        this.draw();
      });
      return picture;
    });
    get("overview").style.setProperty("--heads", map.heads);
    get("overview").replaceChildren(...pictures);
  }
}

/** Fills a select with [value, text] pairs, and keeps a value if it is still there, else takes the usual one. */
function options(select, pairs, value, usual = pairs[0][0]) {
  select.replaceChildren(...pairs.map(([own, text]) => make("option", { value: own }, text)));
  select.value = pairs.some(([own]) => own === value) ? value : usual;
}
