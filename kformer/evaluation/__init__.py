"""The quality of translations: BLEU and chrF of a test set, and of a validation set in training."""

from kformer.evaluation.callback import TranslationQuality
from kformer.evaluation.scores import (
    EvaluationResult,
    bleu_tokenizers,
    evaluate,
    suitable_tokenizer,
)

__all__ = [
    "EvaluationResult",
    "TranslationQuality",
    "bleu_tokenizers",
    "evaluate",
    "suitable_tokenizer",
]
