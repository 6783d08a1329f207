import math

import pytest

import kformer
from kformer.models import PRESETS

LITERAL = {
    "tiny": 2_605_568,
    "small": 8_090_624,
    "base": 63_084_544,
    "big": 214_249_472,
    "paper_base": 63_082_496,
    "paper_big": 214_245_376,
    "tiny_balanced": 2_604_544,
    "small_balanced": 8_093_184,
    "base_balanced": 46_268_416,
    "tiny_student": 2_619_584,
    "small_student": 8_353_024,
    "base_student": 42_064_384,
}
SIZES = {
    "tiny": (4, 4, 128, 256, 4),
    "small": (3, 3, 256, 1024, 4),
    "base": (6, 6, 512, 2048, 8),
    "big": (6, 6, 1024, 4096, 16),
    "paper_base": (6, 6, 512, 2048, 8),
    "paper_big": (6, 6, 1024, 4096, 16),
    "tiny_balanced": (6, 2, 128, 320, 4),
    "small_balanced": (6, 2, 256, 704, 4),
    "base_balanced": (6, 2, 512, 2048, 8),
    "tiny_student": (6, 1, 128, 448, 4),
    "small_student": (6, 1, 256, 1024, 4),
    "base_student": (6, 1, 512, 2048, 8),
}


def formula(
    vocabulary_size,
    num_encoder_layers,
    num_decoder_layers,
    hidden_dim,
    intermediate_dim,
    normalize_first=False,
    **_,
):
    """Trainable parameters, counted from the paper's figure."""
    attention = 4 * (hidden_dim * hidden_dim + hidden_dim)
    feed_forward = 2 * hidden_dim * intermediate_dim + intermediate_dim + hidden_dim
    norm = 2 * hidden_dim
    encoder = num_encoder_layers * (attention + feed_forward + 2 * norm)
    decoder = num_decoder_layers * (2 * attention + feed_forward + 3 * norm)
    return vocabulary_size * hidden_dim + encoder + decoder + 2 * norm * normalize_first


def trainable(model):
    return sum(math.prod(weight.shape) for weight in model.trainable_weights)


@pytest.mark.any_backend
@pytest.mark.parametrize("name", PRESETS)
def test_sizes_source_and_count(name):
    preset = PRESETS[name]
    config = preset.config
    names = "num_encoder_layers num_decoder_layers hidden_dim intermediate_dim num_heads".split()
    assert tuple(config[name] for name in names) == SIZES[name]
    is_paper = name.startswith("paper_")
    assert config["normalize_first"] != is_paper
    assert config["position_encoding"] == ("sinusoidal" if is_paper else "rope")
    assert preset.source
    assert preset.parameters == LITERAL[name] == formula(preset.reference_vocabulary_size, **config)
    assert preset.parameters_at(1234) == formula(1234, **config)


@pytest.mark.any_backend
def test_the_formula_counts_a_real_model():
    model = kformer.Transformer.from_preset("tiny", vocabulary_size=10_000)
    assert trainable(model) == LITERAL["tiny"]
    options = {
        "num_encoder_layers": 1,
        "num_decoder_layers": 3,
        "hidden_dim": 24,
        "intermediate_dim": 40,
        "num_heads": 3,
        "normalize_first": True,
    }
    assert trainable(kformer.Transformer(17, **options)) == formula(17, **options)


@pytest.mark.any_backend
@pytest.mark.parametrize(
    "name", ["small", "paper_base", pytest.param("big", marks=pytest.mark.slow)]
)
def test_a_large_preset_has_its_parameters(name):
    model = kformer.Transformer.from_preset(
        name, vocabulary_size=PRESETS[name].reference_vocabulary_size
    )
    assert trainable(model) == LITERAL[name]


@pytest.mark.any_backend
def test_arguments_override_a_preset():
    model = kformer.Transformer.from_preset(
        "tiny", 50, num_decoder_layers=1, num_encoder_layers=1, dropout=0.0
    )
    config = model.get_config()
    assert (config["num_decoder_layers"], config["dropout"], config["hidden_dim"]) == (1, 0.0, 128)
    assert model.vocabulary_size == 50


@pytest.mark.any_backend
def test_a_model_without_a_preset_is_the_papers():
    config = kformer.Transformer(50, hidden_dim=8, num_heads=2).get_config()
    assert (config["normalize_first"], config["position_encoding"]) == (False, "sinusoidal")


@pytest.mark.any_backend
def test_unknown_preset():
    with pytest.raises(ValueError, match="preset must be one of tiny, small, base, big"):
        kformer.Transformer.from_preset("huge", vocabulary_size=50)
    with pytest.raises(ValueError, match="new weights, .*Translator.from_pretrained.* trained"):
        kformer.Transformer.from_preset("bart_base_en")
