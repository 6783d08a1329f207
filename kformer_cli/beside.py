"""What `kformer translate` is asked of each line: options that name files with a line for each."""

from kformer_cli.environment import refuse
from kformer_cli.options import chosen, set_options
from kformer_options.names import named
from kformer_options.text_files import check_readable, check_same_length, count_lines

BESIDE = chosen("terms", "forbidden_terms", "prefix", "alternatives")


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
        self._paths = set_options(options, ("terms", "forbidden_terms", "prefix"))
        self._needs_run = any(options[name] for name in ("forbidden_terms", "alternatives"))
        self._lines = {}
        for name, path in self._paths.items():
            check_readable(path, named(name))
            length = count_lines(path)
            if None not in (count, length):
                check_same_length("the text", count, f"'{path}' ({named(name)})", length)

    def read(self, is_run):
        """Reads the files.

        Args:
            is_run: bool. Whether the model is a run; a SavedModel takes less.

        Raises:
            UsageError: the model does not take an option.
            ValueError: a file is not UTF-8.
        """
        from kformer.utils.lines import read_lines

        refuse(
            not is_run and (self._needs_run or len(self._paths) > 1),
            "A SavedModel takes --terms or --prefix alone: leave the other options out "
            f"({', '.join(map(named, BESIDE))}), or give the run.",
        )
        self._lines = {name: read_lines(path, name) for name, path in self._paths.items()}

    def arguments(self, first, count):
        """Keyword arguments of `translate` for `count` lines, from index `first` on."""
        arguments = {}
        for name, lines in self._lines.items():
            refuse(
                len(lines) < first + count,
                f"The text has more lines than '{self._paths[name]}', which has {len(lines)}; give "
                "a line for each, which may be empty.",
            )
            texts = lines[first : first + count]
            terms = [[term for term in text.split("\t") if term.strip()] for text in texts]
            if name == "prefix":
                arguments["prefixes"] = texts
            elif name == "terms":
                arguments[name] = [list(map(_forms, line)) for line in terms]
            else:
                arguments[name] = terms
        return arguments


def _forms(term):
    """A term as `Translator.translate` takes it. Where no form stands between the signs, the signs
    are the term.
    """
    return tuple(form for form in term.split("|") if form.strip()) or (term,)
