"""Several devices give the training of one device. The trainings run in one process of their own,
since a process cannot make virtual devices once it has begun.
"""

import json
import os
import pathlib
import subprocess
import sys

import keras
import numpy as np
import pytest

from kformer.training import distribution
from kformer_cli.main import main

PROGRAM = pathlib.Path(__file__).with_name("devices.py")
IS_TORCH = keras.backend.backend() == "torch"
several = pytest.mark.skipif(IS_TORCH, reason="Keras has no several devices on PyTorch")


def run_program(output, *words):
    root = str(PROGRAM.parents[2])
    subprocess.run(
        [sys.executable, str(PROGRAM), str(output), *words],
        env={**os.environ, "KERAS_BACKEND": keras.backend.backend(), "PYTHONPATH": root},
        check=True,
        timeout=600,
    )
    return json.loads(output.read_text(encoding="utf-8"))


@pytest.fixture(scope="module")
def found(tmp_path_factory):
    """One device and the most of them, and what is refused."""
    return run_program(tmp_path_factory.mktemp("devices") / "found.json")


@pytest.fixture(scope="module")
def all_found(tmp_path_factory):
    """Each number of devices, the whole recipe, and a training that goes on."""
    return run_program(tmp_path_factory.mktemp("devices") / "found.json", "whole")


@several
def test_losses_are_those_of_one_device(found):
    # With dropout, whose masks are the same, and batches whose parts have unlike counts of tokens.
    one, *others = found["plain"].values()
    assert one[-2] < one[0] - 0.1
    for values in others:
        np.testing.assert_allclose(values, one, rtol=0, atol=1e-5)


@pytest.mark.slow
@several
def test_each_number_of_devices(all_found):
    one, *others = all_found["plain"].values()
    for values in others:
        np.testing.assert_allclose(values, one, rtol=0, atol=1e-5)


@pytest.mark.slow
@several
def test_adapters_train_as_on_one_device(all_found):
    one, *others = all_found["lora"].values()
    assert one[-2] < one[0]
    for values in others:
        np.testing.assert_allclose(values, one, rtol=0, atol=1e-5)


@pytest.mark.slow
@pytest.mark.skipif(keras.backend.backend() != "jax", reason="TensorFlow refuses part of it")
def test_the_whole_recipe_is_that_of_one_device_on_jax(all_found):
    one, *others = all_found["whole"].values()
    assert one[-2] < one[0]
    for values in others:
        np.testing.assert_allclose(values, one, rtol=0, atol=2e-2)


@pytest.mark.slow
@several
def test_a_checkpoint_goes_on_with_another_number_of_devices(all_found):
    one = all_found["plain"]["1"][:6]
    np.testing.assert_allclose(all_found["resumed"], one, rtol=0, atol=1e-5)


@pytest.mark.slow
@several
def test_the_command_and_its_resumption_on_another_number_of_devices(all_found):
    one, *others = all_found["command"]
    assert len(one) == 6 and one[-1] < one[0]
    assert len(others) == {"jax": 2, "tensorflow": 1}[keras.backend.backend()]
    for losses in others:
        np.testing.assert_allclose(losses, one, rtol=0, atol=1e-5)


@pytest.mark.skipif(keras.backend.backend() != "jax", reason="Keras splits models on JAX alone")
def test_a_split_model_is_that_of_one_device(found):
    one, parts = found["plain"]["1"], found["split"]
    for name in ("2 parts", "4 parts"):
        np.testing.assert_allclose(parts[name], one, rtol=0, atol=1e-5)
    np.testing.assert_allclose(parts["resumed"], one[:6], rtol=0, atol=1e-5)
    # A small model has more norms and biases, which are on each device, than a large one.
    assert parts["share"] < 0.5


@pytest.mark.skipif(keras.backend.backend() != "jax", reason="a search is shared on JAX alone")
def test_translations_are_those_of_one_device(found):
    (one, sums), (several, their_sums) = found["translated"]
    assert [text for text, _ in several] == [text for text, _ in one] and len(one) == 37
    np.testing.assert_allclose([s for _, s in several], [s for _, s in one], atol=1e-4)
    np.testing.assert_allclose(their_sums, sums, atol=1e-4)


@pytest.mark.skipif(keras.backend.backend() == "jax", reason="it is about the others")
def test_a_search_on_several_devices_needs_jax(capfd, tmp_path):
    (tmp_path / "text").write_text("noon\n")
    run = PROGRAM.parents[1] / "frozen_run"
    command = ["translate", str(run), "--input", str(tmp_path / "text"), "--devices"]
    assert main([*command, "2"]) == 1
    assert "on JAX alone" in " ".join(capfd.readouterr().err.split())
    assert main([*command, "two"]) == 2
    assert "at least 1, or all, but 'two' was given" in " ".join(capfd.readouterr().err.split())


@several
def test_refusals(found):
    most = {"jax": 4, "tensorflow": 2}[keras.backend.backend()]
    refusals = found["refusals"]
    assert f"give at most {most}, or 'all'" in refusals["too many"]
    words = {"jax": "whole models of 3 devices each: give devices=3", "tensorflow": "on JAX alone"}
    assert words[keras.backend.backend()] in refusals["parts"]
    assert f"make the data with num_devices={most}." in refusals["rows"]
    if keras.backend.backend() == "tensorflow":
        assert "clips the gradient of each of the 2 devices" in refusals["clipping"]
        assert "cannot accumulate gradients" in refusals["accumulation"]


@pytest.mark.skipif(not IS_TORCH, reason="it is about PyTorch")
def test_pytorch_is_refused():
    with pytest.raises(ValueError, match="choose the backend jax or tensorflow"):
        distribution(2)
    assert not hasattr(keras.src.backend.torch, "distribution_lib")
