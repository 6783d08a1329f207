"""Changes to a text before SentencePiece reads it, and after its pieces are joined again.

The rules are lists of literal replacements. Python applies them, and so does a TensorFlow graph
(with `tf.strings.regex_replace`), so both return the same ids and texts."""

from dataclasses import dataclass

from kformer.utils.checks import check_choice

# SentencePiece writes a space as this sign, so the sign itself needs care.
SPACE_SIGN = "\u2581"
# U+0010, "data link escape": a control character that is rare in texts, and is escaped itself.
ESCAPE = "\u0010"


@dataclass(frozen=True)
class Normalization:
    """A named normalization.

    Args:
        name: str. The name in `tokenizer.json`.
        sentencepiece_rule: str or `None`. SentencePiece's rule in training; `None` for a
            normalization that only imported models have.
        remove_extra_whitespaces: bool. Whether SentencePiece trims the text and joins spaces.
        before: tuple of (literal, replacement), applied in order before SentencePiece.
        after: tuple of (literal, replacement), applied in order to the joined pieces.
    """

    name: str
    sentencepiece_rule: str | None
    remove_extra_whitespaces: bool
    before: tuple[tuple[str, str], ...]
    after: tuple[tuple[str, str], ...]


_ESCAPED = (
    ((ESCAPE, ESCAPE + "e"), (SPACE_SIGN, ESCAPE + "s")),
    ((ESCAPE + "s", SPACE_SIGN), (ESCAPE + "e", ESCAPE)),
)
NORMALIZATIONS = {
    rule.name: rule
    for rule in (
        # Decoded text is normalized. A literal space sign would be decoded to a space, so it is
        # replaced by one first, and trimmed and joined like spaces. SentencePiece's own table
        # removes every control character except NUL.
        Normalization("nmt_nfkc", "nmt_nfkc", True, ((SPACE_SIGN, " "), ("\0", "")), ()),
        # Decoded text is the original text. The space sign becomes escape + s, and the escape
        # itself escape + e. Decoding replaces (s, e) in this order: after the first replacement
        # every remaining escape is followed by its e.
        Normalization(
            "identity",
            "identity",
            False,
            *_ESCAPED,
        ),
        # An imported model: SentencePiece reads the text unchanged, as in the original library.
        Normalization("model", None, False, (), ()),
        # Texts are tokens with spaces between them, for models whose tokenizer is elsewhere.
        # SentencePiece is not asked, since it merges unknown words.
        Normalization("tokens", None, False, *_ESCAPED),
    )
}


def get_normalization(name, *, trainable=False):
    """The `Normalization` with a name; an unknown name raises `ValueError`."""
    rules = NORMALIZATIONS.values()
    choices = [rule.name for rule in rules if rule.sentencepiece_rule or not trainable]
    return NORMALIZATIONS[check_choice("normalization", name, choices)]


def replace_all(text, replacements):
    """Applies (literal, replacement) pairs in order."""
    for literal, replacement in replacements:
        text = text.replace(literal, replacement)
    return text


def valid_text(text):
    """A valid Unicode `str` from `str` or `bytes`: invalid UTF-8 becomes U+FFFD.

    Each maximal invalid part becomes one U+FFFD, as Unicode recommends (section 3.9, "U+FFFD
    Substitution of Maximal Subparts") and as `tf.strings.unicode_transcode` does in the graph. A
    lone surrogate in a `str` counts as its three invalid bytes in UTF-8, so that a `str` and its
    bytes give the same text.

    Raises:
        ValueError: `text` is neither `str` nor `bytes`.
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
