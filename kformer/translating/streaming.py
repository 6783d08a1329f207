r"""Translates the lines of a file or pipe: every input line has exactly one output line.

A line ends at "\n" and nowhere else. Bytes that are not UTF-8 become U+FFFD, so a damaged line
changes its own translation alone, and no other line moves. A byte order mark at the start and one
"\r" before a newline are dropped.
"""

import codecs
import contextlib
import io
import os
import pathlib
import queue
import sys
import threading

from kformer.data.word_alignment import pharaoh
from kformer.decoding import SearchOptions
from kformer.training.devices import share_texts
from kformer.translating.translator import Translator
from kformer.utils import files
from kformer.utils.lines import one_line
from kformer_options.model_folders import check_trained, is_run
from kformer_options.names import named

# Lines that have come are translated after this many seconds without another line.
_PATIENCE = 0.2
# A chunk ends after this many characters, and as many more are read ahead.
_MOST_CHARACTERS = 2**25
_MOST_LINKS = 8
# Options of a search that no export has.
_OF_RUNS = ("sampling", "temperature", "top_k", "top_p", "seed")


def open_translator(
    path,
    source_language=None,
    target_language=None,
    ensemble=None,
    dtype=None,
    devices=None,
    trust_models=False,
):
    """Opens the translator of a run directory or of a SavedModel.

    Args:
        path: path of a run directory; or `NAME/` or `NAME/VERSION/` of a SavedModel.
        source_language, target_language: str, default `None`. Codes, for a model of several
            languages; `None` for the languages that it has. A SavedModel has no choice of source
            languages.
        ensemble: list of paths, default `None`. Further run directories, whose models translate
            together with the first.
        dtype: str, default `None`. As for `Translator`, of a run.
        devices: int or "all", default `None`. The devices that share each batch from now on, of a
            run.
        trust_models: bool, default `False`. As for `SavedModelTranslator`, of a SavedModel.

    Returns:
        A `kformer.Translator`, or a `kformer.export.SavedModelTranslator`.

    Raises:
        FileNotFoundError: there is no run directory or SavedModel at `path`.
        ValueError: as `Translator.load` and `SavedModelTranslator`; the model has no such language;
            or a SavedModel is given with a source language, an ensemble, a dtype or devices.
    """
    path = pathlib.Path(path)
    if is_run(path):
        if devices not in (None, 1):
            share_texts(devices)
        return load_run_translator(path, source_language, target_language, ensemble, dtype)
    options = {"source_language": source_language, "ensemble": ensemble or None}
    options |= {"dtype": dtype, "devices": devices}
    for name, value in options.items():
        if value is not None:
            raise ValueError(
                f"{path} is a SavedModel, and only a run takes {named(name)}: leave it out, "
                "give the run, or export the run again."
            )
    from kformer.export import SavedModelTranslator

    translator = SavedModelTranslator(path, trust_models=trust_models)
    return translator.for_languages(target=target_language)


def load_run_translator(
    path, source_language=None, target_language=None, ensemble=None, dtype=None
):
    """Opens the translator of a run; arguments and returns are those of `open_translator`.

    Raises:
        FileNotFoundError: there is no run, or its training has not written a model yet.
        ValueError: as `Translator.load` and `Translator.for_languages`.
    """
    path = pathlib.Path(path)
    check_trained(path)
    translator = Translator.load([path, *ensemble] if ensemble else path, dtype)
    if source_language is None and target_language is None:
        return translator
    return translator.for_languages(source_language, target_language)


def search_options(translator, **options):
    """Checks keyword arguments for a translator's `translate`, and returns them.

    Args:
        translator: as `open_translator` returns it.
        **options: fields of `SearchOptions`; an option that is `None` is left to the translator.

    Returns:
        A dict of the options that are not `None`.

    Raises:
        ValueError: a SavedModel was exported with other options, or two options do not fit
            together.
    """
    options = {name: value for name, value in options.items() if value is not None}
    if isinstance(translator, Translator):
        translator.search_options(options)
        return options
    for name, value in options.items():
        # An older SavedModel has nothing about newer options, and was exported with their defaults.
        fixed = translator.options.get(name, getattr(SearchOptions, name))
        if name != "n_best" and value != fixed:
            again = f"export the run again with {named(name)}={value}"
            raise ValueError(
                f"{translator.path} was exported with {named(name)}={fixed}, and a SavedModel's "
                f"search is fixed: leave {named(name)} out, or "
                f"{'translate with the run' if name in _OF_RUNS else again}."
            )
    n_best = options.get("n_best", 1)
    if n_best > translator.options["n_best"]:
        raise ValueError(
            f"{translator.path} was exported with the {translator.options['n_best']} best of "
            f"each sentence: export the run again with {named('n_best')}={n_best} to get more."
        )
    return {"n_best": n_best}


