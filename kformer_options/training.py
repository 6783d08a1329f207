"""The options of a training, declared once: for Python, the command line and a run's `config.json`.

This module imports only the standard library, so that help is quick.
"""

import dataclasses
import os
from collections.abc import Sequence
from typing import Any

from kformer_options.field import (
    GENERAL,
    LORA,
    NEW_MODEL,
    NEW_TOKENIZER,
    TEACHERS,
    VALIDATION,
    Path,
    check_values,
    documented,
    option,
    options_of,
)
from kformer_options.names import add_flags
from kformer_options.wording import shown

# What each backend reads when it is imported. PyTorch and NumPy read OMP_NUM_THREADS.
THREAD_VARIABLES = ("OMP_NUM_THREADS", "TF_NUM_INTRAOP_THREADS", "TF_NUM_INTEROP_THREADS", "NPROC")
PRESETS = (
    *("tiny", "small", "base", "big", "paper_base", "paper_big"),
    *("tiny_balanced", "small_balanced", "base_balanced"),
    *("tiny_student", "small_student", "base_student"),
)
TOKENIZER_TYPES = ("bpe", "unigram")
NORMS = ("pre", "post")
PRECISIONS = ("float32", "mixed_float16", "mixed_bfloat16")
MATMUL_PRECISIONS = ("highest", "high", "medium")
SELECTIONS = ("nll", "bleu")
_RATE = {"at_least": 0, "below": 1}
MADE_FOR = ("transformers", "saved_model", "ctranslate2", "onnx")

# The texts of a training, by the options of their two sides; that which it trains on comes last.
TEXTS = (
    ("general_valid_source", "general_valid_target"),
    ("general_source", "general_target"),
    ("valid_source", "valid_target"),
    ("train_source", "train_target"),
)


def _files(name, value):
    """Returns a path as str, or several as a list."""
    paths = [value] if isinstance(value, str | os.PathLike) else value
    is_list = isinstance(paths, list | tuple) and len(paths) > 0
    if not is_list or not all(isinstance(path, str | os.PathLike) for path in paths):
        raise ValueError(f"{name} must be a path or a list of paths, but {shown(value)} was given.")
    paths = [os.fspath(path) for path in paths]
    return paths if len(paths) > 1 else paths[0]


