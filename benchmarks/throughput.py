"""Measures how many sentences per second a trained model translates, beside other libraries.

    python benchmarks/throughput.py RUN --source FILE [--reference FILE] [--shortlist FILE]
        [--beams 1,5] [--systems A,B] [--sentences N] [--batch-size 64] [--batch-tokens 4096]
        [--threads 1] [--repeats 3] [--work DIR] [--quick]

All systems have the same weights. Each is given all sentences at once, as strings, and may batch
them as it likes: `Translator.translate` on each backend, the exported SavedModel, CTranslate2 in
float32 and int8 (`translate_batch`, batches by tokens) and Hugging Face's `generate` on batches of
32, sorted by length. Each has one process, pinned to `--threads` CPU cores. Its first pass over the
file is not timed.

Options may follow a system's name, as in `translator-tensorflow+shortlist+early_stopping`. The
table then has what they gain, and with `--reference` what they cost in BLEU. `+shortlist` needs a
text in the target language; `+length` limits a translation to 1.2 tokens per source token and 5
more; `+no_drop` continues to compute finished sentences; `saved_model+bfloat16` is exported in that
dtype.

The systems are called in turns, so that other load on the machine affects all of them alike.
"""

import argparse
import functools
import importlib
import importlib.metadata
import os
import pathlib
import resource
import statistics
import subprocess
import sys
import tempfile
import time

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent))
from benchmarks.inference import PACKAGES, cpu_name, pin  # noqa: E402
from benchmarks.tables import print_command, print_head, print_row  # noqa: E402
from benchmarks.turns import Worker, answer, in_turns  # noqa: E402

BACKENDS = ("tensorflow", "jax", "torch")
SYSTEMS = (
    *(f"translator-{backend}" for backend in BACKENDS),
    "saved_model",
    "hf",
    "ctranslate2-float32",
    "ctranslate2-int8",
)
VARIANTS = {
    "early_stopping": {"early_stopping": True},
    "length": {"length_ratio": 1.2, "length_offset": 5},
    "bfloat16": {"dtype": "bfloat16"},
}


def make(options, folder):
    """Exports the run to the formats of the systems."""
    import kformer
    from kformer.export import export_huggingface
    from kformer.export.ctranslate2 import export_ctranslate2

    translator = kformer.Translator.load(options.run)
    if "hf" in options.systems and not (folder / "hf").exists():
        export_huggingface(translator, folder / "hf")
    for quantization in ("float32", "int8"):
        if (
            f"ctranslate2-{quantization}" in options.systems
            and not (folder / f"ctranslate2-{quantization}").exists()
        ):
            export_ctranslate2(
                translator, folder / f"ctranslate2-{quantization}", quantization=quantization
            )
    for name in options.systems:
        for beams in options.beams:
            if name.startswith("saved_model") and not (folder / f"{name}-{beams}").exists():
                prepare(name)
                translator.export(
                    folder / f"{name}-{beams}",
                    beam_size=beams,
                    n_best=1,
                    **variant(translator, options, name),
                )


def variant(translator, options, name):
    """The search options in a system's name."""
    asked = {}
    for part in name.split("+")[1:]:
        if part == "shortlist":
            asked["shortlist"] = translator.shortlist(read_lines(options.shortlist))
        elif part != "no_drop":
            asked |= VARIANTS[part]
    return asked


def prepare(name):
    """Patches the search as a system's name asks."""
    if name.endswith("+no_drop"):
        module = importlib.import_module("kformer.decoding.searcher")
        module.search = functools.partial(module.search, drop_finished=False)


def translator_system(options, folder, name, beams):
    import kformer

    prepare(name)
    translator = kformer.Translator.load(options.run)
    batches = {"batch_size": options.batch_size, "batch_tokens": options.batch_tokens}
    return functools.partial(
        translator, beam_size=beams, **batches, **variant(translator, options, name)
    )


def saved_model_system(options, folder, name, beams):
    from kformer.export import SavedModelTranslator

    return functools.partial(
        SavedModelTranslator(folder / f"{name}-{beams}"), batch_size=options.batch_size
    )


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
                found = model.generate(
                    **inputs, num_beams=beams, max_new_tokens=2 * inputs["input_ids"].shape[1] + 32
                )
            for i, text in zip(
                batch, tokenizer.batch_decode(found, skip_special_tokens=True), strict=True
            ):
                results[i] = text
        return results

    return translate


def ctranslate2_system(options, folder, name, beams):
    import ctranslate2

    import kformer

    tokenizer = kformer.Tokenizer.load(pathlib.Path(options.run) / "tokenizer")
    engine = ctranslate2.Translator(
        str(folder / name), inter_threads=1, intra_threads=options.threads
    )
    ids = {
        token: i
        for i, token in enumerate(
            tokenizer.tokens(range(tokenizer.target_vocabulary_size), side="target")
        )
    }

    def translate(texts):
        rows = [
            tokenizer.tokens(row, side="source") for row in tokenizer.tokenize(texts, side="source")
        ]
        found = engine.translate_batch(
            rows, beam_size=beams, max_batch_size=options.batch_tokens, batch_type="tokens"
        )
        return tokenizer.detokenize(
            [[ids[token] for token in result.hypotheses[0]] for result in found]
        )

    return translate


