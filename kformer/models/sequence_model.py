"""The base class of models that are trained on sequences of tokens."""

import warnings

import keras
import numpy as np
from keras import ops

from kformer.layers.inputs import check_rank, of_list
from kformer.layers.products import training_products
from kformer.models.config import check_packing
from kformer.models.guided_alignment import alignment_loss, recording_attention
from kformer.models.loss_without_logits import ProjectedLoss, ProjectingModel
from kformer.models.several_devices import check_devices
from kformer.utils.backend import num_replicas


class SequenceModel(ProjectingModel):
    """Base class of the models that read tokens: compiling, training steps and copies.

    A subclass sets `pad_id`. `kformer.models.loss_without_logits` explains how steps avoid logits.
    """

    # The label that losses and metrics without a `pad_id` ignore, like negative labels; `None` for
    # the model's `pad_id`.
    _ignored_label = None
    # Rank and alpha of the adapters; `enable_lora` sets them.
    lora = None
    # A metric or None. A callback may set it, to receive the loss of each batch.
    loss_observer = None

    def compile(
        self,
        optimizer="rmsprop",
        loss=None,
        loss_weights=None,
        metrics=None,
        weighted_metrics=None,
        run_eagerly=False,
        steps_per_execution=1,
        jit_compile="auto",
        **kwargs,
    ):
        """Compiles the model; losses and metrics whose `pad_id` is `None` take the model's.

        The model uses copies of them. The given objects do not change, so one loss or metric may
        serve several models.

        Args:
            optimizer: Keras optimizer or str, default "rmsprop".
            loss: Keras loss or `None`, default `None`.
            loss_weights: as in `keras.Model.compile`, default `None`.
            metrics: list of Keras metrics or `None`, default `None`.
            weighted_metrics: list of Keras metrics or `None`, default `None`.
            run_eagerly: bool, default False. As in `keras.Model.compile`.
            steps_per_execution: int, default 1. As in `keras.Model.compile`.
            jit_compile: bool or "auto", default "auto". "auto" compiles on JAX only. TensorFlow
                then runs a graph and PyTorch runs eagerly, since a compiler would compile again for
                every shape of batch.
            **kwargs: further arguments of `keras.Model.compile`.
        """
        (single,) = loss if isinstance(loss, list | tuple) and len(loss) == 1 else (loss,)
        loss = single if getattr(single, "consistency", 0) > 0 else loss
        if loss_weights is not None and getattr(loss, "consistency", 0) > 0:
            raise ValueError(
                "A loss with consistency (R-Drop) takes no loss_weights: leave them out, and scale "
                "the learning rate."
            )
        self._weighs_losses = loss_weights is not None
        parts = [loss, metrics, weighted_metrics]
        label = self.pad_id if self._ignored_label is None else self._ignored_label
        loss, metrics, weighted_metrics = _with_pad_id(parts, label)
        end_id = getattr(self.config, "end_id", None)
        # Keras's losses call their `pad_id` `ignore_class`.
        ignored = {
            getattr(each, "pad_id", getattr(each, "ignore_class", None))
            for each in keras.tree.flatten(loss)
        }
        if end_id is not None and ignored == {end_id}:
            warnings.warn(
                f"The loss ignores the label {end_id}, which is the model's end_id, so the model "
                "does not learn to end: give the end token an id of its own.",
                stacklevel=2,
            )
        self._chooses_jit = jit_compile == "auto"
        if self._chooses_jit:
            jit_compile = keras.backend.backend() == "jax"
        super().compile(
            optimizer,
            loss,
            loss_weights=loss_weights,
            metrics=metrics,
            weighted_metrics=weighted_metrics,
            run_eagerly=run_eagerly,
            steps_per_execution=steps_per_execution,
            jit_compile=jit_compile,
            **kwargs,
        )

    def get_compile_config(self):
        """Returns the arguments of `compile` for saving.

        "auto" is saved as "auto", since its meaning depends on the backend.
        """
        config = super().get_compile_config()
        if config and self._chooses_jit:
            config["jit_compile"] = "auto"
        return config

    def __setattr__(self, name, value):
        if name == "_jax_state":
            # Keras sets it in each step of JAX, and would look for layers among its arrays, which
            # takes a millisecond or more.
            object.__setattr__(self, name, value)
        else:
            super().__setattr__(name, value)

    def __call__(self, inputs, *args, **kwargs):
        return super().__call__(checked_inputs(self, inputs, "[B, T]"), *args, **kwargs)

    def fit(self, x=None, *args, **kwargs):
        """Trains the model, as `keras.Model.fit` does.

        A `ParallelDataset` is read in its own order, which is already shuffled and can be resumed.

        Args:
            x: `kformer.data.ParallelDataset`, or data as for `keras.Model.fit`, default `None`.
            *args, **kwargs: further arguments of `keras.Model.fit`.

        Returns:
            `keras.callbacks.History`.

        Raises:
            ValueError: packed data with a model that cannot read it, or with sequences longer than
                the model's learned positions; data or an optimizer that the devices of a
                `kformer.training.distribution` cannot share; `class_weight` for a model with a
                label for each token; or labels in arrays that the model's outputs do not have.
        """
        if kwargs.get("class_weight") is not None and len(self.output_shape) == 3:
            raise ValueError(
                "class_weight is for one label a row, and this model has one for each token: give "
                "weights of tokens by sample_weight."
            )
        data = getattr(x, "dataset", x)
        if getattr(data, "packed", False):
            check_packing(self.config.to_dict())
            # The rows' own lengths cannot be checked: packed rows are longer than their sequences.
            if self.config.position_encoding == "learned" and data.longest > self.max_length:
                raise ValueError(
                    f"The data has a sequence of {data.longest} tokens, longer than the model's "
                    f"{self.max_length} learned positions: prepare it with that max_length."
                )
        validation = kwargs.get("validation_data")
        self._check_labels(args[0] if args else kwargs.get("y"))
        self._check_labels(validation[1] if isinstance(validation, tuple | list) else None)
        check_devices(self, [x, validation])
        if keras.backend.backend() == "tensorflow" and self.built and not self._distribute_strategy:
            optimizer = getattr(self, "optimizer", None)
            if not getattr(optimizer, "built", True):
                # Otherwise Keras would make the optimizer's variables in the first step, and
                # TensorFlow would trace that step twice.
                optimizer.build(self.trainable_variables)
        return super().fit(x, *args, **kwargs)

    def _check_labels(self, labels):
        """Refuses labels that the outputs do not have; the loss of a compiled step would be NaN."""
        if labels is None or not isinstance(getattr(self, "loss", None), ProjectedLoss):
            return
        largest, size = int(np.max(ops.convert_to_numpy(labels), initial=0)), self.output_shape[-1]
        if largest >= size:
            raise ValueError(
                f"A label is {largest}, but the model predicts {size} tokens or classes: give "
                f"labels from 0 to {size - 1}, and -1 where nothing is to be predicted."
            )

    def train_step(self, *args, **kwargs):
        *state, data = args
        if self._runs_twice:  # [B, ...] -> [2 B, ...]
            data = keras.tree.map_structure(
                lambda rows: None if rows is None else ops.concatenate([rows, rows]), data
            )
        with self.without_logits(data), training_products(), recording_attention():
            return super().train_step(*state, data, **kwargs)

    def test_step(self, *args, **kwargs):
        with self.without_logits(args[-1]):
            return super().test_step(*args, **kwargs)

    @property
    def _runs_twice(self):
        """bool. Whether a training step runs its batch twice with different dropout (R-Drop)."""
        return getattr(self.loss, "consistency", 0) > 0

    def compute_loss(self, x=None, y=None, y_pred=None, sample_weight=None, training=True):
        soft_targets = None
        if training and isinstance(x, dict) and "soft_target_ids" in x:
            soft_targets = x["soft_target_ids"], x["soft_targets"]
        if soft_targets is not None and (
            self._weighs_losses or not hasattr(self.loss, "in_training")
        ):
            raise ValueError(
                "A batch with soft targets needs kformer.training.MaskedCrossentropy as the "
                "model's loss, without loss_weights."
            )
        loss = None
        if self.skips_logits:
            loss = self.projected_loss(y, y_pred, training, soft_targets)
        elif soft_targets is not None or training and self._runs_twice:
            loss = self.loss.in_training(y, y_pred, sample_weight, soft_targets)
        # Keras adds the losses of regularizers itself.
        layer_losses = [] if loss is None else self.losses
        if loss is None:
            loss = super().compute_loss(x, y, y_pred, sample_weight, training)
        for layer_loss in layer_losses:
            loss = loss + ops.cast(self._aggregate_additional_loss(layer_loss), "float32")
        if training and isinstance(x, dict) and "alignment" in x:
            loss = loss + alignment_loss(self.loss, x["alignment"])
        if self.loss_observer is not None:
            # A replica's loss is its share of the sum; the observer takes the mean over replicas.
            self.loss_observer.update_state(loss * num_replicas())
        return loss

    def with_dropout(self, *, seed=None, **rates):
        """Copies the model with other dropout rates, for further training on more or less text.

        Args:
            seed: int or `None`, default `None`. The seed of the dropout; `None` keeps the model's.
            **rates: float each. `dropout`, `attention_dropout`, `activation_dropout` or
                `stochastic_depth`. Other rates stay as they are.

        Returns:
            A model of the same class with the same weights, not compiled.

        Raises:
            TypeError: the model has no such rate.

        Example:
        ```python
        model = kformer.Transformer(1000, dropout=0.1).with_dropout(dropout=0.3)
        ```
        """
        if unknown := ", ".join(sorted(rates.keys() - self.config.rates)):
            raise TypeError(f"{type(self).__name__} has no rate {unknown} to change.")
        return self.copy_with(rates if seed is None else {**rates, "seed": seed})

    def with_precision(self, dtype):
        """Copies the model with another precision, such as for training on a GPU.

        Args:
            dtype: Keras dtype policy or its name, such as "mixed_bfloat16". Weights are rounded if
                the policy stores them in fewer bits.

        Returns:
            A model of the same class with the same weights, not compiled.

        Example:
        ```python
        model = kformer.Transformer(1000).with_precision("mixed_bfloat16")
        ```
        """
        return self.copy_with({"dtype": dtype})

    def copy_with(self, changes, edit=None):
        """Copies the model with changes to its configuration.

        Args:
            changes: dict. The entries of `get_config` that change.
            edit: function of a weight's path and value that returns its new value, default `None`
                for changes that leave the weights as they are.

        Returns:
            A model of the same class with these weights, not compiled.

        Raises:
            ValueError: a weight of the copy has no counterpart, such as that of a subclass's layer
                without a name.
        """
        copy = type(self).from_config({**self.get_config(), **changes})
        weights = {weight.path: weight for weight in self.weights}
        for weight in copy.weights:
            if weight.path in weights:
                # A copy: on JAX a training deletes the arrays that it begins with.
                value = ops.copy(weights[weight.path])
                weight.assign(value if edit is None else edit(weight.path, value))
            # A dropout layer has a counter only if its rate is above 0.
            elif not keras.backend.is_int_dtype(weight.dtype):
                raise ValueError(
                    f"The model has no weight {weight.path}, which its copy has: a layer without a "
                    "name is called otherwise in each model, so name the layers of a subclass."
                )
        return copy


