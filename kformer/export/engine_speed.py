"""How fast the engines translate with the model of a run on this machine: `kformer speed`.

Each engine is measured in a process of its own, one after the other, so that they do not disturb
each other. As a program this module is that process.
"""

import dataclasses
import json
import math
import pathlib
import random
import subprocess
import sys
import tempfile
import time
from typing import NamedTuple

from kformer.evaluation.scores import corpus_bleu, suitable_tokenizer
from kformer.export.engines import ENGINES
from kformer.translating.streaming import load_run_translator
from kformer.utils import files
from kformer.utils.checks import shown
from kformer_options.child_process import environment
from kformer_options.installed import check_extra, installed_backends
from kformer_options.wording import counted

# A cell of the table is measured for so many seconds, and for at most so many.
_SECONDS, _MOST_SECONDS = 2.0, 10.0
# What an engine takes beside its cells: imports, exports, the first calls.
_START_SECONDS = 40.0
# An engine is worth it with a BLEU that is lower than the best one by no more than this.
_BLEU_LOSS = 0.3


class EngineSpeed(NamedTuple):
    """What was measured of an engine.

    Attributes:
        name: str. In `ENGINES`.
        speeds: dict of (beam size, batch size) to sentences per second.
        bleu: dict of beam size to BLEU; empty without references.
        remark: str or `None`. Why there is nothing, or not all.
    """

    name: str
    speeds: dict
    bleu: dict
    remark: str | None


def compare_engines(
    run,
    texts,
    references=(),
    *,
    engines=None,
    beam_sizes,
    batch_sizes,
    languages=(None, None),
    report=None,
):
    """Measures engines one after the other.

    Args:
        run: path of the run directory.
        texts: list of str, which are translated.
        references: list of str, default empty. Their translations, for BLEU.
        engines: list of str or `None`, default `None`. Names in `ENGINES`; `None` for all.
        beam_sizes, batch_sizes: lists of int.
        languages: pair of str or `None`, default `None` for both. Those of the texts, for a model
            of several.
        report: function or `None`, default `None`. It takes a sentence before each engine.

    Returns:
        List of `EngineSpeed`, one for each engine. That of an engine that is not installed, or does
        not take the model, has a remark in place of speeds.

    Raises:
        ValueError: there is no such engine.
    """
    names = list(engines or ENGINES)
    for name in names:
        if name not in ENGINES:
            raise ValueError(
                f"There is no engine {shown(name)}: choose among {', '.join(ENGINES)}."
            )
    cells = len(beam_sizes) * len(batch_sizes)
    remaining = len(names) * (_START_SECONDS + cells * _MOST_SECONDS)
    results, start = [], time.perf_counter()
    for count, name in enumerate(names):
        if count:
            remaining = (time.perf_counter() - start) / count * (len(names) - count)
        if report is not None:
            about = (
                f"{'about' if count else 'at most'} {counted(math.ceil(remaining / 60), 'minute')}"
            )
            report(f"speed: {name}, {count + 1} of {len(names)}; {about} left")
        work = {"run": str(run), "engine": name, "texts": texts, "languages": languages}
        work |= {"beam_sizes": beam_sizes, "batch_sizes": batch_sizes}
        results.append(_result(name, work, references))
    return results


def _result(name, work, references):
    engine = ENGINES[name]
    try:
        check_extra(f"The engine {name}", engine.extra, engine.packages)
        answer = _measured_aside(engine, work | {"has_references": bool(references)})
    except (ImportError, RuntimeError) as error:
        return EngineSpeed(name, {}, {}, str(error))
    tokenize = suitable_tokenizer(references) if references else None
    bleu = {
        beam_size: corpus_bleu(translations, references, tokenize)
        for beam_size, translations in answer["translations"]
    }
    speeds = {(beam_size, batch_size): speed for beam_size, batch_size, speed in answer["speeds"]}
    return EngineSpeed(name, speeds, bleu, answer["remark"])


