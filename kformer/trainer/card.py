"""The model card of a run: what a page at a model hub tells about it."""

import csv
import json
import numbers
import pathlib
import shlex
from collections.abc import Sequence

from kformer.saving.run_directory import read_config
from kformer.translating.translator import DIRECTIONS
from kformer.utils.checks import shown
from kformer.utils.types import Path
from kformer_options.training import TEXTS, TRAINING
from kformer_options.wording import counted

_MEASURES = ("bleu", "chrf", "bleu_signature", "chrf_signature")


def model_card(
    run: Path,
    *,
    scores: Sequence[dict] = (),
    languages: Sequence[str] = (),
    license: str | None = None,
) -> str:
    """Writes the text of a model card: data, training, scores, and the command that made the run.

    Args:
        run: path of the run directory.
        scores: list of dicts, default empty. What `kformer evaluate --json` printed.
        languages: list of str, default empty. Codes of the source and the target language.
        license: str or `None`, default `None`. The licence of the weights, such as "cc-by-4.0".

    Returns:
        str, in Markdown with the header that the Hugging Face hub reads.

    Raises:
        FileNotFoundError: there is no such run.
        ValueError: a part of the run is damaged.

    Example:
        ```python
        card = kformer.trainer.model_card("runs/en-de", languages=["en", "de"])
        open("runs/en-de/README.md", "w").write(card)
        ```
    """
    run = pathlib.Path(run)
    config = read_config(run)
    parts = [_header(languages, license), f"# {run.resolve().name}"]
    parts.append(
        "An encoder-decoder Transformer that translates text, made with "
        "kformer (`pip install kformer`). Load it with "
        "`kformer.Translator.load(folder)`, or translate with `kformer translate FOLDER`."
    )
    if imported := config.get("imported"):
        origin = ", revision ".join(filter(None, map(imported.get, ("name", "revision"))))
        weights = f"The weights are those of {origin}"
        parts.append(f"## Origin\n\n{weights}, and were trained further if a training follows.")
    if isinstance(training := config.get("training"), dict):
        directions = config.get(DIRECTIONS, ())
        parts += _training(run, training, config.get("part"), directions)
    if scores:
        parts.append("## Scores\n\n" + _table(scores))
    return "\n\n".join(parts) + "\n"


def _header(languages, license):
    lines = ["library_name: kformer", "pipeline_tag: translation", "tags:", "- keras"]
    lines += ["language:", *(f"- {json.dumps(code)}" for code in languages)] if languages else []
    lines += [f"license: {license}"] if license else []
    return "\n".join(["---", *lines, "---"])


def _training(run, training, part, directions):
    others = ("corpora", "monolingual_source", "monolingual_target")
    files = [
        f"- {name.replace('_', ' ')}: `{training[name]}`"
        for names in (*reversed(TEXTS), others)
        for name in names
        if training.get(name)
    ]
    files += [f"- directions: {', '.join(directions)}"] if directions else []
    yield "## Data\n\n" + "\n".join(files)
    history = run / "history.csv"
    if history.exists():
        with open(history, encoding="utf-8", newline="") as file:
            rows = list(csv.DictReader(file))
        if rows:
            facts = [*([_effort(training["effort"], part)] if part else []), *_facts(rows)]
            yield "## Training\n\n" + "\n".join(facts)
    yield f"Made again by:\n\n```sh\n{_command(training)}\n```"


def _effort(number, part):
    """What a run of several parts has, and of which part the numbers are."""
    student = "a student of teachers that were trained on the same text"
    better = "which translated the validation set better than students of its translations"
    kinds = {
        "forward": f"a single training, {better}",
        "student": student,
        "last": f"{student}, then trained on that text alone",
        "average": f"the mean of several last trainings of {student}",
    }
    kind = kinds[part.partition("-")[0]]
    training = "the first of them" if part == "average" else "its last training"
    return f"- effort {number}: {kind}; the numbers are those of {training}"


def _facts(rows):
    tokens = sum(int(row["target_tokens"] or 0) for row in rows)
    minutes = sum(float(row["seconds"]) for row in rows) / 60
    numbers = (len(rows), "step"), (tokens, "target token"), (round(minutes), "minute")
    yield "- " + ", ".join(counted(*number) for number in numbers)
    measures = ("val_nll", "negative log-likelihood", min), ("val_bleu", "BLEU (greedy)", max)
    for name, measure, pick in measures:
        if values := [float(row[name]) for row in rows if row.get(name)]:
            yield f"- best {measure} on the validation set: {pick(values):.4g}"


def _command(training):
    """The command with every setting, those that were chosen by the text included."""
    parts = ["kformer train"]
    for name, option in TRAINING.items():
        value = training.get(name)
        if value is None or name == "log_dir":
            continue
        if option.type is bool:
            if option.default is None and not value:
                continue  # It has no flag for "no".
            parts.append(f"--{'' if value else 'no-'}{option.flag}")
            continue
        if option.type is dict:
            values = [f"{key}={json.dumps(item)}" for key, item in value.items()]
        else:
            values = value if isinstance(value, list) else [value]
        parts += [f"--{option.flag} {shlex.quote(str(item))}" for item in values]
    return " \\\n    ".join([*parts, "--output RUN"])


def _table(scores):
    rows = []
    for score in scores:
        # Of `--corpora`, by direction.
        parts = score.get("directions") if isinstance(score, dict) else None
        rows += parts.items() if isinstance(parts, dict) else [("", score)]
    for _, score in rows:
        values = [score.get(name) for name in _MEASURES] if isinstance(score, dict) else []
        kinds = (numbers.Real, numbers.Real, str, str)
        if not values or not all(map(isinstance, values, kinds)):
            expected = "what `kformer evaluate --json` printed"
            raise ValueError(f"Scores must be {expected}, but {shown(score)} was given.")
    cells = [
        [name, f"{score['bleu']:.2f}", f"{score['chrf']:.2f}"]
        + [f"`{score['bleu_signature']}`, `{score['chrf_signature']}`"]
        for name, score in rows
    ]
    cells = [["direction", "BLEU", "chrF", "signatures"], ["---"] * 4, *cells]
    first = 0 if any(name for name, _ in rows) else 1
    return "\n".join(f"|{'|'.join(row[first:])}|" for row in cells)
