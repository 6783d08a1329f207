"""A stranger's run: whatever it asks for, loading it takes little memory, or one sentence."""

import io
import json
import os
import pathlib
import random
import shutil
import subprocess
import sys
import tempfile
import zipfile

import h5py
import keras
import numpy as np
import pytest

from kformer.saving.limits import check_archive, check_weights
from kformer.saving.model_files import load_model

FROZEN = pathlib.Path(__file__).parents[1] / "frozen_run"

pytestmark = [
    pytest.mark.any_backend,
    pytest.mark.skipif(sys.platform != "linux", reason="needs limits of memory as Linux has them"),
]


def rewrite(run, change):
    """Rewrites the members of a run's `model.keras`, a dict of name to bytes."""
    with zipfile.ZipFile(run / "model.keras") as archive:
        members = {name: archive.read(name) for name in archive.namelist()}
    change(members)
    options = {"compression": zipfile.ZIP_DEFLATED, "compresslevel": 1}
    with zipfile.ZipFile(run / "model.keras", "w", **options) as archive:
        for name, content in members.items():
            archive.writestr(name, content)


def deflated_config(members):
    members["config.json"] = b" " * 300_000_000 + members["config.json"]


def deflated_weights(members):
    members["model.weights.h5"] += bytes(600_000_000)


def deep_config(members):
    members["config.json"] = b"[" * 100_000


def options(**changes):
    def change(members):
        config = json.loads(members["config.json"])
        config["config"].update(changes)
        members["config.json"] = json.dumps(config).encode()

    return change


def keras_model(*layers, **compiled):
    """A model of Keras's own layers, whose sizes are below those that are seen one by one."""

    def change(members):
        model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(4)])
        with tempfile.TemporaryDirectory() as folder:
            model.save(f"{folder}/model.keras")
            with zipfile.ZipFile(f"{folder}/model.keras") as archive:
                members.update({name: archive.read(name) for name in archive.namelist()})
        config = json.loads(members["config.json"])
        config["config"]["layers"] = [
            {"module": "keras.layers", "class_name": name, "config": options, "build_config": built}
            for name, options, built in layers
        ]
        config["compile_config"] = compiled
        members["config.json"] = json.dumps(config).encode()

    change.__qualname__ = "options of Keras"
    return change


WIDE_INPUT = ("InputLayer", {"batch_shape": [None, 1 << 16]}, None)
WIDE_ROWS = ("InputLayer", {"batch_shape": [None, None, 1 << 16]}, None)


def empty_dataset(members):
    """A dataset that claims 4 GB and has nothing in the file."""
    file = io.BytesIO(members["model.weights.h5"])
    with h5py.File(file, "r+") as weights:
        weights.create_dataset("huge", (10**9,), "f4")
    members["model.weights.h5"] = file.getvalue()


def elsewhere(kind):
    """Weights that HDF5 would read from another file of the machine."""

    def change(members):
        file, other = io.BytesIO(members["model.weights.h5"]), "/etc/hostname"
        with h5py.File(file, "r+") as weights:
            if kind == "dataset":
                weights.create_dataset("far", (4,), "u1", external=[(other, 0, 4)])
            elif kind == "virtual":
                layout = h5py.VirtualLayout((4,), "u1")
                layout[:] = h5py.VirtualSource(other, "weights", (4,))
                weights["layers"].create_virtual_dataset("far", layout)
            else:
                weights["layers/far"] = h5py.ExternalLink(other, "/weights")
        members["model.weights.h5"] = file.getvalue()

    change.__qualname__ = f"options of HDF5, {kind}"
    return change


def tokenizer_json(**changes):
    def change(run):
        path = run / "tokenizer" / "tokenizer.json"
        config = json.loads(path.read_text())
        for name, value in changes.items():
            config["target"][name] = value
        path.write_text(json.dumps(config))

    return change


def write(name, content):
    def change(run):
        (run / name).write_bytes(content)

    return change


