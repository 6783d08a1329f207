"""The paper's schedule and the compile recipe."""

import keras
import numpy as np
import pytest

from kformer.training import MaskedCrossentropy, WarmupInverseSqrt, paper_recipe


def test_rates_are_those_of_the_equation():
    """Vaswani et al. 2017, equation 3, with their numbers: D 512, 4000 warm-up steps."""
    schedule = WarmupInverseSqrt(512)
    for updates in (1, 2, 100, 3999, 4000, 4001, 100_000, 300_000):
        expected = 512**-0.5 * min(updates**-0.5, updates * 4000**-1.5)
        np.testing.assert_allclose(float(schedule(updates - 1)), expected, rtol=1e-6)
    assert 0 < float(schedule(0)) < 1e-6
    rates = keras.ops.convert_to_numpy(
        WarmupInverseSqrt(64, warmup_steps=10, scale=3.0)(np.arange(40))
    )
    assert rates.argmax() == 9
    np.testing.assert_allclose(rates[9], 3 * 640**-0.5, rtol=1e-6)


def test_a_saved_model_goes_on_in_the_schedule(tmp_path, rng):
    model = keras.Sequential([keras.Input((3,)), keras.layers.Dense(3)])
    model.compile(keras.optimizers.Adam(WarmupInverseSqrt(64, 5, 2.0)), loss="mse")
    x = rng.normal(size=(4, 3)).astype("float32")
    for _ in range(3):
        model.train_on_batch(x, x)
    model.save(tmp_path / "model.keras")
    loaded = keras.saving.load_model(tmp_path / "model.keras")
    for updates in (4, 5):
        assert float(loaded.optimizer.learning_rate) == pytest.approx(
            2 * 64**-0.5 * updates * 5**-1.5, rel=1e-6
        )
        loaded.train_on_batch(x, x)
    schedule = keras.optimizers.schedules.deserialize(
        loaded.optimizer.get_config()["learning_rate"]
    )
    expected = {
        "hidden_dim": 64,
        "warmup_steps": 5,
        "scale": 2.0,
        "total_steps": None,
        "cooldown_steps": 0,
        "batches_per_update": 1,
    }
    assert schedule.get_config() == expected


def test_a_cooldown_ends_near_zero():
    plain, cooled = (
        WarmupInverseSqrt(64, 5),
        WarmupInverseSqrt(64, 5, total_steps=30, cooldown_steps=10),
    )
    factors = [float(cooled(step)) / float(plain(step)) for step in range(32)]
    np.testing.assert_allclose(factors[:20], 1.0, rtol=1e-6)
    np.testing.assert_allclose(factors[20:30], np.arange(10, 0, -1) / 11, rtol=1e-5)
    assert factors[30] == factors[31] == 0.0
    for wrong in ({"cooldown_steps": 10}, {"cooldown_steps": 10, "total_steps": 9}):
        with pytest.raises(ValueError, match="needs a training at least that long"):
            WarmupInverseSqrt(64, 5, **wrong)


@pytest.mark.any_backend
@pytest.mark.parametrize(
    "arguments",
    [
        {"hidden_dim": 0},
        {"hidden_dim": 1.5},
        {"hidden_dim": 8, "warmup_steps": 0},
        {"hidden_dim": 8, "scale": 0},
    ],
)
def test_a_schedule_that_makes_no_sense_is_refused(arguments):
    with pytest.raises(ValueError, match=f"{list(arguments)[-1]} must be .* was given"):
        WarmupInverseSqrt(**arguments)


def test_the_recipe_is_the_papers():
    recipe = paper_recipe(512)
    optimizer = recipe["optimizer"].get_config()
    assert [optimizer[name] for name in ("beta_1", "beta_2", "epsilon")] == [0.9, 0.98, 1e-9]
    schedule = {
        "hidden_dim": 512,
        "warmup_steps": 4000,
        "scale": 1.0,
        "total_steps": None,
        "cooldown_steps": 0,
        "batches_per_update": 1,
    }
    assert optimizer["learning_rate"]["config"] == schedule
    assert optimizer["global_clipnorm"] is None and not optimizer["use_ema"]
    assert isinstance(recipe["loss"], MaskedCrossentropy) and recipe["loss"].label_smoothing == 0.1
    assert [metric.name for metric in recipe["metrics"]] == ["nll", "perplexity", "accuracy"]
    assert recipe["loss"].pad_id is None and paper_recipe(8, pad_id=4)["metrics"][0].pad_id == 4


