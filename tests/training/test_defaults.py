"""The settings of unset options, and the reasons for them."""

import dataclasses

import pytest

from kformer.data.batching import choose_batch_tokens
from kformer.text.vocabulary_size import default_vocabulary_size, describe_vocabulary_size
from kformer.training import defaults
from kformer.training.defaults import settle_course, settle_text
from kformer.training.options import TrainOptions

TEXT = {"num_pairs": 29_000, "num_tokens": 480_000}


def changes(settled, options):
    """The options that were settled: dict of name and value."""
    before = dataclasses.asdict(options)
    after = dataclasses.asdict(settled.options)
    return {name: value for name, value in after.items() if value != before[name]}


@pytest.mark.any_backend
def test_sizes_are_chosen_by_the_corpus():
    assert [default_vocabulary_size(count) for count in (100, 29_000, 10**6, 10**8)] == [
        1000,
        8000,
        16_000,
        32_000,
    ]
    assert [choose_batch_tokens(count)[0] for count in (10_000, 300_000, 480_000, 10**6)] == [
        512,
        1024,
        2048,
        4096,
    ]
    assert [
        defaults.choose_epochs(steps)[0] for steps in (1, 50, 254, 300, 1000, 50_000, 10**6)
    ] == [2000, 40, 30, 25, 20, 2, 1]
    assert [defaults.choose_ema(steps) for steps in (50, 1000, 7500, 10**5)] == [
        0.0,
        0.99,
        0.9987,
        0.999,
    ]
    sizes = (29_000, 10**6, 10**7)
    assert [defaults.choose_dropout("tiny", pairs)[0] for pairs in sizes] == [0.3, 0.2, 0.1]
    assert [defaults.choose_dropout(preset, 10**7)[0] for preset in ("base", "big")] == [0.1, 0.3]
    # The paper's base and big models get the paper's rate, but none too high by a short warm-up; a
    # small model gets the bound.
    assert defaults.choose_learning_rate(512, 100) == pytest.approx(0.00125)
    assert defaults.choose_learning_rate(512, 4000) == pytest.approx((512 * 4000) ** -0.5)
    assert [defaults.choose_learning_rate(128, steps) for steps in (100, 4000)] == pytest.approx(
        [0.005, 0.005]
    )


@pytest.mark.any_backend
def test_the_batches_and_the_model_are_settled_by_the_text():
    options = TrainOptions("a", "b", "c", "d")
    settled = settle_text(options, **TEXT, is_validated=True)
    assert changes(settled, options) == {
        "preset": "tiny",
        "norm": "pre",
        "precision": "float32",
        "max_length": 256,
        "seed": 0,
        "tokenizer_type": "bpe",
        "batch_tokens": 2048,
        "max_shapes": 8,
        "packed": False,
        "accumulate": 1,
        "dropout": 0.3,
        "attention_dropout": 0.0,
        "activation_dropout": 0.0,
        "word_dropout": 0.0,
        "consistency": 0.0,
        "label_smoothing": 0.1,
        "weight_decay": 0.0,
        "cooldown": 0.25,
        "clip_norm": 1.0,
        "valid_every": 1,
        "choose_search": True,
        "select": "nll",
        "checkpoint_every": 500,
        "keep": 2,
    }
    assert settled.reasons["dropout"].startswith("dropout: 0.3, as there are at most 200,000 pairs")
    assert settled.reasons["batch_tokens"] == (
        "batches: at most 2,048 tokens, less than the usual 4,096, so that an epoch still has at "
        "least 200 steps"
    )
    assert settled.reasons["model_options"].startswith("positions: rotary")
    # What is settled stays, with nothing to explain.
    assert settle_text(settled.options, **TEXT, resumed=True) == (
        settled.options,
        {},
    )
    few = settle_text(options, **TEXT, max_shapes=3)
    assert few.options.max_shapes == 3
    assert few.reasons["max_shapes"].startswith("shapes: batches have at most 3, since")
    packed = settle_text(TrainOptions("a", "b", packed=True), **TEXT).options
    assert packed.max_shapes is None and packed.select is None
    taught = settle_text(TrainOptions("a", "b", teachers=["run"]), **TEXT).options
    assert taught.teacher_weight == 0.8 and taught.tokenizer_type is None


@pytest.mark.any_backend
def test_a_training_further_keeps_what_its_model_has():
    options = TrainOptions("a", "b", start_from="run")
    settled = settle_text(options, **TEXT, is_new=False)
    of_the_model = "preset norm precision max_length seed dropout attention_dropout".split()
    assert all(getattr(settled.options, name) is None for name in of_the_model)
    assert settled.options.tokenizer_type is None and settled.options.cooldown == 0.0
    assert list(settled.reasons) == ["batch_tokens"]
    course = settle_course(settled.options, 254, 128, is_new=False)
    assert changes(course, settled.options) == {
        "epochs": 30,
        "ema": 0.0,
        "warmup_steps": 1524,
        "learning_rate": pytest.approx(5e-4),
    }


