"""How good translations are: BLEU and chrF of a test set, and during a training."""

from kformer.evaluation.callback import TranslationQuality
from kformer.evaluation.scores import evaluate

__all__ = ["TranslationQuality", "evaluate"]