@documented
@dataclasses.dataclass(frozen=True)
class TrainOptions:
    """Options of `train_run`. `None` means unset: the default is taken.

    Args:
        {options}

    Raises:
        ValueError: a value has the wrong type or is out of range.

    Example:
        ```python
        options = kformer.trainer.TrainOptions("train.en", "train.de", preset="small", epochs=20)
        print(options.keep)  # None: the default, 2
        ```
    """

    train_source: Path | Sequence[Path] | None = option(
        "Source side of the training text: UTF-8, one sentence per line, also compressed or a "
        "pipe. A new training needs it.",
        group="Data",
        settled="",
        check=_files,
        metavar="FILE",
    )
    train_target: Path | Sequence[Path] | None = option(
        "Target side: line n is the translation of line n of the source. A new training needs it.",
        settled="",
        check=_files,
        metavar="FILE",
    )
    valid_source: Path | None = option(
        "Source side of the validation set, on which the model is measured after each epoch."
    )
    valid_target: Path | None = option("Target side of the validation set.")
    corpora: Path | None = option(
        "Describe several corpora in a YAML file instead, with their languages, weights, cleaning "
        "and validation sets: compressed, of many formats, dirty. The guide on corpora has its "
        "keys.",
        metavar="FILE",
    )
    clean: str | None = option(
        "Repair the training text and leave out what would harm: usual rules, or strict ones. The "
        "guide on corpora has them.",
        settled="none",
        choices=("none", "usual", "strict"),
        metavar="LEVEL",
    )
    tokenizer: Path | None = option(
        "Use this tokenizer as it is.", settled="a new one is trained", metavar="FOLDER"
    )
    tokenizer_type: str | None = option(
        "Kind of a new tokenizer; bpe splits a text into fewer pieces.",
        unset="bpe",
        applies=NEW_TOKENIZER,
        choices=TOKENIZER_TYPES,
        metavar="KIND",
    )
    vocabulary_size: int | None = option(
        "Pieces of the tokenizer, of each where the sides have one each.",
        settled="1,000 to 32,000 by the number of pairs, so that each piece occurs often enough",
        at_least=4,
    )
    separate_vocabularies: bool | None = option(
        "A tokenizer for each side, as languages that share no script may have.",
        settled="one for both sides",
    )
    max_length: int | None = option(
        "Longest sentence in tokens; longer pairs are left out and counted.",
        unset=256,
        applies=NEW_MODEL,
        at_least=2,
        note=", one token and the end",
    )
    batch_tokens: int | None = option(
        "Maximum number of tokens in a batch, padding included, on the longer side; lower it "
        "if memory runs out.",
        settled="4096, less if an epoch had under 200 steps",
        at_least=1,
    )
    max_shapes: int | None = option(
        "Maximum number of batch shapes; fewer save compilations on JAX, more save padding.",
        settled="8; 3 on JAX, which compiles each; 1 with packed batches",
        at_least=1,
    )
    packed: bool | None = option(
        "Several sentences one after the other in each row: one batch shape, hardly any "
        "padding, one compilation.",
        unset=False,
    )
    preset: str | None = option(
        "Size and kind of the model: tiny is right for some 10,000 pairs, small for some 100,000, "
        "base and big for millions; paper_base and paper_big have the paper's norms and positions. "
        "For speed, the balanced ones have a deep encoder and two decoder layers, and the students "
        "one.",
        group="Model",
        unset="tiny",
        applies=NEW_MODEL,
        choices=PRESETS,
        metavar="NAME",
    )
    model_options: dict[str, Any] | None = option(
        "Further arguments of kformer.Transformer, such as gated=true or "
        "position_encoding=sinusoidal.",
        settled="the preset's",
        flag="model-option",
        metavar="NAME=VALUE",
    )
    norm: str | None = option(
        "Layer norms before each sub-layer (pre), which learns faster, or after it (post), as "
        "in the paper.",
        settled="the preset's: post for the paper's presets, pre for the others",
        choices=NORMS,
        metavar="KIND",
    )
    made_for: str | None = option(
        "The system that the model will be exported to, so that its kind fits: the library "
        "transformers needs sinusoidal positions, the others take the default.",
        settled="any but transformers",
        choices=MADE_FOR,
        flag="for",
        metavar="SYSTEM",
    )
    seed: int | None = option(
        "Seed of the weights, the order of the batches, dropout and the tokenizer's sample. "
        "The same seed, text and backend give the same training.",
        unset=0,
        applies=NEW_MODEL,
        settled="0; with start_from dropout keeps its model's",
        at_least=0,
        at_most=2**31 - 1,
    )
    teachers: Sequence[Path] | None = option(
        "A run whose predictions at each token of the training text the model learns from, "
        "too (word-level distillation). Of several, their mean counts. The model has their "
        "tokenizer unless another is given.",
        note="run directories",
        flag="teacher",
        metavar="RUN",
    )
    teacher_weight: float | None = option(
        "Share of each target that is the teachers' prediction, from 0 to 1.",
        unset=0.8,
        applies=TEACHERS,
        at_least=0,
        at_most=1,
    )
    guided_alignment: Path | None = option(
        "Teach one head of the decoder which words belong together, for kformer align: aligned "
        "words of the training text in Pharaoh's format, or auto for those of a statistical "
        "aligner.",
        settled="no guided alignment",
        metavar="FILE|auto",
    )
    effort: int | None = option(
        "1 is one training. 2 takes about three times as long for more BLEU: a teacher for "
        "each direction, a student on what they translate, and a last training on the given "
        "pairs. 3 takes some nine times as long: three teachers, two of the other direction, "
        "and the mean of three last trainings.",
        group="Effort",
        settled="1",
        at_least=1,
        at_most=3,
    )
    teachers_from: Path | None = option(
        "Take the teachers, their tokenizer and their translations from this training with an "
        "effort of 2 or 3 on the same two files, in either direction.",
        settled="teachers are trained",
        metavar="RUN",
    )
    student: str | None = option(
        "Preset of the student, which is what the run has in the end: those that end in balanced "
        "or student translate faster than their teachers, of preset. The further options of the "
        "model are the student's then.",
        settled="that of the teachers",
        choices=PRESETS,
        metavar="NAME",
    )
    monolingual_target: Path | None = option(
        "Text in the target language alone, one sentence per line. Teachers of the other "
        "direction translate it (back-translation), for the student."
    )
    monolingual_source: Path | None = option(
        "Text in the source language alone, which the teachers translate for the student."
    )
    back_translation: str | None = option(
        "How text in the target language alone is translated: by a beam, sampled, or by a beam "
        "with noise (words left out, hidden and moved).",
        settled="beam up to 200,000 pairs, then sampled",
        choices=("beam", "sampled", "noised"),
        metavar="KIND",
    )
    start_from: Path | None = option(
        "A run directory whose model and tokenizer are trained further on this text, with a new "
        "optimizer.",
        group="Fine-tuning",
        settled="a new model",
        metavar="RUN",
    )
    lora_rank: int | None = option(
        "Train small matrices of this rank beside the attention and feed-forward kernels, and "
        "nothing else (LoRA); 8 is usual. They are merged into the weights that are saved.",
        settled="all weights train",
        at_least=1,
    )
    lora_alpha: float | None = option(
        "Strength of these matrices: their product counts alpha / rank.",
        unset=16.0,
        applies=LORA,
        above=0,
    )
    general_source: Path | None = option(
        "Source side of general text, such as that of the first training: each epoch has another "
        "sample of it, so that the model forgets little."
    )
    general_target: Path | None = option("Target side of the general text.")
    general_share: float | None = option(
        "Share of general pairs in each epoch, and the weight of their validation set.",
        unset=0.5,
        applies=GENERAL,
        above=0,
        below=1,
    )
    general_valid_source: Path | None = option(
        "Source side of a general validation set: the best model is chosen by both sets."
    )
    general_valid_target: Path | None = option("Target side of the general validation set.")
    dropout: float | None = option(
        "Rate of dropout after embeddings and sub-layers.",
        group="Noise",
        settled="0.3 up to 200,000 pairs, 0.2 up to 2,000,000, then 0.1, or 0.3 for big; with "
        "start_from its model's",
        **_RATE,
    )
    attention_dropout: float | None = option(
        "Rate of dropout on attention probabilities.",
        unset=0.0,
        applies=NEW_MODEL,
        settled="0; with start_from its model's",
        **_RATE,
    )
    activation_dropout: float | None = option(
        "Rate of dropout inside the feed-forward networks.",
        unset=0.0,
        applies=NEW_MODEL,
        settled="0; with start_from its model's",
        **_RATE,
    )
    word_dropout: float | None = option(
        "Probability that a token the model reads is hidden from it.", unset=0.0, **_RATE
    )
    subword_sampling: float | None = option(
        "Resample the segmentation of words in every epoch (subword regularisation). With a "
        "bpe tokenizer this is the probability that a merge is left out, 0.1 is usual; with a "
        "unigram one the exponent, 0.1 to 0.5, less is more random.",
        above=0,
    )
    consistency: float | None = option(
        "Weight of R-Drop: every batch is computed twice, with different dropout, and the two "
        "predictions are pulled together; 5 is usual.",
        unset=0.0,
        at_least=0,
        note=" (0 for none; 5 is usual)",
    )
    label_smoothing: float | None = option(
        "Label smoothing, as in the paper.", unset=0.1, at_least=0, below=1
    )
    weight_decay: float | None = option(
        "Share of each weight, times the learning rate, that an update takes off it (AdamW).",
        unset=0.0,
        at_least=0,
        note=" (0 for none)",
    )
    epochs: int | None = option(
        "Passes over the text.",
        group="Schedule",
        settled="20 to 30, with at least 2,000 updates, and no more than reach 100,000 steps",
        changeable=True,
        at_least=1,
    )
    steps: int | None = option(
        "Steps to stop after; of epochs and steps, what comes first counts.",
        settled="no limit",
        changeable=True,
        at_least=1,
    )
    patience: int | None = option(
        "Stop after N validations in a row without improvement; 0 for never.",
        settled="10, or those of 1,000 steps where an epoch has so few",
        at_least=0,
        note=" (0 for none)",
        changeable=True,
    )
    valid_every: int | None = option(
        "Epochs from one validation to the next; the last epoch is validated, too.",
        unset=1,
        changeable=True,
        at_least=1,
    )
    select: str | None = option(
        "What makes a validated model the better one: the likelihood of its tokens (nll) or "
        "its translations (bleu).",
        unset="nll",
        applies=VALIDATION,
        choices=SELECTIONS,
        metavar="MEASURE",
    )
    learning_rate: float | None = option(
        "Peak of the learning rate, at the end of the warm-up.",
        settled="0.64 / hidden size up to 256, above that the paper's; with start_from a tenth, "
        "except adapters",
        above=0,
    )
    warmup_steps: int | None = option(
        "Updates in which the learning rate rises.",
        settled="a fifth of all, at most 4,000",
        at_least=1,
    )
    cooldown: float | None = option(
        "Share of the training at whose end the learning rate falls to 0.",
        unset=0.25,
        applies=NEW_MODEL,
        settled="0.25; with start_from 0",
        **_RATE,
    )
    clip_norm: float | None = option(
        "Largest norm of the gradient; 0 for no limit. It keeps a short warm-up steady.",
        unset=1.0,
        at_least=0,
        note=" (0 for no limit)",
    )
    accumulate: int | None = option(
        "Batches whose gradients make one update. Warm-up and cooldown count updates, steps "
        "counts batches.",
        unset=1,
        at_least=1,
    )
    ema: float | None = option(
        "Momentum of a moving average of the weights, which is what is validated and saved; 0 "
        "for none.",
        settled="0.999, less for a short training; with start_from 0",
        note=", such as 0.999, or 0 for none",
        **_RATE,
    )
    quality_every: int | None = option(
        "Translate the validation set every N steps and at each validation; history.csv "
        "has BLEU and chrF.",
        group="Output",
        settled="never; with select bleu at each validation",
        changeable=True,
        at_least=1,
    )
    choose_search: bool | None = option(
        "Choose length penalty and length limits of the search on the validation set, at the "
        "end of the training; they become the run's default.",
        unset=True,
        applies=VALIDATION,
        changeable=True,
    )
    log_dir: Path | None = option(
        "Write loss, learning rate and tokens per second for TensorBoard (package tensorboard); "
        "with a validation set also its measures, BLEU, chrF and sample translations.",
        metavar="FOLDER",
        changeable=True,
    )
    checkpoint_every: int | None = option(
        "Steps from one checkpoint to the next: the most that an interruption loses.",
        unset=500,
        changeable=True,
        at_least=1,
    )
    keep: int | None = option("Checkpoints that are kept.", unset=2, changeable=True, at_least=1)
    precision: str | None = option(
        "Precision of the training; the mixed ones are faster on GPUs and slower on CPUs.",
        group="Machine",
        unset="float32",
        applies=NEW_MODEL,
        settled="float32; with start_from its model's",
        choices=PRECISIONS,
        metavar="NAME",
    )

    def __post_init__(self):
        check_values(self)
        for name in ("teachers", "model_options"):
            object.__setattr__(self, name, getattr(self, name) or None)


TRAINING = options_of(TrainOptions)
CHANGEABLE = frozenset(name for name, declared in TRAINING.items() if declared.changeable)
add_flags(TRAINING)


def default_of(name):
    """The value of an unset option of a training, or `None` where the corpus decides."""
    return TRAINING[name].default
