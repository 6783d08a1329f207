"""Searches over a part of the vocabulary."""

import dataclasses
import pathlib

import keras
import numpy as np
import pytest

import kformer
from kformer.decoding import RowConstraints, Searcher, SearchOptions
from kformer.decoding.fast.ops_stored import stored_ops
from kformer.decoding.repetition import NO_TOKEN
from kformer.decoding.row_constraints import Joins, is_empty
from kformer.export.checks import forbidden_ids
from tests.decoding.small_models import (
    BEAM,
    END,
    LIMITS,
    PAD,
    START,
    VOCABULARY,
    assert_same,
    rows_of,
    search_once,
    sentences,
    transformer,
)

FROZEN = pathlib.Path(__file__).parents[1] / "frozen_run"
LISTED = (5, 6, 8, 9, 10, 12, 13, 15)
OPTIONS = {
    "greedy": SearchOptions(beam_size=1, **LIMITS),
    "beam": dataclasses.replace(BEAM, min_length=2, prefix_ids=(4, 6), forbidden_ids=(8,)),
    "huggingface": dataclasses.replace(
        BEAM, mode="huggingface", length_penalty=1.0, forced_end=False
    ),
}
MODELS = {
    "shared table": {"share_output": True},
    "bias, start is padding": {"output_bias": True, "start_id": 0},
    "end is padding": {"pad_id": 3},
}


def listed_and_forbidden(options):
    """The search over the shortlist; and the full search in which all other tokens are forbidden,
    whose probabilities it has.
    """
    others = set(range(VOCABULARY)) - {*LISTED, END} | set(options.forbidden_ids)
    others = dataclasses.replace(options, forbidden_ids=sorted(others), renormalize=True)
    return dataclasses.replace(options, shortlist=LISTED, renormalize=True), others


@pytest.mark.parametrize(
    ("model", "options"),
    [({}, options) for options in OPTIONS] + [(model, "beam") for model in MODELS.values()],
    ids=[*OPTIONS, *MODELS],
)
def test_equals_a_search_in_which_all_others_are_forbidden(model, options):
    model, source_ids = transformer(num_decoder_layers=1, **model), sentences(8)
    source_ids = np.where(source_ids == PAD, model.pad_id, source_ids)
    listed, forbidden = listed_and_forbidden(OPTIONS[options])
    found, expected = (
        search_once(model, listed, source_ids),
        search_once(model, forbidden, source_ids),
    )
    if model.pad_id == PAD:
        assert_same(found, expected)
    else:
        np.testing.assert_array_equal(found.ids, expected.ids)
        np.testing.assert_allclose(found.scores, expected.scores, atol=1e-4)
    prefix = len(listed.prefix_ids)
    generated = set(found.ids[:, :, prefix:].ravel().tolist())
    # Where outputs share the table, they repeat a token or two.
    assert generated <= {*LISTED, END, model.pad_id} and len(generated) >= (
        3 if model.network.output_projection is None else 6
    )


@pytest.mark.skipif(
    keras.backend.backend() != "tensorflow", reason="a SavedModel is made by TensorFlow"
)
@pytest.mark.parametrize(("dtype", "atol"), [("float32", 1e-4), ("bfloat16", 0.1)])
@pytest.mark.parametrize("model", MODELS.values(), ids=MODELS)
def test_stored_weights_are_those_of_the_list(model, dtype, atol):
    """What an exported graph holds in place of the projection to all tokens."""
    model, source_ids = (
        transformer(num_decoder_layers=1, **model),
        np.array([[5, 6, 7, 3]], "int32"),
    )
    stored, options = (
        stored_ops(dtype),
        SearchOptions(beam_size=1, max_length=3, min_length=3, shortlist=LISTED),
    )
    found = search_once(model, options, source_ids, ops=stored)
    assert len(LISTED) + 1 in {size for variable in stored.variables for size in variable.shape}
    expected = search_once(model, options, source_ids)
    np.testing.assert_allclose(found.scores, expected.scores, atol=atol)
    np.testing.assert_array_equal(found.ids, expected.ids)


