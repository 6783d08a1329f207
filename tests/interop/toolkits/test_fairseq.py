"""Models of fairseq, from its own files."""

import argparse
import shutil

import numpy as np
import pytest
from keras import ops

from kformer.interop import load_checkpoint
from kformer.interop.toolkits import fairseq
from kformer.interop.toolkits.model import ToolkitOptions
from kformer.interop.toolkits.torch_files import StoredTensor, read_torch
from tests.interop.toolkits.fixtures import DATA, largest_difference, lines

LANGUAGES = {"source_language": "en", "target_language": "de"}
# By fixture: options.
MODELS = {
    "fairseq-sinusoidal": {},
    "fairseq-learned": {},
    "fairseq-multilingual": LANGUAGES,
}
PROJECTIONS = ("q_proj", "k_proj", "v_proj")


@pytest.fixture
def copy(tmp_path):
    def copy_of(name):
        shutil.copytree(DATA / name, tmp_path / name)
        return tmp_path / name

    return copy_of


def saved(folder, change, *, zipped=True):
    """Writes a checkpoint again, after a change of its content."""
    import torch

    def tensors(value):
        if isinstance(value, StoredTensor):
            return torch.tensor(np.array(value.read()))
        if isinstance(value, dict):
            return {name: tensors(inner) for name, inner in value.items()}
        return value

    content = tensors(read_torch(folder / "model.pt"))
    change(content)
    torch.save(content, folder / "model.pt", _use_new_zipfile_serialization=zipped)


def weights(translator):
    return [ops.convert_to_numpy(weight) for weight in translator.model.weights]


@pytest.mark.parametrize("name", MODELS)
def test_a_model_translates_as_fairseq_does(name):
    translator = load_checkpoint(DATA / name, **MODELS[name])
    tokenizer, texts = translator.tokenizer, lines(name, "source.txt")
    pieces = tokenizer.vocabulary("source").pieces
    for row, line in zip(tokenizer.tokenize(texts), lines(name, "source.pieces"), strict=True):
        expected = [piece if piece in pieces else "<unk>" for piece in line.split()]
        assert [pieces[i] for i in row] == expected
    assert largest_difference(translator, name) < 1e-4
    assert translator(texts, beam_size=1, max_length=60) == lines(name, "greedy.txt")
    assert translator(texts, beam_size=4, max_length=60) == lines(name, "beam4.txt")


@pytest.mark.any_backend
def test_the_search_and_the_languages_are_fairseqs():
    translator = load_checkpoint(DATA / "fairseq-multilingual" / "model.pt", **LANGUAGES)
    options, tokenizer = translator.options, translator.tokenizer
    assert (options.beam_size, options.length_penalty, options.early_stopping) == (5, 1.0, True)
    assert (options.min_length, options.max_length) == (1, 200)
    assert options.forbidden_ids == (1,)
    assert tokenizer.languages == {"en": 182, "de": 183}
    assert tokenizer.tokenize("", special_tokens=True) == [183, 2]
    assert tokenizer.for_languages(target="en").tokenize("", special_tokens=True) == [182, 2]
    other = load_checkpoint(DATA / "fairseq-multilingual", target_language="en")
    assert other.options.prefix_ids == (182,)


@pytest.mark.any_backend
def test_texts_may_be_tokens():
    name = "fairseq-learned"
    texts, tokens = (load_checkpoint(DATA / name, pretokenized=p).tokenizer for p in (False, True))
    expected = texts.tokenize(lines(name, "source.txt"))
    assert tokens.tokenize(lines(name, "source.pieces")) == expected


