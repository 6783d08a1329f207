"""A callback that validates a model of several directions."""

from kformer.training.averages import averaged_weights
from kformer.training.callbacks.general_validation import StepByStep
from kformer.training.callbacks.step_counter import StepCounter
from kformer.utils.checks import check_whole
from kformer.utils.dataset_views import evaluated


class DirectionValidation(StepCounter):
    """Measures a model on the validation set of each of its directions.

    It takes the place of `validation_data` of `fit`. The logs of an epoch get each metric as its
    mean over the directions, such as `val_nll`, however large their sets are, and `val_NAME_nll`
    for each direction. So a `BestModel` after this callback chooses the model that is best in the
    mean. Where the optimizer keeps a moving average of the weights, the average is measured.

    Args:
        datasets: dict of str to `kformer.data.ParallelDataset`. The validation sets by the names of
            their directions, such as "en-de".
        every: int, default 1. The epochs from one validation to the next. The last epoch of a
            training is validated, too.

    Raises:
        ValueError: there is no set, or `every` is below 1.

    Example:
    ```python
    texts = ["train.en", "train.de"]
    codes = ["de", "en"]
    tokenizer = kformer.Tokenizer.train(texts, vocabulary_size=400, languages=codes)
    back = tokenizer.for_languages(target="en")
    sets = {
        "en-de": kformer.data.ParallelDataset("val.en", "val.de", tokenizer, batch_tokens=512),
        "de-en": kformer.data.ParallelDataset("val.de", "val.en", back, batch_tokens=512),
    }
    train = kformer.data.ParallelDataset("train.en", "train.de", tokenizer, batch_tokens=512)
    sizes = {"num_encoder_layers": 1, "num_decoder_layers": 1, "hidden_dim": 16, "num_heads": 2}
    model = kformer.Transformer(tokenizer.vocabulary_size, intermediate_dim=32, **sizes)
    model.compile(**kformer.training.paper_recipe(model))
    both = kformer.training.DirectionValidation(sets)
    best = kformer.training.BestModel("runs/best")
    model.fit(train, epochs=1, steps_per_epoch=2, callbacks=[both, best], verbose=0)
    ```
    """

    def __init__(self, datasets, every=1):
        super().__init__()
        if not datasets:
            raise ValueError("There is no direction to validate: give a validation set of one.")
        self.datasets, self.every = dict(datasets), check_whole("every", every)

    def on_epoch_end(self, epoch, logs=None):
        if not self._is_due(epoch, self.every):
            return
        model = self.model  # On JAX, reading it writes the trained weights into the variables.
        # Keras does not hand the callbacks of `fit` on.
        settings = {"verbose": 0, "return_dict": True, "callbacks": [StepByStep()]}
        with averaged_weights(model):
            measured = {
                name: model.evaluate(evaluated(dataset), **settings)
                for name, dataset in self.datasets.items()
            }
        for metric in next(iter(measured.values())):
            values = {name: results[metric] for name, results in measured.items()}
            logs[f"val_{metric}"] = sum(values.values()) / len(values)
        logs |= {f"val_{name}_nll": results["nll"] for name, results in measured.items()}
