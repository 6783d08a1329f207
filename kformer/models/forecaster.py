"""The encoder-decoder Transformer over numbers, which forecasts series."""

import dataclasses
from dataclasses import dataclass
from typing import Any, NamedTuple

import keras
import numpy as np
from keras import ops

from kformer.layers.counter_hash import derive_seed
from kformer.layers.feature_embedding import FeatureEmbedding
from kformer.layers.inputs import part_arguments
from kformer.models.config import Architecture, ModelArguments, describes
from kformer.models.configured_model import ConfiguredModel
from kformer.models.sequence_model import checked_inputs
from kformer.models.stacks import DecoderStack, EncoderStack
from kformer.utils.checks import check_whole
from kformer.utils.signatures import takes
from kformer_options.field import option


@dataclass(frozen=True, kw_only=True)
class ForecasterConfig(Architecture):
    """The options of `kformer.Forecaster`."""

    # Positional arguments; type checkers see that in `dataclasses.field` alone.
    num_features: int = dataclasses.field(
        kw_only=False, metadata=option("F, numbers of each step of the past.", at_least=1).metadata
    )
    num_targets: int | None = dataclasses.field(
        default=None,
        kw_only=False,
        metadata=option(
            "G, the numbers to forecast for each step, which are the first G features of the "
            "past; `None` for F.",
            at_least=1,
        ).metadata,
    )
    num_encoder_layers: int = option("Layers of the encoder.", 2, at_least=1)
    num_decoder_layers: int = option("Layers of the decoder.", 2, at_least=1)

    def __post_init__(self):
        super().__post_init__()
        if self.num_targets is None:
            self._set("num_targets", self.num_features)
        if self.num_targets > self.num_features:
            raise ValueError(
                f"The past has {self.num_features} features, of which no {self.num_targets} can be "
                "the targets; lower num_targets."
            )


@dataclass(frozen=True, kw_only=True)
class ForecasterArguments(ForecasterConfig, ModelArguments):
    """The arguments of `kformer.Forecaster`."""


class _Forecast(NamedTuple):
    """The state of the loop over steps."""

    index: Any  # int32 scalar
    value: Any  # [B, 1, G], the latest values
    caches: Any
    forecast: Any  # [B, steps, G]


