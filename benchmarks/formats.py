"""Compares one model's translations: by backends, formats, precisions and versions of TensorFlow.

    python benchmarks/formats.py backends RUN --source F --work DIR [--limit N]
    python benchmarks/formats.py trained --train-source F --train-target F --work DIR [--epochs 3]
        [--source F] [--limit N]
    python benchmarks/formats.py others RUN --source F --reference F --work DIR [--threads N]
        [--limit N] [--search alike|kformer] [--formats A,B] [--differences]
    python benchmarks/formats.py precision RUN --source F --reference F --work DIR [--beams 1,5]
        [--dtypes float32,bfloat16,int8] [--instructions ,AVX2] [--limit 1000]
    python benchmarks/formats.py tensorflow RUN --source F --work DIR [--limit 200]
        [--versions 2.18,2.19,2.20,2.21] [--dtypes float32,bfloat16,int8]

backends. Loads the run on each backend and compares logits, greedy ids and the ids of a beam of 4,
sentence by sentence. Where ids differ it prints the difference of the scores, which must be a tie
(below 1e-4).

trained. Runs `kformer train` on each backend from one run without dropout, and prints the curves
side by side, epoch by epoch. With `--source` each run also translates the lines on its own backend,
is exported, and is compared with the SavedModel in a process that can import neither Keras nor
kformer.

others. CTranslate2 and `transformers`: sizes, BLEU, and how far ids and scores agree. Every format
translates the source greedily and with a beam of 4, and returns the 4 best with their scores. With
`--search alike` both sides have the search that other libraries have too
(`SearchOptions(mode="huggingface", early_stopping=True)`, scores divided by the length with the end
token, no token forbidden); a float format must return kformer's ids and scores, for every
hypothesis. `--search kformer` is kformer's own search without a length penalty, and the nearest of
the other library: start and padding token forbidden. Scores are compared where both sides list the
same hypothesis.

precision. What bfloat16 and int8 cost in quality and memory. The first table has BLEU, how many
texts equal those of float32, and how many are the same alone and in batches of 64.
`--instructions` names what oneDNN may use of the CPU (`ONEDNN_MAX_CPU_ISA`); nothing stands for all
of it. The second table has the size on disk, and of a process that has called each signature with
one text and with 32: the seconds to load the model and for the first call, and the memory that it
takes, beyond that of TensorFlow.

tensorflow. Exports the run once for each dtype, here. Then each version of TensorFlow, in an
environment of its own that pip makes in DIR, translates the lines in a process that has neither
Keras' nor kformer's code: as it comes, and with oneDNN switched off. The table counts the texts
that equal those of the TensorFlow that made the export. The exit status is 0 if float32 has no
other text anywhere, and no version fails to load a model. A version that pip cannot install is
named and left out.

What DIR has is used again. BLEU is sacreBLEU's.
"""

import argparse
import csv
import json
import os
import pathlib
import shutil
import subprocess
import sys
import time
import venv
from typing import NamedTuple

import numpy as np

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent))
from benchmarks.common import (  # noqa: E402
    BACKENDS,
    environment,
    integers,
    names,
    print_command,
    print_head,
    print_row,
    read,
    size_on_disk,
    versions,
)

SEARCHES = {"greedy": 1, "beam 4": 4}
# Translates the lines of a JSON file with a SavedModel: core TensorFlow and tensorflow_text alone.
SERVE = """
import importlib.util, json, pathlib, sys
sys.modules["keras"] = sys.modules["kformer"] = None
import tensorflow as tf
# Only its kernels, as a server links them: `import tensorflow_text` would import Keras.
folder = pathlib.Path(importlib.util.find_spec("tensorflow_text").origin).parent
tf.load_op_library(str(next(folder.glob("python/ops/_sentencepiece_tokenizer*.so"))))
serve = tf.saved_model.load(sys.argv[1]).signatures["serving_default"]
lines = json.load(open(sys.argv[2]))
texts = []
for start in range(0, len(lines), 32):
    found = serve(text=tf.constant(lines[start : start + 32]))["translation"].numpy()
    texts += [text.decode() for text in found]
json.dump(texts, open(sys.argv[3], "w"))
"""


