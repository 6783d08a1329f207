"""A published folder becomes a run that translates as its library does, can be trained and
exported, and is refused if something is wrong with it.
"""

import json
import os
import shutil
import struct

import numpy as np
import pytest
from keras import ops

import kformer
from kformer.interop import import_checkpoint, load_checkpoint
from kformer.interop.tokenizers import LANGUAGES
from kformer.saving import read_config
from kformer.trainer import train_run
from kformer_cli.main import main
from tests.interop.published import published_model
from tests.interop.tokenizer_folders import marian, nllb, t5, tokenizer_json, trained_models
from tests.peers import to_numpy
from tests.text_samples import corpus

transformers = pytest.importorskip("transformers")
SIZES = {"hidden_dim": 32, "intermediate_dim": 64, "layers": 1, "heads": 4, "positions": 64}
GENERATION = {"num_beams": 3, "max_length": 24, "length_penalty": 0.9, "early_stopping": True}
# What makes the outputs end and differ, for these sizes (see `published.SPREAD`).
SPREAD = {"marian": (0.5, 8, 0.5, 5), "nllb": (0.5, 8, 0.5, 6), "t5": (1, 8, 0.5, None, 2)}


@pytest.fixture(scope="module")
def spm():
    return trained_models()


@pytest.fixture(scope="module")
def folders(spm, tmp_path_factory):
    """Whole published folders, by family."""
    found = {}
    for name, lay in (
        ("marian", lambda *args: marian(*args, tags=[])),
        ("nllb", nllb_with_json),
        ("t5", t5),
    ):
        folder = tmp_path_factory.mktemp(name)
        config = lay(folder, spm)
        special = {
            key: config[key] for key in ("pad_token_id", "eos_token_id", "decoder_start_token_id")
        }
        sizes = {**SIZES, "vocab_size": config["vocab_size"]}
        model = published_model(config["model_type"], spread=SPREAD[name], sizes=sizes, **special)
        # Where a T5 leaves a gap in a text, the library's tokenizer leaves a space.
        gaps = range(config["vocab_size"] - 128, config["vocab_size"]) if name == "t5" else ()
        forbidden = [[token] for token in (config["pad_token_id"], *gaps)]
        settings = {
            **GENERATION,
            **special,
            "bad_words_ids": forbidden,
            "forced_eos_token_id": special["eos_token_id"],
        }
        model.generation_config = transformers.GenerationConfig(**settings)
        model.save_pretrained(folder)
        found[name] = folder
    return found


@pytest.fixture(scope="module")
def sentences():
    return corpus(40, seed=5)


def nllb_with_json(folder, spm):
    config = nllb(folder, spm)
    (folder / "tokenizer.json").write_text(
        json.dumps(tokenizer_json(spm["bpe"], "BPE", LANGUAGES["nllb"])), encoding="utf-8"
    )
    return config


def their_translations(folder, sentences):
    """What the library translates, from the folder alone."""
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    model = transformers.AutoModelForSeq2SeqLM.from_pretrained(folder).eval()
    forced = {}
    if model.config.model_type == "m2m_100":
        forced["forced_bos_token_id"] = tokenizer.convert_tokens_to_ids("fra_Latn")
    inputs = tokenizer(sentences, padding=True, return_tensors="pt")
    ids = model.generate(
        input_ids=inputs["input_ids"], attention_mask=inputs["attention_mask"], **forced
    )
    return tokenizer.batch_decode(ids, skip_special_tokens=True)


def normal(texts):
    """The unknown token is dropped there and written here."""
    return [" ".join(text.replace("\u2047", " ").split()) for text in texts]


def languages_of(name):
    return {"source_language": "eng_Latn", "target_language": "fra_Latn"} if name == "nllb" else {}


