"""Compares kformer's `Forecaster` with `torch.nn.Transformer` on the noisy sine wave of tutorials.

    KERAS_BACKEND=torch python benchmarks/forecast.py [--epochs 40] [--seeds 1,2,3] [--threads 1]

Both models have the same shape; two simple rules are listed too. There are two set-ups:

- with the leak: the encoder reads numbers 1 to 20, and the decoder predicts numbers 2 to 21 as it
  reads 1 to 20. The peer has no causal mask here, as in the tutorials;
- without: the encoder reads 20 numbers, and the decoder predicts the next 20.

"Forced" means that each step reads the true number before it, "free" that it reads its own
prediction. The table has the mean squared error on held-out waves; the error of the noise alone is
0.01. Data, shape, optimizer, batches and epochs are the same.
"""

import argparse
import importlib.metadata
import math
import os
import pathlib
import sys
import time

import numpy as np

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent))
from benchmarks.tables import print_command, print_head, print_row  # noqa: E402

SIZES = {"hidden_dim": 32, "intermediate_dim": 64, "num_heads": 4}
LAYERS, DROPOUT, RATE, BATCH, LENGTH = 2, 0.0, 0.002, 64, 20


def waves(generator, count, length, span):
    angles = generator.uniform(0, 2 * np.pi, (count, 1)) + np.linspace(0, span, length)
    return (np.sin(angles) + generator.normal(0, 0.1, angles.shape)).astype("float32")[..., None]


def kformer_model(seed):
    import keras

    import kformer

    keras.utils.set_random_seed(seed)
    layers = {"num_encoder_layers": LAYERS, "num_decoder_layers": LAYERS}
    model = kformer.Forecaster(
        1, **SIZES, **layers, dropout=DROPOUT, normalize_first=False, final_norm=True, seed=seed
    )
    model.compile(keras.optimizers.Adam(RATE), "mean_squared_error")

    def fit(past, previous, answers, epochs):
        model.fit(
            {"past": past, "previous": previous},
            answers,
            batch_size=BATCH,
            epochs=epochs,
            verbose=0,
        )

    def answer(past, previous):
        return model.predict({"past": past, "previous": previous}, verbose=0)

    return fit, answer, model.forecast, model.count_params()