def lines_of(options):
    """The lines of `--source` that are not empty, the first `--limit` of them."""
    return [line for line in read(options.source)[: options.limit] if line]


# Backends.


def run_on_backends(options):
    """Runs this command on each backend, as a process of its own."""
    for backend in BACKENDS:
        command = [sys.executable, *sys.argv, "--worker"]
        subprocess.run(command, env=environment(backend), check=True)


def search_on_backend(options):
    """Saves one backend's logits and search results to `DIR/search-BACKEND.npz`."""
    import keras

    import kformer

    translator = kformer.Translator.load(options.run)
    lines = lines_of(options)
    results = {}
    for name, beam_size in (("greedy", 1), ("beam 4", 4)):
        found = translator.translate(lines, beam_size=beam_size)
        results[f"{name} ids"] = np.array(
            [" ".join(map(str, result.hypotheses[0].ids)) for result in found]
        )
        results[f"{name} scores"] = np.array([result.score for result in found])
    rows = translator.tokenizer.tokenize(lines[:64], special_tokens=True)
    padded = np.full((len(rows), max(map(len, rows))), translator.model.pad_id, "int32")
    for row, ids in zip(padded, rows, strict=True):
        row[: len(ids)] = ids
    logits = translator.model({"source_ids": padded, "target_ids": padded[:, :20]}, training=False)
    results["logits"] = keras.ops.convert_to_numpy(logits)
    np.savez(options.work / f"search-{keras.backend.backend()}.npz", **results)


def report_backends(options):
    if options.worker:
        return search_on_backend(options)
    run_on_backends(options)
    print_command()
    found = {backend: np.load(options.work / f"search-{backend}.npz") for backend in BACKENDS}
    head = ["pair", "largest difference of logits", "greedy ids equal", "ties"]
    head += ["beam 4 ids equal", "ties"]
    print_head(head)
    for other in BACKENDS[1:]:
        first, second = found[BACKENDS[0]], found[other]
        cells = [f"{np.abs(first['logits'] - second['logits']).max():.1e}"]
        listed = []
        for name in ("greedy", "beam 4"):
            differs = np.flatnonzero(first[f"{name} ids"] != second[f"{name} ids"])
            gaps = np.abs(first[f"{name} scores"] - second[f"{name} scores"])[differs]
            total = len(first[f"{name} ids"])
            cells += [
                f"{total - len(differs)} of {total}",
                f"{(gaps < 1e-4).sum()} of {len(differs)}",
            ]
            listed += [
                f"  {name}, line {line + 1}: scores differ by {gap:.1e}"
                for line, gap in zip(differs, gaps, strict=True)
            ]
        print_row(f"{BACKENDS[0]}, {other}", *cells)
        print(*listed, sep="\n", end="\n" * bool(listed))


def export_on_backend(options):
    """Compares the translations of one backend's run with those of its SavedModel."""
    import keras

    import kformer

    backend = keras.backend.backend()
    work = options.work
    translator = kformer.Translator.load(work / backend)
    lines = lines_of(options)
    (work / "lines.json").write_text(json.dumps(lines))
    for name, beam_size in (("greedy", 1), ("beam 4", 4)):
        mine = [result.text for result in translator.translate(lines, beam_size=beam_size)]
        folder = translator.export(work / f"saved-{backend}-{beam_size}", beam_size=beam_size)
        served = work / f"served-{backend}-{beam_size}.json"
        command = [sys.executable, "-c", SERVE, str(folder), str(work / "lines.json"), str(served)]
        subprocess.run(command, check=True, env=environment("tensorflow"))
        equal = [a == b for a, b in zip(mine, json.loads(served.read_text()), strict=True)]
        different = len({*mine})
        print_row(backend, name, f"{sum(equal)} of {len(lines)}", different)
        for index in np.flatnonzero(np.logical_not(equal)):
            theirs = json.loads(served.read_text())[index]
            print(f"  line {index + 1}: {mine[index]!r}, SavedModel {theirs!r}")


