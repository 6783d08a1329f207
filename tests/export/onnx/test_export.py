"""The ONNX graphs compute what the model computes, from every backend."""

import copy
import json
import os
import pathlib
import re
import subprocess
import sys
import threading

import keras
import numpy as np
import pytest

import kformer
import kformer.export.onnx.export as onnx_export
import kformer.export.onnx.translator as exported_translator
from kformer.data import TokenLists

onnx = pytest.importorskip("onnx")
pytest.importorskip("onnxruntime")

from tests.export.onnx.runtime import OnnxModel  # noqa: E402

ROOT = pathlib.Path(__file__).resolve().parents[3]
FROZEN_RUN = ROOT / "tests" / "frozen_run"


@pytest.fixture(scope="module")
def tokenizer():
    return kformer.Tokenizer.load(FROZEN_RUN / "tokenizer")


@pytest.fixture
def make_translator(tiny_transformer, tokenizer):
    """A function that makes a translator with a very small model, of which it takes arguments."""

    def make(**overrides):
        size = {
            "vocabulary_size": tokenizer.vocabulary_size,
            "pad_id": tokenizer.pad_id,
            "end_id": tokenizer.end_id,
        }
        model = tiny_transformer(**{**size, "start_id": tokenizer.start_id, **overrides})
        offset = overrides.get("position_offset", 0)
        own = copy.copy(tokenizer)
        ids = {name: getattr(model, f"{name}_id") for name in ("pad", "start", "end")}
        own.special_ids = {**tokenizer.special_ids, **ids}
        return kformer.Translator(
            model, own, kformer.decoding.SearchOptions(max_length=15 - offset, beam_size=1)
        )

    return make


@pytest.fixture
def batch(random_batch, tokenizer):
    """A function that makes source and target ids; one source is nothing but padding."""

    def make(rows, source_length, target_length):
        ids = random_batch(
            rows, source_length, target_length, vocabulary_size=tokenizer.vocabulary_size
        )
        if rows > 2:
            ids["source_ids"][-1] = 0
        return ids

    return make


def largest_difference(model, folder, ids):
    """The largest difference of encoder output and logits between the model without a cache and the
    graphs token by token.
    """
    exported = OnnxModel(folder)
    encoder_outputs = exported.encode(ids["source_ids"])
    encoded, mask = (keras.ops.convert_to_numpy(part) for part in model.encode(ids["source_ids"]))
    np.testing.assert_array_equal(encoder_outputs["source_mask"], mask)
    expected, found = keras.ops.convert_to_numpy(model(ids)), []
    past = exported.empty_past(len(expected))
    for t in range(expected.shape[1]):
        logits, past = exported.step(ids["target_ids"][:, t : t + 1], encoder_outputs, past)
        assert logits.dtype == "float32" and logits.shape == (len(expected), 1, expected.shape[2])
        assert all(value.shape[2] == t + 1 for value in past.values() if value.ndim == 4)
        found.append(logits)
    # Several tokens at once, after one and after none.
    _, past = exported.step(
        ids["target_ids"][:, :1], encoder_outputs, exported.empty_past(len(expected))
    )
    rest, _ = exported.step(ids["target_ids"][:, 1:], encoder_outputs, past)
    whole, _ = exported.step(ids["target_ids"], encoder_outputs, exported.empty_past(len(expected)))
    logits = (np.concatenate(found, axis=1), np.concatenate([found[0], rest], axis=1), whole)
    pairs = [(encoder_outputs["encoded"], encoded), *((part, expected) for part in logits)]
    return max(np.abs(part - other).max() for part, other in pairs)


def check_equality(translator, folder, batch):
    """The graphs, of every shape, against the model."""
    assert onnx_export.export_onnx(translator, folder) == folder
    for name in ("encoder", "decoder_step"):
        onnx.checker.check_model(str(folder / f"{name}.onnx"), full_check=True)
    for shape in ((1, 3, 2), (4, 6, 5)):
        assert largest_difference(translator.model, folder, batch(*shape)) < 1e-4
    assert (
        kformer.Tokenizer.load(folder / "tokenizer").special_ids == translator.tokenizer.special_ids
    )


