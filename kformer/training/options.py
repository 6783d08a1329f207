"""The check of a training's options together, which knows the models."""

from kformer.models.config import check_packing
from kformer.models.guided_alignment import check_guidable
from kformer.training.new_model import check_model_options
from kformer_options.combinations import check_combinations
from kformer_options.training import TrainOptions

__all__ = ["TrainOptions", "check_options"]


def check_options(options, has_validation=None):
    """Checks that the options of a training fit together, before the long work.

    Args:
        options: `TrainOptions`.
        has_validation: as of `check_combinations`.

    Raises:
        ValueError: an option is missing, or two options contradict each other.
    """
    check_model_options(options)
    if options.packed:
        check_packing(options.model_options or {})
    if options.guided_alignment is not None:
        check_guidable((options.model_options or {}).get("attention_kind", "full"))
    check_combinations(options, has_validation)
