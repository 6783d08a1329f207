"""Measures how fast a large corpus becomes batches, and the memory that it takes.

    python benchmarks/data.py --pairs 10000000 --train-steps 100 --memory-limit 2048

Generates pairs of synthetic sentences (words sampled from a Zipf distribution, lengths log-normal,
a source and a target of similar length), trains a tokenizer on the first of them, prepares all of
them, and reads batches over two epochs. With `--train-steps` it also trains a tiny model with
`fit`. Prints a Markdown table. Peak memory is the largest resident set of the process so far.
KERAS_BACKEND selects the backend. Above `--memory-limit` (MiB) the exit status is 1.
"""

import argparse
import pathlib
import resource
import sys
import tempfile
import time

import keras
import numpy as np

import kformer

CHUNK = 100_000
SYLLABLES = [
    a + b
    for a in ("b", "d", "f", "g", "k", "l", "m", "n", "p", "r", "s", "t", "v", "sch", "tr")
    for b in "aeiou"
]


def make_words(random, count=20_000):
    """Distinct words of one to four syllables, each followed by a space.

    Returns:
        The bytes of all words, and the start and length of each.
    """
    words = set()
    while len(words) < count:
        words.add("".join(random.choice(SYLLABLES, random.integers(1, 5))))
    words = [f"{word} ".encode() for word in sorted(words, key=lambda word: (len(word), word))]
    lengths = np.array([len(word) for word in words])
    return np.frombuffer(b"".join(words), np.uint8), np.cumsum(lengths) - lengths, lengths


def write_lines(file, words, lengths, random):
    """Writes sentences of the given numbers of words; one gather makes the whole chunk."""
    letters, begins, sizes = words
    ranks = np.minimum(random.zipf(1.2, lengths.sum()), len(sizes)) - 1
    ends = np.cumsum(sizes[ranks])
    text = letters[
        np.arange(ends[-1]) + np.repeat(begins[ranks] - (ends - sizes[ranks]), sizes[ranks])
    ]
    text[ends[np.cumsum(lengths) - 1] - 1] = ord("\n")
    file.write(text.tobytes())


def generate(folder, pairs, seed=0):
    random = np.random.default_rng(seed)
    vocabularies = make_words(random), make_words(random)
    with open(folder / "source.txt", "wb") as source, open(folder / "target.txt", "wb") as target:
        for begin in range(0, pairs, CHUNK):
            lengths = np.clip(random.lognormal(2.3, 0.5, min(CHUNK, pairs - begin)), 1, 60).astype(
                int
            )
            write_lines(source, vocabularies[0], lengths, random)
            write_lines(
                target,
                vocabularies[1],
                np.maximum(1, lengths + random.integers(-2, 4, len(lengths))),
                random,
            )
    return folder / "source.txt", folder / "target.txt"


def first_lines(path, count):
    with open(path, encoding="utf-8") as file:
        return [line.rstrip("\n") for _, line in zip(range(count), file, strict=False)]


def peak_memory():
    """The largest resident set so far, in MiB (Linux counts in KiB, macOS in bytes)."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / (
        1024**2 if sys.platform == "darwin" else 1024
    )


class Table:
    def __init__(self):
        print("| step | seconds | rate | peak memory, MiB |\n|---|---|---|---|", flush=True)
        self.start = time.perf_counter()

    def row(self, name, count=None, unit=""):
        seconds = time.perf_counter() - self.start
        rate = f"{count / seconds:,.{0 if count > 99 * seconds else 2}f} {unit}/s" if count else ""
        print(f"| {name} | {seconds:,.1f} | {rate} | {peak_memory():,.0f} |", flush=True)
        self.start = time.perf_counter()


def train(dataset, tokenizer, steps):
    """Trains a tiny model for a number of steps."""
    model = kformer.Transformer.from_preset("tiny", vocabulary_size=tokenizer.vocabulary_size)
    model.compile(
        optimizer=keras.optimizers.Adam(1e-3),
        loss=kformer.MaskedCrossentropy(),
        metrics=[kformer.MaskedAccuracy()],
    )
    model.fit(dataset.from_step(0), steps_per_epoch=steps, shuffle=False, verbose=0)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--pairs", type=int, default=1_000_000)
    parser.add_argument(
        "--batches", type=int, default=500, help="batches to read from each of two epochs"
    )
    parser.add_argument("--batch-tokens", type=int, default=4096)
    parser.add_argument("--train-steps", type=int, default=0, help="steps of fit with a tiny model")
    parser.add_argument("--num-threads", type=int, help="threads of the tokenizer")
    parser.add_argument("--folder", help="where to put the files (a temporary folder by default)")
    parser.add_argument(
        "--memory-limit",
        type=float,
        default=float("inf"),
        help="MiB of peak memory that count as failure when exceeded",
    )
    arguments = parser.parse_args()

    with tempfile.TemporaryDirectory(dir=arguments.folder) as folder:
        folder = pathlib.Path(folder)
        table = Table()
        table.row("import")
        files = generate(folder, arguments.pairs)
        table.row("generate text", arguments.pairs, "pairs")
        texts, target_texts = (first_lines(path, 20_000) for path in files)
        tokenizer = kformer.Tokenizer.train(
            texts=texts + target_texts, vocabulary_size=8000, model_type="unigram"
        )
        table.row("train tokenizer on 20,000 pairs")
        corpus = kformer.data.prepare(
            *files, tokenizer, folder / "pairs", num_threads=arguments.num_threads
        )
        table.row("prepare", arguments.pairs, "pairs")
        dataset = kformer.data.ParallelDataset.from_prepared(
            corpus, batch_tokens=arguments.batch_tokens
        )
        table.row("choose shapes")
        for epoch in range(2):
            dataset.set_epoch(epoch)
            dataset[0]
            table.row(f"arrange epoch {epoch}")
            steps = min(arguments.batches, len(dataset))
            tokens = sum(int((dataset[i][1] != dataset.pad_id).sum()) for i in range(steps))
            table.row(f"read {steps} batches of epoch {epoch}", tokens, "target tokens")
        if arguments.train_steps:
            train(dataset, tokenizer, arguments.train_steps)
            name = f"{arguments.train_steps} steps of fit, tiny, {keras.backend.backend()}"
            table.row(name, arguments.train_steps, "steps")
        size = sum(path.stat().st_size for path in (folder / "pairs").iterdir()) / 2**20
        peak = peak_memory()
        text = sum(path.stat().st_size for path in files) / 2**20
        print(f"\n{dataset.summary()}\n\nText {text:,.0f} MiB, ids {size:,.0f} MiB.")
        if peak > (limit := arguments.memory_limit):
            sys.exit(f"The peak of {peak:,.0f} MiB is above the limit of {limit:,.0f} MiB.")


if __name__ == "__main__":
    main()