def test_the_recipe_takes_the_models_size_or_a_rate(tiny_transformer):
    model = tiny_transformer()
    model.compile(**paper_recipe(model, scale=2.0, clip_norm=1.0, ema_momentum=0.5))
    optimizer = model.optimizer.get_config()
    assert optimizer["learning_rate"]["config"]["hidden_dim"] == model.hidden_dim
    assert (optimizer["global_clipnorm"], optimizer["use_ema"], optimizer["ema_momentum"]) == (
        1.0,
        True,
        0.5,
    )
    with pytest.raises(ValueError, match="no attribute hidden_dim: give the size"):
        paper_recipe(keras.Sequential())
    assert paper_recipe(None, learning_rate=1e-3)["optimizer"].get_config()[
        "learning_rate"
    ] == pytest.approx(1e-3)


def test_weight_decay_is_that_of_adamw():
    torch = pytest.importorskip("torch")
    random = np.random.default_rng(0)
    start, slopes = (
        random.normal(size=(3, 4)).astype("float32"),
        random.normal(size=(5, 3, 4)).astype("float32"),
    )
    variable = keras.Variable(start)
    optimizer = paper_recipe(8, learning_rate=0.05, weight_decay=0.1)["optimizer"]
    theirs = torch.nn.Parameter(torch.tensor(start))
    peer = torch.optim.AdamW([theirs], lr=0.05, betas=(0.9, 0.98), eps=1e-9, weight_decay=0.1)
    for slope in slopes:
        optimizer.apply([keras.ops.convert_to_tensor(slope)], [variable])
        theirs.grad = torch.tensor(slope)
        peer.step()
    np.testing.assert_allclose(
        keras.ops.convert_to_numpy(variable), theirs.detach().numpy(), atol=1e-5
    )
    assert paper_recipe(8)["optimizer"].weight_decay is None


@pytest.mark.any_backend
@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"model_or_hidden_dim": "tiny"}, "hidden_dim must be .* 'tiny' was given"),
        ({"model_or_hidden_dim": 8, "clip_norm": 0}, "clip_norm must be above 0"),
        ({"model_or_hidden_dim": 8, "weight_decay": -0.1}, "weight_decay must be at least 0"),
        (
            {"model_or_hidden_dim": 8, "ema_momentum": 1.0},
            "ema_momentum must be above 0 and below 1",
        ),
        ({"model_or_hidden_dim": 8, "learning_rate": -1}, "learning_rate must be .* -1"),
        ({"model_or_hidden_dim": 8, "label_smoothing": -0.1}, "label_smoothing must be in"),
    ],
)
def test_what_is_wrong_with_a_recipe_is_said(arguments, message):
    with pytest.raises(ValueError, match=message):
        paper_recipe(**arguments)


def test_gradients_of_several_batches_make_one_update(rng):
    """Two halves in turn are one batch, and the schedule counts updates."""
    x, y = rng.normal(size=(8, 3)).astype("float32"), rng.integers(0, 4, (8,)).astype("int32")

    def trained(accumulation_steps, batches):
        keras.utils.set_random_seed(1)
        model = keras.Sequential([keras.Input((3,)), keras.layers.Dense(4)])
        recipe = paper_recipe(
            64, warmup_steps=5, label_smoothing=0.0, accumulation_steps=accumulation_steps
        )
        model.compile(
            recipe["optimizer"], keras.losses.SparseCategoricalCrossentropy(from_logits=True)
        )
        values = []
        for part in batches:
            model.train_on_batch(x[part], y[part])
            values.append(
                [keras.ops.convert_to_numpy(weight).copy() for weight in model.trainable_weights]
            )
        return model, values

    halves = [slice(0, 4), slice(4, 8)]
    model, values = trained(2, halves * 2)
    whole, expected = trained(1, [slice(0, 8)] * 2)
    for found, wanted in zip((values[1], values[3]), expected, strict=True):
        for a, b in zip(found, wanted, strict=True):
            np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-7)
    assert all((a == b).all() for a, b in zip(values[1], values[2], strict=True))
    assert int(model.optimizer.iterations) == int(whole.optimizer.iterations) == 2
    for wrong in (0, 1.5, True):
        with pytest.raises(
            ValueError, match="accumulation_steps must be a whole number of at least 1"
        ):
            paper_recipe(64, accumulation_steps=wrong)
