"""The SavedModel translates as the translator does, from every backend, in a process that has
TensorFlow alone.
"""

import importlib
import json
import os
import pathlib
import shutil
import subprocess
import sys

import keras
import numpy as np
import pytest

import kformer
from kformer.export import SavedModelTranslator
from kformer.export.saved_model import process
from kformer.export.saved_model.trust import computes
from tests.hiding import hiding
from tests.utils.disk_calls import DiskCalls

ROOT = pathlib.Path(__file__).resolve().parents[3]
FROZEN_RUN = ROOT / "tests" / "frozen_run"
FROZEN_SAVED_MODEL = ROOT / "saved_models" / "frozen"
FROZEN_DTYPES = {"float32": "", "bfloat16": "_bfloat16", "int8": "_int8"}

# Runs SavedModels where neither Keras nor this package is installed; texts in and results out as
# JSON, a line for each.
BARE_PROCESS = (
    hiding("keras", "kformer", "sentencepiece", "jax", "torch")
    + """
import json
import pathlib
import tensorflow as tf
# `import tensorflow_text` would import Keras; the kernels alone, as a server links them, show that
# the model needs none.
import importlib.util
folder = pathlib.Path(importlib.util.find_spec("tensorflow_text").origin).parent
tf.load_op_library(str(next(folder.glob("python/ops/_sentencepiece_tokenizer*.so"))))
texts = [text.encode("latin-1") for text in json.load(sys.stdin)]
for path in sys.argv[1:]:
    module = tf.saved_model.load(path)
    result = {}
    for name in module.signatures:
        outputs = module.signatures[name](text=tf.constant(texts, tf.string, shape=[len(texts)]))
        result[name] = {
            key: {"shape": value.shape.as_list(), "values": [
                item.decode() if isinstance(item, bytes) else item
                for item in value.numpy().reshape(-1).tolist()]}
            for key, value in outputs.items()
        }
    print(json.dumps(result))
assert not any(name.split(".")[0] in ("keras", "kformer") for name in sys.modules)
"""
)


def run_bare(path, texts):
    """The outputs of all signatures, as NumPy arrays, from a process with tensorflow and
    tensorflow_text alone.
    """
    (outputs,) = run_all_bare([path], texts)
    return outputs


def run_all_bare(paths, texts):
    """A list of what `run_bare` returns, from one process."""
    encoded = [
        (text.encode() if isinstance(text, str) else text).decode("latin-1") for text in texts
    ]
    run = subprocess.run(
        [sys.executable, "-c", BARE_PROCESS, *map(str, paths)],
        input=json.dumps(encoded),
        capture_output=True,
        text=True,
    )
    assert run.returncode == 0, run.stderr[-3000:]
    return [
        {
            name: {
                key: np.array(part["values"], dtype=object).reshape(part["shape"])
                for key, part in outputs.items()
            }
            for name, outputs in json.loads(line).items()
        }
        for line in run.stdout.splitlines()
    ]


@pytest.fixture(scope="module")
def translator():
    return kformer.Translator.load(FROZEN_RUN)


@pytest.fixture(scope="module")
def exported(translator, tmp_path_factory):
    """A SavedModel exported from the backend under test."""
    folder = tmp_path_factory.mktemp("saved_models")
    assert translator.export(folder / "times", beam_size=4) == folder / "times" / "1"
    return folder / "times"


@pytest.fixture(scope="module")
def texts():
    sources = [
        pair.source
        for pair in kformer.examples.generate_pairs(30, seed=6, split="test", categories=("time",))
    ]
    return [
        *sources,
        "",
        "seven " * 100,
        "人人人 ☃",
        "  twenty to  six\t",
        b"half past \xff\xfe four",
        "</s> <pad> noon",
    ]


@pytest.fixture(scope="module")
def outputs(exported, texts):
    return run_bare(exported / "1", texts)


@pytest.mark.heavy
@pytest.mark.any_backend(quickest="tensorflow")
@pytest.mark.parametrize(
    ("name", "place"),
    [
        ("saved_model.pb", 0.5),
        ("variables/variables.index", 0.1),
        ("variables/variables.data-00000-of-00001", 0.5),
    ],
)
def test_a_damaged_file_is_refused(exported, tmp_path, name, place):
    shutil.copytree(exported, tmp_path / "times")
    file = tmp_path / "times" / "1" / name
    data = bytearray(file.read_bytes())
    data[int(place * len(data))] ^= 16
    file.write_bytes(data)
    with pytest.raises(ValueError, match=r"times/1 is damaged \(.*: copy it again, or export it"):
        SavedModelTranslator(tmp_path / "times")