def test_probabilities_are_those_among_the_listed():
    """Without `renormalize` too: what is not listed is not computed."""
    model, source_ids = transformer(num_decoder_layers=1), sentences(6)
    listed, _ = listed_and_forbidden(SearchOptions(beam_size=1, **LIMITS))
    expected = search_once(model, listed, source_ids)
    assert_same(
        search_once(model, dataclasses.replace(listed, renormalize=False), source_ids), expected
    )
    # The order in which the tokens are given, repetitions, and start, padding and end token among
    # them are nothing to it.
    mixed = (*LISTED[::-1], 5, START, PAD, END)
    assert_same(
        search_once(
            model, dataclasses.replace(listed, renormalize=False, shortlist=mixed), source_ids
        ),
        expected,
    )


def test_samples_are_of_the_listed_tokens():
    model, source_ids = transformer(num_decoder_layers=1), sentences(8)
    options = SearchOptions(
        sampling=True, n_best=4, temperature=3.0, shortlist=LISTED, seed=2, **LIMITS
    )
    found = search_once(model, options, source_ids)
    sampled = set(found.ids.ravel().tolist())
    assert sampled <= {*LISTED, END, PAD} and len(sampled) >= 9
    assert np.isfinite(found.scores).all()


def test_formats_without_shortlists_forbid_the_others():
    """Other systems get all tokens that are not listed, but not those that they force."""
    model = transformer(num_decoder_layers=1)
    options = SearchOptions(shortlist=LISTED, forbidden_ids=(8,), prefix_ids=(4,))
    assert forbidden_ids(model, options) == sorted(set(range(VOCABULARY)) - {*LISTED, END, 4} | {8})


def test_one_token_only():
    """Fewer tokens than beams."""
    model = transformer(num_decoder_layers=1)
    found = Searcher(model, dataclasses.replace(BEAM, shortlist=(7,)))(sentences(3))
    assert (
        set(found.ids.ravel().tolist()) <= {7, END, PAD} and np.isfinite(found.scores[:, 0]).all()
    )


def test_tokens_outside_the_vocabulary_are_refused():
    model = transformer(num_decoder_layers=1)
    with pytest.raises(
        ValueError,
        match=f"^shortlist holds {VOCABULARY}, but the model's target vocabulary ends at ",
    ):
        Searcher(model, SearchOptions(shortlist=(5, VOCABULARY)))


def test_a_translators_shortlist():
    """The tokens of texts, or the most frequent of them; with those of the very translations
    nothing changes but the scores.
    """
    translator = kformer.Translator.load(FROZEN)
    sources = [
        pair.source
        for pair in kformer.examples.generate_pairs(6, seed=5, split="test", categories=("time",))
    ]
    texts = translator(sources, beam_size=1)
    ids = translator.shortlist(texts)
    assert ids == tuple(sorted(set(ids))) == translator.shortlist(iter(texts[::-1]))
    tokens = translator.tokenizer.tokenize(texts, side="target")
    assert {token for row in tokens for token in row} <= set(ids)
    assert translator(sources, beam_size=1, shortlist=ids) == texts
    counts = np.bincount([token for row in tokens for token in row])
    few = set(translator.shortlist(texts, size=3))
    assert counts.argmax() in few and len(few & set(np.flatnonzero(counts).tolist())) < len(
        set(np.flatnonzero(counts))
    )


@pytest.mark.any_backend
def test_errors_name_the_wrong_list():
    translator = kformer.Translator.load(FROZEN)
    for call, words in (
        (lambda: translator.shortlist([""]), "no token"),
        (
            lambda: translator.shortlist(["noon"], size=0),
            "size must be a whole number of at least 1, but 0 was given",
        ),
        (lambda: translator.shortlist("noon"), "list of texts"),
        (lambda: SearchOptions(shortlist=[5, -1]), "shortlist must be a list of token ids"),
        (
            lambda: SearchOptions(shortlist=[5], forbidden_ids=[5]),
            "All tokens of the shortlist are forbidden",
        ),
    ):
        with pytest.raises((TypeError, ValueError), match=words):
            call()


# ---- the lists of sentences ----

SIZE = 512  # A smaller vocabulary has all columns.


@pytest.fixture(scope="module")
def wide():
    """A model and sentences, and a list for each of them."""
    lists = np.random.default_rng(1).integers(END + 1, SIZE, (3, 40)).astype("int32")
    lists[:, :2], lists[1, 30:] = (4, 6), NO_TOKEN  # A prefix takes its share of a shortlist.
    return transformer(num_decoder_layers=1, target_vocabulary_size=SIZE), sentences(3), lists


