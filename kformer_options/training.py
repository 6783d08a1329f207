"""The options of a training, declared once: for Python, the command line and a run's `config.json`.

This module imports only the standard library, so that help is quick and kformer can read it too:
`kformer.trainer.TrainOptions` has its fields, defaults and checks from here, and `kformer train`
its options.
"""

import dataclasses
import os

from kformer_options.effort import EFFORT
from kformer_options.field import (
    NEW_MODEL,
    NEW_TOKENIZER,
    TEACHERS,
    VALIDATION,
    Option,
)
from kformer_options.fine_tuning import FINE_TUNING

BACKENDS = ("tensorflow", "jax", "torch")
# What each backend reads when it is imported. PyTorch and NumPy read OMP_NUM_THREADS.
THREAD_VARIABLES = ("OMP_NUM_THREADS", "TF_NUM_INTRAOP_THREADS", "TF_NUM_INTEROP_THREADS", "NPROC")
PRESETS = ("tiny", "small", "base", "big", "paper_base", "paper_big")
TOKENIZER_TYPES = ("bpe", "unigram")
NORMS = ("pre", "post")
PRECISIONS = ("float32", "mixed_float16", "mixed_bfloat16")
MATMUL_PRECISIONS = ("highest", "high", "medium")
SELECTIONS = ("nll", "bleu")
MADE_FOR = ("transformers", "saved_model", "ctranslate2", "onnx")

PATH = os.PathLike
_RATE = {"least": 0, "below": 1}
_SIZE = {"least": 1}

