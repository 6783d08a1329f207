import keras
import numpy as np
import pytest

import kformer
from kformer.layers import Dropout
from tests.peers import to_numpy

V, D, N = 11, 8, 2

options = pytest.mark.parametrize(
    "options",
    [
        {},
        {"normalize_first": True, "activation": "gelu", "position_encoding": "learned"},
        {"share_output": False, "position_encoding": None, "layer_norm_epsilon": 1e-6},
    ],
    ids=["paper", "pre-norm", "no positions"],
)


def logits(model, inputs):
    return to_numpy(model(inputs))


def test_shapes_and_names(tiny_transformer, random_batch):
    model, batch = tiny_transformer(), random_batch()
    assert isinstance(model, keras.Model)
    assert model.output_shape == (None, None, V)
    assert logits(model, batch).shape == (2, 4, V)
    assert {name: tensor.shape for name, tensor in model.input.items()} == {
        "source_ids": (None, None),
        "target_ids": (None, None),
    }
    assert (
        model.hidden_dim,
        model.vocabulary_size,
        model.target_vocabulary_size,
        model.max_length,
    ) == (D, V, V, 16)
    assert (model.pad_id, model.start_id, model.end_id) == (0, 2, 3)


@options
def test_padding_of_the_source_changes_nothing(tiny_transformer, random_batch, options):
    model, batch = tiny_transformer(**options), random_batch(source_length=4)
    longer = {**batch, "source_ids": np.pad(batch["source_ids"], ((0, 0), (0, 1)))}
    np.testing.assert_allclose(logits(model, longer), logits(model, batch), atol=1e-5)
    more = {**batch, "source_ids": np.pad(batch["source_ids"], ((0, 0), (0, 1)), constant_values=7)}
    assert np.abs(logits(model, more) - logits(model, batch)).max() > 1e-3


@options
def test_later_target_tokens_change_nothing_before(tiny_transformer, random_batch, options):
    model, batch = tiny_transformer(**options), random_batch()
    changed = {**batch, "target_ids": batch["target_ids"].copy()}
    changed["target_ids"][:, 2:] = (changed["target_ids"][:, 2:] + 5) % V
    before, after = logits(model, batch), logits(model, changed)
    np.testing.assert_allclose(after[:, :2], before[:, :2], atol=1e-5)
    assert (np.abs(after[:, 2:] - before[:, 2:]).max(axis=-1) > 1e-3).all()


def test_rows_are_independent(tiny_transformer, random_batch):
    model, batch = tiny_transformer(), random_batch()
    beside = {
        name: np.concatenate([ids[:1], np.full_like(ids[:1], 9)]) for name, ids in batch.items()
    }
    np.testing.assert_allclose(logits(model, beside)[:1], logits(model, batch)[:1], atol=1e-5)
    assert np.abs(logits(model, beside)[1] - logits(model, batch)[1]).max() > 1e-3


def test_positions_tell_orders_apart(tiny_transformer, random_batch):
    batch = random_batch()
    swapped = {**batch, "source_ids": batch["source_ids"][:, [1, 0, 2, 3, 4]]}
    ordered, unordered = tiny_transformer(), tiny_transformer(position_encoding=None)
    assert np.abs(logits(ordered, swapped) - logits(ordered, batch)).max() > 1e-3
    np.testing.assert_allclose(logits(unordered, swapped), logits(unordered, batch), atol=1e-5)


def test_the_start_token_may_be_the_padding_token(tiny_transformer, random_batch):
    """Published models begin with it; masking it would leave the first position nothing to attend
    to.
    """
    model, batch = tiny_transformer(pad_id=4, start_id=4), random_batch(pad_id=4, start_id=4)
    record = model.inspect(batch)
    np.testing.assert_allclose(
        to_numpy(record["decoder_attention_scores"][0])[:, :, 0, 0], 1.0, atol=1e-6
    )
    assert np.isfinite(to_numpy(record["logits"])).all()


def test_a_source_of_padding_alone_is_finite(tiny_transformer, random_batch):
    model, batch = tiny_transformer(), random_batch()
    batch["source_ids"][1] = 0
    record = model.inspect(batch)
    assert np.isfinite(logits(model, batch)).all() and np.isfinite(to_numpy(record["logits"])).all()
    assert (to_numpy(record["cross_attention_scores"][0])[1] == 0).all()


