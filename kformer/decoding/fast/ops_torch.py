"""The operations of the fast decoder on PyTorch."""

from kformer.decoding.fast.ops import FastOps
from kformer.layers.feed_forward import GELU_FACTOR


class TorchOps(FastOps):
    """For eager execution. Here a bound weight is the variable's tensor."""

    def __init__(self):
        import torch

        self._torch, self._functional = torch, torch.nn.functional
        self.split, self.unstack = torch.chunk, lambda x, parts: x.unbind(0)
        self.reshape, self.transpose = lambda x, shape: x.reshape(shape), torch.permute

    # Weights.

    def bind_projection(self, variable, is_table, tokens=None, factors=None):
        if tokens is not None:
            return variable.value[tokens].T if is_table else variable.value[:, tokens]
        return variable.value.T if is_table else variable.value

    def project(self, x, projection, carried, bias=None):
        return self.product(x, projection, bias)

    # Rows.

    def product(self, x, kernel, bias=None, is_positive=False):
        return x @ kernel if bias is None else self._torch.addmm(bias, x, kernel)

    def activate(self, x, name):
        if name == "sigmoid":  # Among the functions of layers it is deprecated.
            return self._torch.sigmoid(x)
        if name == "gelu_sigmoid":
            return x * self._torch.sigmoid(GELU_FACTOR * x)
        return getattr(self._functional, name)(x)

    def layer_norm(self, x, gamma, beta, epsilon):
        return self._functional.layer_norm(x, gamma.shape, gamma, beta, epsilon)

    def gather(self, table, indices):
        return table[indices]

    # Attention.

    def attend(self, query, key, value, scale, bias):
        attention = self._functional.scaled_dot_product_attention
        return attention(query, key, value, attn_mask=bias, scale=scale)

    def extend(self, cache, new, index):
        return self._torch.cat([cache, new], 2)

    def attend_cache(self, query, key, value, scale, index):
        context = self._functional.scaled_dot_product_attention(query, key, value, scale=scale)
        return context.reshape(len(query), -1)

    def attend_source(self, query, key, value, bias, width):
        sentences, heads, _, head_dim = key.shape
        # The rows of a sentence are the queries of one attention.
        query = query.reshape(sentences, width, heads, head_dim).transpose(1, 2)
        context = self.attend(query, key, value, 1.0, bias).transpose(1, 2)
        return context.reshape(sentences * width, -1)

    def swap(self, x, interleaved):
        size = x.shape[-1]
        if interleaved:
            return x.unflatten(-1, (size // 2, 2)).flip(-1).flatten(-2)
        return x.roll(size // 2, -1)

    # Shapes.

    def pack(self, mask):
        int32 = self._torch.int32
        return mask.nonzero()[:, 0].to(int32), mask.cumsum(0, dtype=int32) - 1