@pytest.mark.any_backend(quickest="torch")
def test_files_of_old_versions(copy):
    """One matrix for three projections, norms by number, options in `args`, a file of several
    pickles."""
    pytest.importorskip("torch")
    folder = copy("fairseq-learned")
    expected = weights(load_checkpoint(folder))

    def make_old(content):
        import torch

        model = content["model"]
        for name in [name for name in model if ".q_proj." in name]:
            parts = [model.pop(name.replace("q_proj", each)) for each in PROJECTIONS]
            model[name.replace("q_proj.", "in_proj_")] = torch.cat(parts)
        for side, norms in fairseq._NORMS.items():
            for name in [name for name in model if name.startswith(side)]:
                for number, norm in enumerate(norms):
                    if f".{norm}." in name:
                        new = name.replace(f".{norm}.", f".layer_norms.{number}.")
                        model[new] = model.pop(name)
        model["decoder.embed_out"] = model.pop("decoder.output_projection.weight")
        content["args"] = argparse.Namespace(**content.pop("cfg")["model"])

    saved(folder, make_old, zipped=False)
    found = weights(load_checkpoint(folder))
    assert all(np.array_equal(a, b) for a, b in zip(expected, found, strict=True))


@pytest.mark.any_backend(quickest="torch")
def test_learned_positions_beside_a_shared_table(copy):
    """fairseq has a table of positions on each side; they may have two lengths."""
    torch = pytest.importorskip("torch")
    folder = copy("fairseq-sinusoidal")

    def learn(content):
        options = content["cfg"]["model"]
        options |= {"encoder_learned_pos": True, "decoder_learned_pos": True}
        for side, rows in (("encoder", 70), ("decoder", 52)):
            content["model"][f"{side}.embed_positions.weight"] = torch.randn(rows, 32)

    saved(folder, learn)
    model = load_checkpoint(folder).model
    assert model.max_length == 50
    assert not model.config.share_embeddings
    tables = model.network.source_embedding, model.network.target_embedding
    one, other = (ops.convert_to_numpy(table.embeddings) for table in tables)
    assert np.array_equal(one, other)
    one, other = (ops.convert_to_numpy(table.position_embeddings) for table in tables)
    assert not np.array_equal(one, other)


@pytest.mark.any_backend(quickest="torch")
def test_a_decoder_with_norms_before_its_sublayers(copy):
    torch = pytest.importorskip("torch")
    folder = copy("fairseq-sinusoidal")

    def change(content):
        content["cfg"]["model"]["decoder_normalize_before"] = True
        for name, tensor in (("weight", torch.full((32,), 2.0)), ("bias", torch.zeros(32))):
            content["model"][f"decoder.layer_norm.{name}"] = tensor

    saved(folder, change)
    model = load_checkpoint(folder).model
    assert not model.config.normalize_first and model.config.decoder_normalize_first
    assert model.network.encoder.norm is None
    assert (ops.convert_to_numpy(model.network.decoder.norm.gamma) == 2).all()


def option(**changes):
    return lambda folder: saved(folder, lambda content: content["cfg"]["model"].update(changes))


def tensor(name, change):
    def damage(folder):
        def replace(content):
            content["model"][name] = change(content["model"].get(name))

        saved(folder, replace)

    return damage


def lines_of(change):
    def damage(folder):
        path = folder / "dict.de.txt"
        text = "\n".join(change(path.read_text(encoding="utf-8").splitlines()))
        path.write_text(text + "\n", encoding="utf-8")

    return damage


def replace_models(folder):
    for name in ("source.model", "target.model"):
        (folder / name).unlink()
    (folder / "bpecodes").write_text("#version: 0.2\n")


def copy_twice(folder):
    shutil.copy(folder / "model.pt", folder / "a.pt")
    (folder / "model.pt").rename(folder / "b.pt")


