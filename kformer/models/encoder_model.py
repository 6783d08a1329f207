"""The encoder alone: classification, regression, labels for tokens, embeddings for retrieval."""

import keras
from keras import ops

from kformer.layers import Dropout, padding_mask
from kformer.layers.counter_hash import derive_seed, drawn_seed
from kformer.models.architecture import architecture_of, check_sizes
from kformer.models.sequence_model import SequenceModel
from kformer.models.stacks import EncoderStack, embedding_and_layers
from kformer.utils.checks import check_choice

HEADS = ("classification", "regression", "labelling", "embedding")
POOLINGS = ("mean", "first")


@keras.saving.register_keras_serializable(package="kformer")
class Pooling(keras.layers.Layer):
    """One vector for a sequence.

    Args:
        pooling: `"mean"` of the real tokens, or the `"first"` one.

    Call arguments:
        x: float tensor `[B, S, D]`.
        padding_mask: boolean `[B, S]`, `True` at real tokens; `None` if all are.

    Returns:
        Float tensor `[B, D]`; zeros for the mean of no token.
    """

    def __init__(self, pooling="mean", **kwargs):
        super().__init__(**kwargs)
        self.pooling = check_choice("pooling", pooling, POOLINGS)

    def call(self, x, padding_mask=None):
        if self.pooling == "first":
            return x[:, 0]
        if padding_mask is None:
            return ops.mean(x, axis=1)
        counted = ops.expand_dims(ops.cast(padding_mask, "float32"), -1)
        total = ops.sum(ops.cast(x, "float32") * counted, axis=1)
        return ops.cast(total / ops.maximum(ops.sum(counted, axis=1), 1.0), self.compute_dtype)

    def compute_output_spec(self, x, padding_mask=None):
        return keras.KerasTensor((x.shape[0], x.shape[2]), dtype=self.compute_dtype)

    def get_config(self):
        return {**super().get_config(), "pooling": self.pooling}


@keras.saving.register_keras_serializable(package="kformer")
class TransformerEncoder(SequenceModel):
    """Encoder layers over token ids, and a head for a task.

    A functional Keras model over `{"token_ids": [B, S]}`. Padding is told by `pad_id`.

    | head               | output                                                                   | loss                                |
    |--------------------|--------------------------------------------------------------------------|-------------------------------------|
    | `None`             | hidden states `[B, S, D]`                                                 |                                     |
    | `"classification"` | logits `[B, num_outputs]` of the pooled sequence                          | cross-entropy from logits           |
    | `"regression"`     | numbers `[B, num_outputs]` of the pooled sequence                         | mean squared error                  |
    | `"labelling"`      | logits `[B, S, num_outputs]`                                              | `MaskedCrossentropy`; -1: no label  |
    | `"embedding"`      | vectors of length 1, `[B, num_outputs or D]`                              | `ContrastiveLoss` of a `DualEncoder`|

    Args:
        vocabulary_size: V.
        num_layers: layers of the stack.
        head: as above.
        num_outputs: classes, or numbers (1 by default for a regression), or the size of an
            embedding (`None` leaves the pooled vector as it is).
        pooling: `"mean"` of the real tokens, or the `"first"` one.
        max_length: the longest sequence in tokens; with learned positions the size of their table.
        scale_embeddings: token vectors are multiplied by sqrt(D).
        pad_id: id of the padding token.
        seed: int, for the initial weights and the dropout; `None` draws one.
        **options: hidden_dim, intermediate_dim, num_heads, dropout, position_encoding,
            normalization, attention_kind and the others of `kformer.Transformer`'s layers; pre-norm
            unless `normalize_first=False`.

    Example:
        >>> model = kformer.TransformerEncoder(8000, num_layers=2, head="classification", num_outputs=3, hidden_dim=128, num_heads=4)
        >>> model.compile("adam", keras.losses.SparseCategoricalCrossentropy(from_logits=True), metrics=["accuracy"])
        >>> model.fit({"token_ids": ids}, classes)

    References:
        Devlin et al. 2019, "BERT: pre-training of deep bidirectional Transformers" (heads).
        Reimers and Gurevych 2019, "Sentence-BERT" (pooled embeddings).
    """

    # The class 0 is a class.
    _ignored_label = -1

    def __init__(
        self,
        vocabulary_size,
        *,
        num_layers=6,
        head=None,
        num_outputs=None,
        pooling="mean",
        max_length=512,
        scale_embeddings=True,
        pad_id=0,
        seed=0,
        dtype=None,
        name="transformer_encoder",
        **options,
    ):
        trainable = options.pop("trainable", True)
        options = architecture_of(options)
        check_sizes(vocabulary_size=vocabulary_size, num_layers=num_layers, max_length=max_length)
        check_choice("head", head, (*HEADS, None))
        if head == "regression" and num_outputs is None:
            num_outputs = 1
        if head in ("classification", "labelling") or head is not None and num_outputs is not None:
            check_sizes(num_outputs=num_outputs)
        elif num_outputs is not None:
            raise ValueError(
                f"num_outputs={num_outputs} needs a head: choose one of {', '.join(HEADS)}."
            )
        seed = drawn_seed(seed)
        policy = keras.dtype_policies.get(keras.config.dtype_policy() if dtype is None else dtype)
        network = EncoderNetwork(
            vocabulary_size, num_layers, max_length, scale_embeddings, pad_id, seed, policy, options
        )
        token_ids = keras.Input((None,), dtype="int32", name="token_ids")
        x, mask = network.encode(token_ids)
        if head is not None and head != "labelling":
            x = Pooling(pooling, dtype=policy, name="pooling")(x, padding_mask=mask)
        if head in ("classification", "labelling"):
            x = Dropout(
                options["dropout"],
                seed=derive_seed(seed, "head"),
                dtype=policy,
                name="head_dropout",
            )(x)
        if num_outputs is not None:
            initializer = keras.initializers.GlorotUniform(
                seed=derive_seed(seed, "head_projection")
            )
            # Logits and numbers in float32, whatever the layers compute in.
            x = keras.layers.Dense(
                num_outputs, kernel_initializer=initializer, dtype="float32", name="head"
            )(x)
        if head == "embedding":
            x = keras.layers.UnitNormalization(dtype="float32", name="unit_length")(x)
        super().__init__(inputs={"token_ids": token_ids}, outputs=x, name=name, trainable=trainable)
        self.network = network
        self.pad_id, self.head, self.vocabulary_size = pad_id, head, vocabulary_size
        self.hidden_dim, self.max_length, self.policy_name = (
            options["hidden_dim"],
            max_length,
            policy.name,
        )
        self._config = {
            "vocabulary_size": vocabulary_size,
            "num_layers": num_layers,
            "head": head,
            "num_outputs": num_outputs,
            "pooling": pooling,
            "max_length": max_length,
            "scale_embeddings": scale_embeddings,
            "pad_id": pad_id,
            "seed": seed,
            **options,
        }

    def inspect(self, inputs):
        """One forward pass that also returns what every layer saw; the model stays as it is.

        Args:
            inputs: as for a call.

        Returns:
            Dict with lists that have an entry per layer: `encoder_hidden_states` `[B, S, D]` (one
            more: the embeddings come first) and `encoder_attention_scores` `[B, N, S, S]`.
        """
        record = {}
        self.network.encode(
            ops.convert_to_tensor(inputs["token_ids"], dtype="int32"), training=False, record=record
        )
        return record