def report_trained(options):
    if options.worker:
        return export_on_backend(options)
    work = options.work
    print_command()
    command = [sys.executable, "-m", "kformer_cli", "train", "--resume", "--batch-tokens", "2048"]
    command += ["--train-source", options.train_source, "--train-target", options.train_target]
    start = ["--output", work / "start", "--preset", "tiny", "--dropout", "0", "--steps", "1"]
    subprocess.run([*command, *start], env=environment(BACKENDS[0]), check=True)
    rows = {}
    for backend in BACKENDS:
        course = ["--output", work / backend, "--start-from", work / "start"]
        course += ["--epochs", str(options.epochs), "--learning-rate", "0.001"]
        subprocess.run([*command, *course], env=environment(backend), check=True)
        with open(work / backend / "history.csv", encoding="utf-8", newline="") as file:
            rows[backend] = list(csv.DictReader(file))
    losses = [np.array([float(row["loss"]) for row in rows[backend]]) for backend in BACKENDS]
    epochs = np.array([int(row["epoch"]) for row in rows[BACKENDS[0]]])
    spread = np.ptp(np.stack(losses), axis=0)
    print_head(["epoch, mean loss", *BACKENDS, "largest difference of a batch"])
    for epoch in np.unique(epochs):
        cells = [f"{values[epochs == epoch].mean():.4f}" for values in losses]
        print_row(epoch, *cells, f"{spread[epochs == epoch].max():.1e}")
    print(f"\nlargest difference over the first 50 steps: {spread[:50].max():.2e}")
    if options.source:
        print()
        print_head(["trained and translated on", "search", "strings equal", "different strings"])
        run_on_backends(options)


# Other libraries.


class Found(NamedTuple):
    """What a format returned for all sentences, N hypotheses each, best first."""

    ids: list  # lists of N lists of int, without the end token
    ranks: list  # lists of N floats, by which hypotheses are ordered
    seconds: float


def search_options(model, search, beam_size):
    """Fields of `SearchOptions` for kformer's side.

    All sentences have one limit of length, as in the other libraries.
    """
    options = {
        "beam_size": beam_size,
        "n_best": beam_size,
        "max_length": model.max_length - 1,
        "length_offset": model.max_length,
    }
    if search == "kformer":
        return {**options, "length_penalty": 0.0}
    return {
        **options,
        "length_penalty": 1.0,
        "mode": "huggingface",
        "early_stopping": True,
        "forced_end": False,
    }


def by_kformer(translator, lines, options, beam_size):
    """Translates with the run itself, on this process's backend."""
    start = time.perf_counter()
    found = translator.translate(
        lines, **search_options(translator.model, options.search, beam_size)
    )
    seconds = time.perf_counter() - start
    ids = [
        [without_end(hypothesis.ids, translator) for hypothesis in result.hypotheses]
        for result in found
    ]
    return Found(
        ids, [[hypothesis.rank for hypothesis in result.hypotheses] for result in found], seconds
    )


class CTranslate2Format:
    """CTranslate2 in one of its quantizations."""

    packages = ("ctranslate2",)

    def __init__(self, quantization):
        self.quantization = quantization

    def export(self, translator, folder):
        from kformer.export.ctranslate2 import export_ctranslate2

        export_ctranslate2(translator, folder, dtype=self.quantization)

    def translate(self, translator, folder, lines, options, beam_size):
        import ctranslate2

        engine = ctranslate2.Translator(str(folder), inter_threads=1, intra_threads=options.threads)
        model, vocabulary, target = (
            translator.model,
            translator.tokenizer.vocabulary("source"),
            translator.tokenizer.vocabulary("target"),
        )
        number = {piece: i for i, piece in enumerate(target.pieces)}
        arguments = {"length_penalty": 1.0, "return_end_token": True}
        if options.search == "kformer":
            banned = {model.start_id, model.pad_id} - {model.end_id}
            arguments = {
                "length_penalty": 0.0,
                "suppress_sequences": [[target.pieces[i]] for i in banned],
            }
        start = time.perf_counter()
        rows = [vocabulary.tokens(row) for row in translator.tokenizer.tokenize(lines)]
        results = engine.translate_batch(
            rows,
            max_batch_size=32,
            beam_size=beam_size,
            num_hypotheses=beam_size,
            return_scores=True,
            max_input_length=model.max_length,
            max_decoding_length=model.max_length,
            min_decoding_length=0,
            **arguments,
        )
        seconds = time.perf_counter() - start
        ids = [
            [
                without_end([number[token] for token in tokens], translator)
                for tokens in result.hypotheses
            ]
            for result in results
        ]
        return Found(ids, [result.scores for result in results], seconds)


