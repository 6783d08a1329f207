"""`recommend`: what `kformer train` chooses for a text, for `model.fit`."""

import dataclasses
import math
from typing import Any

import keras

from kformer.data.batching import choose_batch_tokens, default_max_shapes
from kformer.models.config import check_packing
from kformer.models.lora import has_adapters
from kformer.training.callbacks.best_model import BestModel
from kformer.training.defaults import count_steps, settle_course, settle_text, warn_of_few_pairs
from kformer.training.fitting import validated_epochs
from kformer.training.new_model import (
    check_model_options,
    compile_model,
    model_arguments,
    preset_config,
)
from kformer.training.options import TrainOptions
from kformer_options.training import TRAINING

# The options that the data already has.
_OF_THE_DATA = "batch_tokens max_shapes packed subword_sampling word_dropout max_length".split()
# Those that only a new model has.
_OF_A_NEW_MODEL = (
    "preset model_options made_for norm precision dropout attention_dropout activation_dropout seed"
).split()
_OF_THE_COURSE = (
    "epochs steps patience accumulate consistency label_smoothing weight_decay learning_rate "
    "warmup_steps cooldown clip_norm ema valid_every"
).split()
_OPTIONS = (*_OF_A_NEW_MODEL, *_OF_THE_COURSE)


@dataclasses.dataclass(frozen=True)
class Recipe:
    """The settings of a training with the reasons for them; `print(recipe)` shows the reasons.

    `recommend` makes it.

    Attributes:
        settings: dict. The value of each option of `kformer train` that the recipe decides.
        reasons: dict of str to str. For the name of an option that was chosen, a sentence about its
            value and the reason for it.
        model: dict. The arguments of `kformer.Transformer.from_preset`; empty for a model that is
            trained further.
        warning: str or `None`. What is to be expected of a text that is too small.

    Example:
        ```python
        tokenizer = kformer.Tokenizer.train(["train.en", "train.de"])
        train = kformer.data.ParallelDataset("train.en", "train.de", tokenizer)
        recipe = kformer.training.recommend(train, preset="small")
        recipe.settings["learning_rate"]  # 0.0025
        print(recipe)  # dropout: 0.3, as there are at most 200,000 pairs, ...
        ```
    """

    settings: dict[str, object]
    reasons: dict[str, str]
    model: dict[str, Any]
    warning: str | None
    _options: TrainOptions = dataclasses.field(repr=False)
    _train: object = dataclasses.field(repr=False)
    _valid: object = dataclasses.field(repr=False)

    def __str__(self):
        return "\n".join([*filter(None, [self.warning]), *self.reasons.values()])

    @property
    def fit(self) -> dict[str, Any]:
        """dict: the arguments of `model.fit` beside the training data, with new callbacks each
        time.

        With a validation set the training stops after `patience` validations that were no better,
        and the model ends with the weights of the best one (of their average, where there is one).
        """
        options, arguments = self._options, {"epochs": self._options.epochs, "callbacks": []}
        if options.steps is not None:
            arguments["epochs"] = math.ceil(self._total_steps / len(self._train))
            arguments["callbacks"].append(_LastStep(options.steps))
        if self._valid is not None:
            arguments["callbacks"].append(BestModel(None, patience=options.patience or None))
            arguments |= {
                "validation_data": self._valid,
                "validation_freq": validated_epochs(options.valid_every, arguments["epochs"]),
            }
        return arguments

    def compile(self, model) -> None:
        """Compiles a model with the optimizer, schedule, loss and metrics of this recipe.

        Args:
            model: `kformer.Transformer`.
        """
        compile_model(model, self._options, self._total_steps)

    @property
    def _total_steps(self):
        return count_steps(self._options.steps, self._options.epochs, len(self._train))


class _LastStep(keras.callbacks.Callback):
    """Ends a training after some steps."""

    def __init__(self, steps):
        super().__init__()
        self._steps = steps

    def on_train_begin(self, logs=None):
        self._done = 0

    def on_train_batch_end(self, batch, logs=None):
        self._done += 1
        if self._done >= self._steps:
            self.model.stop_training = True


