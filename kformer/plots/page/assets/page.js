"use strict";
// What the page does: it asks the server for translations, or shows those that stand in the file.

const PAUSE = 300; // Milliseconds without a key before a text is translated.
const EMBEDDED = get("data");

const state = {
  models: [], // An entry for each pair of languages of a model.
  reply: null, // The last answer for the text that stands in the box.
  line: 0,
  attention: null,
  reason: "attentionAbsent",
  problem: null,
  number: 0, // Of the last request; answers to others are dropped.
  request: null,
  timer: null,
  key: "",
};
try { state.key = sessionStorage.getItem("kformer-key") || ""; } catch { /* Asked for again. */ }

const view = new AttentionView();

const keyOf = ({ name, languages }) => [name, ...languages.filter(Boolean)].join(" ");

function model() {
  return state.models.find((each) => keyOf(each) === get("model").value) || state.models[0];
}

/** Shows the choice of models; with languages if one of them has several pairs. */
function showModels() {
  const { size } = new Set(state.models.map(({ name }) => name));
  const choices = state.models.map((each) => {
    const names = [each.source, each.target].map(({ lang }) => languageName(lang));
    const pair = state.models.length > size ? names.filter(Boolean).join(" → ") : "";
    const parts = [size > 1 || !pair ? each.name : "", pair].filter(Boolean);
    return [keyOf(each), parts.join(": ")];
  });
  options(get("model"), choices.length ? choices : [["", ""]], get("model").value);
  get("model-choice").hidden = choices.length < 2;
}

// ---- requests ----

class Problem extends Error {
  constructor(name, status = 0, detail = "", wait = 0) {
    super(name);
    Object.assign(this, { name, status, detail, wait });
  }
}

const PROBLEMS = {
  401: "errorKey", 413: "errorLong", 429: "errorBusy", 503: "errorNotReady", 504: "errorDeadline",
};

async function ask(path, body, signal) {
  const headers = state.key ? { authorization: `Bearer ${state.key}` } : {};
  const options = { headers, signal, cache: "no-store" };
  if (body) {
    headers["content-type"] = "application/json";
    Object.assign(options, { method: "POST", body: JSON.stringify(body) });
  }
  let reply;
  try {
    reply = await fetch(`page/${path}`, options);
  } catch (error) {
    if (error.name === "AbortError") throw error;
    throw new Problem("errorNetwork");
  }
  const content = await reply.json().catch(() => ({}));
  if (reply.ok) return content;
  const name = PROBLEMS[reply.status] || "errorServer";
  const wait = Number(reply.headers.get("retry-after")) || 0;
  throw new Problem(name, reply.status, content.error || "", wait);
}

async function loadModels() {
  try {
    state.models = (await ask("models")).models;
    state.problem = state.models.length ? null : new Problem("noModels");
    get("key-form").hidden = true;
  } catch (error) {
    state.problem = error;
    if (error.status === 401) {
      get("key-form").hidden = false;
      if (!state.key) state.problem = null;
    }
  }
  showModels();
  showFrame();
  show();
  if (state.models.length) schedule(0);
}

/** Translates after a pause; a new text ends the wait, and the request, for an older one. */
function schedule(pause = PAUSE) {
  clearTimeout(state.timer);
  state.request?.abort();
  state.number += 1;
  const text = get("source").value;
  get("clear").hidden = !text;
  if (!text.trim()) {
    Object.assign(state, { reply: null, attention: null, problem: state.models.length ? null : state.problem });
    busy(false);
    show();
    return;
  }
  if (!state.models.length) return;
  busy(true);
  state.timer = setTimeout(() => translate(state.number, text), pause);
}

async function translate(number, text) {
  state.request = new AbortController();
  const { signal } = state.request;
  try {
    const glossary = get("glossary").value;
    const { name, languages } = model();
    const reply = await ask("translate", { model: name, languages, text, glossary }, signal);
    if (number !== state.number) return;
    const line = Math.min(state.line, reply.lines.length - 1);
    Object.assign(state, { reply, line, attention: null, problem: null });
    show();
    await inspect(number, signal);
  } catch (error) {
    if (number !== state.number || error.name === "AbortError") return;
    busy(false);
    Object.assign(state, { reply: null, attention: null, problem: error });
    if (error.status === 401) get("key-form").hidden = false;
    if (error.wait) state.timer = setTimeout(() => schedule(0), 1000 * Math.min(error.wait, 30));
    show();
  }
}

