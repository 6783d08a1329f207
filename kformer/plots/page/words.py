"""Words, for the eye: tokens that form a word, and texts cut where hypotheses may part."""

import codecs
import re
import unicodedata

from kformer.text.normalization import SPACE_SIGN
from kformer.text.scripts import CHINESE_JAPANESE, THAI_LAO_BURMESE_KHMER, is_of

_BYTE = re.compile(r"<0x([0-9A-Fa-f]{2})>")
# The end token, and the tags of languages of published models: </s>, >>deu<<, __de__, deu_Latn.
_SPECIAL = re.compile(r"<[^<>]+>|>>.+<<|__\w+__|[a-z]{3}_[A-Z][a-z]{3}")
_FULL_WIDTH = ((0xFF00, 0xFFEF),)
_WITHOUT_SPACES = THAI_LAO_BURMESE_KHMER + CHINESE_JAPANESE + _FULL_WIDTH
_PUNCTUATION = ",.;:!?"


def words_of(tokens):
    """Groups the tokens of a sentence to words.

    Special tokens belong to no word. Where a script has no spaces, a word is a token.

    Args:
        tokens: list of str. SentencePiece's pieces.

    Returns:
        List of dict: `text` str, `space` bool (whether a space stands before the word), and
        `tokens`, the list of the indices of its tokens.
    """
    words = []
    is_open = False
    for text, indices in _characters_of(tokens):
        if text is None:
            is_open = False
            continue
        has_space = text.startswith(SPACE_SIGN)
        text = text.replace(SPACE_SIGN, " ").strip()
        joins = is_open and not has_space
        if joins and words[-1]["text"] and text:
            border = (words[-1]["text"][-1], text[0])
            joins = not any(is_of(character, _WITHOUT_SPACES) for character in border)
        if joins:
            words[-1]["text"] += text
            words[-1]["tokens"] += indices
        else:
            words.append({"text": text, "space": has_space, "tokens": indices})
        is_open = True
    return [word for word in words if word["text"]]


def _characters_of(tokens):
    """(text, indices of tokens) of each token, or of bytes that are a character together; the text
    of a special token is `None`."""
    decode, indices = codecs.getincrementaldecoder("utf-8")("replace").decode, []
    for index, token in enumerate([*tokens, ""]):  # The last one ends bytes that are no character.
        byte = _BYTE.fullmatch(token)
        text = decode(bytes.fromhex(byte[1])) if byte else decode(b"", True)
        if byte:
            indices.append(index)
        if text:
            yield text, indices
            indices = []
        if token and not byte:
            yield (None if _SPECIAL.fullmatch(token) else token), [index]


def units_of(text):
    """Cuts a text into words, or into characters where its script has no spaces.

    Args:
        text: str.

    Returns:
        List of str, which joined are the text. Spaces are the beginning of the unit after them.
    """
    units = []
    previous = ""
    for character in text:
        is_mark = unicodedata.category(character).startswith("M")
        begins = (
            not previous
            or (character.isspace() and not previous.isspace())
            or (not is_mark and is_of(character, _WITHOUT_SPACES) and not previous.isspace())
            or (not is_mark and not character.isspace() and is_of(previous, _WITHOUT_SPACES))
            or (character in _PUNCTUATION and previous not in _PUNCTUATION)
        )
        if begins:
            units.append(character)
        else:
            units[-1] += character
        previous = character
    return units


def tree_of(texts):
    """The tree of hypotheses: they share a branch up to where they parted.

    Args:
        texts: list of str, best first.

    Returns:
        Dict: `text` str, the part that all below share; `children`, a list of such dicts, the best
        hypothesis's first; and, for a leaf, `rank` int, the index of its text.
    """
    return _branch([(units_of(text), rank) for rank, text in enumerate(texts)])


def _branch(rows):
    """The tree of (units, rank) rows, of which there is at least one."""
    units, rank = rows[0]
    if len(rows) == 1:
        return {"text": "".join(units), "rank": rank}
    length = 0
    while all(len(row) > length and row[length] == units[length] for row, _ in rows):
        length += 1
    groups = {}
    for row, number in rows:
        rest = row[length:]
        # Texts that end here differ in tokens alone, or not at all: a leaf each.
        groups.setdefault(rest[0] if rest else number, []).append((rest, number))
    children = [_branch(group) for group in groups.values()]
    return {"text": "".join(units[:length]), "children": children}