def wide_enough(translator, beam_size, n_best):
    """Returns the beam size, raised to `n_best` if it is unset and the search is not fixed.

    Args:
        translator: as `open_translator` returns it.
        beam_size: int, or `None` if it is unset.
        n_best: int.
    """
    default = getattr(translator.options, "beam_size", None)
    return n_best if beam_size is None and default is not None and n_best > default else beam_size


def translate_lines(lines, translate, write, *, chunk_lines=512, progress=None):
    """Translates lines as they come and writes each translation as soon as it is made.

    Args:
        lines: binary file, or another iterable of bytes that end in a newline.
        translate: function of a list of str and `first_index`, the number of lines before them, to
            a list of `kformer.translating.translation.Translation`, such as `Translator.translate`.
        write: function of the list of `Translation` of each chunk.
        chunk_lines: int, default 512. The most lines that are translated at once. There are fewer
            where no further line comes for a moment.
        progress: function, default `None`. It is called with the number of lines done.

    Returns:
        `TruncatedLines`: the lines that were longer than the model's limit and were cut.
    """
    truncated, done = TruncatedLines(), 0
    for chunk in chunks_of_lines(lines, chunk_lines):
        # The index of a line in the whole input: random numbers must not depend on the chunks.
        results = translate(chunk, first_index=done)
        write(results)
        truncated.add(n for n, result in enumerate(results, done + 1) if result.truncated)
        done += len(chunk)
        if progress is not None:
            progress(done)
    return truncated


def lines_of(path):
    """Yields the lines of a file, or of standard input, as bytes.

    Whoever reads a pipe holds its file, so that another thread which closed it would wait for what
    comes. That is why whoever reads the lines closes it, and standard input has a reader of its
    own.

    Args:
        path: path of the file; `None` for standard input.
    """
    try:
        source = sys.stdin.fileno() if path is None else path
    except io.UnsupportedOperation:  # It is not a file of the system.
        yield from sys.stdin.buffer
        return
    with open(source, "rb", closefd=path is not None) as file:
        yield from file


def chunks_of_lines(lines, chunk_lines):
    """Yields lists of decoded lines, in order.

    Args:
        lines: binary file, or another iterable of bytes.
        chunk_lines: int. The most lines of a list. A list is shorter where no further line comes
            for a moment, or where lines are so long that they would fill the memory.
    """
    waiting = queue.Queue(maxsize=4 * chunk_lines)
    end = object()
    stop = threading.Event()
    # Characters that were read and that were taken; each is written by one thread alone.
    num_read = num_taken = 0

    def put(item):
        while num_read - num_taken > _MOST_CHARACTERS and not stop.is_set():
            stop.wait(_PATIENCE / 10)
        while not stop.is_set():
            with contextlib.suppress(queue.Full):
                waiting.put(item, timeout=_PATIENCE)
                return

    def read():
        nonlocal num_read
        try:
            for number, line in enumerate(lines):
                line = decode_line(line, first=number == 0)
                put(line)
                num_read += len(line)
                if stop.is_set():
                    return
            put(end)
        except Exception as error:  # The other thread raises it.
            put(error)

    # A thread of its own reads: it may wait for a pipe while the lines that have come are
    # translated.
    threading.Thread(target=read, daemon=True).start()
    chunk, size = [], 0
    try:
        while True:
            try:
                item = waiting.get(timeout=_PATIENCE if chunk else None)
            except queue.Empty:
                item = None
            is_last = item is end or isinstance(item, Exception)
            if item is not None and not is_last:
                chunk.append(item)
                size += len(item)
                num_taken += len(item)
            is_full = len(chunk) == chunk_lines or size >= _MOST_CHARACTERS
            if chunk and (item is None or is_last or is_full):
                yield chunk
                chunk, size = [], 0
            if isinstance(item, Exception):
                raise item
            if is_last:
                return
    finally:
        stop.set()


def decode_line(line, first=False):
    r"""Returns the text of one line of a file.

    Args:
        line: bytes, with or without the newline.
        first: bool, default `False`. Whether it is the file's first line, which may begin with a
            byte order mark.

    Returns:
        str. Bytes that are not UTF-8 are U+FFFD; one `"\r"` before the newline is dropped.
    """
    if first and line.startswith(codecs.BOM_UTF8):
        line = line[len(codecs.BOM_UTF8) :]
    line = line.removesuffix(b"\n").removesuffix(b"\r")
    return line.decode("utf-8", "replace")