def work(options, name, folder):
    """Runs in a system's process: answers a beam size with a pass over the sentences."""
    texts, kind, opened = (
        read_lines(options.source)[: options.sentences],
        name.partition("+")[0].partition("-")[0],
        {},
    )
    systems = {
        "translator": translator_system,
        "saved_model": saved_model_system,
        "hf": hf_system,
        "ctranslate2": ctranslate2_system,
    }

    def handle(beams):
        if beams not in opened:
            opened[beams] = systems[kind](options, folder, name, beams)
        start = time.perf_counter()
        translations = opened[beams](texts)
        seconds = time.perf_counter() - start
        memory = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
        return {"seconds": seconds, "translations": translations, "memory": memory}

    answer(handle)


def environment_of(options, name):
    """The environment variables of a system's process."""
    backend = name.partition("+")[0].removeprefix("translator-")
    environment = {**os.environ, "KERAS_BACKEND": backend if backend in BACKENDS else "tensorflow"}
    environment |= {
        "TF_CPP_MIN_LOG_LEVEL": "3",
        "HF_HUB_OFFLINE": "1",
        "TF_NUM_INTEROP_THREADS": "1",
    }
    return environment | dict.fromkeys(
        ("OMP_NUM_THREADS", "TF_NUM_INTRAOP_THREADS"), str(options.threads)
    )


def command_of(part, folder):
    return [sys.executable, __file__, *sys.argv[1:], "--part", part, "--folder", str(folder)]


def report(options, folder):
    texts = read_lines(options.source)[: options.sentences]
    references = read_lines(options.reference)[: options.sentences] if options.reference else None
    versions = ", ".join(f"{package} {importlib.metadata.version(package)}" for package in PACKAGES)
    print(
        f"{cpu_name()}, {options.threads} thread(s); {versions}; {len(texts)} sentences, "
        f"{options.repeats} passes\n"
    )
    print_command()
    head = ["beam", "system", "sentences/s, median", "spread", "/ ct2 float32", "/ hf", "BLEU"]
    head += ["first pass, s", "memory, MiB"]
    process = subprocess.run(
        command_of("make", folder),
        env=environment_of(options, "tensorflow"),
        capture_output=True,
        text=True,
    )
    if process.returncode:
        raise SystemExit(f"make failed:\n{process.stderr[-3000:]}")
    workers = [
        Worker(name, command_of(name, folder), environment_of(options, name))
        for name in options.systems
    ]
    print_head(head)
    for beams in options.beams:
        first = {worker.system: worker.ask(beams) for worker in workers}
        seconds = {name: [] for name in first}
        for worker in in_turns(workers, options.repeats):
            seconds[worker.system].append(worker.ask(beams)["seconds"])
        speed = {name: len(texts) / statistics.median(values) for name, values in seconds.items()}
        for name, reply in first.items():
            low, high = (len(texts) / edge(seconds[name]) for edge in (max, min))
            ratios = [
                f"{speed[name] / speed[peer]:.2f}" if peer in speed else ""
                for peer in ("ctranslate2-float32", "hf")
            ]
            row = [beams, name, f"{speed[name]:,.0f}", f"{low:,.0f} to {high:,.0f}", *ratios]
            row += [bleu(reply["translations"], references)]
            row += [f"{reply['seconds']:.1f}", f"{reply['memory'] / 2**20:.0f}"]
            print_row(*row)
    for worker in workers:
        worker.close()


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
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("run", help="a run directory")
    parser.add_argument("--source", required=True, help="the sentences")
    parser.add_argument("--reference", help="their translations, for BLEU")
    parser.add_argument(
        "--beams", type=lambda text: [int(size) for size in text.split(",")], default=[1, 5]
    )
    parser.add_argument("--systems", type=lambda text: text.split(","), default=list(SYSTEMS))
    parser.add_argument("--batch-size", type=int, default=64)
    parser.add_argument("--batch-tokens", type=int, default=4096)
    parser.add_argument("--sentences", type=int, help="only the first N")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--shortlist", help="a text in the target language, for +shortlist")
    parser.add_argument(
        "--work",
        type=pathlib.Path,
        help="folder for the exports; existing ones are used again",
    )
    parser.add_argument(
        "--quick", action="store_true", help="100 sentences, greedy: a minute or two, for tests"
    )
    parser.add_argument("--part", help=argparse.SUPPRESS)
    parser.add_argument("--folder", type=pathlib.Path, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.quick:
        options.sentences, options.beams, options.repeats = 100, [1], 1
    if options.part:
        if options.part == "make":
            return make(options, options.folder)
        pin(options)
        return work(options, options.part, options.folder)
    with tempfile.TemporaryDirectory() as scratch:
        folder = options.work or pathlib.Path(scratch)
        folder.mkdir(parents=True, exist_ok=True)
        report(options, folder)


if __name__ == "__main__":
    main()
