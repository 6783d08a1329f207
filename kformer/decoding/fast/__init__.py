"""The second form of the decoder's mathematics, in the fewest operations of TensorFlow or PyTorch."""
