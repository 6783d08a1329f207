"""How good translations are: BLEU and chrF of a test set, and during a training."""

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
