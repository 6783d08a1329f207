"""CTranslate2's folders, from their own files: what kformer exported, what CTranslate2's converters
write, older versions of the format, packages of Argos."""

import json
import shutil
import struct
import zipfile

import numpy as np
import pytest
import sentencepiece
from keras import ops

import kformer
from kformer.export.ctranslate2 import build_spec, export_ctranslate2
from kformer.interop import load_checkpoint
from kformer.interop.toolkits import ctranslate2 as reader
from kformer.interop.toolkits.ctranslate2_files import Variables
from kformer.interop.toolkits.model import ToolkitOptions
from tests.export.test_ctranslate2 import CONFIGURATIONS, FROZEN_RUN
from tests.interop.toolkits.fixtures import DATA, lines, log_probabilities

ctranslate2 = pytest.importorskip("ctranslate2")
pytestmark = [
    pytest.mark.any_backend(quickest="torch"),
    pytest.mark.usefixtures("same_threads"),
]
FIXTURE = DATA / "opennmt-py-sinusoidal"
MODELS = {
    **CONFIGURATIONS,
    "relative, two tables": {"position_encoding": "shaw", "relative_max_distance": 2},
}
TEXTS = ["the cat sat", "a dog ran to the mat"]


@pytest.fixture(scope="module")
def tokenizer():
    return kformer.Tokenizer.train(
        texts=["the cat sat on the mat", "a dog ran to the hat"],
        vocabulary_size=19,
        byte_fallback=False,
        model_type="unigram",
    )


def convert(name, folder):
    """A folder that CTranslate2's converter makes of a fixture of OpenNMT-py's, and what the engine
    translates with it."""
    pytest.importorskip("torch")
    from ctranslate2.converters import OpenNMTPyConverter

    # The options in the file are a Namespace, for which PyTorch needs leave.
    path = str(DATA / name / "model.pt")
    OpenNMTPyConverter(path, unsafe_deserialization=True).convert(str(folder))
    engine = ctranslate2.Translator(str(folder))
    tokens = lines(name, "source.pieces") if (DATA / name / "source.pieces").exists() else []
    if not tokens:
        model = sentencepiece.SentencePieceProcessor(model_file=str(DATA / name / "source.model"))
        texts = lines(name, "source.txt")
        tokens = [" ".join(model.encode(text, out_type=str)) for text in texts]
    sources = [line.split() for line in tokens]
    results = engine.translate_batch(sources, beam_size=2, max_decoding_length=60)
    return folder, tokens, [" ".join(result.hypotheses[0]) for result in results]


@pytest.fixture(scope="module")
def converted(tmp_path_factory):
    return convert(FIXTURE.name, tmp_path_factory.mktemp("converted") / "model")


@pytest.fixture
def copy(converted, tmp_path):
    folder = tmp_path / "copy"
    shutil.copytree(converted[0], folder)
    for side in ("source", "target"):
        shutil.copy(FIXTURE / f"{side}.model", folder)
    return folder


def arrays(model):
    return [ops.convert_to_numpy(weight) for weight in model.trainable_weights]


@pytest.mark.heavy
@pytest.mark.parametrize("name", MODELS)
def test_an_exported_model_comes_back(tiny_transformer, tokenizer, tmp_path, rng, name):
    model = tiny_transformer(vocabulary_size=tokenizer.vocabulary_size + 2, **MODELS[name])
    for weight in model.trainable_weights:
        weight.assign(rng.normal(size=weight.shape, scale=0.5).astype("float32"))
    translator = kformer.Translator(model, tokenizer)
    remarks, folder = [], export_ctranslate2(translator, tmp_path / "float32")
    again = load_checkpoint(folder, report=remarks.append)
    assert remarks == []
    assert again.options == translator.options
    expected = arrays(model)
    assert all(np.array_equal(a, b) for a, b in zip(expected, arrays(again.model), strict=True))
    assert "dtype" in MODELS[name] or again(TEXTS) == translator(TEXTS)
    folder = export_ctranslate2(translator, tmp_path / "int8", dtype="int8")
    small = load_checkpoint(folder, report=remarks.append)
    assert remarks == ["model.bin has matrices of 8 or 16 bits, which were made float32."]
    for a, b in zip(expected, arrays(small.model), strict=True):
        assert np.abs(a - b).max() < 0.6 * np.abs(a).max() / 127


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "int8_float16"])
def test_half_precision(tmp_path, dtype):
    pytest.importorskip("torch")
    translator = kformer.Translator.load(FROZEN_RUN)
    again = load_checkpoint(export_ctranslate2(translator, tmp_path / "model", dtype=dtype))
    pairs = zip(arrays(translator.model), arrays(again.model), strict=True)
    assert all(np.abs(a - b).max() <= 0.01 * np.abs(a).max() for a, b in pairs)


