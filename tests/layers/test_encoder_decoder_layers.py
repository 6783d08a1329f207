import keras
import numpy as np
import pytest
import torch
from keras import ops

from kformer.layers import DecoderLayer, Dropout, EncoderLayer
from tests.gradients import gradients
from tests.peers import to_numpy, torch_decoder, torch_encoder

B, T, S, D, N, F = 2, 4, 5, 8, 2, 16

norm_orders = pytest.mark.parametrize(
    "normalize_first", [False, True], ids=["post-norm", "pre-norm"]
)


@pytest.fixture
def source(rng):
    return rng.normal(size=(B, S, D)).astype("float32")


@pytest.fixture
def target(rng):
    return rng.normal(size=(B, T, D)).astype("float32")


@pytest.fixture
def padding():
    return np.array([[1, 1, 1, 1, 1], [1, 1, 1, 0, 0]], bool)


@pytest.fixture
def stack(randomize):
    """A function that makes two built layers with random weights, and the norm that follows them
    under pre-norm.
    """

    def make(layer_class, **arguments):
        shapes = [(B, S, D)] if layer_class is EncoderLayer else [(B, T, D), (B, S, D)]
        layers = [layer_class(F, N, **arguments) for _ in range(2)]
        for layer in layers:
            layer.build(*shapes)
            randomize(layer)
        if not arguments.get("normalize_first"):
            return layers, None
        norm = keras.layers.LayerNormalization(epsilon=layers[0].options.layer_norm_epsilon)
        norm.build(shapes[0])
        return layers, randomize(norm)

    return make


def encode(layers, norm, x, **arguments):
    for layer in layers:
        x = layer(x, **arguments)
    return x if norm is None else norm(x)


def decode(layers, norm, x, encoded, **arguments):
    for layer in layers:
        x = layer(x, encoded, **arguments)
    return x if norm is None else norm(x)


@norm_orders
@pytest.mark.parametrize("activation", ["relu", "gelu"])
def test_encoder_agrees_with_pytorch(stack, source, padding, normalize_first, activation):
    layers, norm = stack(
        EncoderLayer,
        normalize_first=normalize_first,
        activation=activation,
        layer_norm_epsilon=1e-3,
    )
    peer = torch_encoder(layers, norm, D).eval()
    with torch.no_grad():
        expected = peer(torch.tensor(source), src_key_padding_mask=torch.tensor(~padding)).numpy()
    found = to_numpy(encode(layers, norm, source, padding_mask=padding))
    # What stands at padding is nobody's business; PyTorch's fast path puts zeros there.
    np.testing.assert_allclose(found[padding], expected[padding], atol=2e-5)


@norm_orders
@pytest.mark.parametrize("activation", ["relu", "silu"])
def test_decoder_agrees_with_pytorch(stack, source, target, padding, normalize_first, activation):
    layers, norm = stack(DecoderLayer, normalize_first=normalize_first, activation=activation)
    peer = torch_decoder(layers, norm, D).eval()
    with torch.no_grad():
        expected = peer(
            torch.tensor(target),
            torch.tensor(source),
            tgt_mask=torch.tensor(np.triu(np.ones((T, T), bool), 1)),
            memory_key_padding_mask=torch.tensor(~padding),
        ).numpy()
    found = to_numpy(decode(layers, norm, target, source, encoded_padding_mask=padding))
    np.testing.assert_allclose(found, expected, atol=2e-5)


