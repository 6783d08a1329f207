"""Output projection and cross-entropy together, without the logits of a whole batch."""

from typing import Any, NamedTuple

import keras
from keras import ops

from kformer.layers.products import product_dtype
from kformer.training import projected_loss_torch
from kformer.training.consistency import divergence_of

# Elements of the logits that exist at a time: 16 MiB of float32, about a CPU's last cache.
_CHUNK_ELEMENTS = 2**22
_FEWEST_ROWS = 128


class Targets(NamedTuple):
    """The target distribution and the weight of each of N tokens; both passes of R-Drop share it.

    Attributes:
        labels: int32 tensor `[N, K]`. Classes with a probability of their own; the first is the
            label.
        shares: float32 tensor `[N, K]`. These probabilities.
        rest: float32 tensor `[N, 1]`. The probability that is spread evenly over all V classes.
        weights: float32 tensor `[N]`.
    """

    labels: Any
    shares: Any
    rest: Any
    weights: Any


class Settings(NamedTuple):
    """The options of one call.

    Attributes:
        consistency, training, chunk_rows: as for `projected_crossentropy`.
        is_smoothed: bool. Whether any `rest` may differ from 0.
        dtype: str. The dtype of tokens and table.
        multiplied: str. The dtype to which matrices are rounded before they are multiplied.
    """

    consistency: float
    training: bool
    chunk_rows: Any
    is_smoothed: bool
    dtype: str
    multiplied: str


def projected_crossentropy(
    hidden,
    table,
    labels,
    weights,
    label_smoothing=0.0,
    training=True,
    chunk_rows=None,
    consistency=0.0,
    soft_targets=None,
):
    """Weighted sums of loss, negative log-likelihood and hits, of the logits `hidden @ table.T`.

    The logits of 4,096 tokens over 32,000 pieces take 512 MiB, and so do their softmax and its
    gradient. Here they are made chunk by chunk. The gradient of a chunk is computed while its
    softmax is in memory, so the backward pass only scales what is ready.

    With `p` the softmax, `e` the label's unit vector and `s` the label smoothing, the gradient at
    the logits is `p - (1 - s) e - s / V`. The last term is the same for all classes. Its effect on
    `hidden` is a mean over the table, and its effect on `table` a sum over the tokens, so it is
    never subtracted from all the `p`. The middle term is subtracted from the label's `p` in
    float32, before any rounding, since little is left of it where the model is sure. Soft targets
    work in the same way, with K classes in place of the label.

    Args:
        hidden: float tensor `[B, T, D]`. The decoder's output.
        table: float tensor `[V, D]` of the same dtype. The output projection.
        labels: int tensor `[B, T]`. Outside `[0, V)` the nearest class counts.
        weights: float32 tensor `[B, T]`. The weight of each token.
        label_smoothing: float in `[0, 1)`, default 0.0.
        training: bool, default True. Without it no gradient is computed.
        chunk_rows: int or `None`, default `None`. The tokens whose logits exist at a time; `None`
            chooses by the size of the vocabulary.
        consistency: float, default 0.0. The weight alpha of R-Drop. Above 0 the second half of the
            rows repeats the first half with different dropout, and the loss of each token has
            `alpha / 2` times the mean of the two Kullback-Leibler divergences between its
            distributions P and Q added. The mean over all rows is then half of `-log P - log Q +
            alpha / 2 (KL(P, Q) + KL(Q, P))`.
        soft_targets: pair of tensors `[B, T, K]` or `None`, default `None`. Distinct classes (int),
            of which the first is the label, and their probabilities (float), at most 1 together.
            The rest is spread evenly over all V. They replace the smoothed label.

    Returns:
        float32 tensor `[3]`: `sum(w * loss)`, `sum(w * nll)`, `sum(w * hit)`. A hit is a label with
        the highest logit. Only the first has a gradient.

    References:
        Liang et al. 2021, "R-Drop: Regularized Dropout for Neural Networks", equations 1 to 3.
        Kim and Rush 2016, "Sequence-level knowledge distillation", section 3.1 (soft targets).
    """
    classes, size = table.shape
    passes = 2 if consistency else 1
    targets = _targets_of(labels, weights, label_smoothing, soft_targets, passes, classes)
    tokens = ops.reshape(hidden, (passes, -1, size))  # [P, N, D]
    table = ops.reshape(table, (classes, size))  # A tensor: TensorFlow takes no variable below.
    dtype = keras.backend.standardize_dtype(tokens.dtype)
    is_smoothed = label_smoothing > 0 or soft_targets is not None
    settings = Settings(consistency, training, chunk_rows, is_smoothed, dtype, product_dtype(dtype))
    count = None
    if keras.backend.backend() != "torch":
        count, rows = _chunking(ops.shape(targets.labels)[0], classes * passes, chunk_rows)
        settings = settings._replace(chunk_rows=rows)
        tokens, targets = _padded(tokens, targets, count * rows)

    @ops.custom_gradient
    def sums_of(tokens, table):
        if count is None:
            results = projected_loss_torch.class_sums(tokens, table, targets, settings)
        else:
            results = _Chunks(tokens, table, targets, settings).run(count)
        sums, tokens_slope, table_slope = results
        return sums, _gradient(tokens, table, tokens_slope, table_slope, targets, settings)

    return sums_of(tokens, table)


