"""LoRA: a trained model whose weights stay as they are, and small adapters that train."""

from keras import ops

from kformer.layers import SSRU, FeedForward, MultiHeadAttention
from kformer.layers.low_rank import add_adapter, layers_inside
from kformer.models.base_model import BaseModel
from kformer.utils.checks import check_whole

LORA_ALPHA = 16.0


def enable_lora(model, rank, alpha=LORA_ALPHA):
    """Freezes the weights of a model, and gives adapters to its attention and feed-forward kernels.

    An adapter adds `alpha / rank * x A B` to the output `x W` of a kernel W `[D, K]`, with A
    `[D, rank]` and B `[rank, K]`. A fused kernel (queries, keys and values in one) has one adapter.
    B begins at zero, so the model is at first what it was. Only A and B train. They are saved with
    the model; `merge_lora` makes a model without them.

    Args:
        model: a built `kformer.Transformer` or another of this package's models of tokens, not
            compiled. It is changed.
        rank: int of at least 1. Usual are 4 to 64.
        alpha: float above 0, default 16.0. The strength of an adapter. As it is divided by the
            rank, one learning rate serves all ranks.

    Raises:
        ValueError: the model has adapters already, is compiled or is of another kind; or a value is
            out of range.

    Example:
    ```python
    model, tokenizer, config = kformer.saving.load_run("runs/en-de")
    kformer.training.enable_lora(model, rank=8)
    train = kformer.data.ParallelDataset("train.en", "train.de", tokenizer, batch_tokens=512)
    model.compile(**kformer.training.paper_recipe(model, learning_rate=1e-3))
    model.fit(train, epochs=1, steps_per_epoch=2, verbose=0)
    merged = kformer.training.merge_lora(model)
    kformer.saving.save_run("runs/adapted", merged, tokenizer)
    ```

    References:
        Hu et al. 2021, "LoRA: low-rank adaptation of large language models".
    """
    if not (isinstance(model, BaseModel) and hasattr(model, "lora")):
        raise ValueError(f"A {type(model).__name__} takes no adapters: give one of its models.")
    check_whole("rank", rank)
    if not 0 < alpha < float("inf"):
        raise ValueError(f"alpha must be a finite number above 0, but {alpha} was given.")
    if model.lora is not None:
        raise ValueError(
            f"The model has adapters of rank {model.lora[0]} already: merge them first "
            "(kformer.training.merge_lora)."
        )
    if model.compiled:
        raise ValueError(
            "The model is compiled, for training all of its weights: call enable_lora first."
        )
    for weight in model.trainable_variables:
        weight.trainable = False
    for layer, name, kernel in _kernels(model):
        add_adapter(layer, name, kernel, int(rank), float(alpha))
    model.lora = (int(rank), float(alpha))


def merge_lora(model):
    """A model without adapters that computes what a model with adapters computes.

    Args:
        model: a Keras model.

    Returns:
        A model of the same class, not compiled, with the kernels `W + alpha / rank * A B`; or the
        model itself, if it has no adapters.

    Example:
    ```python
    model, tokenizer, config = kformer.saving.load_run("runs/en-de")
    kformer.training.enable_lora(model, rank=4)
    merged = kformer.training.merge_lora(model)
    ```
    """
    if not has_adapters(model):
        return model
    merged = model.copy_with({"lora": None})
    kernels = {kernel.path: kernel for _, _, kernel in _kernels(merged)}
    for layer, name, kernel in _kernels(model):
        value, a, b = map(ops.convert_to_numpy, (kernel, *layer.adapters[name]))
        kernels[kernel.path].assign(value.astype("float32") + layer.lora_scale * (a @ b))
    return merged


def has_adapters(model):
    """Whether a model has adapters of `enable_lora`; a user's own may have another `lora`.

    Args:
        model: a Keras model.

    Returns:
        bool.
    """
    return isinstance(model, BaseModel) and getattr(model, "lora", None) is not None


def describe_lora(model):
    """Describes in a sentence which share of a model with adapters trains.

    Args:
        model: a model after `enable_lora`.

    Returns:
        str, such as "lora: 126,976 of 2,349,589 parameters train (5.4 %)".
    """
    trained = sum(weight.size for weight in map(ops.convert_to_numpy, model.trainable_variables))
    total = model.count_params()
    return f"lora: {trained:,} of {total:,} parameters train ({100 * trained / total:.1f} %)"


def _kernels(model):
    """Layer, name and variable of each kernel that an adapter may have, in the order of paths."""
    kernels = []
    for layer in layers_inside(model):
        if isinstance(layer, MultiHeadAttention | SSRU):
            kernels += [(layer, name, kernel) for name, kernel in layer.kernels().items()]
        elif isinstance(layer, FeedForward):
            kernels += [(layer, name, dense.kernel) for name, dense in layer.maps().items()]
    return sorted(kernels, key=lambda kernel: kernel[2].path)
