"""What a command checks before it imports anything: numbers, files and folders.

kformer checks all of it again. Here a mistake is answered at once, and by the name of the option.
"""

import pathlib

from kformer_cli.environment import UsageError
from kformer_options.combinations import check_search
from kformer_options.field import Option
from kformer_options.model_folders import check_run, check_trained, is_run
from kformer_options.text_files import check_readable, check_same_length, count_lines

_LIMITS = (
    Option("", "beam_size", int, True, flag="beam-size", at_least=1),
    Option("", "n_best", int, True, flag="n-best", at_least=1),
    Option("", "max_length", int, True, flag="max-length", at_least=0),
    Option("", "length_ratio", float, True, flag="length-ratio", at_least=0),
    Option("", "length_offset", int, True, flag="length-offset", at_least=0),
    Option("", "temperature", float, True, flag="temperature", above=0),
    Option("", "top_k", int, True, flag="top-k", at_least=0),
    Option("", "top_p", float, True, flag="top-p", above=0, at_most=1),
    Option("", "seed", int, True, flag="seed", at_least=0, at_most=2**31 - 1),
    Option("", "repetition_penalty", float, True, flag="repetition-penalty", above=0),
    Option(
        "", "no_repeat_ngram_size", int, True, flag="no-repeat-ngram-size", at_least=0, at_most=1000
    ),
    Option("", "max_text_bytes", int, True, flag="max-text-bytes", at_least=4),
    Option("", "batch_size", int, True, flag="batch-size", at_least=1),
    Option("", "dtype", str, True, flag="dtype", choices=("float32", "bfloat16", "int8")),
)


def check_values(options, searches=True):
    """Checks values that are not of the parser's types alone, and that a search uses all of them.

    Args:
        options: dict of name to value. `None` means unset.
        searches: bool, default `True`. Whether the search is kformer's own.

    Raises:
        UsageError: a value is out of range, or another option leaves it without effect.
    """
    for limit in _LIMITS:
        check_value(limit, options.get(limit.name))
    if searches:
        try:
            check_search(options)
        except ValueError as error:
            raise UsageError(str(error)) from None


def check_value(option, value):
    """Checks the value of one declared option.

    Args:
        option: `Option`.
        value: what was given; `None` means unset.

    Raises:
        UsageError: the value is out of range.
    """
    try:
        if value is not None:
            option.check(value, f"--{option.flag}")
    except ValueError as error:
        raise UsageError(str(error)) from None


def check_text(path, flag):
    """Checks that a file of text is there and has lines.

    Args:
        path: path, or `None`.
        flag: str. The option, such as "--source".

    Returns:
        int. The number of lines; `None` without a path, and for a pipe or a device.

    Raises:
        FileNotFoundError: there is no such file.
        ValueError: it is a folder, is compressed, or is empty.
    """
    if path is None:
        return None
    check_readable(str(path), flag)
    if not pathlib.Path(path).is_file():
        return None
    count = count_lines(str(path))
    if count == 0:
        raise ValueError(f"The {flag} file '{path}' is empty: it needs one sentence per line.")
    return count


def check_sides(sides):
    """Checks the files of both sides of a text, or of a text and its references.

    Args:
        sides: list of pairs of a path (or `None`) and an option's flag.

    Raises:
        FileNotFoundError: as `check_text`.
        ValueError: as `check_text`, or the sides differ in length.
    """
    counts = [(path, check_text(path, flag)) for path, flag in sides]
    counts = [(path, count) for path, count in counts if count is not None]
    for path, count in counts[1:]:
        first, length = counts[0]
        check_same_length(f"'{first}'", length, f"'{path}'", count)


def check_output(path):
    """Checks that an output file can be made: its folder exists, and it is not a folder.

    Args:
        path: path, or `None`.

    Raises:
        FileNotFoundError: its folder does not exist.
        IsADirectoryError: it is a folder.
    """
    if path is None:
        return
    path = pathlib.Path(path)
    if not path.parent.is_dir():
        raise FileNotFoundError(
            f"The folder {path.parent} of the output file does not exist; make it first."
        )
    if path.is_dir():
        raise IsADirectoryError(
            f"--output is a file, but {path} is a folder: Is a directory. Give the name of a file."
        )


def check_models(model, ensemble=()):
    """Checks that a model to translate with is a run that has a model, or a SavedModel.

    Args:
        model: path.
        ensemble: list of paths, default empty. Further runs.

    Raises:
        FileNotFoundError: one is neither.
    """
    if is_run(model):
        check_trained(model)
    for run in ensemble or ():
        check_trained(run)


__all__ = [
    "check_models",
    "check_output",
    "check_run",
    "check_sides",
    "check_text",
    "check_trained",
    "check_value",
    "check_values",
]
