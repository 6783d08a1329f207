"""Trainings on one device and on several, run as a program: `devices.py OUTPUT [whole]`.

It makes virtual CPU devices, which a process cannot change later, and prints what it found as JSON.
"""

import contextlib
import json
import os
import pathlib
import sys
import tempfile

COUNTS = {"jax": (1, 2, 4), "tensorflow": (1, 2)}[os.environ["KERAS_BACKEND"]]
STEPS = 6

if os.environ["KERAS_BACKEND"] == "jax":
    flags = os.environ.get("XLA_FLAGS", "")
    os.environ["XLA_FLAGS"] = f"{flags} --xla_force_host_platform_device_count={COUNTS[-1]}"

else:
    import tensorflow as tf

    cpu = tf.config.list_physical_devices("CPU")[0]
    parts = [tf.config.LogicalDeviceConfiguration()] * COUNTS[-1]
    tf.config.set_logical_device_configuration(cpu, parts)

import keras  # noqa: E402
import numpy as np  # noqa: E402

import kformer  # noqa: E402
from kformer.training import LatestValue, distribution, enable_lora, paper_recipe  # noqa: E402
from kformer_cli.main import main as main_of_command  # noqa: E402
from tests.training.shares import largest_share  # noqa: E402


class Losses(keras.callbacks.Callback):
    """The loss of each batch."""

    def __init__(self):
        super().__init__()
        self.values = []

    def on_train_batch_end(self, batch, logs=None):
        self.values.append(float(logs["batch_loss"]))


def scope(count, parts=1):
    return contextlib.nullcontext() if count == 1 else distribution(count, parts).scope()


def batches(files, count, **options):
    """Batches of few shapes, whose rows have very different numbers of tokens."""
    source, target, tokenizer = files
    return kformer.data.ParallelDataset(
        source, target, tokenizer, batch_tokens=128, max_shapes=1, num_devices=count, **options
    )


def model_for(tokenizer, dropout=0.1, dtype="float32", lora_rank=None, **recipe):
    model = kformer.Transformer(
        tokenizer.vocabulary_size,
        num_encoder_layers=1,
        num_decoder_layers=1,
        hidden_dim=8,
        intermediate_dim=16,
        num_heads=2,
        dropout=dropout,
        seed=1,
        dtype=dtype,
    )
    if lora_rank is not None:
        enable_lora(model, lora_rank)
    model.compile(**paper_recipe(model, warmup_steps=20, scale=2.0, **recipe))
    model.loss_observer = model.batch_loss = LatestValue(name="batch_loss")
    return model


def fit(model, data, steps=STEPS, first=0):
    losses = Losses()
    history = model.fit(
        data.from_step(first), steps_per_epoch=steps, verbose=0, callbacks=[losses]
    ).history
    return losses.values + history["nll"]


