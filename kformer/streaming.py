r"""Text files through a translator: every input line has exactly one output line.

Lines end at "\n" and nowhere else. Bytes that are not UTF-8 become U+FFFD, so that a damaged line
is one odd line of output, and never an error or a shift of all that follow. A byte order mark at
the start and one "\r" before a newline are dropped."""

import codecs
import contextlib
import pathlib
import queue
import sys
import threading

from kformer.translator import Translator
from kformer.utils import checks, files
from kformer.utils.lines import read_lines  # noqa: F401, of the commands

# A line that waits for others to come is translated after so many seconds without them.
_PATIENCE = 0.2


def open_translator(path, source_language=None, target_language=None, ensemble=None):
    """The translator of a run directory or of a SavedModel, whichever `path` is.

    Args:
        path: a run directory; or `NAME/` or `NAME/VERSION/` of a SavedModel.
        source_language, target_language: codes, for a run of several languages; `None` for those it
            has.
        ensemble: list of further run directories, whose models translate together with the first.

    Returns:
        A `kformer.Translator`, or a `kformer.export.SavedModelTranslator`.

    Raises:
        FileNotFoundError: there is neither.
        ValueError: as `Translator.load` and `SavedModelTranslator`.
    """
    path = pathlib.Path(path)
    if not path.exists():
        raise FileNotFoundError(f"There is no run directory or SavedModel {path}.")
    if (path / "config.json").is_file():
        return load_run_translator(path, source_language, target_language, ensemble)
    if ensemble:
        raise ValueError(
            f"{path} is no run directory, and only such translate together: leave --ensemble "
            "out, or give the run."
        )
    versions = (folder / "saved_model.pb" for folder in [path, *path.glob("*")])
    if not any(file.is_file() for file in versions):
        raise FileNotFoundError(
            f"{path} is neither a run directory (it lacks config.json) nor a SavedModel (it "
            "lacks saved_model.pb)."
        )
    from kformer.export import SavedModelTranslator

    if source_language is not None or target_language is not None:
        raise ValueError(
            f"The languages of the SavedModel {path} are fixed: export the run again with the "
            "languages that you want."
        )
    return SavedModelTranslator(path)


def load_run_translator(path, source_language=None, target_language=None, ensemble=None):
    """`Translator.load`, with a word for who comes too early or with a SavedModel.

    Raises:
        FileNotFoundError, ValueError: as `Translator.load` and `Translator.for_languages`.
    """
    path = pathlib.Path(path)
    if (
        (path / "config.json").is_file()
        and not (path / "model.keras").exists()
        and (path / "tokenizer").is_dir()
    ):
        raise FileNotFoundError(
            f"{path} has no model.keras yet: the training writes it at the end of its first epoch."
        )
    translator = Translator.load([path, *ensemble] if ensemble else path)
    if source_language is None and target_language is None:
        return translator
    return translator.for_languages(source_language, target_language)


def search_options(translator, **options):
    """Keyword arguments for `translate`: those that are not `None`, after checking that the
    translator can follow them.

    Args:
        translator: as `open_translator` returns it.
        **options: fields of `SearchOptions`, or `None` for what the translator has.

    Raises:
        ValueError: a SavedModel was exported with other options, or the values do not go together.
    """
    options = {name: value for name, value in options.items() if value is not None}
    if isinstance(translator, Translator):
        translator.search_options(options)
        return options
    for name, value in options.items():
        fixed = translator.options.get(name)
        if name != "n_best" and value != fixed:
            flag = name.replace("_", "-")
            raise ValueError(
                f"{translator.path} was exported with {name}={fixed}, and a SavedModel's "
                "search is fixed: "
                f"leave --{flag} out, or export the run again with the {name} that you want "
                f"({value})."
            )
    n_best = options.get("n_best", 1)
    if n_best > translator.options["n_best"]:
        raise ValueError(
            f"{translator.path} was exported with the {translator.options['n_best']} best of "
            "each sentence: "
            f"export the run again with --n-best {n_best} to get more."
        )
    return {"n_best": n_best}