@pytest.mark.heavy
@pytest.mark.parametrize("name", ["marian", "nllb", "t5"])
def test_a_run_translates_as_the_library_does(folders, name, sentences, tmp_path, backend):
    translator = load_checkpoint(folders[name], **languages_of(name)) if name == "nllb" else None
    if translator is None:
        run = import_checkpoint(folders[name], tmp_path / "run", **languages_of(name))
        translator = kformer.Translator.load(run)
        assert read_config(run)["imported"]["model_type"] == name
    assert (
        translator.options.mode,
        translator.options.beam_size,
        translator.options.max_length,
    ) == ("huggingface", 3, 22)
    expected = their_translations(folders[name], sentences)
    assert len(set(expected)) > 30
    ours = translator(sentences)
    assert normal(ours) == normal(expected)
    if backend == "tensorflow" and name != "nllb":
        saved = kformer.export.SavedModelTranslator(translator.export(tmp_path / "saved"))
        assert saved(sentences) == ours


@pytest.mark.any_backend(quickest="torch")
def test_languages_can_be_changed(folders, sentences, tmp_path):
    translator = load_checkpoint(folders["nllb"], **languages_of("nllb"))
    other = translator.for_languages(target="deu_Latn")
    assert other.model is translator.model
    first = [
        translator.tokenizer.id_to_token(each.translate(sentences[:1])[0].hypotheses[0].ids[0])
        for each in (translator, other)
    ]
    assert first == ["fra_Latn", "deu_Latn"]
    # A language that the search may not choose counts nothing, there and here.
    best = other.translate(sentences[:1], beam_size=1, forced_end=False)[0].hypotheses[0]
    source_ids = other.tokenizer.tokenize(sentences[:1], special_tokens=True)
    scores = [
        kformer.decoding.Scorer(other.model)(source_ids, [best.ids], [len(best.ids)], counted)[0]
        for counted in (1, 0)
    ]
    assert scores[0] == pytest.approx(best.score, abs=1e-3) and scores[1] < scores[0] - 1
    with pytest.raises(ValueError, match="'xyz_Latn' is unknown"):
        translator.for_languages(target="xyz_Latn")


@pytest.mark.heavy
def test_a_saved_model_changes_languages(folders, sentences, tmp_path, backend):
    if backend != "tensorflow":
        pytest.skip("a SavedModel is made by TensorFlow")
    translator = load_checkpoint(folders["nllb"], **languages_of("nllb"))
    folder = translator.export(tmp_path / "saved", signatures=["serving_default"])
    saved = kformer.export.SavedModelTranslator(folder)
    codes = ["deu_Latn", None] * 10
    found = saved(sentences[:20], target_language=codes)
    assert found == translator(sentences[:20], target_language=codes)
    assert found != translator(sentences[:20]) == saved(sentences[:20])


@pytest.mark.heavy
@pytest.mark.any_backend(quickest="torch")
def test_fine_tuning(folders, tmp_path):
    pairs = kformer.examples.generate_pairs(64, split="train", categories="time")
    for side in ("source", "target"):
        (tmp_path / side).write_text(
            "".join(getattr(pair, side) + "\n" for pair in pairs), encoding="utf-8"
        )
    run = import_checkpoint(folders["marian"], tmp_path / "run")
    files = {"train_source": str(tmp_path / "source"), "train_target": str(tmp_path / "target")}
    settings = {"steps": 25, "learning_rate": 1e-3, "warmup_steps": 5, "batch_tokens": 512}
    result = train_run(
        tmp_path / "tuned", start_from=str(run), show_progress=False, **settings, **files
    )
    losses = [
        float(row.split(",")[2])
        for row in (result.path / "history.csv").read_text().splitlines()[1:]
        if row.split(",")[2]
    ]
    assert np.mean(losses[-5:]) < 0.8 * np.mean(losses[:5])
    tuned = kformer.Translator.load(result.path)
    assert tuned.options == kformer.Translator.load(run).options
    before, after = (
        kformer.Translator.load(path).model.get_layer("output_bias").bias
        for path in (run, result.path)
    )
    assert np.abs(ops.convert_to_numpy(before) - ops.convert_to_numpy(after)).max() > 1e-4, (
        "the bias learns too"
    )


