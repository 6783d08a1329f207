"""The operations of a search's forward pass, in the form that is quickest on a backend.

At one token per row a step is hundreds of small operations, and what each costs beside its
arithmetic decides. Keras's operations convert and check their inputs at each call (PyTorch, where
there is no graph to keep) or become several of the graph's (TensorFlow). Here each is one call or a
few of the backend's own. JAX compiles the layers themselves as well as these, so it has no need of
them.

Shape letters: R rows, K and M sizes of a product, N heads, H head size, T queries, S keys.
"""

import keras


def has_kernels():
    """Whether this backend gains by them."""
    return keras.backend.backend() in ("tensorflow", "torch")


def kernels():
    """The kernels of the backend in use."""
    if keras.backend.backend() == "tensorflow":
        from kformer.decoding.fast.ops_tensorflow import TensorFlowKernels

        return TensorFlowKernels()
    from kformer.decoding.fast.ops_torch import TorchKernels

    return TorchKernels()
