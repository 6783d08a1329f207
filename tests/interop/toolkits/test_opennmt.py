"""Models of OpenNMT-tf and OpenNMT-py, from their own files."""

import pathlib
import shutil

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
    assert (options.beam_size, options.length_ratio, options.length_offset) == (5, 1.25, 5)


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
        ("model = T(num_heads=HEADS)", "num_heads of .* must be a whole number"),
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
def test_an_unknown_token_has_one_id_on_both_sides():
    translator = load_checkpoint(DATA / "opennmt-tf-transformer")
    source, target = (translator.tokenizer.vocabulary(side).pieces for side in ("source", "target"))
    tokens = lines("opennmt-tf-transformer", "target.vocab")
    assert translator.tokenizer.unknown_id == 98 == source.index("<unk>") == target.index("<unk>")
    assert list(target) == [*tokens[:98], "<unk>", *tokens[99:], tokens[98]]
