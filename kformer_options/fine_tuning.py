"""The options of a training that begins with a trained model.

This module imports only the standard library, as `kformer_options.training` does.
"""

import os

from kformer_options.field import GENERAL, LORA, Option

# The texts of a training, by the options of their two sides; that which it trains on comes last.
TEXTS = (
    ("general_valid_source", "general_valid_target"),
    ("general_source", "general_target"),
    ("valid_source", "valid_target"),
    ("train_source", "train_target"),
)
FINE_TUNING = [
    Option(
        "start_from",
        os.PathLike,
        "A run directory whose model and tokenizer are trained further on this text, with a new "
        "optimizer.",
        unset="a new model",
        metavar="RUN",
    ),
    Option(
        "lora_rank",
        int,
        "Train small matrices of this rank beside the attention and feed-forward kernels, and "
        "nothing else (LoRA); 8 is usual. They are merged into the weights that are saved.",
        unset="all weights train",
        least=1,
    ),
    Option(
        "lora_alpha",
        float,
        "Strength of these matrices: their product counts alpha / rank.",
        16.0,
        applies=LORA,
        above=0,
    ),
    Option(
        "general_source",
        os.PathLike,
        "Source side of general text, such as that of the first training: each epoch has another "
        "sample of it, so that the model forgets little.",
    ),
    Option("general_target", os.PathLike, "Target side of the general text."),
    Option(
        "general_share",
        float,
        "Share of general pairs in each epoch, and the weight of their validation set.",
        0.5,
        applies=GENERAL,
        above=0,
        below=1,
    ),
    Option(
        "general_valid_source",
        os.PathLike,
        "Source side of a general validation set: the best model is chosen by both sets.",
    ),
    Option("general_valid_target", os.PathLike, "Target side of the general validation set."),
]
