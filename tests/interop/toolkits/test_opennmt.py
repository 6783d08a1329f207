"""Models of OpenNMT-tf and OpenNMT-py, from their own files."""

import argparse
import dataclasses
import pathlib
import re
import shutil
import sys
import types

import numpy as np
import pytest
from keras import ops

from kformer.interop import load_checkpoint
from kformer.interop.toolkits import opennmt_tf
from kformer.interop.toolkits.model import ToolkitOptions
from kformer.interop.toolkits.tf_checkpoint import read_checkpoint
from tests.interop.toolkits import tf_checkpoints
from tests.interop.toolkits.fixtures import DATA, lines

# By fixture: the path inside, the length penalty of its beam, and options.
MODELS = {
    "opennmt-tf-transformer": ("", 0.6, {}),
    "opennmt-tf-v1": ("run/model.ckpt-700", 0.6, {"pretokenized": True}),
    "opennmt-tf-relative": ("run", 0.6, {}),
    "opennmt-py-sinusoidal": ("", 0.0, {}),
    "opennmt-py-relative": ("model.pt", 0.0, {}),
    "opennmt-py-2": ("model.pt", 0.0, {}),
}
END = "/.ATTRIBUTES/VARIABLE_VALUE"


@pytest.fixture
def copy(tmp_path):
    def copy_of(name):
        return pathlib.Path(shutil.copytree(DATA / name, tmp_path / name))

    return copy_of


def arrays_of(name):
    tensors, _ = read_checkpoint(next((DATA / name / "run").glob("*.index")).with_suffix(""))
    return {name: np.array(tensor.read()) for name, tensor in tensors.items() if tensor.dtype}


@pytest.mark.parametrize("name", MODELS)
def test_a_model_translates_as_its_toolkit_does(name):
    path, penalty, options = MODELS[name]
    translator = load_checkpoint(DATA / name / path, **options)
    ending = "pieces" if options.get("pretokenized") else "txt"
    texts, greedy = lines(name, f"source.{ending}"), lines(name, f"greedy.{ending}")
    assert translator(texts, beam_size=1) == greedy
    beam = translator(texts, beam_size=4, length_penalty=penalty)
    assert beam == lines(name, f"beam4.{ending}")
    sums = [float(line.split()[0]) for line in lines(name, "greedy.scores.txt")]
    scores = [float(score) for score in translator.score(texts, greedy)]
    assert np.abs(np.array(scores) - sums).max() < 1e-4


@pytest.mark.any_backend
def test_texts_may_be_tokens():
    name = "opennmt-py-sinusoidal"
    texts, tokens = (load_checkpoint(DATA / name, pretokenized=p).tokenizer for p in (False, True))
    pieces = lines(name, "source.pieces")
    assert tokens.tokenize(pieces) == texts.tokenize(lines(name, "source.txt"))
    # Each unknown token is one, and no token of a text is a sign of the model.
    assert tokens.tokenize("▁A x 漢 字 </s> <blank>") == [*texts.tokenize("A"), 0, 0, 0, 0, 0]
    ids = tokens.tokenize(pieces[:3], side="target")
    assert tokens.detokenize(ids) == pieces[:3]
    assert tokens.detokenize([0, 0]) == "<unk> <unk>"


@pytest.mark.any_backend
def test_the_search_is_the_toolkits():
    translator = load_checkpoint(DATA / "opennmt-tf-transformer")
    options = translator.options
    assert (options.beam_size, options.length_penalty, options.max_length) == (4, 0.6, 250)
    assert translator.config["imported"]["model_type"] == "OpenNMT-tf"
    options = load_checkpoint(DATA / "opennmt-py-relative").options
    assert (options.beam_size, options.length_ratio, options.length_offset) == (5, 1.25, 4)
    options = load_checkpoint(DATA / "opennmt-py-2").options
    assert (options.beam_size, options.length_penalty, options.max_length) == (5, 0.0, 99)


