"""The translator, on a real trained model: the frozen run."""

import copy
import html
import json
import pathlib
import pickle
import shutil

import numpy as np
import pytest

import kformer
from kformer.decoding import SearchOptions
from kformer.text.text_bound import source_rows

FROZEN = pathlib.Path(__file__).resolve().parents[1] / "frozen_run"


@pytest.fixture(scope="module")
def translator():
    return kformer.Translator.load(FROZEN)


@pytest.fixture(scope="module")
def pairs():
    return kformer.examples.generate_pairs(24, seed=5, split="test", categories=("time",))


def test_frozen_run_returns_its_exact_text(translator):
    """A run of the first format, on this backend: its exact text, in every version."""
    expected = json.loads((FROZEN / "expected.json").read_text(encoding="utf-8"))
    assert translator(expected["texts"], beam_size=1) == expected["greedy"]
    assert translator(expected["texts"], beam_size=4) == expected["beam_4"]
    found = translator.translate(expected["texts"], beam_size=4)
    assert np.allclose([result.score for result in found], expected["scores"], atol=1e-3)


@pytest.mark.any_backend
def test_a_tokenizer_of_another_model_is_refused(translator):
    config = {**translator.model.get_config(), "pad_id": 3, "end_id": 0}
    other = kformer.Transformer.from_config(config)
    with pytest.raises(ValueError, match="The tokenizer has the pad_id 0, but the model 3"):
        kformer.Translator(other, translator.tokenizer)


@pytest.mark.any_backend
def test_a_first_token_stays_where_the_language_has_none(translator, monkeypatch):
    tokenizer = copy.copy(translator.tokenizer)
    monkeypatch.setattr(type(tokenizer), "target_language", "de")
    options = SearchOptions(prefix_ids=(7,))
    assert tokenizer.target_prefix == ()
    assert kformer.Translator(translator.model, tokenizer, options).options.prefix_ids == (7,)


def test_one_text_or_many(translator, pairs):
    sources = [pair.source for pair in pairs]
    together = translator(sources)
    assert [translator(source) for source in sources[:4]] == together[:4]
    assert translator(sources, batch_size=5) == together, "batches influence no translation"
    assert translator(sources, batch_tokens=40) == together
    assert translator(list(reversed(sources))) == list(reversed(together))
    assert translator([]) == []


def test_nothing_in_nothing_out(translator):
    found = translator.translate(["", "half past four", "   ", "\t\n"])
    assert [result.text for result in found][0::2] == ["", ""] and found[3].text == ""
    assert found[1].text != "" and found[0].score == 0.0 and not found[0].truncated
    assert translator("") == ""


def test_a_source_beyond_the_limit_is_truncated_and_marked(translator):
    found = translator.translate(["seven " * 100, "seven o'clock"])
    assert [result.truncated for result in found] == [True, False]
    (row,), _ = source_rows(translator.tokenizer, ["seven " * 100], translator.model.max_length)
    assert len(row) == translator.model.max_length and row[-1] == translator.tokenizer.end_id


def test_a_score_keeps_the_truncation_of_its_source(translator):
    """The score of a source that is too long is that of its beginning, and is marked."""
    scores = translator.score(["seven " * 100, "seven o'clock"], ["七点", "七点"])
    assert [score.truncated for score in scores] == [True, False]
    assert pickle.loads(pickle.dumps(scores))[0].truncated and isinstance(scores[0], float)


def test_n_best_is_sorted_and_scored(translator, pairs):
    sources = [pair.source for pair in pairs[:8]]
    lists = translator(sources, beam_size=4, n_best=3)
    found = translator.translate(sources, beam_size=4, n_best=3)
    assert lists == [[hypothesis.text for hypothesis in result.hypotheses] for result in found]
    for result in found:
        ranks = [hypothesis.rank for hypothesis in result.hypotheses]
        assert ranks == sorted(ranks, reverse=True) and len(ranks) == 3
        for hypothesis in result.hypotheses:
            assert hypothesis.ids[-1] == translator.tokenizer.end_id
            penalty = ((5 + len(hypothesis.ids)) / 6) ** translator.options.length_penalty
            assert hypothesis.rank == pytest.approx(hypothesis.score / penalty, rel=1e-5)