class HuggingFaceFormat:
    """The folder for `transformers`.

    Args:
        again: bool, default False. Translate with kformer, which imports the folder again, instead
            of the library's `generate`.
    """

    packages = ("transformers", "torch")

    def __init__(self, again=False):
        self.again = again

    def export(self, translator, folder):
        from kformer.export import export_huggingface

        # Options that a search does not set are read from the folder's generation_config.json.
        export_huggingface(translator, folder, mode="huggingface", forced_end=False)

    def translate(self, translator, folder, lines, options, beam_size):
        if self.again:
            from kformer.interop import load_checkpoint

            return by_kformer(load_checkpoint(folder), lines, options, beam_size)
        import torch
        import transformers

        torch.set_num_threads(options.threads)
        tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
        model = transformers.AutoModelForSeq2SeqLM.from_pretrained(folder).eval()
        mine, ours = translator.model, options.search == "kformer"
        special = {"pad_token_id": mine.pad_id, "eos_token_id": mine.end_id}
        banned = [[token_id] for token_id in {mine.start_id, mine.pad_id} - {mine.end_id}]
        generation = transformers.GenerationConfig(
            **special,
            decoder_start_token_id=mine.start_id,
            max_length=mine.max_length + 1,
            num_beams=beam_size,
            num_return_sequences=beam_size,
            length_penalty=0.0 if ours else 1.0,
            early_stopping=("never" if ours else True) if beam_size > 1 else False,
            bad_words_ids=banned if ours else None,
            return_dict_in_generate=True,
            output_scores=True,
        )
        start = time.perf_counter()
        order = sorted(range(len(lines)), key=lambda i: -len(lines[i]))
        ids, ranks = [None] * len(lines), [None] * len(lines)
        with torch.inference_mode():
            for first in range(0, len(lines), 32):
                batch = order[first : first + 32]
                inputs = tokenizer(
                    [lines[i] for i in batch], padding=True, truncation=True, return_tensors="pt"
                )
                found = model.generate(**inputs, generation_config=generation)
                sequences = found.sequences[:, 1:].reshape(len(batch), beam_size, -1).tolist()
                if beam_size > 1:
                    scores = found.sequences_scores.reshape(len(batch), beam_size).tolist()
                else:
                    steps = model.compute_transition_scores(
                        found.sequences, found.scores, normalize_logits=True
                    )
                    lengths = [length_with_end(hypotheses[0], special) for hypotheses in sequences]
                    scores = [
                        [float(row[:length].sum())]
                        for row, length in zip(steps, lengths, strict=True)
                    ]
                for i, hypotheses, values in zip(batch, sequences, scores, strict=True):
                    kept = [row[: length_with_end(row, special)] for row in hypotheses]
                    ids[i] = [without_end(row, translator) for row in kept]
                    divides = beam_size == 1 and not ours
                    ranks[i] = [
                        value / len(row) if divides else value
                        for value, row in zip(values, kept, strict=True)
                    ]
        return Found(ids, ranks, time.perf_counter() - start)


def length_with_end(row, special):
    """Number of tokens of a generated row with its end token, without the padding after it."""
    return row.index(special["eos_token_id"]) + 1 if special["eos_token_id"] in row else len(row)


FORMATS = {
    f"ctranslate2-{quantization}": CTranslate2Format(quantization)
    for quantization in ("float32", "float16", "int8")
}
FORMATS |= {"hf": HuggingFaceFormat(), "hf-again": HuggingFaceFormat(again=True)}


def without_end(ids, translator):
    return ids[:-1] if ids and ids[-1] == translator.model.end_id else list(ids)


def bleu(translator, found, references):
    import sacrebleu

    texts = translator.tokenizer.detokenize([hypotheses[0] for hypotheses in found.ids])
    return sacrebleu.corpus_bleu(texts, [references]).score


