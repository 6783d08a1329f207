"""What `train_run` chooses where an option was left open: by the size of the corpus, each with its
reason.

The numbers stand on runs with Multi30k (29,000 pairs; benchmarks/RESULTS.md) and on the papers that
are named beside them."""

import math

FEW_PAIRS, MANY_PAIRS = 200_000, 2_000_000
USUAL_BATCH_TOKENS = 4096
# Validations in a row without a better one, after which nothing is to be hoped for; with a small
# corpus they lie close to each other.
PATIENCE, PATIENT_STEPS = 10, 1000
# Towards its end a training gains most while the rate falls to zero: 2 to 3 BLEU on Multi30k.
COOLDOWN = 0.25
# Its pieces are longer than unigram's: 4 % fewer tokens on Multi30k as written, 10 % tokenised, 2 %
# on Tatoeba in English and Chinese.
TOKENIZER_TYPE = "bpe"


# At the same speed ahead of sinusoids by an epoch from the fifth on; on Multi30k, at the end of 28,
# by 0.05 nats a token.
POSITIONS = "rope"


def default_vocabulary_size(num_pairs):
    """Pieces that occur often enough to be learnt: 1,000 to 32,000 by the number of pairs."""
    for size, most in (
        (1000, 2_000),
        (2000, 8_000),
        (4000, 20_000),
        (8000, FEW_PAIRS),
        (16_000, MANY_PAIRS),
    ):
        if num_pairs <= most:
            return size
    return 32_000


def choose_dropout(preset, num_pairs):
    """A rate, and why: what a model can learn by heart needs more of it."""
    if num_pairs <= FEW_PAIRS:
        return (
            0.3,
            f"as there are no more than {FEW_PAIRS:,} pairs, which a model soon knows by heart",
        )
    if num_pairs <= MANY_PAIRS:
        return 0.2, f"as there are between {FEW_PAIRS:,} and {MANY_PAIRS:,} pairs"
    return 0.3 if preset == "big" else 0.1, f"little, as there are more than {MANY_PAIRS:,} pairs"


def choose_batch_tokens(num_tokens):
    """Tokens of a batch, for an epoch of so many: 4096, or the power of two from 512 that gives an
    epoch 200 steps.

    Small batches mean many updates: 29,000 pairs learn in half as many epochs with 2048 tokens as
    with 4096."""
    tokens = USUAL_BATCH_TOKENS
    while tokens > 512 and num_tokens / tokens < 200:
        tokens //= 2
    return tokens


def choose_epochs(steps_per_epoch, accumulate=1):
    """Epochs, and why: 20; up to 30 where these are under 7,500 steps; from 2,000 updates to
    100,000 steps in all.

    Args:
        steps_per_epoch: int, batches of an epoch.
        accumulate: int, batches of an update.
    """
    epochs = max(20, min(30, math.ceil(7500 / steps_per_epoch)))
    if epochs * steps_per_epoch < 2000 * accumulate:
        what = "steps" if accumulate == 1 else "updates"
        epochs = math.ceil(2000 * accumulate / steps_per_epoch)
        return (
            epochs,
            f"as many as make 2,000 {what}, the least in which a model learns to translate",
        )
    if epochs * steps_per_epoch > 100_000:
        return math.ceil(
            100_000 / steps_per_epoch
        ), "as many as make 100,000 steps; give epochs or steps if there is time for more"
    return (
        epochs,
        "the usual number" if epochs == 20 else "more than the usual 20, towards 7,500 steps",
    )


def choose_patience(steps_per_epoch, valid_every):
    """Validations, and why: 10, or those of 1,000 steps, as a model that is still warming up says
    nothing for many epochs of a few.
    """
    patience = max(PATIENCE, math.ceil(PATIENT_STEPS / (steps_per_epoch * valid_every)))
    return (
        patience,
        ""
        if patience == PATIENCE
        else f": those of {PATIENT_STEPS:,} steps, as an epoch has so few",
    )


def choose_warmup(total_steps):
    """A fifth of the training, and at most the paper's 4,000 steps."""
    return max(1, min(4000, total_steps // 5))


def describe_schedule(options, peak, warmup, cooldown, hidden_dim, total_updates=math.inf):
    """The learning rate in a sentence: what was chosen and, where it was left open, why.

    Args:
        options: `TrainOptions`, of which `learning_rate`, `warmup_steps`, `accumulate` and
            `start_from` tell what was given.
        peak, warmup, cooldown: the rate, and numbers of updates.
        hidden_dim: D of the model.
        total_updates: int, those of the whole training.
    """
    step = "step" if (options.accumulate or 1) == 1 else "update"
    reasons = []
    if warmup >= total_updates:
        never = f"that peak is never reached, as the training ends after {total_updates:,} {step}s"
        reasons.append(f"{never}: give fewer warm-up steps, or train longer")
    if options.learning_rate is None and options.start_from:
        reasons.append("a tenth of a new model's rate, which keeps what the model knows")
    elif options.learning_rate is None and hidden_dim <= 256:
        reasons.append("the peak is 0.64 / hidden size, at which small models learn fastest")
    elif options.learning_rate is None:
        reasons.append("the peak is the paper's, at most 0.64 / hidden size")
    if options.warmup_steps is None:
        reasons.append(f"the warm-up is a fifth of the {step}s, at most 4,000")
    if cooldown and options.cooldown == COOLDOWN:
        reasons.append("the fall to 0 takes a quarter of them, in which a model gains most")
    sentence = f"learning rate: up to {peak:.3g} at {step} {warmup:,}, then falling with the root of the {step}"
    sentence += f", and to 0 over the last {cooldown:,}" if cooldown else ""
    return "; ".join([sentence, *reasons])


def choose_learning_rate(hidden_dim, warmup_steps, fine_tuning=False):
    """The peak: 0.64 / hidden size for a small model, up to 256; for a larger one that of the
    paper's schedule, and no more than this.

    It is 0.005 at hidden size 128, at which Wu et al. 2021 train the preset `tiny`, twice what the
    paper's schedule gives. A short warm-up would bring the paper's too high. A model that is
    trained further gets a tenth of it, so that it does not forget what it
    knows: 1.25e-4 at hidden size 512.
    """
    most = 0.64 / hidden_dim
    peak = most if hidden_dim <= 256 else min((hidden_dim * warmup_steps) ** -0.5, most)
    return peak * (0.1 if fine_tuning else 1.0)


def choose_ema(total_steps):
    """The momentum of an average over the last tenth of the steps, at most the last 1,000; 0, for
    none, in a short trial.
    """
    return round(max(0.0, min(0.999, 1 - 10 / total_steps)), 4) if total_steps >= 100 else 0.0
