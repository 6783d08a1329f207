"""Models of Marian's, from its own files."""

import gzip
import json
import math
import shutil
import struct
import subprocess
import sys
import zipfile

import keras
import numpy as np
import pytest
import yaml

import kformer
from kformer.interop import import_checkpoint, load_checkpoint
from kformer.interop.toolkits import marian_files
from kformer.text import Tokenizer
from tests.interop.toolkits.fixtures import DATA, largest_difference, lines, log_probabilities

SPM = DATA / "marian-prenorm" / "vocab.spm"
# By fixture: the file that is read, and options.
MODELS = {
    "marian-opusmt": ("", {}),
    "marian-prenorm": ("model.bin", {}),
    "marian-ssru": ("model.npz", {"source_vocabulary": SPM}),
}
# By activation and version.
ACTIVATIONS = {
    "swish v1.12.42": lambda x: x / (1 + np.exp(-x)),
    "gelu v1.12.0": lambda x: x / (1 + np.exp(-1.702 * x)),
    "gelu v1.12.42": lambda x: x * (1 + np.vectorize(math.erf)(x / math.sqrt(2))) / 2,
}


@pytest.fixture(scope="module")
def opusmt():
    return load_checkpoint(DATA / "marian-opusmt")


@pytest.fixture
def copy(tmp_path):
    folder = tmp_path / "opus"
    shutil.copytree(DATA / "marian-opusmt", folder)
    return folder


def edit_settings(path, **changes):
    """Rewrites the settings inside a `.npz`: names with underlines, values in YAML."""
    arrays = dict(np.load(path))
    values = yaml.safe_load(arrays["special:model.yml"].tobytes().partition(b"\0")[0])
    names = {name.replace("_", "-"): text for name, text in changes.items()}
    kept = yaml.safe_dump({name: values[name] for name in values if name not in names})
    text = kept + "".join(f"{name}: {text}\n" for name, text in names.items())
    arrays["special:model.yml"] = np.frombuffer(text.encode() + b"\0\0", "int8")
    np.savez(path, **arrays)


@pytest.mark.parametrize("name", MODELS)
def test_a_model_translates_as_marian_does(name):
    file, options = MODELS[name]
    remarks = []
    translator = load_checkpoint(DATA / name / file, report=remarks.append, **options)
    assert largest_difference(translator, name) < 1e-4
    texts = lines(name, "source.txt")
    assert translator(texts, beam_size=1) == lines(name, "greedy.txt")
    if (DATA / name / "beam4.txt").exists():
        assert translator(texts, beam_size=4) == lines(name, "beam4.txt")
    assert any("unlike its training" in text for text in remarks) == (name == "marian-prenorm")


@pytest.mark.any_backend
def test_the_ids_and_the_search_are_marians(opusmt):
    tokenizer = opusmt.tokenizer
    known = set(tokenizer.vocabulary("source").pieces)
    sides = (lines("marian-opusmt", f"source.{ending}") for ending in ("txt", "pieces"))
    for text, line in zip(*sides, strict=True):
        pieces = [piece if piece in known else "<unk>" for piece in line.split()]
        assert tokenizer.tokens(tokenizer.tokenize([text])[0], "source") == pieces
    options = opusmt.options
    assert (options.beam_size, options.length_penalty) == (4, 1.0)
    # Three times the source, with the end token.
    assert (options.limits(np.array([1, 7, 333])) + 1).tolist() == [3, 21, 999]
    assert set(options.forbidden_ids) == {1, opusmt.model.pad_id}
    assert opusmt.config["imported"] == {"model_type": "Marian", "name": "marian-opusmt"}
    prenorm = load_checkpoint(DATA / "marian-prenorm")
    assert (prenorm.options.beam_size, prenorm.options.length_penalty) == (12, 0.0)


@pytest.mark.any_backend
def test_both_formats_have_the_same_weights():
    npz, binary = (
        load_checkpoint(DATA / "marian-prenorm" / f"model.{ending}") for ending in ("npz", "bin")
    )
    for one, other in zip(npz.model.get_weights(), binary.model.get_weights(), strict=True):
        np.testing.assert_array_equal(one, other)


