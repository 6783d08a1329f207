"""Whether the system that a training is for can hold its model."""

from kformer.export import huggingface
from kformer.export.checks import check_layers


def check_made_for(system, model, tokenizer):
    """Checks, before a training, that a system can hold the model that will be trained.

    Args:
        system: str or `None`. "transformers", "ctranslate2", "onnx" or "saved_model"; `None` checks
            nothing.
        model: `kformer.Transformer`.
        tokenizer: `kformer.Tokenizer`.

    Raises:
        ValueError: it cannot; the message names the option that it does not know.
    """
    if system == "transformers":
        huggingface.check_model(model)
        huggingface.check_tokenizer(tokenizer)
    elif system in ("ctranslate2", "onnx"):
        check_layers(model, system, known=("rope",))
