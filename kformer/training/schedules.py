"""The learning rate schedule of "Attention is all you need"."""

import keras
from keras import ops

from kformer.utils.checks import check_number, check_whole


@keras.saving.register_keras_serializable(package="kformer")
class WarmupInverseSqrt(keras.optimizers.schedules.LearningRateSchedule):
    """Linear warm-up, then decay with the inverse square root of the step.

    The n-th update (n = 1, 2, ...) has the rate `scale * hidden_dim**-0.5 * min(n**-0.5, n *
    warmup_steps**-1.5)`. Its peak, `scale * (hidden_dim * warmup_steps)**-0.5`, is at update number
    `warmup_steps`. Keras counts from 0 the updates already made, so `schedule(0)` is the rate of
    the first update.

    With a cooldown, the rates of the last updates are also multiplied by a factor that falls
    linearly from 1 to (nearly) 0.

    Args:
        hidden_dim: int of at least 1. The hidden size D of the model.
        warmup_steps: int of at least 1, default 4000.
        scale: float above 0, default 1.0. A factor on the whole schedule; the paper's is 1.
        total_steps: int or `None`, default `None`. The number of updates of the whole training,
            which a cooldown needs.
        cooldown_steps: int, default 0. The number of updates at the end in which the rate falls to
            0; 0 for no cooldown.
        batches_per_update: int of at least 1, default 1. The optimizer's
            `gradient_accumulation_steps`: Keras then calls the schedule with the number of batches.

    Call arguments:
        step: int or tensor of any shape. The number of updates made so far, or of batches with
            `batches_per_update`.

    Returns:
        float32 tensor of the step's shape.

    Raises:
        ValueError: a value is out of range, or a cooldown does not fit the training.

    Example:
    ```python
    schedule = kformer.WarmupInverseSqrt(hidden_dim=512, warmup_steps=4000)
    float(schedule(3999))  # 0.000699, the peak
    optimizer = keras.optimizers.Adam(schedule, beta_2=0.98, epsilon=1e-9)
    ```

    References:
        Vaswani et al. 2017, "Attention is all you need", section 5.3, equation 3.
        Zhai et al. 2022, "Scaling vision transformers", section 3.5 (the cooldown after the
        inverse square root).
    """

    def __init__(
        self,
        hidden_dim,
        warmup_steps=4000,
        scale=1.0,
        total_steps=None,
        cooldown_steps=0,
        batches_per_update=1,
    ):
        self.hidden_dim = check_whole("hidden_dim", _whole(hidden_dim))
        self.warmup_steps = check_whole("warmup_steps", _whole(warmup_steps))
        self.batches_per_update = check_whole("batches_per_update", _whole(batches_per_update))
        self.scale = check_number("scale", scale, above=0)
        if cooldown_steps and (total_steps is None or not 0 < cooldown_steps <= total_steps):
            raise ValueError(
                f"A cooldown of {cooldown_steps} steps needs a training at least that long, but "
                f"total_steps is {total_steps}."
            )
        self.total_steps = None if total_steps is None else int(total_steps)
        self.cooldown_steps = int(cooldown_steps)

    def __call__(self, step):
        number = ops.cast(step, "float32") + 1.0
        if self.batches_per_update > 1:
            number = ops.ceil(number / self.batches_per_update)
        rate = ops.minimum(ops.rsqrt(number), number * self.warmup_steps**-1.5)
        if self.cooldown_steps:
            factor = (self.total_steps + 1.0 - number) / (self.cooldown_steps + 1.0)
            rate = rate * ops.clip(factor, 0.0, 1.0)
        return self.scale * self.hidden_dim**-0.5 * rate

    def get_config(self):
        names = "hidden_dim warmup_steps scale total_steps cooldown_steps batches_per_update"
        return {name: getattr(self, name) for name in names.split()}


def _whole(value):
    """Returns 4000 for 4000.0, and any other value as it is."""
    return int(value) if isinstance(value, float) and value.is_integer() else value
