"""Deprecated names work as before, and say what takes their place where they are used."""

import pytest

from kformer.utils.deprecation import deprecated, renamed_arguments

pytestmark = pytest.mark.any_backend


@deprecated("translate", removal="2.0")
def decode(text):
    """Decodes."""
    return text.upper()


@deprecated("Search", removal="2.0")
class Beam:
    def __init__(self, size=4):
        self.size = size


@renamed_arguments(removal="2.0", width="beam_size")
def search(text, beam_size=4):
    return text, beam_size


def test_a_deprecated_function():
    message = "decode is deprecated and will be removed in kformer 2.0: use translate."
    with pytest.warns(FutureWarning, match=message) as warned:
        assert decode("a") == "A"
    assert warned[0].filename == __file__ and decode.__doc__ == "Decodes."


def test_a_deprecated_class_is_still_a_class():
    class Wide(Beam):
        pass

    for each in (Beam, Wide):
        with pytest.warns(FutureWarning, match="Beam is deprecated .*: use Search.") as warned:
            assert isinstance(each(size=2), Beam) and each().size == 4
        assert warned[0].filename == __file__


def test_a_renamed_argument(recwarn):
    assert search("a", beam_size=2) == ("a", 2) and not recwarn
    with pytest.warns(FutureWarning, match="width of search is deprecated .*: use beam_size."):
        assert search("a", width=2) == ("a", 2)
