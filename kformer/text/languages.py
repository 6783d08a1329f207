"""Languages of a multilingual model: codes, their ids, and where a language's id goes.

A published model reads its languages in one of a few ways. Here each way is data: for the source
and for the target language, a list of names from `PLACES`.

    NLLB, M2M100, mBART-50   {"source": ["source_prefix"], "target": ["target_prefix"]}
    mBART (25 languages)     {"source": ["source_suffix"], "target": ["target_suffix", "start"]}
    Marian, multilingual     {"source": [], "target": ["source_prefix"]}

Models trained here read them as Marian's do. There a text may begin with its own tag, such as
`>>fr<<`, which chooses the target language.
"""

import re

from kformer.utils.checks import check_choice

ROLES = ("source", "target")
PLACES = ("source_prefix", "source_suffix", "target_prefix", "target_suffix", "start")
# A tag at the beginning, up to the first "<<". The graph uses the same pattern.
TAG_PATTERN = r"(?s)\A>>.*?<<"
_TAG = re.compile(TAG_PATTERN)
# Where the tokenizers that are trained here have a language.
TRAINED_PLACES = {"source": [], "target": ["source_prefix"]}
# Both "<" and ">" would end a tag.
_CODE = re.compile(r"[^\s<>]{1,100}")
# The most codes in an error message.
_SHOWN = 12


def language_tag(code):
    """Returns the piece of a language, and the tag of its texts: `>>de<<`."""
    return f">>{code}<<"


def cut_tag(text, known=None):
    """Returns the tag that a text begins with, such as ">>fra<<", and the text after it.

    Args:
        text: str.
        known: container of str, default `None`. The tags that there are; another is text. `None`
            for any.

    Returns:
        Tuple of two str. The tag is `""` if there is none.
    """
    match = _TAG.match(text)
    if match is None or (known is not None and match[0] not in known):
        return "", text
    return match[0], text[match.end() :]


def check_codes(codes):
    """Checks the codes of languages, for a new tokenizer; returns them as a list.

    Raises:
        ValueError: a code occurs twice, or cannot stand in a tag.
    """
    listed = [None] if isinstance(codes, str) else list(codes)  # It may be read once.
    if not all(isinstance(code, str) for code in listed):
        raise ValueError(f"languages must be a list of codes, such as ['de', 'fr'], not {codes!r}.")
    codes = listed
    for i, code in enumerate(codes):
        if not _CODE.fullmatch(code):
            raise ValueError(
                f"The language {code!r} must be a code without spaces, '<' and '>', such as 'de'."
            )
        if code in codes[:i]:
            raise ValueError(f"The language {code!r} occurs twice: give each once.")
    return codes


def check_languages(languages, places, sides):
    """Checks languages and their places; returns both as new dicts.

    Args:
        languages: dict of code to id, or `None`.
        places: dict of role to list of names from `PLACES`, or `None` without languages.
        sides: dict of side to `Vocabulary`.

    Raises:
        ValueError: a place is unknown, or an id is outside of the vocabulary of its side.
    """
    languages = dict(languages or {})
    places = {role: list((places or {}).get(role, ())) for role in ROLES}
    for place in (*places["source"], *places["target"]):
        check_choice("A language place", place, PLACES)
        # Both sides share the start token.
        vocabulary = sides["source" if place.startswith("source") else "target"]
        vocabulary.check_ids(languages.values(), "language id")
    return languages, places


def find_language(languages, places, role, code):
    """Returns the id of a language code: one of `languages`, or a piece (`>>fra<<`, `__fr__`).

    Raises:
        ValueError: there is no such language, or the model does not read this role's language.
    """
    if not places[role]:
        fault = f"does not read the {role} language" if languages else "has no choice of languages"
        raise ValueError(f"This model {fault}; leave out {code!r}.")
    bare = re.sub(r"\A(?:>>(.*)<<|__(.*)__)\Z", lambda m: m[1] or m[2] or "", str(code))
    for name in (str(code), bare):
        if name in languages:
            return languages[name]
    choices = some_languages(languages)
    raise ValueError(f"The {role} language {code!r} is unknown; choose one of {choices}.")


def some_languages(languages):
    """Returns the first codes and the number of the others, for a message."""
    codes = sorted(languages)
    count = len(codes) - _SHOWN
    return ", ".join(codes[:_SHOWN]) + (f" and {count} more" if count > 0 else "")
