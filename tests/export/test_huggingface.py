"""The format hf: the library's model has equal logits and text, and is imported as it was."""

import json
import pathlib

import numpy as np
import pytest
from keras import ops

import kformer
from kformer.export import huggingface
from kformer.interop import load_checkpoint
from tests.interop.published import forward, random_sources, random_targets
from tests.text_samples import corpus

transformers = pytest.importorskip("transformers")
FROZEN_RUN = pathlib.Path(__file__).resolve().parents[1] / "frozen_run"


@pytest.fixture(scope="module")
def tokenizers():
    texts = corpus(600, seed=2)
    joint = kformer.Tokenizer.train(texts=texts, vocabulary_size=400, model_type="unigram")
    separate = kformer.Tokenizer.train(
        texts=texts, target_texts=texts[::2], vocabulary_size=(400, 380), model_type="unigram"
    )
    languages = {"model_type": "unigram", "languages": ["de", "en"]}
    several = kformer.Tokenizer.train(texts=texts, vocabulary_size=400, **languages)
    several_separate = kformer.Tokenizer.train(
        texts=texts, target_texts=texts[::2], vocabulary_size=(400, 380), **languages
    )
    tokenizers = {"joint": joint, "separate": separate, "several": several}
    return {**tokenizers, "several, separate": several_separate}


@pytest.fixture
def make_translator(tokenizers, randomize):
    """A function that makes a translator of random weights."""

    def make(tokenizer="joint", options=None, **overrides):
        tokenizer = tokenizers[tokenizer]
        sizes = {
            "num_encoder_layers": 2,
            "num_decoder_layers": 1,
            "hidden_dim": 16,
            "intermediate_dim": 24,
            "num_heads": 2,
        }
        target_size = (
            {} if tokenizer.joint else {"target_vocabulary_size": tokenizer.target_vocabulary_size}
        )
        model = kformer.Transformer(
            tokenizer.vocabulary_size, max_length=48, **{**sizes, **target_size, **overrides}
        )
        return kformer.Translator(randomize(model), tokenizer, options)

    return make


CASES = {
    "post": {},
    "pre": {"normalize_first": True, "activation": "gelu"},
    "own projection": {"share_output": False, "activation": "silu", "scale_embeddings": False},
    "gelu by a sigmoid": {"activation": "gelu_sigmoid"},
    "halves and bias": {"position_encoding": "sinusoidal_halves", "output_bias": True},
    "separate": {"tokenizer": "separate"},
    "other sizes of the decoder": {"decoder_intermediate_dim": 40, "decoder_num_heads": 4},
}


def logits_of(model, source_ids, target_ids):
    return ops.convert_to_numpy(model({"source_ids": source_ids, "target_ids": target_ids}))


@pytest.mark.parametrize(
    "name",
    [
        *list(CASES)[:2],
        *(pytest.param(case, marks=pytest.mark.any_backend) for case in list(CASES)[2:]),
    ],
)
def test_logits_and_way_back(make_translator, tmp_path, name):
    translator = make_translator(**CASES[name])
    path = translator.export(tmp_path / "folder", format="hf")
    theirs, info = transformers.AutoModelForSeq2SeqLM.from_pretrained(
        path, output_loading_info=True
    )
    assert not info["missing_keys"] and not info["unexpected_keys"] and not info["mismatched_keys"]
    assert type(theirs).__name__ == (
        "PegasusForConditionalGeneration" if name == "pre" else "MarianMTModel"
    )
    source_ids, target_ids = (
        random_sources(theirs, 6),
        random_targets(theirs, 6) % translator.model.target_vocabulary_size,
    )
    encoded, logits = forward(theirs.eval(), source_ids, target_ids)
    assert (
        np.abs(logits_of(translator.model, source_ids, target_ids) - logits).max()
        < 1e-4 * np.abs(logits).max()
    )
    back = load_checkpoint(path)
    assert (
        np.abs(logits_of(back.model, source_ids, target_ids) - logits).max()
        < 1e-4 * np.abs(logits).max()
    )
    for side in ("source", "target"):
        texts = corpus(50, seed=4)
        assert back.tokenizer.tokenize(
            texts, side=side, special_tokens=True
        ) == translator.tokenizer.tokenize(texts, side=side, special_tokens=True)


