"""The options that decide which pairs are in which batch."""

import dataclasses

import keras

from kformer.data.batching import BatchPlan
from kformer.data.packing import PackedPlan
from kformer.utils.checks import check_whole

# Batch shapes; JAX compiles each, which takes longer than the padding that more would save.
USUAL_SHAPES, COMPILED_SHAPES = 8, 3


def default_max_shapes():
    """The most batch shapes if nothing else is asked for: 3 on JAX, 8 on other backends."""
    return COMPILED_SHAPES if keras.backend.backend() == "jax" else USUAL_SHAPES


@dataclasses.dataclass(frozen=True)
class BatchOrder:
    """The options that decide which pairs are in which batch.

    Args:
        batch_tokens, seed, shuffle, max_shapes, packed, host, num_hosts: see `ParallelDataset`.

    Raises:
        ValueError: an option is out of range.
    """

    batch_tokens: int
    seed: int
    shuffle: bool
    max_shapes: int | None
    packed: bool
    host: int
    num_hosts: int

    def __post_init__(self):
        if self.max_shapes is None:
            object.__setattr__(self, "max_shapes", default_max_shapes())
        for name, least in (
            ("batch_tokens", 1),
            ("seed", 0),
            ("max_shapes", 1),
            ("num_hosts", 1),
            ("host", 0),
        ):
            check_whole(name, getattr(self, name), least)
        if self.host >= self.num_hosts:
            raise ValueError(
                f"host must be below num_hosts={self.num_hosts} (hosts count from 0), but it is "
                f"{self.host}."
            )

    def plan(self, source_lengths, target_lengths):
        """The plan of the batches of pairs of these lengths."""
        lengths, tokens = (source_lengths, target_lengths), int(self.batch_tokens)
        shared = {
            "num_hosts": int(self.num_hosts),
            "seed": int(self.seed),
            "shuffle": bool(self.shuffle),
        }
        if self.packed:
            return PackedPlan(*lengths, tokens, **shared)
        return BatchPlan(*lengths, tokens, max_shapes=int(self.max_shapes), **shared)