@pytest.mark.any_backend
def test_8_bit_matrices_are_made_float32():
    folder = DATA / "marian-ssru"
    _, exact, _ = marian_files.open_tensors(folder / "model.npz")
    _, tensors, is_packed = marian_files.open_tensors(folder / "model.intgemm8.bin")
    assert is_packed and tensors.keys() == exact.keys()
    for name, (shape, read) in tensors.items():
        array, theirs = read(), exact[name][1]()
        step = np.abs(theirs).max() / 127 if array.dtype != theirs.dtype or "_W" in name else 0
        assert array.shape == shape == theirs.shape
        assert np.abs(array - theirs).max() <= 0.51 * step


@pytest.mark.any_backend
def test_a_table_of_firefox_is_not_transposed(tmp_path):
    table = np.arange(-6, 6, dtype="int8").reshape(4, 3)
    content = binary({"Wemb": table, "x_W1": table}, kind=0x4101, factor=2.0)
    (tmp_path / "model.bin.gz").write_bytes(gzip.compress(content))
    _, tensors, _ = marian_files.open_tensors(tmp_path / "model.bin.gz")
    np.testing.assert_array_equal(tensors["Wemb"][1](), table / 2)
    np.testing.assert_array_equal(tensors["x_W1"][1](), table.reshape(3, 4).T / 2)


def binary(tensors, kind, factor):
    """The bytes of Marian's binary format, of int8 matrices and their multiplier."""
    blobs = {name: (kind, array.shape, array.tobytes()) for name, array in tensors.items()}
    blobs = {name: (*each[:2], each[2] + struct.pack("<f", factor)) for name, each in blobs.items()}
    blobs["special:model.yml"] = (0x101, (1,), b"\0")
    blobs = {name: (k, s, b + bytes(-len(b) % 256)) for name, (k, s, b) in blobs.items()}
    out = struct.pack("<2Q", 1, len(blobs))
    for name, (kind, shape, blob) in blobs.items():
        out += struct.pack("<4Q", len(name) + 1, kind, len(shape), len(blob))
    out += b"".join(name.encode() + b"\0" for name in blobs)
    out += b"".join(struct.pack(f"<{len(s)}i", *s) for _, s, _ in blobs.values())
    padding = -(len(out) + 8) % 256
    return (
        out + struct.pack("<Q", padding) + bytes(padding) + b"".join(b for *_, b in blobs.values())
    )


@pytest.mark.any_backend
def test_archives_and_packed_files_are_read(tmp_path, opusmt):
    with zipfile.ZipFile(tmp_path / "opus.zip", "w") as archive:
        for path in (DATA / "marian-opusmt").iterdir():
            archive.write(path, f"opus/{path.name}")
    run = import_checkpoint(tmp_path / "opus.zip", tmp_path / "run")
    translator = kformer.Translator.load(run)
    text = lines("marian-opusmt", "source.txt")[0]
    assert translator(text) == opusmt(text)
    # As Firefox has them.
    folder = tmp_path / "ende"
    folder.mkdir()
    for source, name in (("model.bin", "model.ende.bin.gz"), ("vocab.spm", "vocab.ende.spm.gz")):
        content = gzip.compress((DATA / "marian-prenorm" / source).read_bytes())
        (folder / name).write_bytes(content)
    (folder / "lex.50.50.ende.s2t.bin").write_bytes(b"\xf1\x1a\x48\xd5\x01\x34\x17\xf5")
    remarks = []
    translator = load_checkpoint(folder, report=remarks.append)
    name = "marian-prenorm"
    assert translator(lines(name, "source.txt")[:2], beam_size=1) == lines(name, "greedy.txt")[:2]
    assert any("shortlist lex.50.50.ende.s2t.bin is not read" in remark for remark in remarks)


@pytest.mark.any_backend
def test_tokens_may_be_given(opusmt):
    translator = load_checkpoint(DATA / "marian-opusmt", pretokenized=True)
    pieces = lines("marian-opusmt", "source.pieces")[:3]
    assert translator(pieces, beam_size=1) == lines("marian-opusmt", "greedy.pieces")[:3]