@pytest.fixture
def copy(folders, tmp_path):
    return shutil.copytree(folders["marian"], tmp_path / "copy")


def edit(path, **changes):
    path.write_text(json.dumps({**json.loads(path.read_text()), **changes}))


def tensors_of(folder):
    from safetensors.numpy import load_file

    return load_file(folder / "model.safetensors")


def with_tensors(folder, **changes):
    from safetensors.numpy import save_file

    tensors = {**tensors_of(folder), **changes}
    save_file(
        {
            name: np.ascontiguousarray(tensor)
            for name, tensor in tensors.items()
            if tensor is not None
        },
        folder / "model.safetensors",
    )


class Evil:
    def __reduce__(self):
        return (os.mkdir, ("evil",))


def pickled(folder):
    import torch

    (folder / "model.safetensors").unlink()
    torch.save({"model.shared.weight": Evil()}, folder / "pytorch_model.bin")


def truncated(folder):
    path = folder / "model.safetensors"
    path.write_bytes(path.read_bytes()[:-100])


def indexed(folder, shards):
    (folder / "model.safetensors").unlink()
    (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": shards}))


def linked(folder):
    (folder / "target.spm").rename(folder.parent / "elsewhere")
    (folder / "target.spm").symlink_to(folder.parent / "elsewhere")


def eight_bits(folder, pickle=False):
    import torch
    from safetensors.torch import load_file, save_file

    tensors = load_file(folder / "model.safetensors")
    tensors[NORM] = tensors[NORM].to(torch.float8_e4m3fn)
    if pickle:
        (folder / "model.safetensors").unlink()
        torch.save(tensors, folder / "pytorch_model.bin")
    else:
        save_file(tensors, folder / "model.safetensors")


NORM = "model.encoder.layers.0.final_layer_norm.weight"
BAD = {
    "no config": (lambda folder: (folder / "config.json").unlink(), "has no config.json"),
    "config no JSON": (
        lambda folder: (folder / "config.json").write_text("{"),
        "config.json is not valid JSON",
    ),
    "config a list": (
        lambda folder: (folder / "config.json").write_text("[]"),
        "holds list where a JSON object should be",
    ),
    "unknown architecture": (
        lambda folder: edit(folder / "config.json", model_type="gpt2"),
        "'gpt2'; kformer imports t5, mt5, marian",
    ),
    "odd size": (
        lambda folder: edit(folder / "config.json", d_model="big"),
        "d_model of .* must be a whole number of at least 1, but 'big'",
    ),
    "unequal heads": (
        lambda folder: edit(folder / "config.json", decoder_attention_heads=3),
        "decoder_num_heads must divide hidden_dim, but 32 / 3 is not whole",
    ),
    "unknown activation": (
        lambda folder: edit(folder / "config.json", activation_function="tanh"),
        "activation_function of .* must be one of .*, but 'tanh'",
    ),
    "no weights": (lambda folder: (folder / "model.safetensors").unlink(), "has no weights"),
    "truncated": (truncated, "model.safetensors is damaged"),
    "oversized header": (
        lambda folder: (folder / "model.safetensors").write_bytes(struct.pack("<Q", 2**40) + b"{}"),
        "header too large",
    ),
    "empty": (
        lambda folder: (folder / "model.safetensors").write_bytes(b""),
        "model.safetensors is damaged",
    ),
    "shape": (
        lambda folder: with_tensors(folder, **{NORM: np.ones(33, "float32")}),
        rf"'{NORM}' has the shape \[33\], but .* \[32\]",
    ),
    "missing": (lambda folder: with_tensors(folder, **{NORM: None}), f"lacks the tensor '{NORM}'"),
    "extra": (
        lambda folder: with_tensors(folder, lora=np.ones(3, "float32")),
        "has the tensor 'lora'",
    ),
    "not finite": (
        lambda folder: with_tensors(folder, **{NORM: np.full(32, np.nan, "float32")}),
        "not finite",
    ),
    "whole numbers": (
        lambda folder: with_tensors(folder, **{NORM: np.ones(32, "int32")}),
        "holds int32 numbers",
    ),
    "8 bits": (eight_bits, f"'{NORM}' holds numbers that cannot be read"),
    "8 bits in a pickle": (
        lambda folder: eight_bits(folder, pickle=True),
        f"'{NORM}' holds numbers that cannot be read",
    ),
    "untied": (
        lambda folder: with_tensors(
            folder, **{"lm_head.weight": tensors_of(folder)["model.shared.weight"] + 1}
        ),
        "repeats",
    ),
    "pickle": (pickled, "holds more than weights"),
    "pickle no pickle": (
        lambda folder: (folder / "model.safetensors").rename(folder / "pytorch_model.bin"),
        "is damaged or no PyTorch file",
    ),
    "index": (lambda folder: indexed(folder, {}), "has no weight_map"),
    "missing shard": (
        lambda folder: indexed(folder, {NORM: "model-1.safetensors"}),
        "lacks 'model-1.safetensors'",
    ),
    "shard elsewhere": (
        lambda folder: indexed(folder, {NORM: "../copy/config.json"}),
        "lacks '../copy/config.json'",
    ),
    "link": (linked, "is a link that leads out of the folder"),
    "no tokenizer": (lambda folder: (folder / "vocab.json").unlink(), "has no vocab.json"),
    "generation": (
        lambda folder: edit(folder / "generation_config.json", num_beams=-1),
        "num_beams of .* must be a whole number of at least 0, but -1",
    ),
    "limit": (
        lambda folder: edit(folder / "generation_config.json", max_length=1),
        "leaves no token",
    ),
    "suppressed": (
        lambda folder: edit(folder / "generation_config.json", suppress_tokens=["a"]),
        "suppress_tokens of .* must be a whole number of at least 0, but 'a'",
    ),
    "bad words": (
        lambda folder: edit(folder / "generation_config.json", bad_words_ids=[["a"], [3]]),
        "bad_words_ids of .* must be a whole number of at least 0, but 'a'",
    ),
    "bad words no list": (
        lambda folder: edit(folder / "generation_config.json", bad_words_ids=7),
        "7 for bad_words_ids",
    ),
    "no such token": (
        lambda folder: edit(folder / "generation_config.json", suppress_tokens=[10**6]),
        "forbidden_ids holds 1000000",
    ),
    "start": (
        lambda folder: edit(folder / "generation_config.json", decoder_start_token_id="a"),
        "decoder_start_token_id of the checkpoint must be a whole number of at least 0, but 'a'",
    ),
    "special ids": (
        lambda folder: edit(folder / "config.json", eos_token_id=5),
        "the end token is 5 in config.json but 0",
    ),
    "huge": (
        lambda folder: edit(folder / "config.json", vocab_size=10**13, decoder_vocab_size=None),
        "has the shape",
    ),
    "wide": (
        lambda folder: edit(folder / "config.json", encoder_ffn_dim=10**13, decoder_ffn_dim=10**13),
        "fc1.weight' has the shape",
    ),
    "many layers": (
        lambda folder: edit(folder / "config.json", encoder_layers=90),
        "1 encoder layers, but config.json asks for 90",
    ),
    "pointer": (
        lambda folder: (folder / "source.spm").write_text("version https://git-lfs"),
        "source.spm is not a SentencePiece model",
    ),
    "early stopping": (
        lambda folder: edit(folder / "generation_config.json", early_stopping="soon"),
        "early_stopping must be",
    ),
}


@pytest.mark.any_backend
@pytest.mark.parametrize("name", BAD)
def test_bad_folders(copy, tmp_path, name, monkeypatch):
    spoil, message = BAD[name]
    monkeypatch.chdir(tmp_path)
    spoil(copy)
    before = sorted(tmp_path.rglob("*"))
    with pytest.raises((ValueError, FileNotFoundError), match=message) as caught:
        import_checkpoint(copy, tmp_path / "runs" / "run")
    assert "\n" not in str(caught.value)
    assert sorted(tmp_path.rglob("*")) == before, "nothing is left, and nothing was run"


@pytest.mark.any_backend
def test_nothing_is_overwritten(folders, tmp_path):
    (tmp_path / "run").mkdir()
    (tmp_path / "link").symlink_to("nowhere")
    for name in ("run", "link"):
        with pytest.raises(FileExistsError, match="already"):
            import_checkpoint(folders["marian"], tmp_path / name)


UNFOLLOWED = {
    "encoder_repetition_penalty": 1.3,
    "num_beam_groups": 2,
    "bad_words_ids": [[1, 2], [5]],
}


@pytest.mark.any_backend
def test_settings_that_the_search_does_not_follow_are_refused(copy, tmp_path):
    edit(copy / "generation_config.json", **UNFOLLOWED, min_p=0.2, use_cache=True)
    before = sorted(tmp_path.rglob("*"))
    with pytest.raises(ValueError) as caught:
        import_checkpoint(copy, tmp_path / "run")
    assert str(copy / "generation_config.json") in str(caught.value)
    named = (
        "encoder_repetition_penalty=1.3, num_beam_groups=2 and bad_words_ids with 1 sequence of "
        "several tokens"
    )
    assert named in str(caught.value)
    assert "ignore=('encoder_repetition_penalty', 'num_beam_groups', 'bad_words_ids')" in str(
        caught.value
    )
    assert (
        "--ignore encoder_repetition_penalty --ignore num_beam_groups --ignore bad_words_ids"
        in str(caught.value)
    )
    assert sorted(tmp_path.rglob("*")) == before
    with pytest.raises(ValueError, match=r"num_beam_groups=2, which kformer's search"):
        load_checkpoint(copy, ignore=("encoder_repetition_penalty", "bad_words_ids"))
    reported = []
    translator = load_checkpoint(copy, ignore=tuple(UNFOLLOWED), report=reported.append)
    assert len(reported) == 3 and "encoder_repetition_penalty=1.3" in reported[0]
    assert translator.options.forbidden_ids == (5,)


@pytest.mark.any_backend
@pytest.mark.parametrize(
    ("settings", "named"),
    [
        ({"a_setting_of_tomorrow": 0.3}, "a_setting_of_tomorrow=0.3"),
        ({"do_sample": True, "num_beams": 1, "min_p": 0.1}, "min_p=0.1"),
        ({"do_sample": True}, "do_sample=True beside num_beams=3"),
        ({"eos_token_id": [0, 7]}, r"eos_token_id=\[0, 7\]"),
        ({"forced_bos_token_id": [3, 4]}, r"forced_bos_token_id=\[3, 4\]"),
    ],
    ids=str,
)
def test_every_unknown_setting_is_refused(copy, settings, named):
    edit(copy / "generation_config.json", **settings)
    with pytest.raises(ValueError, match=named + ", which kformer's search does not follow"):
        load_checkpoint(copy)
    name = named.partition("=")[0]
    assert load_checkpoint(copy, ignore=(name,)).options.beam_size in (1, 3)


@pytest.mark.any_backend
@pytest.mark.parametrize("settings", [{"x": "y" * 10**6}, {str(i): 1 for i in range(10**5)}])
def test_a_message_about_settings_is_short(copy, settings):
    edit(copy / "generation_config.json", **settings)
    with pytest.raises(ValueError, match="generation_config.json has .* does not follow") as caught:
        load_checkpoint(copy)
    assert len(str(caught.value)) < 1000


@pytest.mark.any_backend(quickest="torch")
def test_penalties_on_repetition_are_followed(copy, sentences, tmp_path, backend):
    """A published folder's penalties are the default of its import, and of its SavedModel."""
    plain = their_translations(copy, sentences)
    edit(copy / "generation_config.json", repetition_penalty=1.5, no_repeat_ngram_size=2)
    translator = kformer.Translator.load(import_checkpoint(copy, tmp_path / "run"))
    options = translator.options
    assert (options.repetition_penalty, options.no_repeat_ngram_size) == (1.5, 2)
    expected, ours = their_translations(copy, sentences), translator(sentences)
    assert sum(one != other for one, other in zip(expected, plain, strict=True)) >= 20
    assert normal(ours) == normal(expected)
    if backend == "tensorflow":
        saved = kformer.export.SavedModelTranslator(translator.export(tmp_path / "saved"))
        assert saved(sentences) == ours


@pytest.mark.any_backend
@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"repetition_penalty": 0}, r"repetition_penalty must be above 0 .*, but 0 was given"),
        ({"repetition_penalty": "high"}, "repetition_penalty must be above 0"),
        ({"no_repeat_ngram_size": 2.5}, "no_repeat_ngram_size of .* must be a whole number"),
    ],
)
def test_bad_penalties_are_refused(copy, settings, message):
    edit(copy / "generation_config.json", **settings)
    with pytest.raises(ValueError, match=f"generation_config.json.*{message}|{message}"):
        load_checkpoint(copy)