@pytest.mark.any_backend
def test_settings_beside_a_model(copy):
    folder = copy("opennmt-tf-transformer")
    for side in ("source", "target"):
        (folder / f"{side}.vocab").rename(folder / f"{side}-words.txt")
    settings = """
        params: {beam_width: 2, length_penalty: 0.3, maximum_decoding_length: 77}
        data:
          source_vocabulary: /elsewhere/source-words.txt
          target_vocabulary: target-words.txt
          source_sequence_controls: {start: true, end: true}
    """
    (folder / "data.yml").write_text(settings)
    translator = load_checkpoint(folder)
    options = translator.options
    assert (options.beam_size, options.length_penalty, options.max_length) == (2, 0.3, 77)
    ids = translator.tokenizer.tokenize("A man", special_tokens=True)
    assert (ids[0], ids[-1]) == (1, 2)


def check_tokens(translator, tokens, settings, texts):
    """Ids are those of the tokens that the toolkit's own tokenizer writes."""
    peer = pytest.importorskip("pyonmttok").Tokenizer(**settings)
    for side in ("source", "target"):
        for text in texts:
            words = " ".join(peer.tokenize(text)[0])
            assert translator.tokenizer.tokenize(text, side=side) == tokens.tokenize(words, side)


@pytest.mark.any_backend
def test_opennmts_tokenizer_splits_the_texts_that_it_split(copy, monkeypatch):
    folder, texts = copy("opennmt-tf-transformer"), lines("opennmt-tf-transformer", "source.txt")
    params = "{mode: aggressive, joiner_annotate: true}"
    tokenization = f"{{type: OpenNMTTokenizer, params: {params}}}"
    (folder / "data.yml").write_text(
        f"data: {{source_tokenization: {tokenization}, target_tokenization: {tokenization}}}"
    )
    tokens = load_checkpoint(folder, pretokenized=True).tokenizer
    settings = {"mode": "aggressive", "joiner_annotate": True}
    check_tokens(load_checkpoint(folder), tokens, settings, texts)
    with monkeypatch.context() as patch:
        patch.setattr("kformer.interop.toolkits.files.is_installed", lambda name: False)
        with pytest.raises(ImportError, match="kformer.opennmt.*, or import with pretokenized"):
            load_checkpoint(folder)
    torch, folder = pytest.importorskip("torch"), copy("opennmt-py-relative")
    content = torch.load(folder / "model.pt", weights_only=False)
    content["opt"]._all_transform = {"onmt_tokenize"}
    for mode, kind in (("aggressive", "none"), ("space", "bpe")):
        settings = {"mode": mode, "joiner_annotate": True}
        for side in ("src", "tgt"):
            setattr(content["opt"], f"{side}_onmttok_kwargs", str(settings))
            setattr(content["opt"], f"{side}_subword_type", kind)
            setattr(content["opt"], f"{side}_subword_model", "/elsewhere/bpe.codes")
        torch.save(content, folder / "model.pt")
        if kind == "bpe":
            with pytest.raises(FileNotFoundError, match="no file bpe.codes.* by source_model"):
                load_checkpoint(folder)
            (folder / "bpe.codes").write_text("#version: 0.2\na n\nan d</w>\n")
            settings["bpe_model_path"] = str(folder / "bpe.codes")
        tokens = load_checkpoint(folder, pretokenized=True).tokenizer
        check_tokens(load_checkpoint(folder), tokens, settings, texts)