@pytest.mark.heavy
def test_the_same_text_as_the_translator(translator, outputs, texts):
    found = translator.translate(texts, beam_size=4)
    assert outputs["serving_default"]["translation"].tolist() == [result.text for result in found]
    assert np.allclose(
        outputs["serving_default"]["score"].astype(float),
        [result.score for result in found],
        atol=1e-4,
    )
    assert outputs["serving_default"]["truncated"].tolist() == [
        result.truncated for result in found
    ]
    assert (
        sum(outputs["serving_default"]["truncated"]) == 1
        and outputs["serving_default"]["translation"][30] == ""
    )


@pytest.mark.heavy
def test_n_best(translator, outputs, texts):
    found = translator.translate(texts, beam_size=4, n_best=4)
    assert outputs["n_best"]["translations"].tolist() == [
        [h.text for h in result.hypotheses] for result in found
    ]
    scores = [[h.score for h in result.hypotheses] for result in found]
    assert np.allclose(outputs["n_best"]["scores"].astype(float), scores, atol=1e-4)
    for name in ("translation", "score", "truncated"):
        assert outputs["n_best"][name].tolist() == pytest.approx(
            outputs["serving_default"][name].tolist(), abs=1e-4
        ) or (outputs["n_best"][name].tolist() == outputs["serving_default"][name].tolist())


@pytest.mark.heavy
def test_attention(translator, outputs, texts):
    attention = outputs["attention"]
    weights = attention["attention"].astype(float)
    assert weights.shape == (
        len(texts),
        2,
        2,
        attention["target_tokens"].shape[1],
        attention["source_tokens"].shape[1],
    )
    for row in (0, 7, 29):
        expected = translator.attention(texts[row], beam_size=4)
        target, source = len(expected.target_tokens), len(expected.source_tokens)
        assert attention["source_tokens"][row].tolist() == expected.source_tokens + [""] * (
            weights.shape[4] - source
        )
        assert attention["target_tokens"][row].tolist() == expected.target_tokens + [""] * (
            weights.shape[3] - target
        )
        assert np.allclose(weights[row, :, :, :target, :source], expected.weights, atol=1e-5)


@pytest.mark.heavy
@pytest.mark.any_backend(quickest="tensorflow")
def test_batches_of_any_size(exported, outputs, texts):
    module = SavedModelTranslator(exported)
    assert module("noon") == module(["noon"])[0]
    with pytest.raises(TypeError, match="not one text"):
        module.translate("noon")
    assert module([]) == []
    empty = run_bare(exported / "1", [])
    assert {
        name: {key: value.ndim for key, value in part.items()} for name, part in empty.items()
    } == {
        "serving_default": {"translation": 1, "score": 1, "truncated": 1},
        "n_best": {"translations": 2, "scores": 2, "translation": 1, "score": 1, "truncated": 1},
        "attention": {"translation": 1, "source_tokens": 2, "target_tokens": 2, "attention": 5},
    }
    assert all(value.shape[0] == 0 for part in empty.values() for value in part.values())
    together = outputs["serving_default"]["translation"].tolist()
    assert module(texts, batch_size=1) == together, "one row never changes another"
    assert module(texts, batch_size=7) == together


@pytest.mark.heavy
def test_only_ops_that_a_server_has(exported):
    check_ops(exported / "1")


