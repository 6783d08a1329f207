"""The encoder-decoder Transformer for Keras 3.

Train with `model.fit`; ship one SavedModel that takes and returns strings.
"""

from kformer_options.banner import without_banner
from kformer_options.installed import check_backend

check_backend()
# TensorFlow's libraries print some lines when they are imported.
with without_banner():
    from kformer import (
        data,
        decoding,
        distillation,
        documents,
        evaluation,
        examples,
        export,
        interop,
        layers,
        models,
        plots,
        saving,
        text,
        trainer,
        training,
    )
    from kformer.models import Forecaster, Transformer, TransformerDecoder, TransformerEncoder
    from kformer.text import Tokenizer
    from kformer.training import (
        MaskedAccuracy,
        MaskedCrossentropy,
        NegativeLogLikelihood,
        Perplexity,
        WarmupInverseSqrt,
    )
    from kformer.translating.translator import Translator

__version__ = "1.0.0"

# In the order in which data meets them.
__all__ = [
    "Tokenizer",
    "data",
    "Transformer",
    "TransformerEncoder",
    "TransformerDecoder",
    "Forecaster",
    "WarmupInverseSqrt",
    "MaskedCrossentropy",
    "MaskedAccuracy",
    "NegativeLogLikelihood",
    "Perplexity",
    "Translator",
    "decoding",
    "distillation",
    "documents",
    "evaluation",
    "examples",
    "export",
    "interop",
    "layers",
    "models",
    "plots",
    "saving",
    "text",
    "trainer",
    "training",
]
