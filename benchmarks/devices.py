"""Trainings on several virtual devices of one CPU, beside one device.

    python benchmarks/devices.py [--steps 50] [--parts losses,traffic,hosts,...] [--kills 20]

`losses`: the largest difference of a step's loss from one device's, with what a recipe may have.
`traffic`: the bytes that the compiled step sums over the devices, beside the size of the gradient,
and what a ring sends for that. `hosts`: two processes of two devices each as two hosts, by
`kformer train --hosts`, beside one process. `kills`: a training that is killed again and again, and
goes on with 1, 2, 4 or 8 devices or on two hosts, one of which is killed; its losses beside those
of a training in one go. `large`: a model with
NLLB's vocabulary at the width of `base`, as it is published, imported and split over 4 devices:
what one device holds, 3 steps, saved, resumed. `plan`: computed, not measured: what a cluster would
train, by the size of the gradient and published speeds of links. KERAS_BACKEND selects the backend;
TensorFlow has the losses alone.

Virtual devices share the CPU's cores, so nothing here is faster on several. The learning rate is
one that the training bears. At five times as much the loss stops to fall after 25 steps, and
differences of 1e-7, which any other order of a sum makes, grow tenfold in five steps.
"""

import argparse
import contextlib
import csv
import json
import os
import pathlib
import random
import re
import signal
import socket
import subprocess
import sys
import tempfile
import time

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent))
from benchmarks.tables import print_command, print_head, print_row  # noqa: E402

