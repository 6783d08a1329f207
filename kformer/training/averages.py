"""Averages of weights: those that an optimizer keeps while it trains, and those of several checkpoints."""

import contextlib

import keras


@contextlib.contextmanager
def averaged_weights(model):
    """Within this context a model in training has the moving average of its weights in their place, if its optimizer keeps one.

    Args:
        model: a compiled model (`use_ema=True` in its optimizer, as `paper_recipe(ema_momentum=0.999)` has it).
    """
    swap_average(model)
    try:
        yield
    finally:
        swap_average(model)


def swap_average(model):
    """Exchanges weights and averages, where there are any."""
    optimizer = getattr(model.optimizer, "inner_optimizer", model.optimizer)
    if not optimizer.use_ema:
        return
    for variable, average in zip(model.trainable_variables, optimizer._model_variables_moving_average, strict=True):
        value = keras.ops.convert_to_numpy(variable).copy()
        variable.assign(average)
        average.assign(value)
