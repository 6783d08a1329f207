"""How a training is set up: its options, and values for those that were left open, by the size of
the corpus.
"""

import dataclasses
import importlib.util
import math
import numbers
import os
import re

from kformer.models import PRESETS
from kformer.models.config import check_packing
from kformer.text import Tokenizer
from kformer.text.sentencepiece_training import MODEL_TYPES
from kformer.trainer.defaults import POSITIONS, TOKENIZER_TYPE, default_vocabulary_size
from kformer.trainer.model import check_model_options

# Options that may differ when a training is resumed: they say how long and how often, not what is
# computed at a step.
CHANGEABLE = frozenset(
    {
        "epochs",
        "steps",
        "valid_every",
        "checkpoint_every",
        "keep",
        "patience",
        "quality_every",
        "log_dir",
    }
)
NORMS = ("pre", "post")
PRECISIONS = ("float32", "mixed_float16", "mixed_bfloat16")


@dataclasses.dataclass(frozen=True)
class TrainOptions:
    """Options of `train_run`. `None` leaves the choice to it, by the rule in brackets.

    Attributes:
        train_source, train_target: paths of UTF-8 text files; line n of one is the translation of
            line n of the other.
        valid_source, valid_target: the same, to measure the model with after an epoch; `None` for
            none.
        preset: size of the model, one of `kformer.models.PRESETS` ["tiny"].
        model_options: dict of further arguments of `kformer.Transformer`, such as `{"gated": True}`
            [the preset's, with rotary positions, `{"position_encoding": "rope"}`].
        norm: "post" for layer norms behind each sub-layer, as in the paper, or "pre" for norms
            before it ["pre", which learns faster].
        tokenizer: folder of a tokenizer to use as it is; `None` trains one.
        start_from: a run directory whose model and tokenizer are trained further, with a new
            optimizer.
        tokenizer_type: "bpe" or "unigram" ["bpe"].
        vocabulary_size: pieces of the tokenizer, of each where the sides have one each [by the
            number of pairs].
        separate_vocabularies: one tokenizer for each side, and nothing shared between them [joint].
        epochs, steps: when to stop; of both, what comes first counts [20 to 30 epochs, at least
            2,000 updates and at most 100,000 steps].
        batch_tokens: most padded tokens of a batch, on the longer side [4096; less if an epoch had
            under 200 steps].
        max_shapes: most distinct shapes of batches, each of which costs JAX a compilation [8].
        packed: whether several pairs stand behind each other in each row of batches that all have
            one shape [False].
        max_length: longest sequence in tokens; longer pairs are left out and reported [256].
        dropout: rate [0.3 up to 200,000 pairs, 0.2 up to 2,000,000, then at most 0.1; 0.3 for the
            preset "big"; with start_from as it was].
        attention_dropout, activation_dropout: rates on attention probabilities and inside the
            feed-forward networks [0; with start_from as they were].
        word_dropout: probability that a token the model reads is hidden from it [0].
        subword_sampling: how much words are cut anew each time, see `kformer.text.SubwordSampler`
            [`None`, not at all].
        consistency: weight of R-Drop, which runs every batch twice; 5 is usual [0].
        teachers: list of run directories whose models say what they expect at each token of the
            training text; the model learns from that as well as from the text (word-level
            distillation) [none]. Without a tokenizer of its own it has theirs.
        teacher_weight: how far their word replaces the text's, from 0 to 1 [0.8].
        label_smoothing: [0.1, as in the paper].
        learning_rate: its peak, at the end of the warm-up [0.64 / hidden size up to 256, above that
            the paper's; with start_from a tenth].
        warmup_steps: updates [a fifth of all, at most 4,000].
        cooldown: share of the training at whose end the learning rate falls to 0 [0.25; with
            start_from 0].
        accumulate: batches whose gradients make one update [1]. Warm-up and cooldown count updates,
            `steps` counts batches.
        weight_decay: the share of each weight, times the learning rate, that an update takes off it
            [0].
        clip_norm: the gradient's largest norm, 0 for no limit [1].
        ema: momentum of a moving average of the weights, which is then what is validated and saved;
            0 for none [0.999, of a tenth of the steps where these are under 10,000; with start_from
            0].
        precision: "float32", "mixed_float16" or "mixed_bfloat16" ["float32"; with start_from as it
            was].
        seed: of the weights, the order of the batches, dropout and the tokenizer's sample [0]. With
            start_from a given seed is that of dropout, too; without one the model's stays.
        valid_every: epochs between two validations [1].
        select: what makes a validated model the better one, "nll" (of its tokens) or "bleu" (of its
            translations) ["nll"].
        quality_every: steps after which the validation text is translated, for `val_bleu` and
            `val_chrf` in `history.csv`, as with each validation then [not; with select "bleu" with
            each validation].
        log_dir: folder for TensorBoard, which shows this BLEU and chrF by steps [none].
        patience: validations without a better one after which the training stops; 0 for its planned
            end in any case [10, or those of 1,000 steps where an epoch has so few].
        checkpoint_every: steps between two checkpoints, the most that an interruption loses [500].
        keep: checkpoints kept [2].
    """

    train_source: str | None = None
    train_target: str | None = None
    valid_source: str | None = None
    valid_target: str | None = None
    preset: str | None = None
    model_options: dict | None = None
    norm: str | None = None
    tokenizer: str | None = None
    start_from: str | None = None
    tokenizer_type: str | None = None
    vocabulary_size: int | None = None
    separate_vocabularies: bool | None = None
    epochs: int | None = None
    steps: int | None = None
    batch_tokens: int | None = None
    max_shapes: int | None = None
    packed: bool | None = None
    max_length: int | None = None
    dropout: float | None = None
    attention_dropout: float | None = None
    activation_dropout: float | None = None
    word_dropout: float | None = None
    subword_sampling: float | None = None
    consistency: float | None = None
    teachers: list[str] | None = None
    teacher_weight: float | None = None
    label_smoothing: float | None = None
    learning_rate: float | None = None
    warmup_steps: int | None = None
    cooldown: float | None = None
    accumulate: int | None = None
    weight_decay: float | None = None
    clip_norm: float | None = None
    ema: float | None = None
    precision: str | None = None
    seed: int | None = None
    valid_every: int | None = None
    select: str | None = None
    quality_every: int | None = None
    log_dir: str | None = None
    patience: int | None = None
    checkpoint_every: int | None = None
    keep: int | None = None

    def __post_init__(self):
        sizes = ("vocabulary_size", "epochs", "steps", "batch_tokens", "max_shapes", "warmup_steps")
        for name in (
            *sizes,
            "accumulate",
            "valid_every",
            "quality_every",
            "checkpoint_every",
            "keep",
        ):
            self._check(
                name,
                lambda value: isinstance(value, numbers.Integral) and value >= 1,
                "a whole number of at least 1",
            )
        is_length = lambda value: isinstance(value, numbers.Integral) and value >= 2  # noqa: E731
        self._check("max_length", is_length, "a whole number of at least 2, one token and the end")
        is_count = lambda value: isinstance(value, numbers.Integral) and value >= 0  # noqa: E731
        self._check("patience", is_count, "a whole number of at least 0 (0 for none)")
        is_seed = lambda value: isinstance(value, numbers.Integral) and 0 <= value < 2**31  # noqa: E731
        self._check("seed", is_seed, f"a whole number from 0 to {2**31 - 1}")
        for name in (
            "dropout",
            "attention_dropout",
            "activation_dropout",
            "word_dropout",
            "label_smoothing",
            "cooldown",
        ):
            self._check(name, lambda value: 0 <= value < 1, "in [0, 1)")
        self._check("learning_rate", lambda value: 0 < value < math.inf, "above 0")
        self._check(
            "consistency",
            lambda value: 0 <= value < math.inf,
            "at least 0 (0 for none; 5 is usual)",
        )
        self._check("teacher_weight", lambda value: 0 <= value <= 1, "from 0 to 1")
        is_list = lambda value: (  # noqa: E731
            isinstance(value, list | tuple)
            and all(isinstance(run, str | os.PathLike) for run in value)
        )
        self._check("teachers", is_list, "a list of run directories")
        # As the config of a run has them; no teachers are no option.
        object.__setattr__(self, "teachers", self.teachers or None)
        for field in dataclasses.fields(self):
            object.__setattr__(self, field.name, _plain(getattr(self, field.name)))
        self._check(
            "model_options", lambda value: isinstance(value, dict), "a dict of names and values"
        )
        object.__setattr__(self, "model_options", self.model_options or None)
        self._check("subword_sampling", lambda value: 0 < value < math.inf, "above 0")
        self._check("select", lambda value: value in ("nll", "bleu"), "nll or bleu")
        self._check(
            "tokenizer_type", lambda value: value in MODEL_TYPES, f"one of {', '.join(MODEL_TYPES)}"
        )
        self._check("weight_decay", lambda value: 0 <= value < math.inf, "at least 0 (0 for none)")
        self._check("clip_norm", lambda value: 0 <= value < math.inf, "at least 0 (0 for no limit)")
        self._check("ema", lambda value: 0 <= value < 1, "in [0, 1), such as 0.999, or 0 for none")
        self._check("preset", lambda value: value in PRESETS, f"one of {', '.join(PRESETS)}")
        self._check("norm", lambda value: value in NORMS, f"one of {', '.join(NORMS)}")
        self._check(
            "precision", lambda value: value in PRECISIONS, f"one of {', '.join(PRECISIONS)}"
        )

    def _check(self, name, is_right, what):
        value = getattr(self, name)
        if value is not None and (isinstance(value, bool) or not is_right(value)):
            raise ValueError(f"{name} must be {what}, but {value!r} was given.")

    def check_whole(self):
        """Makes sure that files and sources of the model go together.

        Raises:
            ValueError: something is missing, or two options contradict each other.
        """
        if self.train_source is None or self.train_target is None:
            raise ValueError(
                "A training needs both sides of the corpus: give train_source and train_target."
            )
        if (self.valid_source is None) != (self.valid_target is None):
            raise ValueError(
                "A validation needs both sides: give valid_source and valid_target, or neither."
            )
        if self.start_from is not None:
            fixed = ("preset", "model_options", "norm", "max_length")
            for name in (
                *fixed,
                "tokenizer",
                "tokenizer_type",
                "vocabulary_size",
                "separate_vocabularies",
            ):
                if getattr(self, name) is not None:
                    raise ValueError(
                        f"With start_from the model is the one of {self.start_from}, so {name} cannot be chosen."
                    )
        if self.model_options and self.model_options != usual_model_options():
            check_model_options(self.model_options, self.preset or "tiny")
        if self.packed and self.model_options:
            check_packing(self.model_options)
        # Each epoch's validation is what the configs of runs without any say.
        for name, none in (
            ("select", None),
            ("patience", None),
            ("valid_every", 1),
            ("quality_every", None),
            ("log_dir", None),
        ):
            if self.valid_source is None and getattr(self, name) not in (None, none):
                raise ValueError(
                    f"{name} is about the validation: give valid_source and valid_target, or leave it out."
                )
        if self.log_dir is not None and importlib.util.find_spec("tensorboard") is None:
            raise ValueError(
                "log_dir is for TensorBoard, which is not installed: pip install tensorboard, or leave log_dir out."
            )
        if self.teacher_weight is not None and not self.teachers:
            raise ValueError(
                "teacher_weight is about what teachers say: give teachers, or leave it out."
            )
        is_new_bpe = (
            self.tokenizer is None
            and self.start_from is None
            and (self.tokenizer_type or TOKENIZER_TYPE) == "bpe"
        )
        if is_new_bpe and not self.teachers and (self.subword_sampling or 0) >= 1:
            raise ValueError(
                f"subword_sampling must be below 1 with a tokenizer of type bpe, whose merges it leaves out, but {self.subword_sampling} "
                "was given; 0.1 is usual."
            )
        if self.teachers and self.subword_sampling:
            raise ValueError(
                "What teachers say belongs to words as they were cut once: leave out subword_sampling, or teachers."
            )
        if (
            self.teachers
            and not self.tokenizer
            and (self.vocabulary_size or self.separate_vocabularies or self.tokenizer_type)
        ):
            raise ValueError(
                "The student's tokenizer is that of its teachers: leave the vocabulary options out."
            )
        if self.packed and self.max_shapes is not None:
            raise ValueError(
                f"Packed batches all have one shape: leave out max_shapes={self.max_shapes}, or packed."
            )
        if self.tokenizer is not None and (
            self.vocabulary_size or self.separate_vocabularies or self.tokenizer_type
        ):
            raise ValueError(
                f"The tokenizer in {self.tokenizer} has its vocabularies already: leave the other vocabulary options out."
            )


