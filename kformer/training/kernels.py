"""What a training step computes with a backend's own operations, where Keras's would take more
passes over large arrays.
"""

import keras

from kformer.training.consistency import divergence_of

# Elements of the logits that exist at a time: on a processor what its caches hold, on a GPU enough
# to keep it busy.
_CPU_ELEMENTS, _GPU_ELEMENTS = 2**21, 2**25


def has_kernels():
    """Whether `class_sums` runs on this backend."""
    return keras.backend.backend() == "torch"


def class_sums(
    tokens, table, labels, shares, rest, weights, consistency, training, chunk_rows, multiplied
):
    """The forward pass of `projected_crossentropy` and what its backward pass will need, on
    PyTorch.

    The logits of all chunks are written into one buffer and turned in place into exponentials and
    then into slopes: a processor takes several times as long for memory that is new. In half
    precision there are two, one for what is multiplied and one in float32.

    Args:
        tokens: float tensor `[P, N, D]`.
        table: float tensor `[V, D]` of the same dtype.
        labels, shares: int and float32 tensors `[N, K]`, classes and what of the target
            distribution falls to each; the first is the label.
        rest: float32 tensor `[N, 1]`, what is spread over all classes.
        weights: float32 tensor `[N]`.
        consistency, training, chunk_rows: as there.
        multiplied: the dtype to which matrices are rounded before they are multiplied.

    Returns:
        float32 tensors: the three sums, the slope of the tokens `[P, N, D]` before their weights,
        and of the table `[D, V]`; `None` for the latter two without training.
    """
    import torch

    all_tokens = tokens
    # Padding counts nothing and need not be computed; to know how much of it there is would keep a
    # GPU waiting.
    real = None if tokens.is_cuda else weights.nonzero()[:, 0]
    if real is not None and len(real) < len(weights):
        tokens, labels, shares, rest, weights = (
            tokens[:, real],
            labels[real],
            shares[real],
            rest[real],
            weights[real],
        )
    passes, rows, size = tokens.shape
    classes = table.shape[0]
    most = _GPU_ELEMENTS if tokens.is_cuda else _CPU_ELEMENTS
    chunk_rows = max(1, min(rows, chunk_rows or max(128, most // classes // passes)))
    with torch.no_grad():
        sums = tokens.new_zeros(3, dtype=torch.float32)
        tokens_slope = tokens.new_empty(tokens.shape, dtype=torch.float32) if training else None
        table_slope = tokens.new_zeros((size, classes), dtype=torch.float32) if training else None
        mean_class = table.float().mean(0)
        low = getattr(torch, multiplied)
        rounded = table.to(low)
        buffer = tokens.new_empty((passes * chunk_rows, classes), dtype=low)
        wide = (
            buffer if low == torch.float32 else tokens.new_empty(buffer.shape, dtype=torch.float32)
        )
        for start in range(0, rows, chunk_rows):
            rows_here = slice(start, start + chunk_rows)
            chunk = tokens[:, rows_here]
            chunk_labels = labels[rows_here].to(torch.int64).repeat(passes, 1)
            chunk_shares, chunk_rest = (
                shares[rows_here].repeat(passes, 1),
                rest[rows_here].repeat(passes, 1),
            )
            chunk_weights = weights[rows_here].repeat(passes)[:, None]
            shape, chunk = chunk.shape, chunk.reshape(-1, size)
            products = torch.mm(chunk.to(low), rounded.t(), out=buffer[: len(chunk)])
            logits = products if low == torch.float32 else wide[: len(chunk)].copy_(products)
            highest = logits.amax(-1, keepdim=True)
            logits.sub_(highest)
            class_logits = logits.gather(-1, chunk_labels)
            label_logits = class_logits[:, :1]
            shifted = logits.clone() if consistency else None
            exponentials = logits.exp_()
            norm = exponentials.sum(-1, keepdim=True)
            log_norm = norm.log()
            nll = log_norm - label_logits
            # The mean of a token's logits is its logit at the mean of the classes.
            mean = (chunk.float() @ mean_class)[:, None] - highest
            loss = (
                log_norm - (chunk_shares * class_logits).sum(-1, keepdim=True) - chunk_rest * mean
            )
            if consistency:
                divergence, pull = divergence_of(shifted, exponentials, norm)
                loss = loss + consistency / 2 * divergence
            counted = torch.cat([loss, nll, (label_logits == 0).float()], -1)
            sums += (counted.masked_fill_(chunk_weights == 0, 0.0) * chunk_weights).sum(0)
            if training:
                slope = exponentials.scatter_(
                    -1, chunk_labels, class_logits.exp() - chunk_shares * norm
                )
                if consistency:
                    slope.addcmul_(pull, norm, value=consistency)
                if tokens.dtype != torch.float32:
                    slope, norm = slope.div_(norm), 1.0
                slope = slope if low == torch.float32 else products.copy_(slope)
                tokens_slope[:, rows_here] = (slope @ rounded).float().div_(norm).reshape(shape)
                weighted = (chunk.float() * (chunk_weights / norm)).to(low)
                if low == torch.float32:
                    table_slope.addmm_(weighted.t(), slope)
                else:
                    table_slope += weighted.t() @ slope
        if training and tokens is not all_tokens:
            tokens_slope = torch.zeros_like(all_tokens, dtype=torch.float32).index_copy_(
                1, real, tokens_slope
            )
        return sums, tokens_slope, table_slope
