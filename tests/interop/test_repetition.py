"""Penalties on repetition of a published model: the ids of `generate`."""

import pytest

from kformer.decoding import Searcher, SearchOptions
from kformer.interop.generation import search_options
from tests.interop.published import generate, published_model, random_sources, trim
from tests.interop.test_checkpoints import imported

transformers = pytest.importorskip("transformers")
KINDS = ("marian", "bart", "t5")
PENALTIES = [
    {"repetition_penalty": 1.2, "no_repeat_ngram_size": 3},
    {"repetition_penalty": 1.5, "no_repeat_ngram_size": 2},
    {"repetition_penalty": 1.2},
    {"repetition_penalty": 1.5},
    {"no_repeat_ngram_size": 2},
    {"no_repeat_ngram_size": 3},
]
# Half as sure of the end, so that hypotheses are long and repeat themselves.
SPREAD = {"marian": (0.5, 2, 0.5, 1), "bart": (0.1, 2, 0.5, 2), "t5": (1, 2, 0.5, None, 1.2)}


@pytest.fixture(scope="module", params=KINDS)
def pair(request, tmp_path_factory):
    """A published model and its import."""
    theirs = published_model(request.param, spread=SPREAD[request.param])
    path = tmp_path_factory.mktemp(request.param)
    theirs.save_pretrained(path)
    return theirs, imported(path)


@pytest.fixture(scope="module")
def plain(pair):
    """What the published model generates without penalties, by the size of the beam."""
    sources = random_sources(pair[0])
    return {beams: generate(pair[0], sources, settings(pair[0], beams)) for beams in (1, 4)}


def settings(theirs, num_beams):
    special = theirs.config
    return {
        "num_beams": num_beams,
        "max_length": 24,
        "forced_eos_token_id": special.eos_token_id,
        "bad_words_ids": [[special.pad_token_id]],
    }


@pytest.mark.heavy
@pytest.mark.parametrize("num_beams", [1, 4])
@pytest.mark.parametrize("penalties", PENALTIES, ids=str)
def test_ids_of_a_search(pair, plain, penalties, num_beams, backend):
    theirs, _ = pair
    if backend != "torch" and penalties is not PENALTIES[0]:
        pytest.skip("compiling a search takes long, and the others differ in no operation")
    generation = {**settings(theirs, num_beams), **penalties}
    assert compare(pair, generation, plain[num_beams]) >= 16


OTHERS = [
    {"forced_bos_token_id": 7},
    {"renormalize_logits": True, "suppress_tokens": [5, 9, 12, 40, 41]},
    {"min_length": 12},
    {"early_stopping": "never", "length_penalty": 0.6},
    {"forced_eos_token_id": None, "max_new_tokens": 15},
]


@pytest.mark.heavy
@pytest.mark.parametrize("num_beams", [1, 4])
@pytest.mark.parametrize("others", OTHERS, ids=str)
def test_penalties_beside_other_settings(pair, plain, others, num_beams, backend):
    """The order in which settings change scores is the library's."""
    if backend != "torch":
        pytest.skip("compiling a search takes long, and these differ in no operation")
    generation = {**settings(pair[0], num_beams), **PENALTIES[1], **others}
    generation = {name: value for name, value in generation.items() if value is not None}
    assert compare(pair, generation, plain[num_beams]) >= 16


def compare(pair, generation, plain):
    """Asserts that all ids are equal, and returns how many rows differ from `plain`."""
    theirs, ours = pair
    pad, end = theirs.config.pad_token_id, theirs.config.eos_token_id
    source_ids = random_sources(theirs)
    expected = generate(theirs, source_ids, generation)
    options, left_out = search_options(generation, {"max_position_embeddings": 64}, ours)
    assert not left_out
    for name in ("repetition_penalty", "no_repeat_ngram_size"):
        assert getattr(options, name) == generation.get(name, getattr(SearchOptions, name))
    found = Searcher(ours, options)(source_ids)
    mine = [trim(row[0], end, pad) for row in found.ids]
    same = sum(one == other for one, other in zip(mine, expected, strict=True))
    assert same == len(expected) == 64
    return sum(one != other for one, other in zip(expected, plain, strict=True))
