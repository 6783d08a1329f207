"""How to compile a Transformer: the paper's optimizer, loss and the metrics to watch."""

import keras

from kformer.training.losses import TEACHER_WEIGHT, MaskedCrossentropy
from kformer.training.metrics import MaskedAccuracy, NegativeLogLikelihood, Perplexity
from kformer.training.schedules import WarmupInverseSqrt
from kformer.utils.checks import check_number, check_whole


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
    """Keyword arguments for `model.compile` that train as in "Attention is all you need".

    | Part | Value | Source |
    |---|---|---|
    | optimizer | Adam, beta_1 0.9, beta_2 0.98, epsilon 1e-9 | Vaswani et al. 2017, section 5.3 |
    | learning rate | `WarmupInverseSqrt`, 4000 warm-up steps | the same, equation 3 |
    | label smoothing | 0.1 | the same, section 5.4 |
    | gradient clipping | none | not in the paper; 1.0 helps unstable training (float16) |
    | R-Drop | none | Liang et al. 2021: `consistency=5`, two passes of each batch |
    | weight averaging | none | the paper averages checkpoints at the end, `ema_momentum` always |

    Under `mixed_float16`, `model.compile` itself wraps the optimizer in Keras's
    `LossScaleOptimizer`.

    Args:
        model_or_hidden_dim: model with the attribute `hidden_dim`, or int.
        warmup_steps: int, default 4000. See `WarmupInverseSqrt`.
        scale: float, default 1.0. See `WarmupInverseSqrt`.
        learning_rate: float, Keras schedule or `None`, default `None`. `None` means
            `WarmupInverseSqrt`.
        label_smoothing: float in `[0, 1)`, default 0.1.
        consistency: float, default 0.0. The weight of R-Drop, see `MaskedCrossentropy`; 0 for none.
        teacher_weight: float in `[0, 1]`, default 0.8. The share of soft targets in the target
            distribution, see `MaskedCrossentropy`.
        weight_decay: float, default 0.0. The share of each weight, times the learning rate, that an
            update subtracts from it (AdamW's decoupled decay, on all weights); 0 for none.
        clip_norm: float or `None`, default `None`. The most that the norm of the whole gradient may
            be; `None` for no limit.
        ema_momentum: float in `(0, 1)` or `None`, default `None`. The momentum of an exponential
            moving average of the weights, such as 0.999, which replaces them when `fit` ends;
            `None` for none.
        accumulation_steps: int of at least 1, default 1. The number of batches per update, which
            uses the mean of their gradients. The recipe's own schedule counts updates; a schedule
            that you pass is called with the number of batches.
        pad_id: int or `None`, default `None`. The label to ignore; `None` takes the model's.

    Returns:
        dict with `optimizer`, `loss` and `metrics`.

    Raises:
        ValueError: there is no hidden size, or a value is out of range.

    Example:
    ```python
    model = kformer.Transformer.from_preset("tiny", vocabulary_size=1000)
    model.compile(**kformer.training.paper_recipe(model))
    ```

    References:
        Vaswani et al. 2017, "Attention is all you need", sections 5.3, 5.4 and 6.1.
    """
    check_whole("accumulation_steps", accumulation_steps)
    if learning_rate is None:
        hidden_dim = getattr(model_or_hidden_dim, "hidden_dim", model_or_hidden_dim)
        if isinstance(hidden_dim, keras.Model):
            raise ValueError(
                f"{hidden_dim!r} has no attribute hidden_dim: give the size, or a learning_rate."
            )
        options = {"warmup_steps": warmup_steps, "batches_per_update": accumulation_steps}
        learning_rate = WarmupInverseSqrt(hidden_dim, scale=scale, **options)
    elif not isinstance(learning_rate, keras.optimizers.schedules.LearningRateSchedule):
        learning_rate = check_number("learning_rate", learning_rate, above=0)
    options = {"beta_1": 0.9, "beta_2": 0.98, "epsilon": 1e-9}
    if clip_norm is not None:
        note = ", or None for no clipping"
        check_number("clip_norm", clip_norm, above=0, note=note)
        options["global_clipnorm"] = clip_norm
    if ema_momentum is not None:
        limits = {"above": 0, "below": 1, "note": ", or None for no average"}
        options["ema_momentum"] = check_number("ema_momentum", ema_momentum, **limits)
        options["use_ema"] = True
    if check_number("weight_decay", weight_decay, at_least=0, note=" (0 for none)"):
        options["weight_decay"] = float(weight_decay)
    if accumulation_steps > 1:
        options["gradient_accumulation_steps"] = accumulation_steps
    metrics = NegativeLogLikelihood, Perplexity, MaskedAccuracy
    return {
        "optimizer": keras.optimizers.Adam(learning_rate, **options),
        "loss": MaskedCrossentropy(label_smoothing, pad_id, consistency, teacher_weight),
        "metrics": [metric(pad_id=pad_id) for metric in metrics],
    }