BART = {
    "normalize_embeddings": True,
    "scale_embeddings": False,
    "position_encoding": "learned",
    "activation": "gelu",
}
MARIAN = {
    "position_encoding": "sinusoidal_halves",
    "output_bias": True,
    "activation": "silu",
    "normalize_first": True,
}


@pytest.mark.heavy
def test_graphs_equal_the_model(make_translator, tmp_path, batch):
    check_equality(
        make_translator(**BART, normalize_first=True, output_bias=True), tmp_path / "out", batch
    )
    recurrent = {"decoder_autoregression": "ssru", "activation": "gelu_sigmoid"}
    check_equality(make_translator(**recurrent), tmp_path / "recurrent", batch)


@pytest.mark.heavy
@pytest.mark.any_backend
@pytest.mark.parametrize(
    "config",
    [
        {},
        {"decoder_intermediate_dim": 40, "decoder_num_heads": 4, "position_encoding": "rope"},
        {"decoder_normalize_first": True, "num_decoder_layers": 1},
        BART,
        MARIAN,
        {**MARIAN, "share_output": False, "normalize_first": False, "activation": "relu"},
        {
            "position_encoding": "sinusoidal_fairseq",
            "position_offset": 2,
            "share_embeddings": False,
        },
        {
            "position_encoding": "sinusoidal_fairseq",
            "hidden_dim": 9,
            "num_heads": 3,
            "normalize_embeddings": True,
        },
        {"position_encoding": "sinusoidal_halves", "hidden_dim": 9, "num_heads": 1},
        {"position_encoding": "sinusoidal", "hidden_dim": 9, "num_heads": 9},
        {"position_encoding": "rope", "rotary_base": 50.0},
        {"position_encoding": "rope", "decoder_autoregression": "ssru", "normalize_first": True},
        {
            "position_encoding": "rope",
            "rotary_base": 50.0,
            "rotary_interleaved": True,
            "normalize_first": True,
        },
        {
            "position_encoding": None,
            "target_vocabulary_size": 700,
            "share_output": False,
            "num_encoder_layers": 1,
        },
        {
            "pad_id": 3,
            "start_id": 0,
            "end_id": 2,
            "num_decoder_layers": 3,
            "layer_norm_epsilon": 0.1,
        },
    ],
    ids=lambda config: " ".join(f"{key}={value}" for key, value in config.items()) or "default",
)
def test_every_option_of_the_model(make_translator, tmp_path, batch, config):
    check_equality(make_translator(**config), tmp_path / "out", batch)


@pytest.mark.any_backend
@pytest.mark.parametrize("dtype", ["mixed_bfloat16", "bfloat16"])
def test_a_model_in_half_precision_is_computed_in_float32(make_translator, tmp_path, batch, dtype):
    translator = make_translator(dtype=dtype)
    folder = onnx_export.export_onnx(translator, tmp_path / "out")
    model = make_translator().model
    for weight, theirs in zip(model.weights, translator.model.weights, strict=True):
        weight.assign(keras.ops.cast(theirs.value, weight.dtype))
    assert largest_difference(model, folder, batch(4, 6, 5)) < 1e-4


def test_greedy_ids_equal_the_searchers(tmp_path):
    translator = kformer.Translator.load(FROZEN_RUN)
    folder = onnx_export.export_onnx(translator, tmp_path / "deep" / "out", beam_size=1)
    texts = [
        pair.source
        for pair in kformer.examples.generate_pairs(12, seed=6, split="test", categories=("time",))
    ]
    rows = translator.tokenizer.tokenize(texts, side="source", special_tokens=True)
    source_ids = np.array(
        [row + [translator.model.pad_id] * (max(map(len, rows)) - len(row)) for row in rows]
    )
    assert len({len(row) for row in rows}) > 1, "some rows are padded"
    expected = kformer.decoding.Searcher(
        translator.model, translator.search_options({"beam_size": 1})
    )(source_ids).ids[:, 0]
    found = OnnxModel(folder).greedy(source_ids, steps=expected.shape[1])
    np.testing.assert_array_equal(found, expected)
    assert kformer.Tokenizer.load(folder / "tokenizer").detokenize(found) == translator(
        texts, beam_size=1
    )