ATTACKS = {
    "config.json of 300 MB": (deflated_config, "unpacks to 3 files of"),
    "weights of 600 MB": (deflated_weights, "unpacks to 3 files of"),
    "deep configuration": (deep_config, "nested too deeply"),
    "10^9 encoder layers": (options(num_encoder_layers=10**9), "asks for at least"),
    "10^9 decoder layers": (options(num_decoder_layers=10**9), "asks for at least"),
    "wide": (options(hidden_dim=100_000), "its layers ask for"),
    "many words": (options(vocabulary_size=10**8), "its layers ask for"),
    "many heads": (options(num_heads=1 << 20, head_dim=64), "its layers ask for"),
    "Keras's layers": (
        keras_model(WIDE_INPUT, ("Dense", {"units": 1 << 16}, None)),
        "its layers ask for 4,295,032,832",
    ),
    "cells": (keras_model(WIDE_ROWS, ("LSTM", {"units": 1 << 16}, None)), "its layers ask for"),
    "layers that do not fit": (
        keras_model(("Dense", {"units": 1 << 16}, {"input_shape": [None, 1 << 16]})),
        "cannot be loaded",
    ),
    "a metric": (
        keras_model(metrics=[{"class_name": "MeanIoU", "config": {"num_classes": 10**5}}]),
        "a metric with num_classes=100000",
    ),
    "empty dataset": (empty_dataset, "claim more bytes than"),
    "external data": (elsewhere("dataset"), "stored elsewhere"),
    "virtual data": (elsewhere("virtual"), "stored elsewhere"),
    "an external link": (elsewhere("link"), "stored elsewhere"),
    "10^6 ids after a text": (tokenizer_json(suffix=[3] * 10**6), "has 1,000,000 ids"),
    "10^6 control ids": (tokenizer_json(control_ids=list(range(10**6))), "outside of the vocab"),
    "deep tokenizer.json": (write("tokenizer/tokenizer.json", b"[" * 10**6), "nested too deeply"),
    "large run config": (write("config.json", b"[" + b"[]," * 10**7 + b"1]"), "more than 16,777"),
    "deep run config": (write("config.json", b'{"a":' * 10**5), "nested too deeply"),
    "many values": (write("config.json", b"[" + b"[]," * (5 * 10**6) + b"1]"), "holds list"),
}

CODE = """
import json, resource, sys, time, warnings
warnings.simplefilter("ignore")
import kformer
from kformer.saving import load_run

# Loaded once: what the libraries load on first use is no part of the run.
load_run(sys.argv[1])
used = int(open("/proc/self/statm").read().split()[0]) * resource.getpagesize()
answers = {}
for folder in sys.argv[2:]:
    begin = time.process_time()
    try:
        limit = used + (512 << 20)
        resource.setrlimit(resource.RLIMIT_AS, (limit, resource.RLIM_INFINITY))
        load_run(folder)
        answers[folder] = "loaded"
    except MemoryError:
        answers[folder] = "MemoryError"
    except Exception as error:
        answers[folder] = f"{type(error).__name__}: {error}"
    resource.setrlimit(resource.RLIMIT_AS, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
    answers[folder] = answers[folder], time.process_time() - begin
# Keras would import TensorFlow, which takes most of the 512 MiB.
kformer.saving.save_run(sys.argv[2] + "-saved", *load_run(sys.argv[1])[:2])
answers["has TensorFlow"] = "tensorflow" in sys.modules
print(json.dumps(answers))
"""