def test_search_scores_are_what_score_gives(translator, pairs):
    sources = [pair.source for pair in pairs]
    found = translator.translate(sources)
    canonical = [
        i
        for i, result in enumerate(found)
        if translator.tokenizer.tokenize(result.text, side="target", special_tokens=True)
        == result.hypotheses[0].ids
    ]
    assert len(canonical) > len(sources) // 2
    scores = translator.score(
        [sources[i] for i in canonical], [found[i].text for i in canonical], batch_size=7
    )
    assert np.allclose(scores, [found[i].score for i in canonical], atol=1e-4)
    assert translator.score([], []) == []


def test_attention_adds_up_to_one(translator):
    source = "half past four in the afternoon"
    attention = translator.attention(source)
    layers, heads = 2, 2
    assert attention.weights.shape == (
        layers,
        heads,
        len(attention.target_tokens),
        len(attention.source_tokens),
    )
    assert np.allclose(attention.weights.sum(-1), 1, atol=1e-5)
    forced = translator.attention(source, translator(source))
    assert np.allclose(forced.weights, attention.weights, atol=1e-6)


def test_save_and_load(translator, pairs, tmp_path):
    sources = [pair.source for pair in pairs]
    changed = kformer.Translator(
        translator.model,
        translator.tokenizer,
        SearchOptions(beam_size=2, max_length=39),
        {"note": "x"},
    )
    changed.save(tmp_path / "run")
    again = kformer.Translator.load(tmp_path / "run")
    assert again.options == changed.options and again.config == {"note": "x"}
    assert again(sources) == changed(sources)


def test_sampling_depends_on_seed_and_index_alone(translator):
    source = "ten minutes to nine in the evening"
    sampled = translator([source] * 3, sampling=True, temperature=3.0, n_best=4, seed=1)
    assert sampled == translator(
        [source] * 3, sampling=True, temperature=3.0, n_best=4, seed=1, batch_size=1
    )
    assert sampled != translator([source] * 3, sampling=True, temperature=3.0, n_best=4, seed=2)
    assert len({text for texts in sampled for text in texts}) > 1


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda t: t.translate("one text"), "list"),
        (lambda t: t(["text", 5]), "Text 2"),
        (lambda t: t(["text"], beam=3), "beam"),
        (lambda t: t(["text"], beam_size=0), "beam_size"),
        (lambda t: t(["text"], beam_size=2, n_best=3), "n_best"),
        (lambda t: t(["text"], n_best="3"), "n_best must be a whole number"),
        (lambda t: type(t).load(FROZEN, dtype=""), "The dtype of a translation"),
        (
            lambda t: t(["text"], batch_tokens=0),
            "batch_tokens must be a whole number of at least 1",
        ),
        (lambda t: t.score(["a", "b"], ["c"]), "2 lines in the sources, but 1 in the targets"),
        (lambda t: t.score(["seven"], ["七" * 100]), "Target 1"),
    ],
)
def test_bad_calls_name_the_mistake(translator, call, words):
    with pytest.raises((TypeError, ValueError), match=words):
        call(translator)


def test_a_foreign_tokenizer_is_refused(translator):
    small = kformer.Transformer(
        300,
        num_encoder_layers=1,
        num_decoder_layers=1,
        hidden_dim=8,
        intermediate_dim=8,
        num_heads=1,
    )
    with pytest.raises(ValueError, match="300"):
        kformer.Translator(small, translator.tokenizer)


