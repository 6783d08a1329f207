"""The encoder alone: its heads, and embeddings that find their partners."""

import keras
import numpy as np
import pytest
import torch
from keras import ops

import kformer
from kformer.models import DualEncoder, Pooling, TransformerEncoder
from kformer.training import ContrastiveLoss, RetrievalAccuracy
from tests.peers import to_numpy, torch_encoder
from tests.trainer.test_run import write_pairs

SIZES = {
    "num_layers": 2,
    "hidden_dim": 8,
    "intermediate_dim": 16,
    "num_heads": 2,
    "dropout": 0.0,
    "max_length": 16,
}
V = 20
IDS = np.array([[5, 6, 7, 8, 9], [10, 11, 0, 0, 0], [0, 0, 0, 0, 0]], "int32")


def run(model, ids=IDS):
    return to_numpy(model({"token_ids": ops.convert_to_tensor(ids)}))


def test_hidden_states_are_those_of_pytorch(randomize):
    model = randomize(TransformerEncoder(V, **SIZES, position_encoding="learned"))
    network = model.network
    x = to_numpy(network.embedding(ops.convert_to_tensor(IDS[:2])))
    peer = torch_encoder(network.stack.layers, network.stack.norm, 8).eval()
    with torch.no_grad():
        expected = peer(torch.tensor(x), src_key_padding_mask=torch.tensor(IDS[:2] == 0)).numpy()
    found = run(model)[:2]
    np.testing.assert_allclose(found[IDS[:2] != 0], expected[IDS[:2] != 0], atol=2e-5)
    seen = model.inspect({"token_ids": IDS[:2]})
    assert len(seen["encoder_hidden_states"]) == 3 and seen["encoder_attention_scores"][
        1
    ].shape == (2, 2, 5, 5)


def test_pooling():
    x = ops.convert_to_tensor(np.arange(12, dtype="float32").reshape(2, 3, 2))
    mask = ops.convert_to_tensor(np.array([[True, True, False], [False, False, False]]))
    assert to_numpy(Pooling("mean")(x, padding_mask=mask)).tolist() == [[1, 2], [0, 0]]
    assert to_numpy(Pooling("mean")(x)).tolist() == [[2, 3], [8, 9]]
    assert to_numpy(Pooling("first")(x, padding_mask=mask)).tolist() == [[0, 1], [6, 7]]


@pytest.mark.parametrize("pooling", ["mean", "first"])
def test_padding_changes_nothing(randomize, pooling):
    model = randomize(
        TransformerEncoder(
            V,
            **SIZES,
            head="classification",
            num_outputs=3,
            pooling=pooling,
            position_encoding="rope",
        )
    )
    found = run(model)
    assert found.shape == (3, 3) and np.isfinite(found).all()
    np.testing.assert_allclose(run(model, IDS[1:2, :2])[0], found[1], atol=1e-5)


HEADS = {
    "classification": (
        {"num_outputs": 3},
        keras.losses.SparseCategoricalCrossentropy(from_logits=True),
        np.array([0, 2, 1]),
    ),
    "regression": ({"pooling": "first"}, "mean_squared_error", np.array([[0.5], [-1.0], [2.0]])),
    "labelling": (
        {"num_outputs": 4},
        "masked",
        np.array([[0, 1, 2, 3, 0], [1, 0, -1, -1, -1], [-1] * 5]),
    ),
}


@pytest.mark.heavy
@pytest.mark.parametrize("head", HEADS)
@pytest.mark.any_backend(quickest="torch")
def test_every_head_learns_and_is_saved(head, tmp_path):
    options, loss, labels = HEADS[head]
    model = TransformerEncoder(V, **SIZES, head=head, **options)
    metrics = []
    if loss == "masked":
        loss, metrics = kformer.MaskedCrossentropy(), [kformer.MaskedAccuracy()]
    model.compile(keras.optimizers.Adam(0.03), loss, metrics=metrics)
    losses = model.fit({"token_ids": IDS}, labels, epochs=40, verbose=0).history
    assert losses["loss"][-1] < 0.2 * losses["loss"][0]
    if head == "labelling":
        # The label 0 counts like any other; what is below 0 does not.
        assert losses["accuracy"][-1] == 1.0 and run(model)[0].argmax(-1).tolist() == [
            0,
            1,
            2,
            3,
            0,
        ]
    model.save(tmp_path / "model.keras")
    again = keras.saving.load_model(tmp_path / "model.keras")
    assert again.get_config() == model.get_config()
    np.testing.assert_array_equal(run(again), run(model))


@pytest.mark.heavy
@pytest.mark.any_backend(quickest="torch")
def test_embeddings_find_their_partners(rng, tmp_path):
    """Partners share no token: which belongs to which is learnt."""
    sources = rng.integers(4, 12, (24, 4)).astype("int32")
    data = {"source_ids": sources, "target_ids": np.flip(sources, 1) + 8}
    encoder = TransformerEncoder(
        V, **{**SIZES, "hidden_dim": 32, "intermediate_dim": 64}, head="embedding", num_outputs=16
    )
    model = DualEncoder(encoder)
    model.compile(keras.optimizers.Adam(0.005), ContrastiveLoss(0.1), metrics=[RetrievalAccuracy()])
    labels = np.zeros(24)
    before = model.evaluate(data, labels, verbose=0, return_dict=True, batch_size=24)
    model.fit(data, labels, epochs=60, batch_size=24, verbose=0)
    after = model.evaluate(data, labels, verbose=0, return_dict=True, batch_size=24)
    assert (
        before["retrieval_accuracy"] < 0.4
        and after["retrieval_accuracy"] > 0.9
        and after["loss"] < 0.5 * before["loss"]
    )
    vectors = run(encoder, data["source_ids"])
    np.testing.assert_allclose(np.linalg.norm(vectors, axis=-1), 1, atol=1e-5)
    nearest = (vectors @ run(encoder, data["target_ids"]).T).argmax(-1)
    assert (nearest == np.arange(24)).mean() > 0.9
    model.save(tmp_path / "pairs.keras")
    again = keras.saving.load_model(tmp_path / "pairs.keras")
    np.testing.assert_array_equal(run(again.encoder, data["source_ids"]), vectors)


