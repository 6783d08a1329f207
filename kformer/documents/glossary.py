"""Terms and their translations."""

import dataclasses
import pathlib
import types
from collections.abc import Mapping

from kformer.documents.words import tokens
from kformer.utils.compressed import plain_name
from kformer.utils.files import read_bytes

_CASE = "case"
_MOST_BYTES = 2**26
# Of a translation memory: the endings of its files, and the most words of a term.
_MEMORIES, _MOST_WORDS = (".tmx", ".xlf", ".xliff"), 3


@dataclasses.dataclass(frozen=True)
class Entry:
    """A term of a glossary.

    Attributes:
        source: tuple of str. The forms of the term that are looked for.
        target: tuple of str. The forms of its translation, one of which must occur; empty for a
            term that is not translated.
        matches_case: bool. Whether the case of its letters counts.
    """

    source: tuple
    target: tuple = ()
    matches_case: bool = False


class Glossary:
    """Terms, and how they are translated.

    Of terms that begin at one word the longest counts, and the search goes on after it. A term is
    found as whole words; in scripts without spaces between words it may stand anywhere.

    Args:
        entries: dict of source to target; or iterable of `Entry`, or of tuples of a source, a
            target and, as a third, whether the case of letters counts. A source or target is a str,
            or a tuple of forms; a target of `None` or `""`, or a str in place of a tuple, keeps the
            term untranslated.

    Attributes:
        sentences: dict of sentences to their translations, which take the place of the model's.

    Raises:
        ValueError: a term is empty, or has two entries.

    Example:
    ```python
    from kformer.documents import Glossary

    glossary = Glossary([("horse", ("Pferd", "Pferde")), ("TensorFlow", None)])
    [entry.target for _, _, entry in glossary.find("A horse and TensorFlow.")]
    # [('Pferd', 'Pferde'), ()]
    ```
    """

    def __init__(self, entries):
        self._entries, self._sizes, self.sentences = {}, {}, {}
        for entry in entries.items() if isinstance(entries, Mapping) else entries:
            if isinstance(entry, str):
                entry = (entry,)
            self._add(entry if isinstance(entry, Entry) else _entry(*entry))

    def __len__(self):
        return len({*map(id, self._entries.values())})

    def _add(self, entry):
        for form in entry.source or ("",):
            words = [form[start:end] for start, end, _ in tokens(form)]
            if not words:
                raise ValueError(f"The term {form!r} of a glossary has no word: leave it out.")
            # As they are compared with the words of a text.
            term = tuple(words if entry.matches_case else map(str.casefold, words))
            if (term, entry.matches_case) in self._entries:
                raise ValueError(f"The glossary has two entries for {form!r}: join their forms.")
            self._entries[term, entry.matches_case] = entry
            sizes = {*self._sizes.get(words[0].casefold(), ()), len(term)}
            self._sizes[words[0].casefold()] = sorted(sizes, reverse=True)

    def find(self, text):
        """Finds terms in a text.

        Args:
            text: str.

        Returns:
            List of tuples of start, end and `Entry`, in the order of the text.
        """
        slices = tokens(text)
        words = [text[start:end] for start, end, _ in slices]
        folded = [word.casefold() for word in words]
        terms, i = [], 0
        while i < len(words):
            sizes = self._sizes.get(folded[i], ())
            sides = [(size, *side) for size in sizes for side in ((words, True), (folded, False))]
            keys = ((tuple(side[i : i + size]), matches_case) for size, side, matches_case in sides)
            key = next((key for key in keys if key in self._entries), None)
            if key is None:
                i += 1
                continue
            size = len(key[0])
            terms.append((slices[i][0], slices[i + size - 1][1], self._entries[key]))
            i += size
        return terms

    @classmethod
    def load(cls, path, languages=None) -> "Glossary":
        """Reads a file of terms: source and target with a tab between them, a line for each.

        Forms of a term have `|` between them. A line without a target is a term that is not
        translated. A third column `case` makes the case of letters count. Empty lines, and lines
        that begin with `#`, are comments.

        Of a translation memory (TMX or XLIFF) the units of at most three words are terms; the
        others are sentences.

        Args:
            path: path of a UTF-8 file, or of a translation memory.
            languages: pair of str, default `None`. The codes of source and target, for a
                translation memory.

        Returns:
            `Glossary`.

        Raises:
            FileNotFoundError: there is no such file.
            ValueError: a line is not a term; the message has its number.
        """
        path = pathlib.Path(path)
        if path.is_dir() or not path.exists():
            raise FileNotFoundError(f"The glossary '{path}' does not exist; give a file of terms.")
        if plain_name(path).suffix.lower() in _MEMORIES:
            return cls._of_memory(path, languages)
        try:
            text = read_bytes(path, _MOST_BYTES, remedy="give fewer terms").decode("utf-8-sig")
        except UnicodeDecodeError as error:
            raise ValueError(f"The glossary '{path}' is not UTF-8; save it as UTF-8.") from error
        glossary = cls([])
        for number, line in enumerate(text.split("\n"), 1):
            line = line.removesuffix("\r")
            if not line.strip() or line.startswith("#"):
                continue
            try:
                source, target, case, *more = [each.strip() for each in f"{line}\t\t".split("\t")]
                if len(more) > 2 or case not in ("", _CASE):
                    columns = f"a source, a target and perhaps {_CASE}, with tabs between them"
                    raise ValueError(f"expected {columns}, but {line[:80]!r} was found.")
                sides = [[form.strip() for form in side.split("|")] for side in (source, target)]
                sides = [tuple(filter(None, side)) for side in sides]
                glossary._add(Entry(*sides, case == _CASE))
            except ValueError as error:
                raise ValueError(f"Line {number} of the glossary '{path}': {error}") from error
        return glossary

    @classmethod
    def _of_memory(cls, path, languages):
        from kformer.data.corpora.units import unit_pairs

        if languages is None:
            raise ValueError(
                f"The glossary '{path}' is a translation memory, which may have many languages: "
                "name two by --language-pair of kformer translate, by NAME:en-de=FILE of kformer "
                "serve, or by languages in Python."
            )
        terms, sentences = {}, {}
        corpus = types.SimpleNamespace(languages=languages)
        for pair in unit_pairs(path, corpus, keeps_placeholders=True):
            source, target = (" ".join((text or "").split()) for text in pair)
            words = tokens(source)
            if not (target and words):
                continue
            if len(words) <= _MOST_WORDS and all(is_word for *_, is_word in words):
                key = tuple(source[start:end].casefold() for start, end, _ in words)
                terms.setdefault(key, (source, {}))[1][target] = None
            else:
                sentences.setdefault(source, target)
        glossary = cls((source, tuple(forms)) for source, forms in terms.values())
        glossary.sentences = sentences
        return glossary


def _entry(source, target=None, matches_case=False):
    sides = ([side] if isinstance(side, str) else side or () for side in (source, target))
    return Entry(*(tuple(filter(None, side)) for side in sides), bool(matches_case))