def torch_network(is_causal):
    """`torch.nn.Transformer` between two linear layers, with sinusoidal positions."""
    import torch

    size = SIZES["hidden_dim"]

    class Peer(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.enter_past, self.enter_previous = (
                torch.nn.Linear(1, size),
                torch.nn.Linear(1, size),
            )
            self.transformer = torch.nn.Transformer(
                size,
                SIZES["num_heads"],
                LAYERS,
                LAYERS,
                SIZES["intermediate_dim"],
                DROPOUT,
                batch_first=True,
            )
            self.leave = torch.nn.Linear(size, 1)
            angles = torch.arange(100)[:, None] * torch.exp(
                torch.arange(0, size, 2) * (-math.log(10_000.0) / size)
            )
            self.register_buffer(
                "positions", torch.stack([angles.sin(), angles.cos()], -1).flatten(1)
            )

        def forward(self, past, previous):
            steps = previous.shape[1]
            mask = (
                torch.nn.Transformer.generate_square_subsequent_mask(steps) if is_causal else None
            )
            past = self.enter_past(past) + self.positions[: past.shape[1]]
            previous = self.enter_previous(previous) + self.positions[:steps]
            return self.leave(
                self.transformer(past, previous, tgt_mask=mask, tgt_is_causal=is_causal)
            )

    return Peer()


def torch_model(seed, is_causal):
    """The peer in a plain loop."""
    import torch

    torch.manual_seed(seed)
    model = torch_network(is_causal)
    optimizer = torch.optim.Adam(model.parameters(), RATE, eps=1e-7)

    def fit(past, previous, answers, epochs):
        model.train()
        past, previous, answers = map(torch.from_numpy, (past, previous, answers))
        for _ in range(epochs):
            order = torch.randperm(len(past))
            for rows in order.split(BATCH):
                optimizer.zero_grad()
                ((model(past[rows], previous[rows]) - answers[rows]) ** 2).mean().backward()
                optimizer.step()

    @torch.no_grad()
    def answer(past, previous):
        model.eval()
        return model(torch.from_numpy(past), torch.from_numpy(previous)).numpy()

    def forecast(past, steps):
        known = past[:, -1:]
        for _ in range(steps):
            known = np.concatenate([known, answer(past, known)[:, -1:]], axis=1)
        return known[:, 1:]

    return fit, answer, forecast, sum(weight.numel() for weight in model.parameters())


def error(predicted, truth):
    return float(np.mean((predicted - truth) ** 2))


def compare(seed, epochs):
    """Prints the rows of a seed."""
    generator = np.random.default_rng(seed)
    leaky, series = (
        waves(generator, 1000, LENGTH + 1, np.pi),
        waves(generator, 2000, 2 * LENGTH, 2 * np.pi),
    )
    past, future = series[:, :LENGTH], series[:, LENGTH:]
    held = len(past) - 200
    last = np.repeat(past[held:, -1:], LENGTH, axis=1)
    slopes = np.polyfit(np.arange(5), past[held:, -5:, 0].T, 1)
    line = (slopes[1][:, None] + slopes[0][:, None] * np.arange(5, 5 + LENGTH))[..., None]
    stays, held_last = error(leaky[800:, :-1], leaky[800:, 1:]), error(last, future[held:])
    print_row("the last number stays", seed, f"{stays:.4f}", "-", "-", f"{held_last:.4f}", "-")
    held_line = error(line, future[held:])
    print_row("a line through the last five", seed, "-", "-", "-", f"{held_line:.4f}", "-")
    sizes = {}
    for name in ("kformer", "torch.nn.Transformer"):
        fit, answer, _, sizes[name] = (
            kformer_model(seed) if name == "kformer" else torch_model(seed, is_causal=False)
        )
        begin = time.perf_counter()
        fit(leaky[:800, :-1], leaky[:800, :-1], leaky[:800, 1:], epochs)
        seconds = time.perf_counter() - begin
        seen, truth = leaky[800:, :-1], leaky[800:, 1:]
        found = [error(answer(seen, seen), truth)]
        known = seen[:, :1]
        for _ in range(LENGTH):
            known = np.concatenate([known, answer(seen, known)[:, -1:]], axis=1)
        found.append(error(known[:, 1:], truth))
        fit, answer, forecast, _ = (
            kformer_model(seed) if name == "kformer" else torch_model(seed, is_causal=True)
        )
        previous = np.concatenate([past[:, -1:], future[:, :-1]], axis=1)
        begin = time.perf_counter()
        fit(past[:held], previous[:held], future[:held], epochs)
        seconds += time.perf_counter() - begin
        found.append(error(answer(past[held:], previous[held:]), future[held:]))
        found.append(error(forecast(past[held:], LENGTH), future[held:]))
        assert len(set(sizes.values())) == 1, f"models of different sizes: {sizes}"
        print_row(name, seed, *(f"{value:.4f}" for value in found), f"{seconds:.0f}")


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--epochs", type=int, default=40)
    parser.add_argument(
        "--seeds", type=lambda text: [int(seed) for seed in text.split(",")], default=[1, 2, 3]
    )
    parser.add_argument(
        "--threads",
        type=int,
        default=1,
        help="of PyTorch; run kformer on that backend for a fair time",
    )
    options = parser.parse_args()
    import keras
    import torch

    from benchmarks.inference import cpu_name

    torch.set_num_threads(options.threads)
    backend = keras.backend.backend()
    names = dict.fromkeys(("keras", backend, "torch"))
    versions = ", ".join(f"{name} {importlib.metadata.version(name)}" for name in names)
    print(f"{cpu_name()}; {versions}\n")
    print_command(f"KERAS_BACKEND={os.environ.get('KERAS_BACKEND', backend)} ")
    head = ["system", "seed", "leak, forced", "leak, free"]
    head += ["without, forced", "without, free", "training, s"]
    print_head(head)
    for seed in options.seeds:
        compare(seed, options.epochs)


if __name__ == "__main__":
    main()
