"""Encoder models: classification, regression, labels for tokens, embeddings for retrieval."""

import keras
from keras import ops

from kformer.layers import Dropout, padding_mask
from kformer.layers.counter_hash import derive_seed
from kformer.layers.inputs import part_arguments
from kformer.layers.masks import as_boolean
from kformer.layers.normalization import unit_vectors
from kformer.models.base_model import BaseModel
from kformer.models.config import POOLINGS, EncoderArguments, EncoderConfig, describes
from kformer.models.sequence_model import SequenceModel
from kformer.models.stacks import EncoderStack, token_embedding
from kformer.utils.checks import check_choice
from kformer.utils.signatures import takes


@keras.saving.register_keras_serializable(package="kformer")
class Pooling(keras.layers.Layer):
    """Reduces the hidden states of each sequence to one vector.

    Args:
        pooling: str, default "mean". `"mean"` of the real tokens, or the `"first"` token.
        **kwargs: further arguments of `keras.layers.Layer`.

    Call arguments:
        x: float tensor `[B, S, D]`.
        padding_mask: boolean tensor `[B, S]`, default `None`. `True` at real tokens; `None` if all
            tokens are real.

    Returns:
        Float tensor `[B, D]`. The mean of a sequence without real tokens is zeros.

    Raises:
        ValueError: the pooling is unknown.
    """

    def __init__(self, pooling="mean", **kwargs):
        super().__init__(**kwargs)
        self.pooling = check_choice("pooling", pooling, POOLINGS)

    def call(self, x, padding_mask=None):
        if self.pooling == "first":
            return x[:, 0]
        if padding_mask is None:
            return ops.mean(x, axis=1)
        counted = ops.expand_dims(ops.cast(as_boolean(padding_mask), "float32"), -1)
        total = ops.sum(ops.cast(x, "float32") * counted, axis=1)
        return ops.cast(total / ops.maximum(ops.sum(counted, axis=1), 1.0), self.compute_dtype)

    def compute_output_spec(self, x, padding_mask=None):
        return keras.KerasTensor((x.shape[0], x.shape[2]), dtype=self.compute_dtype)

    def get_config(self):
        return {**super().get_config(), "pooling": self.pooling}


@describes(EncoderConfig)
@keras.saving.register_keras_serializable(package="kformer")
class TransformerEncoder(SequenceModel):
    """The Transformer encoder over token ids, with a head for a task.

    A functional Keras model over `{"token_ids": [B, S]}`. Tokens equal to `pad_id` are padding,
    which is masked.

    Each head with its output and the loss that fits it:

    - `None`: hidden states `[B, S, D]`.
    - `"classification"`: logits `[B, num_outputs]` of the pooled sequence; cross-entropy from
      logits.
    - `"regression"`: numbers `[B, num_outputs]` of the pooled sequence; mean squared error.
    - `"labelling"`: logits `[B, S, num_outputs]`; `MaskedCrossentropy`, which ignores the label -1.
    - `"embedding"`: vectors of length 1, `[B, num_outputs or D]`; `ContrastiveLoss` of a
      `DualEncoder`.

    Args:
        {options}
        dtype: str or Keras dtype policy, default the global policy. The policy of the layers.
        name: str, default "transformer_encoder".
        trainable: bool, default True. Whether training changes the weights.

    Call arguments:
        inputs: dict of `token_ids`, integer tensor `[B, S]`.
        training: bool, default `None`. Whether dropout is applied.

    Returns:
        Float tensor, whose shape depends on the head.

    Raises:
        ValueError: an option is unknown or has a bad value, or inputs have a wrong shape.

    Example:
    ```python
    sizes = {"num_layers": 2, "hidden_dim": 128, "num_heads": 4}
    model = kformer.TransformerEncoder(8000, head="classification", num_outputs=3, **sizes)
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile("adam", loss, metrics=["accuracy"])
    ids, classes = np.full((8, 5), 17), np.zeros(8)
    model.fit({"token_ids": ids}, classes, verbose=0)
    ```

    References:
        Devlin et al. 2019, "BERT: pre-training of deep bidirectional Transformers" (heads).
        Reimers and Gurevych 2019, "Sentence-BERT" (pooled embeddings).
    """

    # The label 0 is a class like any other, also where the pad_id is 0.
    _ignored_label = -1

    @takes(EncoderArguments)
    def __init__(
        self, vocabulary_size, *, dtype=None, name="transformer_encoder", trainable=True, **options
    ):
        config = EncoderConfig.of({"vocabulary_size": vocabulary_size, **options})
        policy = keras.dtype_policies.get(dtype)
        network = EncoderNetwork(config, policy)
        inputs = {"token_ids": keras.Input((None,), dtype="int32", name="token_ids")}
        x = _head(config, policy, *network.encode(inputs["token_ids"]))
        arguments = {"inputs": inputs, "outputs": x, "name": name, "trainable": trainable}
        super().__init__(config, network, policy, **arguments)
        self.pad_id, self.head = config.pad_id, config.head
        self.vocabulary_size = config.vocabulary_size

    def inspect(self, inputs):
        """Runs one forward pass and returns the hidden states and attention of every layer.

        The model does not change.

        Args:
            inputs: dict, as for a call.

        Returns:
            Dict with lists that have an entry per layer: `encoder_hidden_states` `[B, S, D]` (with
            one more entry at the front, the embeddings) and `encoder_attention_scores`
            `[B, N, S, S]`.
        """
        record, token_ids = {}, ops.convert_to_tensor(inputs["token_ids"], dtype="int32")
        self.network.encode(token_ids, training=False, record=record)
        return record


