/** The page: it translates as one types, each line as a text of its own. */

const TEXTS = {
  en: {
    title: "Translator", source: "Text", language: "Into", count: "Translations",
    result: "Translation", local: "The model runs on this device. No text leaves it.",
    loading: "Loading the model …", ready: "Ready.", busy: "Translating …", time: (ms) => `${ms} ms`,
    cut: "The text was too long: its end was left out.", own: "(the model's own)",
    noWorker: "The translator could not start: this browser is too old, or a file is missing.",
    failed: (message) => `An error: ${message}`,
  },
  zh: {
    title: "翻译", source: "原文", language: "译成", count: "译文数", result: "译文",
    local: "模型在本机运行，文字不会离开这台设备。", loading: "正在加载模型……", ready: "就绪。",
    busy: "正在翻译……", time: (ms) => `${ms} 毫秒`, cut: "原文过长，末尾未翻译。", own: "（模型默认）",
    noWorker: "翻译程序无法启动：浏览器版本过旧，或缺少文件。", failed: (message) => `出错了：${message}`,
  },
};
const element = (id) => document.getElementById(id);
const [source, result, status, language, count] = ["source", "result", "status", "language", "count"].map(element);
const button = element("page-language");
let words, state = ["loading"], isBusy = true, isWaiting = false;

function show(name, ...values) {
  state = [name, ...values];
  status.textContent = values.length ? words[name](...values) : words[name];
}

function setPageLanguage(code) {
  words = TEXTS[code];
  document.documentElement.lang = code;
  document.title = words.title;
  for (const each of document.querySelectorAll("[data-text]")) each.textContent = words[each.dataset.text];
  const other = code === "en" ? "zh" : "en";
  button.textContent = button.ariaLabel = other === "zh" ? "中文" : "English";
  button.lang = other;
  if (language.options.length) language.options[0].textContent = words.own;
  show(...state);
}

const worker = globalThis.startWorker?.() ?? new Worker("worker.mjs", { type: "module" });
worker.onerror = () => show("noWorker");
worker.onmessage = ({ data }) => {
  isBusy = false;
  if (data.error) show("failed", data.error);
  else if (data.languages) {
    language.append(new Option(words.own, ""), ...data.languages.map((code) => new Option(code, code)));
    element("language-row").hidden = !data.languages.length;
    for (let i = 1; i <= data.width; i++) count.append(new Option(i, i));
    element("count-row").hidden = data.width < 2;
    show("ready");
  } else {
    result.replaceChildren(...data.results.map((each) => (each.hypotheses ? group(each.hypotheses) : row(each))));
    const isCut = data.results.some((each) => each.truncated);
    if (isCut) show("cut"); else show("time", Math.round(data.time));
  }
  if (isWaiting || data.languages) translate();
};

function row({ translation, score }) {
  const item = document.createElement("li"), small = document.createElement("small");
  item.textContent = translation;
  item.dir = "auto";
  small.textContent = score.toFixed(2);
  if (count.value > 1) item.append(small);
  return item;
}

/** The translations of one line. */
function group(hypotheses) {
  const item = document.createElement("li"), list = document.createElement("ol");
  list.append(...hypotheses.map(row));
  item.append(list);
  return item;
}

function translate() {
  isWaiting = isBusy;
  if (isBusy) return;
  const texts = source.value.split("\n");
  if (!source.value.trim()) { result.replaceChildren(); show("ready"); return; }
  isBusy = true;
  show("busy");
  const options = { targetLanguage: language.value, hypotheses: Number(count.value) };
  worker.postMessage({ texts, options });
}

button.onclick = () => setPageLanguage(button.lang);
// What an input method has not finished is no text yet.
source.oninput = (event) => event.isComposing || translate();
source.addEventListener("compositionend", translate);
language.onchange = count.onchange = translate;
setPageLanguage(navigator.language.startsWith("zh") ? "zh" : "en");
