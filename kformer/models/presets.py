"""Presets: recommended models by name, each with the source of its sizes."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Preset:
    """A recommended model: sizes, dropout, norms and positions.

    Attributes:
        config: dict. Keyword arguments of `Transformer`, all but the vocabulary size.
        source: str. The publication that the sizes come from.
        reference_vocabulary_size: int. The vocabulary size at which `parameters` was counted.
        parameters: int. Trainable parameters at that vocabulary size, with one table for source,
            target and output.
    """

    config: dict
    source: str
    reference_vocabulary_size: int
    parameters: int

    def parameters_at(self, vocabulary_size):
        """Returns the number of trainable parameters with a joint vocabulary of another size.

        Args:
            vocabulary_size: int.

        Returns:
            int.
        """
        return (
            self.parameters
            + (vocabulary_size - self.reference_vocabulary_size) * self.config["hidden_dim"]
        )


def _size(num_layers, hidden_dim, intermediate_dim, num_heads, dropout, **options):
    return {
        "num_encoder_layers": num_layers,
        "num_decoder_layers": num_layers,
        "hidden_dim": hidden_dim,
        "intermediate_dim": intermediate_dim,
        "num_heads": num_heads,
        "dropout": dropout,
        **options,
    }


# Norms before the sub-layers and rotary positions make training faster and more stable.
_OURS = {"normalize_first": True, "position_encoding": "rope"}
# These are for serving: a sentence goes through the encoder once, and through the decoder as often
# as it has tokens.
_BALANCED = {"num_decoder_layers": 2, **_OURS}
_STUDENT = {"num_decoder_layers": 1, **_OURS}
_DEPTHS = "the depths of Kasai et al. 2021, 'Deep encoder, shallow decoder', arXiv 2006.10369"
_PAPER = {"normalize_first": False, "position_encoding": "sinusoidal"}

PRESETS = {
    "tiny": Preset(
        _size(4, 128, 256, 4, dropout=0.3, **_OURS),
        "Sizes: Wu et al. 2021, 'Good for misconceived reasons', arXiv 2105.14462: "
        "Transformer-Tiny for Multi30k",
        reference_vocabulary_size=10_000,
        parameters=2_605_568,
    ),
    "small": Preset(
        _size(3, 256, 1024, 4, dropout=0.3, **_OURS),
        "kformer's own: between tiny and base, for corpora of some hundred thousand pairs",
        reference_vocabulary_size=10_000,
        parameters=8_090_624,
    ),
    "base": Preset(
        _size(6, 512, 2048, 8, dropout=0.1, **_OURS),
        "Sizes: Vaswani et al. 2017, 'Attention is all you need', table 3, base",
        reference_vocabulary_size=37_000,
        parameters=63_084_544,
    ),
    "big": Preset(
        _size(6, 1024, 4096, 16, dropout=0.3, **_OURS),
        "Sizes: Vaswani et al. 2017, 'Attention is all you need', table 3, big",
        reference_vocabulary_size=37_000,
        parameters=214_249_472,
    ),
    "paper_base": Preset(
        _size(6, 512, 2048, 8, dropout=0.1, **_PAPER),
        "Vaswani et al. 2017, 'Attention is all you need', table 3, base",
        reference_vocabulary_size=37_000,
        parameters=63_082_496,
    ),
    "paper_big": Preset(
        _size(6, 1024, 4096, 16, dropout=0.3, **_PAPER),
        "Vaswani et al. 2017, 'Attention is all you need', table 3, big",
        reference_vocabulary_size=37_000,
        parameters=214_245_376,
    ),
    "tiny_balanced": Preset(
        _size(6, 128, 320, 4, dropout=0.3, **_BALANCED),
        f"kformer's own: as many parameters as tiny, near {_DEPTHS}",
        reference_vocabulary_size=10_000,
        parameters=2_604_544,
    ),
    "small_balanced": Preset(
        _size(6, 256, 704, 4, dropout=0.3, **_BALANCED),
        f"kformer's own: as many parameters as small, near {_DEPTHS}",
        reference_vocabulary_size=10_000,
        parameters=8_093_184,
    ),
    "base_balanced": Preset(
        _size(6, 512, 2048, 8, dropout=0.1, **_BALANCED),
        f"Sizes: base; near {_DEPTHS}",
        reference_vocabulary_size=37_000,
        parameters=46_268_416,
    ),
    "tiny_student": Preset(
        _size(6, 128, 448, 4, dropout=0.3, **_STUDENT),
        f"kformer's own: as many parameters as tiny, in {_DEPTHS}",
        reference_vocabulary_size=10_000,
        parameters=2_619_584,
    ),
    "small_student": Preset(
        _size(6, 256, 1024, 4, dropout=0.3, **_STUDENT),
        f"kformer's own: small in {_DEPTHS}",
        reference_vocabulary_size=10_000,
        parameters=8_353_024,
    ),
    "base_student": Preset(
        _size(6, 512, 2048, 8, dropout=0.1, **_STUDENT),
        f"Sizes: base; {_DEPTHS}",
        reference_vocabulary_size=37_000,
        parameters=42_064_384,
    ),
}
