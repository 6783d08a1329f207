"""The `kformer` command: it chooses backend and threads before kformer, and with it Keras, is imported."""