@options
def test_inspect(tiny_transformer, random_batch, options):
    model, batch = tiny_transformer(**options), random_batch()
    before = [to_numpy(weight) for weight in model.weights]
    record = model.inspect(batch)
    np.testing.assert_allclose(to_numpy(record["logits"]), logits(model, batch), atol=1e-5)
    for weight, values in zip(model.weights, before, strict=True):
        np.testing.assert_array_equal(to_numpy(weight), values)

    shapes = {
        name: [tuple(x.shape) for x in value] for name, value in record.items() if name != "logits"
    }
    assert shapes == {
        "encoder_hidden_states": [(2, 5, D)] * 3,
        "decoder_hidden_states": [(2, 4, D)] * 3,
        "encoder_attention_scores": [(2, N, 5, 5)] * 2,
        "decoder_attention_scores": [(2, N, 4, 4)] * 2,
        "cross_attention_scores": [(2, N, 4, 5)] * 2,
    }
    real = batch["source_ids"] != 0
    for name in shapes:
        if name.endswith("scores"):
            scores = np.stack([to_numpy(x) for x in record[name]])
            np.testing.assert_allclose(scores.sum(axis=-1), 1.0, atol=1e-5)
            if name == "decoder_attention_scores":
                assert (scores[..., np.triu(np.ones((4, 4), bool), 1)] == 0).all()
            else:
                assert (scores.transpose(1, 4, 0, 2, 3)[~real] == 0).all()


def test_inspected_states_are_those_of_the_pass(tiny_transformer, random_batch):
    model, batch = tiny_transformer(), random_batch()
    record = model.inspect(batch)
    encoded, source_mask = model.encode(batch["source_ids"])
    np.testing.assert_allclose(
        to_numpy(record["encoder_hidden_states"][-1]), to_numpy(encoded), atol=1e-5
    )
    np.testing.assert_array_equal(to_numpy(source_mask), batch["source_ids"] != 0)
    # Under post-norm the last state times the shared table is the logits.
    table = to_numpy(
        next(
            weight
            for weight in model.trainable_weights
            if weight.path.endswith("embedding/embeddings")
        )
    )
    np.testing.assert_allclose(
        to_numpy(record["decoder_hidden_states"][-1]) @ table.T, logits(model, batch), atol=1e-5
    )


def tables(model):
    """Trainable weights that have a vocabulary's size, by layer."""
    return {
        weight.path.split("/")[-2]: tuple(weight.shape)
        for weight in model.trainable_weights
        if {V, 13} & set(weight.shape)
    }


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        ({}, {"embedding": (V, D)}),
        ({"share_output": False}, {"embedding": (V, D), "output_projection": (D, V)}),
        ({"share_embeddings": False}, {"source_embedding": (V, D), "target_embedding": (V, D)}),
        ({"target_vocabulary_size": 13}, {"source_embedding": (V, D), "target_embedding": (13, D)}),
        (
            {"target_vocabulary_size": 13, "share_output": False},
            {"source_embedding": (V, D), "target_embedding": (13, D), "output_projection": (D, 13)},
        ),
    ],
)
def test_sharing(tiny_transformer, random_batch, arguments, expected):
    model = tiny_transformer(**arguments)
    assert tables(model) == expected
    size = arguments.get("target_vocabulary_size", V)
    assert model.target_vocabulary_size == size and model.output_shape == (None, None, size)
    batch = random_batch()
    batch["target_ids"][:, -1] = size - 1
    assert np.isfinite(logits(model, batch)).all()


def test_seeds(random_batch):
    def weights(**arguments):
        sizes = {
            "num_encoder_layers": 2,
            "num_decoder_layers": 1,
            "hidden_dim": D,
            "intermediate_dim": 16,
            "num_heads": N,
        }
        model = kformer.Transformer(V, **sizes, share_embeddings=False, **arguments)
        return {weight.path: to_numpy(weight) for weight in model.trainable_weights}

    first, same, other, drawn = (
        weights(seed=1),
        weights(seed=1),
        weights(seed=2),
        weights(seed=None),
    )
    kernels = [path for path in first if first[path].std() > 0]
    for path in kernels:
        np.testing.assert_array_equal(first[path], same[path])
        assert (first[path] != other[path]).any() and (first[path] != drawn[path]).any()
    # No two weights of a model start from the same numbers.
    assert len({first[path].tobytes() for path in kernels}) == len(kernels) == 2 + 3 * 4 + 3
    assert (
        kformer.Transformer(V, hidden_dim=D, num_heads=N, seed=None).get_config()["seed"]
        is not None
    )


