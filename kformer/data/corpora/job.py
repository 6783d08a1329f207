"""Cleans corpora into plain text: reads, repairs, leaves out, counts, and goes on after a kill.

OUTPUT/
    NAME.SRC, NAME.TGT   the pairs of a corpus that are left, one sentence per line
    corpora.yaml         their description, written last: the folder is complete
    report.json          the counts and examples of each corpus and rule
    rejected.tsv         corpus, rule, number, source and target of the pairs left out, if wanted
    .cleaning/           the state of an interrupted job
"""

import contextlib
import dataclasses
import hashlib
import json
import os
import pathlib
import uuid
from typing import Any

import numpy as np

from kformer.data.corpora.readers import read_pairs
from kformer.data.corpora.rules import LOWEST_SCORE, RULES, Cleaner
from kformer.data.corpora.seen import Seen
from kformer.data.word_alignment import AlignmentScores
from kformer.utils import files
from kformer.utils.checksums import is_damaged, with_checksum, without_checksum
from kformer.utils.lines import read_chunks, read_lines
from kformer_options.installed import check_extra

DESCRIPTION, REPORT, REJECTED = "corpora.yaml", "report.json", "rejected.tsv"
_WORK, _STATE = ".cleaning", "state.json"
_NUM_EXAMPLES, _MOST_CHARACTERS = 3, 200
_CHUNK_LINES = 10_000
# The most pairs that the scores of alignments are learnt from.
_MOST_LEARNT = 200_000
_REPEATS = ("duplicates", "near_duplicates")


@dataclasses.dataclass(frozen=True)
class CleaningReport:
    """What a cleaning did.

    Attributes:
        folder: `pathlib.Path` of the cleaned corpora.
        corpora: dict of name to dict with `pairs` (read), `repaired` and `rejected` (each a dict
            of rule to dict with `count` and `examples`, at most three lists of number from 1,
            source and target, of rejected pairs as they were repaired), `kept`: with all rejected
            pairs these are `pairs`; and `unknown`, the list of the codes that the rule `language`
            does not know, so that it let their texts pass.
    """

    folder: pathlib.Path
    corpora: dict[str, Any]

    def rows(self):
        """Returns the rows of a table: corpus, what happened, and the number of pairs."""
        rows = []
        for name, counts in self.corpora.items():
            rows.append((name, "read", counts["pairs"]))
            for kind in ("repaired", "rejected"):
                rows += [
                    (name, f"{kind}: {rule}", counts[kind][rule]["count"])
                    for rule in RULES
                    if counts[kind].get(rule, {}).get("count")
                ]
            rows += [
                (name, f"not told by language: {code}", counts["pairs"])
                for code in counts["unknown"]
            ]
            rows.append((name, "kept", counts["kept"]))
        return rows


def clean(corpora, output, *, exclude=(), rejected=False, progress=None):
    """Reads corpora, repairs and leaves out pairs by their rules, and writes what is left.

    The same call goes on where an interrupted one ended, with the same bytes. A finished folder
    is left as it is. Duplicates are those of all corpora of one direction that have the same of the
    rules `duplicates` and `near_duplicates`, in their order.

    Args:
        corpora: `Corpora`.
        output: path of the folder to make.
        exclude: list of paths, default none. Text files, one sentence per line, such as test sets:
            what stands in them is left out of corpora with the rule `overlap`, as what stands in
            the validation sets is.
        rejected: bool, default False. Whether the rejected pairs are written, to `rejected.tsv`.
        progress: callable or `None`, default `None`. Called as `progress(name, pairs)` with the
            name of a corpus and the number of pairs that were read of it.

    Returns:
        `CleaningReport`.

    Raises:
        FileNotFoundError: a file does not exist.
        ValueError: a file is damaged, the folder holds something else or the work of another call,
            or no pair of any corpus is left.

    Example:
    ```python
    entry = {"source": "train.en", "target": "train.de", "languages": "en-de"}
    corpora = kformer.data.Corpora({"shop": entry}, clean=["empty", "duplicates"])
    report = kformer.data.clean(corpora, "cleaned")
    report.corpora["shop"]["kept"]
    ```
    """
    check_extra("A description of corpora", "corpora", ("yaml",))
    output = pathlib.Path(output)
    work, digest = output / _WORK, _digest(corpora, exclude, rejected)
    names = [name for name in files.entries(output) if name != _WORK]
    is_finished = (output / DESCRIPTION).exists() and (output / REPORT).exists()
    if names and not is_finished and not (work / _STATE).exists():
        raise ValueError(
            f"'{output}' is not empty (it has {names[0]}): choose another folder for the corpora."
        )
    work.mkdir(parents=True, exist_ok=True)
    with files.locked(output), files.naming_full_disk(output):
        if not (output / DESCRIPTION).exists():
            _Job(corpora, output, digest, rejected, progress).run(exclude)
        report = _read(output / REPORT)
        if report["digest"] != digest:
            raise _other(output)
        files.remove_tree(work)
    return CleaningReport(output, report["corpora"])