@pytest.mark.any_backend
def test_names_to_ignore(copy, tmp_path):
    with pytest.raises(ValueError, match="ignore must be a list of names of settings, but 'top_k'"):
        load_checkpoint(copy, ignore="top_k")
    edit(copy / "generation_config.json", num_beam_groups=1, encoder_no_repeat_ngram_size=0)
    assert load_checkpoint(copy, ignore=["num_beam_groups"]).options.beam_size == 3
    (copy / "generation_config.json").unlink()
    edit(copy / "config.json", diversity_penalty=0.5)
    with pytest.raises(ValueError, match="config.json has diversity_penalty=0.5, which"):
        load_checkpoint(copy)
    arguments = ["import", str(copy), "--output", str(tmp_path / "run")]
    assert main(arguments) == 1
    assert main([*arguments, "--ignore", "diversity_penalty"]) == 0
    assert (tmp_path / "run" / "config.json").is_file()


@pytest.mark.any_backend
def test_samples(copy):
    """Sampling returns as many texts as the configuration asks for, more than its beam size; a list
    of one start token is that token.
    """
    edit(
        copy / "generation_config.json",
        do_sample=True,
        num_beams=1,
        num_return_sequences=3,
        top_k=7,
        decoder_start_token_id=[5],
    )
    translator = load_checkpoint(copy)
    assert (translator.options.sampling, translator.options.n_best, translator.options.top_k) == (
        True,
        3,
        7,
    )
    assert translator.model.start_id == 5 and len(translator("the dog")) == 3