def format_line(translation, *, n_best=1, scores=False):
    """Returns the output line of one input line, without its newline.

    Args:
        translation: `kformer.translating.translation.Translation`.
        n_best: int, default 1. Above 1 the hypotheses are columns, best first, with tabs between
            them.
        scores: bool, default `False`. Whether a column with its log-probability follows each text.

    Columns with the alignment in Pharaoh's format, the confidence, and that of each word follow if
    the translation has them.
    """
    columns = []
    for hypothesis in translation.hypotheses[:n_best]:
        text = one_line(hypothesis.text)
        # A tab in a text would look like another column.
        has_columns = n_best > 1 or scores or translation.words is not None
        columns.append(text.replace("\t", " ") if has_columns else text)
        if scores:
            columns.append(f"{hypothesis.score:.6f}")
    alignment, confidence = translation.words[3:5] if translation.words else (None, None)
    if alignment is not None:
        columns.append(pharaoh(alignment))
    if confidence is not None:
        columns.append(f"{confidence.mean:.4f}")
        columns.append(" ".join(f"{value:.4f}" for value in confidence.word_probabilities))
    return "\t".join(columns)


@contextlib.contextmanager
def open_output(path):
    """Opens a binary file for output, as a context manager.

    Args:
        path: path of the file, which appears when it is whole; `None` for standard output. A file
            that is replaced keeps its mode, and a link to it stays a link.

    Raises:
        FileNotFoundError: its folder does not exist.
        ValueError: standard output is closed.
    """
    if path is None:
        if sys.stdout is None:
            raise ValueError("Standard output is closed: give a file by --output.")
        with files.naming_full_disk("standard output"):
            yield sys.stdout.buffer
            sys.stdout.buffer.flush()
        return
    number, path = _descriptor_of(path), pathlib.Path(path)
    if number is None and not path.parent.is_dir():
        raise FileNotFoundError(f"The folder {path.parent} of the output file does not exist.")
    # An open file, a device or a named pipe. (A folder fails here.)
    if number is not None or (path.exists() and not path.is_file()):
        if sys.stdout is not None:
            sys.stdout.flush()  # What was printed before comes before.
        target = path if number is None else os.dup(number)
        with files.naming_full_disk(path), open(target, "wb") as file:
            yield file
        return
    path = path.resolve()
    with files.replacing(path) as aside, open(aside, "wb") as file:
        if path.exists():
            aside.chmod(path.stat().st_mode & 0o7777)
        yield file


def _descriptor_of(path):
    """Returns the number of the open file that a path such as /dev/stdout names, or `None`.

    /dev/stdout may lead to a file that belongs to whoever began the process: it is written on from
    where it is, and never replaced.
    """
    folders = {os.path.realpath(folder) for folder in ("/dev/fd", "/proc/self/fd")}
    for _ in range(_MOST_LINKS):
        folder, name = os.path.split(os.path.abspath(path))
        folder = os.path.realpath(folder)
        if folder in folders and name.isdecimal():
            return int(name)
        try:
            path = os.path.join(folder, os.readlink(os.path.join(folder, name)))
        except OSError:  # It is not a link.
            return None
    return None


class TruncatedLines:
    """How many lines were cut, and the first ten: its size does not grow with the input.

    Args:
        numbers: iterable of int, default `()`. Numbers of such lines, from 1.
    """

    def __init__(self, numbers=()):
        self.count, self.first = 0, []
        self.add(numbers)

    def add(self, numbers):
        """Adds the numbers of lines."""
        for number in numbers:
            self.count += 1
            if self.count <= 10:
                self.first.append(number)


def warn_truncated(lines, stream=None):
    """Prints which lines were cut.

    Args:
        lines: `TruncatedLines`, or a list of int, numbers from 1. Nothing is printed if there are
            none.
        stream: text file, default `None`; `None` for standard error.
    """
    if not isinstance(lines, TruncatedLines):
        lines = TruncatedLines(lines)
    if lines.count:
        numbers = ", ".join(map(str, lines.first)) + (", ..." if lines.count > 10 else "")
        start, end = ("s were", "lines") if lines.count > 1 else (" was", "line")
        print(
            f"warning: {lines.count} source line{start} longer than the model's limit and cut "
            f"({end} {numbers}).",
            file=stream or sys.stderr,
        )