DESCRIPTIONS = {
    "model = lambda: opennmt.models.Transformer(num_heads=4, ffn_activation=opennmt.layers.gelu)": (
        4,
        "gelu_tanh",
    ),
    "from opennmt import models\nmodel = lambda: models.get_model_from_catalog('TransformerBig')": (
        16,
        "relu",
    ),
    "from opennmt.models import catalog\nmodel = catalog.TransformerBase": (8, "relu"),
    "class Own(onmt.models.Transformer):\n def __init__(self):\n"
    "  super().__init__(num_heads=2, ffn_activation=tf.nn.silu)\nmodel = Own": (2, "silu"),
    "model = lambda: opennmt.models.Transformer(ffn_inner_dim=64)": (8, "relu"),
    "model = lambda: Transformer(W(), W(), 3, 24, 3, 40, 0, 0, 0, tf.nn.gelu)": (
        3,
        "gelu",
    ),
    "model = lambda: onmt.models.SequenceToSequence(W(), W(),\n"
    "  onmt.encoders.SelfAttentionEncoder(3, num_heads=2, ffn_activation=tf.nn.silu),\n"
    "  onmt.decoders.SelfAttentionDecoder(1, num_heads=2, ffn_activation=tf.nn.silu))": (2, "silu"),
}


@pytest.mark.any_backend
@pytest.mark.parametrize("code", DESCRIPTIONS)
def test_a_description_is_read_and_not_run(tmp_path, code):
    path = tmp_path / "model_description.py"
    path.write_text(f"raise SystemExit\n{code}\n")
    description = opennmt_tf._description(path, ToolkitOptions())
    assert (description["heads"], description["activation"]) == DESCRIPTIONS[code]
    assert opennmt_tf._description(path, ToolkitOptions(num_heads=6))["heads"] == 6


@pytest.mark.any_backend
@pytest.mark.parametrize(
    ("code", "message"),
    [
        ("model = make(HEADS)", "attention heads: give it by num_heads"),
        ("def model(:", "attention heads: give it by num_heads"),
        ("(" * 10_000, "attention heads: give it by num_heads"),
        (None, "is missing, and no other file has the number of attention heads"),
        ("model = T(num_heads=HEADS)", "attention heads: give it by num_heads"),
        (
            "model = lambda: opennmt.models.Transformer(*PARTS)",
            "attention heads: give it by num_heads",
        ),
        ("model = [E(num_heads=2), D(num_heads=4)]", "attention heads: give it by num_heads"),
        ("model = T(num_heads=0)", "num_heads of .* must be a whole number"),
        ("model = T(num_heads=4, ffn_activation=lambda x: x)", "ffn_activation"),
        ("model = T(num_heads=4, attention_span=9)", "a local attention"),
        ("model = T(num_heads=4, position_encoder_class=PositionEmbedder)", "PositionEmbedder"),
        ("model = m.get_model_from_catalog('NMTSmallV1')", "no Transformer"),
    ],
)
def test_what_a_description_does_not_say_is_asked_for(copy, code, message):
    folder = copy("opennmt-tf-transformer")
    (folder / "run" / "model_description.py").unlink()
    if code is not None:
        (folder / "run" / "model_description.py").write_text(code)
    with pytest.raises(ValueError, match=message):
        load_checkpoint(folder)


@pytest.mark.any_backend
def test_a_model_without_description_needs_its_heads(copy):
    folder = copy("opennmt-tf-transformer")
    whole = load_checkpoint(folder)
    (folder / "run" / "model_description.py").unlink()
    remarks = []
    asked = load_checkpoint(folder, num_heads=4, report=remarks.append)
    assert asked.model.config == whole.model.config and "relu" in remarks[0]


def test_shared_tables_norms_after_sublayers_and_another_decoder(copy):
    """An average of checkpoints, whose one table has one name, beside its description."""
    arrays = {}
    for key, array in arrays_of("opennmt-tf-transformer").items():
        key = key.replace("input_layer_norm", "output_layer_norm")
        is_left_out = "/layer_norm/" in key or "decoder/layers/1" in key or "labels_inputter" in key
        if "OPTIMIZER" in key or is_left_out or "output_layer/kernel" in key:
            continue
        arrays[key] = array
    arrays[f"model/decoder/output_layer/bias{END}"] = np.zeros(99, "float32")
    folder = copy("opennmt-tf-transformer")
    tf_checkpoints.write_checkpoint(folder / "avg" / "ckpt-700", arrays)
    shared = {"target_model": folder / "source.model", "target_vocabulary": folder / "source.vocab"}
    model = load_checkpoint(folder, **shared).model
    config = model.config
    assert config.share_embeddings and config.share_output and not config.normalize_first
    assert (config.num_encoder_layers, config.num_decoder_layers) == (2, 1)
    table = arrays[f"model/examples_inputter/features_inputter/embedding{END}"]
    weights = ops.convert_to_numpy(model.network.source_embedding.embeddings)
    np.testing.assert_array_equal(weights, table)


