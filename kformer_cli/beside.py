"""What `kformer translate` is asked of each line: options that name files with a line for each."""

from kformer_cli.environment import UsageError
from kformer_cli.options import chosen
from kformer_options.text_files import check_readable, check_same_length, count_lines

BESIDE = chosen("terms", "forbidden_terms", "prefix", "alternatives")
_FILES = ("terms", "forbidden_terms", "prefix")


class LinesBeside:
    """The files of the options, line by line.

    Args:
        options: dict of the command's options.
        count: int or `None`. The lines of the text; `None` if they come by a pipe.

    Raises:
        FileNotFoundError: a file does not exist.
        ValueError: it is compressed or a folder, or has another number of lines than the text.
    """

    def __init__(self, options, count):
        self._paths = {name: options[name] for name in _FILES if options[name] is not None}
        self._needs_run = any(options[name] for name in ("forbidden_terms", "alternatives"))
        self._lines = {}
        for name, path in self._paths.items():
            flag = _flag(name)
            check_readable(path, flag)
            if count is not None:
                check_same_length("the text", count, f"'{path}' ({flag})", count_lines(path))

    def read(self, is_run):
        """Reads the files.

        Args:
            is_run: bool. Whether the model is a run; a SavedModel takes less.

        Raises:
            UsageError: the model does not take an option.
            ValueError: a file is not UTF-8.
        """
        from kformer.utils.lines import read_lines

        if not is_run and (self._needs_run or len(self._paths) > 1):
            raise UsageError(
                "A SavedModel takes --terms or --prefix alone: leave the other options out "
                f"({', '.join(map(_flag, BESIDE))}), or give the run."
            )
        self._lines = {name: read_lines(path, name) for name, path in self._paths.items()}

    def arguments(self, first, count):
        """Keyword arguments of `translate` for `count` lines, from index `first` on."""
        found = {}
        for name, lines in self._lines.items():
            if len(lines) < first + count:
                raise UsageError(
                    f"The text has more lines than '{self._paths[name]}', which has {len(lines)}; "
                    "give a line for each, which may be empty."
                )
            chosen = lines[first : first + count]
            if name == "prefix":
                found["prefixes"] = chosen
                continue
            found[name] = [[term for term in line.split("\t") if term.strip()] for line in chosen]
        if "terms" in found:
            found["terms"] = [[_forms(term) for term in terms] for terms in found["terms"]]
        return found


def _forms(term):
    """A term as `Translator.translate` takes it. Where no form stands between the signs, the signs
    are the term.
    """
    return tuple(form for form in term.split("|") if form.strip()) or (term,)


def _flag(name):
    return f"--{name.replace('_', '-')}"
