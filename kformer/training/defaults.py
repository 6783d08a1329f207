"""The settings of a training: values for unset options, chosen by the corpus, with reasons.

`settle_text` sets the options for the batches and the model. `settle_course` sets those that depend
on the length of an epoch and the size of the model. The numbers come from trainings on Multi30k
(29,000 pairs; docs/results.md) and from the papers that the docstrings name.
"""

import dataclasses
import math
from typing import NamedTuple

from kformer.data.batching import USUAL_SHAPES, choose_batch_tokens
from kformer.training.new_model import preset_config
from kformer.training.options import TrainOptions
from kformer_options.field import GENERAL, LORA, NEW_MODEL, NEW_TOKENIZER, TEACHERS, VALIDATION
from kformer_options.training import TRAINING, default_of
from kformer_options.wording import counted

FEW_PAIRS, MANY_PAIRS = 200_000, 2_000_000
# From fewer pairs a new model does not learn to translate other sentences at all; for usable
# translations it needs ten times as many.
FEWEST_PAIRS = 1000
# After so many validations without improvement a better one is unlikely. With a small corpus the
# validations follow each other quickly, so they must span a number of steps too.
PATIENCE, PATIENT_STEPS = 10, 1000


class Settled(NamedTuple):
    """Options after a stage of settling.

    Attributes:
        options: `TrainOptions`.
        reasons: dict of str to str. For the name of an option, a sentence about its value and the
            reason for it.
    """

    options: TrainOptions
    reasons: dict


class _Settings:
    """Values for unset options, and the reasons for them."""

    def __init__(self, options):
        self._options, self.values, self.reasons = options, {}, {}

    def __getitem__(self, name):
        return self.values.get(name, getattr(self._options, name))

    def choose(self, name, value, reason=None):
        """Sets the option if it is unset."""
        if self[name] is None:
            self.values[name] = value
            if reason:
                self.reasons[name] = reason

    def settled(self):
        return Settled(dataclasses.replace(self._options, **self.values), self.reasons)


def settle_text(
    options,
    num_pairs,
    num_tokens,
    *,
    is_new=True,
    is_validated=False,
    resumed=False,
    is_joint=True,
    max_shapes=USUAL_SHAPES,
):
    """Sets the options for the batches and the model.

    Args:
        options: `TrainOptions`.
        num_pairs: int. The lines of the training text.
        num_tokens: int. Its tokens on the longer side.
        is_new: bool, default True. Whether the model is new; otherwise a trained one is trained
            further.
        is_validated: bool, default False. Whether there is a validation set.
        resumed: bool, default False. Whether the model comes from a checkpoint.
        is_joint: bool, default True. Whether both sides share one vocabulary.
        max_shapes: int, default 8. The most batch shapes on the backend in use.

    Returns:
        `Settled`. Set are all options that have a default, `batch_tokens` and, unless batches are
        packed, `max_shapes`; for a new model also `norm` and `dropout`.
    """
    settings = _Settings(options)
    applies = {
        None: True,
        NEW_MODEL: is_new,
        NEW_TOKENIZER: is_new and options.tokenizer is None and not options.teachers,
        VALIDATION: is_validated,
        TEACHERS: bool(options.teachers),
        LORA: options.lora_rank is not None,
        GENERAL: bool(options.general_source or options.general_valid_source),
    }
    for name, option in TRAINING.items():
        if option.default is not None and applies[option.applies]:
            settings.choose(name, option.default)
    tokens, reason = choose_batch_tokens(num_tokens)
    settings.choose("batch_tokens", tokens, f"batches: at most {tokens:,} tokens, {reason}")
    if not options.packed:
        few = max_shapes < USUAL_SHAPES and not resumed
        reason = f"shapes: batches have at most {max_shapes}, since this backend compiles each"
        settings.choose("max_shapes", max_shapes, reason if few else None)
    if not is_new:
        settings.choose("cooldown", 0.0)
        return settings.settled()
    preset = preset_config(settings["preset"])
    has_positions, positions = "position_encoding" in (options.model_options or {}), None
    if options.made_for == "transformers":
        # Its translation models have fixed positions, and embeddings of their own for each side
        # with norms after the sub-layers alone.
        if not is_joint:
            reason = "norms: after the sub-layers, as the library transformers has them where each "
            settings.choose("norm", "post", f"{reason}side has a vocabulary of its own")
        if not has_positions:
            model_options = {**(options.model_options or {}), "position_encoding": "sinusoidal"}
            settings.values["model_options"] = model_options
            positions = "sinusoidal, as the library transformers has them; rotary ones learn faster"
    elif preset["position_encoding"] == "rope" and not has_positions:
        positions = "rotary, from which a model learns faster; model option "
        positions += "position_encoding=sinusoidal for the paper's"
    if positions and not resumed:
        settings.reasons["model_options"] = f"positions: {positions}"
    settings.choose("norm", "pre" if preset["normalize_first"] else "post")
    dropout, reason = choose_dropout(settings["preset"], num_pairs)
    settings.choose("dropout", dropout, f"dropout: {dropout}, {reason}")
    return settings.settled()