def _plain(value):
    """The value with paths as strings, which JSON has a form for."""
    if isinstance(value, os.PathLike):
        return os.fspath(value)
    return [_plain(part) for part in value] if isinstance(value, list | tuple) else value


def usual_model_options(options=None):
    """The model options of a new model: those given, and rotary positions where they name none."""
    return {"position_encoding": POSITIONS, **(options or {})}


def resume_options(stored, given, path):
    """The options of a training that goes on.

    Args:
        stored: dict of the options that it began with.
        given: dict of the options that are given now.
        path: its run directory, for the error message.

    Returns:
        `TrainOptions`.

    Raises:
        ValueError: an option is given that would change what the training computes.
    """
    names = {field.name for field in dataclasses.fields(TrainOptions)}
    options = {name: value for name, value in stored.items() if name in names}
    for name, value in given.items():
        value = _plain(value)
        began = options.get(name)
        is_same = value == began or (
            name == "model_options"
            and isinstance(value, dict)
            and usual_model_options(value) == began
        )
        if name not in CHANGEABLE and not is_same:
            raise ValueError(
                f"The training in {path} began with {name}={began} and can only go on with that, not with {value}: "
                "leave the option out, or begin a new training in another folder."
            )
    for name in ("epochs", "steps"):
        if stored.get("cooldown") and given.get(name, stored.get(name)) != stored.get(name):
            stays = (
                "there is no limit of" if stored.get(name) is None else f"there stay {stored[name]}"
            )
            raise ValueError(
                f"The learning rate of the training in {path} falls to 0 at its end, so {stays} {name}: leave the option out, or train "
                "the finished model further by start_from. (With cooldown 0 the length stays open.)"
            )
    # With a cooldown the end is where it was, also if one of two limits is given once more.
    if ("epochs" in given or "steps" in given) and not stored.get("cooldown"):
        options.update(epochs=None, steps=None)
    return TrainOptions(
        **{**options, **{name: value for name, value in given.items() if name in CHANGEABLE}}
    )