def test_the_contrastive_loss_is_its_formula(rng):
    pairs = rng.normal(size=(5, 2, 3)).astype("float32")
    unit = pairs / np.linalg.norm(pairs, axis=-1, keepdims=True)
    cosines = unit[:, 0] @ unit[:, 1].T / 0.2
    rows, columns = (np.log(np.exp(cosines).sum(axis)) - cosines.diagonal() for axis in (1, 0))
    np.testing.assert_allclose(
        float(ContrastiveLoss(0.2)(np.zeros(5), pairs)), ((rows + columns) / 2).mean(), rtol=1e-5
    )
    metric = RetrievalAccuracy()
    metric.update_state(None, ops.ones((4, 2, 3)))
    assert float(metric.result()) == 0


@pytest.mark.any_backend(quickest="torch")
def test_rows_of_padding_are_no_pairs(rng):
    encoder = TransformerEncoder(V, **SIZES, head="embedding", num_outputs=8)
    encoder.get_layer("head").bias.assign(rng.normal(size=8))
    model = DualEncoder(encoder)
    ids = rng.integers(4, V, (4, 2, 5)).astype("int32")
    filled = np.concatenate([ids, np.zeros((2, 2, 5), "int32")])
    pairs, more = (
        run_pairs(model, {"source_ids": rows[:, 0], "target_ids": rows[:, 1]})
        for rows in (ids, filled)
    )
    np.testing.assert_allclose(more[:4], pairs, atol=1e-6)
    assert not more[4:].any()
    for reduction in ("mean", "sum_over_batch_size", "sum", None):
        loss = ContrastiveLoss(0.2, reduction=reduction)
        own, filled = to_numpy(loss(np.zeros(4), pairs)), to_numpy(loss(np.zeros(6), more))
        np.testing.assert_allclose(filled[:4] if reduction is None else filled, own, rtol=1e-5)
    metrics = [RetrievalAccuracy(), RetrievalAccuracy()]
    metrics[0].update_state(None, pairs)
    metrics[1].update_state(None, more)
    assert float(metrics[0].result()) == float(metrics[1].result())
    metrics[0].reset_state()
    metrics[0].update_state(None, more, np.ones((6, 1)))
    assert float(metrics[0].result()) == float(metrics[1].result())


def run_pairs(model, data):
    return to_numpy(model({name: ops.convert_to_tensor(ids) for name, ids in data.items()}))


@pytest.mark.any_backend(quickest="torch")
def test_pairs_are_trained_in_the_order_of_their_data(tmp_path):
    texts = write_pairs(tmp_path)
    sides = texts["train_source"], texts["train_target"]
    tokenizer = kformer.Tokenizer.train(sides, vocabulary_size=380)
    encoder = TransformerEncoder(tokenizer.vocabulary_size, **SIZES, head="embedding")
    model = DualEncoder(encoder)
    model.compile("sgd", ContrastiveLoss())
    with pytest.raises(ValueError, match="make the data with packed=False"):
        model.fit(kformer.data.ParallelDataset(*sides, tokenizer, packed=True, batch_tokens=256))
    # Each batch has rows of padding.
    data = kformer.data.ParallelDataset(*sides, tokenizer, batch_tokens=256, num_devices=8)
    seen, batch_at = [], data.batch_at
    data.batch_at = lambda step: seen.append(step) or batch_at(step)
    history = model.fit(data, verbose=0).history
    assert np.isfinite(history["loss"]).all() and seen[-len(data) :] == sorted(seen[-len(data) :])
    assert all(np.isfinite(to_numpy(weight)).all() for weight in model.trainable_weights)


@pytest.mark.any_backend
@pytest.mark.parametrize(
    "options, words",
    [
        ({"head": "tagging"}, "head must be one of .*labelling, .*'tagging'"),
        ({"head": "classification"}, "num_outputs must be a whole number of at least 1, but None"),
        ({"num_outputs": 3}, "num_outputs=3 needs a head"),
        ({"pooling": "max", "head": "regression"}, "pooling must be one of mean, first, but 'max'"),
        ({"position_encoding": "absolute"}, "position_encoding must be one of .*'absolute'"),
        ({"position_encoding": "rope", "rotary_base": 0.0}, "rotary_base must be above 0, but 0"),
    ],
)
def test_errors(options, words):
    with pytest.raises(ValueError, match=words):
        TransformerEncoder(V, **{**SIZES, **options})


@pytest.mark.any_backend
def test_errors_of_pairs():
    with pytest.raises(ValueError, match="head='embedding'"):
        DualEncoder(TransformerEncoder(V, **SIZES))
    with pytest.raises(ValueError, match="temperature must be above 0, but 0"):
        ContrastiveLoss(0)