def _measured_aside(engine, work):
    """What `measure` returns in a process of its own.

    Raises:
        RuntimeError: the process failed, with the last line that it wrote.
    """
    with tempfile.TemporaryDirectory() as folder:
        work |= {"folder": folder}
        process = subprocess.run(
            [sys.executable, "-m", __name__],
            input=json.dumps(work),
            env=environment(KERAS_BACKEND=engine.backend or installed_backends()[0]),
            capture_output=True,
            text=True,
        )
        if process.returncode:
            *_, line = "", *filter(str.strip, process.stderr.splitlines())
            raise RuntimeError(line or f"Its process ended with exit code {process.returncode}.")
        return files.read_json(pathlib.Path(folder) / "result.json")


def measure(work):
    """Measures an engine in this process.

    Args:
        work: dict of JSON values, from `compare_engines`.

    Returns:
        dict with `speeds` (lists of beam size, batch size and sentences per second),
        `translations` (lists of beam size and texts) and `remark`.
    """
    engine, texts = ENGINES[work["engine"]], work["texts"]
    is_run = engine.extra == "torch"
    translator = load_run_translator(work["run"], dtype=engine.dtype if is_run else None)
    # A validation set has two languages, and a model may read the target's alone, or none.
    translator = translator.for_direction(*work["languages"])
    # The search of an imported model may sample, or return several translations.
    translator.options = dataclasses.replace(translator.options, n_best=1, sampling=False)
    result = {"speeds": [], "translations": [], "remark": None}
    for beam_size in work["beam_sizes"]:
        try:
            translate = engine.open(translator, work["folder"], beam_size, engine.dtype)
        except ValueError as error:
            if not result["speeds"]:
                raise
            result["remark"] = str(error)
            continue
        if work["has_references"]:
            translated = {}
            for batch in _batches(texts, max(work["batch_sizes"])):
                translated |= dict(zip(batch, translate(batch), strict=True))
            result["translations"].append((beam_size, [translated[text] for text in texts]))
        for batch_size in work["batch_sizes"]:
            speed = _speed(translate, texts, batch_size)
            result["speeds"].append((beam_size, batch_size, speed))
    return result


def _batches(texts, size):
    """Batches of texts of like length."""
    texts = sorted(texts, key=len)
    return [texts[i : i + size] for i in range(0, len(texts), size)]


def _speed(translate, texts, batch_size):
    """Sentences per second. All engines have the same texts in the same batches."""
    batches = _batches(texts[: max(32, 4 * batch_size)], batch_size)
    # The first calls are slower. For one text that of each length may be: XLA compiles for it.
    for batch in batches if batch_size == 1 else (batches[0], batches[-1]):
        translate(batch)
    # In no order of lengths, since a slow engine does not come to the end.
    random.Random(0).shuffle(batches)
    count, start, seconds = 0, time.perf_counter(), 0.0
    while seconds < _SECONDS:
        for batch in batches:
            translate(batch)
            count += len(batch)
            seconds = time.perf_counter() - start
            if seconds > _MOST_SECONDS:
                break
    return count / seconds


def best_engine(results):
    """Returns the `EngineSpeed` of the engine to take: the fastest by its mean over all cells, of
    those whose BLEU is as good as any; `None` if nothing was measured.

    Args:
        results: list of `EngineSpeed`.
    """
    most = max(len(result.speeds) for result in results)
    whole = [result for result in results if len(result.speeds) == most > 0]
    scores = [sum(result.bleu.values()) / max(1, len(result.bleu)) for result in whole]
    as_good = [
        result
        for result, score in zip(whole, scores, strict=True)
        if score >= max(scores) - _BLEU_LOSS
    ]
    return max(as_good, key=lambda result: math.prod(result.speeds.values()), default=None)


def main():
    """Measures an engine, whose work is on standard input, and writes `result.json`."""
    work = json.load(sys.stdin)
    try:
        result = measure(work)
    except (ValueError, ImportError, OSError, RuntimeError) as error:
        print(" ".join(str(error).split()), file=sys.stderr)
        raise SystemExit(1) from None
    files.write_json(pathlib.Path(work["folder"]) / "result.json", result)


if __name__ == "__main__":
    main()