def test_dropout_layers_have_seeds_of_their_own(tiny_transformer):
    model = tiny_transformer(dropout=0.1, attention_dropout=0.1, activation_dropout=0.1)
    seeds = [layer.seed for layer in model._flatten_layers() if isinstance(layer, Dropout)]
    # An embedding, 2 encoder layers with 4, 2 decoder layers with 6.
    assert len(seeds) == len(set(seeds)) == 1 + 2 * 4 + 2 * 6


def test_dropout_in_training_alone(tiny_transformer, random_batch):
    model, batch = tiny_transformer(dropout=0.3), random_batch()
    expected = logits(model, batch)
    first, second = (to_numpy(model(batch, training=True)) for _ in range(2))
    assert np.abs(first - expected).max() > 1e-2 and np.abs(first - second).max() > 1e-2
    np.testing.assert_array_equal(logits(model, batch), expected)


@pytest.mark.any_backend(quickest="torch")
@pytest.mark.parametrize("rate, other", [(0.0, 0.5), (0.5, 0.0), (0.2, 0.5)])
def test_a_copy_with_other_dropout_has_the_same_weights(
    tiny_transformer, random_batch, rate, other
):
    model = tiny_transformer(dropout=rate, activation_dropout=0.1, trainable=False)
    copy = model.with_dropout(dropout=other, attention_dropout=0.3)
    assert copy.get_config() == {**model.get_config(), "dropout": other, "attention_dropout": 0.3}
    batch = random_batch()
    expected = logits(model, batch)
    np.testing.assert_array_equal(logits(copy, batch), expected)
    rates = {layer.rate for layer in copy._flatten_layers() if isinstance(layer, Dropout)}
    assert (
        rates == {other, 0.3, 0.1}
        and np.abs(to_numpy(copy(batch, training=True)) - expected).max() > 1e-2
    )
    # The model itself stays as it was, also after a training of the copy.
    copy.trainable = True
    copy.compile(**kformer.training.paper_recipe(copy))
    copy.train_on_batch(batch, np.ones(batch["target_ids"].shape, "int32"))
    np.testing.assert_array_equal(logits(model, batch), expected)
    assert model.get_config()["dropout"] == rate
    with pytest.raises(TypeError, match="Transformer has no rate hidden_dim to change"):
        model.with_dropout(hidden_dim=8)


@pytest.mark.any_backend
@pytest.mark.parametrize("name", [None, "own"])
def test_a_copy_never_keeps_random_weights(tiny_transformer, name):
    """A layer without a name is called otherwise in the copy, so its weights are not found."""

    class WithLayer(kformer.Transformer):
        def __init__(self, *args, **kwargs):
            super().__init__(*args, **{**tiny_transformer().get_config(), **kwargs})
            self.own = keras.layers.Dense(3, name=name)
            self.own.build((None, D))

    model = WithLayer()
    if name is None:
        with pytest.raises(ValueError, match=r"no weight dense\w*/kernel, .* name the layers"):
            model.with_dropout(dropout=0.3)
    else:
        copy = model.with_dropout(dropout=0.3)
        np.testing.assert_array_equal(to_numpy(copy.own.kernel), to_numpy(model.own.kernel))


def test_initial_logits_have_about_unit_variance(random_batch):
    """So training begins near the loss of a uniform guess."""
    sizes = {
        "num_encoder_layers": 2,
        "num_decoder_layers": 2,
        "hidden_dim": D,
        "intermediate_dim": 16,
        "num_heads": N,
    }
    found = [
        logits(kformer.Transformer(V, **sizes, seed=seed), random_batch()) for seed in range(5)
    ]
    assert 0.5 < np.std(found) < 2