/** Asks for the attention of the line that is chosen. */
async function inspect(number, signal) {
  const { source } = state.reply.lines[state.line];
  state.attention = null;
  busy(false);
  const glossary = get("glossary").value;
  if (glossary || !model().attention || !source.trim()) {
    state.reason = glossary ? "attentionGlossary" : "attentionAbsent";
    showAttention();
    return;
  }
  state.reason = "attentionLong";
  const line = state.line;
  try {
    const { name, languages } = model();
    const attention = await ask("attention", { model: name, languages, text: source }, signal);
    if (number !== state.number || line !== state.line) return;
    state.attention = attention;
  } catch (error) {
    if (number !== state.number || error.name === "AbortError") return;
    state.reason = error.name in TEXTS.en ? error.name : "errorServer";
  }
  showAttention();
}

// ---- what is shown ----

function busy(is) {
  get("bar").hidden = !is;
  get("translation").setAttribute("aria-busy", String(is));
}

/** The parts that depend on language and model alone. */
function showFrame() {
  document.documentElement.lang = TONGUES[tongue];
  const name = model()?.name;
  document.title = name ? `${name} · kformer` : `${say("title")} · kformer`;
  for (const element of document.querySelectorAll("[data-text]")) {
    element.textContent = say(element.dataset.text);
  }
  get("languages").setAttribute("aria-label", say("languageOfPage"));
  for (const button of get("languages").children) {
    button.setAttribute("aria-pressed", String(button.dataset.language === tongue));
  }
  get("source").placeholder = say("sourcePlaceholder");
  get("target-words").setAttribute("aria-label", say("wordsOf"));
  get("tree").setAttribute("aria-label", say("tree"));
  get("map").setAttribute("aria-label", say("map"));
  for (const id of ["words-table", "map-table"]) get(id).setAttribute("aria-label", say("asTable"));
  const languages = model() || { source: { lang: "", dir: "auto" }, target: { lang: "", dir: "auto" } };
  inTongue(get("source"), languages.source);
  get("source-language").textContent = languageName(languages.source.lang);
  get("target-language").textContent = languageName(languages.target.lang);
  const glossaries = (model()?.glossaries || []).map((each) => [each, each]);
  get("glossary-choice").hidden = !glossaries.length;
  options(get("glossary"), [["", say("noGlossary")], ...glossaries], get("glossary").value);
  get("example").hidden = EMBEDDED !== null || !model()?.example;
}

function show() {
  const { reply, problem } = state;
  get("notice").hidden = !problem;
  if (problem) {
    const name = problem.name in TEXTS.en ? problem.name : "errorServer";
    const more = problem.detail && name === "errorServer" ? ` ${problem.detail}` : "";
    get("notice-text").textContent = say(name) + more;
    get("again").hidden = name === "errorKey" || name === "errorLong";
  }
  // Only pages from this machine or by HTTPS may write to the clipboard.
  get("copy").hidden = !reply || !navigator.clipboard;
  get("translation").hidden = Boolean(problem);
  get("details").hidden = !reply || !reply.lines.some(({ source }) => source.trim());
  showTranslation();
  get("facts").textContent = reply ? facts(reply) : "";
  if (get("details").hidden) return;
  showLine();
}

function facts(reply) {
  const { name, version } = reply.model;
  const full = version === null ? name : say("version", { name, version });
  const parts = reply.milliseconds === undefined
    ? [say("factsAlone", { model: full })]
    : [say("facts", { model: full, seconds: duration(reply.milliseconds) })];
  const terms = reply.lines.flatMap((line) => line.terms || []).map((term) => say("term", term));
  if (terms.length) parts.push(say("terms", { terms: terms.join(", ") }));
  const cut = reply.lines.flatMap(({ truncated }, i) => (truncated ? [i + 1] : []));
  if (cut.length) {
    const some = say("someTruncated", { lines: cut.join(", ") });
    parts.push(reply.lines.length > 1 ? some : say("truncated"));
  }
  const doubtful = reply.lines.flatMap((line, i) => (isDoubtful(line) ? [i + 1] : []));
  if (doubtful.length) {
    const some = say("someDoubtful", { lines: doubtful.join(", ") });
    parts.push(reply.lines.length > 1 ? some : say("doubtful"));
  }
  return parts.join(" · ");
}

