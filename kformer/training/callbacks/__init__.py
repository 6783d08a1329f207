"""Callbacks for `model.fit`. Their public names are in `kformer.training`."""