def translate_lines(lines, translate, write, *, chunk_lines=512, progress=None):
    """Translates lines as they come and writes each translation as soon as it is there.

    Args:
        lines: binary file, or another iterable of bytes that end in a newline.
        translate: function from a list of strings to a list of `kformer.translation.Translation`.
        write: function that takes the list of `Translation` of each chunk.
        chunk_lines: lines translated at once, at most. Fewer if no further line comes for a moment.
        progress: function that is called with the number of lines done.

    Returns:
        List of ints, the numbers (from 1) of the lines that were longer than the model's limit and
        were cut.
    """
    truncated, done = [], 0
    for chunk in chunks_of_lines(lines, chunk_lines):
        results = translate(chunk)
        write(results)
        truncated += [done + i for i, result in enumerate(results, 1) if result.truncated]
        done += len(chunk)
        if progress is not None:
            progress(done)
    return truncated


def chunks_of_lines(lines, chunk_lines):
    """Lists of at most `chunk_lines` decoded lines; a shorter one when no further line comes for a
    moment.

    Args:
        lines: binary file, or another iterable of bytes.
        chunk_lines: int.
    """
    waiting = queue.Queue(maxsize=4 * chunk_lines)
    end = object()
    stop = threading.Event()

    def put(item):
        while not stop.is_set():
            with contextlib.suppress(queue.Full):
                waiting.put(item, timeout=_PATIENCE)
                return

    def read():
        try:
            for number, line in enumerate(lines):
                put(_decode(line, first=number == 0))
                if stop.is_set():
                    return
            put(end)
        except Exception as error:  # It is raised where somebody can see it.
            put(error)

    # A thread, since reading a pipe waits, and the lines that have come should not.
    threading.Thread(target=read, daemon=True).start()
    chunk = []
    try:
        while True:
            try:
                item = waiting.get(timeout=_PATIENCE if chunk else None)
            except queue.Empty:
                item = None
            is_last = item is end or isinstance(item, Exception)
            if item is not None and not is_last:
                chunk.append(item)
            if chunk and (item is None or is_last or len(chunk) == chunk_lines):
                yield chunk
                chunk = []
            if isinstance(item, Exception):
                raise item
            if is_last:
                return
    finally:
        stop.set()


def _decode(line, first):
    if first and line.startswith(codecs.BOM_UTF8):
        line = line[len(codecs.BOM_UTF8) :]
    line = line.removesuffix(b"\n").removesuffix(b"\r")
    return line.decode("utf-8", "replace")


def format_line(translation, *, n_best=1, scores=False):
    """The output line of one input line, without its newline.

    Args:
        translation: `kformer.translation.Translation`.
        n_best: int. Above 1 the hypotheses are columns, best first, with tabs between them.
        scores: whether a column with its log-probability follows each text.
    """
    columns = []
    for hypothesis in translation.hypotheses[:n_best]:
        text = one_line(hypothesis.text)
        # One column stays one column.
        columns.append(text.replace("\t", " ") if n_best > 1 or scores else text)
        if scores:
            columns.append(f"{hypothesis.score:.6f}")
    return "\t".join(columns)


def one_line(text):
    """A text without line breaks."""
    return text.replace("\r", " ").replace("\n", " ")


def check_same_length(source_path, sources, other_path, others):
    """Makes sure that two files have as many lines.

    Raises:
        ValueError: they have not.
    """
    checks.check_same_length(f"'{source_path}'", len(sources), f"'{other_path}'", len(others))


@contextlib.contextmanager
def open_output(path):
    """A binary file to write to: standard output for `None`; else a file that takes its place when
    it is whole.

    Raises:
        FileNotFoundError: its folder does not exist.
    """
    if path is None:
        yield sys.stdout.buffer
        sys.stdout.buffer.flush()
        return
    path = pathlib.Path(path)
    if not path.parent.is_dir():
        raise FileNotFoundError(
            f"The folder {path.parent} of the output file does not exist; make it first."
        )
    if path.exists() and not path.is_file():  # a device or a named pipe; a folder is an error here
        with open(path, "wb") as file:
            yield file
        return
    with files.replacing(path) as aside, open(aside, "wb") as file:
        yield file


def warn_truncated(numbers, stream=None):
    """Says on standard error which lines were cut."""
    if numbers:
        shown = ", ".join(map(str, numbers[:10])) + (", ..." if len(numbers) > 10 else "")
        print(
            f"warning: {len(numbers)} source line{'s were' if len(numbers) > 1 else ' was'} "
            "longer than the model's limit and cut "
            f"(line{'s' if len(numbers) > 1 else ''} {shown}).",
            file=stream or sys.stderr,
        )
