"""The CTranslate2 format: the engine's numbers, ids and beams are kformer's, from every backend."""

import copy
import dataclasses
import json
import pathlib
import sys

import keras
import numpy as np
import pytest

import kformer
from kformer.data import TokenLists
from kformer.decoding import Searcher, SearchOptions
from kformer.export.ctranslate2 import export_ctranslate2
from kformer.export.ctranslate2_reader import CTranslate2Translator
from kformer.interop import load_checkpoint
from kformer.translating.translator import SEARCH_BY_LANGUAGE
from kformer_options.model_folders import check_trained

ctranslate2 = pytest.importorskip("ctranslate2")

FROZEN_RUN = pathlib.Path(__file__).resolve().parents[1] / "frozen_run"
# What both packages search alike.
ALIKE = {"mode": "huggingface", "early_stopping": True, "forced_end": False}
pytestmark = pytest.mark.usefixtures("same_threads")
CONFIGURATIONS = {
    "as in the paper": {},
    "other sizes of the decoder": {
        "decoder_intermediate_dim": 40,
        "decoder_normalize_first": True,
        "decoder_num_heads": 4,
        "position_encoding": "rope",
    },
    "pre-norm, gelu, learned": {
        "normalize_first": True,
        "activation": "gelu",
        "position_encoding": "learned",
    },
    "own tables": {
        "share_embeddings": False,
        "share_output": False,
        "activation": "gelu_sigmoid",
        "layer_norm_epsilon": 1e-2,
    },
    "as Marian's": {
        "position_encoding": "sinusoidal_halves",
        "output_bias": True,
        "activation": "silu",
        "start_id": 0,
        "num_decoder_layers": 1,
    },
    "as BART's": {
        "position_encoding": "learned",
        "normalize_embeddings": True,
        "scale_embeddings": False,
        "layer_norm_epsilon": 1e-6,
    },
    "as M2M100's": {
        "position_encoding": "sinusoidal_fairseq",
        "position_offset": 2,
        "normalize_first": True,
    },
    "rotary": {"position_encoding": "rope", "rotary_base": 50.0},
    "relative": {"position_encoding": "shaw", "relative_max_distance": 2, "relative_shared": True},
    "rotary, neighbours": {
        "position_encoding": "rope",
        "rotary_base": 50.0,
        "rotary_interleaved": True,
        "normalize_first": True,
    },
    "no positions, half precision": {"position_encoding": None, "dtype": "mixed_bfloat16"},
}


@pytest.fixture(scope="module")
def tokenizer():
    return kformer.Tokenizer.train(
        texts=["the cat sat on the mat", "a dog ran to the hat"],
        vocabulary_size=19,
        byte_fallback=False,
        model_type="unigram",
    )


@pytest.fixture
def make_translator(tiny_transformer, tokenizer):
    """A function that makes a translator of a tiny model, whose tables have two rows more than the
    tokenizer has pieces.
    """

    def make(**overrides):
        return kformer.Translator(
            tiny_transformer(vocabulary_size=tokenizer.vocabulary_size + 2, **overrides), tokenizer
        )

    return make


@pytest.fixture(scope="module")
def frozen():
    return kformer.Translator.load(FROZEN_RUN)


@pytest.fixture(scope="module")
def texts():
    sources = [
        pair.source
        for pair in kformer.examples.generate_pairs(24, seed=6, split="test", categories=("time",))
    ]
    return [*sources, "seven " * 100, "人人人 ☃", "  twenty to  six\t", "</s> <pad> noon"]


def read(path, side="target"):
    """The engine's vocabulary of one side: list of str."""
    names = [path / "shared_vocabulary.json", path / f"{side}_vocabulary.json"]
    return json.loads(next(name for name in names if name.exists()).read_text(encoding="utf-8"))


def to_ids(path, hypothesis):
    vocabulary = read(path)
    return [vocabulary.index(token) for token in hypothesis]


def log_probabilities(model, source_ids, labels):
    """What the model gives to each label: float array `[T]`."""
    inputs = {
        "source_ids": np.array([source_ids]),
        "target_ids": np.array([[model.start_id, *labels[:-1]]]),
    }
    logits = keras.ops.cast(model(inputs, training=False), "float32")
    found = keras.ops.convert_to_numpy(keras.ops.log_softmax(logits, axis=-1))[0]
    return found[np.arange(len(labels)), labels]


