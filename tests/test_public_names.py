"""Public names: those that moved since version 0.1.0, and those that are attributes of kformer."""

import pathlib
import re
import tomllib

import pytest

import kformer
from kformer.utils.moved import MOVES

# Every public name of version 0.1.0.
OLD_NAMES = {
    "kformer": """
        Forecaster MaskedAccuracy MaskedCrossentropy NegativeLogLikelihood Perplexity
        Tokenizer Transformer TransformerDecoder TransformerEncoder Translator
        WarmupInverseSqrt data decoding export interop layers models text training
    """,
    "kformer.data": """
        ParallelDataset PreparedCorpus SoftTargets embedded generate_pairs iterate_pairs
        prepare
    """,
    "kformer.decoding": """
        DecoderState Scorer SearchOptions SearchResult Searcher beam_search decoder_step
        length_penalty sample search
    """,
    "kformer.export": """
        FORMATS SavedModelTranslator export export_model export_saved_model
    """,
    "kformer.interop": """
        export_huggingface import_checkpoint load_checkpoint
    """,
    "kformer.layers": """
        CrossAttentionCache DecoderLayer DecoderLayerCache Distances Dropout EncoderLayer
        FeatureEmbedding FeedForward KeyValueCache LinearAttentionCache MultiHeadAttention
        NormalizedPositions OutputBias PositionalEmbedding RelativePositionBias
        StaticKeyValueCache StochasticDepth WindowCache alibi_bias alibi_slopes
        band_distances causal_mask combine_masks distances padding_mask relative_buckets
        rotate_positions segment_mask segment_positions sinusoidal_positions window_mask
    """,
    "kformer.models": """
        DecoderCache DualEncoder Ensemble Forecaster PRESETS Pooling Preset PromptCache
        Transformer TransformerDecoder TransformerEncoder VARIANTS check_packing variants_of
    """,
    "kformer.plots": """
        AttentionMaps attention_html attention_maps font_families plot_attention
        plot_lengths plot_positions plot_similarity plot_training save
    """,
    "kformer.text": """
        SubwordSampler Tokenizer WordVectors load_word_vectors
    """,
    "kformer.training": """
        BestModel Checkpoint ContrastiveLoss LatestValue MaskedAccuracy MaskedCrossentropy
        NegativeLogLikelihood Perplexity RetrievalAccuracy StepHistory TrainOptions
        TrainingProgress TrainingState TranslationQuality WarmupInverseSqrt
        average_checkpoints configure_machine fit_from latest_checkpoint load_checkpoint
        load_run paper_recipe read_config save_checkpoint save_run train_run
    """,
    "kformer.distillation": "DistilledText distill",
    "kformer.evaluation": "EvaluationResult bleu_tokenizers evaluate suitable_tokenizer",
}
MODULES_THAT_MOVED = (
    "kformer.quickstart",
    "kformer.training.checkpoints",
    "kformer.training.run_directory",
)

ROOT = pathlib.Path(__file__).resolve().parent.parent

pytestmark = pytest.mark.any_backend


def find(name):
    """The object of a dotted name, by attributes alone."""
    found = kformer
    for part in name.split(".")[1:]:
        found = getattr(found, part)
    return found


OLD_PATHS = [
    *(f"{package}.{name}" for package, names in OLD_NAMES.items() for name in names.split()),
    *MODULES_THAT_MOVED,
]


@pytest.mark.parametrize("old", OLD_PATHS)
def test_an_old_name_works_or_names_the_new_one(old):
    if old not in MOVES:
        find(old)
        return
    with pytest.raises(AttributeError) as error:
        find(old)
    assert str(error.value) == f"{old} is now {MOVES[old]}"
    find(MOVES[old])


def test_no_other_name_has_moved():
    assert MOVES.keys() <= set(OLD_PATHS)


def test_an_unknown_name_is_an_ordinary_error():
    with pytest.raises(AttributeError, match="'kformer.training' has no attribute 'train_ran'"):
        kformer.training.train_ran  # noqa: B018


@pytest.mark.parametrize("package", [name for name in OLD_NAMES if name != "kformer"])
def test_public_names_exist(package):
    """`import kformer` alone makes every package and every name of its `__all__` available."""
    found = find(package)
    assert package.split(".")[1] in kformer.__all__
    assert all(hasattr(found, name) for name in found.__all__)


def test_the_changelog_has_the_table_of_moves():
    text = (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")
    first_table = text[text.index("| 0.1.0 | 0.2.0 |") :].split("\n\n")[0]
    assert dict(re.findall(r"\| `(.*?)` \| `(.*?)` \|", first_table)) == MOVES


def test_one_version():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    assert project["version"] == kformer.__version__
