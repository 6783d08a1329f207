"""What a command checks before it imports anything: combinations of options, files and folders."""

import os

from kformer_cli.environment import refuse
from kformer_options.model_folders import check_trained, is_run
from kformer_options.names import named
from kformer_options.text_files import check_readable, check_same_length, count_lines


def check_search(options):
    """Checks that no option of a search leaves another one without effect.

    Args:
        options: dict of name to value, of a command line. `None` means unset.

    Raises:
        UsageError: one does.
    """
    beam_size = options.get("beam_size")
    sampling = [name for name in ("sample", "mbr") if options.get(name)]
    for name in sampling:
        refuse(
            beam_size is not None,
            f"{named('beam_size')} is for a search, and {named(name)} draws samples: leave one of "
            "them out.",
        )
    if sampling or beam_size != 1 or options.get("alternatives") is not None:
        return
    for name in ("length_penalty", "early_stopping", "closest"):
        refuse(
            options.get(name) not in (None, False),
            f"{named(name)} is about the hypotheses of a beam, but with {named('beam_size')} 1 "
            f"there is one alone: give a wider beam, or leave {named(name)} out.",
        )


def refuse_beside(flag, options, names):
    """Raises a `UsageError` if one of these options is set beside another one.

    Args:
        flag: str. The other one, such as "--mbr".
        options: dict of name to value.
        names: iterable of str.
    """
    for name in names:
        refuse(options[name], f"{flag} is not for {named(name)}: leave one out.")


def check_description(path):
    """Checks that a description of corpora, of `--corpora`, is there.

    Args:
        path: path or `None`.

    Raises:
        FileNotFoundError: it does not exist.
    """
    if path is not None and not os.path.exists(path):
        raise FileNotFoundError(
            f"The --corpora file '{path}' does not exist; give the path of a YAML file that "
            "describes corpora."
        )


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
        check_same_length(f"'{counts[0][0]}'", counts[0][1], f"'{path}'", count)


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
