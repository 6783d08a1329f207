"""Train on generated pairs, measure, export and translate, in minutes and without any data."""

import collections
import contextlib
import functools
import itertools
import pathlib
import shutil
import time
from typing import NamedTuple

import keras
from keras import ops
from rich.console import Console
from rich.table import Column, Table

from kformer.data import ParallelDataset
from kformer.examples.pairs import generate_pairs
from kformer.export import SavedModelTranslator
from kformer.models import Transformer
from kformer.text import Tokenizer
from kformer.training import MaskedAccuracy, MaskedCrossentropy, TrainingProgress
from kformer.translating.translator import Translator
from kformer.utils import files
from kformer_options.export_formats import check_installed
from kformer_options.names import named
from kformer_options.wording import counted

# Measured by the share of held-out pairs that are exactly right: 98.4 % after 1,800 steps at a peak
# rate of 2e-3; 98.9 % after 3,000 at 3e-3, but 96 % of the numbers; 99.45 % of 6,000 after 2,800
# steps with a fifth more numbers. Each pair is seen about once.
NUM_PAIRS = 400_000
MORE_NUMBERS = 0.2
VOCABULARY_SIZES = (600, 400)
BATCH_TOKENS = 2048
STEPS = 2_500
PEAK_RATE = 3e-3
MODEL_SIZE = {
    **{"num_encoder_layers": 3, "num_decoder_layers": 3},
    **{"hidden_dim": 128, "intermediate_dim": 256, "num_heads": 4},
}
NUM_TEST_PAIRS = 2_000
QUICK_STEPS = 300

SENTENCES = (
    "Saturday, the 3rd of May 2031, half past four in the afternoon",
    "twelve thousand three hundred and five dollars",
    "October 9, 1997",
    "ten minutes to seven in the morning",
    "€48.50",
    "three million, two hundred thousand and seventeen",
    "62.5%",
)


class QuickstartResult(NamedTuple):
    """The results of `quickstart`.

    Attributes:
        run: path. The run directory.
        saved_model: path or `None`. The SavedModel's version; `None` without TensorFlow.
        accuracy: dict of category (and `"all"`) to float. The share of held-out pairs whose
            translation is exactly right.
        translations: list of (source, translation) from the SavedModel, or from the run.
        seconds: dict of phase to float. The durations.
    """

    run: pathlib.Path
    saved_model: pathlib.Path | None
    accuracy: dict
    translations: list
    seconds: dict


def quickstart(
    output="runs/quickstart",
    saved_model="saved_models/quickstart",
    *,
    steps=None,
    seed=0,
    quick=False,
    console=None,
):
    """Trains on generated pairs, measures on held-out values, exports, and translates.

    Without tensorflow and tensorflow-text, which an export needs, it translates with the run.

    Args:
        output: path, default "runs/quickstart". The run directory to write.
        saved_model: path, default "saved_models/quickstart". The SavedModel's folder, in which the
            next version is written.
        steps: int or `None`, default `None`. The number of training steps; `None` means `STEPS`.
        seed: int, default 0. The seed of the pairs, the weights and the order of training.
        quick: bool, default False. Whether to train for `QUICK_STEPS` only: everything runs, but
            the translations are poor.
        console: `rich.console.Console` or `None`, default `None`. Prints the progress; `None` for
            standard output.

    Returns:
        `QuickstartResult`.

    Raises:
        ValueError: `output` is a folder of something else, or `saved_model` is in it.

    Example:
    ```python
    from kformer.examples import quickstart

    # result = quickstart(quick=True)  # takes a minute
    # result.accuracy["all"]  # 0.1
    ```
    """
    console = console or Console(highlight=False)
    say = functools.partial(console.print, markup=False, highlight=False, soft_wrap=True)
    steps = steps or (QUICK_STEPS if quick else STEPS)
    output = pathlib.Path(output)
    if pathlib.Path(saved_model).resolve().is_relative_to(output.resolve()):
        raise ValueError(
            f"The SavedModel {saved_model} would be in the run {output}, which the next quickstart "
            f"replaces: give another {named('saved_model')}."
        )
    _check_output(output)
    try:
        check_installed("saved_model")
    except ImportError as error:
        saved_model = None
        say(f"No SavedModel is made, and the sentences are translated by the run: {error}")
    # When each phase has ended.
    times = {"": time.perf_counter()}
    tokenizer, train = _prepare(steps, seed, say)
    times["data"] = time.perf_counter()
    model = _train(tokenizer, train, steps, seed, say)
    times["training"] = time.perf_counter()
    config = {"quickstart": {"steps": steps, "seed": seed}, "example": SENTENCES[0]}
    translator = Translator(model, tokenizer, config=config)
    count = NUM_TEST_PAIRS if not quick else NUM_TEST_PAIRS // 50
    accuracy = exact_match(translator, generate_pairs(count, seed=seed, split="test"))
    times["measuring"] = time.perf_counter()
    say(f"Exactly right, of {count:,} pairs whose values never occurred in training:")
    table = Table("category", Column("exact match", justify="right"))
    for name, value in accuracy.items():
        table.add_row(name, f"{100 * value:.1f} %", style="bold" if name == "all" else None)
    console.print(table)

    translator.save(output)
    folder = None
    if saved_model is not None:
        folder = translator.export(saved_model)
        times["export"] = time.perf_counter()
        translator = SavedModelTranslator(folder)
    translations = list(zip(SENTENCES, translator(SENTENCES), strict=True))
    times["reading back" if folder else "translating"] = time.perf_counter()
    say(f"Translated by the {f'SavedModel in {folder}' if folder else f'run in {output}'}:")
    table = Table("English", "Chinese")
    for row in translations:
        table.add_row(*row)
    console.print(table)
    pairs = itertools.pairwise(times.items())
    seconds = {name: end - start for (_, start), (name, end) in pairs}
    durations = ", ".join(f"{name} {duration:.0f} s" for name, duration in seconds.items())
    say(f"{durations}; in all {sum(seconds.values()):.0f} s")
    say(f"The run is in {output}{f', the SavedModel in {folder}' if folder else ''}. Try your own:")
    say(f'    echo "{SENTENCES[1]}" | kformer translate {saved_model or output}')
    return QuickstartResult(output, folder, accuracy, translations, seconds)