class _Job:
    """The cleaning of corpora into a folder, one after the other.

    Args:
        description: `Corpora`.
        output, rejected, progress: as for `clean`.
        digest: str. What the job is known by when it goes on.
    """

    def __init__(self, description, output, digest, rejected, progress):
        self._corpora, self._description = description.corpora, description
        self._output, self._work, self._progress = output, output / _WORK, progress
        self._rejected = output / REJECTED if rejected else None
        state, path = {"digest": digest, "rejected_bytes": 0, "corpora": {}}, self._work / _STATE
        if path.exists() and (state := _read(path))["digest"] != digest:
            raise _other(output)
        self._state, self._counts = state, state["corpora"]

    def run(self, exclude):
        for name in self._corpora:
            self._counts.setdefault(name, _no_counts())
        self._save()
        validation = [path for paths in self._description.validation.values() for path in paths]
        excluded = [line for path in (*validation, *exclude) for line in read_lines(path, "text")]
        # Pairs of one direction may repeat each other, whatever corpora they are of.
        seen = {}
        if not all(counts["is_read"] for counts in self._counts.values()):
            for name, corpus in self._corpora.items():
                repeats = frozenset(corpus.clean).intersection(_REPEATS)
                key = corpus.languages, repeats
                self._filter(name, excluded, repeats, seen.setdefault(key, Seen(repeats)))
        for direction in dict.fromkeys(corpus.languages for corpus in self._corpora.values()):
            self._align(direction)
        if not any(counts["kept"] for counts in self._counts.values()):
            rules = {rule for counts in self._counts.values() for rule in counts["rejected"]}
            names = f" by the rules {', '.join(sorted(rules))}" if rules else ""
            raise ValueError(f"No pair of any corpus is left{names}: check files and languages.")
        self._finish()

    def _filter(self, name, excluded, repeats, seen):
        """Reads a corpus from where it was interrupted, and applies all rules but alignment."""
        corpus, counts, end = self._corpora[name], self._counts[name], 0
        with self._open(name, self._filtered_paths(name), counts["bytes"]) as write:
            for texts in self._remaining(name) if repeats else ():
                seen(Seen.hashes_of(*texts))
            if counts["is_read"]:
                return
            cleaner = Cleaner(corpus.clean, corpus.languages, excluded)
            counts["unknown"] = cleaner.unknown
            for texts in read_pairs(corpus):
                begin, end = end, end + len(texts[0])
                if end <= counts["pairs"]:
                    continue
                *sides, reasons, repairs = cleaner(*texts)
                rows = np.flatnonzero(reasons < 0)
                if repeats and len(rows):
                    hashes = Seen.hashes_of(*([side[row] for row in rows] for side in sides))
                    for rule, is_repeat in zip(_REPEATS, seen(hashes), strict=True):
                        reasons[rows[is_repeat]] = RULES.index(rule)
                numbers = np.arange(begin, end) + 1
                for rule, is_repaired in repairs.items():
                    _count(counts["repaired"], rule, np.flatnonzero(is_repaired), numbers, texts)
                write(sides, reasons, numbers)
                counts["pairs"], counts["filtered"] = end, counts["kept"]
                self._save()
                if self._progress is not None:
                    self._progress(name, end)
        counts["is_read"] = True
        self._save()

    def _align(self, direction):
        """Applies the rule alignment, which learns from the pairs that all others have left."""
        names = [
            name
            for name, corpus in self._corpora.items()
            if corpus.languages == direction and "alignment" in corpus.clean
        ]
        if all(self._counts[name]["is_aligned"] for name in names):
            return
        step = 1 + sum(self._counts[name]["filtered"] for name in names) // _MOST_LEARNT
        sources, targets = [], []
        for name in names:
            for texts in self._remaining(name):
                sources += texts[0][::step]
                targets += texts[1][::step]
        scores = AlignmentScores.fit(sources, targets)
        for name in names:
            if self._counts[name]["is_aligned"]:
                continue
            counts, begin = self._counts[name], 0
            counts["kept"] = 0
            all_numbers = np.fromfile(self._filtered_paths(name)[2], "<i8")
            with self._open(name, self._final_paths(name), [0, 0]) as write:
                for texts in self._remaining(name):
                    numbers = all_numbers[begin : begin + len(texts[0])]
                    begin += len(numbers)
                    is_faulty = scores(*texts) < LOWEST_SCORE
                    reasons = np.where(is_faulty, RULES.index("alignment"), -1)
                    write(texts, reasons, numbers)
            counts["is_aligned"] = True
            self._save()

    @contextlib.contextmanager
    def _open(self, name, paths, sizes):
        """Opens the files of a corpus. What an interrupted job wrote after its last state goes.

        Yields:
            A function of both sides, reasons and numbers, which writes the pairs without a reason,
            counts the others, and updates the state.
        """
        state, counts = self._state, self._counts[name]
        with contextlib.ExitStack() as stack:
            outputs = []
            for path, size in zip(paths, sizes, strict=False):
                outputs.append(stack.enter_context(_at(path, size)))
            rejected = None
            if self._rejected is not None:
                rejected = stack.enter_context(_at(self._rejected, state["rejected_bytes"]))

            def write(sides, reasons, numbers):
                rows = np.flatnonzero(reasons < 0)
                for output, side in zip(outputs, sides, strict=False):
                    output.write("".join(f"{side[row]}\n" for row in rows).encode())
                for output in outputs[2:]:
                    output.write(numbers[rows].astype("<i8").tobytes())
                counts["kept"] += len(rows)
                for rule in np.unique(reasons[reasons >= 0]).tolist():
                    rows = np.flatnonzero(reasons == rule)
                    _count(counts["rejected"], RULES[rule], rows, numbers, sides)
                    for row in rows if rejected is not None else ():
                        cells = (name, RULES[rule], numbers[row], *(side[row] for side in sides))
                        line = "\t".join(str(cell).replace("\t", " ") for cell in cells)
                        rejected.write(f"{line}\n".encode())
                for output in (*outputs, rejected):
                    if output is not None:
                        output.flush()
                sizes[:] = [output.tell() for output in outputs]
                if rejected is not None:
                    state["rejected_bytes"] = rejected.tell()

            yield write

    def _final_paths(self, name):
        return [self._output / f"{name}.{code}" for code in self._corpora[name].languages]

    def _filtered_paths(self, name):
        """Where the pairs are that all rules but alignment left, and then their numbers."""
        corpus = self._corpora[name]
        if "alignment" not in corpus.clean:
            return self._final_paths(name)
        names = [f"{name}.{ending}" for ending in (*corpus.languages, "numbers")]
        return [self._work / name for name in names]

    def _remaining(self, name):
        """Yields chunks of the pairs that all rules but alignment left, up to the last state."""
        paths, count = self._filtered_paths(name)[:2], self._counts[name]["filtered"]
        sides = [read_chunks(path, "text", _CHUNK_LINES) for path in paths] if count else []
        for texts in zip(*sides, strict=False):
            size = min(map(len, texts))
            yield [side[: min(size, count)] for side in texts]
            count -= size
            if count <= 0:
                return

    def _save(self):
        files.write_json(self._work / _STATE, with_checksum(self._state))

    def _finish(self):
        kept = ("pairs", "repaired", "rejected", "kept", "unknown")
        report = {name: {key: counts[key] for key in kept} for name, counts in self._counts.items()}
        value = {"digest": self._state["digest"], "corpora": report}
        files.write_json(self._output / REPORT, with_checksum(value))
        paths = {name: self._final_paths(name) for name in report if report[name]["kept"]}
        with files.replacing(self._output / DESCRIPTION) as aside:
            aside.write_text(self._description.of_lines(paths), encoding="utf-8")


