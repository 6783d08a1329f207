"use strict";
// The words of the page in two languages, and how numbers and names are written in them.

const TEXTS = {
  en: {
    title: "Translator",
    inBrowser: "A model can translate in a page without a server, too: kformer export RUN --format web",
    languageOfPage: "Language of this page",
    model: "Model",
    source: "Source",
    sourcePlaceholder: "Type or paste a text. Each line is translated by itself.",
    translation: "Translation",
    translationPlaceholder: "The translation appears here as you type.",
    example: "Try an example",
    clear: "Clear",
    copy: "Copy",
    copied: "Copied",
    again: "Try again",
    working: "Translating …",
    facts: "{model}, {seconds}",
    factsAlone: "{model}",
    version: "{name} (version {version})",
    milliseconds: "{number} ms",
    seconds: "{number} s",
    truncated: "The text is longer than the model reads; the end of it was not translated.",
    someTruncated: "Lines longer than the model reads were cut: {lines}.",
    doubtful: "Something may have been left out or added.",
    someDoubtful: "Lines that may have left out or added something: {lines}.",
    coverage: "What may be missing or added",
    coverageHint:
      "Words that may have been left out are underlined in the source; words without a source have a " +
      "dotted line in the translation. The probability of a fault is {share}.",
    missing: "left out: ",
    added: "without a source: ",
    line: "Line",
    lineName: "{number}: {text}",
    words: "Where each word came from",
    wordsHint:
      "Choose a word of the translation, by pointer or by arrow keys, to see where the model " +
      "looked. It follows the layer and head that are chosen under Attention.",
    wordsOf: "Words of the translation",
    wordReading: "{word} came from {sources}",
    wordSource: "{word} ({share})",
    wordFromNothing: "{word} came from no word of the source",
    wordsTable: "The words of the translation and their sources",
    targetWord: "Translation",
    sourceWord: "Source",
    share: "Share",
    hypotheses: "Hypotheses",
    hypothesesHint:
      "Best first, after the length penalty. The score is the log-probability of the whole " +
      "translation; beside it the probability. What differs from the best is underlined.",
    score: "score {score}",
    parted: "Where the beams parted",
    tree: "Tree of the hypotheses",
    ends: "ends here",
    rank: "hypothesis {rank}",
    attention: "Attention",
    attentionHint:
      "Rows are {rows}, columns are {columns}. The stronger a color, the larger the weight; each row sums to " +
      "{whole}. Point at a cell, or move with the arrow keys.",
    attentionLong: "The text is too long to show its attention. Choose a shorter text.",
    attentionAbsent:
      "This model was exported without its attention. Export it with --signatures serving_default,n_best,attention " +
      "to see it, and several hypotheses.",
    attentionAveraged: "The text is long, so the heads of a layer are averaged.",
    kind: "Kind",
    kinds: { cross: "decoder on source", encoder: "source on itself", decoder: "decoder on itself" },
    rows: {
      cross: "predicted tokens", encoder: "source tokens", decoder: "predicted tokens",
    },
    columns: {
      cross: "source tokens", encoder: "source tokens that are attended to",
      decoder: "tokens before them",
    },
    layer: "Layer",
    head: "Head",
    meanOfLayers: "mean of all",
    meanOfHeads: "mean of all",
    overview: "All layers (rows) and heads (columns)",
    map: "Attention map",
    mapReading: "{row} → {column}: {share}",
    mapTable: "Attention in percent: {rows} by {columns}",
    asTable: "As a table",
    tableLong: "Only the first {number} rows and columns are shown.",
    keyLabel: "This server asks for a key",
    keyUse: "Use",
    errorKey: "The server did not accept the key.",
    errorLong: "The text is longer, or has more lines, than this server takes. Shorten it.",
    errorBusy: "The server is busy. It is tried again in a moment.",
    errorDeadline: "The translation took too long and was given up.",
    errorNotReady: "The server has no model that is ready yet.",
    errorNetwork: "The server cannot be reached.",
    errorServer: "The server failed on this text.",
    noModels: "The server has no model.",
    glossary: "Glossary",
    noGlossary: "none",
    terms: "terms used: {terms}",
    term: "{source} → {target} ({used} of {found})",
    attentionGlossary: "With a glossary a translation is put together, so it has no attention of its own.",
  },
  zh: {
    title: "翻译",
    inBrowser: "模型也可以不用服务器，直接在网页里翻译：kformer export RUN --format web",
    languageOfPage: "页面语言",
    model: "模型",
    source: "原文",
    sourcePlaceholder: "输入或粘贴文本，每行单独翻译。",
    translation: "译文",
    translationPlaceholder: "边输入，边在此显示译文。",
    example: "试试例句",
    clear: "清空",
    copy: "复制",
    copied: "已复制",
    again: "重试",
    working: "正在翻译……",
    facts: "{model}，{seconds}",
    factsAlone: "{model}",
    version: "{name}（版本 {version}）",
    milliseconds: "{number} 毫秒",
    seconds: "{number} 秒",
    truncated: "文本超出模型可读的长度，末尾部分未翻译。",
    someTruncated: "超出模型可读长度的行已被截断：{lines}。",
    doubtful: "可能有漏译或多译。",
    someDoubtful: "以下各行可能有漏译或多译：{lines}。",
    coverage: "可能漏译或多译之处",
    coverageHint: "原文中可能漏译的词加下划线，译文中没有来源的词加点线。出错的概率为 {share}。",
    missing: "漏译：",
    added: "没有来源：",
    line: "行",
    lineName: "{number}：{text}",
    words: "每个词的来源",
    wordsHint: "用指针或方向键选择译文中的词，查看模型关注的原文。结果取决于“注意力”中所选的层和头。",
    wordsOf: "译文中的词",
    wordReading: "{word} 来自 {sources}",
    wordSource: "{word}（{share}）",
    wordFromNothing: "{word} 不来自原文的任何词",
    wordsTable: "译文的词及其来源",
    targetWord: "译文",
    sourceWord: "原文",
    share: "占比",
    hypotheses: "候选译文",
    hypothesesHint: "按长度惩罚后的得分排序，最优在前。得分是整句译文的对数概率，旁边是概率。与最优译文不同的部分带下划线。",
    score: "得分 {score}",
    parted: "集束搜索在何处分开",
    tree: "候选译文树",
    ends: "到此结束",
    rank: "候选 {rank}",
    attention: "注意力",
    attentionHint: "行是{rows}，列是{columns}。颜色越醒目，权重越大；每行之和为 {whole}。指向单元格，或用方向键移动。",
    attentionLong: "文本过长，无法显示注意力。请选择较短的文本。",
    attentionAbsent: "此模型导出时未包含注意力。导出时加上 --signatures serving_default,n_best,attention，即可查看注意力和多个候选译文。",
    attentionAveraged: "文本较长，每层各头取平均。",
    kind: "种类",
    kinds: { cross: "解码器对原文", encoder: "原文对自身", decoder: "解码器对自身" },
    rows: { cross: "预测的词元", encoder: "原文词元", decoder: "预测的词元" },
    columns: { cross: "原文词元", encoder: "被关注的原文词元", decoder: "之前的词元" },
    layer: "层",
    head: "头",
    meanOfLayers: "全部平均",
    meanOfHeads: "全部平均",
    overview: "所有层（行）与头（列）",
    map: "注意力图",
    mapReading: "{row} → {column}：{share}",
    mapTable: "注意力百分比：{rows}（行）与{columns}（列）",
    asTable: "以表格显示",
    tableLong: "仅显示前 {number} 行和列。",
    keyLabel: "此服务器需要密钥",
    keyUse: "使用",
    errorKey: "服务器不接受此密钥。",
    errorLong: "文本长度或行数超出服务器接受的范围，请缩短。",
    errorBusy: "服务器繁忙，稍后自动重试。",
    errorDeadline: "翻译耗时过长，已放弃。",
    errorNotReady: "服务器尚无就绪的模型。",
    errorNetwork: "无法连接服务器。",
    errorServer: "服务器未能翻译此文本。",
    noModels: "服务器上没有模型。",
    glossary: "术语表",
    noGlossary: "不用",
    terms: "术语：{terms}",
    term: "{source} → {target}（{found} 处用了 {used} 处）",
    attentionGlossary: "使用术语表时，译文是拼合而成的，因此没有对应的注意力。",
  },
};