_GROUPS = {
    "Data": [
        Option(
            "train_source",
            PATH,
            "Source side of the training text: UTF-8, one sentence per line. A new training needs "
            "it.",
            unset="",
        ),
        Option(
            "train_target",
            PATH,
            "Target side: line n is the translation of line n of the source. A new training needs "
            "it.",
            unset="",
        ),
        Option(
            "valid_source",
            PATH,
            "Source side of the validation set, on which the model is measured after each epoch.",
        ),
        Option("valid_target", PATH, "Target side of the validation set."),
        Option(
            "tokenizer",
            PATH,
            "Use this tokenizer as it is.",
            unset="a new one is trained",
            metavar="FOLDER",
        ),
        Option(
            "tokenizer_type",
            str,
            "Kind of a new tokenizer; bpe splits a text into fewer pieces.",
            "bpe",
            applies=NEW_TOKENIZER,
            choices=TOKENIZER_TYPES,
            metavar="KIND",
        ),
        Option(
            "vocabulary_size",
            int,
            "Pieces of the tokenizer, of each where the sides have one each.",
            unset="1,000 to 32,000 by the number of pairs, so that each piece occurs often enough",
            least=4,
        ),
        Option(
            "separate_vocabularies",
            bool,
            "A tokenizer for each side, as languages that share no script may have.",
            unset="one for both sides",
        ),
        Option(
            "max_length",
            int,
            "Longest sentence in tokens; longer pairs are left out and counted.",
            256,
            applies=NEW_MODEL,
            least=2,
            note=", one token and the end",
        ),
        Option(
            "batch_tokens",
            int,
            "Maximum number of tokens in a batch, padding included, on the longer side; lower it "
            "if memory runs out.",
            unset="4096, less if an epoch had under 200 steps",
            **_SIZE,
        ),
        Option(
            "max_shapes",
            int,
            "Maximum number of batch shapes; fewer save compilations on JAX, more save padding.",
            unset="8; 3 on JAX, which compiles each; 1 with packed batches",
            **_SIZE,
        ),
        Option(
            "packed",
            bool,
            "Several sentences one after the other in each row: one batch shape, hardly any "
            "padding, one compilation.",
            False,
        ),
    ],
    "Model": [
        Option(
            "preset",
            str,
            "Size and kind of the model: tiny is right for some 10,000 pairs, small for some "
            "100,000, base and big for millions; paper_base and paper_big have the paper's norms "
            "and positions.",
            "tiny",
            applies=NEW_MODEL,
            choices=PRESETS,
            metavar="NAME",
        ),
        Option(
            "model_options",
            dict,
            "Further arguments of kformer.Transformer, such as gated=true or "
            "position_encoding=sinusoidal.",
            unset="the preset's",
            flag="model-option",
            metavar="NAME=VALUE",
        ),
        Option(
            "norm",
            str,
            "Layer norms before each sub-layer (pre), which learns faster, or after it (post), as "
            "in the paper.",
            unset="the preset's: post for the paper's presets, pre for the others",
            choices=NORMS,
            metavar="KIND",
        ),
        Option(
            "made_for",
            str,
            "The system that the model will be exported to, so that its kind fits: the library "
            "transformers needs sinusoidal positions, the others take the default.",
            unset="any but transformers",
            choices=MADE_FOR,
            flag="for",
            metavar="SYSTEM",
        ),
        Option(
            "seed",
            int,
            "Seed of the weights, the order of the batches, dropout and the tokenizer's sample. "
            "The same seed, text and backend give the same training.",
            0,
            applies=NEW_MODEL,
            unset="0; with start_from dropout keeps its model's",
            least=0,
            most=2**31 - 1,
        ),
        Option(
            "teachers",
            list,
            "A run whose predictions at each token of the training text the model learns from, "
            "too (word-level distillation). Of several, their mean counts. The model has their "
            "tokenizer unless another is given.",
            note="run directories",
            flag="teacher",
            metavar="RUN",
        ),
        Option(
            "teacher_weight",
            float,
            "Share of each target that is the teachers' prediction, from 0 to 1.",
            0.8,
            applies=TEACHERS,
            least=0,
            most=1,
        ),
        Option(
            "guided_alignment",
            PATH,
            "Teach one head of the decoder which words belong together, for kformer align: aligned "
            "words of the training text in Pharaoh's format, or auto for those of a statistical "
            "aligner.",
            unset="no guided alignment",
            metavar="FILE|auto",
        ),
    ],
    "Effort": EFFORT,
    "Fine-tuning": FINE_TUNING,
    "Noise": [
        Option(
            "dropout",
            float,
            "Rate of dropout after embeddings and sub-layers.",
            unset="0.3 up to 200,000 pairs, 0.2 up to 2,000,000, then 0.1, or 0.3 for big; with "
            "start_from its model's",
            **_RATE,
        ),
        Option(
            "attention_dropout",
            float,
            "Rate of dropout on attention probabilities.",
            0.0,
            applies=NEW_MODEL,
            unset="0; with start_from its model's",
            **_RATE,
        ),
        Option(
            "activation_dropout",
            float,
            "Rate of dropout inside the feed-forward networks.",
            0.0,
            applies=NEW_MODEL,
            unset="0; with start_from its model's",
            **_RATE,
        ),
        Option(
            "word_dropout",
            float,
            "Probability that a token the model reads is hidden from it.",
            0.0,
            **_RATE,
        ),
        Option(
            "subword_sampling",
            float,
            "Resample the segmentation of words in every epoch (subword regularisation). With a "
            "bpe tokenizer this is the probability that a merge is left out, 0.1 is usual; with a "
            "unigram one the exponent, 0.1 to 0.5, less is more random.",
            above=0,
        ),
        Option(
            "consistency",
            float,
            "Weight of R-Drop: every batch is computed twice, with different dropout, and the two "
            "predictions are pulled together; 5 is usual.",
            0.0,
            least=0,
            note=" (0 for none; 5 is usual)",
        ),
        Option("label_smoothing", float, "Label smoothing, as in the paper.", 0.1, **_RATE),
        Option(
            "weight_decay",
            float,
            "Share of each weight, times the learning rate, that an update takes off it (AdamW).",
            0.0,
            least=0,
            note=" (0 for none)",
        ),
    ],
    "Schedule": [
        Option(
            "epochs",
            int,
            "Passes over the text.",
            unset="20 to 30, with at least 2,000 updates, and no more than reach 100,000 steps",
            changeable=True,
            **_SIZE,
        ),
        Option(
            "steps",
            int,
            "Steps to stop after; of epochs and steps, what comes first counts.",
            unset="no limit",
            changeable=True,
            **_SIZE,
        ),
        Option(
            "patience",
            int,
            "Stop after N validations in a row without improvement; 0 for never.",
            unset="10, or those of 1,000 steps where an epoch has so few",
            least=0,
            note=" (0 for none)",
            changeable=True,
        ),
        Option(
            "valid_every",
            int,
            "Epochs from one validation to the next; the last epoch is validated, too.",
            1,
            changeable=True,
            **_SIZE,
        ),
        Option(
            "select",
            str,
            "What makes a validated model the better one: the likelihood of its tokens (nll) or "
            "its translations (bleu).",
            "nll",
            applies=VALIDATION,
            choices=SELECTIONS,
            metavar="MEASURE",
        ),
        Option(
            "learning_rate",
            float,
            "Peak of the learning rate, at the end of the warm-up.",
            unset="0.64 / hidden size up to 256, above that the paper's; with start_from a tenth, "
            "except adapters",
            above=0,
        ),
        Option(
            "warmup_steps",
            int,
            "Updates in which the learning rate rises.",
            unset="a fifth of all, at most 4,000",
            **_SIZE,
        ),
        Option(
            "cooldown",
            float,
            "Share of the training at whose end the learning rate falls to 0.",
            0.25,
            applies=NEW_MODEL,
            unset="0.25; with start_from 0",
            **_RATE,
        ),
        Option(
            "clip_norm",
            float,
            "Largest norm of the gradient; 0 for no limit. It keeps a short warm-up steady.",
            1.0,
            least=0,
            note=" (0 for no limit)",
        ),
        Option(
            "accumulate",
            int,
            "Batches whose gradients make one update. Warm-up and cooldown count updates, steps "
            "counts batches.",
            1,
            **_SIZE,
        ),
        Option(
            "ema",
            float,
            "Momentum of a moving average of the weights, which is what is validated and saved; 0 "
            "for none.",
            unset="0.999, less for a short training; with start_from 0",
            note=", such as 0.999, or 0 for none",
            **_RATE,
        ),
    ],
    "Output": [
        Option(
            "quality_every",
            int,
            "Translate the validation set every N steps and at each validation; history.csv "
            "has BLEU and chrF.",
            unset="never; with select bleu at each validation",
            changeable=True,
            **_SIZE,
        ),
        Option(
            "choose_search",
            bool,
            "Choose length penalty and length limits of the search on the validation set, at the "
            "end of the training; they become the run's default.",
            True,
            applies=VALIDATION,
            changeable=True,
        ),
        Option(
            "log_dir",
            PATH,
            "Write loss, learning rate and tokens per second for TensorBoard (package "
            "tensorboard); with a validation set also its measures, BLEU, chrF and sample "
            "translations.",
            metavar="FOLDER",
            changeable=True,
        ),
        Option(
            "checkpoint_every",
            int,
            "Steps from one checkpoint to the next: the most that an interruption loses.",
            500,
            changeable=True,
            **_SIZE,
        ),
        Option("keep", int, "Checkpoints that are kept.", 2, changeable=True, **_SIZE),
    ],
    "Machine": [
        Option(
            "precision",
            str,
            "Precision of the training; the mixed ones are faster on GPUs and slower on CPUs.",
            "float32",
            applies=NEW_MODEL,
            unset="float32; with start_from its model's",
            choices=PRECISIONS,
            metavar="NAME",
        ),
    ],
}
TRAINING = {
    option.name: dataclasses.replace(option, group=group)
    for group, options in _GROUPS.items()
    for option in options
}
CHANGEABLE = frozenset(name for name, option in TRAINING.items() if option.changeable)


def default_of(name):
    """The value of an unset option of a training, or `None` where the corpus decides."""
    return TRAINING[name].default