class EncoderNetwork:
    """The layers below a `TransformerEncoder`'s head; a plain object, as
    `kformer.models.network.Network` is.
    """

    def __init__(
        self,
        vocabulary_size,
        num_layers,
        max_length,
        scale_embeddings,
        pad_id,
        seed,
        policy,
        options,
    ):
        self.pad_id = pad_id
        self.embedding, layers = embedding_and_layers(
            vocabulary_size, max_length, scale_embeddings, seed, policy, options
        )
        self.stack = EncoderStack(
            num_layers, "encoder", bidirectional=True, seed=seed, policy=policy, **layers
        )

    def encode(self, token_ids, training=None, record=None):
        """Ids `[B, S]` to hidden states `[B, S, D]` and the mask of real tokens `[B, S]`."""
        mask = padding_mask(token_ids, self.pad_id)
        x = self.embedding(token_ids, training=training)
        return self.stack(x, {"padding_mask": mask}, training=training, record=record), mask


@keras.saving.register_keras_serializable(package="kformer")
class DualEncoder(keras.Model):
    """Two texts of each pair through one encoder, for training embeddings whose nearest neighbours
    belong together.

    A functional model over `{"source_ids": [B, S], "target_ids": [B, T]}`, as
    `kformer.data.ParallelDataset` gives them, with the output `[B, 2, K]`; train it with
    `ContrastiveLoss`. The encoder is the given model, and what is trained is that.

    Args:
        encoder: a `TransformerEncoder` with `head="embedding"`.

    Example:
        >>> encoder = kformer.TransformerEncoder(8000, head="embedding", num_outputs=64)
        >>> pairs = kformer.models.DualEncoder(encoder)
        >>> pairs.compile("adam", kformer.training.ContrastiveLoss())
        >>> pairs.fit(dataset)
        >>> vectors = encoder.predict({"token_ids": ids})
    """

    def __init__(self, encoder, name="dual_encoder", **kwargs):
        if getattr(encoder, "head", None) != "embedding":
            raise ValueError("A DualEncoder needs a TransformerEncoder with head='embedding'.")
        inputs = {
            side: keras.Input((None,), dtype="int32", name=side)
            for side in ("source_ids", "target_ids")
        }
        vectors = [encoder({"token_ids": ids}) for ids in inputs.values()]
        super().__init__(inputs=inputs, outputs=ops.stack(vectors, axis=1), name=name, **kwargs)
        self.encoder = encoder

    def get_config(self):
        encoder = keras.saving.serialize_keras_object(self.encoder)
        return {"encoder": encoder, "name": self.name, "trainable": self.trainable}

    @classmethod
    def from_config(cls, config, custom_objects=None):
        return cls(
            **{**config, "encoder": keras.saving.deserialize_keras_object(config["encoder"])}
        )