@pytest.mark.any_backend
@pytest.mark.parametrize("activation", ACTIVATIONS)
def test_untied_tables_and_activations(tmp_path, activation):
    """The tables of both sides and the output layer, with a smaller target vocabulary and no
    bias.
    """
    shutil.copy(SPM, tmp_path / "srcvocab.spm")
    model = Tokenizer.from_sentencepiece(str(SPM), pad_id=0, start_id=0)
    pieces = [model.id_to_token(i) for i in range(150)]
    vocabulary = "".join(f"{json.dumps(piece)}: {i}\n" for i, piece in enumerate(pieces))
    (tmp_path / "trgvocab.yml").write_text(vocabulary)
    (tmp_path / "source.spm").write_bytes(SPM.read_bytes())
    arrays = dict(np.load(DATA / "marian-prenorm" / "model.npz"))
    table = arrays.pop("Wemb")
    del arrays["decoder_ff_logit_out_b"]
    arrays |= {"encoder_Wemb": table, "decoder_Wemb": table[:150]}
    arrays["decoder_ff_logit_out_W"] = 2 * table[:150].T
    np.savez(tmp_path / "model.npz", **arrays)
    path = tmp_path / "model.npz"
    name, version = activation.split()
    changes = {"transformer_ffn_activation": name, "version": version}
    changes["tied_embeddings_all"] = "false"
    edit_settings(path, dim_vocabs="[180, 150]", **changes)
    vocabularies = [tmp_path / "vocab.yml", tmp_path / "trgvocab.yml"]
    whole = [model.id_to_token(i) for i in range(180)]
    vocabularies[0].write_text(
        "".join(f"{json.dumps(piece)}: {i}\n" for i, piece in enumerate(whole))
    )
    translator = load_checkpoint(
        path,
        source_vocabulary=vocabularies[0],
        target_vocabulary=vocabularies[1],
        target_model=tmp_path / "source.spm",
    )
    source, target = [5, 6, 7, 0], [8, 9, 10, 0]
    (ours,) = log_probabilities(translator, [source], [target])
    theirs = reference(dict(np.load(path)), ACTIVATIONS[activation], source, target)
    np.testing.assert_allclose(ours, theirs, atol=1e-5)
    assert set(range(150, 181)) <= set(translator.options.forbidden_ids)


def reference(w, activation, source, target, heads=4):
    """The log-probabilities of a target by the pre-norm model of Marian's arrays, in NumPy."""

    def norm(x, name):
        end = "_pre" if f"{name}_ln_scale_pre" in w else ""
        x = (x - x.mean(-1, keepdims=True)) / np.sqrt(x.var(-1, keepdims=True) + 1e-6)
        return x * w[f"{name}_ln_scale{end}"] + w[f"{name}_ln_bias{end}"]

    def linear(x, name, end):
        return x @ w[f"{name}_W{end}"] + w[f"{name}_b{end}"]

    def attention(q, kv, name, causal=False):
        q, k, v = (
            linear(x, name, end).reshape(len(x), heads, -1).transpose(1, 0, 2)
            for x, end in ((q, "q"), (kv, "k"), (kv, "v"))
        )
        scores = q @ k.transpose(0, 2, 1) / np.sqrt(q.shape[-1])
        if causal:
            scores += np.triu(np.full(scores.shape[1:], -1e9), 1)
        scores = np.exp(scores - scores.max(-1, keepdims=True))
        scores /= scores.sum(-1, keepdims=True)
        return linear((scores @ v).transpose(1, 0, 2).reshape(q.shape[1], -1), name, "o")

    def feed_forward(x, name):
        inner = linear(x, name, "1")
        return linear(activation(inner), name, "2")

    def embed(vectors):
        half = vectors.shape[1] // 2
        angles = np.arange(len(vectors))[:, None] * 10000.0 ** -(np.arange(half) / (half - 1))
        return vectors * np.sqrt(2 * half) + np.concatenate([np.sin(angles), np.cos(angles)], -1)

    x = embed(w["encoder_Wemb"][source])
    for name in ("encoder_l1", "encoder_l2"):
        y = norm(x, f"{name}_self_Wo")
        x = x + attention(y, y, f"{name}_self")
        x = x + feed_forward(norm(x, f"{name}_ffn_ffn"), f"{name}_ffn")
    memory = norm(x, "encoder_top")
    table = w["decoder_Wemb"]
    x = embed(np.concatenate([np.zeros((1, table.shape[1])), table[target[:-1]]]))
    for name in ("decoder_l1", "decoder_l2"):
        y = norm(x, f"{name}_self_Wo")
        x = x + attention(y, y, f"{name}_self", causal=True)
        x = x + attention(norm(x, f"{name}_context_Wo"), memory, f"{name}_context")
        x = x + feed_forward(norm(x, f"{name}_ffn_ffn"), f"{name}_ffn")
    logits = norm(x, "decoder_top") @ w["decoder_ff_logit_out_W"]
    logits -= np.log(np.exp(logits).sum(-1, keepdims=True))
    return logits[np.arange(len(target)), target]