def check_ops(folder):
    """Checks that a graph has ops of core TensorFlow and of tensorflow_text alone, without XLA."""
    import tensorflow as tf
    from tensorflow.core.protobuf import saved_model_pb2

    proto = saved_model_pb2.SavedModel.FromString((folder / "saved_model.pb").read_bytes())
    graph = proto.meta_graphs[0].graph_def
    ops = {node.op for node in graph.node} | {
        node.op for function in graph.library.function for node in function.node_def
    }
    functions = {function.signature.name for function in graph.library.function}
    text_ops = {op for op in ops if op.startswith("Sentencepiece") or op.startswith("TFText>")}
    assert text_ops, "the tokenizer is in the graph"
    core = {op for op in ops - text_ops - functions if not hasattr(tf.raw_ops, op)}
    assert core == set(), f"ops of neither registry: {core}"
    of_the_saver = {"SaveV2", "RestoreV2", "MergeV2Checkpoints"}
    assert all(computes(op) for op in ops - functions - of_the_saver)
    assert not any("Xla" in op or op in ("PyFunc", "EagerPyFunc") for op in ops)
    attributes = [dict(function.attr) for function in graph.library.function]
    assert not any(a["_XlaMustCompile"].b for a in attributes if "_XlaMustCompile" in a)


@pytest.mark.heavy
def test_weights_are_variables(exported, translator):
    """A constant in a graph counts against protobuf's limit of 2 GB; a variable does not."""
    size = (exported / "1" / "variables" / "variables.data-00000-of-00001").stat().st_size
    assert size >= 4 * sum(
        int(np.prod(weight.shape)) for weight in translator.model.trainable_weights
    )


@pytest.mark.heavy
@pytest.mark.any_backend(quickest="tensorflow")
def test_versions_and_refusals(exported, translator, tmp_path):
    with pytest.raises(ValueError, match="exists already"):
        translator.export(exported, version=1)
    for version in ("latest", -1, True, 1.5):
        with pytest.raises(ValueError, match="version must be a whole number of at least 0"):
            translator.export(tmp_path / "x", version=version)
    with pytest.raises(ValueError, match="sampling"):
        translator.export(tmp_path / "x", sampling=True)
    assert not (tmp_path / "x").exists()
    (tmp_path / "\u00b2").mkdir()  # A digit, and no number.
    with pytest.raises(FileNotFoundError, match="no SavedModel"):
        SavedModelTranslator(tmp_path)
    with pytest.raises(ValueError, match="n_best=5"):
        SavedModelTranslator(exported).translate(["noon"], n_best=5)
    assert [path.name for path in exported.iterdir()] == ["1"], "nothing half-written stays"


def test_a_version_is_synced_before_the_rename(translator, tmp_path, monkeypatch):
    if keras.backend.backend() != "tensorflow":
        pytest.skip("a process of its own writes it")
    disk_calls = DiskCalls(monkeypatch)
    translator.export(tmp_path / "times", beam_size=1, signatures=["serving_default"])
    disk_calls.check(tmp_path / "times" / "1")


