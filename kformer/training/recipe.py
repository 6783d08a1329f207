"""How to compile a Transformer: the paper's optimizer, loss and the metrics to watch."""

import keras

from kformer.training.losses import TEACHER_WEIGHT, MaskedCrossentropy
from kformer.training.metrics import MaskedAccuracy, NegativeLogLikelihood, Perplexity
from kformer.training.schedules import WarmupInverseSqrt
from kformer.utils.checks import check_whole


def paper_recipe(
    model_or_hidden_dim,
    *,
    warmup_steps=4000,
    scale=1.0,
    learning_rate=None,
    label_smoothing=0.1,
    consistency=0.0,
    teacher_weight=TEACHER_WEIGHT,
    weight_decay=0.0,
    clip_norm=None,
    ema_momentum=None,
    accumulation_steps=1,
    pad_id=None,
):
    """Keyword arguments for `model.compile` that train as "Attention is all you need" does.

    | Part | Value | Source |
    |---|---|---|
    | optimizer | Adam, beta_1 0.9, beta_2 0.98, epsilon 1e-9 | Vaswani et al. 2017, section 5.3 |
    | learning rate | `WarmupInverseSqrt`, 4000 warm-up steps | the same, equation 3 |
    | label smoothing | 0.1 | the same, section 5.4 |
    | gradient clipping | none | the paper names none; 1.0 is usual where training is unsteady (pre-norm, float16) |
    | R-Drop | none | Liang et al. 2021: `consistency=5`, two passes of each batch that are drawn together |
    | weight averaging | none | the paper averages 5 or 20 checkpoints at the end (6.1), `ema_momentum` all along |

    The optimizer knows nothing of the number format: under `mixed_float16`, `model.compile` itself
    puts Keras's `LossScaleOptimizer` around it.

    Args:
        model_or_hidden_dim: a model with the attribute `hidden_dim`, or that number.
        warmup_steps, scale: see `WarmupInverseSqrt`.
        learning_rate: float or a Keras schedule, in place of `WarmupInverseSqrt`.
        label_smoothing: float in `[0, 1)`.
        consistency: float, the weight of R-Drop, see `MaskedCrossentropy`; 0 for none.
        teacher_weight: float in `[0, 1]`, how far soft targets replace labels, where the data has
            them, see there.
        weight_decay: float, the share of each weight, times the learning rate, that an update takes
            off it (AdamW's decoupled decay, of all weights); 0 for none.
        clip_norm: float; the gradient of all weights together is scaled down to this norm. `None`
            leaves it as it is.
        ema_momentum: float in `(0, 1)`, as 0.999; an exponential moving average of the weights runs
            along, and takes their place when `fit` ends. `None` keeps none.
        accumulation_steps: int; the weights are updated once in so many batches, by the mean of
            their gradients. The recipe's own schedule counts the updates; one that is given is
            asked by the number of batches.
        pad_id: int, the label to ignore; `None` takes the model's.

    Returns:
        A dict with `optimizer`, `loss` and `metrics`.

    Raises:
        ValueError: there is no hidden size, or a value lies out of range.

    Example:
        >>> model = kformer.Transformer.from_preset("base", vocabulary_size=32000)
        >>> model.compile(**kformer.training.paper_recipe(model))

    References:
        Vaswani et al. 2017, "Attention is all you need", sections 5.3, 5.4 and 6.1.
    """
    check_whole("accumulation_steps", accumulation_steps)
    hidden_dim = getattr(model_or_hidden_dim, "hidden_dim", model_or_hidden_dim)
    if learning_rate is None:
        if isinstance(hidden_dim, bool) or not isinstance(hidden_dim, int):
            raise ValueError(
                f"The learning rate needs the model's hidden size: give a whole number, a model with the attribute "
                f"`hidden_dim`, or a learning_rate, not {model_or_hidden_dim!r}."
            )
        settings = {
            "warmup_steps": warmup_steps,
            "scale": scale,
            "batches_per_update": accumulation_steps,
        }
        learning_rate = WarmupInverseSqrt(hidden_dim, **settings)
    elif not isinstance(learning_rate, keras.optimizers.schedules.LearningRateSchedule):
        learning_rate = float(learning_rate)
        if not 0 < learning_rate < float("inf"):
            raise ValueError(
                f"learning_rate must be a finite number above 0, but {learning_rate} was given."
            )
    if clip_norm is not None and not clip_norm > 0:
        raise ValueError(
            f"clip_norm must be above 0, or None for no clipping, but {clip_norm} was given."
        )
    if not 0 <= weight_decay < float("inf"):
        raise ValueError(
            f"weight_decay must be at least 0 (0 for none), but {weight_decay} was given."
        )
    if ema_momentum is not None and not 0 < ema_momentum < 1:
        raise ValueError(
            f"ema_momentum must lie in (0, 1), or be None for no average, but {ema_momentum} was given."
        )
    options = {} if ema_momentum is None else {"use_ema": True, "ema_momentum": float(ema_momentum)}
    if weight_decay:
        options["weight_decay"] = float(weight_decay)
    if accumulation_steps > 1:
        options["gradient_accumulation_steps"] = accumulation_steps
    return {
        "optimizer": keras.optimizers.Adam(
            learning_rate,
            beta_1=0.9,
            beta_2=0.98,
            epsilon=1e-9,
            global_clipnorm=clip_norm,
            **options,
        ),
        "loss": MaskedCrossentropy(label_smoothing, pad_id, consistency, teacher_weight),
        "metrics": [
            NegativeLogLikelihood(pad_id=pad_id),
            Perplexity(pad_id=pad_id),
            MaskedAccuracy(pad_id=pad_id),
        ],
    }