def compare_forward(translator, path, rng, atol=1e-4):
    """Random sources and targets: every token's log-probability, by both."""
    model = translator.model
    source, target = read(path, "source"), read(path)
    engine = ctranslate2.Translator(str(path))
    for length in (1, 5):
        source_ids, ids = (
            rng.integers(4, len(source), length).tolist(),
            rng.integers(4, len(target), length + 2).tolist(),
        )
        expected = log_probabilities(model, [*source_ids, model.end_id], [*ids, model.end_id])
        found = engine.score_batch([[source[i] for i in source_ids]], [[target[i] for i in ids]])[0]
        assert found.tokens == [target[i] for i in [*ids, model.end_id]]
        assert np.allclose(found.log_probs, expected, atol=atol)


def compare_search(translator, path, rng):
    """Random sources, greedy and by a beam of 3: ids and scores."""
    model = translator.model
    rows = rng.integers(4, translator.tokenizer.vocabulary_size, (4, 5)).tolist()
    engine, vocabulary = ctranslate2.Translator(str(path)), read(path, "source")
    for beam_size in (1, 3):
        options = SearchOptions(
            beam_size=beam_size, n_best=beam_size, length_penalty=1.0, max_length=7, **ALIKE
        )
        expected = Searcher(model, options)(np.array([[*row, model.end_id] for row in rows]))
        found = engine.translate_batch(
            [[vocabulary[i] for i in row] for row in rows],
            beam_size=beam_size,
            num_hypotheses=beam_size,
            length_penalty=1.0,
            max_decoding_length=8,
            min_decoding_length=0,
            return_end_token=True,
            return_scores=True,
        )
        for result, ids, ranks in zip(found, expected.ids, expected.ranks, strict=True):
            for hypothesis, row in zip(result.hypotheses, ids.tolist(), strict=True):
                mine = to_ids(path, hypothesis)
                assert row == mine + [model.pad_id] * (len(row) - len(mine))
            assert np.allclose(result.scores, ranks, atol=1e-4)


def test_the_frozen_run_translates_the_same(frozen, texts, tmp_path):
    """From every backend: the default search's greedy text, and the beams where both packages
    search alike.
    """
    before = [keras.ops.convert_to_numpy(weight).copy() for weight in frozen.model.weights]
    path = export_ctranslate2(frozen, tmp_path / "models" / "times")
    assert path == tmp_path / "models" / "times"
    engine, arguments = (
        ctranslate2.Translator(str(path)),
        json.loads((path / "kformer.json").read_text("utf-8"))["translate_batch"],
    )
    vocabulary = frozen.tokenizer.vocabulary("source")
    tokens = [vocabulary.tokens(row) for row in frozen.tokenizer.tokenize(texts)]
    found = engine.translate_batch(
        tokens, beam_size=1, length_penalty=0, return_scores=True, **arguments
    )
    expected = frozen.translate(texts, beam_size=1)
    assert frozen.tokenizer.detokenize(
        [to_ids(path, result.hypotheses[0]) for result in found]
    ) == [result.text for result in expected]
    assert np.allclose(
        [result.scores[0] for result in found], [result.score for result in expected], atol=1e-3
    )

    expected = frozen.translate(
        texts, beam_size=4, n_best=4, length_penalty=1.0, length_offset=39, **ALIKE
    )
    searching = {
        "beam_size": 4,
        "num_hypotheses": 4,
        "length_penalty": 1.0,
        "return_scores": True,
        "return_end_token": True,
    }
    found = engine.translate_batch(tokens, **searching, **{**arguments, "suppress_sequences": None})
    for result, own in zip(found, expected, strict=True):
        assert [to_ids(path, hypothesis) for hypothesis in result.hypotheses] == [
            hypothesis.ids for hypothesis in own.hypotheses
        ]
        assert np.allclose(
            result.scores, [hypothesis.rank for hypothesis in own.hypotheses], atol=1e-4
        )

    for quantization in ("int8", "float16"):
        written = export_ctranslate2(frozen, tmp_path / quantization, dtype=quantization)
        # float32 products of the rounded weights: how a CPU rounds 8-bit products is not tested.
        small = ctranslate2.Translator(str(written), compute_type="float32")
        scored = small.score_batch(tokens[:8], [result.hypotheses[0][:-1] for result in found[:8]])
        sums = [sum(result.log_probs) for result in scored]
        assert np.allclose(sums, [own.hypotheses[0].score for own in expected[:8]], atol=0.3)
        assert (tmp_path / quantization / "model.bin").stat().st_size < 0.6 * (
            path / "model.bin"
        ).stat().st_size
    large = kformer.Translator.load(FROZEN_RUN)
    weight = large.model.trainable_weights[3]
    weight.assign(np.full(weight.shape, 1e5, "float32"))
    with pytest.raises(ValueError, match="too large for float16; export it in bfloat16 or float32"):
        export_ctranslate2(large, tmp_path / "large", dtype="float16")
    # Quantizing works in place; the model must not be what it works on.
    assert all(
        np.array_equal(a, keras.ops.convert_to_numpy(b))
        for a, b in zip(before, frozen.model.weights, strict=True)
    )