@pytest.mark.any_backend
def test_a_language_is_the_first_id_of_a_source(tiny_transformer, tmp_path):
    texts = ["half past four", "a quarter to ten", "noon"]
    settings = {"byte_fallback": False, "model_type": "unigram", "languages": ["de", "en"]}
    tokenizer = kformer.Tokenizer.train(texts=texts, vocabulary_size=22, **settings)
    model = tiny_transformer(vocabulary_size=tokenizer.vocabulary_size, max_length=32)
    options = kformer.decoding.SearchOptions(beam_size=1, max_length=9)
    translator = kformer.Translator(model, tokenizer, options)
    folder = onnx_export.export_onnx(translator, tmp_path / "out")
    saved = json.loads((folder / "tokenizer" / "tokenizer.json").read_text(encoding="utf-8"))
    exported, encoded = OnnxModel(folder), []
    for code, number in saved["languages"].items():
        rows = [[number, *row, tokenizer.end_id] for row in tokenizer.tokenize(texts)]
        ids = np.array([row + [tokenizer.pad_id] * (24 - len(row)) for row in rows])
        found = tokenizer.detokenize(exported.greedy(ids, steps=9))
        assert found == translator(texts, target_language=code)
        assert rows == tokenizer.for_languages(target=code).tokenize(texts, special_tokens=True)
        encoded.append(exported.encode(ids)["encoded"])
    assert np.abs(encoded[0] - encoded[1]).max() > 0.1


@pytest.mark.any_backend
def test_metadata_names_what_the_graphs_have(make_translator, tmp_path, tokenizer):
    translator = make_translator()
    translator.config["trained"] = "by hand"
    exported = OnnxModel(onnx_export.export_onnx(translator, tmp_path / "out", beam_size=5))
    metadata = exported.metadata
    assert (
        metadata["format_version"] == 1
        and metadata["max_length"] == 16
        and metadata["config"] == {"trained": "by hand"}
    )
    assert metadata["search"]["beam_size"] == 5 and metadata["search"]["max_length"] == 15
    assert metadata["special_ids"] == tokenizer.special_ids and metadata["forbidden_ids"] == [
        tokenizer.pad_id,
        tokenizer.start_id,
    ]
    for name, session in exported.sessions.items():
        for kind, parts in (("inputs", session.get_inputs()), ("outputs", session.get_outputs())):
            described = [(part["name"], part["shape"]) for part in metadata[name][kind]]
            assert described == [(part.name, list(part.shape)) for part in parts]


@pytest.mark.any_backend
def test_weights_lie_once_in_a_file_beside_the_graphs(make_translator, tmp_path):
    translator = make_translator(num_encoder_layers=1)
    weights = sum(int(np.prod(weight.shape)) for weight in translator.model.trainable_weights)
    for dtype, size in (("float32", 4), ("float16", 2), ("int8", 1)):
        folder = onnx_export.export_onnx(translator, tmp_path / dtype, dtype=dtype)
        assert {file.name for file in folder.iterdir()} == {
            *("encoder.onnx", "decoder_step.onnx", "search.onnx", "weights.bin"),
            *("kformer.json", "tokenizer", "translator.py"),
        }
        padding = 64 * 2 * len(translator.model.weights)
        small = 6000 if dtype == "int8" else 0  # scales and vectors
        stored = (folder / "weights.bin").stat().st_size
        assert size * weights <= stored < size * weights + padding + small


TEXTS = ["It is half past four.", "", "at noon \ud800 \u2581 x", "a " * 900, "Meet me at 9:15."]
SEARCHES = {
    "beam": {"beam_size": 4, "length_penalty": 1.0},
    "greedy": {"beam_size": 1},
    "early": {"beam_size": 2, "early_stopping": True, "max_text_bytes": 12},
    "constrained": {
        **{"beam_size": 3, "repetition_penalty": 1.3, "no_repeat_ngram_size": 2, "min_length": 9},
        **{"forbidden_ids": (70, 81), "prefix_ids": (50, 60)},
    },
    "shortlist": {"beam_size": 2, "shortlist": range(3, 300, 2), "no_repeat_ngram_size": 1},
    "shrink": {"beam_size": 3, "mode": "huggingface", "early_stopping": "shrink"},
    "never": {
        **{"beam_size": 2, "mode": "huggingface", "early_stopping": "never", "renormalize": True},
        **{"forced_end": False, "max_length": 12, "repetition_penalty": 2.0},
    },
    "any": {"beam_size": 1, "mode": "huggingface", "forced_end": False, "max_length": 9},
}


