"""How many sentences of a file does a trained model translate per second? The same weights in every system, in one run.

    python benchmarks/throughput.py RUN --source FILE [--reference FILE] [--shortlist FILE] [--beams 1,5] [--systems A,B] [--sentences N]
                                    [--batch-size 64] [--batch-tokens 4096] [--threads 1] [--repeats 3] [--work DIR] [--quick]

Each system is given all sentences at once, as strings, and may batch them as it likes: `Translator.translate` on each backend, the
exported SavedModel, CTranslate2 in float32 and int8 (`translate_batch`, batches by tokens) and Hugging Face's `generate` on batches of 32
that were sorted by length. Each has one process of its own, pinned to `--threads` processors; its first pass over the file is not timed.

A system's name may have options behind it, as in `translator-tensorflow+shortlist+early_stopping`: what they gain, and with
`--reference` what they cost in BLEU. `+shortlist` needs a text in the target language; `+length` limits a translation to 1.2 tokens per
source token and 5 more; `+no_drop` goes on computing sentences that are done.
"""

import argparse
import functools
import importlib
import importlib.metadata
import json
import os
import pathlib
import resource
import statistics
import subprocess
import sys
import tempfile
import time

from inference import PACKAGES, pin, processor

BACKENDS = ("tensorflow", "jax", "torch")
SYSTEMS = (*(f"translator-{backend}" for backend in BACKENDS), "saved_model", "hf", "ctranslate2-float32", "ctranslate2-int8")
VARIANTS = {"early_stopping": {"early_stopping": True}, "length": {"length_ratio": 1.2, "length_offset": 5}}


def make(options, folder):
    """The run in the formats of the systems."""
    import kformer
    from kformer.export.ctranslate2 import export_ctranslate2
    from kformer.interop import export_huggingface

    translator = kformer.Translator.load(options.run)
    if not (folder / "hf").exists():
        export_huggingface(translator, folder / "hf")
    for quantization in ("float32", "int8"):
        if not (folder / f"ctranslate2-{quantization}").exists():
            export_ctranslate2(translator, folder / f"ctranslate2-{quantization}", quantization=quantization)
    for name in options.systems:
        for beams in options.beams:
            if name.startswith("saved_model") and not (folder / f"{name}-{beams}").exists():
                prepare(name)
                translator.export(folder / f"{name}-{beams}", beam_size=beams, n_best=1, **variant(translator, options, name))


def variant(translator, options, name):
    """The search options that a system's name asks for."""
    asked = {}
    for part in name.split("+")[1:]:
        if part == "shortlist":
            asked["shortlist"] = translator.shortlist(read_lines(options.shortlist))
        elif part != "no_drop":
            asked |= VARIANTS[part]
    return asked


def prepare(name):
    """Changes that a system's name asks for beside its options."""
    if name.endswith("+no_drop"):
        module = importlib.import_module("kformer.decoding.search")
        module.search = functools.partial(module.search, drop_finished=False)


def translator_system(options, folder, name, beams):
    import kformer

    prepare(name)
    translator = kformer.Translator.load(options.run)
    batches = {"batch_size": options.batch_size, "batch_tokens": options.batch_tokens}
    return functools.partial(translator, beam_size=beams, **batches, **variant(translator, options, name))


def saved_model_system(options, folder, name, beams):
    from kformer.export import SavedModelTranslator

    return functools.partial(SavedModelTranslator(folder / f"{name}-{beams}"), batch_size=options.batch_size)


def hf_system(options, folder, name, beams):
    import torch
    import transformers

    torch.set_num_threads(options.threads)
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder / "hf")
    model = transformers.AutoModelForSeq2SeqLM.from_pretrained(folder / "hf").eval()

    def translate(texts):
        order = sorted(range(len(texts)), key=lambda i: -len(texts[i]))
        results = [None] * len(texts)
        for start in range(0, len(order), 32):
            batch = order[start : start + 32]
            inputs = tokenizer([texts[i] for i in batch], padding=True, return_tensors="pt")
            with torch.inference_mode():
                found = model.generate(**inputs, num_beams=beams, max_new_tokens=2 * inputs["input_ids"].shape[1] + 32)
            for i, text in zip(batch, tokenizer.batch_decode(found, skip_special_tokens=True), strict=True):
                results[i] = text
        return results

    return translate


def ctranslate2_system(options, folder, name, beams):
    import ctranslate2

    import kformer

    tokenizer = kformer.Tokenizer.load(pathlib.Path(options.run) / "tokenizer")
    engine = ctranslate2.Translator(str(folder / name), inter_threads=1, intra_threads=options.threads)
    ids = {token: i for i, token in enumerate(tokenizer.tokens(range(tokenizer.target_vocabulary_size), side="target"))}

    def translate(texts):
        rows = [tokenizer.tokens(row, side="source") for row in tokenizer.tokenize(texts, side="source")]
        found = engine.translate_batch(rows, beam_size=beams, max_batch_size=options.batch_tokens, batch_type="tokens")
        return tokenizer.detokenize([[ids[token] for token in result.hypotheses[0]] for result in found])

    return translate