def compare(expected, found):
    """Cells of a row.

    Returns:
        The number of sentences with the same best hypothesis, of those with the same list, and the
        largest difference of a score.
    """
    best = sum(a[0] == b[0] for a, b in zip(expected.ids, found.ids, strict=True))
    lists = sum(a == b for a, b in zip(expected.ids, found.ids, strict=True))
    gaps = []
    for sentence in zip(expected.ids, expected.ranks, found.ids, found.ranks, strict=True):
        theirs = dict(zip(map(tuple, sentence[2]), sentence[3], strict=True))
        gaps += [
            abs(rank - theirs[tuple(ids)])
            for ids, rank in zip(sentence[0], sentence[1], strict=True)
            if tuple(ids) in theirs
        ]
    total = len(expected.ids)
    return [f"{best} of {total}", f"{lists} of {total}", f"{max(gaps, default=np.nan):.1e}"]


def differences(name, search, expected, found):
    """Yields a line with both scores for each sentence whose best hypothesis differs."""
    for number, (a, b) in enumerate(zip(expected.ids, found.ids, strict=True), 1):
        if a[0] != b[0]:
            ranks = expected.ranks[number - 1][0], found.ranks[number - 1][0]
            scores = f"{ranks[0]:.5f} in kformer, {ranks[1]:.5f} there"
            yield f"  {name}, {search}, sentence {number}: {scores}"


def report_others(options):
    import keras

    import kformer

    run, work = pathlib.Path(options.run), options.work
    print_command()
    translator = kformer.Translator.load(run)
    files = options.source, options.reference
    lines, references = (read(file)[: options.limit] for file in files)
    pairs = [pair for pair in zip(lines, references, strict=True) if pair[0]]
    lines, references = [line for line, _ in pairs], [reference for _, reference in pairs]

    head = ["format", "search", "MB on disk", "BLEU", "seconds", "best ids equal"]
    head += ["lists of ids equal", "largest difference of a score"]
    print_head(head)
    expected, listed = {}, []
    mine = f"kformer, {keras.backend.backend()}"

    def row(name, search, size, found, *cells):
        score, seconds = bleu(translator, found, references), f"{found.seconds:.1f}"
        print_row(name, search, f"{size / 1e6:.2f}", f"{score:.2f}", seconds, *cells)

    size = size_on_disk(run / "model.keras", run / "tokenizer")
    for search, beam_size in SEARCHES.items():
        expected[search] = by_kformer(translator, lines, options, beam_size)
        row(mine, search, size, expected[search], "", "", "")
    for name in options.formats:
        shutil.rmtree(work / name, ignore_errors=True)
        FORMATS[name].export(translator, work / name)
        for search, beam_size in SEARCHES.items():
            found = FORMATS[name].translate(translator, work / name, lines, options, beam_size)
            row(name, search, size_on_disk(work / name), found, *compare(expected[search], found))
            listed += differences(name, search, expected[search], found)
    packages = [package for name in options.formats for package in FORMATS[name].packages]
    packages = versions("keras", keras.backend.backend(), *packages)
    print(f"\n{len(lines)} sentences; {packages}")
    if options.differences:
        print(*listed, sep="\n")


# Precision.

DTYPES = ("float32", "bfloat16", "int8")
# Translates with TensorFlow and the ops of tensorflow_text alone.
MEASURE = """
import json, sys, time
import tensorflow as tf
import tensorflow_text

folder, batch_size = sys.argv[1], int(sys.argv[2])
texts = json.load(sys.stdin)

def resident():
    with open("/proc/self/status") as file:
        [line] = [line for line in file if line.startswith("VmRSS")]
    return int(line.split()[1]) / 1024

tf.linalg.matmul([[1.0]], [[1.0]])  # What TensorFlow allocates once.
before, start = resident(), time.perf_counter()
model = tf.saved_model.load(folder)
loaded = time.perf_counter()
signatures = dict(model.signatures)
serve = signatures["serving_default"]
serve(text=tf.constant(texts[:1]))
first = time.perf_counter()
for name in sorted(signatures):
    for count in (1, 32):
        signatures[name](text=tf.constant(texts[:count]))
memory = resident() - before
found = []
for start_row in range(0, len(texts), batch_size) if batch_size else ():
    batch = serve(text=tf.constant(texts[start_row:start_row + batch_size]))["translation"].numpy()
    found += [text.decode() for text in batch]
print(json.dumps({
    "texts": found, "load": loaded - start, "first": first - loaded, "memory": memory,
    "signatures": sorted(signatures),
}))
"""