function showTranslation() {
  const box = get("translation");
  if (!state.reply) {
    const text = state.problem ? "" : say("translationPlaceholder");
    box.replaceChildren(make("p", { className: "empty" }, text));
    return;
  }
  const { lines } = state.reply;
  const paragraphs = lines.map((line, i) => {
    const text = line.hypotheses[0]?.text || "";
    const paragraph = inTongue(make("p", {}, text), model().target);
    if (lines.length > 1 && text) {
      paragraph.classList.toggle("on", i === state.line);
      paragraph.addEventListener("click", () => chooseLine(i));
    }
    return paragraph;
  });
  box.replaceChildren(...paragraphs);
}

function showLine() {
  const lines = state.reply.lines.map((line, i) => [i, line]).filter(([, { source }]) => source.trim());
  if (!state.reply.lines[state.line].source.trim()) [[state.line]] = lines;
  get("line-choice").hidden = lines.length < 2;
  const names = lines.map(([i, { source }]) => {
    const text = source.length > 40 ? `${source.slice(0, 40)}…` : source;
    return [String(i), say("lineName", { number: i + 1, text })];
  });
  options(get("line"), names, String(state.line));
  showCoverage(state.reply.lines[state.line], model());
  showHypotheses(state.reply.lines[state.line], model().target);
  if (state.attention || EMBEDDED) showAttention();
}

function showAttention() {
  view.show(state.attention, model(), state.reason);
}

function chooseLine(line) {
  if (line === state.line || !state.reply.lines[line].source.trim()) return;
  Object.assign(state, { line, attention: null });
  showTranslation();
  showLine();
  if (!EMBEDDED) inspect(state.number, state.request.signal);
}

// ---- what is done ----

function listen() {
  for (const button of get("languages").children) {
    button.addEventListener("click", () => {
      setTongue(button.dataset.language);
      showModels();
      showFrame();
      show();
      if (state.reply) showAttention();
    });
  }
  get("line").addEventListener("change", () => chooseLine(Number(get("line").value)));
  get("copy").addEventListener("click", async () => {
    const text = state.reply.lines.map(({ hypotheses }) => hypotheses[0]?.text || "").join("\n");
    await navigator.clipboard.writeText(text);
    get("copy").textContent = say("copied");
    setTimeout(() => { get("copy").textContent = say("copy"); }, 1500);
  });
  if (EMBEDDED) return;
  get("source").addEventListener("input", (event) => {
    // What an input method has not finished is no text yet.
    if (!event.isComposing) schedule();
  });
  get("source").addEventListener("compositionend", () => schedule());
  get("model").addEventListener("change", () => {
    get("layer").value = get("head").value = ""; // Those of the other model.
    showFrame();
    schedule(0);
  });
  get("glossary").addEventListener("change", () => schedule(0));
  get("example").addEventListener("click", () => {
    get("source").value = model().example;
    get("source").focus();
    schedule(0);
  });
  get("clear").addEventListener("click", () => {
    get("source").value = "";
    get("source").focus();
    schedule(0);
  });
  get("again").addEventListener("click", () => (state.models.length ? schedule(0) : loadModels()));
  get("key-form").addEventListener("submit", (event) => {
    event.preventDefault();
    state.key = get("key").value.trim();
    try { sessionStorage.setItem("kformer-key", state.key); } catch { /* As above. */ }
    loadModels();
  });
}

function start() {
  listen();
  if (!EMBEDDED) {
    showFrame();
    show();
    loadModels();
    return;
  }
  const { reply, attention } = JSON.parse(EMBEDDED.textContent);
  Object.assign(state, { models: [reply.model], reply, attention });
  const text = reply.lines.map(({ source }) => source).join("\n");
  Object.assign(get("source"), { value: text, readOnly: true });
  showFrame();
  show();
}

start();
