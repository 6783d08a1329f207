"""Compares a model's translations in every format that it can be exported to.

    python benchmarks/formats.py RUN --source F --reference F --work DIR [--threads N] [--limit N]
        [--search alike|kformer] [--formats A,B]

Prints sizes, BLEU, and how far ids and scores agree. Every format translates the source greedily
and with a beam of 4, and returns the 4 best with their scores. `--search` selects the search on
both sides:

- `alike` (default): the search that other libraries have too (`SearchOptions(mode="huggingface",
  early_stopping=True)`, scores divided by the length with the end token, no token forbidden). A
  float format must return kformer's ids and scores, for every hypothesis.
- `kformer`: kformer's own search without a length penalty, and the nearest of the other library:
  start and padding token forbidden.

BLEU is sacreBLEU of the best translations. Scores are compared where both sides list the same
hypothesis. The exported models stay in DIR/FORMAT.
"""

import argparse
import importlib.metadata
import pathlib
import shutil
import sys
import time
from typing import NamedTuple

import numpy as np
import sacrebleu

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent))
from benchmarks.tables import print_head, print_row  # noqa: E402

SEARCHES = {"greedy": 1, "beam 4": 4}


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

        export_ctranslate2(translator, folder, quantization=self.quantization)

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


def size_on_disk(*paths):
    """Bytes of files, and of all files in folders."""
    files = [
        file
        for path in paths
        for file in ([path] if path.is_file() else path.rglob("*"))
        if file.is_file()
    ]
    return sum(file.stat().st_size for file in files)


def bleu(translator, found, references):
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


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("run", help="a run directory")
    parser.add_argument("--source", required=True)
    parser.add_argument("--reference", required=True)
    parser.add_argument("--work", required=True, help="folder for the exported models")
    parser.add_argument(
        "--threads",
        type=int,
        default=1,
        help="of the other libraries; kformer's own are $OMP_NUM_THREADS",
    )
    parser.add_argument("--limit", type=int, default=None, help="only the first N lines")
    parser.add_argument("--search", choices=("alike", "kformer"), default="alike")
    parser.add_argument("--formats", default=",".join(FORMATS), help=f"of {', '.join(FORMATS)}")
    parser.add_argument(
        "--differences", action="store_true", help="also list the sentences that differ"
    )
    options = parser.parse_args()
    options.formats = options.formats.split(",")
    if unknown := set(options.formats) - set(FORMATS):
        parser.error(f"unknown format {', '.join(sorted(unknown))}; there are {', '.join(FORMATS)}")
    report(options)


def report(options):
    """Prints the table."""
    import keras

    import kformer

    names = options.formats
    run, work = pathlib.Path(options.run), pathlib.Path(options.work)
    work.mkdir(parents=True, exist_ok=True)
    translator = kformer.Translator.load(run)
    lines, references = (
        pathlib.Path(file).read_text(encoding="utf-8").split("\n")[: options.limit]
        for file in (options.source, options.reference)
    )
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
    for name in names:
        shutil.rmtree(work / name, ignore_errors=True)
        FORMATS[name].export(translator, work / name)
        for search, beam_size in SEARCHES.items():
            found = FORMATS[name].translate(translator, work / name, lines, options, beam_size)
            row(name, search, size_on_disk(work / name), found, *compare(expected[search], found))
            listed += differences(name, search, expected[search], found)
    packages = [package for name in names for package in FORMATS[name].packages]
    packages = dict.fromkeys(["keras", keras.backend.backend(), *packages])
    versions = ", ".join(f"{name} {importlib.metadata.version(name)}" for name in packages)
    print(f"\n{len(lines)} sentences; {versions}")
    if options.differences:
        print(*listed, sep="\n")


if __name__ == "__main__":
    main()