@pytest.mark.any_backend
def test_the_course_is_settled_by_the_steps_of_an_epoch():
    options = settle_text(TrainOptions("a", "b", "c", "d"), **TEXT).options
    facts = {"steps_per_epoch": 254, "hidden_dim": 128, "is_validated": True}
    settled = settle_course(options, **facts)
    assert changes(settled, options) == {
        "epochs": 30,
        "patience": 10,
        "ema": 0.9987,
        "warmup_steps": 1524,
        "learning_rate": 0.005,
    }
    beginnings = {
        "epochs": "length: 30 epochs, 7,620 steps: more",
        "patience": "stopping: early, after 10",
        "ema": "average: ",
        "learning_rate": "learning rate: up to 0.005 at step 1,524",
    }
    assert list(settled.reasons) == list(beginnings)
    for name, beginning in beginnings.items():
        assert settled.reasons[name].startswith(beginning)
    # The average moves with every batch, also where four make an update; and four times as many
    # batches make the fewest updates that teach a model to translate.
    accumulating = settle_course(dataclasses.replace(options, accumulate=4), **facts)
    assert (accumulating.options.ema, accumulating.options.epochs) == (0.9988, 32)
    assert "the latest 833 steps" in accumulating.reasons["ema"]
    assert accumulating.reasons["epochs"] == (
        "length: 32 epochs, 8,128 steps: as many as reach 2,000 updates, the least in which a "
        "model learns to translate"
    )
    # Ten epochs of a small corpus are still the warm-up: too few to give up.
    few = settle_course(dataclasses.replace(options, valid_every=2), 8, 128, is_validated=True)
    assert few.options.patience == 63 and "at least 1,000 steps" in few.reasons["patience"]
    # What is given is neither changed nor explained.
    given = {"steps": 40, "patience": 0, "ema": 0.0, "warmup_steps": 9, "learning_rate": 0.1}
    given = dataclasses.replace(options, **given)
    assert settle_course(given, **facts, resumed=True) == (given, {})


@pytest.mark.any_backend
def test_the_learning_rate_in_a_sentence():
    files = {"train_source": "a", "train_target": "b", "accumulate": 1}
    chosen = TrainOptions(**files, cooldown=0.25)
    assert defaults.describe_schedule(chosen, 0.005, 1000, 128, 2000) == (
        "learning rate: up to 0.005 at step 1,000, then falling with the inverse square root of "
        "the step, and to 0 over the last 500; the peak is 0.64 / hidden size, at which small "
        "models learn fastest; the warm-up is a fifth of the steps, at most 4,000; the fall to 0 "
        "takes a quarter of them, in which a model gains most"
    )
    sentence = defaults.describe_schedule(chosen, 0.001, 1000, 512, 2000)
    assert "the paper's, at most 0.64 / hidden size" in sentence
    tuned = TrainOptions(**files, start_from="run", warmup_steps=9, cooldown=0.0)
    sentence = defaults.describe_schedule(tuned, 5e-4, 9, 128, 2000, is_new=False)
    assert sentence.endswith(
        "of the step; a tenth of a new model's rate, which keeps what the model knows"
    )
    given = TrainOptions(**files, learning_rate=0.01, warmup_steps=9, cooldown=0.5)
    sentence = defaults.describe_schedule(given, 0.01, 9, 128, 100)
    assert sentence.endswith("and to 0 over the last 50")
    given = dataclasses.replace(given, accumulate=2, cooldown=0.0)
    whole = defaults.describe_schedule(given, 0.01, 9, 128, 9)
    assert whole.endswith("falling with the inverse square root of the update")
    assert defaults.describe_schedule(given, 0.01, 9, 128, 8) == (
        "learning rate: up to 0.01 at update 9, then falling with the inverse square root of the "
        "update; that peak is never reached, as the training ends after 8 updates: give fewer "
        "warm-up steps, or train longer"
    )
    given = dataclasses.replace(given, cooldown=0.5)
    sentence = defaults.describe_schedule(given, 0.01, 6, 128, 10)
    assert "is never reached, as the fall to 0 begins after 5 updates" in sentence


@pytest.mark.any_backend
@pytest.mark.parametrize("num_pairs", [1, 10, 900, 2_000, 29_000, 10_000_000])
def test_sentences_about_a_text_are_true(num_pairs):
    num_tokens = 25 * num_pairs
    tokens, reason = choose_batch_tokens(num_tokens)
    assert ("at least 200 steps" in reason) == (tokens < 4096 and num_tokens / tokens >= 200)
    size = default_vocabulary_size(num_pairs)
    often = "each occurs often" in describe_vocabulary_size(size, num_pairs)
    assert often == (num_tokens / size >= 25)
    warning = defaults.warn_of_few_pairs(num_pairs)
    assert (warning is not None) == (num_pairs < 1000)
    steps = max(1, num_tokens // tokens)
    epochs, reason = defaults.choose_epochs(steps)
    if "reach" in reason:
        least = 2000 if "2,000" in reason else 100_000
        assert epochs * steps >= least > (epochs - 1) * steps
    for preset in ("tiny", "big"):
        rate, reason = defaults.choose_dropout(preset, num_pairs)
        assert ("little" in reason) == (rate == 0.1)
