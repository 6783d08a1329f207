"""What happens to a text before SentencePiece reads it and after its pieces are joined again.

The rules are data, lists of literal replacements, because two readers follow them: Python (on any
backend) and a TensorFlow graph, where they become `tf.strings.regex_replace`. Equal ids and equal
text on both sides follow from there being one list."""

from dataclasses import dataclass

from kformer.utils.checks import check_choice

# SentencePiece writes a space as this sign, so the sign itself needs care.
SPACE_SIGN = "\u2581"
# U+0010, "data link escape": a control character that stands in hardly any text, and is escaped
# itself.
ESCAPE = "\u0010"


@dataclass(frozen=True)
class Normalization:
    """A named way of reading text.

    Args:
        name: as it stands in `tokenizer.json`.
        sentencepiece_rule: normalization rule with which SentencePiece is trained, or None where
            models are only imported.
        remove_extra_whitespaces: whether SentencePiece trims the text and joins runs of spaces.
        before: (literal, replacement) pairs, applied in order before SentencePiece.
        after: (literal, replacement) pairs, applied in order to the joined pieces.
    """

    name: str
    sentencepiece_rule: str | None
    remove_extra_whitespaces: bool
    before: tuple[tuple[str, str], ...]
    after: tuple[tuple[str, str], ...]


NORMALIZATIONS = {
    rule.name: rule
    for rule in (
        # Text comes back normalised. A literal space sign would come back as a space: it is read as
        # one at once, so that it is trimmed and joined as spaces are. SentencePiece's table takes
        # out every control character but NUL.
        Normalization("nmt_nfkc", "nmt_nfkc", True, ((SPACE_SIGN, " "), ("\0", "")), ()),
        # Text comes back as it was. The space sign is written escape + s, and the escape itself
        # escape + e. Undone in the order (s, e): after the first replacement every escape that is
        # left is followed by its e.
        Normalization(
            "identity",
            "identity",
            False,
            ((ESCAPE, ESCAPE + "e"), (SPACE_SIGN, ESCAPE + "s")),
            ((ESCAPE + "s", SPACE_SIGN), (ESCAPE + "e", ESCAPE)),
        ),
        # An imported model: text goes to SentencePiece as it is, as in the library that the model
        # came from.
        Normalization("model", None, False, (), ()),
    )
}


def get_normalization(name, *, trainable=False):
    """The `Normalization` called `name`; ValueError with the choices if there is none."""
    choices = [
        rule.name for rule in NORMALIZATIONS.values() if rule.sentencepiece_rule or not trainable
    ]
    return NORMALIZATIONS[check_choice("normalization", name, choices)]


def replace_all(text, replacements):
    """Applies (literal, replacement) pairs in order."""
    for literal, replacement in replacements:
        text = text.replace(literal, replacement)
    return text


def valid_text(text):
    """A `str` of Unicode scalar values from `str` or `bytes`: what is not valid UTF-8 becomes
    U+FFFD.

    One U+FFFD stands for each maximal invalid part, as Unicode recommends (section 3.9, "U+FFFD
    Substitution of Maximal Subparts") and as `tf.strings.unicode_transcode` does in the graph. A
    lone surrogate in a `str` counts as the three invalid bytes that it would be in UTF-8, so that a
    `str` and its bytes give the same text.

    Raises:
        ValueError: if `text` is neither `str` nor `bytes`.
    """
    if isinstance(text, str):
        try:
            text.encode("utf-8")
            return text
        except UnicodeEncodeError:
            text = text.encode("utf-8", "surrogatepass")
    elif not isinstance(text, bytes):
        raise ValueError(f"A text must be str or bytes, not {type(text).__name__} ({text!r}).")
    return text.decode("utf-8", "replace")
