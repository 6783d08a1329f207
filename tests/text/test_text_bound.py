"""A text is cut to a bound in bytes before it is tokenized."""

import pathlib
import random
import subprocess
import sys

import pytest

import kformer
from kformer.decoding import SearchOptions
from kformer.text.text_bound import byte_bound, cut_text

FROZEN = pathlib.Path(__file__).parents[1] / "frozen_run"
ALPHABET = ["a", " ", "é", "中", "\ufdfa", "😀", "\u0301", "\u2581", "\0", "\n"]

pytestmark = pytest.mark.any_backend


def test_a_text_is_cut_where_a_code_point_begins():
    random.seed(0)
    for _ in range(500):
        text = "".join(random.choices(ALPHABET, k=random.randrange(30)))
        data, bound = text.encode(), random.randrange(4, 40)
        cut, was_cut = cut_text(text, bound)
        assert was_cut == (len(data) > bound)
        if not was_cut:
            assert cut is text and cut_text(data, bound)[0] is data
            continue
        assert (cut, True) == cut_text(data, bound)
        assert data.startswith(cut) and text.startswith(cut.decode()) and bound - 4 < len(cut)
        assert len(cut) <= bound < len((cut.decode() + text[len(cut.decode())]).encode())


def test_invalid_bytes_are_cut_at_the_bound():
    assert cut_text(b"\x80" * 50, 20) == (b"\x80" * 20, True)
    assert cut_text("\ud800" * 10, 20) == (b"\xed\xa0\x80" * 6, True)


def test_the_bound_is_generous_and_can_be_set():
    assert byte_bound(40) == 4096 and byte_bound(512) == 64 * 512 and byte_bound(512, 100) == 100
    for wrong in (3, 2.5, "9"):
        with pytest.raises(ValueError, match="max_text_bytes must be a whole number of at least 4"):
            SearchOptions(max_text_bytes=wrong)


def test_a_translator_reads_no_more_than_the_bound():
    translator = kformer.Translator.load(FROZEN)
    texts = ["half past four", " " * 5000 + "half past four", "half past four" + " " * 5000]
    found = translator.translate([*texts, " " * 5000])
    assert [result.truncated for result in found] == [False, True, True, True]
    expected = translator("half past four")
    assert [result.text for result in found] == [expected, "", expected, ""]
    found = translator.translate(texts, max_text_bytes=6000)
    assert [(result.text, result.truncated) for result in found] == [(expected, False)] * 3
    found = translator.translate(texts[:1], max_text_bytes=9)
    assert found[0].truncated and found[0].text == translator("half past")
    scores = translator.score([texts[1], "half past four"], ["四", "四"])
    assert [score.truncated for score in scores] == [True, False]
    with pytest.raises(ValueError, match="Target 2 has more than 4096 bytes"):
        translator.score(["a", "a"], ["四", "四" * 2000])


# Translates a text of each kind in a process of its own, and prints the seconds of each, and how
# many more mebibytes the process then has needed at most.
PROCESS = """
import resource, sys, time, kformer
translator = kformer.Translator.load(sys.argv[1])
translator.translate(["half past four", ""])
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
for part in ("a", "half past ", " ", "\\ufdfa"):
    text = part * (10_000_000 // len(part.encode()))
    start = time.perf_counter()
    (result,) = translator.translate([text])
    print(time.perf_counter() - start)
    assert result.truncated
print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024 - before)
"""


@pytest.mark.heavy
def test_ten_megabytes_cost_little():
    """Less than 2 s each, and 100 MiB more than an empty text."""
    process = subprocess.run(
        [sys.executable, "-c", PROCESS, FROZEN], capture_output=True, text=True
    )
    assert process.returncode == 0, process.stderr
    *seconds, mebibytes = map(float, process.stdout.split())
    assert len(seconds) == 4 and max(seconds) < 2 and mebibytes < 100
