"""The signatures of a translator's SavedModel by their names, and which an export can have."""

from kformer.models import Ensemble
from kformer.utils.checks import check_choice
from kformer_options.names import named

DEFAULT_SIGNATURE, ALIGNMENT = "serving_default", "alignment"
CONSTRAINED, PREFIX = "constrained", "prefix"
# The input of each signature of a model of several target languages: a code for each text.
TARGET_LANGUAGE = "target_language"
# Inputs of the signatures in which each text has a value of its own: ranks of string tensors.
INPUTS = {CONSTRAINED: {"text": 1, "terms": 2}, PREFIX: {"text": 1, "prefix": 1}}


def check_signatures(names, dtype, model, options):
    """Checks the signatures that an export is asked for.

    Args:
        names: sequence of str, or `None` for all.
        dtype: str. The dtype of the export.
        model: the model.
        options: `SearchOptions`.

    Raises:
        ValueError: an export in that dtype has no signature of a name, the default one is missing,
            or the search cannot have one.
    """
    if names is None:
        return
    if isinstance(names, str):
        raise ValueError(f"signatures must be a list of names, but {names!r} was given.")
    known = (DEFAULT_SIGNATURE, "n_best", "attention", ALIGNMENT, *INPUTS)
    for name in names:
        check_choice(f"A signature of an export in {dtype}", name, known)
        if name in ("attention", ALIGNMENT) and isinstance(model, Ensemble):
            raise ValueError(
                f"An ensemble has no signature {name}, as each of its models attends by itself."
            )
    if CONSTRAINED in names and options.beam_size < 2:
        raise ValueError(
            f"The signature {CONSTRAINED} needs a beam, but {named('beam_size')} is "
            f"{options.beam_size}; give at least 2."
        )
    if options.shortlist and set(names) & set(INPUTS):
        raise ValueError(
            "A search over a shortlist writes no other token, so it takes no terms and no "
            f"prefixes: leave out the shortlist, or the signatures {CONSTRAINED} and {PREFIX}."
        )
    if DEFAULT_SIGNATURE not in names:
        raise ValueError(
            f"{named('signatures')} must have {DEFAULT_SIGNATURE}, which servers call by default, "
            f"but {', '.join(names) or 'nothing'} was given."
        )