def measure(options, name, folder):
    """One system's cells: seconds of each pass over the sentences, and what they say."""
    texts, kind, results = read_lines(options.source)[: options.sentences], name.partition("+")[0].partition("-")[0], {}
    systems = {"translator": translator_system, "saved_model": saved_model_system, "hf": hf_system, "ctranslate2": ctranslate2_system}
    for beams in options.beams:
        translate, seconds = systems[kind](options, folder, name, beams), []
        for _ in range(1 + options.repeats):
            start = time.perf_counter()
            translations = translate(texts)
            seconds.append(time.perf_counter() - start)
        results[str(beams)] = {"first": seconds[0], "seconds": seconds[1:], "translations": translations}
    results["memory"] = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    return results


def run_part(options, part, folder):
    """Runs a part in a process of its own with the processors that it may use, and returns what it wrote as JSON."""
    backend = part.partition("+")[0].removeprefix("translator-")
    environment = {**os.environ, "KERAS_BACKEND": backend if backend in BACKENDS else "tensorflow"}
    environment |= {"TF_CPP_MIN_LOG_LEVEL": "3", "HF_HUB_OFFLINE": "1", "TF_NUM_INTEROP_THREADS": "1"}
    environment |= dict.fromkeys(("OMP_NUM_THREADS", "TF_NUM_INTRAOP_THREADS"), str(options.threads))
    with tempfile.NamedTemporaryFile("r", suffix=".json") as file:
        command = [sys.executable, __file__, *sys.argv[1:], "--part", part, "--folder", str(folder), "--result", file.name]
        process = subprocess.run(command, env=environment, capture_output=True, text=True)
        if process.returncode:
            raise SystemExit(f"{part} failed:\n{process.stderr[-3000:]}")
        return json.loads(file.read() or "null")


def report(options, folder):
    texts = read_lines(options.source)[: options.sentences]
    references = read_lines(options.reference)[: options.sentences] if options.reference else None
    versions = ", ".join(f"{package} {importlib.metadata.version(package)}" for package in (*PACKAGES, "jax"))
    print(f"{processor()}, {options.threads} thread(s); {versions}; {len(texts)} sentences, {options.repeats} passes\n")
    print(f"command: python benchmarks/{' '.join([pathlib.Path(__file__).name, *sys.argv[1:]])}\n")
    head = ["beam", "system", "sentences/s, median", "spread", "/ ct2 float32", "/ hf", "BLEU", "first pass, s", "memory, MiB"]
    run_part(options, "make", folder)
    cells = {name: run_part(options, name, folder) for name in options.systems}
    print(f"| {' | '.join(head)} |\n{'|---' * len(head)}|", flush=True)
    for beams in map(str, options.beams):
        speed = {name: len(texts) / statistics.median(cell[beams]["seconds"]) for name, cell in cells.items()}
        for name, cell in cells.items():
            low, high = (len(texts) / edge(cell[beams]["seconds"]) for edge in (max, min))
            ratios = [f"{speed[name] / speed[peer]:.2f}" if peer in speed else "" for peer in ("ctranslate2-float32", "hf")]
            numbers = [f"{speed[name]:,.0f}", f"{low:,.0f} to {high:,.0f}", *ratios, bleu(cell[beams]["translations"], references)]
            row = [beams, name, *numbers, f"{cell[beams]['first']:.1f}", f"{cell['memory'] / 2**20:.0f}"]
            print("| " + " | ".join(row) + " |", flush=True)


def bleu(translations, references):
    if references is None:
        return ""
    import sacrebleu

    return f"{sacrebleu.corpus_bleu(translations, [references]).score:.2f}"


def read_lines(path):
    if path is None:
        raise SystemExit("+shortlist needs a text in the target language: --shortlist FILE.")
    return pathlib.Path(path).read_text(encoding="utf-8").split("\n")[:-1]


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("run", help="a run directory")
    parser.add_argument("--source", required=True, help="the sentences")
    parser.add_argument("--reference", help="their translations, for BLEU")
    parser.add_argument("--beams", type=lambda text: [int(size) for size in text.split(",")], default=[1, 5])
    parser.add_argument("--systems", type=lambda text: text.split(","), default=list(SYSTEMS))
    parser.add_argument("--batch-size", type=int, default=64)
    parser.add_argument("--batch-tokens", type=int, default=4096)
    parser.add_argument("--sentences", type=int, help="only the first N")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--shortlist", help="a text in the target language, for +shortlist")
    parser.add_argument("--work", type=pathlib.Path, help="folder for the exports; those that are there are used again")
    parser.add_argument("--quick", action="store_true", help="100 sentences, greedy: a minute or two, for tests")
    parser.add_argument("--part", help=argparse.SUPPRESS)
    parser.add_argument("--folder", type=pathlib.Path, help=argparse.SUPPRESS)
    parser.add_argument("--result", type=pathlib.Path, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.quick:
        options.sentences, options.beams, options.repeats = 100, [1], 1
    if options.part:
        if options.part != "make":
            pin(options)
        result = make(options, options.folder) if options.part == "make" else measure(options, options.part, options.folder)
        options.result.write_text(json.dumps(result))
        return
    with tempfile.TemporaryDirectory() as scratch:
        folder = options.work or pathlib.Path(scratch)
        folder.mkdir(parents=True, exist_ok=True)
        report(options, folder)


if __name__ == "__main__":
    main()
