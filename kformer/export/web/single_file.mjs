// Starts the page from the files inside it. Their addresses must be made where they are read: from
// `file://`, a worker may not read those of its page.
const files = {};
for (const each of document.querySelectorAll("script[data-file]")) {
  files[each.dataset.file] = Uint8Array.from(atob(each.textContent), (sign) => sign.charCodeAt(0));
  each.remove();
}
const addressOf = (code) => URL.createObjectURL(new Blob([code], { type: "text/javascript" }));
const textOf = (name) => new TextDecoder().decode(files[name]);

async function start({ data: files }) {
  const address = (name) => {
    const code = new TextDecoder().decode(files[name]).replace(/"(\.{1,2}\/[^"]+\.mjs)"/g, (_, path) =>
      JSON.stringify(address(new URL(path, `file:///${name}`).pathname.slice(1))));
    return URL.createObjectURL(new Blob([code], { type: "text/javascript" }));
  };
  const runtime = await import(address("ort/ort.wasm.min.mjs"));
  runtime.env.wasm.numThreads = 1;
  runtime.env.wasm.wasmPaths = { mjs: address("ort/ort-wasm-simd-threaded.mjs") };
  runtime.env.wasm.wasmBinary = files["ort/ort-wasm-simd-threaded.wasm"];
  globalThis.translatorOptions = { runtime, read: async (name) => files[`model/${name}`] };
  await import(address("worker.mjs"));
}

globalThis.startWorker = () => {
  const worker = new Worker(addressOf(`onmessage = ${start}`));
  worker.postMessage(files);
  return worker;
};
await import(addressOf(textOf("app.mjs")));
