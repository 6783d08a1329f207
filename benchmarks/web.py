"""Translates in browsers without a window with `kformer export --format web`, and times it.

    python benchmarks/web.py RUN --source F --reference F --work DIR
        [--browsers chromium,firefox-esr] [--dtypes float32,int8] [--beams 4,1] [--count 1000]
        [--long 2000] [--threads 1,2] [--peer FOLDER] [--runtime PATH]

The first table has the gzipped sizes of the folder. The second has a row for each browser, dtype
and beam: texts that equal Python's, BLEU, seconds from the start of the page to the first
translation, milliseconds per text, and for how long the page could not react at most, while a
worker translated text by text. Its last rows are transformers.js with as many `num_beams`,
onnxruntime in Python with the same graphs and the SavedModel, with one thread each. The third has
the memory of all processes of a browser while a page goes on translating. Browsers start with an
empty profile, and read from a server on loopback, which isolates pages of several threads.

The folder of `--peer` has `transformers.min.js` of npm's @huggingface/transformers, the files
`ort-wasm-*` that it loads, and as `model/` what `kformer export --format hf` writes with optimum's
`onnx/` and a `tokenizer.json`.
"""

import argparse
import functools
import gzip
import http.server
import itertools
import json
import os
import pathlib
import subprocess
import sys
import tempfile
import threading
import time

import psutil
import sacrebleu

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent))
from benchmarks.common import (  # noqa: E402
    Worker,
    answer,
    cpu_name,
    environment,
    integers,
    names,
    print_command,
    print_head,
    print_row,
    read,
    versions,
)

