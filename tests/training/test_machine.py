"""Settings of the process, each tried in a process of its own."""

import os
import subprocess
import sys

import keras
import pytest

from kformer.training import configure_machine
from kformer.training.machine import has_bfloat16_products

FAULTS = """
import resource, sys
import numpy as np
from kformer.training import configure_machine
print(configure_machine(keep_memory=sys.argv[1] == "keep"))
for step in range(30):
    if step == 10:
        before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    [np.ones(2**21) for _ in range(4)]
print(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
"""
PRECISION = """
import keras
from kformer.training import configure_machine
print(configure_machine())
print(configure_machine("medium"))
if keras.backend.backend() == "torch":
    import torch
    print(torch.get_float32_matmul_precision() == "medium")
elif keras.backend.backend() == "jax":
    import jax
    print(jax.config.jax_default_matmul_precision == "default")
else:
    import tensorflow as tf
    print(tf.config.experimental.tensor_float_32_execution_enabled())
print(configure_machine())
"""


def run(program, *arguments):
    process = subprocess.run(
        [sys.executable, "-c", program, *arguments],
        capture_output=True,
        text=True,
        env={**os.environ},
    )
    assert process.returncode == 0, process.stderr[-2000:]
    return process.stdout.splitlines()


@pytest.mark.slow
@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="only glibc can keep memory")
@pytest.mark.any_backend
def test_freed_memory_is_kept():
    sentence, kept = run(FAULTS, "keep")
    assert "freed memory is kept" in sentence
    sentence, given_back = run(FAULTS, "no")
    assert "memory" not in sentence
    assert int(kept) < 0.1 * int(given_back)


@pytest.mark.heavy
def test_precision_of_products():
    rounds = keras.backend.backend() != "jax" and has_bfloat16_products()
    precision = "medium precision, bfloat16 in training steps" if rounds else "medium precision"
    before, sentence, is_medium, after = run(PRECISION)
    assert sentence == before.replace("default precision", precision) != before
    assert is_medium == "True" and after == sentence


@pytest.mark.heavy
@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="only glibc can keep memory")
@pytest.mark.any_backend
def test_what_is_in_force_is_said_again():
    program = "import kformer.training as t; t.configure_machine('high', keep_memory=True)\n"
    (sentence,) = run(program + "print(t.configure_machine())")
    assert "high precision; freed memory is kept" in sentence
    (sentence,) = run(program + "print(t.configure_machine('highest'))")
    assert "highest precision; freed memory is kept" in sentence


@pytest.mark.any_backend
def test_an_unknown_precision():
    with pytest.raises(
        ValueError, match="must be one of highest, high, medium, but 'low' was given"
    ):
        configure_machine("low")
    assert keras.backend.backend() in configure_machine()


@pytest.mark.any_backend
@pytest.mark.parametrize(("threads", "cores"), [("1", "1 CPU core;"), ("12", "12 CPU cores;")])
def test_threads_that_were_asked_for_are_named(monkeypatch, threads, cores):
    monkeypatch.setenv("OMP_NUM_THREADS", threads)
    assert cores in configure_machine()
