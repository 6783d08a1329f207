"""A callback that measures what a fine-tuning forgets."""

import keras

from kformer.training.averages import AveragedValidation, averaged_weights, check_measured
from kformer.utils.checks import check_number
from kformer.utils.dataset_views import evaluated


class StepByStep(keras.callbacks.Callback):
    """Makes Keras wait for each step of a validation, as it does for those of the training.

    On CPUs the steps of several devices that run side by side take each other's threads, and wait
    for each other: JAX ends the process, or hosts wait for ever.
    """

    def on_test_batch_end(self, batch, logs=None):
        pass  # Keras looks whether there is such a method.


class GeneralValidation(AveragedValidation):
    """Measures a general validation set at each validation of a fine-tuning.

    Adds to the logs of an epoch `val_general_nll`, the negative log-likelihood of the general set,
    and `val_mixed_nll`, its mean with `val_nll` of the fine-tuning's own set, weighted by the share
    of general text. So a `BestModel(..., "mixed_nll")` after this callback chooses the model that
    is best on the mixture of texts that it trains on. Where the optimizer keeps a moving average of
    the weights, the average is measured on both sets.

    Args:
        dataset: `kformer.data.ParallelDataset`. The general validation set.
        share: float in `(0, 1)`, default 0.5. The weight of the general set.

    Raises:
        ValueError: the share is out of range; a validation has no `nll`; or
            `keras.callbacks.SwapEMAWeights` is among the callbacks of `fit` of a model of kformer,
            or of `kformer.training.fit_from`.

    Example:
    ```python
    model, tokenizer, _ = kformer.saving.load_run("runs/en-de")
    train, valid, general = (
        kformer.data.ParallelDataset(f"{name}.en", f"{name}.de", tokenizer, batch_tokens=512)
        for name in ("train", "val", "test")
    )
    model.compile(**kformer.training.paper_recipe(model, learning_rate=1e-4))
    both = kformer.training.GeneralValidation(general, share=0.5)
    best = kformer.training.BestModel("runs/best", "mixed_nll", patience=5)
    model.fit(train, validation_data=valid, epochs=1, callbacks=[both, best], verbose=0)
    ```
    """

    def __init__(self, dataset, share=0.5):
        super().__init__()
        self.dataset, self.share = dataset, check_number("share", share, above=0, below=1)

    def on_epoch_end(self, epoch, logs=None):
        remedy = "compile the model with the metric kformer.NegativeLogLikelihood()"
        check_measured(logs, "nll", remedy)
        if not logs or "val_nll" not in logs:
            return  # No validation was due.
        model = self.model  # On JAX, reading it writes the trained weights into the variables.
        with averaged_weights(model):
            # Keras does not hand the callbacks of `fit` on.
            settings = {"verbose": 0, "return_dict": True, "callbacks": [StepByStep()]}
            general = model.evaluate(evaluated(self.dataset), **settings)["nll"]
        mixed = (1 - self.share) * logs["val_nll"] + self.share * general
        logs.update(val_general_nll=general, val_mixed_nll=mixed)