def test_a_converted_model_translates_as_the_engine_does(converted):
    folder, sources, expected = converted
    translator = load_checkpoint(folder, pretokenized=True)
    options = translator.options
    assert (options.beam_size, options.length_penalty, options.max_length) == (2, 1.0, 255)
    assert translator(sources, max_length=59) == expected


def test_a_converted_model_with_relative_positions(tmp_path):
    folder, sources, expected = convert("opennmt-py-relative", tmp_path / "model")
    translator = load_checkpoint(folder, pretokenized=True)
    assert translator.model.config.position_encoding == "shaw"
    assert translator(sources, max_length=59) == expected


def test_models_beside_the_folder(copy):
    tokenizer = load_checkpoint(copy).tokenizer
    expected = load_checkpoint(FIXTURE).tokenizer
    texts = lines(FIXTURE.name, "source.txt")
    ours = [tokenizer.vocabulary().tokens(row) for row in tokenizer.tokenize(texts)]
    assert ours == [expected.vocabulary().tokens(row) for row in expected.tokenize(texts)]


def test_positions_that_the_engine_computes(tiny_transformer, tokenizer, tmp_path, rng):
    from ctranslate2.specs import model_spec

    translator = kformer.Translator(tiny_transformer(vocabulary_size=19), tokenizer)
    spec = build_spec(translator)
    for side in (spec.encoder, spec.decoder):
        side.position_encodings.encodings = model_spec.OPTIONAL
    spec.validate()
    spec.optimize("float32")
    spec.save(str(tmp_path))
    (tmp_path / "source.spm").write_bytes(tokenizer.sentencepiece_model())
    again = load_checkpoint(tmp_path, source_model=tmp_path / "source.spm")
    pieces, engine = tokenizer.vocabulary().pieces, ctranslate2.Translator(str(tmp_path))
    source, target = rng.integers(4, 19, 5).tolist(), rng.integers(4, 19, 4).tolist()
    names = [[[pieces[i] for i in ids]] for ids in (source, target)]
    expected = engine.score_batch(*names)[0].log_probs
    end = again.model.end_id
    (found,) = log_probabilities(again, [[*source, end]], [[*target, end]])
    assert np.allclose(found, expected, atol=1e-4)


def rewritten(folder, version):
    """Writes `model.bin` in an older version of the format, with vocabularies of lines."""
    variables = Variables(folder / "model.bin")
    # Before version 3 there were no aliases.
    aliases = dict(variables.aliases) if version >= 3 else {}
    names = sorted(variables.names) + (sorted(variables.aliases) if version < 3 else [])
    out = bytearray(struct.pack("<I", version))

    def text(value):
        content = value.encode() + b"\0"
        return struct.pack("<H", len(content)) + content

    out += text(variables.specification) + struct.pack("<II", 4, len(names))
    for name in names:
        array = np.array(variables._array(variables.stored(name)))
        array = array.reshape(variables.names[variables.stored(name)][0])
        if name.endswith("num_heads"):
            array = array.astype("int8")
        if name in ("encoder/num_heads", "encoder/pre_norm", "encoder/activation"):
            name = name.removeprefix("encoder/")  # One for both sides.
        out += text(name) + struct.pack(f"<B{array.ndim}I", array.ndim, *array.shape)
        kind = {"float32": 0, "int8": 1, "int16": 2}[array.dtype.name]
        is_new = version >= 4
        out += struct.pack(
            "<BI", *((kind, array.nbytes) if is_new else (array.itemsize, array.size))
        )
        out += array.tobytes()
    if version >= 3:
        out += struct.pack("<I", len(aliases))
        for alias, name in aliases.items():
            out += text(alias) + text(name)
    (folder / "model.bin").write_bytes(out)
    (folder / "config.json").unlink()
    for path in folder.glob("*_vocabulary.json"):
        tokens = json.loads(path.read_text("utf-8"))
        path.with_suffix(".txt").write_text("".join(f"{token}\n" for token in tokens), "utf-8")
        path.unlink()