def settle_course(
    options, steps_per_epoch, hidden_dim, *, is_new=True, is_validated=False, resumed=False
):
    """Sets the options that depend on the number of steps and on the size of the model.

    Args:
        options: `TrainOptions`, from `settle_text`.
        steps_per_epoch: int. The batches of an epoch.
        hidden_dim: int. D of the model.
        is_new, is_validated, resumed: as for `settle_text`.

    Returns:
        `Settled`. Also set are `epochs` (unless `steps` is given), `patience` (if there is a
        validation set), `ema`, `warmup_steps` and `learning_rate`.
    """
    settings = _Settings(options)
    if options.steps is None:
        epochs, reason = choose_epochs(steps_per_epoch, options.accumulate)
        steps = epochs * steps_per_epoch
        length = f"{counted(epochs, 'epoch')}, {counted(steps, 'step')}"
        settings.choose("epochs", epochs, f"length: {length}: {reason}")
    if is_validated:
        what = "BLEU" if options.select == "bleu" else "negative log-likelihood"
        what = f"mean {what} of both sets" if options.general_valid_source else what
        patience, reason = choose_patience(steps_per_epoch, options.valid_every)
        sentence = f"stopping: early, after {patience} validations in a row without a better {what}"
        settings.choose("patience", patience, f"{sentence}{reason}")
    total_steps = count_steps(settings["steps"], settings["epochs"], steps_per_epoch)
    # The average moves with every batch, also if several batches make one update.
    ema = choose_ema(total_steps) if is_new else 0.0
    why = "has fewer than 100 steps" if is_new else "begins with a trained model"
    average = f"none, as the training {why}"
    if ema:
        average = f"the mean of the weights over the latest {1 / (1 - ema):,.0f} steps is "
        average += "validated and saved, as it translates better"
    settings.choose("ema", ema, f"average: {average}")
    total_updates = max(1, total_steps // options.accumulate)
    # A fifth of the training, at most the paper's 4,000 steps.
    settings.choose("warmup_steps", max(1, min(4000, total_updates // 5)))
    warmup = settings["warmup_steps"]
    fine_tuning = not is_new and options.lora_rank is None
    settings.choose("learning_rate", choose_learning_rate(hidden_dim, warmup, fine_tuning))
    if not resumed:
        settings.reasons["learning_rate"] = describe_schedule(
            options, settings["learning_rate"], warmup, hidden_dim, total_updates, is_new
        )
    return settings.settled()


def count_steps(steps, epochs, steps_per_epoch):
    """Returns the number of steps of the whole training.

    Args:
        steps: int or `None`. The limit of steps.
        epochs: int or `None`. The limit of epochs.
        steps_per_epoch: int. The batches of an epoch.

    Returns:
        int; infinity if both limits are `None`.
    """
    return min(steps or math.inf, (epochs or math.inf) * steps_per_epoch)


def describe_schedule(options, peak, warmup, hidden_dim, total_updates, is_new=True):
    """Describes the learning rate in a sentence, with the reasons for the values of unset options.

    Args:
        options: `TrainOptions`, before the learning rate was chosen.
        peak: float. The highest rate.
        warmup: int. The updates until the peak.
        hidden_dim: int. D of the model.
        total_updates: int. The updates of the whole training.
        is_new: bool, default True. Whether the model is new.

    Returns:
        str.
    """
    step = "step" if options.accumulate == 1 else "update"
    cooldown = math.ceil(options.cooldown * total_updates)
    reasons = []
    if warmup > (last := total_updates - cooldown):
        ends = "the fall to 0 begins" if cooldown else "the training ends"
        never = f"that peak is never reached, as {ends} after {last:,} {step}s"
        reasons.append(f"{never}: give fewer warm-up steps, or train longer")
    if options.learning_rate is None and options.lora_rank:
        reasons.append("a new model's rate, as the adapters are new")
    elif options.learning_rate is None and not is_new:
        reasons.append("a tenth of a new model's rate, which keeps what the model knows")
    elif options.learning_rate is None and hidden_dim <= 256:
        reasons.append("the peak is 0.64 / hidden size, at which small models learn fastest")
    elif options.learning_rate is None:
        reasons.append("the peak is the paper's, at most 0.64 / hidden size")
    if options.warmup_steps is None:
        reasons.append(f"the warm-up is a fifth of the {step}s, at most 4,000")
    if cooldown and options.cooldown == default_of("cooldown"):
        reasons.append("the fall to 0 takes a quarter of them, in which a model gains most")
    fall = f"falling with the inverse square root of the {step}"
    fall += f", and to 0 over the last {cooldown:,}" if cooldown else ""
    sentence = f"learning rate: up to {peak:.3g} at {step} {warmup:,}, then {fall}"
    return "; ".join([sentence, *reasons])


def warn_of_few_pairs(num_pairs):
    """Returns a warning if a text is too small for a new model, else `None`.

    Args:
        num_pairs: int. The lines of the training text.
    """
    if num_pairs >= FEWEST_PAIRS:
        return None
    pairs = f"{num_pairs:,} pairs" if num_pairs > 1 else "one pair"
    return (
        f"warning: {pairs} {'are' if num_pairs > 1 else 'is'} too few for a new model: it will "
        "learn them by heart and translate nothing else; it needs some 10,000"
    )


def choose_dropout(preset, num_pairs):
    """Chooses the dropout rate: more for a text that is small enough to be learnt by heart.

    Args:
        preset: str. The name of the preset.
        num_pairs: int. The lines of the training text.

    Returns:
        The rate, float, and the reason, str.
    """
    if num_pairs <= FEW_PAIRS:
        return 0.3, f"as there are at most {FEW_PAIRS:,} pairs, which a model soon knows by heart"
    if num_pairs <= MANY_PAIRS:
        return 0.2, f"as there are between {FEW_PAIRS:,} and {MANY_PAIRS:,} pairs"
    if preset in ("big", "paper_big"):
        return 0.3, "which is the paper's for a big model"
    return 0.1, f"little, as there are more than {MANY_PAIRS:,} pairs"


def choose_epochs(steps_per_epoch, accumulate=1):
    """Chooses the number of epochs: 20, or up to 30 to reach 7,500 steps.

    It is raised to reach at least 2,000 updates, and lowered to the epochs that reach 100,000
    steps.

    Args:
        steps_per_epoch: int. The batches of an epoch.
        accumulate: int, default 1. The batches of an update.

    Returns:
        The number of epochs, int, and the reason, str.
    """
    epochs = max(20, min(30, math.ceil(7500 / steps_per_epoch)))
    if epochs * steps_per_epoch < 2000 * accumulate:
        what = "steps" if accumulate == 1 else "updates"
        epochs = math.ceil(2000 * accumulate / steps_per_epoch)
        reason = f"as many as reach 2,000 {what}, the least in which a model learns to translate"
    elif epochs * steps_per_epoch > 100_000:
        epochs = math.ceil(100_000 / steps_per_epoch)
        reason = "as many as reach 100,000 steps; give epochs or steps if there is time for more"
    elif epochs == 20:
        reason = "the usual number"
    else:
        reason = "more than the usual 20, towards 7,500 steps"
    return epochs, reason


def choose_patience(steps_per_epoch, valid_every):
    """Chooses the patience: 10 validations, or more so that they span 1,000 steps.

    With a small corpus the first epochs have few steps, and the model is still warming up.

    Args:
        steps_per_epoch: int. The batches of an epoch.
        valid_every: int. The epochs between two validations.

    Returns:
        The number of validations, int, and the reason, str, which is empty for 10.
    """
    patience = max(PATIENCE, math.ceil(PATIENT_STEPS / (steps_per_epoch * valid_every)))
    if patience == PATIENCE:
        return patience, ""
    return patience, f" (at least {PATIENT_STEPS:,} steps, as an epoch has few)"


def choose_learning_rate(hidden_dim, warmup_steps, fine_tuning=False):
    """Chooses the peak of the learning rate.

    Up to hidden size 256 it is 0.64 / hidden size. For a larger model it is the peak of the paper's
    schedule, which is too high after a short warm-up, so it is at most 0.64 / hidden size. At
    hidden size 128 this is 0.005, with which Wu et al. 2021 train the preset `tiny`: twice the peak
    of the paper's schedule. A model that is trained further gets a tenth, so that it does not
    forget what it has learnt: 1.25e-4 at hidden size 512.

    Args:
        hidden_dim: int. D of the model.
        warmup_steps: int. The updates until the peak.
        fine_tuning: bool, default False. Whether a trained model is trained further.

    Returns:
        float.
    """
    most = 0.64 / hidden_dim
    peak = most if hidden_dim <= 256 else min((hidden_dim * warmup_steps) ** -0.5, most)
    return peak * (0.1 if fine_tuning else 1.0)


def choose_ema(total_steps):
    """Chooses the momentum of the average of weights: over a tenth of the steps, at most 1,000.

    Args:
        total_steps: int. The steps of the whole training.

    Returns:
        float; 0.0, which means no average, for a training of fewer than 100 steps.
    """
    return round(max(0.0, min(0.999, 1 - 10 / total_steps)), 4) if total_steps >= 100 else 0.0