@pytest.mark.parametrize("options", OPTIONS)
def test_each_sentence_has_its_list(wide, options):
    """The rows of a batch equal searches over one list each; repetition is penalised, too."""
    model, source_ids, lists = wide
    options = dataclasses.replace(OPTIONS[options], repetition_penalty=1.1, no_repeat_ngram_size=2)
    found = search_once(model, options, source_ids, rows=RowConstraints(listed=lists))
    for row in range(len(lists)):
        listed = dataclasses.replace(options, shortlist=[i for i in lists[row] if i >= 0])
        # In a list a forbidden token takes its share of the probability, if it is listed at all.
        assert not set(options.forbidden_ids) & set(listed.shortlist)
        expected = search_once(model, listed, source_ids[row : row + 1])
        assert_same(rows_of(found, slice(row, row + 1)), expected)


def test_each_model_of_an_ensemble_has_the_list_of_a_sentence(wide):
    """So that its share of the mean does not depend on the other sentences of a batch."""
    model, source_ids, lists = wide
    other = transformer(num_decoder_layers=2, target_vocabulary_size=SIZE)
    models = kformer.models.Ensemble([model, other])
    found = search_once(models, BEAM, source_ids, rows=RowConstraints(listed=lists))
    for row in range(len(lists)):
        listed = dataclasses.replace(BEAM, shortlist=[i for i in lists[row] if i >= 0])
        expected = search_once(models, listed, source_ids[row : row + 1])
        assert_same(rows_of(found, slice(row, row + 1)), expected)


@pytest.mark.parametrize("options", OPTIONS)
def test_a_list_of_all_tokens_changes_nothing(wide, options):
    model, source_ids, _ = wide
    rows = RowConstraints(listed=np.tile(np.arange(SIZE, dtype="int32"), (3, 1)))
    found, expected = (
        search_once(model, OPTIONS[options], source_ids, rows=rows) for rows in (rows, None)
    )
    np.testing.assert_array_equal(found.ids, expected.ids)
    np.testing.assert_allclose(found.scores, expected.scores, rtol=1e-6)


def test_prefix_and_phrases_belong_to_the_list(wide):
    """They equal a search among all tokens in which those outside of the list are forbidden."""
    model, source_ids, lists = wide
    rows = RowConstraints(
        prefix=np.array([[400, NO_TOKEN], [401, 402], [NO_TOKEN, NO_TOKEN]], "int32"),
        phrases=np.array([[[[410, 411]]], [[[NO_TOKEN] * 2]], [[[412, NO_TOKEN]]]], "int32"),
        forbidden=np.array([[[499]], [[lists[1, 0]]], [[lists[2, 1]]]], "int32"),
    )
    options, joins = dataclasses.replace(BEAM, renormalize=True), Joins(*np.zeros((2, SIZE), bool))
    found = search_once(model, options, source_ids, rows=rows._replace(listed=lists), joins=joins)
    for row in range(len(lists)):
        one = RowConstraints(*(x if is_empty(x) else x[row : row + 1] for x in rows))
        tokens = np.concatenate([lists[row], one.prefix.ravel(), one.phrases.ravel(), [END]])
        listed = set(tokens.tolist())
        others = dataclasses.replace(options, forbidden_ids=sorted(set(range(SIZE)) - listed))
        expected = search_once(model, others, source_ids[row : row + 1], rows=one, joins=joins)
        assert_same(rows_of(found, slice(row, row + 1)), expected)


def test_the_prefix_of_the_options_belongs_to_every_list(wide):
    model, source_ids, lists = wide
    options = dataclasses.replace(BEAM, prefix_ids=(500, 501))
    listed = np.concatenate([lists, np.tile(options.prefix_ids, (3, 1))], axis=1).astype("int32")
    found, expected = (
        search_once(model, options, source_ids, rows=RowConstraints(listed=each))
        for each in (lists, listed)
    )
    assert_same(found, expected)


def test_samples_do_not_read_lists(wide):
    model, source_ids, lists = wide
    options = SearchOptions(sampling=True, seed=2, **LIMITS)
    found, expected = (
        search_once(model, options, source_ids, rows=rows)
        for rows in (RowConstraints(listed=lists), None)
    )
    assert_same(found, expected)
