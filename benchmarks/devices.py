"""Trainings on several virtual devices of one CPU, beside one device.

    python benchmarks/devices.py [--parts losses,traffic,plan] [--steps 50]

`losses`: the largest difference of a step's loss from one device's, with what a recipe may have.
`traffic`: the bytes that the compiled step sums over the devices, beside the size of the gradient,
and what a ring sends for that. `plan`: computed, not measured: what a cluster would train, by the
size of the gradient and published speeds of links. KERAS_BACKEND selects the backend; TensorFlow
has the losses alone.

Virtual devices share the CPU's cores, so nothing here is faster on several. The learning rate is
one that the training bears. At five times as much the loss stops to fall after 25 steps, and
differences of 1e-7, which any other order of a sum makes, grow tenfold in five steps.
"""

import argparse
import contextlib
import json
import os
import pathlib
import random
import re
import subprocess
import sys
import tempfile

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent))
from benchmarks.common import (  # noqa: E402
    environment,
    names,
    print_command,
    print_head,
    print_row,
)

BACKEND = os.environ.get("KERAS_BACKEND", "jax")
COUNTS = (1, 2, 4, 8) if BACKEND == "jax" else (1, 2)
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
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--parts", type=names, default=["losses", "traffic", "plan"])
    parser.add_argument("--steps", type=int, default=50)
    parser.add_argument("--child", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.child:
        print(json.dumps(_CHILDREN[options.child](**json.load(sys.stdin))))
        return
    print_command(f"KERAS_BACKEND={BACKEND} ")
    if "plan" in options.parts:
        _print_plan()
    with tempfile.TemporaryDirectory() as folder:
        _write_corpus(pathlib.Path(folder))
        if "losses" in options.parts:
            _print_losses(folder, options.steps)
        if "traffic" in options.parts and BACKEND == "jax":
            _print_traffic(folder)


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
        env=environment(BACKEND, XLA_FLAGS=flags),
        capture_output=True,
        text=True,
    )
    if done.returncode:
        raise RuntimeError(done.stderr[-3000:])
    return json.loads(done.stdout.splitlines()[-1])


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


_CHILDREN = {"losses": _losses, "gradient": _gradient}

if __name__ == "__main__":
    main()