_PAGE = """<!doctype html><meta charset="utf-8"><script type="module">
const post = (name, value) => fetch(name, { method: "POST", body: JSON.stringify(value) });
const texts = await (await fetch("texts.json")).json(), results = [];
let last = performance.now(), blocked = 0;
setInterval(() => {
  const now = performance.now();
  [blocked, last] = [Math.max(blocked, now - last - 5), now];
}, 5);
const worker = new Worker("bench.mjs", { type: "module" });
let first, time = 0, number = 0;
const next = () => worker.postMessage({ texts: [texts[number++]], options: {} });
worker.onmessage = async ({ data }) => {
  if (data.error) return post("result", data);
  if (data.results) {
    first ??= performance.now();
    time += data.time;
    results.push(data.results[0].translation);
    if (number % 100 === 0) await post("progress", number);
  }
  if (number < texts.length) next();
  else post("result", { results, first, time, blocked });
};
</script>"""
_WORKER = """globalThis.translatorOptions = { threads: %d };
await import("./worker.mjs");"""
_PEER = """import { env, pipeline } from "./transformers.min.js";
const local = { allowLocalModels: true, allowRemoteModels: false, localModelPath: "./" };
Object.assign(env, local);
const wasmPaths = new URL("./", import.meta.url).href;
Object.assign(env.backends.onnx.wasm, { numThreads: 1, wasmPaths });
const translate = await pipeline("translation", "model", { dtype: "fp32", device: "wasm" });
postMessage({});
onmessage = async ({ data: { texts } }) => {
  const start = performance.now(), results = await translate(texts, { num_beams: %d });
  const time = performance.now() - start;
  postMessage({ results: results.map((each) => ({ translation: each.translation_text })), time });
};"""


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("run", type=pathlib.Path)
    parser.add_argument("--source", type=pathlib.Path, required=True)
    parser.add_argument("--reference", type=pathlib.Path, required=True)
    parser.add_argument("--work", type=pathlib.Path, required=True)
    parser.add_argument("--browsers", type=names, default=["chromium", "firefox-esr"])
    parser.add_argument("--dtypes", type=names, default=["float32", "int8"])
    parser.add_argument("--beams", type=integers, default=[4, 1])
    parser.add_argument("--count", type=int, default=1000, help="of texts")
    parser.add_argument(
        "--long", type=int, default=2000, help="texts of the page left open; 0: none"
    )
    parser.add_argument("--threads", type=integers, default=[1])
    parser.add_argument("--peer", type=pathlib.Path, help="the folder of transformers.js")
    parser.add_argument("--runtime", type=pathlib.Path, help="as of `kformer export`")
    options = parser.parse_args()
    texts, references = (
        read(path)[: options.count] for path in (options.source, options.reference)
    )
    print_command()
    print(f"{cpu_name()}; {versions('onnxruntime', 'tensorflow', 'sacrebleu')}")
    for browser in options.browsers:
        subprocess.run([browser, "--version"], check=True)
    folders = export(options)
    print_sizes(options, folders)
    columns = "texts equal", "BLEU", "ms/text", "first (s)", "blocked (ms)"
    print_head(("engine", "dtype", "beam", *columns))
    for beam in options.beams:
        expected, _ = in_python(options, "kformer", beam, texts)

        def print_texts(name, dtype, results, milliseconds, *rest, beam=beam, expected=expected):
            equal = sum(a == b for a, b in zip(results, expected, strict=True))
            bleu = sacrebleu.corpus_bleu(results, [references], force=True).score
            cells = f"{equal} of {len(texts)}", f"{bleu:.2f}", f"{milliseconds:.1f}"
            print_row(name, dtype, beam, *cells, *(rest or ("", "")))

        def print_page(name, dtype, result, print_texts=print_texts):
            rest = f"{result['first'] / 1e3:.2f}", f"{result['blocked']:.0f}"
            print_texts(name, dtype, result["results"], result["time"] / len(texts), *rest)

        for dtype in options.dtypes:
            for browser, threads in itertools.product(options.browsers, options.threads):
                result = in_browser(browser, folders[dtype, beam], texts, threads)
                name = browser if threads == 1 else f"{browser}, {threads} threads"
                print_page(name, dtype, result)
        if options.peer:
            worker = _PEER % beam
            for browser in options.browsers:
                result = in_browser(browser, options.peer, texts, worker=worker)
                print_page(f"{browser}, transformers.js", "float32", result)
        for kind, name in (("onnx", "onnxruntime in Python"), ("saved_model", "SavedModel")):
            print_texts(name, "float32", *in_python(options, kind, beam, texts))
    if not options.long:
        return
    print()
    print_head(("browser", "MiB after 100 texts", "after half", "after all"))
    long = [texts[i % len(texts)] for i in range(options.long)]
    for browser in options.browsers:
        memory = in_browser(browser, folders[options.dtypes[-1], options.beams[0]], long)["memory"]
        print_row(browser, *(f"{memory[i]:.0f}" for i in (0, len(memory) // 2, -1)))


def export(options):
    """The folders of each dtype and beam, and the SavedModel of each beam, made where missing."""
    options.work.mkdir(parents=True, exist_ok=True)
    folders = {}
    for beam in options.beams:
        commands = {options.work / f"saved-{beam}": ["--n-best", "1"]}
        for dtype in options.dtypes:
            folder = folders[dtype, beam] = options.work / f"web-{dtype}-{beam}"
            commands[folder] = ["--format", "web", "--dtype", dtype]
            if options.runtime:
                commands[folder] += ["--runtime", options.runtime]
        for folder, command in commands.items():
            if not folder.exists():
                parts = ["export", options.run, "--beam-size", beam, *command, "--output", folder]
                command = [sys.executable, "-m", "kformer_cli", *map(str, parts)]
                subprocess.run(
                    command, env=environment("tensorflow"), check=True, stdout=sys.stderr
                )
    return folders


def print_sizes(options, folders):
    print()
    print_head(("dtype", "model, MB gzipped", "library and page", "runtime"))
    for dtype in options.dtypes:
        folder = folders[dtype, options.beams[0]]
        unused = {"encoder.onnx", "decoder_step.onnx", "translator.py"}
        model = [p for p in (folder / "model").rglob("*") if p.is_file() and p.name not in unused]
        page = [p for p in folder.iterdir() if p.is_file()] + [*(folder / "kformer").iterdir()]
        sizes = [gzipped(each) / 1e6 for each in (model, page, (folder / "ort").iterdir())]
        print_row(dtype, *(f"{size:.3f}" for size in sizes))
    if options.peer:
        groups = (
            (options.peer / "model").rglob("*"),
            options.peer.glob("*.js"),
            options.peer.glob("ort*"),
        )
        sizes = [gzipped(path for path in group if path.is_file()) / 1e6 for group in groups]
        print_row("transformers.js", *(f"{size:.3f}" for size in sizes))
    print()


def gzipped(paths):
    """Bytes of files when each is compressed."""
    return sum(len(gzip.compress(path.read_bytes())) for path in paths)


def in_browser(browser, folder, texts, threads=1, worker=None):
    """What the page returned for texts, with the `memory` (MiB) after each hundred."""
    done, memory = threading.Event(), []
    own = {"/bench.html": _PAGE, "/texts.json": json.dumps(texts)}
    own["/bench.mjs"] = worker or _WORKER % threads

    class Handler(http.server.SimpleHTTPRequestHandler):
        def __init__(self, *arguments):
            super().__init__(*arguments, directory=folder)

        def do_GET(self):
            if self.path not in own:
                return super().do_GET()
            self._reply(self.guess_type(self.path))
            self.wfile.write(own[self.path].encode())

        def do_POST(self):
            value = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            if self.path == "/progress":
                memory.append(memory_of(process))
            else:
                done.value = value
                done.set()
            self._reply("application/json")

        def _reply(self, kind):
            self.send_response(200)
            self.send_header("Content-Type", kind)
            self.end_headers()

        def end_headers(self):
            if threads > 1:
                self.send_header("Cross-Origin-Opener-Policy", "same-origin")
                self.send_header("Cross-Origin-Embedder-Policy", "require-corp")
            super().end_headers()

        def log_message(self, *arguments):
            pass

    Handler.extensions_map = {**Handler.extensions_map, ".mjs": "text/javascript"}
    with (
        tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as profile,
        http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server,
    ):
        threading.Thread(target=server.serve_forever, daemon=True).start()
        arguments = ["--no-sandbox", f"--user-data-dir={profile}"]
        if "firefox" in browser:
            arguments = ["--no-remote", "--profile", profile]
        address = f"http://127.0.0.1:{server.server_port}/bench.html"
        command = [browser, "--headless", *arguments, address]
        quiet = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
        process = subprocess.Popen(command, **quiet, start_new_session=True)
        ended = done.wait(600)
        os.killpg(process.pid, 9)
        process.wait()
        server.shutdown()
    if not ended or "error" in done.value:
        raise SystemExit(f"{browser} {done.value['error'] if ended else 'did not answer'}.")
    return {**done.value, "memory": memory}


def memory_of(process):
    """MiB of a process and those that it started, what they share counted once."""
    root = psutil.Process(process.pid)
    return sum(each.memory_full_info().pss for each in [root, *root.children(True)]) / 2**20


def in_python(options, kind, beam, texts):
    """The translations of an engine in Python, and its milliseconds per text, the best of two."""
    folders = {"onnx": options.work / f"web-float32-{beam}" / "model"}
    folders |= {"saved_model": options.work / f"saved-{beam}", "kformer": options.run}
    command = [sys.executable, __file__, "engine", kind, folders[kind], beam]
    threads = {f"TF_NUM_{name}_THREADS": "1" for name in ("INTRAOP", "INTEROP")}
    worker = Worker(kind, [*map(str, command)], environment("tensorflow", **threads))
    worker.ask(texts[:3])
    answers = [worker.ask(texts) for _ in range(1 if kind == "kformer" else 2)]
    worker.close()
    return answers[0][0], min(milliseconds for _, milliseconds in answers)


def run_engine(kind, folder, beam):
    """Runs in the process of an engine in Python: translates text by text, kformer all at once."""
    if kind == "onnx":
        import onnxruntime

        from kformer.export.onnx.translator import Translator

        class OneThread(onnxruntime.SessionOptions):
            def __init__(self):
                super().__init__()
                self.intra_op_num_threads = 1

        onnxruntime.SessionOptions = OneThread
        exported = Translator(folder)
        translate = lambda texts: [exported([text])[0]["translation"] for text in texts]  # noqa: E731
    elif kind == "saved_model":
        from kformer.export.saved_model import SavedModelTranslator

        saved = SavedModelTranslator(folder)
        translate = lambda texts: [saved([text])[0] for text in texts]  # noqa: E731
    else:
        import kformer

        translate = functools.partial(kformer.Translator.load(folder), beam_size=int(beam))

    def handle(texts):
        begin = time.perf_counter()
        results = list(map(str, translate(texts)))
        return [results, (time.perf_counter() - begin) * 1e3 / len(texts)]

    return answer(handle)


if __name__ == "__main__":
    sys.exit(run_engine(*sys.argv[2:]) if sys.argv[1:2] == ["engine"] else main())