BACKEND = os.environ.get("KERAS_BACKEND", "jax")
COUNTS = (1, 2, 4, 8) if BACKEND == "jax" else (1, 2)
_NLLB_VOCABULARY = 256_206
# For `plan`: parameters with a vocabulary of 32,000, target tokens of a device's batch, operations
# per second that a data-center GPU reaches, and bytes per second of a device's link in one
# direction: NVLink 4, InfiniBand NDR (one for each device), 10 Gbit/s Ethernet.
_PARAMETERS = {"base": 60.5e6, "big": 209e6}
_TOKENS, _OPERATIONS = 16_384, 2e14
_LINKS = {"NVLink": 450e9, "InfiniBand": 50e9, "Ethernet": 1.25e9}
# A loss may differ by so much from one device's.
_BOUNDS = {"float32": 1e-5, "mixed_bfloat16": 2e-2}
CASES = {
    "nothing else": {},
    "packed batches": {"packed": True},
    "moving average": {"ema_momentum": 0.99},
    "mixed_bfloat16": {"dtype": "mixed_bfloat16"},
    "dropout 0.3": {"dropout": 0.3},
}
ON_JAX = {
    "clipping, 2 batches for an update": {"clip_norm": 0.1, "accumulation_steps": 2},
    "R-Drop": {"consistency": 1.0},
    "soft targets": {"soft_targets": True},
    "2 devices for each model": {"parts": 2},
}
_SIZES = {"f32": 4, "bf16": 2, "f16": 2, "s32": 4, "u32": 4, "pred": 1, "f64": 8, "s64": 8}


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--steps", type=int, default=50)
    parser.add_argument("--parts", default="losses,traffic,hosts,kills,large,plan")
    parser.add_argument("--kills", type=int, default=20)
    parser.add_argument("--child", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.child:
        print(json.dumps(_CHILDREN[options.child](**json.load(sys.stdin))))
        return
    print_command(f"KERAS_BACKEND={BACKEND} ")
    wanted = options.parts.split(",")
    if "plan" in wanted:
        _print_plan()
    with tempfile.TemporaryDirectory() as folder:
        _write_corpus(pathlib.Path(folder))
        if "losses" in wanted:
            _print_losses(folder, options.steps)
        if BACKEND == "jax":
            if "traffic" in wanted:
                _print_traffic(folder)
            if "hosts" in wanted:
                _print_hosts(pathlib.Path(folder), options.steps)
            if "kills" in wanted:
                _print_kills(pathlib.Path(folder), options.kills)
            if "large" in wanted:
                _print_large(folder)


def _print_plan():
    """What accelerators would train that compute at `_OPERATIONS` and wait for the whole sum."""
    print_head(["preset", "devices", "link", "compute, ms", "sum, ms", "tokens/s", "of ideal"])
    for preset, parameters in _PARAMETERS.items():
        # 6 operations for each parameter and token; a parameter sees the tokens of its side.
        compute = 6 * parameters * _TOKENS / _OPERATIONS
        for devices, link in ((8, "NVLink"), (8, "Ethernet"), (64, "InfiniBand"), (64, "Ethernet")):
            reduced = 2 * (devices - 1) / devices * 4 * parameters / _LINKS[link]
            rate = devices * _TOKENS / (compute + reduced)
            cells = preset, devices, link, f"{1e3 * compute:.0f}", f"{1e3 * reduced:.1f}"
            print_row(*cells, f"{rate:,.0f}", f"{compute / (compute + reduced):.2f}")
    print()


def _write_corpus(folder):
    """Sentences of unlike lengths, and their words in reverse order."""
    numbers = random.Random(0)
    lines = [" ".join(numbers.choices("abcdefgh", k=numbers.randint(2, 20))) for _ in range(2000)]
    (folder / "source").write_text("".join(f"{line}\n" for line in lines))
    (folder / "target").write_text("".join(f"{line[::-1]}\n" for line in lines))


def _run(child, devices, more_flags="", **arguments):
    """What a child of this program prints, as a process with so many virtual devices."""
    flags = f"--xla_force_host_platform_device_count={devices} {more_flags}"
    done = subprocess.run(
        [sys.executable, __file__, "--child", child],
        input=json.dumps({"devices": devices, **arguments}),
        env={**os.environ, "KERAS_BACKEND": BACKEND, "XLA_FLAGS": flags, **_quiet()},
        capture_output=True,
        text=True,
    )
    if done.returncode:
        raise RuntimeError(done.stderr[-3000:])
    return json.loads(done.stdout.splitlines()[-1])


def _quiet():
    root = str(pathlib.Path(__file__).resolve().parent.parent)
    path = os.pathsep.join(filter(None, [root, os.environ.get("PYTHONPATH")]))
    return {"TF_CPP_MIN_LOG_LEVEL": "3", "PYTHONPATH": path}


def _print_losses(folder, steps):
    cases = {**CASES, **(ON_JAX if BACKEND == "jax" else {})}
    print_head([f"{steps} steps with", *(f"{n} devices" for n in COUNTS[1:]), "allowed"])
    for name, case in cases.items():
        parts = case.pop("parts", 1)
        found = {
            n: _run("losses", n, folder=folder, steps=steps, parts=parts if n > 1 else 1, case=case)
            for n in COUNTS
        }
        differences = [
            max(abs(a - b) for a, b in zip(found[n], found[1], strict=True)) for n in COUNTS[1:]
        ]
        bound = _BOUNDS[case.get("dtype", "float32")]
        print_row(name, *(f"{value:.1e}" for value in differences), f"{bound:g}")
        if max(differences) > bound:
            print(f"more than allowed: {name}", file=sys.stderr)
    print()


def _losses(devices, folder, steps, parts, case):
    """The losses of a training's first steps."""
    import keras

    from kformer.training import LatestValue

    keras.utils.set_random_seed(0)
    with _scope(devices, parts):
        data, tokenizer = _data(folder, devices // parts, case)
        model = _model(tokenizer, case)
        model.loss_observer = model.batch_loss = LatestValue(name="batch_loss")
        values = []

        class Losses(keras.callbacks.Callback):
            def on_train_batch_end(self, batch, logs=None):
                values.append(float(logs["batch_loss"]))

        model.fit(data.from_step(0), steps_per_epoch=steps, verbose=0, callbacks=[Losses()])
    return values


def _scope(devices, parts=1):
    from kformer.training import distribution

    if BACKEND == "tensorflow":
        import tensorflow as tf

        cpu = tf.config.list_physical_devices("CPU")[0]
        logical = [tf.config.LogicalDeviceConfiguration()] * devices
        tf.config.set_logical_device_configuration(cpu, logical)
    return distribution(devices, parts).scope() if devices > 1 else contextlib.nullcontext()


def _data(folder, devices, case):
    import kformer
    from kformer.distillation import soft_targets

    folder = pathlib.Path(folder)
    source, target = folder / "source", folder / "target"
    tokenizer = kformer.Tokenizer.train([source, target], vocabulary_size=272)
    with tempfile.TemporaryDirectory(dir=folder) as aside:
        aside = pathlib.Path(aside)
        corpus = kformer.data.prepare(source, target, tokenizer, aside / "pairs")
        settings = {"packed": case.get("packed", False), "num_devices": devices, "max_shapes": 2}
        if case.get("soft_targets"):
            teacher = _model(tokenizer, {})
            soft_targets(teacher, corpus, aside / "soft")
            settings["soft_targets"] = kformer.data.SoftTargets(aside / "soft", corpus)
        data = kformer.data.ParallelDataset.from_prepared(corpus, batch_tokens=512, **settings)
    return data, tokenizer


def _model(tokenizer, case):
    import kformer

    case = {name: value for name, value in case.items() if name not in ("packed", "soft_targets")}
    model = kformer.Transformer(
        tokenizer.vocabulary_size,
        num_encoder_layers=2,
        num_decoder_layers=2,
        hidden_dim=32,
        intermediate_dim=64,
        num_heads=4,
        dropout=case.pop("dropout", 0.0),
        dtype=case.pop("dtype", "float32"),
        seed=1,
    )
    model.compile(**kformer.training.paper_recipe(model, warmup_steps=100, scale=0.2, **case))
    return model


def _print_traffic(folder):
    print_head(
        ["devices", "parts of a model", "gradient, bytes", "all-reduce", "ratio", "other", "ring"]
    )
    for devices, parts in ((2, 1), (4, 1), (8, 1), (4, 4)):
        with tempfile.TemporaryDirectory() as dump:
            flags = f"--xla_dump_to={dump} --xla_dump_hlo_as_text --xla_dump_hlo_module_re=.*step.*"
            more = {"folder": folder, "parts": parts}
            gradient = _run("gradient", devices, flags, **more)
            reduced, other = _communicated(pathlib.Path(dump))
        ring = 2 * (devices - 1) / devices * reduced
        ratio = f"{reduced / gradient:.3f}"
        print_row(
            devices, parts, f"{gradient:,}", f"{reduced:,}", ratio, f"{other:,}", f"{ring:,.0f}"
        )
    print()


def _gradient(devices, folder, parts):
    """Trains a step, and returns the bytes of the gradient of a device's weights."""
    with _scope(devices, parts):
        data, tokenizer = _data(folder, devices // parts, {})
        model = _model(tokenizer, {})
        model.fit(data.from_step(0), steps_per_epoch=1, verbose=0)
        weights = [weight.value for weight in model.trainable_variables]
    return sum(weight.addressable_shards[0].data.nbytes for weight in weights)


def _communicated(folder):
    """The bytes of all-reduces and of other collectives in the largest dumped program."""
    texts = [path.read_text() for path in folder.glob("*after_optimizations.txt")]
    text = max(texts, key=lambda each: sum(_sizes_of(each).values()))
    found = _sizes_of(text)
    reduced = found.pop("all-reduce", 0)
    return reduced, sum(found.values())


def _sizes_of(text):
    found = {}
    kinds = "all-reduce|all-gather|reduce-scatter|all-to-all|collective-permute"
    pattern = rf"= (.+?) ({kinds})(?:-start)?\("
    for shapes, kind in re.findall(pattern, text):
        for dtype, sizes in re.findall(r"(\w+)\[([\d,]*)\]", shapes):
            count = 1
            for size in filter(None, sizes.split(",")):
                count *= int(size)
            found[kind] = found.get(kind, 0) + count * _SIZES.get(dtype, 4)
    return found


def _print_hosts(folder, steps):
    """Two hosts of two devices each, beside one process with four devices and with one."""
    options = ["--steps", str(steps), "--dropout", "0"]
    for name, devices in (("one", 1), ("four", 4)):
        _end(_train(folder, name, devices, options))
    # In two parts, so that they also resume.
    for part in ("30", str(steps)):
        _end(_train(folder, "hosts", (2, 2), ["--steps", part, "--dropout", "0"]))
    one, four, hosts = (_history(folder / name) for name in ("one", "four", "hosts"))
    print_head([f"{steps} steps of 2 hosts of 2 devices, resumed", "largest difference"])
    for name, losses in (("1 device", one), ("4 devices", four)):
        difference = max(abs(a - b) for a, b in zip(hosts, losses, strict=True))
        print_row(f"beside {name} of one process", f"{difference:.1e}")
    print()


def _print_kills(folder, kills, seed=1):
    numbers, seen, began = random.Random(seed), [], time.perf_counter()
    _end(_train(folder, "whole", 4))
    ways, deaths, silences = (*COUNTS, (2, 2)), {}, []
    while True:
        way = numbers.choice(ways)
        training = _train(folder, "killed", way)
        seen.append(way)
        killed = numbers.randrange(len(training))
        is_last = sum(deaths.values()) >= kills
        seconds = float("inf") if is_last else numbers.uniform(0, 15)
        if _has_ended(training[killed], folder / "killed" / "history.csv", seconds):
            _end(training)
            break
        training[killed].send_signal(signal.SIGKILL)
        died = time.perf_counter()
        for process in training:
            process.wait()
        silences += [time.perf_counter() - died] * (len(training) > 1)
        deaths[way] = deaths.get(way, 0) + 1
        time.sleep(2)  # A host's child sees within that time that its parent is gone.
    whole, parts = (_history(folder / name) for name in ("whole", "killed"))
    difference = max(abs(a - b) for a, b in zip(whole, parts, strict=True))
    names = "kills on 1, 2, 4, 8 devices, of one of 2 hosts"
    print_head([names, "trainings", "steps", "largest difference", "other host ended in, s", "s"])
    counts = ", ".join(str(deaths.get(way, 0)) for way in ways)
    seconds = time.perf_counter() - began
    longest = f"{max(silences, default=0):.0f}"
    print_row(counts, len(seen), len(parts), f"{difference:.1e}", longest, f"{seconds:.0f}")
    print()
    assert (folder / "killed" / "model.keras").exists()


def _has_ended(process, history, seconds):
    """Waits until a process has trained for some seconds; returns whether it ended before that."""

    def changed():
        return history.stat().st_mtime if history.exists() else None

    began, deadline = changed(), None
    while process.poll() is None:
        if deadline is None and changed() != began:
            deadline = time.perf_counter() + seconds
        if deadline is not None and time.perf_counter() > deadline:
            return False
        time.sleep(0.1)
    return True


def _end(training):
    """Waits for the processes of a training."""
    if codes := [code for process in training if (code := process.wait())]:
        raise RuntimeError(f"a training ended with the code {codes[0]}")


def _train(folder, name, devices, options=("--epochs", "16", "--dropout", "0.1")):
    """The processes that begin a training, or go on with it: one, or one for each of some hosts."""
    command = [sys.executable, "-m", "kformer_cli", "train", "--output", str(folder / name)]
    command += ["--resume", "--train-source", str(folder / "source"), "--train-target"]
    command += [str(folder / "target"), "--vocabulary-size", "272", "--batch-tokens", "512"]
    command += ["--max-shapes", "2", "--cooldown", "0", "--ema", "0"]
    command += ["--checkpoint-every", "20", "--warmup-steps", "500"]
    command += ["--learning-rate", "0.0005", *options]
    for option in ("hidden_dim=32", "intermediate_dim=64", "num_encoder_layers=1"):
        command += ["--model-option", option]
    if isinstance(devices, int):
        return [_start([*command, "--devices", str(devices)], folder, devices)]
    hosts = ",".join(f"127.0.0.1:{free_port()}" for _ in devices)
    return [
        _start([*command, "--hosts", hosts, "--host-index", str(index)], folder, count)
        for index, count in enumerate(devices)
    ]


def free_port():
    """A port of this machine that nobody listens on."""
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return found.getsockname()[1]


def _start(command, folder, devices):
    flags = f"--xla_force_host_platform_device_count={devices}"
    cache = {"JAX_COMPILATION_CACHE_DIR": str(folder / "cache"), "KFORMER_HEARTBEAT_SECONDS": "10"}
    cache["JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS"] = "0"
    return subprocess.Popen(
        command,
        env={**os.environ, "KERAS_BACKEND": "jax", "XLA_FLAGS": flags, **cache, **_quiet()},
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )


def _history(run):
    with open(run / "history.csv", encoding="utf-8") as file:
        return [float(row["loss"]) for row in csv.DictReader(file)]


def _print_large(folder):
    found = _run("large", 4, folder=folder)
    print_head(["parameters", "share of one device", "losses", "resumed", "save, s", "load, s"])
    print_row(
        f"{found['parameters']:,}",
        f"{found['share']:.3f}",
        " ".join(f"{value:.4f}" for value in found["losses"]),
        " ".join(f"{value:.4f}" for value in found["resumed"]),
        f"{found['save']:.0f}",
        f"{found['load']:.0f}",
    )


def _large(devices, folder):
    """Imports a published model, splits it over all devices, trains it, saves it, and goes on."""
    import numpy as np

    import kformer
    from benchmarks.trimming import LANGUAGES, write_folder
    from kformer.saving import TrainingState, load_checkpoint, load_run, save_checkpoint

    folder = pathlib.Path(folder)
    pairs = kformer.examples.generate_pairs(400, categories="time")
    text = folder / "text"
    text.write_text("".join(f"{pair.source}\n{pair.target}\n" for pair in pairs))
    (folder / "published").mkdir()
    write_folder(argparse.Namespace(text=[text], hidden=512, layers=6), folder / "published")
    languages = {"source_language": LANGUAGES[1], "target_language": LANGUAGES[3]}
    run = kformer.interop.import_checkpoint(folder / "published", folder / "run", **languages)

    numbers = np.random.default_rng(0)
    ids = numbers.integers(4, _NLLB_VOCABULARY, (6, 2, 2, 8)).astype("int32")
    found = {}
    with _scope(devices, devices):
        model, *_ = load_run(run)
        assert model.vocabulary_size == _NLLB_VOCABULARY
        model.compile(**kformer.training.paper_recipe(model, warmup_steps=10))

        def train(model, batches):
            inputs = [{"source_ids": s, "target_ids": t} for s, t in batches]
            return [float(model.train_on_batch(x, x["target_ids"])[0]) for x in inputs]

        found["losses"] = train(model, ids[:3])
        found["parameters"] = model.count_params()
        found["share"] = largest_share(model)
        start = time.perf_counter()
        save_checkpoint(folder / "large", model, TrainingState(3))
        found["save"] = time.perf_counter() - start
        expected = train(model, ids[3:])
        start = time.perf_counter()
        model, _ = load_checkpoint(folder / "large")
        found["load"] = time.perf_counter() - start
        found["resumed"] = train(model, ids[3:])
        np.testing.assert_allclose(found["resumed"], expected, atol=1e-5)
        found["share"] = max(found["share"], largest_share(model))
    return found


def largest_share(model):
    """The largest share of the weights and the optimizer's variables that a device holds."""
    held, whole = {}, 0
    for variable in [*model.variables, *model.optimizer.variables]:
        whole += variable.value.nbytes
        for shard in variable.value.addressable_shards:
            held[shard.device.id] = held.get(shard.device.id, 0) + shard.data.nbytes
    return max(held.values()) / whole


_CHILDREN = {"losses": _losses, "gradient": _gradient, "large": _large}

if __name__ == "__main__":
    main()
