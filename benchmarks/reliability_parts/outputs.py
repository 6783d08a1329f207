"""Commands are told to write into a file that they read, by its name or by a link.

Each is refused in one sentence, and the file stays as it is. `--only unchecked` leaves the check
out, and must fail.
"""

import contextlib
import importlib
import io
import os
import pathlib
import shutil

from benchmarks.reliability_parts.hostile_values import pick
from kformer_cli.main import main
from tests.kformer_cli.test_early_checks import READ_AND_WRITE, RUN

_TEXT = "half past four\nnoon\n"
_MODULES = ("alignment", "distillation", "plotting", "training", "translation")


def run(tally, options):
    """Runs the part, in this process."""
    if options.only == "unchecked":
        for name in (*(f"kformer_cli.{name}" for name in _MODULES), "kformer.serving.batch.job"):
            importlib.import_module(name).check_output = lambda *arguments: None
    folder, run = options.work / "outputs", os.path.abspath(RUN)
    for _, rng in tally.trials():
        shutil.rmtree(folder, ignore_errors=True)
        (folder / "deep").mkdir(parents=True)
        with contextlib.chdir(folder):
            words = pick(rng, READ_AND_WRITE)
            _trial(tally, rng, [run if word == RUN else word for word in words.split()])


def _trial(tally, rng, words):
    for name in ("text.png", "other"):
        pathlib.Path(name).write_text(_TEXT, encoding="utf-8")
    (given,) = {word for word in words[1:] if word.startswith("{0}")}
    at = len(words) - 1 - words[::-1].index(given)  # The last is the output, as in the tests.
    names = {
        "its name": lambda: "text.png",
        "its whole path": lambda: os.path.abspath("text.png"),
        "a way around": lambda: "deep/../text.png",
        "a symbolic link": lambda: _link(os.symlink, "text.png"),
        "a link to a link": lambda: _link(os.symlink, _link(os.symlink, "text.png", "first.png")),
        "a link in a folder": lambda: _link(os.symlink, "../text.png", "deep/link.png"),
        "a hard link": lambda: _link(os.link, "text.png"),
    }
    kind = pick(rng, list(names))
    sides = [names[kind](), "text.png"]
    written, read = sides if rng.integers(2) else (sides[1], sides[0])
    words = [word.replace("{0}", read) for word in words]
    words[at] = written
    if rng.integers(2):  # In another order.
        head, *options = _groups(words)
        words = sum([head, *sorted(options, key=lambda _: rng.random())], [])
    said = io.StringIO()
    with contextlib.redirect_stderr(said), contextlib.redirect_stdout(io.StringIO()):
        code = main(words)
    fault = None
    if pathlib.Path("text.png").read_text(encoding="utf-8") != _TEXT:
        fault = "the text was overwritten"
    elif code != 1 or "would replace the input" not in said.getvalue():
        fault = f"exit code {code}: {said.getvalue()[-300:]!r}"
    tally.add(kind, fault and f"{' '.join(words)}: {fault}")


def _link(make, target, name="link.png"):
    make(target, name)
    return name


def _groups(words):
    """The words before the first option, then each option with its values, as lists of words."""
    groups = [[]]
    for word in words:
        if word.startswith("--"):
            groups.append([])
        groups[-1].append(word)
    return groups