@pytest.mark.any_backend
@pytest.mark.parametrize("name", SEARCHES)
def test_the_search_returns_what_the_translator_returns(tmp_path, name):
    options = {**SEARCHES[name]}
    if "shortlist" in options:
        options["shortlist"] = tuple(options["shortlist"])
    check_search(kformer.Translator.load(FROZEN_RUN), tmp_path / "out", options)


@pytest.mark.any_backend
@pytest.mark.parametrize("name", ["beam", "greedy", "shrink"])
def test_the_search_of_a_recurrent_decoder(make_translator, tmp_path, name):
    translator = make_translator(decoder_autoregression="ssru")
    check_search(translator, tmp_path / "out", SEARCHES[name])


@pytest.mark.any_backend
@pytest.mark.parametrize("name", ["beam", "greedy", "never"])
def test_the_search_over_the_lists_of_sentences(tmp_path, tokenizer, name):
    translator = kformer.Translator.load(FROZEN_RUN)
    before, size = translator(TEXTS), tokenizer.vocabulary_size
    lists = [[(7 * i + 11 * j) % size for j in range(i % 4)] for i in range(size)]
    translator.token_lists = TokenLists([tokenizer.end_id, *range(300, size, 3)], lists)
    assert translator(TEXTS) != before
    check_search(translator, tmp_path / "out", SEARCHES[name])


@pytest.mark.any_backend
def test_a_prefix_begins_a_translation(tmp_path):
    translator = kformer.Translator.load(FROZEN_RUN)
    prefixes = ["at noon and at", "x", "", "quarter " * 4, "It"]
    check_search(translator, tmp_path / "out", SEARCHES["beam"], prefixes=prefixes)
    exported = exported_translator.Translator(tmp_path / "out")
    with pytest.raises(ValueError, match="has .* tokens, but a translation has at most 39"):
        exported(["It"], prefixes=["noon " * 90])


@pytest.mark.any_backend
def test_a_prefix_is_within_the_shortlist(tmp_path):
    translator = kformer.Translator.load(FROZEN_RUN)
    few = translator.shortlist(["上午九点"])
    translator.export(tmp_path / "out", format="onnx", shortlist=few)
    exported = exported_translator.Translator(tmp_path / "out")
    assert exported(["It"], prefixes=["上午"])[0]["translation"].startswith("上午")
    with pytest.raises(ValueError, match="or its shortlist, cannot write the prefix '下午'"):
        exported(["It"], prefixes=["下午"])


