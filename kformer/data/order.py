"""The options that decide which pairs are in which batch."""

import dataclasses

import keras

from kformer.data.batching import BatchPlan
from kformer.data.packing import PackedPlan
from kformer.utils.checks import check_whole

# Batch shapes; JAX compiles each, which takes longer than the padding that more would save.
USUAL_SHAPES, COMPILED_SHAPES = 8, 3
USUAL_BATCH_TOKENS = 4096


def default_max_shapes():
    """The most batch shapes if nothing else is asked for: 3 on JAX, 8 on other backends."""
    return COMPILED_SHAPES if keras.backend.backend() == "jax" else USUAL_SHAPES


def choose_batch_tokens(num_tokens):
    """Chooses the tokens of a batch: 4096, or less so that an epoch has 200 steps, at least 512.

    Smaller batches mean more updates: on 29,000 pairs a model needs half as many epochs with 2048
    tokens as with 4096.

    Args:
        num_tokens: int. The tokens of an epoch.

    Returns:
        The number of tokens, an int power of two, and the reason, str.
    """
    tokens = USUAL_BATCH_TOKENS
    while tokens > 512 and num_tokens / tokens < 200:
        tokens //= 2
    if tokens == USUAL_BATCH_TOKENS:
        return tokens, "as is usual"
    less = f"less than the usual {USUAL_BATCH_TOKENS:,}"
    if num_tokens / tokens < 200:
        return tokens, f"the minimum, and {less}, as the text is short"
    return tokens, f"{less}, so that an epoch still has at least 200 steps"


@dataclasses.dataclass(frozen=True)
class BatchOrder:
    """The options that decide which pairs are in which batch.

    Args:
        batch_tokens, seed, shuffle, max_shapes, packed, host, num_hosts, num_devices: see
            `ParallelDataset`.

    Raises:
        ValueError: an option is out of range.
    """

    batch_tokens: int | None
    seed: int
    shuffle: bool
    max_shapes: int | None
    packed: bool
    host: int
    num_hosts: int
    num_devices: int = 1

    def __post_init__(self):
        if self.max_shapes is None:
            object.__setattr__(self, "max_shapes", default_max_shapes())
        for name, least in (
            ("batch_tokens", 1),
            ("seed", 0),
            ("max_shapes", 1),
            ("num_hosts", 1),
            ("num_devices", 1),
            ("host", 0),
        ):
            if (value := getattr(self, name)) is not None:
                object.__setattr__(self, name, check_whole(name, value, least))
        if self.host >= self.num_hosts:
            raise ValueError(
                f"host must be below num_hosts={self.num_hosts} (hosts count from 0), but it is "
                f"{self.host}."
            )

    def for_tokens(self, num_tokens):
        """The same options; a number of tokens for each batch is chosen if none is given.

        Args:
            num_tokens: int. The tokens of an epoch on the longer side.

        Returns:
            `BatchOrder`.
        """
        tokens = self.batch_tokens or choose_batch_tokens(num_tokens)[0]
        return dataclasses.replace(self, batch_tokens=tokens)

    def plan(self, source_lengths, target_lengths):
        """The plan of the batches of pairs of these lengths."""
        lengths = source_lengths, target_lengths
        shared = {"num_hosts": self.num_hosts, "seed": self.seed, "shuffle": self.shuffle}
        if self.packed:
            return PackedPlan(*lengths, self.batch_tokens, **shared)
        return BatchPlan(*lengths, self.batch_tokens, max_shapes=self.max_shapes, **shared)