@pytest.mark.any_backend
def test_attention_without_biases_has_zeros(copy):
    folder = copy("opennmt-tf-transformer")
    arrays = arrays_of("opennmt-tf-transformer")
    arrays = {n: a for n, a in arrays.items() if not ("linear_" in n and "/bias/" in n)}
    tf_checkpoints.write_checkpoint(folder / "run" / "ckpt-700", arrays)
    layer = load_checkpoint(folder).model.network.decoder_layers[0]
    assert not ops.convert_to_numpy(layer.self_attention.query_key_value_bias).any()
    assert ops.convert_to_numpy(layer.feed_forward.intermediate.bias).any()


@pytest.mark.any_backend
@pytest.mark.parametrize(
    "name", ["decoder/layers/0/attention/1/input_layer_norm/gamma", "encoder/gate"]
)
def test_a_tensor_too_many_is_named(copy, name):
    folder = copy("opennmt-tf-transformer")
    arrays = {**arrays_of("opennmt-tf-transformer"), f"model/{name}{END}": np.ones(3, "float32")}
    tf_checkpoints.write_checkpoint(folder / "run" / "ckpt-700", arrays)
    with pytest.raises(ValueError, match=f"the further tensor '{name}'"):
        load_checkpoint(folder)


@pytest.mark.any_backend
def test_a_description_of_another_model_is_not_taken(copy):
    folder = copy("opennmt-tf-transformer")
    shutil.copytree(folder / "run", folder / "other")
    (folder / "run" / "model_description.py").unlink()
    with pytest.raises(ValueError, match="no other file has the number of attention heads"):
        load_checkpoint(folder / "run")


@pytest.mark.any_backend
def test_an_unknown_token_has_one_id_on_both_sides():
    translator = load_checkpoint(DATA / "opennmt-tf-transformer")
    source, target = (translator.tokenizer.vocabulary(side).pieces for side in ("source", "target"))
    tokens = lines("opennmt-tf-transformer", "target.vocab")
    assert translator.tokenizer.unknown_id == 98 == source.index("<unk>") == target.index("<unk>")
    assert list(target) == [*tokens[:98], "<unk>", *tokens[99:], tokens[98]]