def _prepare(steps, seed, say):
    """A tokenizer and a dataset of generated pairs."""
    num_pairs = min(NUM_PAIRS, max(20_000, steps * 140))
    say(
        f"Generating {num_pairs:,} pairs of English dates, times, numbers and amounts of money "
        "with their Chinese ..."
    )
    # Additional numbers, which are the hardest to learn.
    more = round(num_pairs * MORE_NUMBERS)
    pairs = generate_pairs(num_pairs - more, seed=seed)
    pairs += generate_pairs(more, seed=seed + 1_000_003, categories="number")
    sources, targets = [pair.source for pair in pairs], [pair.target for pair in pairs]
    tokenizer = Tokenizer.train(
        texts=sources[:20_000],
        target_texts=targets[:20_000],
        vocabulary_size=VOCABULARY_SIZES,
        character_coverage=1.0,
        seed=seed,
        model_type="unigram",
    )
    train = ParallelDataset(
        sources, targets, tokenizer, batch_tokens=BATCH_TOKENS, seed=seed, max_length=64
    )
    return tokenizer, train


def _train(tokenizer, train, steps, seed, say):
    """A model trained with `model.fit`."""
    model = Transformer(
        tokenizer.vocabulary_size,
        target_vocabulary_size=tokenizer.target_vocabulary_size,
        **MODEL_SIZE,
        dropout=0.0,  # Each pair is seen about once, so nothing can overfit.
        max_length=64,
        seed=seed,
    )
    rate = LinearWarmupDecay(PEAK_RATE, steps // 10, steps)
    adam = keras.optimizers.Adam(rate, beta_2=0.98, epsilon=1e-9, global_clipnorm=1.0)
    model.compile(optimizer=adam, loss=MaskedCrossentropy(), metrics=[MaskedAccuracy()])
    say(
        f"Training {model.count_params():,} parameters for {counted(steps, 'step')} with "
        f"model.fit, {keras.backend.backend()} backend ..."
    )
    with TrainingProgress(steps) as progress:
        options = {"steps_per_epoch": steps, "shuffle": False, "verbose": 0}
        model.fit(train.from_step(0), **options, callbacks=[progress])
    return model


def exact_match(translator, pairs, batch_size=128):
    """The share of the pairs that a greedy search translates exactly.

    Args:
        translator: `kformer.Translator`.
        pairs: list of `kformer.examples.pairs.Pair`.
        batch_size: int, default 128. The number of sentences searched at once.

    Returns:
        dict of category, and `"all"`, to float in `[0, 1]`.
    """
    found = translator([pair.source for pair in pairs], batch_size=batch_size, beam_size=1)
    right = collections.defaultdict(list)
    for pair, text in zip(pairs, found, strict=True):
        for name in (pair.category, "all"):
            right[name].append(text == pair.target)
    names = [*sorted(right.keys() - {"all"}), "all"]
    return {name: sum(right[name]) / len(right[name]) for name in names}


@keras.saving.register_keras_serializable(package="kformer")
class LinearWarmupDecay(keras.optimizers.schedules.LearningRateSchedule):
    """Linear warm-up to a peak, then linear decay to zero at the last step.

    Args:
        peak: float. The highest rate.
        warmup_steps: int. The number of the update with the highest rate.
        total_steps: int. The number of updates.
    """

    def __init__(self, peak, warmup_steps, total_steps):
        self.peak, self.total_steps = float(peak), int(total_steps)
        self.warmup_steps = max(1, int(warmup_steps))

    def __call__(self, step):
        number = ops.cast(step, "float32") + 1.0
        span = max(1.0, self.total_steps + 1.0 - self.warmup_steps)
        falling = (self.total_steps + 1.0 - number) / span
        return self.peak * ops.maximum(ops.minimum(number / self.warmup_steps, falling), 0.0)

    def get_config(self):
        return {name: getattr(self, name) for name in ("peak", "warmup_steps", "total_steps")}


def _check_output(output):
    """Removes the run of an older quickstart; any other content, or a writer, is an error."""
    from kformer.saving import read_config

    if not output.exists():
        return
    with files.locked(output):
        is_run = (output / "config.json").is_file() and "quickstart" in read_config(output)
        if files.entries(output) and not is_run:
            raise ValueError(f"{output} is not empty and is not a quickstart: choose another.")
        for entry in [path for path in output.iterdir() if path.name != files.LOCK_FILE]:
            shutil.rmtree(entry) if entry.is_dir() and not entry.is_symlink() else entry.unlink()
    with contextlib.suppress(OSError):  # Another process may write there by now.
        output.rmdir()
