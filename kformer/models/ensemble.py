"""Several models that translate together."""

import math

from keras import ops


class Ensemble:
    """Several models of one vocabulary, whose predicted probabilities are averaged.

    An ensemble can replace a model in a search (`kformer.Translator`, `kformer.decoding.Searcher`)
    and for scoring translations. The models may differ in size. A search takes as long as the
    searches of all the models together. `kformer distill` trains one small model to translate like
    them.

    Args:
        models: list of `kformer.Transformer`, at least one.

    Call arguments:
        inputs: as for the models.
        training: bool, default `None`. Whether dropout is applied.

    Returns:
        The logarithms of the mean probabilities, float32 tensor `[B, T, V]`.

    Raises:
        ValueError: there is no model, or they differ in vocabulary size or special tokens.

    Example:
    ```python
    translator = kformer.Translator.load(["runs/1", "runs/2", "runs/3"])
    translator("A man rides a horse.")
    ```

    References:
        Sutskever et al. 2014, "Sequence to Sequence Learning with Neural Networks", section 3.6.
    """

    def __init__(self, models):
        self.models = list(models)
        if not self.models:
            raise ValueError("An ensemble needs a model at least.")
        for name in ("vocabulary_size", "target_vocabulary_size", "pad_id", "start_id", "end_id"):
            values = [getattr(model, name) for model in self.models]
            if len(set(values)) > 1:
                raise ValueError(
                    f"The models of an ensemble need one vocabulary, but their {name} is "
                    f"{', '.join(map(str, values))}."
                )
        first = self.models[0]
        self.vocabulary_size = first.vocabulary_size
        self.target_vocabulary_size = first.target_vocabulary_size
        self.pad_id, self.start_id, self.end_id = first.pad_id, first.start_id, first.end_id
        self.max_length = min(model.max_length for model in self.models)
        self.policy_name = first.policy_name

    @property
    def variables(self):
        """List: the variables of all models."""
        return [variable for model in self.models for variable in model.variables]

    @property
    def weights(self):
        """List: the weights of all models."""
        return [weight for model in self.models for weight in model.weights]

    def get_config(self):
        """Returns the configuration of one model.

        It is the first with learned positions, which limit the length of a search, or else the
        first of all.
        """
        configs = [model.get_config() for model in self.models]
        learned = [config for config in configs if config["position_encoding"] == "learned"]
        return (learned or configs)[0]

    def __call__(self, inputs, training=None):
        logits = [model(inputs, training=training) for model in self.models]
        log_probabilities = [ops.log_softmax(ops.cast(x, "float32"), axis=-1) for x in logits]
        return ops.logsumexp(ops.stack(log_probabilities), axis=0) - math.log(len(logits))


def mean_logits(logits):
    """Logarithms of the mean of the models' probabilities, plus the mean of their `logsumexp`.

    So the values are logits like those of one model, and the same for one model twice: a penalty on
    repetition, which is not the same for logits and for log-probabilities, changes them alike.

    Args:
        logits: list of float tensors `[..., V]`. The logits of each model.

    Returns:
        float32 tensor `[..., V]`.
    """
    logits = [ops.cast(x, "float32") for x in logits]
    norms = [ops.logsumexp(x, axis=-1, keepdims=True) for x in logits]
    mean = sum(norms) / len(norms)
    logits = [x + (mean - norm) for x, norm in zip(logits, norms, strict=True)]
    return ops.logsumexp(ops.stack(logits), axis=0) - math.log(len(logits))
