"""Named model sizes, each with the publication that it comes from."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Preset:
    """A model size.

    Attributes:
        config: keyword arguments of `Transformer`, all but the vocabulary.
        source: the publication whose table has this size.
        reference_vocabulary_size: the vocabulary size at which `parameters` was counted.
        parameters: trainable parameters at that vocabulary size, with one table for source, target
            and output.
    """

    config: dict
    source: str
    reference_vocabulary_size: int
    parameters: int

    def parameters_at(self, vocabulary_size):
        """Trainable parameters with a joint vocabulary of another size."""
        return (
            self.parameters
            + (vocabulary_size - self.reference_vocabulary_size) * self.config["hidden_dim"]
        )


def _size(num_layers, hidden_dim, intermediate_dim, num_heads, dropout):
    return {
        "num_encoder_layers": num_layers,
        "num_decoder_layers": num_layers,
        "hidden_dim": hidden_dim,
        "intermediate_dim": intermediate_dim,
        "num_heads": num_heads,
        "dropout": dropout,
    }


PRESETS = {
    "tiny": Preset(
        _size(4, 128, 256, 4, dropout=0.3),
        "Wu et al. 2021, 'Good for misconceived reasons', arXiv 2105.14462: Transformer-Tiny for Multi30k",
        reference_vocabulary_size=10_000,
        parameters=2_605_056,
    ),
    "small": Preset(
        _size(3, 256, 1024, 4, dropout=0.3),
        "kformer's own: between tiny and base, for corpora of some hundred thousand pairs",
        reference_vocabulary_size=10_000,
        parameters=8_089_600,
    ),
    "base": Preset(
        _size(6, 512, 2048, 8, dropout=0.1),
        "Vaswani et al. 2017, 'Attention is all you need', table 3, base",
        reference_vocabulary_size=37_000,
        parameters=63_082_496,
    ),
    "big": Preset(
        _size(6, 1024, 4096, 16, dropout=0.3),
        "Vaswani et al. 2017, 'Attention is all you need', table 3, big",
        reference_vocabulary_size=37_000,
        parameters=214_245_376,
    ),
}