def train_tokenizer(options, num_pairs, report):
    """Trains the tokenizer of a training.

    Args:
        options: `TrainOptions`.
        num_pairs: int, lines of the corpus.
        report: function that takes a sentence about what was chosen.

    Returns:
        `Tokenizer`.
    """
    size = options.vocabulary_size or default_vocabulary_size(num_pairs)
    sides = [options.train_source, options.train_target]
    files = (sides[0], sides[1]) if options.separate_vocabularies else (sides,)
    settings = {"seed": options.seed or 0, "model_type": options.tokenizer_type or TOKENIZER_TYPE}
    try:
        tokenizer = Tokenizer.train(*files, vocabulary_size=size, **settings)
    except ValueError as error:
        # A small corpus has fewer pieces, and one in Chinese more characters; the error names the
        # nearest size that goes.
        possible = re.search(r"pass vocabulary_size=(\d+) or (less|more)", str(error))
        if options.vocabulary_size is not None or possible is None:
            raise
        size = int(possible[1])
        tokenizer = _train_fitting(files, size, settings)
    which = (
        "a source and a target vocabulary"
        if options.separate_vocabularies
        else "one vocabulary for both sides"
    )
    chosen = (
        ""
        if options.vocabulary_size
        else f", few enough that each occurs often in {num_pairs:,} pairs"
    )
    reason = (
        "" if options.tokenizer_type else ", which cuts a text into fewer pieces than unigram does"
    )
    kind = f"{settings['model_type']}{reason}"
    report(f"tokenizer: {kind}; {which}, {tokenizer.vocabulary_size:,} pieces{chosen}")
    return tokenizer


def _train_fitting(files, size, settings):
    """A tokenizer of a size that one corpus named; the two corpora of separate vocabularies may
    each name their own.
    """
    if len(files) == 1:
        return Tokenizer.train(*files, vocabulary_size=size, **settings)
    sizes = [size, size]
    for _ in range(4):
        try:
            return Tokenizer.train(*files, vocabulary_size=tuple(sizes), **settings)
        except ValueError as error:
            possible = re.search(
                r"vocabulary_size=(\d+) is too .* pass vocabulary_size=(\d+) or (less|more)",
                str(error),
            )
            if possible is None:
                raise
            side = 0 if repr(str(files[0])) in str(error) else 1
            sizes[side] = int(possible[2])
    raise ValueError("No vocabulary size was found that fits this corpus: give vocabulary_size.")
