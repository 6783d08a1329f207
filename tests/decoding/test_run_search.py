"""The ranks of what a search finds in the mode "huggingface": scores by a power of the length."""

import dataclasses

import numpy as np
import pytest

from kformer.decoding import RowConstraints, Searcher, SearchOptions
from tests.decoding.small_models import (
    BEAM,
    END,
    LIMITS,
    limits_of,
    search_once,
    sentences,
    transformer,
)

pytestmark = pytest.mark.any_backend

ALPHA = 0.7
IMPORTED = {"mode": "huggingface", "length_penalty": ALPHA}


@pytest.fixture(scope="module")
def model():
    return transformer()


@pytest.fixture(scope="module")
def source_ids():
    return sentences(8)


@pytest.mark.parametrize("rows", [{"prefix": [7]}, {"phrases": [[[9, 5]]]}], ids=lambda x: [*x][0])
def test_a_beam_with_constraints_of_rows_ranks_as_one_without(model, source_ids, rows):
    rows = RowConstraints(**{name: np.array([each] * 8, "int32") for name, each in rows.items()})
    found = Searcher(model, dataclasses.replace(BEAM, **IMPORTED))(source_ids, rows=rows)
    filled = np.isfinite(found.scores)
    assert filled[:, 0].all()
    is_end = found.ids[filled] == END
    assert is_end.any(axis=1).all()
    lengths = is_end.argmax(axis=1) + 1
    assert len(set(lengths)) > 3
    np.testing.assert_allclose(found.ranks[filled], found.scores[filled] / lengths**ALPHA, 1e-5)


@pytest.mark.parametrize(
    "options", [{"beam_size": 1}, {"sampling": True, "n_best": 4}], ids=["greedy", "sampling"]
)
def test_a_hypothesis_without_end_has_one_token_more_than_its_limit(model, source_ids, options):
    options = SearchOptions(**options, **IMPORTED, **LIMITS, forced_end=False)
    found = search_once(model, options, source_ids)
    is_end = found.ids == END
    ends = is_end.any(axis=2)
    assert ends.any() and not ends.all()
    longest = limits_of(source_ids, options)[:, None] + 1
    lengths = np.where(ends, is_end.argmax(axis=2) + 1, longest)
    np.testing.assert_allclose(found.ranks, found.scores / lengths**ALPHA, 1e-5)
