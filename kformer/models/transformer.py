"""The encoder-decoder Transformer."""

import contextlib
import contextvars

import keras
from keras import ops

from kformer.layers.counter_hash import drawn_seed
from kformer.layers.products import training_products
from kformer.models.network import DecoderCache, Network
from kformer.models.presets import PRESETS

# The model whose training step needs no logits, in the thread that runs the step: a strategy with several devices has a thread each.
_PROJECTING = contextvars.ContextVar("projecting", default=None)


@keras.saving.register_keras_serializable(package="kformer")
class Transformer(keras.Model):
    """The Transformer of "Attention is all you need": ids of a source and of the target so far in, logits out.

    A functional Keras model over `{"source_ids": [B, S], "target_ids": [B, T]}` with the output `[B, T, V]`. The target
    ids start with the start token and lack the end token (`kformer.data` shifts them). Padding is told by `pad_id`:
    in the source it is masked; in the target the causal mask hides it from what stands before, and the loss leaves it out.

    Rows may hold several pairs behind each other, as `kformer.data.ParallelDataset(packed=True)` makes them. Then the inputs
    also have `source_segments` and `target_segments`: attention stays inside a pair, positions begin anew with each, and the
    logits of a pair are those that it has in a row of its own. Nothing of this is kept in the model.

    Training, scoring and cached decoding run the same layers: `model(inputs)` is one pass of `encode` and of the decoder
    over all target positions; `decode_step` is that decoder over the positions that are new.

    Args:
        vocabulary_size: V of the source, and of the target unless `target_vocabulary_size` is given.
        num_encoder_layers, num_decoder_layers: layers of the two stacks.
        hidden_dim: D, the width of the residual stream.
        intermediate_dim: width of the feed-forward networks.
        num_heads: attention heads; they must divide `hidden_dim`.
        dropout: rate on sub-layer outputs and on the embedding sum (the paper's places).
        attention_dropout: rate on attention probabilities.
        activation_dropout: rate inside the feed-forward networks.
        activation: `"relu"`, `"gelu"` or `"silu"`.
        normalize_first: pre-norm, with a final norm after each stack; `False` is the paper's post-norm.
        layer_norm_epsilon: added to the variance in every layer norm.
        position_encoding: `"sinusoidal"`, `"learned"` or `None`; `"sinusoidal_halves"` and `"sinusoidal_fairseq"` are the
            fixed vectors as published Marian and fairseq models have them.
        max_length: the longest sequence in tokens that searches and training data should use; with learned positions
            also the size of their table.
        target_vocabulary_size: V of the target if it differs from the source's; then nothing is shared between the sides. (Two
            vocabularies of one size need `share_embeddings=False`.)
        share_embeddings: source and target use one embedding table (joint vocabulary).
        share_output: the output projection uses the target's embedding table.
        scale_embeddings: token vectors are multiplied by sqrt(D), as in the paper.
        position_offset: the position of a sequence's first token; fairseq's models count from 2.
        normalize_embeddings: as in BART, each side has positions of its own and a layer norm behind them.
        output_bias: logits have a bias, as Marian's.
        pad_id, start_id, end_id: ids of the padding, start and end token.
        seed: int, for the initial weights and the dropout; each layer derives its own from it. `None` draws one.

    Call arguments:
        inputs: dict of integer tensors `source_ids` `[B, S]` and `target_ids` `[B, T]`; for packed rows also
            `source_segments` `[B, S]` and `target_segments` `[B, T]`, the pair that each token belongs to (0 for padding).
        training: bool.

    Returns:
        Logits `[B, T, V]`; position t is the prediction of what follows `target_ids[:, t]`.

    Example:
        >>> model = kformer.Transformer.from_preset("tiny", vocabulary_size=8000)
        >>> model({"source_ids": source_ids, "target_ids": target_ids}).shape
        (64, 20, 8000)

    References:
        Vaswani et al. 2017, "Attention is all you need".
    """

    def __init__(
        self,
        vocabulary_size,
        *,
        num_encoder_layers=6,
        num_decoder_layers=6,
        hidden_dim=512,
        intermediate_dim=2048,
        num_heads=8,
        dropout=0.1,
        attention_dropout=0.0,
        activation_dropout=0.0,
        activation="relu",
        normalize_first=False,
        layer_norm_epsilon=1e-5,
        position_encoding="sinusoidal",
        max_length=256,
        target_vocabulary_size=None,
        share_embeddings=True,
        share_output=True,
        scale_embeddings=True,
        position_offset=0,
        normalize_embeddings=False,
        output_bias=False,
        pad_id=0,
        start_id=2,
        end_id=3,
        seed=0,
        dtype=None,
        name="transformer",
        **kwargs,
    ):
        for label, value in (
            ("vocabulary_size", vocabulary_size),
            ("target_vocabulary_size", vocabulary_size if target_vocabulary_size is None else target_vocabulary_size),
            ("hidden_dim", hidden_dim),
            ("intermediate_dim", intermediate_dim),
            ("num_heads", num_heads),
            ("num_encoder_layers", num_encoder_layers),
            ("num_decoder_layers", num_decoder_layers),
            ("max_length", max_length),
        ):
            if not isinstance(value, int) or value < 1:
                raise ValueError(f"{label} must be a positive whole number, but {value!r} was given.")
        if hidden_dim % num_heads:
            raise ValueError(f"num_heads must divide hidden_dim, but {hidden_dim} / {num_heads} is not whole.")
        if target_vocabulary_size in (None, vocabulary_size):
            target_vocabulary_size = None
        else:
            share_embeddings = False
        seed = drawn_seed(seed)
        policy = keras.dtype_policies.get(keras.config.dtype_policy() if dtype is None else dtype)
        config = {
            "num_encoder_layers": num_encoder_layers,
            "num_decoder_layers": num_decoder_layers,
            "hidden_dim": hidden_dim,
            "intermediate_dim": intermediate_dim,
            "num_heads": num_heads,
            "dropout": dropout,
            "attention_dropout": attention_dropout,
            "activation_dropout": activation_dropout,
            "activation": activation,
            "normalize_first": normalize_first,
            "layer_norm_epsilon": layer_norm_epsilon,
            "position_encoding": position_encoding,
            "max_length": max_length,
            "target_vocabulary_size": target_vocabulary_size,
            "share_embeddings": share_embeddings,
            "share_output": share_output,
            "scale_embeddings": scale_embeddings,
            "position_offset": position_offset,
            "normalize_embeddings": normalize_embeddings,
            "output_bias": output_bias,
            "pad_id": pad_id,
            "seed": seed,
        }
        network = Network(vocabulary_size, policy=policy, **config)
        source_ids = keras.Input((None,), dtype="int32", name="source_ids")
        target_ids = keras.Input((None,), dtype="int32", name="target_ids")
        encoded, source_mask = network.encode(source_ids)
        logits = network.decode(target_ids, encoded, source_mask)
        super().__init__(
            inputs={"source_ids": source_ids, "target_ids": target_ids}, outputs=logits, name=name, **kwargs
        )
        self.pad_id, self.start_id, self.end_id = pad_id, start_id, end_id
        self.hidden_dim = hidden_dim
        self.vocabulary_size = vocabulary_size
        self.target_vocabulary_size = target_vocabulary_size or vocabulary_size
        self.max_length = max_length
        self.policy_name = policy.name
        # A metric that training may set to see each batch's own loss, which the progress bar's running mean hides.
        self.loss_observer = None
        self._network = network
        self._config = {"vocabulary_size": vocabulary_size, **config, "start_id": start_id, "end_id": end_id}

    @classmethod
    def from_preset(cls, preset, vocabulary_size, **kwargs):
        """A model of a published size.

        Args:
            preset: `"tiny"`, `"small"`, `"base"` or `"big"`; `kformer.models.PRESETS` has their sizes and sources.
            vocabulary_size: V.
            **kwargs: any other argument of `Transformer`; it overrides the preset's.
        """
        if preset not in PRESETS:
            raise ValueError(f"Unknown preset {preset!r}: choose one of {', '.join(PRESETS)}.")
        return cls(vocabulary_size, **{**PRESETS[preset].config, **kwargs})

    # Search.

    def encode(self, source_ids):
        """Encodes source sentences.

        Args:
            source_ids: integer tensor `[B, S]`, padded with `pad_id`.

        Returns:
            The encoder's output `[B, S, D]` and the mask of real tokens, boolean `[B, S]`.
        """
        return self._network.encode(source_ids, training=False)

    def init_cache(self, encoded, source_mask, rows=None, max_length=None, shortlist=None):
        """The cache of a search that has not begun: no target tokens, the source's keys and values computed.

        Args:
            encoded, source_mask: what `encode` returned.
            rows: rows of the decoder's batch, a multiple of B (beams of one sentence next to each other); `None` for B.
            max_length: number of tokens that a static cache has room for, which JAX and XLA need; `None` for a growing one.
            shortlist: int array `[C]`, ids of the target vocabulary: the logits of a step are those of these tokens alone, in this
                order. `None` for all.

        Returns:
            `DecoderCache`.
        """
        layers = (layer.init_cache(encoded, rows=rows, max_length=max_length) for layer in self._network.decoder_layers)
        network = self._network
        return DecoderCache(tuple(layers), source_mask, network.output_kernel(shortlist), network.output_bias_of(shortlist))

    def decode_step(self, target_ids, cache, index):
        """Runs the decoder over new target tokens.

        Args:
            target_ids: integer tensor `[R, T]`, the T tokens (usually one) that follow those in the cache.
            cache: `DecoderCache` from `init_cache` or an earlier step.
            index: int or scalar tensor, the number of tokens in the cache.

        Returns:
            Logits `[R, T, V]` and the cache with the new tokens.
        """
        return self._network.decode(target_ids, None, cache.source_mask, training=False, cache=cache, start_index=index)

    def inspect(self, inputs):
        """One forward pass that also returns what every layer saw; the model stays as it is.

        Args:
            inputs: as for a call, integer tensors or arrays.

        Returns:
            Dict with `logits` `[B, T, V]` and lists with an entry per layer: `encoder_hidden_states` `[B, S, D]` and
            `decoder_hidden_states` `[B, T, D]` (one more entry each: the embeddings come first),
            `encoder_attention_scores` `[B, N, S, S]`, `decoder_attention_scores` `[B, N, T, T]`,
            `cross_attention_scores` `[B, N, T, S]`.
        """
        record = {}
        source_ids, target_ids = (ops.convert_to_tensor(inputs[key], dtype="int32") for key in ("source_ids", "target_ids"))
        source_segments, segments = _segments(inputs)
        encoded, source_mask = self._network.encode(source_ids, training=False, record=record, segments=source_segments)
        logits = self._network.decode(target_ids, encoded, source_mask, training=False, record=record, segments=segments)
        return {"logits": logits, **record}

    # Training.

    def compile(self, optimizer="rmsprop", loss=None, *args, jit_compile="auto", **kwargs):
        """`keras.Model.compile`, with the model's padding id told to losses and metrics that were given none.

        `jit_compile="auto"` compiles on JAX, and runs a graph (TensorFlow) or eagerly (PyTorch) elsewhere: there XLA would
        compile anew for every shape of batch.
        """
        for part in [*_flatten(loss), *_flatten(kwargs.get("metrics")), *_flatten(kwargs.get("weighted_metrics"))]:
            if getattr(part, "pad_id", 0) is None:
                part.pad_id = self.pad_id
        self._chooses_jit = jit_compile == "auto"
        if self._chooses_jit:
            jit_compile = keras.backend.backend() == "jax"
        super().compile(optimizer, loss, *args, jit_compile=jit_compile, **kwargs)

    def get_compile_config(self):
        """As Keras's, but the choice of `jit_compile="auto"` is not saved: it is another one on another backend."""
        config = super().get_compile_config()
        if config and self._chooses_jit:
            config["jit_compile"] = "auto"
        return config

    def compile_from_config(self, config):
        """Compiles a model that is being loaded: Keras does so by itself only where `compile` is its own."""
        self.compile(**keras.saving.deserialize_keras_object(config))
        self.optimizer.build(self.trainable_variables)

    def fit(self, x=None, *args, **kwargs):
        """`keras.Model.fit`. A `ParallelDataset` is read in its own order, which is shuffled already and can be resumed."""
        if getattr(x, "is_ordered", False):
            kwargs["shuffle"] = False
        data = getattr(x, "dataset", x)
        # Rows of packed pairs say nothing of the longest position.
        if getattr(data, "packed", False) and self._config["position_encoding"] == "learned" and data.longest > self.max_length:
            raise ValueError(
                f"The data has a sequence of {data.longest} tokens, longer than the model's {self.max_length} learned positions: "
                f"prepare it with max_length={self.max_length}."
            )
        if keras.backend.backend() == "tensorflow" and self.built and not self._distribute_strategy:
            optimizer = getattr(self, "optimizer", None)
            if not getattr(optimizer, "built", True):
                # Else Keras makes its variables in the midst of the first step, which TensorFlow then traces a second time.
                optimizer.build(self.trainable_variables)
        return super().fit(x, *args, **kwargs)

    # A training step with this package's loss and metrics needs no logits: loss and projection are computed in one, which
    # takes less time and far less memory. `call` then returns what would be projected.

    def train_step(self, *args, **kwargs):
        *state, data = args
        if self._runs_twice:
            data = _twice(data)
        with self._projecting_loss(data), training_products():
            return super().train_step(*state, data, **kwargs)

    def test_step(self, *args, **kwargs):
        with self._projecting_loss(args[-1]):
            return super().test_step(*args, **kwargs)

    @contextlib.contextmanager
    def _projecting_loss(self, data):
        token = _PROJECTING.set(self if self._can_project_loss(data) else None)
        try:
            yield
        finally:
            _PROJECTING.reset(token)

    @property
    def _runs_twice(self):
        """Whether a training step runs its batch with two draws of the dropout, for a loss that wants them alike."""
        return getattr(self.loss, "consistency", 0) > 0

    @property
    def _projects_loss(self):
        return _PROJECTING.get() is self

    def _can_project_loss(self, data):
        """Whether loss and metrics of a step on `data` can be had without logits."""
        inputs, labels, sample_weight = keras.utils.unpack_x_y_sample_weight(data)
        # A subclass that overrides one of these expects logits.
        for name in ("call", "compute_loss", "compute_metrics"):
            if getattr(type(self), name) is not getattr(Transformer, name):
                return False
        if labels is None or sample_weight is not None or getattr(self.loss, "needs_logits", True):
            return False
        if not isinstance(inputs, dict) or not {"source_ids", "target_ids"} <= inputs.keys():
            return False
        if self._compile_loss._user_loss_weights or (self._compile_metrics and self._compile_metrics._user_weighted_metrics):
            return False
        metrics = self._compiled_metrics()
        return all(not getattr(metric, "needs_logits", True) and metric.pad_id == self.loss.pad_id for metric in metrics)

    def _compiled_metrics(self):
        return _flatten(self._compile_metrics and self._compile_metrics._user_metrics)

    def call(self, inputs, training=None, mask=None):
        if not isinstance(inputs, dict) or not {"source_ids", "target_ids"} <= inputs.keys():
            return super().call(inputs, training=training, mask=mask)
        # Not by the functional graph, whose order of the two embeddings is another one: shared, they draw their dropout in turn.
        source_ids, target_ids = (ops.cast(inputs[key], "int32") for key in ("source_ids", "target_ids"))
        source_segments, segments = _segments(inputs)
        encoded, source_mask = self._network.encode(source_ids, training=training, segments=source_segments)
        return self._network.decode(
            target_ids, encoded, source_mask, training=training, project=not self._projects_loss, segments=segments
        )

    def compute_loss(self, x=None, y=None, y_pred=None, sample_weight=None, training=True):
        if self._projects_loss:
            table = self._network.output_table()
            loss, sums = self.loss.of_projection(y, y_pred, table, training=training)
            loss = sum((ops.cast(self._aggregate_additional_loss(part), "float32") for part in self.losses), loss)
            if self._compile_metrics is not None and not self._compile_metrics.built:
                self._compile_metrics.build(y, keras.KerasTensor((*y_pred.shape[:2], table.shape[0])))
            # Here rather than in compute_metrics: on JAX the sums may not leave the function that is differentiated.
            for metric in self._compiled_metrics():
                metric.update_sums(sums)
        elif training and self._runs_twice:
            loss = self.loss.of_passes(y, y_pred, sample_weight)
            loss = sum((ops.cast(self._aggregate_additional_loss(part), "float32") for part in self.losses), loss)
        else:
            loss = super().compute_loss(x=x, y=y, y_pred=y_pred, sample_weight=sample_weight, training=training)
        if self.loss_observer is not None:
            self.loss_observer.update_state(loss)
        return loss

    def compute_metrics(self, x, y, y_pred, sample_weight=None):
        if self._projects_loss:
            return self.get_metrics_result()
        return super().compute_metrics(x, y, y_pred, sample_weight)

    def get_config(self):
        return {**self._config, "name": self.name, "trainable": self.trainable, "dtype": self.policy_name}

    @classmethod
    def from_config(cls, config, custom_objects=None):
        return cls(**config)


def _segments(inputs):
    """The source's segments of a packed batch, and those of both sides as a pair; `None` twice for other batches."""
    given = [inputs[key] for key in ("source_segments", "target_segments") if key in inputs]
    if not given:
        return None, None
    if len(given) == 1:
        raise ValueError("Packed rows need the segments of both sides: give source_segments and target_segments, or neither.")
    pair = tuple(ops.cast(part, "int32") for part in given)
    return pair[0], pair


def _twice(data):
    """A batch of Keras's, its rows once more behind themselves."""
    return keras.tree.map_structure(lambda part: None if part is None else ops.concatenate([part, part]), data)


def _flatten(parts):
    """The losses or metrics of a `compile` argument, whatever its nesting."""
    return [] if parts is None else keras.tree.flatten(parts)