def _targets_of(labels, weights, label_smoothing, soft_targets, passes, classes):
    """The `Targets` of a batch, from the first of its passes."""
    if soft_targets is None:
        labels = ops.reshape(labels, (passes, -1, 1))[0]
        shares = ops.full_like(ops.cast(labels, "float32"), 1.0 - label_smoothing)
    else:
        width = soft_targets[0].shape[-1]
        labels, shares = (ops.reshape(values, (passes, -1, width))[0] for values in soft_targets)
        shares = ops.cast(shares, "float32")
    labels = ops.clip(ops.cast(labels, "int32"), 0, classes - 1)
    rest = 1.0 - ops.sum(shares, axis=-1, keepdims=True)
    return Targets(labels, shares, rest, ops.reshape(weights, (passes, -1))[0])


def _chunking(rows, width, chunk_rows):
    """How many chunks there are, and the rows of each.

    All chunks have one size, since no shape may change in a compiled loop, and are as even as
    possible, so that few rows are padding."""
    chunk_rows = chunk_rows or max(_FEWEST_ROWS, _CHUNK_ELEMENTS // width)
    count = (rows + chunk_rows - 1) // chunk_rows
    count = max(count, 1) if isinstance(count, int) else ops.maximum(count, 1)
    return count, (rows + count - 1) // count


def _padded(tokens, targets, rows):
    """Tokens and targets with padding of weight 0 up to a number of rows."""
    missing = rows - ops.shape(targets.labels)[0]
    *tables, weights = targets
    tables = [ops.pad(part, [(0, missing), (0, 0)]) for part in tables]
    tokens = ops.pad(tokens, [(0, 0), (0, missing), (0, 0)])
    return tokens, Targets(*tables, ops.pad(weights, [(0, missing)]))


def _gradient(tokens, table, tokens_slope, table_slope, targets, settings):
    """The backward pass, as `ops.custom_gradient` wants it."""

    def gradient(*args, upstream=None):
        # PyTorch passes the upstream gradient by name, TensorFlow and JAX as the only argument.
        upstream = (args[0] if upstream is None else upstream)[0]
        row_weights = ops.expand_dims(targets.weights, -1)
        to_tokens, to_table = tokens_slope, ops.transpose(table_slope)
        if settings.is_smoothed:
            to_tokens = to_tokens - targets.rest * ops.mean(ops.cast(table, "float32"), axis=0)
            shares = row_weights * targets.rest
            weighted = ops.sum(ops.cast(tokens, "float32") * shares, axis=(0, 1))
            to_table = to_table - weighted / table.shape[0]
        to_tokens = to_tokens * row_weights * upstream
        return ops.cast(to_tokens, settings.dtype), ops.cast(to_table * upstream, settings.dtype)

    return gradient


class _Chunks:
    """The forward pass in chunks, with Keras's operations; compiled loops run it too."""

    def __init__(self, tokens, table, targets, settings):
        self.tokens, self.targets, self.settings = tokens, targets, settings
        self.passes = 2 if settings.consistency else 1
        self.classes, self.size = table.shape
        self.rounded = ops.cast(table, settings.multiplied)
        self.by_class = ops.transpose(self.rounded)  # [D, V]
        self.mean_class = ops.expand_dims(ops.mean(ops.cast(table, "float32"), axis=0), -1)

    def run(self, count):
        """The three sums, and the gradients of the tokens `[P, N, D]` and of the table `[D, V]`."""
        training = self.settings.training
        state = (
            ops.zeros((3,), "float32"),
            ops.zeros(ops.shape(self.tokens) if training else (1, 1, self.size), "float32"),
            ops.zeros((self.size, self.classes) if training else (self.size, 1), "float32"),
        )
        if isinstance(count, int) and count == 1:
            return self.step(0, *state)[1:]
        return ops.while_loop(lambda index, *state: index < count, self.step, (0, *state))[1:]

    def step(self, index, sums, tokens_slope, table_slope):
        """Adds chunk number `index`."""
        consistency, rows = self.settings.consistency, self.settings.chunk_rows
        start = index * rows
        chunk = ops.slice(self.tokens, (0, start, 0), (self.passes, rows, self.size))
        chunk = ops.reshape(chunk, (-1, self.size))
        labels, shares, rest = (self._part(part, start) for part in self.targets[:3])
        weights = self._part(ops.expand_dims(self.targets.weights, -1), start)
        multiplied = ops.cast(chunk, self.settings.multiplied)
        logits = ops.cast(ops.matmul(multiplied, self.by_class), "float32")
        highest = ops.max(logits, axis=-1, keepdims=True)
        shifted = logits - highest
        class_logits = ops.take_along_axis(shifted, labels, axis=-1)  # [P C, K]
        label_logits = class_logits[:, :1]
        exponentials = ops.exp(shifted)
        norm = ops.sum(exponentials, axis=-1, keepdims=True)
        log_norm = ops.log(norm)
        loss = log_norm - ops.sum(shares * class_logits, axis=-1, keepdims=True)
        if self.settings.is_smoothed:
            # The mean of a token's logits is its logit at the mean of the classes, which saves a
            # pass over all classes.
            mean = ops.matmul(ops.cast(chunk, "float32"), self.mean_class) - highest
            loss = loss - rest * mean
        pull = None
        if consistency:
            divergence, pull = divergence_of(shifted, exponentials, norm)
            loss = loss + consistency / 2 * divergence
        hits = ops.cast(ops.equal(label_logits, 0.0), "float32")
        counted = ops.concatenate([loss, log_norm - label_logits, hits], axis=-1)
        counted = ops.where(ops.not_equal(weights, 0), counted, 0.0) * weights
        sums = sums + ops.sum(counted, axis=0)
        if self.settings.training:
            at_classes = ops.exp(class_logits) - shares * norm
            slope = self._slope(exponentials, labels, at_classes, norm, pull)
            if self.settings.dtype != "float32":
                slope, norm = slope / norm, 1.0
            slope = ops.cast(slope, self.settings.multiplied)
            to_tokens = ops.cast(ops.matmul(slope, self.rounded), "float32") / norm  # [P C, D]
            to_tokens = ops.reshape(to_tokens, (self.passes, rows, self.size))
            tokens_slope = ops.slice_update(tokens_slope, (0, start, 0), to_tokens)
            weighted = ops.cast(chunk, "float32") * (weights / norm)
            weighted = ops.transpose(ops.cast(weighted, self.settings.multiplied))
            table_slope = table_slope + ops.cast(ops.matmul(weighted, slope), "float32")  # [D, V]
        return index + 1, sums, tokens_slope, table_slope

    def _part(self, values, start):
        """The rows of a chunk, `[N, K]` to `[P C, K]`."""
        rows = ops.slice(values, (start, 0), (self.settings.chunk_rows, values.shape[-1]))
        return ops.tile(rows, (self.passes, 1))

    def _slope(self, exponentials, labels, at_classes, norm, pull):
        """The gradient at the logits `[P C, V]`, times `norm`.

        The narrow matrices are divided by `norm` later; half precision lacks the range for that.
        """
        rows = ops.arange(self.passes * self.settings.chunk_rows, dtype="int32")
        rows = ops.broadcast_to(ops.expand_dims(rows, -1), ops.shape(labels))
        indices = ops.reshape(ops.stack([rows, labels], axis=-1), (-1, 2))
        slope = ops.scatter_update(exponentials, indices, ops.reshape(at_classes, (-1,)))
        if pull is not None:
            slope = slope + self.settings.consistency * norm * pull
        return slope