def checked_inputs(model, inputs, axes):
    """Checks the shapes of a model's inputs.

    Args:
        model: Keras model.
        inputs: dict of arrays, tensors or nested lists, or other inputs, which are not checked.
        axes: str. The expected axes, such as `"[B, T]"`.

    Returns:
        The inputs, with tensors instead of nested lists.

    Raises:
        ValueError: an input has another rank, or the inputs have different numbers of rows.
    """
    if not isinstance(inputs, dict):
        return of_list(inputs)
    inputs = {name: of_list(value) for name, value in inputs.items()}
    read_inputs = {name: inputs[name] for name in model.input if name in inputs}
    for name, value in read_inputs.items():
        check_rank(f"The input {name!r} of '{model.name}'", value, axes)
    rows = {name: value.shape[0] for name, value in read_inputs.items() if hasattr(value, "shape")}
    if len({count for count in rows.values() if isinstance(count, int)}) > 1:
        counts = ", ".join(f"{count} ({name})" for name, count in rows.items())
        raise ValueError(
            f"The inputs of '{model.name}' need one number of rows, but have {counts}."
        )
    return inputs


def _has_own_arguments(metric):
    """Returns whether a metric's class takes arguments that its `get_config` lacks."""
    for base in type(metric).__mro__:
        if "get_config" in vars(base) or base.__module__.startswith("kformer."):
            return False
        if "__init__" in vars(base):
            return True
    return False


def _with_pad_id(structure, pad_id):
    """Returns nested losses and metrics, with copies that have `pad_id` for those that have `None`.

    A metric's copy has variables of its own, so that models do not add to each other's sums.
    """
    copies = {}

    def fill_pad_id(instance):
        if getattr(instance, "pad_id", 0) is not None:
            return instance
        if (copy := copies.get(id(instance))) is None:
            if not isinstance(instance, keras.metrics.Metric):
                # `copy.copy` would save and load the object, since Keras overrides it.
                copy = object.__new__(type(instance))
                copy.__dict__.update(instance.__dict__)
            elif _has_own_arguments(instance):
                copy = instance
            else:
                copy = type(instance).from_config(instance.get_config())
            copy.pad_id, copies[id(instance)] = pad_id, copy
        return copy

    return keras.tree.map_structure(fill_pad_id, structure)
