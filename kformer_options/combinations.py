"""Whether the options of a training fit together.

This module imports only the standard library, as `kformer_options.training` does.
"""

from kformer_options.installed import is_installed
from kformer_options.names import named
from kformer_options.training import default_of

_VOCABULARY = ("tokenizer_type", "vocabulary_size", "separate_vocabularies")
OF_THE_MODEL = (
    *("preset", "made_for", "model_options", "norm", "max_length", "tokenizer"),
    *_VOCABULARY,
)
OF_THE_VALIDATION = ("select", "patience", "valid_every", "quality_every", "choose_search")
_OF_FINE_TUNING = ("lora_rank", "general_source", "general_target", "general_valid_source")
_OF_TEACHERS = ("teachers_from", "monolingual_source", "monolingual_target", "back_translation")
_OTHER_NOISE = ("attention_dropout", "activation_dropout", "word_dropout")
# Options, what each of them needs, and why.
_NEEDS = (
    (OF_THE_VALIDATION, ("valid_source", "valid_target"), "needs a validation set"),
    (_OF_FINE_TUNING, ("start_from",), "is about training a model further"),
    (("lora_alpha",), ("lora_rank",), "is the strength of adapters"),
    (("teacher_weight",), ("teachers",), "is about what teachers predict"),
    (("back_translation",), ("monolingual_target",), "is about text in the target language"),
)
# The texts with two sides, by the beginnings of their options.
_TEXTS = {"valid": "A validation", "general": "General text", "general_valid": "General text"}
# Two options, one of which must be left out, and why.
_OWN_TEACHERS = "{effort} {options.effort} trains its own teachers from the beginning"
_EXCLUDE = (
    ("max_shapes", "packed", "Packed batches all have one shape"),
    ("select", "general_valid_source", "Two validation sets are compared by their likelihoods"),
    ("teachers", "general_source", "{teachers} belongs to one text"),
    ("guided_alignment", "general_source", "{guided_alignment} belongs to one text"),
    ("subword_sampling", "guided_alignment", "Alignments belong to one segmentation of the text"),
    ("subword_sampling", "teachers", "Predictions belong to one segmentation of the text"),
    ("start_from", "effort", _OWN_TEACHERS),
    *(
        ("corpora", name, "A description of corpora names all files")
        for name in ("train_source", "train_target")
    ),
    ("corpora", "clean", "The description says how corpora are cleaned"),
    ("corpora", "teachers_from", "The teachers of another training read two files"),
    ("teachers", "effort", _OWN_TEACHERS),
)
# The values with which an option needs nothing, and excludes none.
_NEED_NOTHING = {"valid_every": default_of("valid_every"), "choose_search": False}
_EXCLUDE_NONE = {"select": "nll", "effort": 1, "clean": "none"}


class _Words(dict):
    """Of sentences: `{keep}` is what a message calls this option, `{options.keep}` its value."""

    def __missing__(self, name):
        return named(name)


def check_combinations(options, has_validation=None):
    """Checks that no option of a training is missing, and no two contradict each other.

    Args:
        options: object with an attribute for each option of a training; `None` means unset.
        has_validation: bool or `None`, default `None`. Whether the description of corpora has a
            validation set; `None` if nobody has read it yet.

    Raises:
        ValueError: an option is missing, or two options contradict each other.
    """
    words = _Words(options=options)
    may_be_valid = options.corpora is not None and has_validation is not False
    for rules in (_rules_of_pairs, _rules_of_texts, _rules_of_the_model):
        for is_broken, sentence in rules(options, may_be_valid):
            if is_broken:
                raise ValueError(sentence.format_map(words))


def _rules_of_pairs(options, may_be_valid):
    """Yields whether an option lacks one that it needs, or has one that it excludes; a sentence."""
    for name in _OF_TEACHERS:
        yield (
            getattr(options, name) is not None and (options.effort or 1) == 1,
            f"{{{name}}} is for teachers, which a training has with {{effort}} 2 or 3: give that, "
            "or leave it out.",
        )
    yield (
        options.student is not None and (options.effort or 1) == 1,
        "{student} {options.student} learns from teachers, which a training has with {effort} 2 or "
        "3: give that, or name the model by {preset}.",
    )
    for names, needs, reason in _NEEDS:
        is_met = any(getattr(options, need) for need in needs)
        is_met = is_met or may_be_valid and needs[0] == "valid_source"
        remedy = " and ".join(f"{{{need}}}" for need in needs)
        for name in names:
            is_set = getattr(options, name) not in (None, _NEED_NOTHING.get(name))
            yield is_set and not is_met, f"{{{name}}} {reason}: give {remedy}, or leave it out."
    for *names, reason in _EXCLUDE:
        values = {name: getattr(options, name) for name in names}
        are_set = all(value and value != _EXCLUDE_NONE.get(name) for name, value in values.items())
        value = f"={{options.{names[0]}}}" if isinstance(values[names[0]], int | str) else ""
        yield are_set, f"{reason}: leave out {{{names[0]}}}{value}, or {{{names[1]}}}."


