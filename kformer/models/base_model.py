"""The base class of this package's models: one precision, and datasets read in their own order."""

import inspect

import keras

from kformer.utils.dataset_views import evaluated, trained_on


class BaseModel(keras.Model):
    """A Keras model whose own dtype policy is that of its layers.

    A functional Keras model takes the global policy. A subclass sets `dtype_policy` to the policy
    of its layers, by which Keras decides in `compile` about the scaling of the loss.
    """

    @property
    def policy_name(self):
        """Str: the name of the model's dtype policy."""
        return self.dtype_policy.name

    def fit(self, x=None, *args, **kwargs):
        """Trains the model, as `keras.Model.fit` does.

        A `kformer.data.ParallelDataset` is read in its own order, from its `epoch` on, which
        advances at the end of each epoch. As `validation_data` it is read in the order of epoch 0.

        Args:
            x: `kformer.data.ParallelDataset`, or data as for `keras.Model.fit`, default `None`.
            *args, **kwargs: further arguments of `keras.Model.fit`.

        Returns:
            `keras.callbacks.History`.

        Raises:
            ValueError: `keras.callbacks.SwapEMAWeights` comes with a callback of kformer that
                validates the moving average of the weights.
        """
        fit = super().fit
        return fit(**trained_on(inspect.signature(fit).bind(x, *args, **kwargs).arguments))

    def evaluate(self, x=None, *args, **kwargs):
        """Evaluates the model, as `keras.Model.evaluate` does; a `ParallelDataset` in epoch 0."""
        return super().evaluate(evaluated(x), *args, **kwargs)

    def predict(self, x, *args, **kwargs):
        """Predicts outputs, as `keras.Model.predict` does; a `ParallelDataset`'s in epoch 0."""
        return super().predict(evaluated(x), *args, **kwargs)

    def get_compile_config(self):
        """Returns the arguments of `compile` for saving.

        Whether the loss is scaled is part of them: it decides which variables the optimizer has.
        """
        config = super().get_compile_config()
        if config and self.policy_name == "mixed_float16":
            scaled = keras.optimizers.LossScaleOptimizer
            config["auto_scale_loss"] = isinstance(self.optimizer, scaled)
        return config

    def compile_from_config(self, config):
        """Compiles a model that is being loaded; Keras itself skips models that override `compile`.

        Args:
            config: dict, from `get_compile_config`.
        """
        self.compile(**keras.saving.deserialize_keras_object(_with_public_optimizers(config)))
        self.optimizer.build(self.trainable_variables)

    def quantize(self, mode=None, config=None, filters=None, **kwargs):
        """Raises a `ValueError`: these models are not quantized in place.

        Args:
            mode, config, filters, **kwargs: as in `keras.Model.quantize`.

        Raises:
            ValueError: always. It names what computes in int8.
        """
        raise ValueError(
            f"A {type(self).__name__} cannot be quantized in place: its numbers would be wrong, "
            "and its file could not be loaded. A Transformer translates in int8 by "
            "kformer.Translator(model, tokenizer, dtype='int8'), and in exports with dtype='int8'."
        )


def _with_public_optimizers(config):
    """A compile configuration whose optimizers are those that `keras.optimizers` has.

    On PyTorch, Keras saves an optimizer under the name of a class that works on PyTorch alone.
    """
    if isinstance(config, list):
        return [_with_public_optimizers(value) for value in config]
    if not isinstance(config, dict):
        return config
    config = {name: _with_public_optimizers(value) for name, value in config.items()}
    if str(config.get("module")).startswith("keras.src.backend.torch.optimizers."):
        config.update(module="keras.optimizers", registered_name=None)
    return config