REFUSED = {
    "no dictionary": (lambda folder: (folder / "dict.de.txt").unlink(), "dict.de.txt.*vocabulary"),
    "no models": (lambda folder: (folder / "source.model").unlink(), "source.model"),
    "codes": (replace_models, "subword-nmt.*pretokenized"),
    "two checkpoints": (copy_twice, "2 checkpoints, a.pt and b.pt"),
    "a line too few": (lines_of(lambda text: text[:-1]), "181 tokens.*182 rows"),
    "no count": (lines_of(lambda text: ["a", *text[1:]]), "Line 1 of .*dict.de.txt is 'a'"),
    "twice": (lines_of(lambda text: [*text[:-1], text[0]]), "twice"),
    "language model": (option(arch="transformer_lm"), "the arch 'transformer_lm'"),
    "mBART": (
        lambda folder: saved(
            folder,
            lambda content: content["cfg"]["task"].update(_name="translation_from_pretrained_bart"),
        ),
        "the task 'translation_from_pretrained_bart'",
    ),
    "activation": (option(activation_fn="tanh"), "activation_fn of .*'tanh'"),
    "cross": (option(cross_self_attention=True), "cross_self_attention=True"),
    "norms": (
        tensor("decoder.layer_norm.weight", lambda _: __import__("torch").ones(32)),
        "a norm after the layers of one side",
    ),
    "positions": (option(encoder_learned_pos=True), "learned_pos"),
    "widths": (tensor("decoder.embed_tokens.weight", lambda t: t[:, :16]), "width 32 and .* of 16"),
    "heads": (option(encoder_attention_heads=5), "num_heads must divide"),
    "many heads": (option(encoder_attention_heads=10**9), "num_heads must divide"),
    "no heads": (option(encoder_attention_heads=None), "encoder_attention_heads"),
    "dropout": (option(dropout="a"), "dropout"),
    "another tensor": (tensor("encoder.x", lambda _: __import__("torch").ones(3)), "encoder.x"),
    "no tensor": (tensor("encoder.layers.0.fc1.bias", lambda _: None), "among its weights"),
    "shape": (tensor("encoder.layers.0.fc1.bias", lambda t: t[1:]), r"\[63\]"),
    "not finite": (tensor("encoder.layers.0.fc1.bias", lambda t: t / 0), "not finite"),
    "many layers": (
        lambda folder: saved(
            folder,
            lambda content: content["model"].update(
                {f"encoder.layers.{i}.x": content["model"]["encoder.version"] for i in range(999)}
            ),
        ),
        "999 layers",
    ),
}


@pytest.mark.heavy
@pytest.mark.any_backend(quickest="torch")
@pytest.mark.parametrize("name", REFUSED)
def test_what_cannot_be_read_is_refused_in_one_sentence(copy, name):
    pytest.importorskip("torch")
    folder = copy("fairseq-sinusoidal")
    damage, message = REFUSED[name]
    damage(folder)
    with pytest.raises((ValueError, FileNotFoundError), match=message) as caught:
        load_checkpoint(folder)
    assert "\n" not in str(caught.value)


@pytest.mark.any_backend
def test_a_language_is_needed_and_known():
    with pytest.raises(ValueError, match="needs a target language: .* one of de, en"):
        load_checkpoint(DATA / "fairseq-multilingual")
    with pytest.raises(ValueError, match="'fr'"):
        load_checkpoint(DATA / "fairseq-multilingual", target_language="fr")
    with pytest.raises(ValueError, match="no choice of languages"):
        load_checkpoint(DATA / "fairseq-learned", target_language="fr")


@pytest.mark.heavy
@pytest.mark.any_backend
def test_damaged_files_end_in_one_sentence(copy):
    folder, rng = copy("fairseq-multilingual"), np.random.default_rng(0)
    options = ToolkitOptions(**LANGUAGES)
    contents = {path: path.read_bytes() for path in folder.iterdir()}
    refused = 0
    for _ in range(200):
        path = folder / rng.choice(["model.pt", "model.pt", "model.pt", "dict.de.txt"])
        damaged = bytearray(contents[path])
        if rng.random() < 0.3:
            del damaged[rng.integers(len(damaged)) :]
        else:  # The list of tensors, or the archive's at the end.
            start = rng.choice([0, max(0, len(damaged) - 9000)])
            for index in start + rng.integers(0, min(31_000, len(damaged) - start), 12):
                damaged[index] = rng.integers(256)
        path.write_bytes(damaged)
        fairseq.is_mine(folder)
        try:
            table = fairseq.read(folder, options).weights
            for name in table.shapes:
                table.read(name)
        except (ValueError, FileNotFoundError) as error:
            refused += 1
            assert "\n" not in str(error)
            assert len(str(error)) < 1000
        path.write_bytes(contents[path])
    assert refused > 50
