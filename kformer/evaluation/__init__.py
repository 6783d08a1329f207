"""The quality of translations: BLEU and chrF of a test set, and of a validation set in training."""

from kformer.evaluation.callback import DirectionQuality, TranslationQuality
from kformer.evaluation.scores import (
    EvaluationResult,
    bleu_tokenizers,
    evaluate,
    evaluate_directions,
    suitable_tokenizer,
)
from kformer.evaluation.search_choice import SearchChoice, choose_search, length_limits

__all__ = [
    "DirectionQuality",
    "EvaluationResult",
    "SearchChoice",
    "TranslationQuality",
    "bleu_tokenizers",
    "choose_search",
    "evaluate",
    "evaluate_directions",
    "length_limits",
    "suitable_tokenizer",
]
