"""The options of a search, and which values are refused."""

import dataclasses

import numpy as np
import pytest

from kformer.decoding import SearchOptions

pytestmark = pytest.mark.any_backend


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"beam_size": 0}, "beam_size must be a whole number of at least 1, but 0 was given."),
        ({"n_best": 0}, "n_best must be a whole number of at least 1, but 0 was given."),
        ({"max_length": 0}, "max_length must be at least 1, but 0 was given."),
        ({"min_length": -1}, "min_length must be a whole number of at least 0, but -1 was given."),
        (
            {"length_offset": -2},
            "length_offset must be a whole number of at least 0, but -2 was given.",
        ),
        ({"length_ratio": -0.5}, "length_ratio must be at least 0, but -0.5 was given."),
        ({"top_k": -1}, "top_k must be a whole number of at least 0, but -1 was given."),
        (
            {"min_length": 9, "max_length": 8},
            "min_length is 9, above max_length, which is 8: raise max_length to at least 9.",
        ),
        (
            {"prefix_ids": (4, 5, 6), "max_length": 2},
            "prefix_ids has 3 tokens, but max_length is 2; raise it to at least 3.",
        ),
        (
            {"temperature": 0.0},
            "temperature must be above 0 (for no randomness use a beam), but 0.0 was given.",
        ),
        ({"top_p": 0.0}, "top_p must be above 0 and at most 1, but 0.0 was given."),
        ({"top_p": 1.5}, "top_p must be above 0 and at most 1, but 1.5 was given."),
        (
            {"beam_size": 2, "n_best": 3},
            "A beam of 2 cannot give the 3 best: raise beam_size to 3, or lower n_best.",
        ),
        ({"seed": -1}, "seed must be a whole number from 0 to 2147483647, but -1 was given."),
        (
            {"seed": 2**31},
            "seed must be a whole number from 0 to 2147483647, but 2147483648 was given.",
        ),
        ({"beam_size": 2.5}, "beam_size must be a whole number of at least 1, but 2.5 was given."),
        ({"n_best": "3"}, "n_best must be a whole number of at least 1, but '3' was given."),
        (
            {"no_repeat_ngram_size": 10**9},
            "no_repeat_ngram_size must be a whole number from 0 to 1000, but 1000000000 was given.",
        ),
        (
            {"repetition_penalty": 0.0},
            "repetition_penalty must be above 0 (1 for none), but 0.0 was given.",
        ),
        (
            {"repetition_penalty": float("inf")},
            "repetition_penalty must be a finite number, but inf was given.",
        ),
        ({"top_k": True}, "top_k must be a whole number of at least 0, but True was given."),
        (
            {"length_penalty": float("nan")},
            "length_penalty must be a finite number, but nan was given.",
        ),
        (
            {"length_ratio": float("inf")},
            "length_ratio must be a finite number, but inf was given.",
        ),
        (
            {"temperature": None},
            "temperature must be above 0 (for no randomness use a beam), but None was given.",
        ),
        ({"mode": "fairseq"}, "mode must be one of kformer, huggingface, but 'fairseq' was given."),
        (
            {"early_stopping": "soon"},
            "early_stopping must be one of True, False, never, shrink, but 'soon' was given.",
        ),
        (
            {"early_stopping": 1},
            "early_stopping must be one of True, False, never, shrink, but 1 was given.",
        ),
        ({"forced_end": None}, "forced_end must be true or false, but None was given."),
        ({"sampling": "no"}, "sampling must be true or false, but 'no' was given."),
        ({"forbidden_ids": 5}, "forbidden_ids must be a list of token ids, but 5 was given."),
        ({"prefix_ids": [-1]}, "prefix_ids must be a list of token ids, but [-1] was given."),
    ],
)
def test_errors_name_the_value_and_the_remedy(arguments, message):
    with pytest.raises(ValueError) as error:
        SearchOptions(**arguments)
    assert str(error.value) == message


def test_limits_that_are_allowed():
    SearchOptions(
        beam_size=np.int64(3),
        n_best=3,
        length_penalty=-0.5,
        temperature=np.float32(0.5),
        seed=2**31 - 1,
    )
    SearchOptions(beam_size=1, n_best=5, sampling=True, min_length=4, max_length=4)
    options = SearchOptions()
    with pytest.raises(dataclasses.FrozenInstanceError):
        options.beam_size = 2
    assert hash(options) == hash(SearchOptions())
    # As JSON gives them back.
    assert SearchOptions(prefix_ids=[7, 8]) == SearchOptions(prefix_ids=(7, 8)) and hash(
        SearchOptions(prefix_ids=[7])
    )


def test_limits():
    """`length_ratio * tokens`, rounded down, plus `length_offset`; between `min_length` (at least
    1) and `max_length`.
    """
    lengths = np.array([0, 1, 3, 7, 20])
    assert SearchOptions(length_ratio=1.5, length_offset=2, max_length=20).limits(
        lengths
    ).tolist() == [2, 3, 6, 12, 20]
    assert SearchOptions(length_ratio=0.0, length_offset=0).limits(lengths).tolist() == [1] * 5
    assert SearchOptions(length_ratio=1.0, length_offset=0, min_length=5).limits(
        lengths
    ).tolist() == [5, 5, 5, 7, 20]
    assert SearchOptions().limits(lengths).tolist() == [32, 34, 38, 46, 72]
    assert SearchOptions().limits(np.array([112, 1000])).tolist() == [255, 255]
    # A huge ratio means no relative limit.
    assert SearchOptions(length_ratio=1e30, max_length=9).limits(lengths).tolist() == [9] * 5
    assert np.issubdtype(SearchOptions().limits(lengths).dtype, np.integer)


def test_rows_per_sentence():
    assert SearchOptions(beam_size=5, n_best=2).rows_per_sentence == 5
    assert SearchOptions(beam_size=5, n_best=2, sampling=True).rows_per_sentence == 2
