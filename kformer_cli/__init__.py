"""The `kformer` command, which chooses backend and threads before it imports kformer and Keras."""