@pytest.mark.any_backend(quickest="torch")
def test_translations(tmp_path, backend):
    """The library translates as a trained run does, greedy and in the mode that is its own."""
    translator = kformer.Translator.load(FROZEN_RUN)
    texts = [
        "half past four in the afternoon",
        "ten minutes to seven in the morning",
        "9:05 pm",
        "noon",
        "twenty past three",
    ] * 4
    for beams in (1, 4):
        mode = {} if beams == 1 else {"mode": "huggingface", "length_penalty": 1.0}
        path = translator.export(tmp_path / str(beams), format="hf", beam_size=beams, **mode)
        tokenizer = transformers.AutoTokenizer.from_pretrained(path)
        model = transformers.AutoModelForSeq2SeqLM.from_pretrained(path).eval()
        inputs = tokenizer(texts, padding=True, return_tensors="pt")
        assert inputs["input_ids"].tolist() == _padded(
            translator.tokenizer.tokenize(texts, special_tokens=True), translator.model.pad_id
        )
        theirs = tokenizer.batch_decode(model.generate(**inputs), skip_special_tokens=True)
        assert theirs == translator(texts, beam_size=beams, **mode)
        if beams == 1 and backend == "torch":
            back = load_checkpoint(path)
            assert back(texts) == theirs


@pytest.mark.parametrize(
    ("name", "settings"),
    [
        ("several", {"normalize_first": True}),
        pytest.param("several, separate", {}, marks=pytest.mark.any_backend),
    ],
)
def test_several_languages_are_tags_of_texts(make_translator, tmp_path, name, settings):
    """The library has the same ids and texts for texts with tags, and the way back has all."""
    translator = make_translator(name, **settings)
    for weight in translator.model.trainable_variables:
        weight.assign(weight * 2)  # Translations depend on the source.
    greedy = {"beam_size": 1, "mode": "huggingface", "max_length": 20}
    english = translator.for_languages(target="en")
    path = english.export(tmp_path / "folder", format="hf", **greedy)
    tokenizer = transformers.AutoTokenizer.from_pretrained(path)
    assert tokenizer.supported_language_codes == ([">>de<<", ">>en<<"] if name == "several" else [])
    texts = ["the dog", "", " a  man >>de<< rides", "人", "a woman", "the old horse"]
    codes = ["de", "en", "de", "en", "en", "de"]
    tagged = [f">>{code}<< {text}" for code, text in zip(codes, texts, strict=True)]
    inputs = tokenizer(tagged, padding=True, return_tensors="pt")
    assert inputs["input_ids"].tolist() == _padded(
        english.tokenizer.tokenize(tagged, special_tokens=True), english.model.pad_id
    )
    model = transformers.AutoModelForSeq2SeqLM.from_pretrained(path).eval()
    theirs = tokenizer.batch_decode(model.generate(**inputs), skip_special_tokens=True)
    expected = translator.translate(texts, target_language=codes, **greedy)
    # An empty text has an empty translation here.
    filled = [i for i, text in enumerate(texts) if text]
    assert [theirs[i] for i in filled] == [expected[i].text.strip() for i in filled]
    assert len({*theirs}) > 2
    # Only known tags are tags, here and in the model that comes back.
    assert tokenizer(">>Achtung<< a")["input_ids"][0] == tokenizer.unk_token_id
    back = load_checkpoint(path)
    assert back.tokenizer.languages == english.tokenizer.languages
    assert back.tokenizer.target_language == "en"
    assert load_checkpoint(path, target_language="de").tokenizer.target_language == "de"
    texts.append(">>Achtung<< a")
    for side in ("source", "target"):
        ids = [each.tokenizer.tokenize(texts, side, True) for each in (back, english)]
        assert ids[0] == ids[1]
    assert back(texts) == english(texts, **greedy)
    assert back(texts, target_language="de") == translator(texts, **greedy)


def _padded(rows, pad_id):
    longest = max(map(len, rows))
    return [row + [pad_id] * (longest - len(row)) for row in rows]


@pytest.mark.any_backend
def test_half_precision_and_shards(make_translator, tmp_path, monkeypatch):
    monkeypatch.setattr(huggingface, "_SHARD_BYTES", 6000)
    path = make_translator().export(tmp_path / "folder", format="hf", dtype="bfloat16")
    shards = sorted(file.name for file in path.glob("*.safetensors"))
    assert len(shards) > 2 and shards[0].startswith("model-00001-of-")
    theirs = transformers.AutoModelForSeq2SeqLM.from_pretrained(path)
    assert str(next(theirs.parameters()).dtype) == "torch.bfloat16"
    assert load_checkpoint(path, dtype="bfloat16").model.trainable_weights[0].dtype == "bfloat16"


@pytest.mark.any_backend
def test_the_search_goes_along(make_translator, tmp_path):
    settings = {
        "beam_size": 3,
        "max_length": 20,
        "early_stopping": True,
        "forbidden_ids": (0, 7),
        "min_length": 2,
        "prefix_ids": (9,),
        "repetition_penalty": 1.5,
        "no_repeat_ngram_size": 3,
    }
    options = kformer.decoding.SearchOptions(mode="huggingface", **settings)
    translator = make_translator(options=options)
    path = translator.export(tmp_path / "folder", format="hf", length_penalty=1.5, n_best=2)
    content = json.loads((path / "generation_config.json").read_text())
    longer = translator.export(tmp_path / "longer", format="hf", max_length=100)
    assert json.loads((longer / "config.json").read_text())["max_position_embeddings"] == 102
    assert (content["num_beams"], content["max_length"], content["length_penalty"]) == (3, 22, 1.5)
    back = load_checkpoint(path).options
    same = (
        "mode",
        "beam_size",
        "max_length",
        "min_length",
        "early_stopping",
        "forbidden_ids",
        "forced_end",
        "prefix_ids",
        "repetition_penalty",
        "no_repeat_ngram_size",
    )
    assert all(getattr(back, name) == getattr(options, name) for name in same) and (
        back.length_penalty,
        back.n_best,
    ) == (1.5, 2)