def _rules_of_texts(options, may_be_valid):
    """Yields whether a text, or a side of it, is missing, and the sentence about it."""
    yield (
        options.corpora is None and None in (options.train_source, options.train_target),
        "A training needs both sides of the corpus: give {train_source} and {train_target}.",
    )
    yield (
        options.corpora is not None and options.guided_alignment not in (None, "auto"),
        "{guided_alignment} {options.guided_alignment} belongs to one text, and {corpora} has "
        "several: take auto.",
    )
    yield (
        options.guided_alignment not in (None, "auto") and options.clean not in (None, "none"),
        "{guided_alignment} {options.guided_alignment} has a line for each pair, of which {clean} "
        "leaves some out: take auto.",
    )
    for start, name in _TEXTS.items():
        sides = [f"{start}_source", f"{start}_target"]
        yield (
            len([side for side in sides if getattr(options, side) is None]) == 1,
            f"{name} needs both sides: give {{{sides[0]}}} and {{{sides[1]}}}, or neither.",
        )
    yield (
        options.general_valid_source is not None
        and options.valid_source is None
        and not may_be_valid,
        "{general_valid_source} is measured beside the validation set: give {valid_source} and "
        "{valid_target}, or leave it out.",
    )
    has_general = options.general_source is not None or options.general_valid_source is not None
    yield (
        options.general_share is not None and not has_general,
        "{general_share} is the share of general text: give {general_source} and {general_target}, "
        "or leave it out.",
    )


def _rules_of_the_model(options, _):
    """Yields whether model and tokenizer contradict another option, and the sentence about it."""
    for name in OF_THE_MODEL:
        yield (
            options.start_from is not None and getattr(options, name) is not None,
            "With {start_from} the model is the one of {options.start_from}, so "
            f"{{{name}}} cannot be chosen.",
        )
    # The corpus decides about an unset rate of dropout, and the others are 0 then.
    is_noisy = options.dropout != 0 or any(getattr(options, name) for name in _OTHER_NOISE)
    is_noisy = is_noisy or "stochastic_depth" in (options.model_options or {})
    yield (
        options.consistency and options.start_from is None and not is_noisy,
        "{consistency} compares two passes with different dropout, but {dropout} is 0: give a rate "
        "above 0, or leave {consistency} out.",
    )
    vocabulary = [name for name in ("tokenizer", *_VOCABULARY) if getattr(options, name)]
    has_options = vocabulary not in ([], ["tokenizer"])
    yield (
        options.tokenizer is not None and has_options,
        "The tokenizer in {options.tokenizer} has its vocabularies already: leave the other "
        "vocabulary options out.",
    )
    yield (
        options.teachers and options.tokenizer is None and has_options,
        "The student's tokenizer is that of its teachers: leave the vocabulary options out.",
    )
    yield (
        options.teachers_from is not None and vocabulary,
        "The tokenizer is that of {teachers_from}, as teachers and student need one: leave out "
        f"{{{''.join(vocabulary[:1])}}}.",
    )
    is_new = options.tokenizer is None and options.start_from is None and not options.teachers
    is_bpe = (options.tokenizer_type or default_of("tokenizer_type")) == "bpe"
    yield (
        is_new and is_bpe and (options.subword_sampling or 0) >= 1,
        "{subword_sampling} must be below 1 with a tokenizer of type bpe, whose merges it leaves "
        "out, but {options.subword_sampling} was given; 0.1 is usual.",
    )
    yield (
        options.log_dir is not None and not is_installed("tensorboard"),
        "{log_dir} is for TensorBoard, which is not installed: pip install tensorboard, or leave "
        "{log_dir} out.",
    )
