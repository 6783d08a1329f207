"""A second form of the mathematics of a `Transformer`, in the fewest operations of TensorFlow or
PyTorch.
"""