def _other(output):
    return ValueError(
        f"'{output}' has corpora that were cleaned from other files or by other rules: choose "
        "another folder, or remove it."
    )


def _no_counts():
    counts = {"pairs": 0, "repaired": {}, "rejected": {}, "kept": 0, "unknown": []}
    return counts | {"filtered": 0, "bytes": [0, 0, 0], "is_read": False, "is_aligned": False}


def _count(counts, rule, rows, numbers, sides):
    """Adds pairs to the counts of a rule, the first of all with their texts."""
    entry = counts.setdefault(rule, {"count": 0, "examples": []})
    entry["count"] += len(rows)
    for row in rows[: _NUM_EXAMPLES - len(entry["examples"])].tolist():
        texts = [side[row][:_MOST_CHARACTERS] for side in sides]
        entry["examples"].append([int(numbers[row]), *texts])


@contextlib.contextmanager
def _at(path, size):
    """Opens a file for writing after its first `size` bytes, which are kept."""
    mode = "r+b" if size else "wb"
    with open(path, mode) as file:
        if file.seek(0, 2) < size:
            raise ValueError(f"{path} is shorter than it was: remove its folder and begin again.")
        file.truncate(size)
        file.seek(size)
        yield file


def _read(path):
    value = files.read_json(path)
    if is_damaged(value) or "digest" not in value:
        raise ValueError(f"{path} is damaged, or of another program: choose another folder.")
    return without_checksum(value)


def _digest(corpora, exclude, rejected):
    """A digest of a description and of the sizes and times of its files."""

    def value_of(value):
        if isinstance(value, pathlib.Path):
            stat = value.stat()
            return [os.fspath(value.resolve()), stat.st_size, stat.st_mtime_ns]
        return repr(value)

    # Pairs in memory cannot be compared with those of another call.
    pairs = {
        name: corpus.pairs is not None and uuid.uuid4().hex
        for name, corpus in corpora.corpora.items()
    }
    values = [
        corpora.temperature,
        {name: {**vars(c), "pairs": pairs[name]} for name, c in corpora.corpora.items()},
        [[*direction, *paths] for direction, paths in corpora.validation.items()],
        [pathlib.Path(path) for path in exclude],
        rejected,
    ]
    text = json.dumps(values, default=value_of)
    return hashlib.sha256(text.encode()).hexdigest()[:32]
