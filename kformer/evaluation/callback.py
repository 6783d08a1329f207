"""A callback that translates the validation set during training."""

import pathlib
from typing import NamedTuple

from kformer.evaluation.scores import evaluate, suitable_tokenizer
from kformer.training.averages import averaged_weights
from kformer.training.callbacks.step_counter import StepCounter
from kformer.training.callbacks.tensorboard import Board
from kformer.translating.translator import Translator
from kformer.utils.checks import check_texts, check_whole
from kformer_options.text_files import check_same_length

# The sentences that TensorBoard shows.
_SAMPLES = 8


class TranslationQuality(StepCounter):
    """Measures BLEU and chrF of a validation set during training, by sacreBLEU.

    The values are in the logs of each epoch as `val_bleu` and `val_chrf`: in the history that
    `fit` returns, and for callbacks that follow this one (`BestModel`, `StepHistory`,
    `keras.callbacks.TensorBoard`). An epoch has the last of its measurements, or none;
    `StepHistory` has each in the row of its step. Where the optimizer keeps a moving average of the
    weights, the average translates. `BestModel` saves that average, while
    `keras.callbacks.EarlyStopping` would restore weights that are not averaged.

    Args:
        tokenizer: the model's `kformer.Tokenizer`.
        sources, references: lists of str. The validation set.
        every: int, default `None`. Steps between two measurements; `None` for none within epochs.
        epochs: int, default `None`. Epochs between two measurements at the end of one; the last
            epoch is measured, too. `None` for each epoch, or for none where `every` is given.
        tokenize: str, default `None`. As for `kformer.evaluation.evaluate`; `None` for the one that
            suits the references' script.
        lowercase: bool, default `False`. As for `kformer.evaluation.evaluate`.
        log_dir: path, default `None`. A folder for TensorBoard, which then shows `bleu`, `chrf` and
            some translations by steps; needs the package tensorboard.
        resume_from: a `TrainingState`, default `None`.
        **options: fields of `kformer.decoding.SearchOptions`; a beam of 1 by default.

    Attributes:
        results: list of tuples (step, `kformer.evaluation.EvaluationResult`), one for each
            measurement.

    Raises:
        ValueError: the validation set is empty, its sides differ in length, or `every` or `epochs`
            is not a whole number of at least 1.

    Example:
    ```python
    model, tokenizer, _ = kformer.saving.load_run("runs/en-de")
    valid = [open(f"val.{side}").read().splitlines()[:8] for side in ("en", "de")]
    train = kformer.data.ParallelDataset("train.en", "train.de", tokenizer)
    model.compile(**kformer.training.paper_recipe(model))
    quality = kformer.evaluation.TranslationQuality(tokenizer, *valid, beam_size=4)
    best = kformer.training.BestModel("runs/best", "bleu", patience=3)
    model.fit(train, epochs=1, steps_per_epoch=2, callbacks=[quality, best])
    ```
    """

    def __init__(
        self,
        tokenizer,
        sources,
        references,
        *,
        every=None,
        epochs=None,
        tokenize=None,
        lowercase=False,
        log_dir=None,
        resume_from=None,
        **options,
    ):
        super().__init__(resume_from)
        for name, value in (("every", every), ("epochs", epochs)):
            if value is not None:
                check_whole(name, value)
        self.tokenizer = tokenizer
        self.sources, self.references = check_texts(sources), check_texts(references)
        check_same_length("the sources", len(self.sources), "the references", len(self.references))
        if not self.sources:
            raise ValueError("There is nothing to evaluate: the validation set has no sentences.")
        self.every, self.lowercase = every, lowercase
        self.epochs = epochs or (1 if every is None else None)
        self.tokenize = tokenize or suitable_tokenizer(self.references)
        self.options = {"beam_size": 1, **options}
        self.results = []
        self._writer = None if log_dir is None else Board(log_dir)
        self._translator = None

    def on_train_batch_end(self, batch, logs=None):
        before = self.step
        super().on_train_batch_end(batch, logs)
        if self.every is not None and before // self.every != self.step // self.every:
            self.measure()
            self._add_to(logs)

    def on_epoch_end(self, epoch, logs=None):
        latest = self.results[-1][0] if self.results else 0
        is_due = self.epochs is not None and self._is_due(epoch, self.epochs)
        if is_due and latest != self.step:
            self.measure()
        # With `epochs`, a measurement within an epoch is not the epoch's value.
        if is_due or (self.epochs is None and latest > self._steps_before):
            self._add_to(logs)

    def _add_to(self, logs):
        """Adds the latest measurement to Keras's logs."""
        if logs is not None:
            _, result = self.results[-1]
            logs.update(val_bleu=result.bleu, val_chrf=result.chrf)

    def measure(self):
        """Translates the validation set with the present weights.

        Returns:
            `EvaluationResult`.
        """
        model = self.model  # On JAX, reading it writes the trained weights into the variables.
        if self._translator is None or self._translator.model is not model:
            self._translator = Translator(model, self.tokenizer)
        with averaged_weights(model):
            options = {"tokenize": self.tokenize, "lowercase": self.lowercase, **self.options}
            result = evaluate(self._translator, self.sources, self.references, **options)
        self.results.append((self.step, result))
        if self._writer is not None:
            self._writer.number("bleu", result.bleu, self.step)
            self._writer.number("chrf", result.chrf, self.step)
            # Some sentences with their translations, spread over the validation set, in Markdown.
            rows = [("source", "translation", "reference"), ("---",) * 3]
            texts = list(zip(self.sources, result.hypotheses, self.references, strict=True))
            rows += texts[:: max(1, len(texts) // _SAMPLES)][:_SAMPLES]
            lines = (" | ".join(text.replace("|", "\\|") for text in row) for row in rows)
            table = "\n".join(f"| {line} |" for line in lines)
            self._writer.text("translations", table, self.step)
            self._writer.flush()
        return result


class MeanQuality(NamedTuple):
    """The quality of translations in the mean over several directions.

    Attributes:
        bleu, chrf: float.
        results: dict of str to `kformer.evaluation.EvaluationResult`, by the names of directions.
    """

    bleu: float
    chrf: float
    results: dict


class DirectionQuality(TranslationQuality):
    """Measures BLEU and chrF of several directions during training, each by itself.

    The values in the logs, as of `TranslationQuality`, are the means over the directions.

    Args:
        sets: dict of str to tuple, by the names of the directions, such as "en-de": the tokenizer
            for that direction, the sources and the references.
        log_dir: path, default `None`. As for `TranslationQuality`, with a folder for each direction
            in it.
        **options: those of `TranslationQuality`.

    Attributes:
        results: list of tuples (step, `MeanQuality`), one for each measurement.

    Raises:
        ValueError: as `TranslationQuality`.
    """

    def __init__(self, sets, *, log_dir=None, **options):
        super().__init__(*next(iter(sets.values())), **options)
        self._parts = {}
        for name, texts in sets.items():
            folder = None if log_dir is None else pathlib.Path(log_dir) / name
            self._parts[name] = TranslationQuality(*texts, log_dir=folder, **options)

    def measure(self):
        """Translates the validation sets with the present weights.

        Returns:
            `MeanQuality`.
        """
        results, model = {}, self.model
        for name, part in self._parts.items():
            part.set_model(model)
            part.step = self.step
            results[name] = part.measure()
        means = (
            sum(getattr(result, measure) for result in results.values()) / len(results)
            for measure in ("bleu", "chrf")
        )
        self.results.append((self.step, quality := MeanQuality(*means, results)))
        return quality