def exported(options, dtype, **search):
    """The folder of an export with its version, made at the first call."""
    os.environ.setdefault("KERAS_BACKEND", "tensorflow")
    import kformer
    from kformer.export.saved_model.folder import find_version

    folder = options.work / "-".join(map(str, (dtype, *search.values())))
    if not folder.exists():
        kformer.Translator.load(options.run).export(folder, dtype=dtype, **search)
    return find_version(folder)


def report_precision(options):
    import sacrebleu

    sources = read(options.source)[: options.limit]
    references = read(options.reference)[: options.limit]
    print_command()
    print_head(("beam", "dtype", "instructions", "BLEU", "texts as float32's", "alone as in 64s"))
    for beam in options.beams:
        expected = None
        for dtype in options.dtypes:
            folder = exported(options, dtype, beam_size=beam)
            for instructions in options.instructions:
                found = measured_texts(folder, sources, 64, instructions)["texts"]
                alone = measured_texts(folder, sources, 1, instructions)["texts"]
                expected = expected or found
                score = sacrebleu.corpus_bleu(
                    found, [references], tokenize="none", force=True
                ).score
                print_row(
                    beam,
                    dtype,
                    instructions or "all",
                    f"{score:.2f}",
                    f"{equal_texts(found, expected)} of {len(sources)}",
                    f"{equal_texts(found, alone)} of {len(sources)}",
                )
    print()
    print_head(("beam", "dtype", "on disk, MB", "loading, s", "first call, s", "memory, MiB"))
    for beam in options.beams:
        for dtype in options.dtypes:
            folder = exported(options, dtype, beam_size=beam)
            found = measured_texts(folder, sources[:32], 0)
            cells = [size_on_disk(folder) / 1e6, found["load"], found["first"], found["memory"]]
            print_row(beam, dtype, *(f"{cell:.1f}" for cell in cells))
    print(f"<!-- signatures: {', '.join(found['signatures'])} -->")


def measured_texts(folder, texts, batch_size, instructions=""):
    """What the program prints."""
    variables = environment("tensorflow")
    variables.pop("ONEDNN_MAX_CPU_ISA", None)
    if instructions:
        variables["ONEDNN_MAX_CPU_ISA"] = instructions
    run = subprocess.run(
        [sys.executable, "-c", MEASURE, str(folder), str(batch_size)],
        input=json.dumps(texts),
        stdout=subprocess.PIPE,
        text=True,
        env=variables,
        check=True,
    )
    return json.loads(run.stdout)


def equal_texts(texts, others):
    return sum(one == other for one, other in zip(texts, others, strict=True))


# Versions of TensorFlow.

# Translates the lines of standard input, with TensorFlow and the ops of tensorflow_text alone.
TRANSLATE = """
import json, sys
import tensorflow as tf
import tensorflow_text
texts = json.load(sys.stdin)
serve = tf.saved_model.load(sys.argv[1]).signatures["serving_default"]
found = []
for start in range(0, len(texts), 32):
    batch = serve(text=tf.constant(texts[start:start + 32]))["translation"].numpy()
    found += [text.decode() for text in batch]
print(json.dumps({"version": tf.__version__, "texts": found}))
"""


def report_tensorflow(options):
    texts = read(options.source)[: options.limit]
    folders = {dtype: exported(options, dtype) for dtype in options.dtypes}
    expected = {dtype: translated(sys.executable, folders[dtype], texts) for dtype in folders}
    print_command()
    print_head(("TensorFlow", "dtype", "oneDNN", "equal texts", "of"))
    failed = False
    for version in options.versions:
        python = python_of(options.work / f"tensorflow-{version}", version)
        if python is None:
            print(f"<!-- TensorFlow {version} could not be installed -->")
            continue
        for dtype in options.dtypes:
            for one_dnn in (True, False):
                found = translated(python, folders[dtype], texts, one_dnn)
                if isinstance(found, str):
                    failed = True
                    print_row(version, dtype, "on" if one_dnn else "off", found, len(texts))
                    continue
                pairs = zip(found["texts"], expected[dtype]["texts"], strict=True)
                equal = sum(ours == theirs for ours, theirs in pairs)
                failed |= dtype == "float32" and equal < len(texts)
                print_row(found["version"], dtype, "on" if one_dnn else "off", equal, len(texts))
    sys.exit(failed)