@pytest.mark.any_backend
def test_penalties_on_repetition_go_along(make_translator, tmp_path, rng):
    """The written arguments make greedy search find the same; without penalties there are none."""
    plain, own = make_translator(), {"repetition_penalty": 1.5, "no_repeat_ngram_size": 2}
    options = SearchOptions(beam_size=1, max_length=20, length_offset=20, **own)
    translator = kformer.Translator(plain.model, plain.tokenizer, options)
    path = export_ctranslate2(translator, tmp_path / "model")
    arguments = json.loads((path / "kformer.json").read_text("utf-8"))["translate_batch"]
    assert {name: arguments[name] for name in own} == own
    rows = rng.integers(4, plain.tokenizer.vocabulary_size, (16, 5)).tolist()
    vocabulary = read(path, "source")
    sources = [[vocabulary[i] for i in row] for row in rows]
    engine = ctranslate2.Translator(str(path))
    found = engine.translate_batch(sources, beam_size=1, return_end_token=True, **arguments)
    without = engine.translate_batch(
        sources,
        beam_size=1,
        **{name: value for name, value in arguments.items() if name not in own},
    )
    ids = np.array([[*row, plain.model.end_id] for row in rows])
    expected = Searcher(plain.model, options)(ids).ids[:, 0].tolist()
    # At its limit the engine forces no end.
    mine = [to_ids(path, result.hypotheses[0])[:20] for result in found]
    assert [row[: len(each)] for row, each in zip(expected, mine, strict=True)] == mine
    changed = [a.hypotheses != b.hypotheses for a, b in zip(found, without, strict=True)]
    assert sum(changed) >= 8


@pytest.mark.any_backend
@pytest.mark.parametrize("name", CONFIGURATIONS)
def test_every_kind_of_model(make_translator, tmp_path, rng, name):
    translator = make_translator(**CONFIGURATIONS[name])
    path = export_ctranslate2(translator, tmp_path / "model")
    is_half = "dtype" in CONFIGURATIONS[name]
    compare_forward(translator, path, rng, atol=0.1 if is_half else 1e-4)
    if not is_half:
        compare_search(translator, path, rng)


@pytest.mark.any_backend
def test_vocabularies_of_two_sizes(tiny_transformer, tokenizer, tmp_path, rng):
    """And pieces that a text file would break; a filler's name that a piece has already."""
    pieces = [
        *tokenizer.vocabulary().pieces,
        " ",
        "\n",
        "a\r\nb",
        "\u2028",
        '"\\',
        "<unused_1>",
        "\U0001f642",
        "\0",
    ]
    both = kformer.Tokenizer.from_sentencepiece(
        tokenizer.sentencepiece_model(),
        vocabulary=pieces,
        target_vocabulary=pieces[:-3],
        pad_id=0,
        unknown_id=1,
        start_id=2,
        end_id=3,
    )
    translator = kformer.Translator(
        tiny_transformer(vocabulary_size=len(pieces) + 3, target_vocabulary_size=len(pieces)), both
    )
    path = export_ctranslate2(translator, tmp_path / "model")
    assert read(path, "source") == [*pieces, "<unused_0>", "<unused_2>", "<unused_3>"]
    assert read(path) == [*pieces[:-3], "<unused_0>", "<unused_1>", "<unused_2>"]
    for _ in range(4):
        compare_forward(translator, path, rng)