@pytest.mark.any_backend
def test_bad_runs_name_the_mistake(tmp_path):
    with pytest.raises(FileNotFoundError, match="nowhere"):
        kformer.Translator.load(tmp_path / "nowhere")
    shutil.copytree(FROZEN, tmp_path / "run")
    config = json.loads((FROZEN / "config.json").read_text(encoding="utf-8"))
    (tmp_path / "run" / "config.json").write_text(json.dumps({**config, "format_version": 99}))
    with pytest.raises(ValueError, match="newer"):
        kformer.Translator.load(tmp_path / "run")
    (tmp_path / "run" / "config.json").write_text(
        json.dumps({**config, "search": {"beam_width": 4}})
    )
    with pytest.raises(ValueError, match="beam_width"):
        kformer.Translator.load(tmp_path / "run")


@pytest.mark.parametrize("dtype", ["bfloat16", "int8"])
def test_rounded_matrices(translator, dtype, backend):
    """About the same scores, and the same text alone as in a batch."""
    arguments = (translator.model, translator.tokenizer, translator.options)
    if backend == "jax":
        message = f"^The model cannot translate in {dtype}: the backend jax compiles"
        with pytest.raises(ValueError, match=message):
            kformer.Translator(*arguments, dtype=dtype)
        return
    rounded = kformer.Translator(*arguments, dtype=dtype)
    texts = [f"{hour}:30 p.m." for hour in range(1, 11)]
    found, expected = rounded.translate(texts), translator.translate(texts)
    assert sum(a.text == b.text for a, b in zip(found, expected, strict=True)) >= 9
    scores = [[result.score for result in results] for results in (found, expected)]
    assert scores[0] != scores[1]
    assert np.allclose(*scores, atol=0.3)
    assert [rounded(text) for text in texts[:3]] == [result.text for result in found[:3]]


@pytest.mark.any_backend
def test_only_the_searches_of_the_last_options_are_kept(translator):
    own = kformer.Translator(translator.model, translator.tokenizer)
    for way in range(10):
        own(["7:30 p.m."], beam_size=1, length_penalty=way / 10, max_length=2)
    assert len(own._search.searchers) == 8


def test_unknown_dtypes(translator):
    with pytest.raises(ValueError, match="must be one of float32, bfloat16, int8, but 'int4'"):
        kformer.Translator(translator.model, translator.tokenizer, dtype="int4")


@pytest.mark.parametrize("dtype", ["bfloat16", "int8"])
def test_rounded_matrices_of_two_shortlists(translator, dtype, backend):
    """Each search projects to the tokens of its own shortlist."""
    if backend == "jax":
        pytest.skip("JAX has no fast decoder")
    rounded = kformer.Translator(translator.model, translator.tokenizer, dtype=dtype)
    for target in ("上午九点", "下午四点半"):
        few = translator.shortlist([target])
        expected = translator(["9:00 a.m.", "4:30 p.m."], shortlist=few)
        assert rounded(["9:00 a.m.", "4:30 p.m."], shortlist=few) == expected


@pytest.mark.any_backend
def test_what_a_notebook_shows(translator):
    text = repr(translator)
    assert text.startswith("<Translator: parameters ") and "search beam_size=4" in text
    count = f"{translator.model.count_params():,}"
    for shown in (text, translator._repr_html_()):
        assert count in shown and f"{translator.tokenizer.target_vocabulary_size:,}" in shown
    assert "languages" not in text  # It has one pair, whose names nobody said.
    source = "<script>alert(1)</script> & half past four"
    results = translator.translate([source, b"seven o'clock"], n_best=2)
    table = results._repr_html_()
    assert "&lt;script&gt;alert(1)&lt;/script&gt; &amp; half past four" in table
    assert "<script" not in table and "color" not in table
    for result in results:
        for hypothesis in result.hypotheses:
            assert html.escape(hypothesis.text) in table and f"{hypothesis.score:.2f}" in table
    assert results[1].source == "seven o'clock"
    assert results[0]._repr_html_().count("<tr>") == 3
    assert "and 20 more</p>" in type(results)(results * 60)._repr_html_()