def losses_of(files, count, packed=False, parts=1, **options):
    keras.utils.set_random_seed(0)
    with scope(count, parts):
        data = batches(files, max(count // parts, 1), packed=packed)
        return fit(model_for(files[2], **options), data)


def split(files, folder, most):
    """Losses of models that several devices share, and the largest share that a device holds."""
    found = {f"{parts} parts": losses_of(files, most, parts=parts) for parts in (2, most)}
    keras.utils.set_random_seed(0)
    with scope(most, most):
        model = model_for(files[2])
        first = fit(model, batches(files, 1), 3)[:3]
        kformer.saving.save_checkpoint(folder / "split", model, kformer.saving.TrainingState(3))
        model, _ = kformer.saving.load_checkpoint(folder / "split")
        model.loss_observer = model.batch_loss = LatestValue(name="batch_loss")
        found["resumed"] = first + fit(model, batches(files, 1), 3, 3)[:3]
        found["share"] = largest_share(model)
    return found


def resumed(files, run, counts):
    """Three steps on each of these numbers of devices, with a checkpoint between them."""
    values = []
    for position, count in enumerate(counts):
        keras.utils.set_random_seed(0)
        with scope(count):
            if position == 0:
                model = model_for(files[2])
            else:
                model, _ = kformer.saving.load_checkpoint(run)
                model.loss_observer = model.batch_loss = LatestValue(name="batch_loss")
            values += fit(model, batches(files, count), 3, 3 * position)[:3]
            state = kformer.saving.TrainingState(3 * (position + 1))
            kformer.saving.save_checkpoint(run, model, state)
    return values


def commanded(files, folder, most):
    """The losses of `kformer train` on one device, and on the most and then one, by steps."""
    source, target, tokenizer = files
    tokenizer.save(folder / "tokenizer")
    options = ["--train-source", source, "--train-target", target]
    options += ["--valid-source", source, "--valid-target", target, "--tokenizer"]
    options += [folder / "tokenizer", "--batch-tokens", 128, "--max-shapes", 1, "--dropout", 0.1]
    options += ["--clip-norm", 0, "--cooldown", 0, "--warmup-steps", 4, "--select", "bleu"]
    for size in ("hidden_dim", "intermediate_dim"):
        options += ["--model-option", f"{size}=8"]
    for layers in ("num_encoder_layers", "num_decoder_layers", "num_heads"):
        options += ["--model-option", f"{layers}=1"]
    found = []
    ways = {"one": [(1, 6)], "two": [(most, 4), (1, 6)]}
    if os.environ["KERAS_BACKEND"] == "jax":
        ways["split"] = [(f"{most} --model-parallel 2", 6)]
    for name, parts in ways.items():
        for position, (count, steps) in enumerate(parts):
            more = ["--resume"] if position else options
            more = [*map(str, more), "--output", str(folder / name), "--steps", str(steps)]
            assert main_of_command(["train", *more, "--devices", *str(count).split()]) == 0
        rows = (folder / name / "history.csv").read_text().splitlines()
        column = rows[0].split(",").index("loss")
        found.append([float(row.split(",")[column]) for row in rows[1:]])
    return found


def translated(count):
    """Texts and scores of a translator, of more texts than the devices divide; on JAX."""
    run = pathlib.Path(__file__).parents[1] / "frozen_run"
    texts = [pair.source for pair in kformer.examples.generate_pairs(37, seed=2, split="test")]
    with scope(count):
        translator = kformer.Translator.load(run)
        found = translator.translate(texts, batch_size=16, max_length=12)
        sums = [float(score) for score in translator.score(texts[:5], texts[5:10])]
    return [[each.text, each.score] for each in found], sums


def refusal(function):
    try:
        function()
    except ValueError as error:
        return str(error)
    return "nothing was refused"


def corpus(folder):
    rng = np.random.default_rng(0)
    lines = [" ".join(rng.choice(list("abcdefgh"), rng.integers(2, 12))) for _ in range(120)]
    source, target = folder / "source", folder / "target"
    source.write_text("\n".join(lines) + "\n", encoding="utf-8")
    target.write_text("\n".join(line[::-1] for line in lines) + "\n", encoding="utf-8")
    return source, target, kformer.Tokenizer.train([source, target], vocabulary_size=270)


def main(output, is_whole):
    with tempfile.TemporaryDirectory() as folder:
        folder = pathlib.Path(folder)
        files = corpus(folder)
        most = COUNTS[-1]
        cases = {"plain": (COUNTS if is_whole else (1, most), {})}
        if is_whole:
            cases["lora"] = (1, most), {"lora_rank": 2}
        if is_whole and os.environ["KERAS_BACKEND"] == "jax":
            # Whatever a recipe may have.
            options = {"packed": True, "accumulation_steps": 2, "clip_norm": 0.1}
            options |= {"ema_momentum": 0.9, "dtype": "mixed_bfloat16"}
            cases["whole"] = (1, most), {**options, "dropout": 0.0, "consistency": 1.0}
        found = {
            name: {str(n): losses_of(files, n, **options) for n in counts}
            for name, (counts, options) in cases.items()
        }
        if is_whole:
            found["command"] = commanded(files, folder, most)
        if os.environ["KERAS_BACKEND"] == "jax":
            found["split"] = split(files, folder, most)
            found["translated"] = [translated(count) for count in (1, most)]
        if is_whole:
            found["resumed"] = resumed(files, folder / "run", [most, 1])
        found["refusals"] = {"too many": refusal(lambda: distribution(most + 1))}
        found["refusals"]["parts"] = refusal(lambda: distribution(most, 3))
        with scope(most):
            model = model_for(files[2], clip_norm=1.0)
            found["refusals"]["rows"] = refusal(lambda: fit(model, batches(files, 1)))
            if os.environ["KERAS_BACKEND"] == "tensorflow":
                data = batches(files, most)
                found["refusals"]["clipping"] = refusal(lambda: fit(model, data))
                model = model_for(files[2], accumulation_steps=2)
                found["refusals"]["accumulation"] = refusal(lambda: fit(model, data))
    pathlib.Path(output).write_text(json.dumps(found), encoding="utf-8")


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2:] == ["whole"])