def rotary_file(path):
    """Writes a file of OpenNMT-py with what its newer models have: rotary positions, RMS norms and
    gated feed-forward networks. Its numbers are random.

    Returns:
        Dict of name to array.
    """
    torch, rng, width, inner = pytest.importorskip("torch"), np.random.default_rng(7), 16, 24
    pieces = [*"abcdefgh"]
    tokens = ["<unk>", "<blank>", "<s>", "</s>", *pieces]
    table = "{}.embeddings.make_embedding.emb_luts.0.weight"
    shapes = {table.format(side): (len(tokens), width) for side in ("encoder", "decoder")}
    shapes |= {f"{side}.layer_norm.weight": (width,) for side in ("encoder", "decoder")}
    layers = {"encoder.transformer.0": (("self_attn", "layer_norm"),)}
    layers["decoder.transformer_layers.0"] = (
        ("self_attn", "layer_norm_1"),
        ("context_attn", "layer_norm_2"),
    )
    for layer, attentions in layers.items():
        for name, norm in attentions:
            shapes[f"{layer}.{norm}.weight"] = (width,)
            for linear in ("linear_query", "linear_keys", "linear_values", "final_linear"):
                shapes[f"{layer}.{name}.{linear}.weight"] = (width, width)
        shapes[f"{layer}.feed_forward.layer_norm.weight"] = (width,)
        for linear, shape in {
            "w_1": (inner, width),
            "w_2": (width, inner),
            "w_3": (inner, width),
        }.items():
            shapes[f"{layer}.feed_forward.{linear}.weight"] = shape
    shapes |= {"generator.weight": (len(tokens), width), "generator.bias": (len(tokens),)}
    arrays = {name: rng.normal(size=shape, scale=0.5) for name, shape in shapes.items()}
    arrays = {name: (array + ("norm" in name)).astype("float32") for name, array in arrays.items()}
    settings = {
        **{"layer_norm": "rms", "norm_eps": 1e-5, "pos_ffn_activation_fn": "silu", "heads": 4},
        **{"position_encoding": False, "max_relative_positions": -1, "rotary_theta": 10000},
        "rotary_interleave": False,
    }
    tensors = {name: torch.tensor(array) for name, array in arrays.items()}
    groups = {True: {}, False: {}}
    for name, tensor in tensors.items():
        is_generator = name.startswith("generator.")
        groups[is_generator][name.removeprefix("generator.")] = tensor
    content = {"model": groups[False], "generator": groups[True], "optim": None}
    content["opt"] = argparse.Namespace(**settings)
    vocabulary = {"src": tokens, "tgt": tokens, "decoder_start_token": "<s>"}
    torch.save({**content, "vocab": vocabulary}, path)
    return arrays


def rotary_logits(arrays, source, target):
    """What OpenNMT-py computes of those numbers, in NumPy."""

    def linear(x, name):
        return x @ arrays[f"{name}.weight"].T

    def norm(x, name):
        return x / np.sqrt((x * x).mean(-1, keepdims=True) + 1e-5) * arrays[f"{name}.weight"]

    def rotated(x):  # [heads, tokens, size]
        half = x.shape[-1] // 2
        angles = np.arange(x.shape[1])[:, None] * 10_000.0 ** -(np.arange(half) / half)
        first, second, cos, sin = x[..., :half], x[..., half:], np.cos(angles), np.sin(angles)
        return np.concatenate([first * cos - second * sin, second * cos + first * sin], -1)

    def attention(query, value, name, causal=False):
        parts = [(query, "linear_query"), (value, "linear_keys"), (value, "linear_values")]
        q, k, v = (
            linear(x, f"{name}.{projection}").reshape(len(x), 4, -1).transpose(1, 0, 2)
            for x, projection in parts
        )
        if name.endswith("self_attn"):
            q, k = rotated(q), rotated(k)
        scores = q @ k.transpose(0, 2, 1) / np.sqrt(q.shape[-1])
        scores = scores + np.triu(np.full(scores.shape[1:], -1e9), 1) * causal
        shares = np.exp(scores - scores.max(-1, keepdims=True))
        context = shares / shares.sum(-1, keepdims=True) @ v
        return linear(context.transpose(1, 0, 2).reshape(len(query), -1), f"{name}.final_linear")

    def feed_forward(x, name):
        y = norm(x, f"{name}.layer_norm")
        gate = linear(y, f"{name}.w_1")
        return x + linear(gate / (1 + np.exp(-gate)) * linear(y, f"{name}.w_3"), f"{name}.w_2")

    table, name = "{}.embeddings.make_embedding.emb_luts.0.weight", "encoder.transformer.0"
    x = arrays[table.format("encoder")][source]
    y = norm(x, f"{name}.layer_norm")
    x = feed_forward(x + attention(y, y, f"{name}.self_attn"), f"{name}.feed_forward")
    memory, name = norm(x, "encoder.layer_norm"), "decoder.transformer_layers.0"
    x = arrays[table.format("decoder")][target]
    y = norm(x, f"{name}.layer_norm_1")
    x = x + attention(y, y, f"{name}.self_attn", True)
    x = x + attention(norm(x, f"{name}.layer_norm_2"), memory, f"{name}.context_attn")
    x = norm(feed_forward(x, f"{name}.feed_forward"), "decoder.layer_norm")
    return linear(x, "generator") + arrays["generator.bias"]


