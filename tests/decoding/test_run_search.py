"""The ranks of what a search finds in the mode "huggingface": scores by a power of the length; and
prefixes of single sentences.
"""

import dataclasses

import numpy as np
import pytest
from keras import ops

from kformer.decoding import RowConstraints, Searcher, SearchOptions
from kformer.decoding.repetition import NO_TOKEN
from kformer.utils.backend import uses_static_shapes
from tests.decoding.small_models import (
    BEAM,
    END,
    LIMITS,
    assert_same,
    limits_of,
    rows_of,
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


@pytest.mark.parametrize("drop_finished", [False, True])
@pytest.mark.parametrize(
    "options",
    [BEAM, dataclasses.replace(BEAM, **IMPORTED), SearchOptions(beam_size=1, **LIMITS)],
    ids=["beam", "huggingface", "greedy"],
)
def test_each_sentence_has_its_own_prefix(model, source_ids, options, drop_finished):
    if drop_finished and uses_static_shapes():
        pytest.skip("shapes cannot change in a loop")
    rows = np.array([7, 9, NO_TOKEN, 9, 7, 7, NO_TOKEN, 9], "int32")
    settings = {"drop_finished": drop_finished}
    prefix = ops.convert_to_tensor(rows[:, None])
    found = search_once(model, options, source_ids, prefix=prefix, **settings)
    for token, ids in ((7, (7,)), (9, (9,)), (NO_TOKEN, ())):
        fixed = dataclasses.replace(options, prefix_ids=ids)
        alone = search_once(model, fixed, source_ids, **settings)
        assert_same(rows_of(found, rows == token), rows_of(alone, rows == token))
