"""The options of the efforts of a training: teachers, and text in one language alone.

This module imports only the standard library, as `kformer_options.training` does.
"""

import os

from kformer_options.field import Option

PATH = os.PathLike
BACK_TRANSLATIONS = ("beam", "sampled", "noised")

EFFORT = [
    Option(
        "effort",
        int,
        "1 is one training. 2 takes about three times as long for more BLEU: a teacher for "
        "each direction, a student on what they translate, and a last training on the given "
        "pairs. 3 takes some nine times as long: three teachers, two of the other direction, "
        "and the mean of three last trainings.",
        unset="1",
        least=1,
        most=3,
    ),
    Option(
        "teachers_from",
        PATH,
        "Take the teachers, their tokenizer and their translations from this training with an "
        "effort of 2 or 3 on the same two files, in either direction.",
        unset="teachers are trained",
        metavar="RUN",
    ),
    Option(
        "monolingual_target",
        PATH,
        "Text in the target language alone, one sentence per line. Teachers of the other "
        "direction translate it (back-translation), for the student.",
    ),
    Option(
        "monolingual_source",
        PATH,
        "Text in the source language alone, which the teachers translate for the student.",
    ),
    Option(
        "back_translation",
        str,
        "How text in the target language alone is translated: by a beam, sampled, or by a beam "
        "with noise (words left out, hidden and moved).",
        unset="beam up to 200,000 pairs, then sampled",
        choices=BACK_TRANSLATIONS,
        metavar="KIND",
    ),
]
