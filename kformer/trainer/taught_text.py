"""The training text of a student, translated by teachers of both directions."""

import hashlib
import os

from kformer.data.corpus import SIDES
from kformer.distillation.back_translation import add_noise, tagged
from kformer.distillation.text import add_pairs, taught_pairs
from kformer.training.defaults import FEW_PAIRS
from kformer.translating.translator import Translator
from kformer.utils import files
from kformer.utils.lines import one_line, read_lines
from kformer.utils.progress import Progress

BEAM_SIZE = 5
_BATCH_SIZE = 256
# The lines that a killed process has to translate again, at most.
_CHUNK = 2_000
_SECONDS = 60.0


class TaughtText:
    """Translates by the runs of teachers, into files that a later process finds again.

    Args:
        folder: `pathlib.Path`. Where the files are.
        forward, backward: lists of `pathlib.Path`. The runs of the teachers of both directions.
        options: `TrainOptions`.
        report: function that takes a sentence.
    """

    def __init__(self, folder, forward, backward, options, report):
        self._folder, self._options, self._report = folder, options, report
        self._forward, self._backward = forward, backward
        self._loaded = (None, None)

    def write(self, text, output, with_alone=True):
        """Makes the student's text from one of the training, and writes its sides.

        Args:
            text: `Text` of the training.
            output: `Text`. The files to write.
            with_alone: bool, default True. Whether text in one language alone is added.

        Returns:
            int. The number of pairs.
        """
        self._text = text
        sources = read_lines(text.source, "source")
        targets = read_lines(text.target, "target")

        def teacher(run):
            return lambda texts, others: self._translated(run, texts)

        teachers = [*map(teacher, self._forward)], [*map(teacher, self._backward)]
        pairs = taught_pairs(sources, targets, *teachers, round_trips=True)
        if with_alone:
            self._add_alone(pairs, sources, targets)
        add_pairs(pairs, sources, targets)
        return _write(pairs, output)

    def write_alone(self, texts, output):
        """Translates text in one language alone, and writes both sides.

        Args:
            texts: list of `Text` of the training, all of one direction.
            output: `Text`. The files to write.

        Returns:
            int. The number of pairs.
        """
        self._text, pairs = texts[0], []
        sides = [[getattr(text, side) for text in texts] for side in SIDES]
        lines = ([line for path in each for line in read_lines(path, "text")] for each in sides)
        self._add_alone(pairs, *lines)
        return _write(pairs, output)

    def _add_alone(self, pairs, sources, targets):
        """Adds the pairs of text in one language alone, without the lines of the training."""
        options = self._options
        if options.monolingual_source is not None:
            lines = _monolingual(options.monolingual_source, sources)
            add_pairs(pairs, lines, self._in_turn(self._forward, lines))
        if options.monolingual_target is not None:
            lines = _monolingual(options.monolingual_target, targets)
            add_pairs(pairs, self._back_translated(lines, len(sources)), lines)

    def _in_turn(self, runs, texts, **options):
        """Translations of texts, of which each run translates an equal share."""
        translations = [None] * len(texts)
        for i, run in enumerate(runs):
            turn = slice(i, None, len(runs))
            translations[turn] = self._translated(run, texts[turn], **options)
        return translations

    def _back_translated(self, texts, num_pairs):
        # Teachers of a small text are weak, and a beam is their best (Edunov et al. 2018,
        # "Understanding back-translation at scale", section 5.3).
        default = "beam" if num_pairs <= FEW_PAIRS else "sampled"
        kind = self._options.back_translation or default
        seed = self._options.seed or 0
        options = {"sampling": True, "beam_size": 1, "seed": seed} if kind == "sampled" else {}
        sources = self._in_turn(self._backward, texts, **options)
        if kind == "noised":
            sources = [text and add_noise(text, seed, index) for index, text in enumerate(sources)]
        return [text and tagged(text) for text in sources]

    def _translated(self, run, texts, **options):
        """A run's translation of each text; `None` where it is empty or the text was cut."""
        options = {"beam_size": BEAM_SIZE, **options}
        text = self._text if run in self._forward else self._text.swapped()
        content = options, texts, *filter(None, [text.direction])
        digest = hashlib.sha256(repr(content).encode("utf-8", "surrogatepass"))
        path = self._folder / f"{run.name}-{digest.hexdigest()[:16]}.txt"
        if not path.exists():
            self._translate(run, text, texts, path, options)
        return [line or None for line in read_lines(path, "translations")] if texts else []

    def _translate(self, run, text, texts, path, options):
        self._folder.mkdir(parents=True, exist_ok=True)
        aside = path.with_suffix(".partial")
        translator = text.of(self._load(run))
        progress = Progress(len(texts), name=run.name, seconds=_SECONDS, report=self._report)
        with files.naming_full_disk(path), open(aside, "a+b") as file:
            done = progress.before = _whole_lines(file)
            while done < len(texts):
                chunk, options["first_index"] = texts[done : done + _CHUNK], done
                for result in translator.translate(chunk, batch_size=_BATCH_SIZE, **options):
                    line = "" if result.truncated else one_line(result.text).strip()
                    file.write(line.encode() + b"\n")
                file.flush()
                done += len(chunk)
                progress(done)
            os.fsync(file.fileno())
        os.replace(aside, path)

    def _load(self, run):
        """The translator of a run. The latest one is kept, since it often translates again."""
        if self._loaded[0] != run:
            self._loaded = (None, None)
            self._loaded = (run, Translator.load(run))
        return self._loaded[1]


def _write(pairs, output):
    """Writes both sides of pairs into the files of a `Text`. Returns the number of pairs."""
    for side, path in enumerate((output.source, output.target)):
        with files.replacing(path) as aside, open(aside, "w", encoding="utf-8") as file:
            file.writelines(f"{pair[side]}\n" for pair in pairs)
    return len(pairs)


def _monolingual(path, lines_of_side):
    """The lines of a file, each once, without empty ones and those of the training text."""
    known = {"", *lines_of_side}
    lines = (line.strip() for line in read_lines(path, "monolingual"))
    return [line for line in dict.fromkeys(lines) if line not in known]


def _whole_lines(file):
    """Returns the number of whole lines of a file that is open for reading and appending. Cuts off
    a line without an end, which a killed process left.
    """
    file.seek(0)
    count = end = 0
    for line in file:
        if line.endswith(b"\n"):
            count, end = count + 1, end + len(line)
    file.truncate(end)
    return count
