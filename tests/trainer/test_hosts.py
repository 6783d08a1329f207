"""Two hosts of two devices each, as processes of this machine, give the training of one."""

import csv
import os
import pathlib
import random
import signal
import socket
import subprocess
import sys
import time

import keras
import numpy as np
import pytest

from kformer.trainer import run as run_module

ROOT = pathlib.Path(__file__).parents[2]

pytestmark = pytest.mark.skipif(keras.backend.backend() != "jax", reason="hosts need JAX")


def free_port():
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return free.getsockname()[1]


@pytest.fixture(scope="module")
def text(tmp_path_factory):
    """The options of a small training."""
    folder = tmp_path_factory.mktemp("text")
    numbers = random.Random(0)
    for side, count in (("train", 300), ("valid", 40)):
        lines = [
            " ".join(numbers.choices("abcdefgh", k=numbers.randint(2, 12))) for _ in range(count)
        ]
        (folder / f"{side}.source").write_text("".join(f"{line}\n" for line in lines))
        (folder / f"{side}.target").write_text("".join(f"{line[::-1]}\n" for line in lines))
    options = ["--batch-tokens", 256, "--max-shapes", 1, "--dropout", 0.1, "--vocabulary-size", 270]
    options += ["--warmup-steps", 20, "--cooldown", 0, "--accumulate", 2, "--ema", 0.9]
    for side in ("source", "target"):
        options += [f"--train-{side}", folder / f"train.{side}"]
        options += [f"--valid-{side}", folder / f"valid.{side}"]
    for size in ("hidden_dim", "intermediate_dim"):
        options += ["--model-option", f"{size}=8"]
    for layers in ("num_encoder_layers", "num_decoder_layers", "num_heads"):
        options += ["--model-option", f"{layers}=1"]
    return [str(option) for option in options]