@norm_orders
def test_gradients_agree_with_pytorch(stack, source, target, padding, rng, normalize_first):
    """Those of the inputs, which every weight takes part in, and of some weights at the far end."""
    encoder, encoder_norm = stack(EncoderLayer, normalize_first=normalize_first)
    decoder, decoder_norm = stack(DecoderLayer, normalize_first=normalize_first)
    weights = rng.normal(size=(B, T, D)).astype("float32")

    source_peer, target_peer = (torch.tensor(x, requires_grad=True) for x in (source, target))
    encoder_peer, decoder_peer = (
        torch_encoder(encoder, encoder_norm, D),
        torch_decoder(decoder, decoder_norm, D),
    )
    ignored = torch.tensor(~padding)
    memory = encoder_peer(source_peer, src_key_padding_mask=ignored)
    causal = torch.tensor(np.triu(np.ones((T, T), bool), 1))
    output = decoder_peer(target_peer, memory, tgt_mask=causal, memory_key_padding_mask=ignored)
    (output * torch.tensor(weights)).sum().backward()
    expected = [
        source_peer.grad,
        target_peer.grad,
        encoder_peer.layers[0].self_attn.in_proj_weight.grad.T,
        encoder_peer.layers[0].norm1.weight.grad,
        decoder_peer.layers[0].linear1.weight.grad.T,
    ]

    x, y = keras.Variable(source), keras.Variable(target)

    def loss():
        encoded = encode(encoder, encoder_norm, x.value, padding_mask=padding)
        return ops.sum(
            ops.multiply(
                decode(decoder, decoder_norm, y.value, encoded, encoded_padding_mask=padding),
                weights,
            )
        )

    variables = [
        x,
        y,
        encoder[0].self_attention.query_key_value_kernel,
        encoder[0].self_attention_norm.gamma,
        decoder[0].feed_forward.intermediate.kernel,
    ]
    for ours, theirs in zip(gradients(loss, variables), expected, strict=True):
        np.testing.assert_allclose(ours, theirs.numpy(), atol=1e-4)


def test_encoder_without_positions_is_permutation_equivariant(stack, source, padding):
    layers, norm = stack(EncoderLayer)
    order = np.array([3, 0, 4, 2, 1])
    found = to_numpy(encode(layers, norm, source[:, order], padding_mask=padding[:, order]))
    expected = to_numpy(encode(layers, norm, source, padding_mask=padding))[:, order]
    np.testing.assert_allclose(found[padding[:, order]], expected[padding[:, order]], atol=1e-5)


def test_encoder_sees_no_padding(stack, source, padding):
    layers, norm = stack(EncoderLayer)
    noisy = np.where(padding[..., None], source, 100.0).astype("float32")
    expected = to_numpy(encode(layers, norm, source, padding_mask=padding))
    found = to_numpy(encode(layers, norm, noisy, padding_mask=padding))
    np.testing.assert_allclose(found[padding], expected[padding], atol=1e-6)
    assert np.abs(to_numpy(encode(layers, norm, source)) - expected)[1, :3].max() > 1e-3


def test_decoder_sees_no_later_token(stack, source, target):
    layers, _ = stack(DecoderLayer)
    changed = target.copy()
    changed[:, 2:] += 1.0
    before, after = (to_numpy(decode(layers, None, x, source)) for x in (target, changed))
    np.testing.assert_allclose(after[:, :2], before[:, :2], atol=1e-6)
    assert (np.abs(after[:, 2:] - before[:, 2:]).max(axis=-1) > 1e-3).all()
    bidirectional = to_numpy(decode(layers, None, changed, source, use_causal_mask=False))
    assert np.abs(bidirectional[:, :2] - after[:, :2]).max() > 1e-3


def test_decoder_masks(stack, source, target, rng):
    """Every mask argument reaches its attention."""
    layers, _ = stack(DecoderLayer)
    layer = layers[0]
    square, cross = rng.random((T, T)) < 0.7, rng.random((B, T, S)) < 0.7
    target_padding = np.array([[1, 1, 1, 0], [0, 1, 1, 1]], bool)
    source_padding = np.array([[1, 1, 1, 1, 0], [0, 1, 1, 1, 1]], bool)
    _, (self_scores, cross_scores) = layer(
        target,
        source,
        padding_mask=target_padding,
        encoded_padding_mask=source_padding,
        attention_mask=square,
        cross_attention_mask=cross,
        return_attention_scores=True,
    )
    self_mask = square & np.tril(np.ones((T, T), bool)) & target_padding[:, None, None]
    cross_mask = (cross & source_padding[:, None])[:, None]
    for scores, mask in ((self_scores, self_mask), (cross_scores, cross_mask)):
        np.testing.assert_array_equal(to_numpy(scores) > 0, np.broadcast_to(mask, scores.shape))
        np.testing.assert_allclose(
            to_numpy(scores).sum(-1), np.broadcast_to(mask.any(-1), scores.shape[:3]), atol=1e-5
        )


