"""Makes the model of a training, or takes that of another run, and compiles it."""

import inspect
import math
import numbers

import keras

from kformer.models import PRESETS, Transformer
from kformer.models.config import check_packing
from kformer.models.lora import enable_lora
from kformer.training.recipe import paper_recipe
from kformer.training.schedules import WarmupInverseSqrt
from kformer_options.field import Option
from kformer_options.training import default_of

# Arguments that other options of a training or its tokenizer set.
_CHOSEN_ELSEWHERE = (
    "vocabulary_size target_vocabulary_size share_embeddings max_length pad_id start_id end_id "
    "normalize_first dropout attention_dropout activation_dropout seed dtype name trainable"
).split()
# The names of model options with their defaults.
MODEL_OPTIONS = {
    name: parameter.default
    for name, parameter in inspect.signature(Transformer).parameters.items()
    if name not in _CHOSEN_ELSEWHERE
}
_DROPOUTS = ("dropout", "attention_dropout", "activation_dropout")


def preset_config(preset):
    """Returns the keyword arguments of `Transformer` in a preset.

    Args:
        preset: str or `None`. The name of the preset; `None` means the default.

    Returns:
        dict.
    """
    return dict(PRESETS[preset or default_of("preset")].config)


def check_model_options(options):
    """Checks that a model can be made with the `model_options` of a training.

    Args:
        options: `TrainOptions`.

    Raises:
        ValueError: there is no such option of a model, or `Transformer` does not take its value.
    """
    model_options = options.model_options or {}
    if not model_options:
        return
    for name, value in model_options.items():
        if name not in MODEL_OPTIONS:
            names = ", ".join(sorted(MODEL_OPTIONS))
            raise ValueError(f"There is no model option {name!r}: choose among {names}.")
        default = MODEL_OPTIONS[name]
        if isinstance(default, numbers.Real):
            kind = bool if isinstance(default, bool) else float
            Option("", type=kind).check(value, f"The model option {name}")
    # All layers of a stack take the same options, so one of each is enough to check them.
    names = ("num_encoder_layers", "num_decoder_layers")
    sizes = {name: model_options.get(name, 2) for name in names}
    depths = {name: 1 for name, value in sizes.items() if isinstance(value, int) and value > 1}
    try:
        preset = options.student or options.preset
        Transformer(8, **{**preset_config(preset), **model_options, **depths})
    except (ValueError, TypeError) as error:
        message = f"No model can be made with the model options {model_options}: {error}"
        raise ValueError(message) from error


def make_model(options, tokenizer, start):
    """Makes the model that a training begins with.

    Args:
        options: `TrainOptions`, from `settle_text`.
        tokenizer: `Tokenizer`.
        start: `Transformer` to train further, or `None` for a new model.

    Returns:
        `Transformer`, not compiled.

    Raises:
        ValueError: the model cannot read packed rows, or its weights are float16.
    """
    if start is None:
        model = Transformer.from_preset(**model_arguments(options, tokenizer))
    else:
        model = _trained_model(options, _with_new_tokens(options, tokenizer, start))
    if options.packed:
        check_packing(model.get_config())
    if model.trainable_weights[0].dtype == "float16":
        raise ValueError(
            f"The weights of {options.start_from} are float16, whose gradients overflow: import "
            "the model as float32 to train it further."
        )
    if options.lora_rank is not None:
        enable_lora(model, options.lora_rank, options.lora_alpha)
    return model


def _with_new_tokens(options, tokenizer, model):
    """The model with rows for the languages that its tokenizer got for this training."""
    sizes = tokenizer.vocabulary_size, tokenizer.target_vocabulary_size
    # A published model may have more rows than its tokenizer has pieces.
    if sizes[0] <= model.vocabulary_size and sizes[1] <= model.target_vocabulary_size:
        return model
    return model.with_more_tokens(*sizes, seed=options.seed or default_of("seed"))


def _trained_model(options, model):
    """The model with the given dropout rates, seed and precision.

    Weights of bfloat16 are trained in float32: most updates are smaller than half the distance of
    two bfloat16 numbers, and would be lost. Adapters are float32 in any case.
    """
    rates = {name: rate for name in _DROPOUTS if (rate := getattr(options, name)) is not None}
    if options.seed is not None or rates:
        model = model.with_dropout(seed=options.seed, **rates)
    precision, is_half = options.precision, model.trainable_weights[0].dtype == "bfloat16"
    if precision is None and is_half and options.lora_rank is None:
        precision = "mixed_bfloat16"
    return model.with_precision(precision) if precision else model


def model_arguments(options, vocabulary):
    """Returns the arguments of `Transformer.from_preset` for a new model.

    Args:
        options: `TrainOptions`, from `settle_text`.
        vocabulary: `Tokenizer` or `PreparedCorpus`.

    Returns:
        dict.
    """
    settings = {"preset": options.preset, "vocabulary_size": vocabulary.vocabulary_size}
    settings |= {name: getattr(options, name) for name in (*_DROPOUTS, "max_length", "seed")}
    settings |= {name: getattr(vocabulary, name) for name in ("pad_id", "start_id", "end_id")}
    settings |= {"normalize_first": options.norm == "pre", "dtype": options.precision}
    if not vocabulary.joint:
        settings["target_vocabulary_size"] = vocabulary.target_vocabulary_size
        settings["share_embeddings"] = False
    return settings | (options.model_options or {})


def describe_model(model, options):
    """Describes the model in a sentence.

    Args:
        model: `Transformer`.
        options: `TrainOptions`, from `settle_text`.

    Returns:
        str.
    """
    name = options.start_from
    if name is None:
        parts = [f"preset {options.preset}", f"{options.norm}-norm"]
        parts += [f"{option} {value}" for option, value in (options.model_options or {}).items()]
        name = ", ".join(parts)
    backend = keras.backend.backend()
    return f"model: {name}, {model.count_params():,} parameters, {backend} backend"


def compile_model(model, options, total_steps):
    """Compiles the model with the schedule, optimizer and loss of the options.

    Args:
        model: `Transformer`.
        options: `TrainOptions`, from `settle_course`.
        total_steps: int. The batches of the whole training.
    """
    total_updates = max(1, total_steps // options.accumulate)
    warmup, cooldown = options.warmup_steps, math.ceil(options.cooldown * total_updates)
    scale = options.learning_rate * (model.hidden_dim * warmup) ** 0.5
    ending = {"total_steps": total_updates, "cooldown_steps": cooldown} if cooldown else {}
    schedule = WarmupInverseSqrt(
        model.hidden_dim, warmup, scale=scale, batches_per_update=options.accumulate, **ending
    )
    teaching = {"teacher_weight": options.teacher_weight} if options.teachers else {}
    recipe = paper_recipe(
        model,
        learning_rate=schedule,
        label_smoothing=options.label_smoothing,
        clip_norm=options.clip_norm or None,
        ema_momentum=options.ema or None,
        consistency=options.consistency,
        accumulation_steps=options.accumulate,
        weight_decay=options.weight_decay,
        **teaching,
    )
    model.compile(**recipe)
