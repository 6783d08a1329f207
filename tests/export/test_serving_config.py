"""The configuration of TensorFlow Serving, read by its own message definitions."""

import pathlib
import shutil

import pytest
import yaml
from google.protobuf import (
    descriptor_pb2,
    descriptor_pool,
    message_factory,
    text_format,
    wrappers_pb2,
)

from kformer.export.serving_config import CONFIG_FILES, write_serving_config
from kformer_cli.main import main

ROOT = pathlib.Path(__file__).parent.parent.parent
SAVED = ROOT / "saved_models" / "frozen"
# Name: (number, type) of the fields of `BatchingParameters`, as TensorFlow Serving's
# servables/tensorflow/session_bundle_config.proto publishes them (text has no numbers). Its Python
# package leaves that file out.
BATCHING = {
    "max_batch_size": (1, "google.protobuf.Int64Value"),
    "batch_timeout_micros": (2, "google.protobuf.Int64Value"),
    "max_enqueued_batches": (3, "google.protobuf.Int64Value"),
    "num_batch_threads": (4, "google.protobuf.Int64Value"),
    "thread_pool_name": (5, "google.protobuf.StringValue"),
    "allowed_batch_sizes": (6, "repeated int64"),
    "pad_variable_length_inputs": (7, "bool"),
    "enable_large_batch_splitting": (8, "google.protobuf.BoolValue"),
    "max_execution_batch_size": (9, "google.protobuf.Int64Value"),
}

pytestmark = pytest.mark.any_backend(quickest="torch")


def batching_message():
    """An empty `BatchingParameters`."""
    file = descriptor_pb2.FileDescriptorProto(
        name="batching.proto",
        package="tensorflow.serving",
        syntax="proto3",
        dependency=[wrappers_pb2.DESCRIPTOR.name],
    )
    message = file.message_type.add(name="BatchingParameters")
    kinds = descriptor_pb2.FieldDescriptorProto
    types = {"repeated int64": kinds.TYPE_INT64, "bool": kinds.TYPE_BOOL}
    for name, (number, kind) in BATCHING.items():
        field = message.field.add(
            name=name, number=number, type=types.get(kind, kinds.TYPE_MESSAGE)
        )
        is_repeated = kind.startswith("repeated")
        field.label = field.LABEL_REPEATED if is_repeated else field.LABEL_OPTIONAL
        if kind not in types:
            field.type_name = f".{kind}"
    pool = descriptor_pool.DescriptorPool()
    for each in (wrappers_pb2.DESCRIPTOR.serialized_pb, file.SerializeToString()):
        pool.AddSerializedFile(each)
    found = pool.FindMessageTypeByName("tensorflow.serving.BatchingParameters")
    return message_factory.GetMessageClass(found)()


@pytest.fixture
def folder(tmp_path):
    for name in ("en-de", 'odd "name'):
        shutil.copytree(SAVED, tmp_path / name)
    (tmp_path / "no-model").mkdir()
    return tmp_path


def test_models_config(folder):
    config = pytest.importorskip("tensorflow_serving.config.model_server_config_pb2")
    paths = write_serving_config(folder / "en-de")
    assert [path.name for path in paths] == [*CONFIG_FILES]
    found = text_format.Parse(paths[0].read_text(encoding="utf-8"), config.ModelServerConfig())
    models = {
        model.name: (model.base_path, model.model_platform)
        for model in found.model_config_list.config
    }
    assert models == {
        "en-de": ("/models/en-de", "tensorflow"),
        'odd "name': ('/models/odd "name', "tensorflow"),
    }


@pytest.mark.parametrize(("size", "sizes"), ((1, [1]), (6, [1, 2, 4, 6]), (8, [1, 2, 4, 8])))
def test_batching_parameters(folder, size, sizes):
    path = write_serving_config(folder / "en-de", max_batch_size=size, threads=3)[1]
    found = text_format.Parse(path.read_text(encoding="utf-8"), batching_message())
    assert found.max_execution_batch_size.value == size and found.num_batch_threads.value == 3
    assert list(found.allowed_batch_sizes) == sizes, "the last one must be the largest"
    # A request of more texts is split, instead of refused.
    assert found.enable_large_batch_splitting.value and found.max_batch_size.value >= 1000
    assert found.max_enqueued_batches.value > 0 and found.batch_timeout_micros.value > 0


def test_compose_file_names_the_others(folder):
    path = write_serving_config(folder / "en-de")[2]
    service = yaml.safe_load(path.read_text(encoding="utf-8"))["services"]["tensorflow-serving"]
    mount = service["volumes"][0].split(":")[1]
    given = dict(argument.removeprefix("--").split("=") for argument in service["command"])
    for key, name in (
        ("model_config_file", "models.config"),
        ("batching_parameters_file", "batching_parameters.txt"),
    ):
        assert given[key] == f"{mount}/{name}" and (folder / name).is_file()
    assert all(port.startswith("127.0.0.1:") for port in service["ports"])


def test_the_option_is_for_saved_models(tmp_path, capfd):
    run = ROOT / "tests" / "frozen_run"
    command = ["export", run, "--output", tmp_path / "x", "--format", "onnx", "--serving-config"]
    assert main([*map(str, command)]) == 2
    assert "--serving-config is for the format saved_model, not for onnx." in " ".join(
        capfd.readouterr().err.split()
    )