def test_scores_do_not_change_the_output(stack, source, target):
    encoder, _ = stack(EncoderLayer)
    output, scores = encoder[0](source, return_attention_scores=True)
    np.testing.assert_allclose(to_numpy(output), to_numpy(encoder[0](source)), atol=1e-6)
    assert tuple(scores.shape) == (B, N, S, S)
    decoder, _ = stack(DecoderLayer)
    output, _ = decoder[0](target, source, return_attention_scores=True)
    np.testing.assert_allclose(to_numpy(output), to_numpy(decoder[0](target, source)), atol=1e-6)


@pytest.mark.parametrize("max_length", [6] if keras.backend.backend() == "jax" else [None, 6])
@norm_orders
def test_decoder_cached_equals_uncached(
    stack, source, target, padding, normalize_first, max_length
):
    layer = stack(DecoderLayer, normalize_first=normalize_first)[0][0]
    expected = to_numpy(layer(target, source, encoded_padding_mask=padding))
    cache = layer.init_cache(source, max_length=max_length)
    outputs = []
    for start, end in [(0, 2), (2, 3), (3, 4)]:
        output, cache = layer(target[:, start:end], cache=cache, encoded_padding_mask=padding)
        outputs.append(to_numpy(output))
    np.testing.assert_allclose(np.concatenate(outputs, axis=1), expected, atol=1e-5)


def test_decoder_cache_with_beams_and_scores(stack, source, target, padding):
    """Two beams per sentence; then one of them takes over both rows."""
    layer = stack(DecoderLayer)[0][0]
    rows = np.repeat(target, 2, axis=0)
    rows[1::2] += 0.5
    cache = layer.init_cache(source, rows=2 * B, max_length=4)
    _, cache = layer(rows[:, :2], cache=cache, encoded_padding_mask=padding)
    order = np.array([1, 1, 2, 2], dtype="int32")
    output, (self_scores, cross_scores), cache = layer(
        rows[order][:, 2:],
        cache=cache.reorder(order),
        encoded_padding_mask=padding,
        return_attention_scores=True,
    )
    expected, (self_expected, cross_expected) = layer(
        rows[order],
        np.repeat(source, 2, axis=0),
        encoded_padding_mask=np.repeat(padding, 2, axis=0),
        return_attention_scores=True,
    )
    np.testing.assert_allclose(to_numpy(output), to_numpy(expected)[:, 2:], atol=1e-5)
    np.testing.assert_allclose(to_numpy(self_scores), to_numpy(self_expected)[:, :, 2:], atol=1e-5)
    np.testing.assert_allclose(
        to_numpy(cross_scores), to_numpy(cross_expected)[:, :, 2:], atol=1e-5
    )


@pytest.mark.parametrize("layer_class", [EncoderLayer, DecoderLayer])
def test_dropout_stands_at_the_papers_places(layer_class, source, target):
    layer = layer_class(F, N, dropout=0.1, attention_dropout=0.2, activation_dropout=0.3, seed=0)
    inputs = (source,) if layer_class is EncoderLayer else (target, source)
    layer(*inputs)
    found = {
        part.path.split("/", 1)[1]: part.rate
        for part in layer._flatten_layers()
        if isinstance(part, Dropout)
    }
    blocks = (
        ["self_attention"] if layer_class is EncoderLayer else ["self_attention", "cross_attention"]
    )
    expected = {f"{block}_dropout": 0.1 for block in [*blocks, "feed_forward"]}
    expected |= {f"{block}/attention_dropout": 0.2 for block in blocks} | {
        "feed_forward/activation_dropout": 0.3
    }
    assert found == expected
    # No two of them drop the same elements.
    assert len({part.seed for part in layer._flatten_layers() if isinstance(part, Dropout)}) == len(
        found
    )