@pytest.mark.any_backend
def test_the_file_translates_line_by_line_in_any_locale(tmp_path):
    texts = ["4.04 am", "half\x85past\rone", "noon \ufffd"]
    translator = kformer.Translator.load(FROZEN_RUN)
    folder = onnx_export.export_onnx(translator, tmp_path / "out")
    with subprocess.Popen(
        [sys.executable, folder / "translator.py"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env=os.environ | {"PYTHONIOENCODING": "ascii"},
    ) as process:
        # A text is translated before the next one is there.
        timer = threading.Timer(60, process.kill)
        timer.start()
        process.stdin.write(texts[0].encode() + b"\n")
        process.stdin.flush()
        first = process.stdout.readline()
        timer.cancel()
        rest, errors = process.communicate(texts[1].encode() + b"\r\nnoon \xff")
    assert not errors
    assert (first + rest).decode().splitlines() == translator(texts)


def check_search(translator, path, options, **rows):
    folder = onnx_export.export_onnx(translator, path, **options)
    n_best = options["beam_size"]
    results = exported_translator.Translator(folder)(TEXTS, hypotheses=n_best, **rows)
    expected = translator.translate(TEXTS, n_best=n_best, **rows, **options)
    for result, theirs in zip(results, expected, strict=True):
        assert result["truncated"] == theirs.truncated
        hypotheses = result["hypotheses"] if n_best > 1 else [result]
        assert [each["translation"] for each in hypotheses] == [h.text for h in theirs.hypotheses]
        np.testing.assert_allclose(
            [each["score"] for each in hypotheses], [h.score for h in theirs.hypotheses], atol=1e-4
        )


@pytest.mark.any_backend
@pytest.mark.parametrize("positions", ["learned", "rope", "ssru"])
def test_float16_is_half_the_size_and_near(make_translator, tmp_path, batch, positions):
    options = {"position_encoding": positions}
    if positions != "rope":
        options = BART if positions == "learned" else {"decoder_autoregression": "ssru"}
    translator = make_translator(**options)
    folder = onnx_export.export_onnx(translator, tmp_path / "half", dtype="float16")
    assert 0 < largest_difference(translator.model, folder, batch(4, 6, 5)) < 0.05
    onnx.checker.check_model(str(folder / "decoder_step.onnx"), full_check=True)
    assert OnnxModel(folder).encode(np.array([[5, 6]]))["cross_key_0"].dtype == "float16"
    initializers = onnx.load(folder / "encoder.onnx").graph.initializer
    assert all(
        tensor.data_type != onnx.TensorProto.FLOAT for tensor in initializers if "/" in tensor.name
    )


@pytest.mark.any_backend
def test_refusals_leave_everything_as_it_was(make_translator, tmp_path, monkeypatch):
    translator = make_translator()
    taken = tmp_path / "taken"
    taken.mkdir()
    with pytest.raises(ValueError, match="taken exists already"):
        onnx_export.export_onnx(translator, taken)
    with pytest.raises(ValueError, match="float32, float16"):
        onnx_export.export_onnx(translator, tmp_path / "out", dtype="bfloat16")
    large = make_translator()
    weight = large.model.trainable_weights[3]
    weight.assign(np.full(weight.shape, 1e5, "float32"))
    for form, remedy in (("onnx", "float32"), ("hf", "bfloat16")):
        with pytest.raises(ValueError, match=f"too large for float16; export it in {remedy}"):
            large.export(tmp_path / "out", format=form, dtype="float16")
    with pytest.raises(TypeError, match="beam_width"):
        onnx_export.export_onnx(translator, tmp_path / "out", beam_width=3)
    with pytest.raises(ValueError, match="learned positions"):
        onnx_export.export_onnx(
            make_translator(position_encoding="learned"), tmp_path / "out", max_length=99
        )

    class Mine(kformer.Transformer):
        pass

    mine = Mine.from_config(translator.model.get_config())
    with pytest.raises(ValueError, match="this model is a Mine"):
        onnx_export.export_onnx(kformer.Translator(mine, translator.tokenizer), tmp_path / "out")

    def failing(folder):
        raise OSError("No space left on device")

    monkeypatch.setattr(translator.tokenizer, "save", failing)
    with pytest.raises(OSError, match="No space"):
        onnx_export.export_onnx(translator, tmp_path / "out")
    assert [path.name for path in tmp_path.rglob("*")] == ["taken"], "nothing half-written stays"


@pytest.mark.any_backend
def test_layers_that_the_graphs_do_not_know(make_translator, tmp_path):
    class Louder(keras.layers.LayerNormalization):
        pass

    translator = make_translator(normalize_first=True)
    translator.model.network.encoder_layers[0].feed_forward_norm.__class__ = Louder
    with pytest.raises(ValueError, match="is a Louder"):
        onnx_export.export_onnx(translator, tmp_path / "out")
    translator = make_translator()
    translator.model.network.encoder_layers[0].feed_forward.intermediate.quantize("int8")
    with pytest.raises(ValueError, match="quantized"):
        onnx_export.export_onnx(translator, tmp_path / "out")
    translator = make_translator()
    translator.model.network.encoder_layers[0].feed_forward.intermediate.enable_lora(2)
    with pytest.raises(ValueError, match="'intermediate' has LoRA weights"):
        onnx_export.export_onnx(translator, tmp_path / "out")


@pytest.mark.any_backend
def test_without_onnx_the_error_names_what_to_install(make_translator, tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "onnx", None)  # as if it were not installed
    with pytest.raises(ImportError, match=re.escape('pip install "kformer[onnx]"')):
        onnx_export.export_onnx(make_translator(), tmp_path / "out")
    assert not any(tmp_path.iterdir())