@pytest.mark.parametrize("version", [2, 3, 4, 5])
def test_older_versions(copy, version):
    expected = load_checkpoint(copy)
    rewritten(copy, version)
    found = load_checkpoint(copy)
    pairs = zip(arrays(expected.model), arrays(found.model), strict=True)
    assert all(np.array_equal(a, b) for a, b in pairs)
    assert found.model.config.num_heads == expected.model.config.num_heads
    texts = lines(FIXTURE.name, "source.txt")[:4]
    assert found.tokenizer.tokenize(texts) == expected.tokenizer.tokenize(texts)


@pytest.mark.heavy
def test_a_package_of_argos(copy, tmp_path):
    expected = load_checkpoint(copy)(["Two boys sing."], beam_size=4, length_penalty=0.2)
    path = tmp_path / "translate-en_de.argosmodel"
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("en_de/metadata.json", json.dumps({"from_code": "en", "to_code": "de"}))
        archive.write(copy / "source.model", "en_de/sentencepiece.model")
        for name in ("model.bin", "config.json", "shared_vocabulary.json"):
            if (copy / name).exists():
                archive.write(copy / name, f"en_de/model/{name}")
        for name in copy.glob("*_vocabulary.json"):
            if name.name != "shared_vocabulary.json":
                archive.write(name, f"en_de/model/{name.name}")
    translator = load_checkpoint(path)
    assert (translator.options.beam_size, translator.options.length_penalty) == (4, 0.2)
    assert translator(["Two boys sing."]) == expected


def edit(**changes):
    def damage(folder):
        path = folder / "config.json"
        path.write_text(json.dumps({**json.loads(path.read_text()), **changes}))

    return damage


def header(at, content):
    def damage(folder):
        data = bytearray((folder / "model.bin").read_bytes())
        data[at : at + len(content)] = content
        (folder / "model.bin").write_bytes(data)

    return damage


def remove(name):
    return lambda folder: [path.unlink() for path in folder.glob(name)]


REFUSED = {
    "no vocabulary": (remove("*_vocabulary.json"), "vocabulary.json"),
    "no model": (remove("source.model"), "source.*source_model|source.spm"),
    "another kind": (header(6, b"Whisper"), "of the kind 'Whisper"),
    "many variables": (header(26, b"\xff" * 4), "a list of 4294967295"),
    "cut": (
        lambda folder: (folder / "model.bin").write_bytes(
            (folder / "model.bin").read_bytes()[:5000]
        ),
        "ends early",
    ),
    "no start": (edit(decoder_start_token=None), "decoder_start_token"),
    "unknown start": (edit(decoder_start_token="<x>"), "'<x>'"),
    "no text": (edit(eos_token=3), "eos"),
    "epsilon": (edit(layer_norm_epsilon="a"), "layer_norm_epsilon='a'"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_cannot_be_read_is_refused_in_one_sentence(copy, name):
    damage, message = REFUSED[name]
    damage(copy)
    with pytest.raises((ValueError, FileNotFoundError), match=message) as caught:
        load_checkpoint(copy)
    assert "\n" not in str(caught.value)


@pytest.mark.heavy
def test_damaged_files_end_in_one_sentence(copy):
    rng, options = np.random.default_rng(0), ToolkitOptions()
    contents = {path: path.read_bytes() for path in copy.iterdir()}
    names = ["model.bin"] * 4 + ["config.json", *(p.name for p in copy.glob("*_vocabulary.json"))]
    refused = 0
    for _ in range(200):
        path = copy / rng.choice(names)
        damaged = bytearray(contents[path])
        if rng.random() < 0.3:
            del damaged[rng.integers(len(damaged)) :]
        else:
            for index in rng.integers(0, min(3000, len(damaged)), 6):
                damaged[index] = rng.integers(256)
        path.write_bytes(damaged)
        reader.is_mine(copy)
        try:
            table = reader.read(copy, options).weights
            for name in table.shapes:
                table.read(name)
        except (ValueError, FileNotFoundError) as error:
            refused += 1
            assert "\n" not in str(error)
            assert len(str(error)) < 1000
        path.write_bytes(contents[path])
    assert refused > 50