def test_rotary_positions_rms_norms_and_gates_of_opennmt_py(tmp_path):
    arrays = rotary_file(tmp_path / "model.pt")
    translator = load_checkpoint(tmp_path / "model.pt", pretokenized=True)
    source, target = [4, 9, 6, 5, 11], [2, 7, 8, 4]
    assert translator.tokenizer.tokenize("a f c b h") == source
    inputs = {"source_ids": np.array([source]), "target_ids": np.array([target])}
    logits = ops.convert_to_numpy(translator.model(inputs))[0]
    np.testing.assert_allclose(logits, rotary_logits(arrays, source, target), atol=1e-4)


REFUSED = {
    "copy_attn": (True, "copy_attn=True, an architecture that kformer does not import"),
    "decoder_type": ("rnn", "decoder_type='rnn'"),
    "max_relative_positions": (-2, "ALiBi"),
    "pos_ffn_activation_fn": ("mish", "pos_ffn_activation_fn"),
    "heads": (3, "num_heads must divide hidden_dim"),
    "norm_eps": ("small", "norm_eps='small'"),
}


@pytest.mark.any_backend
@pytest.mark.parametrize("name", REFUSED)
def test_what_kformer_cannot_be_is_named(tmp_path, name):
    torch, (value, message) = pytest.importorskip("torch"), REFUSED[name]
    rotary_file(tmp_path / "model.pt")
    content = torch.load(tmp_path / "model.pt", weights_only=False)
    setattr(content["opt"], name, value)
    torch.save(content, tmp_path / "model.pt")
    with pytest.raises(ValueError, match=message):
        load_checkpoint(tmp_path / "model.pt", pretokenized=True)


@pytest.mark.any_backend
def test_a_file_of_opennmt_py_0_is_the_same_model(tmp_path, monkeypatch):
    torch, name = pytest.importorskip("torch"), "opennmt-py-relative"
    content = torch.load(DATA / name / "model.pt", weights_only=False)
    package = types.ModuleType("torchtext.vocab")
    package.Vocab = type("Vocab", (), {"__module__": package.__name__})
    for module in ("torchtext", package.__name__):
        monkeypatch.setitem(sys.modules, module, package)
    pairs = [(side, package.Vocab()) for side in ("src", "tgt")]
    for side, vocabulary in pairs:
        vocabulary.itos = content["vocab"][side]
        vocabulary.stoi = {token: i for i, token in enumerate(vocabulary.itos)}
    for end, old in {".weight": ".a_2", ".bias": ".b_2"}.items():
        for key in [key for key in content["model"] if re.search(rf"layer_norm\w*{end}", key)]:
            content["model"][key.removesuffix(end) + old] = content["model"].pop(key)
    content["model"]["decoder.transformer_layers.0.mask"] = torch.ones(1, 9, 9)
    content["generator"] = {f"0.{key}": value for key, value in content["generator"].items()}
    torch.save({**content, "vocab": pairs}, tmp_path / "model.pt")
    models = {f"{side}_model": DATA / name / f"{side}.model" for side in ("source", "target")}
    older, newer = load_checkpoint(tmp_path / "model.pt", **models), load_checkpoint(DATA / name)
    texts, search = lines(name, "source.txt")[:4], dataclasses.asdict(newer.options)
    assert older(texts, **search) == newer(texts)
    torch.save({**content, "vocab": {"src": pairs[0][1], "tgt": object}}, tmp_path / "model.pt")
    with pytest.raises(ValueError, match="no list of tokens for 'tgt'"):
        load_checkpoint(tmp_path / "model.pt", **models)