@describes(ForecasterConfig)
@keras.saving.register_keras_serializable(package="kformer")
class Forecaster(ConfiguredModel):
    """A Transformer that forecasts series of numbers, with linear maps instead of embeddings.

    A functional Keras model over `{"past": [B, S, F], "previous": [B, T, G]}` with the output
    `[B, T, G]`. The encoder reads the past. At each step the decoder reads the true values of the
    step before (teacher forcing) and predicts the next ones. `teacher_forcing` makes these inputs.
    With a trained model, `forecast` reads at each step what it predicted at the step before.

    Args:
        {options}
        dtype: str or Keras dtype policy, default the global policy. The policy of the layers.
        name: str, default "forecaster".
        trainable: bool, default True. Whether training changes the weights.

    Call arguments:
        inputs: dict of float tensors `past` `[B, S, F]` and `previous` `[B, T, G]`.
        training: bool, default `None`. Whether dropout is applied.

    Returns:
        float32 tensor `[B, T, G]`.

    Raises:
        ValueError: an option is unknown or has a bad value, or inputs have a wrong shape.

    Example:
    ```python
    sizes = {"hidden_dim": 64, "intermediate_dim": 128, "num_heads": 4}
    model = kformer.Forecaster(1, num_encoder_layers=2, num_decoder_layers=2, **sizes)
    model.compile("adam", "mean_squared_error")
    past, future = np.ones((32, 50, 1)), np.ones((32, 20, 1))
    model.fit(model.teacher_forcing(past, future), future, verbose=0)
    model.forecast(past, steps=20).shape  # (32, 20, 1)
    ```

    References:
        Vaswani et al. 2017, "Attention is all you need"; Wu et al. 2020, "Deep Transformer models
        for time series forecasting".
    """

    @takes(ForecasterArguments)
    def __init__(
        self,
        num_features,
        num_targets=None,
        *,
        dtype=None,
        name="forecaster",
        trainable=True,
        **options,
    ):
        config = ForecasterConfig.of(
            {"num_features": num_features, "num_targets": num_targets, **options}
        )
        policy = keras.dtype_policies.get(dtype)
        network = ForecastNetwork(config, policy)
        inputs = {
            "past": keras.Input((None, num_features), name="past"),
            "previous": keras.Input((None, config.num_targets), name="previous"),
        }
        outputs, _ = network.decode(inputs["previous"], network.encode(inputs["past"]))
        arguments = {"inputs": inputs, "outputs": outputs, "name": name, "trainable": trainable}
        super().__init__(config, network, policy, **arguments)
        self._compiled_forecast = None
        self.num_features, self.num_targets = config.num_features, config.num_targets

    def __call__(self, inputs, *args, **kwargs):
        return super().__call__(checked_inputs(self, inputs, "[B, T, F]"), *args, **kwargs)

    def teacher_forcing(self, past, future):
        """Makes the inputs for training.

        Args:
            past: float array `[B, S, F]`.
            future: float array `[B, T, G]`. The values to forecast.

        Returns:
            Dict of `past` and `previous`, `[B, T, G]`: the last step of the past, followed by the
            future without its last step.
        """
        past, future = np.asarray(past), np.asarray(future)
        last = past[:, -1:, : self.num_targets]
        previous = ops.convert_to_numpy(ops.concatenate([last, future[:, :-1]], axis=1))
        return {"past": past, "previous": previous}

    def forecast(self, past, steps):
        """Forecasts step by step; each step reads the forecast of the step before.

        Args:
            past: float array `[B, S, F]`.
            steps: int. T, the number of steps.

        Returns:
            float32 array `[B, T, G]`.

        Raises:
            ValueError: the past has a wrong shape or no steps, `steps` is not a whole number of at
                least 1, or there are more steps than learned positions.
        """
        # Needed for forecasts only.
        from kformer.utils.backend import compile_function

        past = ops.convert_to_numpy(past).astype("float32")
        self.check_steps(steps)
        if past.ndim != 3 or past.shape[2] != self.num_features:
            raise ValueError(
                f"The past must be [B, S, {self.num_features}], but {list(past.shape)} was given."
            )
        if past.shape[1] < 1:
            raise ValueError("A past of no steps was given; a forecast needs one at least.")
        self._check_positions(past.shape[1], "past")
        if self._compiled_forecast is None:
            run = compile_function(self.forecast_in_graph, self, static_argnames=("steps",))
            self._compiled_forecast = run
        return self._compiled_forecast(past, steps=steps)

    def check_steps(self, steps):
        """Checks a number of steps to forecast.

        Args:
            steps: int.

        Raises:
            ValueError: it is not a whole number of at least 1, or there are fewer learned
                positions.
        """
        check_whole("steps", steps)
        self._check_positions(steps, "future")

    def _check_positions(self, steps, name):
        if self.config.position_encoding == "learned" and steps > self.max_length:
            raise ValueError(
                f"A {name} of {steps} steps is longer than the {self.max_length} learned "
                "positions; build the model with a larger max_length."
            )

    def forecast_in_graph(self, past, steps):
        """The computation of `forecast`, which a SavedModel contains too.

        Args:
            past: float tensor `[B, S, F]`.
            steps: int or scalar tensor. T, the number of steps.

        Returns:
            float32 tensor `[B, T, G]`.
        """
        from kformer.utils.backend import uses_static_shapes, while_loop

        network, (rows, length) = self.network, ops.shape(past)[:2]
        # Compilation for any batch must know F.
        past = ops.reshape(past, (rows, length, self.num_features))
        encoded = network.encode(past, training=False)
        max_length = steps if uses_static_shapes() else None
        caches = network.decoder.init_caches(encoded, rows, max_length)
        forecast = ops.zeros((rows, steps, self.num_targets), dtype="float32")
        latest = past[:, -1:, : self.num_targets]
        state = _Forecast(ops.zeros((), dtype="int32"), latest, caches, forecast)

        def advance(state):
            value, caches = network.decode(
                state.value, None, training=False, caches=state.caches, start_index=state.index
            )
            value = ops.cast(value, "float32")
            # Not a slice update: not every backend takes a computed index for one within a loop.
            is_now = ops.equal(ops.arange(steps, dtype="int32"), state.index)
            forecast = ops.where(is_now[None, :, None], value, state.forecast)
            return _Forecast(state.index + 1, value, caches, forecast)

        return while_loop(lambda state: state.index < steps, advance, state).forecast

    def inspect(self, inputs):
        """Runs one forward pass and returns the hidden states and attention of every layer.

        The model does not change.

        Args:
            inputs: dict of float tensors or arrays, as for a call.

        Returns:
            Dict with `outputs` `[B, T, G]` and the lists that `kformer.Transformer.inspect`
            returns.
        """
        record = {}
        past, previous = (
            ops.convert_to_tensor(inputs[name], dtype="float32") for name in ("past", "previous")
        )
        encoded = self.network.encode(past, training=False, record=record)
        outputs, _ = self.network.decode(previous, encoded, training=False, record=record)
        return {"outputs": outputs, **record}


class ForecastNetwork:
    """The layers of a `Forecaster`, in a plain object like `kformer.models.network.Network`.

    Args:
        config: `ForecasterConfig`.
        policy: Keras dtype policy. The policy of the layers.
    """

    def __init__(self, config, policy):
        options = {"hidden_dim": config.hidden_dim, **config.embedding_options}
        self.past_embedding, self.future_embedding = (
            FeatureEmbedding(**options, **part_arguments(name, config.seed, policy))
            for name in ("past_embedding", "future_embedding")
        )
        self.encoder = EncoderStack(config, config.num_encoder_layers, policy)
        self.decoder = DecoderStack(config, config.num_decoder_layers, policy)
        # In float32, also if the layers compute in another dtype: errors add up over the steps.
        initializer = keras.initializers.GlorotUniform(seed=derive_seed(config.seed, "output"))
        self.output = keras.layers.Dense(
            config.num_targets, kernel_initializer=initializer, dtype="float32", name="output"
        )

    def encode(self, past, training=None, record=None):
        """Encodes the past.

        Args:
            past: float tensor `[B, S, F]`.
            training: bool, default `None`.
            record: dict, default `None`. Collects hidden states and attention scores.

        Returns:
            Float tensor `[B, S, D]`.
        """
        x = self.past_embedding(past, training=training)
        return self.encoder(x, {}, training=training, record=record)

    def decode(self, previous, encoded, training=None, record=None, caches=None, start_index=0):
        """Computes the next values.

        Args:
            previous: float tensor `[B, T, G]`. The values one step before.
            encoded: float tensor `[B, S, D]`; `None` if the caches have its keys and values.
            training: bool, default `None`.
            record: dict, default `None`. Collects hidden states and attention scores.
            caches: tuple with a cache per layer, default `None`.
            start_index: int or scalar tensor, default 0. The number of steps in the caches.

        Returns:
            float32 tensor `[B, T, G]`, and a tuple of the new caches; `None` if none were given.
        """
        x = self.future_embedding(previous, start_index=start_index, training=training)
        x, caches = self.decoder(x, encoded, {}, training=training, record=record, caches=caches)
        return self.output(x), caches