@pytest.fixture
def copy_with_tag(copy):
    vocabulary = copy / "vocab.yml"
    last = vocabulary.read_text().splitlines()[-1].rpartition(":")[0]
    text = vocabulary.read_text().replace(f"{last}:", '">>deu<<":')
    vocabulary.write_text(text)
    return copy


@pytest.mark.any_backend
def test_language_tags_are_languages(copy_with_tag):
    copy = copy_with_tag
    translator = load_checkpoint(copy, target_language="deu")
    token_id = translator.tokenizer.languages["deu"]
    assert translator.tokenizer.tokenize(["A"], special_tokens=True)[0][0] == token_id
    with pytest.raises(ValueError, match="deu"):
        load_checkpoint(copy, target_language="xyz")
    # They go along to Marian as tokens of its vocabulary.
    folder = translator.export(copy.parent / "marian", "marian")
    assert f'">>deu<<": {token_id}\n' in (folder / "vocab.yml").read_text(encoding="utf-8")
    again, texts = load_checkpoint(folder), lines("marian-opusmt", "source.txt")[:2]
    assert again(texts, target_language="deu") == translator(texts)
    tagged = [f">>deu<< {text}" for text in texts]
    assert again.tokenizer.tokenize(tagged, special_tokens=True) == translator.tokenizer.tokenize(
        texts, special_tokens=True
    )


@pytest.mark.any_backend
@pytest.mark.parametrize("name", MODELS)
def test_an_export_to_marian_is_the_same_file(name, tmp_path):
    file, options = MODELS[name]
    translator = load_checkpoint(DATA / name / file, **options)
    folder = translator.export(tmp_path / "marian", "marian")
    original = "opus.npz" if name == "marian-opusmt" else "model.npz"
    ours, theirs = np.load(folder / "model.npz"), np.load(DATA / name / original)
    assert set(ours) == set(theirs)
    for tensor in set(theirs) - {"special:model.yml"}:
        np.testing.assert_array_equal(ours[tensor], theirs[tensor])
    again = load_checkpoint(folder)
    assert again.options == translator.options
    text = lines(name, "source.txt")[3:4]
    assert again(text) == translator(text)


@pytest.mark.any_backend(quickest="torch")
def test_a_model_that_was_trained_further_goes_back_to_marian(tmp_path, copy):
    import_checkpoint(copy, tmp_path / "run")
    translator = kformer.Translator.load(tmp_path / "run")
    model, text = translator.model, lines("marian-opusmt", "source.txt")[:8]
    before = model.get_weights()[0].copy()
    loss = kformer.MaskedCrossentropy(label_smoothing=0.1)
    model.compile(optimizer=keras.optimizers.AdamW(1e-2), loss=loss)
    data = kformer.data.ParallelDataset(text, text, translator.tokenizer, batch_tokens=500)
    model.fit(data, epochs=2, verbose=0)
    assert np.abs(model.get_weights()[0] - before).max() > 1e-3
    again = load_checkpoint(translator.export(tmp_path / "marian", "marian"))
    for ours, theirs in zip(model.trainable_weights, again.model.trainable_weights, strict=True):
        # The bias of the token that is never written is no part of Marian's file.
        end = -1 if ours.path == "output_bias/bias" else None
        ours, theirs = map(keras.ops.convert_to_numpy, (ours, theirs))
        np.testing.assert_array_equal(ours[:end], theirs[:end])