@pytest.mark.any_backend
def test_float16_is_refused_where_it_would_overflow(copy, tmp_path):
    with_tensors(copy, **{NORM: np.full(32, 1e5, "float32")})
    with pytest.raises(ValueError, match="too large for float16"):
        load_checkpoint(copy, dtype="float16")
    with_tensors(copy, **{NORM: np.ones(32, "float32")})
    run = import_checkpoint(copy, tmp_path / "half", dtype="float16")
    (tmp_path / "text").write_text("the dog\n" * 10)
    with pytest.raises(ValueError, match="are float16, whose gradients overflow"):
        train_run(
            tmp_path / "tuned",
            start_from=str(run),
            **dict.fromkeys(["train_source", "train_target"], str(tmp_path / "text")),
        )
    assert not (tmp_path / "tuned").exists()


@pytest.mark.any_backend
def test_forced_first_tokens(folders, tmp_path):
    """A language is the target language; another token is forced by the search."""
    nllb_copy = shutil.copytree(folders["nllb"], tmp_path / "nllb")
    settings = json.loads((nllb_copy / "tokenizer_config.json").read_text())
    (nllb_copy / "tokenizer_config.json").write_text(json.dumps({**settings, "tgt_lang": None}))
    german = load_checkpoint(folders["nllb"]).tokenizer.languages["deu_Latn"]
    edit(nllb_copy / "generation_config.json", forced_bos_token_id=german)
    assert load_checkpoint(nllb_copy, source_language="eng_Latn").options.prefix_ids == (german,)
    french = load_checkpoint(nllb_copy, source_language="eng_Latn", target_language="fra_Latn")
    assert (
        french.tokenizer.target_language == "fra_Latn"
        and french.options.prefix_ids == french.tokenizer.target_prefix
    )
    marian_copy = shutil.copytree(folders["marian"], tmp_path / "marian")
    edit(marian_copy / "generation_config.json", forced_bos_token_id=9)
    translator = load_checkpoint(marian_copy)
    assert translator.options.prefix_ids == (9,)
    assert translator.translate(["the dog"], beam_size=1)[0].hypotheses[0].ids[0] == 9


