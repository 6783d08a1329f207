"""The sums and gradients of the projected loss with PyTorch's own operations, which work in place.

Keras's operations would make several more passes over arrays of the logits' size."""

from kformer.training.consistency import divergence_of

# Elements of the logits that exist at a time: what a CPU's caches hold, and enough for a GPU.
_CPU_ELEMENTS, _GPU_ELEMENTS = 2**21, 2**25
_FEWEST_ROWS = 128


def class_sums(tokens, table, targets, settings):
    """The forward pass of `projected_crossentropy` and the gradients for its backward pass.

    Args:
        tokens: float tensor `[P, N, D]`.
        table: float tensor `[V, D]` of the same dtype.
        targets: `kformer.training.projected_loss.Targets`.
        settings: `kformer.training.projected_loss.Settings`.

    Returns:
        float32 tensors: the three sums; the gradient of the tokens `[P, N, D]` before their
        weights; and that of the table, transposed, `[D, V]`. Without training the last two are
        `None`.
    """
    import torch

    all_tokens = tokens
    with torch.no_grad():
        # Padding has weight 0 and is skipped. On a GPU the count of real tokens would have to be
        # waited for.
        real = None if tokens.is_cuda else targets.weights.nonzero()[:, 0]
        if real is not None and len(real) < len(targets.weights):
            tokens, targets = tokens[:, real], type(targets)(*(values[real] for values in targets))
        chunks = _Chunks(tokens, table, targets, settings)
        for start in range(0, tokens.shape[1], chunks.rows):
            chunks.add(slice(start, start + chunks.rows))
        tokens_slope = chunks.tokens_slope
        if settings.training and tokens is not all_tokens:
            slope = torch.zeros_like(all_tokens, dtype=torch.float32)
            tokens_slope = slope.index_copy_(1, real, tokens_slope)
    return chunks.sums, tokens_slope, chunks.table_slope


class _Chunks:
    """The sums and gradients so far, and buffers that all chunks share.

    The logits of a chunk are written into a buffer and changed in place into exponentials and then
    into gradients, since new memory costs a CPU several times as much. In half precision there are
    two buffers: one for the products and one in float32."""

    def __init__(self, tokens, table, targets, settings):
        import torch

        self.tokens, self.targets, self.settings = tokens, targets, settings
        passes, rows, size = tokens.shape
        classes = table.shape[0]
        most = _GPU_ELEMENTS if tokens.is_cuda else _CPU_ELEMENTS
        most_rows = settings.chunk_rows or max(_FEWEST_ROWS, most // classes // passes)
        self.rows = max(1, min(rows, most_rows))
        self.low = getattr(torch, settings.multiplied)
        self.is_full = self.low == torch.float32
        self.mean_class = table.float().mean(0)
        self.rounded = table.to(self.low)
        self.buffer = tokens.new_empty((passes * self.rows, classes), dtype=self.low)
        self.wide = self.buffer
        if not self.is_full:
            self.wide = tokens.new_empty(self.buffer.shape, dtype=torch.float32)
        self.sums = tokens.new_zeros(3, dtype=torch.float32)
        self.tokens_slope = self.table_slope = None
        if settings.training:
            self.tokens_slope = tokens.new_empty(tokens.shape, dtype=torch.float32)
            self.table_slope = tokens.new_zeros((size, classes), dtype=torch.float32)

    def add(self, rows):
        """Adds the tokens of some rows, a slice, of all passes."""
        import torch

        passes, consistency = self.tokens.shape[0], self.settings.consistency
        labels, shares, rest = (values[rows].repeat(passes, 1) for values in self.targets[:3])
        labels = labels.to(torch.int64)
        weights = self.targets.weights[rows].repeat(passes)[:, None]
        chunk = self.tokens[:, rows].reshape(-1, self.tokens.shape[-1])
        products = torch.mm(chunk.to(self.low), self.rounded.t(), out=self.buffer[: len(chunk)])
        logits = products if self.is_full else self.wide[: len(chunk)].copy_(products)
        highest = logits.amax(-1, keepdim=True)
        logits.sub_(highest)
        class_logits = logits.gather(-1, labels)
        label_logits = class_logits[:, :1]
        shifted = logits.clone() if consistency else None
        exponentials = logits.exp_()
        norm = exponentials.sum(-1, keepdim=True)
        log_norm = norm.log()
        # The mean of a token's logits is its logit at the mean of the classes.
        mean = (chunk.float() @ self.mean_class)[:, None] - highest
        loss = log_norm - (shares * class_logits).sum(-1, keepdim=True) - rest * mean
        pull = None
        if consistency:
            divergence, pull = divergence_of(shifted, exponentials, norm)
            loss = loss + consistency / 2 * divergence
        counted = torch.cat([loss, log_norm - label_logits, (label_logits == 0).float()], -1)
        self.sums += (counted.masked_fill_(weights == 0, 0.0) * weights).sum(0)
        if self.settings.training:
            slope = exponentials.scatter_(-1, labels, class_logits.exp() - shares * norm)
            if consistency:
                slope.addcmul_(pull, norm, value=consistency)
            if self.tokens.dtype != torch.float32:
                slope, norm = slope.div_(norm), 1.0
            slope = slope if self.is_full else products.copy_(slope)
            self._add_slope(rows, chunk, slope, weights, norm)

    def _add_slope(self, rows, chunk, slope, weights, norm):
        """Adds the gradients, given `slope`: those at the chunk's logits, times `norm`."""
        target = self.tokens_slope[:, rows]
        self.tokens_slope[:, rows] = (slope @ self.rounded).float().div_(norm).reshape(target.shape)
        weighted = (chunk.float() * (weights / norm)).to(self.low)
        if self.is_full:
            self.table_slope.addmm_(weighted.t(), slope)
        else:
            self.table_slope += weighted.t() @ slope