@pytest.mark.slow
@pytest.mark.any_backend
@pytest.mark.parametrize("name", MODELS)
def test_marian_itself_reads_an_export(name, tmp_path):
    """With `pip install pymarian`."""
    if shutil.which("pymarian") is None:
        pytest.skip("pymarian is not installed")
    file, options = MODELS[name]
    folder = load_checkpoint(DATA / name / file, **options).export(tmp_path / "marian", "marian")
    is_opus = name == "marian-opusmt"
    texts = lines(name, "source.pieces" if is_opus else "source.txt")
    found = decode_by_marian(folder, texts)
    if name != "marian-prenorm":  # Marian's decoder contradicts its own training there.
        assert found == lines(name, "greedy.pieces" if is_opus else "greedy.txt")


@pytest.mark.slow
@pytest.mark.any_backend
def test_marian_itself_reads_the_tag_of_a_language(copy_with_tag):
    if shutil.which("pymarian") is None:
        pytest.skip("pymarian is not installed")
    translator = load_checkpoint(copy_with_tag, target_language="deu")
    folder = translator.export(copy_with_tag.parent / "marian", "marian")
    pieces, tokenizer = lines("marian-opusmt", "source.pieces"), translator.tokenizer
    results = translator.translate(lines("marian-opusmt", "source.txt"), beam_size=1)
    expected = [" ".join(tokenizer.tokens(each.hypotheses[0].ids[:-1])) for each in results]
    found = decode_by_marian(folder, [f">>deu<< {line}" for line in pieces])
    assert found == expected != decode_by_marian(folder, pieces)


def decode_by_marian(folder, texts):
    command = ["pymarian", "decode", "-c", folder / "decoder.yml", "-b", "1", "-n", "0"]
    command += ["--cpu-threads", "1", "--quiet", "-w", "256", "--mini-batch", "1"]
    text = "".join(f"{line}\n" for line in texts)
    result = subprocess.run(command, input=text, capture_output=True, text=True, check=True)
    return result.stdout.splitlines()


@pytest.mark.any_backend
def test_no_toolkit_and_no_other_backend_is_needed(monkeypatch):
    others = {"tensorflow", "torch", "jax"} - {keras.backend.backend()}
    for package in (*others, "pymarian", "transformers", "ctranslate2", "safetensors"):
        monkeypatch.setitem(sys.modules, package, None)
    translator = load_checkpoint(DATA / "marian-ssru" / "model.npz", source_vocabulary=SPM)
    assert translator.tokenizer.end_id == 0


@pytest.mark.any_backend
def test_what_marian_cannot_be_is_not_exported_to_it(tmp_path, opusmt):
    translator = load_checkpoint(DATA / "marian-opusmt")
    weights = translator.model.get_weights()
    weights[0][-1] = 1
    translator.model.set_weights(weights)
    with pytest.raises(ValueError, match="start token's vector is not zero"):
        translator.export(tmp_path / "marian", "marian")
    # A language that was added has a row behind the padding token's.
    tokenizer = opusmt.tokenizer
    special = {f"{name}_id": i for name, i in tokenizer.special_ids.items()}
    more = Tokenizer.from_sentencepiece(
        *(tokenizer.sentencepiece_model(side) for side in ("source", "target")),
        vocabulary=[*tokenizer.vocabulary().pieces, ">>fra<<"],
        **special,
    )
    config = {**opusmt.model.get_config(), "vocabulary_size": more.vocabulary_size}
    model = kformer.Transformer.from_config(config)
    model.set_weights([0 * weight for weight in model.get_weights()])
    with pytest.raises(ValueError, match="must be the last here.*export others to ctranslate2"):
        kformer.Translator(model, more).export(tmp_path / "marian", "marian")
    model = opusmt.model.copy_with({"position_encoding": "sinusoidal"})
    with pytest.raises(ValueError, match="position_encoding='sinusoidal', but Marian has"):
        kformer.Translator(model, opusmt.tokenizer).export(tmp_path / "marian", "marian")


