"""Projection to the vocabulary and cross-entropy in one, without the logits of a whole batch ever
being there.
"""

import keras
from keras import ops

from kformer.layers.products import product_dtype
from kformer.training import kernels
from kformer.training.consistency import divergence_of

# Elements of the logits that exist at a time: 16 MiB of float32, about what a processor's last
# cache holds.
_CHUNK_ELEMENTS = 2**22
_FEWEST_ROWS = 128


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
    """Weighted sums of loss, negative log-likelihood and right guesses, of logits `hidden @
    table.T` that are never kept.

    Logits of a batch of 4,096 tokens over 32,000 pieces take 512 MiB, their softmax and its
    gradient as much again each. Here they are made chunk by chunk; while a chunk's softmax is at
    hand, its part of the gradient is computed as well, so the backward pass only scales what is
    ready.

    With `p` the softmax, `e` the label's unit vector, `s` the label smoothing and `V` the
    vocabulary size, the gradient at the logits is `p - (1 - s) e - s / V`. Its last term is the
    same for all classes, and so is its effect on `hidden` and
    `table` (a mean over the table, a sum over the tokens): it never has to be subtracted from all
        the `p`. The term before
    it is subtracted from the label's `p` in float32, before anything is rounded: where the model is
    sure, little is left. A target distribution of a few classes, and the same for all others, takes
    no more than that for each of the few.

    Args:
        hidden: float tensor `[B, T, D]`, what the decoder gives.
        table: float tensor `[V, D]` of the same dtype, the output projection.
        labels: int tensor `[B, T]`; outside `[0, V)` the nearest class is meant.
        weights: float32 tensor `[B, T]`, what each token counts.
        label_smoothing: float in `[0, 1)`.
        training: bool; without it no gradient is prepared, and none can be had.
        chunk_rows: int, tokens whose logits exist at a time; `None` chooses by the vocabulary size.
        consistency: float, the weight alpha of R-Drop. Above 0 the second half of the rows is the
            first once more, with another dropout, and the loss of each token has `alpha / 2` times
            the mean of the two Kullback-Leibler divergences between its distributions P and Q
            besides: the mean over all rows is then half of `-log P - log Q + alpha / 2 (KL(P, Q) +
            KL(Q, P))`.
        soft_targets: `None`, or a pair of an int tensor `[B, T, K]`, distinct classes of which the
            first is the label, and a float tensor `[B, T, K]`, what of the target distribution
            falls to them, in all at most 1; what is left is spread evenly over all V. It stands in
            the place of the smoothed label.

    Returns:
        float32 tensor `[3]`: `sum(w * loss)`, `sum(w * nll)`, `sum(w * hit)`. A hit is a label with
        the highest logit. Only the first has a gradient.

    References:
        Liang et al. 2021, "R-Drop: Regularized Dropout for Neural Networks", equations 1 to 3.
        Kim and Rush 2016, "Sequence-level knowledge distillation", section 3.1 (soft targets).
    """
    classes, size = table.shape
    passes = 2 if consistency else 1
    # What both passes have in common: the classes that have a share of their own in a token's
    # target, `[N, K]`, their shares, and what is left for all classes alike.
    if soft_targets is None:
        labels = ops.reshape(labels, (passes, -1, 1))[0]
        shares = ops.full_like(ops.cast(labels, "float32"), 1.0 - label_smoothing)
        is_smoothed = label_smoothing > 0
    else:
        width = soft_targets[0].shape[-1]
        labels, shares = (ops.reshape(part, (passes, -1, width))[0] for part in soft_targets)
        shares, is_smoothed = ops.cast(shares, "float32"), True
    labels = ops.clip(ops.cast(labels, "int32"), 0, classes - 1)
    rest = 1.0 - ops.sum(shares, axis=-1, keepdims=True)
    weights = ops.reshape(weights, (passes, -1))[0]
    rows, given_rows = ops.shape(labels)[0], chunk_rows
    chunk_rows = chunk_rows or max(_FEWEST_ROWS, _CHUNK_ELEMENTS // classes // passes)
    num_chunks = (rows + chunk_rows - 1) // chunk_rows
    # Chunks of one size, as even as they can be: no shape changes in the loop, and few rows are
    # padding.
    num_chunks = max(num_chunks, 1) if isinstance(num_chunks, int) else ops.maximum(num_chunks, 1)
    chunk_rows = (rows + num_chunks - 1) // num_chunks
    missing = 0 if kernels.has_kernels() else num_chunks * chunk_rows - rows
    labels, shares, rest = (
        ops.pad(part, [(0, missing), (0, 0)]) for part in (labels, shares, rest)
    )  # [N, K], [N, K], [N, 1]
    weights = ops.pad(weights, [(0, missing)])  # [N]
    tokens = ops.pad(
        ops.reshape(hidden, (passes, -1, size)), [(0, 0), (0, missing), (0, 0)]
    )  # [P, N, D]
    table = ops.reshape(table, (classes, size))  # A tensor: TensorFlow takes no variable below.

    dtype = keras.backend.standardize_dtype(tokens.dtype)
    multiplied = product_dtype(dtype)

    def gradient_of(tokens, table, tokens_slope, table_slope):
        def gradient(*args, upstream=None):
            # PyTorch hands the upstream gradient by name (behind the inputs), TensorFlow and JAX as
            # the one argument.
            upstream = (args[0] if upstream is None else upstream)[0]
            row_weights = ops.expand_dims(weights, -1)
            to_tokens, to_table = tokens_slope, ops.transpose(table_slope)
            if is_smoothed:
                to_tokens = to_tokens - rest * ops.mean(ops.cast(table, "float32"), axis=0)
                weighted = ops.sum(ops.cast(tokens, "float32") * (row_weights * rest), axis=(0, 1))
                to_table = to_table - weighted / classes
            return ops.cast(to_tokens * row_weights * upstream, dtype), ops.cast(
                to_table * upstream, dtype
            )

        return gradient

    @ops.custom_gradient
    def sums_of(tokens, table):
        rounded = ops.cast(table, multiplied)
        by_class = ops.transpose(rounded)  # [D, V]
        mean_class = ops.expand_dims(ops.mean(ops.cast(table, "float32"), axis=0), -1)  # [D, 1]

        def step(index, sums, tokens_slope, table_slope):
            start = index * chunk_rows
            chunk = ops.reshape(
                ops.slice(tokens, (0, start, 0), (passes, chunk_rows, size)), (-1, size)
            )

            def part_of(values):
                return ops.tile(
                    ops.slice(values, (start, 0), (chunk_rows, values.shape[-1])), (passes, 1)
                )

            chunk_labels, chunk_shares = part_of(labels), part_of(shares)
            chunk_weights = part_of(ops.expand_dims(weights, -1))
            logits = ops.cast(ops.matmul(ops.cast(chunk, multiplied), by_class), "float32")
            highest = ops.max(logits, axis=-1, keepdims=True)
            shifted = logits - highest
            class_logits = ops.take_along_axis(shifted, chunk_labels, axis=-1)  # [P C, K]
            label_logits = class_logits[:, :1]
            probabilities = ops.exp(shifted)
            norm = ops.sum(probabilities, axis=-1, keepdims=True)
            log_norm = ops.log(norm)
            nll = log_norm - label_logits
            loss = log_norm - ops.sum(chunk_shares * class_logits, axis=-1, keepdims=True)
            if is_smoothed:
                # The mean of a token's logits is its logit at the mean of the classes, which spares
                # a pass over all of them.
                mean = ops.matmul(ops.cast(chunk, "float32"), mean_class) - highest
                loss = loss - part_of(rest) * mean
            if consistency:
                divergence, pull = divergence_of(shifted, probabilities, norm)
                loss = loss + consistency / 2 * divergence
            hits = ops.cast(ops.equal(label_logits, 0.0), "float32")
            counted = ops.concatenate([loss, nll, hits], axis=-1)
            counted = ops.where(ops.not_equal(chunk_weights, 0), counted, 0.0) * chunk_weights
            sums = sums + ops.sum(counted, axis=0)
            if training:
                # exp(shifted) is p times its sum, by which the narrow matrices are divided; half
                # precision lacks the range.
                numbers = ops.broadcast_to(
                    ops.expand_dims(ops.arange(passes * chunk_rows, dtype="int32"), -1),
                    ops.shape(chunk_labels),
                )
                places = ops.reshape(ops.stack([numbers, chunk_labels], axis=-1), (-1, 2))
                at_classes = ops.exp(class_logits) - chunk_shares * norm
                slope = ops.scatter_update(
                    probabilities, places, ops.reshape(at_classes, (-1,))
                )  # [P C, V]
                if consistency:
                    slope = slope + consistency * norm * pull
                if dtype != "float32":
                    slope, norm = slope / norm, 1.0
                slope = ops.cast(slope, multiplied)
                to_tokens = ops.cast(ops.matmul(slope, rounded), "float32") / norm  # [P C, D]
                tokens_slope = ops.slice_update(
                    tokens_slope, (0, start, 0), ops.reshape(to_tokens, (passes, chunk_rows, size))
                )
                weighted = ops.cast(ops.cast(chunk, "float32") * (chunk_weights / norm), multiplied)
                table_slope = table_slope + ops.cast(
                    ops.matmul(ops.transpose(weighted), slope), "float32"
                )  # [D, V]
            return index + 1, sums, tokens_slope, table_slope

        if kernels.has_kernels():
            settings = (consistency, training, given_rows, multiplied)
            sums, tokens_slope, table_slope = kernels.class_sums(
                tokens, table, labels, shares, rest, weights, *settings
            )
            return sums, gradient_of(tokens, table, tokens_slope, table_slope)
        empty = (
            ops.zeros((3,), "float32"),
            ops.zeros(ops.shape(tokens) if training else (1, 1, size), "float32"),
            ops.zeros((size, classes) if training else (size, 1), "float32"),
        )
        _, sums, tokens_slope, table_slope = _repeat(step, num_chunks, empty)

        return sums, gradient_of(tokens, table, tokens_slope, table_slope)

    return sums_of(tokens, table)


def _repeat(step, count, state):
    """Runs `step(index, *state)` for the indices below `count`; a single step needs no loop."""
    if isinstance(count, int) and count == 1:
        return step(0, *state)
    return ops.while_loop(lambda index, *state: index < count, step, (0, *state))