@pytest.mark.any_backend
def test_a_folder_without_generation_config(copy):
    """Older folders have the search in config.json."""
    (copy / "generation_config.json").unlink()
    edit(copy / "config.json", num_beams=6, max_length=40, bad_words_ids=[[7]])
    options = load_checkpoint(copy).options
    assert (options.beam_size, options.max_length, options.forbidden_ids, options.forced_end) == (
        6,
        38,
        (7,),
        True,
    )


@pytest.mark.any_backend
def test_the_usual_search_of_a_t5_forces_no_end(folders, tmp_path):
    folder = shutil.copytree(folders["t5"], tmp_path / "t5")
    (folder / "generation_config.json").unlink()
    config = transformers.AutoConfig.from_pretrained(folder)
    assert getattr(config, "forced_eos_token_id", None) is None
    assert load_checkpoint(folder).options.forced_end is False
    with pytest.raises(ValueError, match="is a T5, whose sums are too large for float16"):
        load_checkpoint(folder, dtype="float16")


@pytest.mark.any_backend
@pytest.mark.parametrize("version", ["4.57.1", "5.24.0"])
def test_an_mt5_with_one_table_is_scaled_by_older_versions_alone(folders, tmp_path, version):
    torch = pytest.importorskip("torch")
    folder = shutil.copytree(folders["t5"], tmp_path / "mt5")
    config = json.loads((folder / "config.json").read_text())
    config.pop("scale_decoder_outputs", None)
    names = {"model_type": "mt5", "architectures": ["MT5ForConditionalGeneration"]}
    changes = {"tie_word_embeddings": True, "transformers_version": version}
    (folder / "config.json").write_text(json.dumps({**config, **names, **changes}))
    theirs = transformers.MT5ForConditionalGeneration.from_pretrained(folder).eval()
    model = load_checkpoint(folder).model
    ids = np.array([[5, 6, 7], [8, 9, 5]])
    expected = theirs(
        input_ids=torch.tensor(ids), decoder_input_ids=torch.tensor(ids)
    ).logits.detach()
    found = to_numpy(model({"source_ids": ids, "target_ids": ids}))
    scale = 1 if version.startswith("5") else model.hidden_dim**-0.5
    np.testing.assert_allclose(found, scale * expected.numpy(), atol=1e-3)


@pytest.mark.heavy
@pytest.mark.any_backend
def test_safetensors_need_no_torch(folders):
    """The whole way in, in a process where PyTorch cannot be imported."""
    import subprocess
    import sys

    from tests.hiding import hiding

    code = (
        hiding("torch", "transformers", "ctranslate2", "onnx")
        + f"""
import kformer
translator = kformer.interop.load_checkpoint({str(folders["marian"])!r})
print(translator(["the dog"], beam_size=1))
"""
    )
    run = subprocess.run(
        [sys.executable, "-c", code],
        env={**os.environ, "KERAS_BACKEND": "jax"},
        capture_output=True,
        text=True,
    )
    assert run.returncode == 0, run.stderr