def python_of(folder, version):
    """The interpreter of a virtual environment with a version of TensorFlow, or `None`."""
    python = folder / "bin" / "python"
    if not (folder / "complete").exists():
        venv.create(folder, with_pip=True, clear=True)
        packages = [f"{name}=={version}.*" for name in ("tensorflow", "tensorflow-text")]
        command = [str(python), "-m", "pip", "install", "--quiet", *packages]
        if subprocess.run(command, capture_output=True).returncode:
            return None
        (folder / "complete").touch()
    return python


def translated(python, folder, texts, one_dnn=True):
    """What the program prints, or the last line of its error."""
    variables = {**os.environ, "TF_CPP_MIN_LOG_LEVEL": "3"}
    variables["TF_ENABLE_ONEDNN_OPTS"] = "1" if one_dnn else "0"
    run = subprocess.run(
        [str(python), "-c", TRANSLATE, str(folder)],
        input=json.dumps(texts),
        capture_output=True,
        text=True,
        env=variables,
    )
    if run.returncode:
        return run.stderr.strip().splitlines()[-1][:200]
    return json.loads(run.stdout)


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parts = parser.add_subparsers(dest="part", required=True)
    part = parts.add_parser("backends", help="one run on each backend")
    part.add_argument("run", type=pathlib.Path)
    part.add_argument("--source", type=pathlib.Path, required=True)
    part.add_argument("--limit", type=int, help="only the first N lines")
    part.add_argument("--worker", action="store_true", help=argparse.SUPPRESS)

    part = parts.add_parser("trained", help="a training on each backend from one start")
    part.add_argument("--train-source", required=True)
    part.add_argument("--train-target", required=True)
    part.add_argument("--epochs", type=int, default=3)
    part.add_argument("--source", type=pathlib.Path, help="lines to translate, here and exported")
    part.add_argument("--limit", type=int, help="only the first N lines")
    part.add_argument("--worker", action="store_true", help=argparse.SUPPRESS)

    part = parts.add_parser("others", help="CTranslate2 and transformers")
    part.add_argument("run", type=pathlib.Path)
    part.add_argument("--source", type=pathlib.Path, required=True)
    part.add_argument("--reference", type=pathlib.Path, required=True)
    part.add_argument("--threads", type=int, default=1, help="of the others; ours: OMP_NUM_THREADS")
    part.add_argument("--limit", type=int, help="only the first N lines")
    part.add_argument("--search", choices=("alike", "kformer"), default="alike")
    known = ", ".join(FORMATS)
    part.add_argument("--formats", type=names, default=list(FORMATS), help=f"of {known}")
    part.add_argument("--differences", action="store_true", help="list the sentences that differ")

    part = parts.add_parser("precision", help="what bfloat16 and int8 cost")
    part.add_argument("run", type=pathlib.Path)
    part.add_argument("--source", type=pathlib.Path, required=True)
    part.add_argument("--reference", type=pathlib.Path, required=True)
    part.add_argument("--beams", type=integers, default=[1, 5])
    part.add_argument("--dtypes", type=names, default=list(DTYPES))
    part.add_argument("--instructions", type=lambda text: text.split(","), default=["", "AVX2"])
    part.add_argument("--limit", type=int, default=1000)

    part = parts.add_parser("tensorflow", help="the SavedModel in versions of TensorFlow")
    part.add_argument("run", type=pathlib.Path)
    part.add_argument("--source", type=pathlib.Path, required=True)
    part.add_argument("--versions", type=names, default=["2.18", "2.19", "2.20", "2.21"])
    part.add_argument("--dtypes", type=names, default=list(DTYPES))
    part.add_argument("--limit", type=int, default=200)

    for part in parts.choices.values():
        part.add_argument("--work", type=pathlib.Path, required=True, help="folder for exports")
    options = parser.parse_args()
    options.work.mkdir(parents=True, exist_ok=True)
    reports = {"backends": report_backends, "trained": report_trained, "others": report_others}
    reports |= {"precision": report_precision, "tensorflow": report_tensorflow}
    reports[options.part](options)


if __name__ == "__main__":
    main()
