"""Projection to the vocabulary and cross-entropy in one, without the logits of a whole batch ever being there."""

import keras
from keras import ops

# Elements of the logits that exist at a time: 16 MiB of float32, about what a processor's last cache holds.
_CHUNK_ELEMENTS = 2**22
_FEWEST_ROWS = 128


def projected_crossentropy(hidden, table, labels, weights, label_smoothing=0.0, training=True, chunk_rows=None):
    """Weighted sums of loss, negative log-likelihood and right guesses, of logits `hidden @ table.T` that are never kept.

    Logits of a batch of 4,096 tokens over 32,000 pieces take 512 MiB, their softmax and its gradient as much again each.
    Here they are made chunk by chunk; while a chunk's softmax is at hand, its part of the gradient is computed as well, so
    the backward pass only scales what is ready.

    With `p` the softmax, `e` the label's unit vector, `s` the label smoothing and `V` the vocabulary size, the gradient at
    the logits is `p - (1 - s) e - s / V`. Its last term is the same for all classes, and so is its effect on `hidden` and
    `table` (a mean over the table, a sum over the tokens): it never has to be subtracted from all the `p`. The term before
    it is subtracted from the label's `p` in float32, before anything is rounded: where the model is sure, little is left.

    Args:
        hidden: float tensor `[B, T, D]`, what the decoder gives.
        table: float tensor `[V, D]` of the same dtype, the output projection.
        labels: int tensor `[B, T]`; outside `[0, V)` the nearest class is meant.
        weights: float32 tensor `[B, T]`, what each token counts.
        label_smoothing: float in `[0, 1)`.
        training: bool; without it no gradient is prepared, and none can be had.
        chunk_rows: int, tokens whose logits exist at a time; `None` chooses by the vocabulary size.

    Returns:
        float32 tensor `[3]`: `sum(w * loss)`, `sum(w * nll)`, `sum(w * hit)`. A hit is a label with the highest logit. Only
        the first has a gradient.
    """
    classes, size = table.shape
    labels = ops.reshape(ops.clip(ops.cast(labels, "int32"), 0, classes - 1), (-1,))
    weights = ops.reshape(weights, (-1,))
    rows = ops.shape(labels)[0]
    chunk_rows = chunk_rows or max(_FEWEST_ROWS, _CHUNK_ELEMENTS // classes)
    num_chunks = (rows + chunk_rows - 1) // chunk_rows
    # Chunks of one size, as even as they can be: no shape changes in the loop, and few rows are padding.
    num_chunks = max(num_chunks, 1) if isinstance(num_chunks, int) else ops.maximum(num_chunks, 1)
    chunk_rows = (rows + num_chunks - 1) // num_chunks
    missing = num_chunks * chunk_rows - rows
    labels = _pad_rows(labels, missing)  # [N]
    weights = _pad_rows(weights, missing)  # [N]
    tokens = _pad_rows(ops.reshape(hidden, (-1, size)), missing)  # [N, D]
    table = ops.reshape(table, (classes, size))  # A tensor: TensorFlow takes no variable below.

    @ops.custom_gradient
    def sums_of(tokens, table):
        dtype = keras.backend.standardize_dtype(tokens.dtype)
        by_class = ops.transpose(table)  # [D, V]

        def step(index, sums, tokens_slope, table_slope):
            start = index * chunk_rows
            chunk = ops.slice(tokens, (start, 0), (chunk_rows, size))
            chunk_labels = ops.expand_dims(ops.slice(labels, (start,), (chunk_rows,)), -1)
            chunk_weights = ops.expand_dims(ops.slice(weights, (start,), (chunk_rows,)), -1)
            logits = ops.cast(ops.matmul(chunk, by_class), "float32")
            highest = ops.max(logits, axis=-1, keepdims=True)
            shifted = logits - highest
            label_logits = ops.take_along_axis(shifted, chunk_labels, axis=-1)
            probabilities = ops.exp(shifted)
            norm = ops.sum(probabilities, axis=-1, keepdims=True)
            nll = ops.log(norm) - label_logits
            loss = nll
            if label_smoothing:
                loss = loss + label_smoothing * (label_logits - ops.mean(shifted, axis=-1, keepdims=True))
            hits = ops.cast(ops.equal(label_logits, 0.0), "float32")
            counted = ops.concatenate([loss, nll, hits], axis=-1)
            counted = ops.where(ops.not_equal(chunk_weights, 0), counted, 0.0) * chunk_weights
            sums = sums + ops.sum(counted, axis=0)
            if training:
                # exp(shifted) is p times its sum, by which the narrow matrices are divided; half precision lacks the range.
                places = ops.concatenate([ops.expand_dims(ops.arange(chunk_rows, dtype="int32"), -1), chunk_labels], axis=-1)
                at_label = ops.exp(label_logits) - (1.0 - label_smoothing) * norm
                slope = ops.scatter_update(probabilities, places, ops.squeeze(at_label, -1))  # [C, V]
                if dtype != "float32":
                    slope, norm = ops.cast(slope / norm, dtype), 1.0
                to_tokens = ops.cast(ops.matmul(slope, table), "float32") / norm  # [C, D]
                tokens_slope = ops.slice_update(tokens_slope, (start, 0), to_tokens)
                weighted = ops.cast(ops.cast(chunk, "float32") * (chunk_weights / norm), dtype)
                table_slope = table_slope + ops.cast(ops.matmul(ops.transpose(weighted), slope), "float32")  # [D, V]
            return index + 1, sums, tokens_slope, table_slope

        empty = (
            ops.zeros((3,), "float32"),
            ops.zeros(ops.shape(tokens) if training else (1, size), "float32"),
            ops.zeros((size, classes) if training else (size, 1), "float32"),
        )
        _, sums, tokens_slope, table_slope = _repeat(step, num_chunks, empty)

        def gradient(*args, upstream=None):
            # PyTorch hands the upstream gradient by name (behind the inputs), TensorFlow and JAX as the one argument.
            upstream = (args[0] if upstream is None else upstream)[0]
            row_weights = ops.expand_dims(weights, -1)
            to_tokens, to_table = tokens_slope, ops.transpose(table_slope)
            if label_smoothing:
                to_tokens = to_tokens - label_smoothing * ops.mean(ops.cast(table, "float32"), axis=0)
                to_table = to_table - label_smoothing / classes * ops.sum(ops.cast(tokens, "float32") * row_weights, axis=0)
            return ops.cast(to_tokens * row_weights * upstream, dtype), ops.cast(to_table * upstream, dtype)

        return sums, gradient

    return sums_of(tokens, table)


def _repeat(step, count, state):
    """Runs `step(index, *state)` for the indices below `count`; a single step needs no loop."""
    if isinstance(count, int) and count == 1:
        return step(0, *state)
    return ops.while_loop(lambda index, *state: index < count, step, (0, *state))


def _pad_rows(x, missing):
    """`x` with zeros behind its first axis."""
    return ops.pad(x, [(0, missing)] + [(0, 0)] * (len(x.shape) - 1))