@pytest.mark.any_backend
def test_what_is_in_the_folder(frozen, tmp_path):
    path = export_ctranslate2(frozen, tmp_path / "model", dtype="int8")
    names = {
        "config.json",
        "kformer.json",
        "model.bin",
        "shared_vocabulary.json",
        "source.spm",
        "target.spm",
        "tokenizer",
    }
    assert {file.name for file in path.iterdir()} == names
    assert [file.name for file in tmp_path.iterdir()] == ["model"], "nothing half-written stays"
    assert (path / "source.spm").read_bytes() == frozen.tokenizer.sentencepiece_model("source")
    texts = ["half past four"]
    assert kformer.Tokenizer.load(path / "tokenizer").tokenize(texts) == frozen.tokenizer.tokenize(
        texts
    )
    config = json.loads((path / "config.json").read_text("utf-8"))
    assert (
        config["decoder_start_token"] == "<s>"
        and config["eos_token"] == "</s>"
        and config["unk_token"] == "<unk>"
    )
    assert config["add_source_eos"] and not config["add_source_bos"]
    metadata = json.loads((path / "kformer.json").read_text("utf-8"))
    assert metadata["source_prefix"] == metadata["source_suffix"] == metadata["target_prefix"] == []
    assert metadata["translate_batch"] == {
        "max_input_length": frozen.model.max_length,
        "max_decoding_length": frozen.options.max_length + 1,
        "min_decoding_length": 0,
        "suppress_sequences": [["<pad>"], ["<s>"]],
    }
    assert metadata["search"]["beam_size"] == 4 and metadata["dtype"] == "int8"


@pytest.mark.any_backend
def test_the_lists_of_a_sentence(frozen, texts, tmp_path):
    tokenizer, size = frozen.tokenizer, frozen.tokenizer.target_vocabulary_size
    other = copy.copy(frozen)
    # With all tokens the engine returns what it does without lists.
    other.token_lists = TokenLists(range(size), [[] for _ in range(size)])
    path = export_ctranslate2(other, tmp_path / "all")
    arguments = json.loads((path / "kformer.json").read_text("utf-8"))["translate_batch"]
    assert arguments.pop("use_vmap") is True
    rows = [tokenizer.tokens(row[:-1]) for row in tokenizer.tokenize(texts)]
    engine = ctranslate2.Translator(str(path))
    full, listed = (
        [result.hypotheses for result in engine.translate_batch(rows, use_vmap=use, **arguments)]
        for use in (False, True)
    )
    assert listed == full
    # The line without a source token holds for all, the others for their own token.
    (row,) = tokenizer.tokenize(["half past four"])
    first, *later = tokenizer.tokenize(["4:30"], side="target")[0]
    lists = [[] for _ in range(size)]
    lists[row[0]] = later
    other.token_lists = TokenLists([first], lists)
    path = export_ctranslate2(other, tmp_path / "few")
    engine, source = ctranslate2.Translator(str(path)), [tokenizer.tokens(row[:-1])]
    (result,) = engine.translate_batch(source, use_vmap=True, **arguments)
    allowed = set(tokenizer.tokens([first, *later, tokenizer.unknown_id], side="target"))
    assert set(result.hypotheses[0]) <= allowed
    other.token_lists = TokenLists([first], [[] for _ in range(size)])
    engine = ctranslate2.Translator(str(export_ctranslate2(other, tmp_path / "first")))
    (result,) = engine.translate_batch(source, use_vmap=True, **arguments)
    assert set(result.hypotheses[0]) <= set(tokenizer.tokens([first, tokenizer.unknown_id]))
    other.options = dataclasses.replace(other.options, shortlist=(*other.shortlist(["上午九点"]),))
    path = export_ctranslate2(other, tmp_path / "shortlist")
    metadata = json.loads((path / "kformer.json").read_text("utf-8"))
    assert "use_vmap" not in metadata["translate_batch"] and not (path / "vmap.txt").exists()


@pytest.mark.any_backend
def test_a_prefix_is_in_the_text_and_needs_no_list(frozen, texts, tmp_path):
    tokenizer, prefix = frozen.tokenizer, frozen.tokenizer.tokenize(["下午"], side="target")[0]
    options = dataclasses.replace(frozen.options, prefix_ids=tuple(prefix))
    translator = kformer.Translator(frozen.model, tokenizer, options)
    size = tokenizer.vocabulary_size
    translator.token_lists = TokenLists({*range(size)} - {*prefix}, [[] for _ in range(size)])
    reader = CTranslate2Translator(export_ctranslate2(translator, tmp_path / "listed"))
    found = reader(texts, beam_size=1)
    assert found == translator(texts, beam_size=1)
    assert all(text.startswith("下午") for text in found)


