"""Whether the options of a fine-tuning fit together.

This module imports only the standard library, as `kformer_options.training` does.
"""

from kformer_options.names import named

_NEED_A_START = ("lora_rank", "general_source", "general_target", "general_valid_source")


def check_fine_tuning(options):
    """Checks the options about adapters and about general text.

    Args:
        options: object with an attribute for each option of a training; `None` means unset.

    Raises:
        ValueError: an option is missing, or two options contradict each other.
    """
    for name in _NEED_A_START:
        if getattr(options, name) is not None and options.start_from is None:
            raise ValueError(
                f"{named(name)} is about training a model further: give {named('start_from')}, or "
                "leave it out."
            )
    if options.lora_alpha is not None and options.lora_rank is None:
        raise ValueError(
            f"{named('lora_alpha')} is the strength of adapters: give {named('lora_rank')}, or "
            "leave it out."
        )
    _check_general(options)


def _check_general(options):
    for source, target in (
        ("general_source", "general_target"),
        ("general_valid_source", "general_valid_target"),
    ):
        if (getattr(options, source) is None) != (getattr(options, target) is None):
            raise ValueError(
                f"General text needs both sides: give {named(source)} and {named(target)}, or "
                "neither."
            )
    has_text = options.general_source is not None
    has_validation = options.general_valid_source is not None
    if options.general_share is not None and not (has_text or has_validation):
        raise ValueError(
            f"{named('general_share')} is the share of general text: give "
            f"{named('general_source')} and {named('general_target')}, or leave it out."
        )
    if has_validation and options.valid_source is None:
        raise ValueError(
            f"{named('general_valid_source')} is measured beside the validation set: give "
            f"{named('valid_source')} and {named('valid_target')}, or leave it out."
        )
    if has_validation and options.select == "bleu":
        raise ValueError(
            f"Two validation sets are compared by their likelihoods: leave out {named('select')}="
            f"bleu, or {named('general_valid_source')}."
        )
    for name in ("teachers", "guided_alignment"):
        if has_text and getattr(options, name):
            raise ValueError(
                f"{named(name)} belongs to one text: leave it out, or {named('general_source')}."
            )