def _head(config, policy, x, mask):
    """The output of a model's head for hidden states `[B, S, D]`."""
    if config.head not in (None, "labelling"):
        x = Pooling(config.pooling, dtype=policy, name="pooling")(x, padding_mask=mask)
    if config.head in ("classification", "labelling"):
        part = part_arguments("head_dropout", config.seed, policy, "head")
        x = Dropout(config.dropout, **part)(x)
    if config.num_outputs is not None:
        seed = derive_seed(config.seed, "head_projection")
        initializer = keras.initializers.GlorotUniform(seed=seed)
        # Logits and numbers are float32, also if the layers compute in another dtype.
        x = keras.layers.Dense(
            config.num_outputs, kernel_initializer=initializer, dtype="float32", name="head"
        )(x)
    return unit_vectors(x) if config.head == "embedding" else x


class EncoderNetwork:
    """The layers below a `TransformerEncoder`'s head, in a plain object.

    `kformer.models.network.Network` explains why.

    Args:
        config: `kformer.models.config.EncoderConfig`.
        policy: Keras dtype policy. The policy of the layers.
    """

    def __init__(self, config, policy):
        self.pad_id = config.pad_id
        self.embedding = token_embedding(config, policy)
        self.stack = EncoderStack(config, config.num_layers, policy)

    def encode(self, token_ids, training=None, record=None):
        """Encodes sequences.

        Args:
            token_ids: int32 tensor `[B, S]`.
            training: bool, default `None`.
            record: dict, default `None`. Collects hidden states and attention scores.

        Returns:
            Hidden states, float `[B, S, D]`, and the mask of real tokens, boolean `[B, S]`.
        """
        mask = padding_mask(token_ids, self.pad_id)
        x = self.embedding(token_ids, training=training)
        return self.stack(x, {"padding_mask": mask}, training=training, record=record), mask


@keras.saving.register_keras_serializable(package="kformer")
class DualEncoder(BaseModel):
    """Embeds both texts of each pair with one encoder, to train retrieval.

    A functional model over `{"source_ids": [B, S], "target_ids": [B, T]}`, as
    `kformer.data.ParallelDataset` returns them, with the output `[B, 2, K]`. Trained with
    `ContrastiveLoss`, the embeddings of texts that belong together become nearest neighbours. The
    training changes the weights of the given encoder, which has no copy here.

    Args:
        encoder: `TransformerEncoder` with `head="embedding"`.
        name: str, default "dual_encoder".
        **kwargs: further arguments of `keras.Model`.

    Call arguments:
        inputs: dict of integer tensors `source_ids` `[B, S]` and `target_ids` `[B, T]`.
        training: bool, default `None`. Whether dropout is applied.

    Returns:
        Float tensor `[B, 2, K]`: vectors of length 1 for source and target. Those of a row of
        padding are zeros, which `ContrastiveLoss` and `RetrievalAccuracy` do not count.

    Raises:
        ValueError: the encoder has another head.

    Example:
    ```python
    sizes = {"num_layers": 2, "hidden_dim": 128, "num_heads": 4}
    encoder = kformer.TransformerEncoder(8000, head="embedding", num_outputs=64, **sizes)
    pairs = kformer.models.DualEncoder(encoder)
    pairs.compile("adam", kformer.training.ContrastiveLoss())
    vectors = encoder.predict({"token_ids": np.full((8, 5), 17)}, verbose=0)
    vectors.shape  # (8, 64)
    ```
    """

    def __init__(self, encoder, name="dual_encoder", **kwargs):
        if getattr(encoder, "head", None) != "embedding":
            raise ValueError("A DualEncoder needs a TransformerEncoder with head='embedding'.")
        inputs = {
            side: keras.Input((None,), dtype="int32", name=side)
            for side in ("source_ids", "target_ids")
        }
        vectors = []
        for ids in inputs.values():  # Zeros for rows of padding.
            is_text = ops.any(padding_mask(ids, encoder.pad_id), axis=1, keepdims=True)
            vectors.append(encoder({"token_ids": ids}) * ops.cast(is_text, "float32"))
        super().__init__(inputs=inputs, outputs=ops.stack(vectors, axis=1), name=name, **kwargs)
        self.encoder, self.dtype_policy = encoder, encoder.dtype_policy

    def fit(self, x=None, *args, **kwargs):
        """Trains the model, as `keras.Model.fit` does.

        A `ParallelDataset` is read in its own order, which is already shuffled and can be resumed.

        Args:
            x: `kformer.data.ParallelDataset`, or data as for `keras.Model.fit`, default `None`.
            *args, **kwargs: further arguments of `keras.Model.fit`.

        Returns:
            `keras.callbacks.History`.

        Raises:
            ValueError: packed data, whose rows have several pairs.
        """
        if getattr(getattr(x, "dataset", x), "packed", False):
            raise ValueError(
                "A DualEncoder embeds each row as one text, but packed=True puts several pairs "
                "into a row: make the data with packed=False."
            )
        return super().fit(x, *args, **kwargs)

    def get_config(self):
        encoder = keras.saving.serialize_keras_object(self.encoder)
        return {"encoder": encoder, "name": self.name, "trainable": self.trainable}

    @classmethod
    def from_config(cls, config, custom_objects=None):
        encoder = keras.saving.deserialize_keras_object(config["encoder"])
        return cls(**{**config, "encoder": encoder})