const TONGUES = { en: "en", zh: "zh-Hans" };
let tongue = chosenTongue();

function chosenTongue() {
  let stored = null;
  try { stored = localStorage.getItem("kformer-language"); } catch { /* No storage: no choice. */ }
  const wished = [stored, ...(navigator.languages || [navigator.language])];
  for (const one of wished) {
    const short = (one || "").slice(0, 2).toLowerCase();
    if (short in TEXTS) return short;
  }
  return "en";
}

/** The text of a name in the page's language, with `{part}` filled in. */
function say(name, parts = {}) {
  const text = name.split(".").reduce((found, key) => found[key], TEXTS[tongue]);
  return text.replace(/\{(\w+)\}/g, (mark, key) => (key in parts ? parts[key] : mark));
}

/** As `say`, with elements for parts: a list of texts and elements. */
function sayAround(name, parts) {
  return say(name).split(/\{(\w+)\}/).map((text, i) => (i % 2 ? parts[text] : text)).flat();
}

function setTongue(name) {
  tongue = name;
  try { localStorage.setItem("kformer-language", name); } catch { /* As above. */ }
}

function percent(value) {
  if (value > 0 && value < 0.0005) return `< ${percent(0.001)}`;
  const digits = value > 0 && value < 0.0995 ? 1 : 0;
  return new Intl.NumberFormat(TONGUES[tongue], {
    style: "percent", minimumFractionDigits: digits, maximumFractionDigits: digits,
  }).format(value);
}

function decimal(value, digits) {
  return new Intl.NumberFormat(TONGUES[tongue], {
    minimumFractionDigits: digits, maximumFractionDigits: digits,
  }).format(value).replace("-", "\u2212");
}

function duration(milliseconds) {
  if (milliseconds < 1000) return say("milliseconds", { number: decimal(milliseconds, 0) });
  return say("seconds", { number: decimal(milliseconds / 1000, 1) });
}

function languageName(code) {
  if (!code) return "";
  try {
    return new Intl.DisplayNames([TONGUES[tongue]], { type: "language" }).of(code);
  } catch {
    return code;
  }
}

// ---- elements ----

const get = (id) => document.getElementById(id);

/** An element with properties, and with children that are elements or texts; never markup. */
function make(tag, properties = {}, ...children) {
  const element = document.createElement(tag);
  for (const [name, value] of Object.entries(properties)) {
    if (name in element && !name.includes("-")) element[name] = value;
    else element.setAttribute(name, value);
  }
  element.append(...children);
  return element;
}

/** Whether a text has characters that stand upright in vertical lines. */
const isUpright = (text) => /[\u3040-\u30ff\u3400-\u9fff\uac00-\ud7af]/.test(text);

/** Gives an element the language and direction of a text. */
function inTongue(element, language) {
  if (language.lang) element.lang = language.lang;
  else element.removeAttribute("lang");
  element.dir = language.dir;
  return element;
}
