"""Whether the options of a training or a search fit together.

This module imports only the standard library, as `kformer_options.training` does.
"""

import importlib.util

from kformer_options.fine_tuning_checks import check_fine_tuning
from kformer_options.names import named
from kformer_options.training import default_of

_VOCABULARY = ("tokenizer_type", "vocabulary_size", "separate_vocabularies")
OF_THE_MODEL = (
    "preset",
    "made_for",
    "model_options",
    "norm",
    "max_length",
    "tokenizer",
    *_VOCABULARY,
)
_OF_TEACHERS = ("teachers_from", "monolingual_source", "monolingual_target", "back_translation")
OF_THE_VALIDATION = ("select", "patience", "valid_every", "quality_every", "choose_search")
_OTHER_NOISE = ("attention_dropout", "activation_dropout", "word_dropout")


def check_combinations(options):
    """Checks that no option of a training is missing, and no two contradict each other.

    Args:
        options: object with an attribute for each option of a training; `None` means unset.

    Raises:
        ValueError: an option is missing, or two options contradict each other.
    """
    if options.packed and options.max_shapes is not None:
        raise ValueError(
            f"Packed batches all have one shape: leave out {named('max_shapes')}="
            f"{options.max_shapes}, or {named('packed')}."
        )
    for check in (
        _check_files,
        _check_noise,
        _check_start,
        check_fine_tuning,
        _check_tokenizer,
        _check_teachers,
        _check_effort,
    ):
        check(options)


def _check_files(options):
    if options.train_source is None or options.train_target is None:
        raise ValueError(
            "A training needs both sides of the corpus: give "
            f"{named('train_source')} and {named('train_target')}."
        )
    if (options.valid_source is None) != (options.valid_target is None):
        raise ValueError(
            "A validation needs both sides: give "
            f"{named('valid_source')} and {named('valid_target')}, or neither."
        )
    for name in OF_THE_VALIDATION:
        # A run without validation has the default of valid_every in its config. Whoever wants no
        # search to be chosen has what they want.
        unused = {"valid_every": default_of(name), "choose_search": False}.get(name)
        if options.valid_source is None and getattr(options, name) not in (None, unused):
            raise ValueError(
                f"{named(name)} needs a validation set: give {named('valid_source')} and "
                f"{named('valid_target')}, or leave it out."
            )
    if options.log_dir is not None and importlib.util.find_spec("tensorboard") is None:
        raise ValueError(
            f"{named('log_dir')} is for TensorBoard, which is not installed: pip install "
            f"tensorboard, or leave {named('log_dir')} out."
        )


def _check_noise(options):
    # The corpus decides about an unset rate of dropout, and the others are 0 then.
    is_noisy = options.dropout != 0 or any(getattr(options, name) for name in _OTHER_NOISE)
    is_noisy = is_noisy or "stochastic_depth" in (options.model_options or {})
    if options.consistency and options.start_from is None and not is_noisy:
        raise ValueError(
            f"{named('consistency')} compares two passes with different dropout, but "
            f"{named('dropout')} is 0: give a rate above 0, or leave {named('consistency')} out."
        )


def _check_start(options):
    for name in OF_THE_MODEL if options.start_from is not None else ():
        if getattr(options, name) is not None:
            raise ValueError(
                f"With {named('start_from')} the model is the one of {options.start_from}, so "
                f"{named(name)} cannot be chosen."
            )


def _check_tokenizer(options):
    has_vocabulary_options = any(getattr(options, name) for name in _VOCABULARY)
    if options.tokenizer is not None and has_vocabulary_options:
        raise ValueError(
            f"The tokenizer in {options.tokenizer} has its vocabularies already: leave the other "
            "vocabulary options out."
        )
    if options.teachers and options.tokenizer is None and has_vocabulary_options:
        raise ValueError(
            "The student's tokenizer is that of its teachers: leave the vocabulary options out."
        )
    is_new = options.tokenizer is None and options.start_from is None and not options.teachers
    is_bpe = (options.tokenizer_type or default_of("tokenizer_type")) == "bpe"
    if is_new and is_bpe and (options.subword_sampling or 0) >= 1:
        raise ValueError(
            f"{named('subword_sampling')} must be below 1 with a tokenizer of type bpe, whose "
            f"merges it leaves out, but {options.subword_sampling} was given; 0.1 is usual."
        )


def _check_teachers(options):
    if options.teacher_weight is not None and not options.teachers:
        raise ValueError(
            f"{named('teacher_weight')} is about what teachers predict: give "
            f"{named('teachers')}, or leave it out."
        )
    if options.guided_alignment and options.subword_sampling:
        raise ValueError(
            "Aligned tokens belong to one segmentation of the text: leave out "
            f"{named('subword_sampling')}, or {named('guided_alignment')}."
        )
    if options.teachers and options.subword_sampling:
        raise ValueError(
            "The predictions of teachers belong to one segmentation of the text: leave out "
            f"{named('subword_sampling')}, or {named('teachers')}."
        )


def _check_effort(options):
    efforts = f"{named('effort')} 2 or 3"
    if (options.effort or 1) == 1:
        for name in _OF_TEACHERS:
            if getattr(options, name) is not None:
                raise ValueError(
                    f"{named(name)} is for teachers, which a training has with {efforts}: give "
                    "that, or leave it out."
                )
        return
    if options.back_translation is not None and options.monolingual_target is None:
        raise ValueError(
            f"{named('back_translation')} is about text in the target language: give "
            f"{named('monolingual_target')}, or leave it out."
        )
    vocabulary = [name for name in ("tokenizer", *_VOCABULARY) if getattr(options, name)]
    if options.teachers_from is not None and vocabulary:
        raise ValueError(
            f"The tokenizer is that of {named('teachers_from')}, as teachers and student need "
            f"one: leave out {named(vocabulary[0])}."
        )
    for name in ("start_from", "teachers"):
        if getattr(options, name):
            raise ValueError(
                f"{named('effort')} {options.effort} trains its own teachers from the beginning: "
                f"leave out {named(name)}, or {named('effort')}."
            )