@pytest.mark.parametrize("layer_class", [EncoderLayer, DecoderLayer])
def test_every_dropout_acts_in_training_alone(layer_class, source, target):
    inputs = (source,) if layer_class is EncoderLayer else (target, source)
    outputs = []
    for place in ("dropout", "attention_dropout", "activation_dropout"):
        layer = layer_class(F, N, **{place: 0.5}, seed=0)
        outputs += [to_numpy(layer(*inputs)), to_numpy(layer(*inputs, training=True))]
    np.testing.assert_array_equal(outputs[0], outputs[2])  # the same seed, so the same weights
    np.testing.assert_array_equal(outputs[0], outputs[4])
    dropped = outputs[1::2]
    assert all(np.abs(x - outputs[0]).max() > 1e-2 for x in dropped)
    assert all(np.abs(dropped[i] - dropped[j]).max() > 1e-2 for i, j in ((0, 1), (0, 2), (1, 2)))


def test_residual_dropout_is_on_the_sublayer_not_on_the_stream(source):
    """With everything dropped but the stream, pre-norm gives the input back."""
    layer = EncoderLayer(F, N, dropout=0.999, normalize_first=True, seed=0)
    output = to_numpy(layer(source, training=True))
    assert (output == source).mean() > 0.9


@pytest.mark.parametrize("layer_class", [EncoderLayer, DecoderLayer])
def test_config_round_trip(layer_class, source, target):
    layer = layer_class(
        F,
        N,
        dropout=0.1,
        attention_dropout=0.2,
        activation_dropout=0.3,
        activation="silu",
        normalize_first=True,
        layer_norm_epsilon=1e-6,
        use_bias=False,
        seed=3,
        name="block",
    )
    again = layer_class.from_config(layer.get_config())
    assert again.get_config() == layer.get_config()
    inputs = (source,) if layer_class is EncoderLayer else (target, source)
    np.testing.assert_allclose(to_numpy(again(*inputs)), to_numpy(layer(*inputs)), atol=1e-6)
    biases = [weight.path for weight in layer.trainable_weights if "bias" in weight.name]
    assert not biases


@pytest.mark.parametrize("layer_class", [EncoderLayer, DecoderLayer])
def test_mixed_precision(layer_class, source, target, padding, policy, randomize):
    layer = layer_class(F, N, seed=0)
    reference = layer_class(F, N, seed=0, dtype="float32")
    if layer_class is EncoderLayer:
        inputs, masks = (source,), {"padding_mask": padding}
    else:
        inputs, masks = (target, source), {"encoded_padding_mask": padding}
    output = layer(*inputs, **masks)
    assert keras.backend.standardize_dtype(output.dtype) == layer.compute_dtype
    tolerance = {"float32": 1e-6, "mixed_float16": 2e-2, "mixed_bfloat16": 1e-1}[policy]
    np.testing.assert_allclose(
        to_numpy(output), to_numpy(reference(*inputs, **masks)), atol=tolerance
    )


def test_errors(source, target):
    with pytest.raises(ValueError, match="cannot be split into 3 heads"):
        EncoderLayer(F, 3)(source)
    with pytest.raises(ValueError, match="activation must be one of .* 'tanh'"):
        EncoderLayer(F, N, activation="tanh")
    layer = DecoderLayer(F, N)
    for _ in range(2):
        with pytest.raises(ValueError, match="needs `encoded`.*or a `cache`"):
            layer(target)
        layer(target, source)  # It can be called rightly afterwards.