@pytest.mark.slow
@pytest.mark.any_backend
def test_a_users_model_class_is_exported_from_every_backend(translator, tmp_path, monkeypatch):
    name = "users_model"
    (tmp_path / f"{name}.py").write_text(
        "import keras, kformer\n"
        "@keras.saving.register_keras_serializable(package='mine')\n"
        "class Mine(kformer.Transformer):\n"
        "    pass\n"
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    model = importlib.import_module(name).Mine.from_config(translator.model.get_config())
    model.set_weights(translator.model.get_weights())
    mine = kformer.Translator(model, translator.tokenizer)
    folder = mine.export(
        tmp_path / "saved", beam_size=1, imports=[name], signatures=["serving_default"]
    )
    texts = ["May 3, 2031", "half past four"]
    assert SavedModelTranslator(folder)(texts) == translator(texts, beam_size=1)
    if keras.backend.backend() != "tensorflow":
        with pytest.raises(RuntimeError, match="name the module that registers them"):
            mine.export(tmp_path / "other", beam_size=1)
        assert not any((tmp_path / "other").glob("*"))


@pytest.mark.heavy
@pytest.mark.any_backend
def test_the_frozen_saved_models_translate_as_at_their_release():
    """The SavedModels of version 1.0.0 in each dtype: their texts and scores, for ever."""
    expected = json.loads((FROZEN_RUN / "expected.json").read_text(encoding="utf-8"))
    folders = [FROZEN_SAVED_MODEL.parent / f"frozen{end}" for end in FROZEN_DTYPES.values()]
    bare = run_all_bare([folder / "1" for folder in folders], expected["texts"])
    assert expected["float32"]["translation"] == expected["beam_4"]
    for dtype, folder, outputs in zip(FROZEN_DTYPES, folders, bare, strict=True):
        texts, scores = (expected[dtype][name] for name in ("translation", "score"))
        # CPUs round small types differently, which may decide between two doubtful texts.
        atol, least = (1e-3, -np.inf) if dtype == "float32" else (0.1, -0.3)
        sure = [index for index, score in enumerate(scores) if score > least]
        assert len(sure) >= 38
        read = SavedModelTranslator(folder).translate(expected["texts"])
        answers = outputs["serving_default"]
        for index in sure:
            assert answers["translation"][index] == read[index].text == texts[index]
            assert answers["score"][index] == pytest.approx(scores[index], abs=atol)
            assert read[index].score == pytest.approx(scores[index], abs=atol)
        assert (outputs["n_best"]["translations"][:, 0] == answers["translation"]).all()


@pytest.mark.heavy
@pytest.mark.any_backend
def test_saved_model_cli_shows_the_signatures():
    run = subprocess.run(
        [
            sys.executable,
            "-m",
            "tensorflow.python.tools.saved_model_cli",
            "show",
            "--all",
            "--dir",
            str(FROZEN_SAVED_MODEL / "1"),
        ],
        env={**os.environ, "TF_CPP_MIN_LOG_LEVEL": "3"},
        capture_output=True,
        text=True,
    )
    for words in (
        "signature_def['serving_default']",
        "inputs['text']",
        "outputs['translation']",
        "outputs['truncated']",
    ):
        assert words in run.stdout, run.stderr[-2000:]


def size_of(folder):
    return sum(file.stat().st_size for file in folder.rglob("variables.data*"))


@pytest.mark.heavy
@pytest.mark.any_backend(quickest="tensorflow")
def test_bfloat16(translator, exported, texts, tmp_path):
    """Matrices in bfloat16: about the same scores, mostly the same text, in less than half the
    bytes (a float32 export also stores a transposed table).
    """
    folder = translator.export(tmp_path / "half", beam_size=4, dtype="bfloat16")
    outputs = run_bare(folder, texts)
    assert sorted(outputs) == ["n_best", "serving_default"]
    found = translator.translate(texts, beam_size=4)
    scores = np.array([result.score for result in found])
    assert np.allclose(outputs["serving_default"]["score"].astype(float), scores, atol=0.1)
    same = [
        ours == result.text
        for ours, result in zip(outputs["serving_default"]["translation"], found, strict=True)
    ]
    assert sum(same[:30]) >= 29
    assert size_of(folder) < 0.6 * size_of(exported / "1")
    metadata = json.loads((folder / "assets.extra" / "kformer.json").read_text())
    assert metadata["dtype"] == "bfloat16"


@pytest.mark.heavy
@pytest.mark.any_backend(quickest="torch")
def test_bad_dtypes(translator, tmp_path):
    with pytest.raises(
        ValueError,
        match="dtype must be one of float32, bfloat16, int8, but 'int4' was given",
    ):
        translator.export(tmp_path / "x", dtype="int4")
    sizes = {
        "hidden_dim": 8,
        "intermediate_dim": 8,
        "num_heads": 2,
        "num_encoder_layers": 1,
        "num_decoder_layers": 1,
    }
    own = kformer.Transformer(translator.tokenizer.vocabulary_size, dtype="float16", **sizes)
    # From another backend the sentence comes out of the second process.
    with pytest.raises(
        (ValueError, RuntimeError),
        match="cannot be stored in bfloat16: the model computes in float16",
    ):
        kformer.Translator(own, translator.tokenizer).export(tmp_path / "x", dtype="bfloat16")
    assert not list((tmp_path / "x").glob("[0-9]*"))


@pytest.mark.any_backend
def test_options_of_any_length_reach_the_process_that_exports(tmp_path, monkeypatch):
    """Linux allows 131,072 bytes for an argument, and a shortlist is longer."""
    calls = []

    def run(command, *, input, **options):
        calls.append((command, json.loads(input)))
        return subprocess.CompletedProcess(command, 0, "", "")

    monkeypatch.setattr(process.subprocess, "run", run)
    options = {"shortlist": list(range(30_000)), "imports": []}
    process.run_process("translator", tmp_path, tmp_path / "out", options)
    ((command, found),) = calls
    assert found == options and max(map(len, command)) < 1000
