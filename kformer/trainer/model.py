"""Further arguments of a new model, as an option of a training: checked before the long work
begins.
"""

import inspect
import numbers

from kformer.models import Transformer

# Arguments that other options of a training choose, or its tokenizer.
_CHOSEN_ELSEWHERE = (
    *(
        "vocabulary_size",
        "target_vocabulary_size",
        "share_embeddings",
        "max_length",
        "pad_id",
        "start_id",
        "end_id",
        "normalize_first",
    ),
    *("dropout", "attention_dropout", "activation_dropout", "seed", "dtype", "name", "trainable"),
)

# Names and defaults.
MODEL_OPTIONS = {
    name: parameter.default
    for name, parameter in inspect.signature(Transformer).parameters.items()
    if name not in _CHOSEN_ELSEWHERE
}


def check_model_options(options, preset):
    """Makes sure that a model can be made with these options.

    Args:
        options: dict, names of `MODEL_OPTIONS` and values.
        preset: name of the preset that they change.

    Raises:
        ValueError: a name or a value is none that `Transformer` takes.
    """
    for name, value in options.items():
        if name not in MODEL_OPTIONS:
            raise ValueError(
                f"There is no model option {name!r}: choose among {', '.join(sorted(MODEL_OPTIONS))}."
            )
        default = MODEL_OPTIONS[name]
        for kind, what in ((bool, "true or false"), (numbers.Real, "a number")):
            if isinstance(default, kind) and (
                not isinstance(value, kind) or isinstance(value, bool) != isinstance(default, bool)
            ):
                raise ValueError(
                    f"The model option {name} must be {what}, but {value!r} was given."
                )
    # A layer of each stack has all that may be wrong.
    sizes = {name: options.get(name, 2) for name in ("num_encoder_layers", "num_decoder_layers")}
    depths = {name: 1 for name, value in sizes.items() if isinstance(value, int) and value > 1}
    try:
        Transformer.from_preset(preset, vocabulary_size=8, **{**options, **depths})
    except (ValueError, TypeError) as error:
        raise ValueError(
            f"No model can be made with the model options {options}: {error}"
        ) from error
