"""Codes of languages."""


def is_language(tag, code):
    """Returns whether a tag, such as `en-GB`, is that of a language.

    Args:
        tag: str.
        code: str, such as "en". A region counts only if the code has one, such as "pt_BR".
    """
    tag, code = (each.replace("_", "-").casefold() for each in (tag, code))
    return tag == code or ("-" not in code and tag.partition("-")[0] == code)