@pytest.mark.any_backend
def test_a_forbidden_end_token_is_put_off(make_translator, tmp_path):
    """That library leaves the end token out of the words that it forbids."""
    end = make_translator().tokenizer.end_id
    options = kformer.decoding.SearchOptions(beam_size=2, max_length=6, forbidden_ids=(7, end))
    path = make_translator(options=options).export(tmp_path / "folder", format="hf")
    content = json.loads((path / "generation_config.json").read_text())
    assert [end] not in content["bad_words_ids"] and [7] in content["bad_words_ids"]
    torch = pytest.importorskip("torch")
    theirs = transformers.AutoModelForSeq2SeqLM.from_pretrained(path).eval()
    (found,) = theirs.generate(torch.tensor([[5, 6, end]])).tolist()
    assert len(found) == 8 and found[-1] == end and end not in found[1:-1]


@pytest.mark.any_backend
def test_a_frozen_model(make_translator, tmp_path):
    translator = make_translator()
    translator.model.trainable = False
    path = translator.export(tmp_path / "folder", format="hf")
    assert json.loads((path / "config.json").read_text())["dtype"] == "float32"


class Sub(kformer.Transformer):
    pass


@pytest.mark.any_backend
@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"position_encoding": "learned"}, "position_encoding='learned'"),
        ({"position_encoding": "rope"}, "position_encoding='rope'"),
        ({"position_encoding": None}, "position_encoding=None"),
        ({"normalize_embeddings": True}, "normalize_embeddings=True"),
        ({"layer_norm_epsilon": 1e-6}, "layer_norm_epsilon=1e-06"),
        ({"hidden_dim": 9, "num_heads": 3}, "hidden_dim=9"),
        (
            {"tokenizer": "separate", "normalize_first": True},
            "pre-norm model with separate embeddings",
        ),
    ],
)
def test_what_the_format_cannot_hold(make_translator, tmp_path, settings, message):
    with pytest.raises(ValueError, match=message) as caught:
        make_translator(**settings).export(tmp_path / "folder", format="hf")
    assert "made_for=transformers chooses a model that fits" in str(caught.value)
    assert "\n" not in str(caught.value) and not list(tmp_path.iterdir())


@pytest.mark.any_backend
def test_what_else_is_refused(make_translator, tokenizers, tmp_path):
    translator = make_translator()
    (tmp_path / "link").symlink_to("nowhere")
    for path in (tmp_path, tmp_path / "link"):
        with pytest.raises(ValueError, match="exists already"):
            translator.export(path, format="hf")
    (tmp_path / "link").unlink()
    with pytest.raises(ValueError, match="dtype must be"):
        translator.export(tmp_path / "deep" / "folder", format="hf", dtype="int8")
    with pytest.raises(ValueError, match=r"tokens \[5, 6\], but the format hf can force one"):
        translator.export(tmp_path / "folder", format="hf", prefix_ids=(5, 6))
    with pytest.raises(
        ValueError, match="format must be one of saved_model, ctranslate2, hf, onnx"
    ):
        translator.export(tmp_path / "folder", format="tflite")
    identity = kformer.Tokenizer.train(
        texts=corpus(200), vocabulary_size=380, normalization="identity", model_type="unigram"
    )
    with pytest.raises(ValueError, match="normalization='identity'"):
        kformer.Translator(translator.model, identity).export(tmp_path / "folder", format="hf")
    prefixed = kformer.Tokenizer.from_sentencepiece(
        tokenizers["joint"].sentencepiece_model(), source_prefix=[5]
    )
    with pytest.raises(ValueError, match="puts tokens before the text"):
        kformer.Translator(translator.model, prefixed).export(tmp_path / "folder", format="hf")
    with pytest.raises(ValueError, match="this model is a Sub"):
        kformer.Translator(
            Sub(400, num_encoder_layers=1, num_decoder_layers=1, hidden_dim=8, num_heads=2),
            tokenizers["joint"],
        ).export(tmp_path / "folder", format="hf")
    translator.model.network.encoder_layers[0].feed_forward.intermediate.quantize("int8")
    with pytest.raises(
        ValueError, match=r"is quantized \(int8\), which cannot be exported to the format hf"
    ):
        translator.export(tmp_path / "folder", format="hf")
    assert not list(tmp_path.iterdir())