def without(name):
    return lambda folder: (folder / name).unlink()


def arrays_of(change):
    def damage(folder):
        arrays = dict(np.load(folder / "opus.npz"))
        change(arrays)
        np.savez(folder / "opus.npz", **arrays)

    return damage


def cut(folder):
    content = (folder / "opus.npz").read_bytes()
    (folder / "opus.npz").write_bytes(content[: len(content) // 2])


def compressed_zeros(folder):
    arrays = {"x": np.zeros(60_000_000, "int8"), "special:model.yml": np.zeros(1, "int8")}
    np.savez_compressed(folder / "opus.npz", **arrays)


def settings(**changes):
    return lambda folder: edit_settings(folder / "opus.npz", **changes)


def write(name, text):
    return lambda folder: (folder / name).write_text(text)


REFUSED = {
    "no vocabulary": (without("vocab.yml"), "no source vocabulary.*source_vocabulary"),
    "no model of SentencePiece": (without("source.spm"), "source_model"),
    "no model": (without("opus.npz"), "lacks 'opus.npz'"),
    "cut": (cut, "damaged"),
    "zeros": (compressed_zeros, "would unpack to 60,"),
    "type": (settings(type="s2s"), "type: 's2s'"),
    "average attention": (
        settings(transformer_decoder_autoreg="average-attention"),
        "transformer-decoder-autoreg: 'average-attention'",
    ),
    "gru": (settings(transformer_decoder_autoreg="rnn"), "dec-cell: 'gru'"),
    "tied layers": (settings(transformer_tied_layers="[1, 1]"), "transformer-tied-layers"),
    "learned positions": (
        arrays_of(lambda arrays: arrays.update(Wpos=np.zeros((9, 32), "float32"))),
        "has the tensor 'Wpos'",
    ),
    "old pre-norm": (
        settings(
            transformer_preprocess="n", transformer_postprocess="da", version="v1.11.0 f00a0621"
        ),
        "version 'v1.11.0.* before Marian 1.12",
    ),
    "highway": (settings(transformer_postprocess="dhn"), "residual sums"),
    "activation": (settings(transformer_ffn_activation="tanh"), "'tanh'"),
    "heads": (settings(transformer_heads="5"), "num_heads must divide"),
    "layers": (settings(enc_depth="3"), "lacks the tensor 'encoder_l3"),
    "many layers": (settings(enc_depth="99999999"), "enc-depth"),
    "width": (settings(dim_emb="64"), "shape"),
    "wide": (settings(transformer_dim_ffn="999999999"), "shape"),
    "aliases": (settings(a="&a [1]", b="*a"), "YAML"),
    "another tensor": (
        arrays_of(lambda arrays: arrays.update(encoder_l1_x=np.zeros(3))),
        "has the tensor 'encoder_l1_x'",
    ),
    "objects": (
        arrays_of(lambda arrays: arrays.update(x=np.array([{}], dtype=object))),
        "damaged",
    ),
    "not finite": (
        arrays_of(lambda arrays: arrays["Wemb"].__setitem__((3, 3), np.nan)),
        "not finite",
    ),
    "no number": (write("vocab.yml", "a: b\n"), "the id 'b'"),
    "no end": (write("vocab.yml", "a: 0\n"), "no '</s>'"),
    "an ensemble": (write("decoder.yml", "models: [a.npz, b.npz]\n"), "2 models"),
    "a list": (write("decoder.yml", "- models\n"), "decoder.yml holds no settings"),
    "beam": (write("decoder.yml", "models: [opus.npz]\nbeam-size: many\n"), "beam-size: 'many'"),
    "codes": (
        lambda folder: (folder / "source.spm").rename(folder / "source.bpe"),
        "subword-nmt.*pretokenized",
    ),
}


@pytest.mark.any_backend
@pytest.mark.parametrize("name", REFUSED)
def test_what_cannot_be_read_is_refused_in_one_sentence(copy, name):
    damage, message = REFUSED[name]
    damage(copy)
    with pytest.raises((ValueError, FileNotFoundError), match=message) as caught:
        load_checkpoint(copy)
    assert "\n" not in str(caught.value)
