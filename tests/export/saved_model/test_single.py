"""The signature for one text at a time, which XLA compiles, equals the one for batches."""

import copy

import keras
import pytest

import kformer
from kformer.data import TokenLists
from kformer.export import SavedModelTranslator
from kformer.export.engines import ENGINES
from tests.export.saved_model.test_export import FROZEN_RUN

pytestmark = pytest.mark.skipif(
    keras.backend.backend() != "tensorflow", reason="from other backends it is made by this one"
)

TEXTS = ["noon", "half past four in the afternoon", "", "</s> twenty to six", "seven " * 20]
TWO = {"single": True, "signatures": ["serving_default"]}


@pytest.fixture(scope="module")
def translator():
    return kformer.Translator.load(FROZEN_RUN)


@pytest.fixture(scope="module")
def greedy(translator, tmp_path_factory):
    folder = tmp_path_factory.mktemp("models") / "greedy"
    return translator.export(folder, beam_size=1, min_length=2, **TWO)


def check(folder):
    """Compares the two signatures, text by text."""
    import tensorflow as tf

    signatures = tf.saved_model.load(str(folder)).signatures
    for text in TEXTS:
        expected, found = (
            signatures[name](text=tf.constant([text])) for name in ("serving_default", "single")
        )
        assert found["translation"].numpy().tolist() == expected["translation"].numpy().tolist()
        assert found["truncated"].numpy().tolist() == expected["truncated"].numpy().tolist()
        assert found["score"].numpy() == pytest.approx(expected["score"].numpy(), abs=1e-4)


def test_a_single_text_has_the_same_translation(greedy):
    check(greedy)


@pytest.mark.parametrize("mode", ["kformer", pytest.param("huggingface", marks=pytest.mark.slow)])
def test_beams_and_shortlists(translator, tmp_path, mode):
    few = translator.shortlist(["上午九点", "下午四点半"])
    check(translator.export(tmp_path / "beams", beam_size=3, shortlist=few, mode=mode, **TWO))


@pytest.mark.slow
def test_lists_of_sentences(translator, tmp_path):
    """All signatures have the translations of Python, in which no text depends on the others."""
    tokenizer, other = translator.tokenizer, copy.copy(translator)
    lists = [[] for _ in range(tokenizer.vocabulary_size)]
    for text, target in (("noon", "中午"), ("half past four", "下午四点半"), ("seven", "七点")):
        for row in tokenizer.tokenize([text]):
            for token in row:
                lists[token] += tokenizer.tokenize([target], side="target")[0]
    other.token_lists = TokenLists([tokenizer.end_id], lists)
    signatures = {"single": True, "signatures": ["serving_default", "constrained", "prefix"]}
    folder = other.export(tmp_path / "lists", beam_size=2, **signatures)
    check(folder)
    expected = other(TEXTS, beam_size=2)
    assert [other(text, beam_size=2) for text in TEXTS] == expected != translator(TEXTS)
    saved = SavedModelTranslator(folder)
    assert saved(TEXTS) == expected
    for rows in ({"terms": [["九点"]] * len(TEXTS)}, {"prefixes": ["九点"] * len(TEXTS)}):
        found = [result.text for result in saved.translate(TEXTS, **rows, require_terms=False)]
        assert found == other(TEXTS, beam_size=2, **rows) and "九点" in found[0]


@pytest.mark.slow
def test_rotary_positions(translator, tmp_path):
    model = translator.model
    ids = {"pad_id": model.pad_id, "start_id": model.start_id, "end_id": model.end_id}
    sizes = {
        "hidden_dim": 16,
        "intermediate_dim": 32,
        "num_heads": 2,
        "num_encoder_layers": 1,
        "num_decoder_layers": 2,
        "max_length": 64,
    }
    keras.utils.set_random_seed(1)
    rotary = kformer.Transformer(
        model.vocabulary_size, position_encoding="rope", rotary_base=50.0, **sizes, **ids
    )
    for weight in rotary.weights:
        weight.assign(weight + 0.5 * keras.random.normal(weight.shape))
    rotary = kformer.Translator(rotary, translator.tokenizer)
    folder = rotary.export(tmp_path / "rotary", single=True, beam_size=3, max_length=12)
    check(folder)
    found = SavedModelTranslator(folder)(TEXTS)
    assert found == rotary(TEXTS, beam_size=3, max_length=12) and len({*found}) > 3


@pytest.mark.slow
def test_warming_up(translator, greedy, tmp_path):
    warm = SavedModelTranslator(greedy, warm_up=16)
    compiled, asked = warm._module.signatures["single"], []
    warm._module.signatures._signatures["single"] = lambda text: (
        asked.append(text) or compiled(text=text)
    )
    assert warm(["noon"]) == SavedModelTranslator(greedy)(["noon"]) and len(asked) == 1
    assert warm(["noon", "noon"]) == 2 * warm(["noon"]) and len(asked) == 2, (
        "a batch is for the other signature"
    )

    plain = translator.export(tmp_path / "plain", beam_size=1, min_length=2)
    with pytest.raises(ValueError, match="no signature single.*export it again with single=True"):
        SavedModelTranslator(plain, warm_up=16)
    sizes = [
        sum(file.stat().st_size for file in (folder / "variables").iterdir())
        for folder in (plain, greedy)
    ]
    assert sizes[1] < 1.01 * sizes[0], "no weight is stored twice"


def test_the_engine_with_it_takes_it_for_one_text(translator, tmp_path, monkeypatch):
    translate = ENGINES["saved_model-single"].open(translator, tmp_path, 1, "float32")
    asked, run = [], SavedModelTranslator._run
    monkeypatch.setattr(
        SavedModelTranslator,
        "_run",
        lambda self, name, *rest: asked.append(name) or run(self, name, *rest),
    )
    for texts in (["noon"], ["noon", "half past four"]):
        assert translate(texts) == translator(texts, beam_size=1)
    assert asked == ["single", "serving_default"]


def test_models_that_cannot_have_it(translator, tmp_path):
    with pytest.raises(ValueError, match=r"not for this one \(dtype=bfloat16\): export it without"):
        translator.export(tmp_path / "times", single=True, dtype="bfloat16")
    sizes = {"hidden_dim": 8, "num_heads": 2, "intermediate_dim": 8, "num_encoder_layers": 1}
    sizes |= {"num_decoder_layers": 1, "max_length": 20, "normalization": "rms_norm"}
    size, tokens = translator.model.vocabulary_size, ("pad_id", "start_id", "end_id")
    ids = {name: getattr(translator.model, name) for name in tokens}
    variant = kformer.Translator(kformer.Transformer(size, **sizes, **ids), translator.tokenizer)
    with pytest.raises(ValueError, match=r"not for this one \(the model has normalization"):
        variant.export(tmp_path / "times", single=True)
    assert not list(tmp_path.rglob("*.pb"))