def start(run, devices, *options, **environment):
    """A process that trains."""
    flags = f"{os.environ.get('XLA_FLAGS', '')} --xla_force_host_platform_device_count={devices}"
    paths = {"PYTHONPATH": str(ROOT), "KERAS_BACKEND": "jax", "XLA_FLAGS": flags}
    return subprocess.Popen(
        [sys.executable, "-m", "kformer_cli", "train", "--output", str(run), *options],
        env={**os.environ, **paths, **environment},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def start_hosts(run, *options, of_second=None, **environment):
    """The processes of two hosts, of which the second may have other options."""
    hosts = ["--hosts", f"127.0.0.1:{free_port()},127.0.0.1:{free_port()}", "--host-index"]
    first = start(run, 2, *options, *hosts, "0", **environment)
    return first, start(run, 2, *(of_second or options), *hosts, "1", **environment)


def ends_of(*processes):
    """The exit code, the output and the last line of errors of each."""
    ends = []
    for process in processes:
        try:
            output, errors = process.communicate(timeout=200)
        finally:
            process.kill()
        ends.append((process.returncode, output, errors.strip().splitlines()[-1]))
    return ends


def history(run):
    with open(run / "history.csv", encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    return [float(row["loss"]) for row in rows] + [float(rows[-1]["val_nll"])]


@pytest.fixture
def two_corpora(text, tmp_path_factory):
    """Such options with a description of two corpora instead of the two files."""
    options, folder = list(text), tmp_path_factory.mktemp("corpora")
    for side in ("source", "target"):
        at = options.index(f"--train-{side}")
        lines = pathlib.Path(options[at + 1]).read_text().splitlines(True)
        del options[at : at + 2]
        for name, part in (("one", lines[:200]), ("two", lines[200:])):
            (folder / f"{name}.{side}").write_text("".join(part))
    (folder / "corpora.yaml").write_text(
        "corpora:\n"
        "  one: {source: one.source, target: one.target, languages: en-de}\n"
        "  two: {source: two.source, target: two.target, languages: en-de, weight: 0.5}\n"
        "clean: none\n"
    )
    return [*options, "--corpora", str(folder / "corpora.yaml")]


@pytest.mark.slow
def test_losses_files_and_resumption_are_those_of_one_host(two_corpora, tmp_path):
    run, text = tmp_path / "two", two_corpora
    (code, output, _), (code_of_second, nothing, _) = ends_of(
        *start_hosts(run, *text, "--steps", "10", TMPDIR=str(tmp_path))
    )
    assert (code, code_of_second) == (0, 0)
    assert output.strip() == str(run) and nothing == ""
    checkpoints = [path.name for path in (run / "checkpoints").iterdir()]
    more = [text[0], text[1], "--steps", "12", "--resume"]
    assert [end[0] for end in ends_of(*start_hosts(run, *more))] == [0, 0]
    assert "step-10" in checkpoints and (run / "checkpoints" / "step-12").exists()
    # The second host has left nothing behind.
    assert [path.name for path in tmp_path.iterdir()] == ["two"]

    one = tmp_path / "one"
    assert ends_of(start(one, 4, *text, "--steps", "12", "--devices", "4"))[0][0] == 0
    found, expected = history(run), history(one)
    assert len(expected) == 13 and expected[11] < expected[0]
    np.testing.assert_allclose(found, expected, rtol=0, atol=1e-5)
    names = [sorted(path.name for path in folder.iterdir()) for folder in (run, one)]
    assert names[0] == names[1]


def test_another_text_on_one_host_is_refused(text, tmp_path):
    other, source = tmp_path / "other.source", text[text.index("--train-source") + 1]
    lines = pathlib.Path(source).read_text().splitlines()
    other.write_text("\n".join(["a b", *lines[1:]]) + "\n")
    run, texts = tmp_path / "run", [*text, "--steps", "4"]
    others = [str(other) if option == source else option for option in texts]
    processes = start_hosts(run, *texts, of_second=others)
    for code, _, error in ends_of(*processes):
        assert code == 1
        assert error.startswith("error: Host 1 has another training text than host 0: give all")
    assert not run.exists()


def test_all_devices_of_one_host_alone_train(tmp_path, monkeypatch):
    def chosen(*arguments):
        raise ValueError(f"chosen: {arguments}")

    monkeypatch.setattr(run_module, "distribution", chosen)
    with pytest.raises(ValueError, match=r"^chosen: \('all', 1\)$"):
        run_module.train_run(tmp_path / "run", hosts=["localhost"], host_index=0)


@pytest.mark.slow
@pytest.mark.parametrize("lost", [0, 1])
def test_a_lost_host_ends_the_other_and_all_resume(text, tmp_path, lost):
    run = tmp_path / "run"
    often = ["--checkpoint-every", "4", "--epochs", "5"]
    processes = start_hosts(run, *text, *often, KFORMER_HEARTBEAT_SECONDS="6")
    for _ in range(200):
        time.sleep(0.5)
        if (run / "checkpoints" / "step-8").exists():
            break
    processes[lost].send_signal(signal.SIGKILL)
    began = time.monotonic()
    code, _, error = ends_of(processes[1 - lost])[0]
    assert code == 1 and time.monotonic() - began < 60
    assert error.startswith(f"error: Host {lost} no longer answers: start the same command with")
    assert "the training goes on from step" in error
    processes[lost].wait()
    time.sleep(1)  # Its child sees that it is gone, and frees the lock.
    assert [end[0] for end in ends_of(*start_hosts(run, "--resume"))] == [0, 0]

    one = tmp_path / "one"
    assert ends_of(start(one, 4, *text, *often, "--devices", "4"))[0][0] == 0
    np.testing.assert_allclose(history(run), history(one), rtol=0, atol=1e-5)


@pytest.mark.slow
def test_a_signal_to_one_host_ends_all_at_one_step(text, tmp_path):
    run = tmp_path / "run"
    processes = start_hosts(run, *text, "--steps", "100000", "--checkpoint-every", "4")
    for _ in range(200):
        time.sleep(0.5)
        if (run / "checkpoints").exists():
            break
    processes[1].send_signal(signal.SIGTERM)
    ends = ends_of(*processes)
    assert [end[0] for end in ends] == [128 + signal.SIGTERM] * 2
    steps = sorted(int(path.name.removeprefix("step-")) for path in (run / "checkpoints").iterdir())
    for _, _, error in ends:
        assert error.endswith(f"--resume on all hosts goes on from step {steps[-1]:,}.")