@pytest.mark.slow
def test_a_run_takes_no_more_memory_than_its_weights_justify(tmp_path):
    folders = []
    for number, (attack, _) in enumerate(ATTACKS.values()):
        run = tmp_path / str(number)
        shutil.copytree(FROZEN, run)
        if attack in (deflated_config, deflated_weights, deep_config, empty_dataset) or (
            attack.__qualname__.startswith("options")
        ):
            rewrite(run, attack)
        else:
            attack(run)
        folders.append(str(run))
    environment = {**os.environ, "KERAS_BACKEND": "torch", "OMP_NUM_THREADS": "1"}
    process = subprocess.run(
        [sys.executable, "-c", CODE, str(FROZEN), *folders, str(FROZEN)],
        capture_output=True,
        text=True,
        env=environment,
        timeout=300,
    )
    assert process.returncode == 0, process.stderr[-2000:]
    answers = json.loads(process.stdout.splitlines()[-1])
    assert answers[str(FROZEN)][0] == "loaded"
    assert not answers["has TensorFlow"], "saving under PyTorch imports TensorFlow"
    for folder, (name, (_, message)) in zip(folders, ATTACKS.items(), strict=True):
        answer, seconds = answers[folder]
        assert answer.startswith("ValueError: ") and message in answer, f"{name}: {answer}"
        assert folder in answer and "\n" not in answer and len(answer) < 500, f"{name}: {answer}"
        assert seconds < 60, f"{name}: {seconds} s"


def test_sizes_are_added_up_without_a_trace(tmp_path):
    """Neither names of layers nor random numbers depend on whether a file was checked."""
    model = keras.Sequential([keras.Input((3,)), keras.layers.Dense(2), keras.layers.Dropout(0.5)])
    model.save(tmp_path / "model.keras")
    config, sizes = check_archive(tmp_path / "model.keras")
    random.seed(0)
    number, name = random.random(), keras.layers.Dense(1).name
    random.seed(0)
    check_weights(config, sizes, "x.keras")
    assert random.random() == number
    assert int(keras.layers.Dense(1).name.split("_")[1]) == int(name.split("_")[1]) + 1
    assert sorted(sizes)[-2:] == [2, 6]
    with pytest.raises(
        ValueError, match="x.keras has 8 numbers in its weights, but its layers ask"
    ):
        config["config"]["layers"][1]["config"]["units"] = 1 << 25
        check_weights(config, [2, 6], "x.keras")


def test_a_stored_type_holds_no_numbers(tmp_path):
    """HDF5 may keep a type by a name, which is neither a group nor a dataset."""
    shutil.copytree(FROZEN, run := tmp_path / "run")

    def add_type(members):
        file = io.BytesIO(members["model.weights.h5"])
        with h5py.File(file, "r+") as weights:
            weights["number"] = np.dtype("f4")
        members["model.weights.h5"] = file.getvalue()

    rewrite(run, add_type)
    check_archive(run / "model.keras")


def test_a_file_without_a_compile_configuration(tmp_path):
    model = keras.Sequential([keras.layers.Input((3,)), keras.layers.Dense(2)])
    model.save(tmp_path / "model.keras")
    with zipfile.ZipFile(tmp_path / "model.keras") as old:
        members = {name: old.read(name) for name in old.namelist()}
    config = json.loads(members["config.json"])
    members["config.json"] = json.dumps({**config, "compile_config": None}).encode()
    with zipfile.ZipFile(tmp_path / "null.keras", "w") as new:
        for name, content in members.items():
            new.writestr(name, content)
    assert load_model(tmp_path / "null.keras", compiled=False).count_params() == 8


@pytest.mark.any_backend
def test_a_large_file_is_read_about_once(tmp_path, monkeypatch):
    """A member of an archive is read again from its beginning at each jump back."""
    path = tmp_path / "model.keras"
    with h5py.File(tmp_path / "weights.h5", "w") as file:
        for index in range(100):
            file.create_dataset(f"layers/{index}/vars/0", data=np.ones((100, 100), "float32"))
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("config.json", "{}")
        archive.write(tmp_path / "weights.h5", "model.weights.h5")
    read, done = zipfile._SharedFile.read, []
    monkeypatch.setattr(
        zipfile._SharedFile, "read", lambda file, n=-1: done.append(read(file, n)) or done[-1]
    )
    assert check_archive(path) == ({}, [100 * 100] * 100)
    assert sum(map(len, done)) < 2 * path.stat().st_size