def recommend(train_data, validation_data=None, *, model=None, **options) -> Recipe:
    """Chooses the settings of a training by its data, as `kformer train` does.

    The model's dropout, the number of epochs, the learning rate with its warm-up and cooldown, the
    average of weights and the patience depend on the size of the text and of the model. What is
    given is kept. The numbers come from trainings on Multi30k and from the papers that
    `kformer.training.defaults` names.

    Args:
        train_data: `kformer.data.ParallelDataset`. With its default `batch_tokens`, and a tokenizer
            of the default `vocabulary_size`, all settings are those of the command.
        validation_data: `kformer.data.ParallelDataset` or `None`, default `None`.
        model: `kformer.Transformer` or `None`, default `None`. A trained model that is trained
            further (fine-tuning), maybe after `enable_lora`; `None` for a new one.
        **options: options of `kformer train` by their names in `kformer.trainer.TrainOptions`, such
            as `preset`, `dropout`, `epochs`, `steps` or `learning_rate`.

    Returns:
        `Recipe`.

    Raises:
        TypeError: there is no such option, or it belongs to the data or to a new model.
        ValueError: the value of an option is out of range, or the model cannot read packed rows.

    Example:
    ```python
    tokenizer = kformer.Tokenizer.train(["train.en", "train.de"])
    train = kformer.data.ParallelDataset("train.en", "train.de", tokenizer)
    valid = kformer.data.ParallelDataset("val.en", "val.de", tokenizer, shuffle=False)
    recipe = kformer.training.recommend(train, valid, steps=2)  # without steps: as long as needed
    model = kformer.Transformer.from_preset(**recipe.model)
    recipe.compile(model)
    model.fit(train, **recipe.fit)
    ```
    """
    options = {name: value for name, value in options.items() if value is not None}
    _check_names(options, model)
    if has_adapters(model):
        options["lora_rank"] = model.lora[0]
    options = TrainOptions(**{**_of_the_data(train_data), **options})
    check_model_options(options)
    sizes = preset_config(options.preset) | (options.model_options or {})
    if options.packed:
        check_packing(sizes if model is None else model.get_config())
    corpus = train_data.corpus
    facts = {"is_new": model is None, "is_validated": validation_data is not None}
    batches = {"is_joint": corpus.joint, "max_shapes": default_max_shapes()}
    settled = settle_text(options, corpus.num_lines, corpus.longer_side, **batches, **facts)
    hidden_dim = sizes["hidden_dim"] if model is None else model.hidden_dim
    course = settle_course(settled.options, len(train_data), hidden_dim, **facts)
    options = course.options
    names = (*_OPTIONS, *_OF_THE_DATA)
    return Recipe(
        {name: getattr(options, name) for name in names if getattr(options, name) is not None},
        settled.reasons | course.reasons,
        model_arguments(options, corpus) if model is None else {},
        warn_of_few_pairs(corpus.num_lines) if model is None else None,
        options,
        train_data,
        validation_data,
    )


def _check_names(names, model):
    for name in names:
        if name not in _OPTIONS:
            where = f"is not an option of a recipe: choose among {', '.join(_OPTIONS)}"
            if name in _OF_THE_DATA:
                where = "belongs to the data: give it to kformer.data.ParallelDataset"
            elif name in TRAINING:
                where = "is an option of kformer.trainer.train_run alone"
            raise TypeError(f"{name} {where}.")
        if model is not None and name in _OF_A_NEW_MODEL:
            raise TypeError(
                f"{name} belongs to a new model, but a trained one was given: leave {name} out, or "
                "model. model.with_dropout and model.with_precision change a trained model."
            )


def _of_the_data(data):
    """The options that the data has; unset are those that it chose by itself."""
    values = {name: getattr(data, name) for name in _OF_THE_DATA if name != "max_length"}
    values |= {"max_length": data.corpus.max_length, "seed": data.seed}
    if data.batch_tokens == choose_batch_tokens(data.corpus.longer_side)[0]:
        values["batch_tokens"] = None
    if data.packed or data.max_shapes == default_max_shapes():
        values["max_shapes"] = None
    return values