@pytest.mark.any_backend
def test_tokens_around_a_source_are_the_callers(make_translator, tokenizer, tmp_path):
    """Where the engine cannot add the tokenizer's tokens, the metadata names them."""
    model = make_translator(start_id=0).model
    model_bytes = tokenizer.sentencepiece_model()
    for suffix, adds_end, expected in (
        ((3,), True, []),
        ((3, 7), False, ["</s>", tokenizer.id_to_token(7)]),
        ((), False, []),
    ):
        around = kformer.Tokenizer.from_sentencepiece(
            model_bytes, source_prefix=(6,), source_suffix=suffix, target_prefix=(5,)
        )
        path = export_ctranslate2(kformer.Translator(model, around), tmp_path / str(len(suffix)))
        metadata, config = (
            json.loads((path / name).read_text("utf-8")) for name in ("kformer.json", "config.json")
        )
        assert config["add_source_eos"] is adds_end and config["decoder_start_token"] == "<pad>"
        assert metadata["source_suffix"] == expected
        assert metadata["source_prefix"] == [tokenizer.id_to_token(6)]
        assert metadata["target_prefix"] == [], "the search of the translator chooses every token"
    # What the search forces, as a published model's may.
    path = export_ctranslate2(
        kformer.Translator(model, around, SearchOptions(prefix_ids=(7,), max_length=15)),
        tmp_path / "forced",
    )
    assert json.loads((path / "kformer.json").read_text("utf-8"))["target_prefix"] == [
        tokenizer.id_to_token(7)
    ]


def test_the_reader_returns_texts_scores_and_truncation(frozen, texts, tmp_path):
    reader = CTranslate2Translator(export_ctranslate2(frozen, tmp_path / "model"))
    texts = [*texts, "", "  "]
    results = reader.translate(texts, beam_size=1)
    expected = frozen.translate(texts, beam_size=1)
    for result, other in zip(results, expected, strict=True):
        assert (result.text, result.truncated) == (other.text, other.truncated)
        # The engine leaves out padding and start token before its softmax.
        assert result.score == pytest.approx(other.score, abs=1e-3)
    assert len(reader.translate(texts, n_best=3)[0].hypotheses) == 3