def test_mixed_precision_is_near_float32(tiny_transformer, random_batch, policy):
    batch = random_batch()
    model = kformer.Transformer(**{**tiny_transformer().get_config(), "dtype": policy})
    reference = kformer.Transformer(**{**model.get_config(), "dtype": "float32"})
    model.set_weights([to_numpy(weight) for weight in reference.weights])
    assert {str(weight.dtype) for weight in model.trainable_weights} == {"float32"}
    output = model.predict_on_batch(batch)
    assert keras.backend.standardize_dtype(output.dtype) == policy.removeprefix("mixed_")
    tolerance = {"float32": 1e-5, "mixed_float16": 3e-2, "mixed_bfloat16": 2e-1}[policy]
    np.testing.assert_allclose(output.astype("float32"), logits(reference, batch), atol=tolerance)


def test_any_batch_and_lengths_in_a_graph(tiny_transformer, random_batch, backend):
    model = tiny_transformer()
    for sizes in [(2, 5, 4)] if backend == "jax" else [(2, 5, 4), (1, 3, 6), (3, 1, 1)]:
        batch = (
            random_batch(*sizes)
            if min(sizes) > 1
            else {name: ids[:, :1] for name, ids in random_batch(3).items()}
        )
        np.testing.assert_allclose(model.predict(batch, verbose=0), logits(model, batch), atol=1e-5)


def test_config_round_trip(tiny_transformer, random_batch):
    model = tiny_transformer(
        normalize_first=True,
        attention_dropout=0.1,
        activation_dropout=0.2,
        activation="silu",
        position_encoding="learned",
        target_vocabulary_size=13,
        pad_id=5,
        start_id=6,
        end_id=7,
        seed=9,
        name="other",
    )
    again = kformer.Transformer.from_config(model.get_config())
    assert again.get_config() == model.get_config()
    again.set_weights(model.get_weights())
    batch = random_batch(pad_id=5)
    np.testing.assert_allclose(logits(again, batch), logits(model, batch), atol=1e-6)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"num_heads": 3}, "num_heads must divide hidden_dim, but 8 / 3"),
        ({"vocabulary_size": 0}, "vocabulary_size must be a whole number of at least 1, but 0"),
        (
            {"target_vocabulary_size": -1},
            "target_vocabulary_size must be a whole number of at least 1, but -1",
        ),
        ({"hidden_dim": 8.0}, "hidden_dim must be a whole number of at least 1, but 8.0"),
        ({"num_encoder_layers": 0}, "num_encoder_layers must be a whole number of at least 1"),
        ({"num_decoder_layers": -2}, "num_decoder_layers must be a whole number of at least 1"),
        ({"intermediate_dim": 0}, "intermediate_dim must be a whole number of at least 1"),
        ({"max_length": 0}, "max_length must be a whole number of at least 1"),
        ({"dropout": 1.0}, r"^dropout must be in \[0, 1\), but 1.0"),
        ({"attention_dropout": 1.5}, "^attention_dropout must be in"),
        ({"stochastic_depth": 3.0}, "^stochastic_depth must be in .* but 3.0 was given"),
        ({"start_id": 50}, "^start_id must be an id below .*, but 50 was given"),
        ({"target_vocabulary_size": 4, "end_id": 4}, "^end_id must be an id below 4, but 4"),
        ({"pad_id": -1}, "^pad_id must be an id below .*, but -1"),
        ({"head_dim": 0}, "^head_dim must be"),
        ({"attention_window": 4}, "^attention_window=4 is for attention_kind='local'"),
        ({"decoder_autoregression": "gru"}, "must be one of self_attention, ssru, but 'gru'"),
        ({"activation": "tanh"}, "activation must be one of .* 'tanh'"),
        (
            {"position_encoding": "alibis"},
            "position_encoding must be one of .*learned, .*alibi, t5, shaw, None, but 'alibis'",
        ),
        (
            {"position_encoding": "t5", "attention_kind": "linear"},
            "does not go with attention_kind='linear'",
        ),
        (
            {"normalization": "batch"},
            "normalization must be one of layer_norm, rms_norm, but 'batch'",
        ),
        ({"num_key_value_heads": 3}, "num_key_value_heads must divide num_heads"),
    ],
)
def test_errors(tiny_transformer, arguments, message):
    with pytest.raises(ValueError, match=message):
        tiny_transformer(**arguments)


@pytest.mark.any_backend
def test_an_encoder_pools_in_two_ways():
    with pytest.raises(ValueError, match="^pooling must be"):
        kformer.TransformerEncoder(20, pooling="max", head="labelling", num_outputs=2)