@pytest.mark.parametrize("is_joint", [True, pytest.param(False, marks=pytest.mark.any_backend)])
def test_the_language_is_the_first_token_of_a_source(tiny_transformer, tmp_path, is_joint):
    """The engine translates into two languages as the run does, and the run comes back whole."""
    texts = ["the cat sat on the mat", "a dog ran to the hat", "the rat", "a mat"]
    target = {} if is_joint else {"target_texts": [text.upper() for text in texts]}
    tokenizer = kformer.Tokenizer.train(
        texts=texts,
        vocabulary_size=22,
        byte_fallback=False,
        model_type="unigram",
        languages=["de", "en"],
        **target,
    )
    sizes = {} if is_joint else {"target_vocabulary_size": tokenizer.target_vocabulary_size}
    model = tiny_transformer(vocabulary_size=tokenizer.vocabulary_size, max_length=32, **sizes)
    for weight in model.trainable_variables:
        weight.assign(weight * 3)  # Translations depend on the source.
    search = {"length_ratio": 0.0, "length_offset": 7}
    translator = kformer.Translator(
        model, tokenizer, config={SEARCH_BY_LANGUAGE: {"en": {**search, "length_penalty": 0.9}}}
    )
    translator.config["directions"] = ["en-de", "de-en"]
    path = export_ctranslate2(translator, tmp_path / "model")
    metadata = json.loads((path / "kformer.json").read_text("utf-8"))
    assert metadata["source_prefix"] == [">>de<<"]
    assert metadata["languages"] == {"de": ">>de<<", "en": ">>en<<"}
    assert metadata["language_places"] == {"source": [], "target": ["source_prefix"]}
    engine = ctranslate2.Translator(str(path))
    pieces = [tokenizer.tokens(row, "source") for row in tokenizer.tokenize(texts)]
    found = {}
    for code, sign in metadata["languages"].items():
        results = engine.translate_batch(
            [[sign, *row] for row in pieces],
            beam_size=3,
            max_decoding_length=8,
            min_decoding_length=0,
            return_end_token=True,
        )
        found[code] = [to_ids(path, result.hypotheses[0]) for result in results]
        expected = translator.translate(
            texts,
            target_language=code,
            **{**ALIKE, **search, "beam_size": 3, "length_penalty": 1.0},
        )
        # Padding, which random weights may generate, ends a row of ids.
        rows = [np.trim_zeros(row, "b") for row in found[code]]
        assert rows == [np.trim_zeros(each.hypotheses[0].ids, "b") for each in expected]
    assert found["de"] != found["en"]
    reader = CTranslate2Translator(path)
    assert reader.languages == ["de", "en"]
    single = {code: reader(texts, target_language=code) for code in ("de", "en")}
    assert single["de"] == reader(texts) != single["en"]
    codes = ["en", None, "en", "de"]
    rows = [single[code or "de"][i] for i, code in enumerate(codes)]
    assert reader(texts, target_language=np.array(codes)) == rows
    with pytest.raises(FileNotFoundError, match="make a run of it by `kformer import`"):
        check_trained(path)
    again = load_checkpoint(path)
    assert again.tokenizer.languages == tokenizer.languages
    assert again.config["directions"] == ["en-de", "de-en"]
    mixed = [">>en<< a mat", ">>Achtung<< a mat", *texts[:2]]
    codes = ["en", None, "de", "en"]
    assert again(mixed, target_language=codes) == translator(mixed, target_language=codes)
    english = load_checkpoint(path, target_language="en")
    assert english.options == translator.for_languages(target="en").options
    assert english(texts) == translator(texts, target_language="en")
    with pytest.raises(ValueError, match="'fr' is unknown; choose one of de, en"):
        load_checkpoint(path, target_language="fr")
    metadata["config"]["directions"] = "en-de"
    (path / "kformer.json").write_text(json.dumps(metadata), encoding="utf-8")
    with pytest.raises(ValueError, match="has damaged directions: copy it again"):
        load_checkpoint(path)


@pytest.mark.any_backend
def test_refusals(frozen, make_translator, tokenizer, tmp_path, monkeypatch):
    with pytest.raises(ValueError, match="int7"):
        export_ctranslate2(frozen, tmp_path / "x", dtype="int7")
    (tmp_path / "there").mkdir()
    with pytest.raises(ValueError, match="exists already"):
        export_ctranslate2(frozen, tmp_path / "there")

    class Mine(kformer.Transformer):
        pass

    translator = make_translator()
    mine = kformer.Translator(Mine.from_config(translator.model.get_config()), tokenizer)
    with pytest.raises(ValueError, match="Mine"):
        export_ctranslate2(mine, tmp_path / "x")
    pieces = list(tokenizer.vocabulary().pieces)
    other = [*pieces[:3], "<end>", *pieces[4:]]
    ids = {"pad_id": 0, "unknown_id": 1, "start_id": 2, "end_id": 3}
    sides = kformer.Tokenizer.from_sentencepiece(
        tokenizer.sentencepiece_model(), vocabulary=pieces, target_vocabulary=other, **ids
    )
    with pytest.raises(ValueError, match="'<end>' in the target's"):
        export_ctranslate2(kformer.Translator(translator.model, sides), tmp_path / "x")

    translator.model.network.encoder_layers[0].feed_forward.intermediate.quantize("int8")
    with pytest.raises(
        ValueError, match=r"is quantized \(int8\), which cannot be exported to CTranslate2"
    ):
        export_ctranslate2(translator, tmp_path / "x")

    def fail(*arguments):
        raise OSError("No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(kformer.Tokenizer, "save", fail)
        with pytest.raises(OSError, match="No space left"):
            export_ctranslate2(frozen, tmp_path / "x")
    with monkeypatch.context() as patch:
        patch.setitem(sys.modules, "ctranslate2", None)
        with pytest.raises(ImportError, match=r'pip install "kformer\[ctranslate2\]"'):
            export_ctranslate2(frozen, tmp_path / "x")
    assert [file.name for file in tmp_path.iterdir()] == ["there"]
