"""The decoder alone equals a published language model; what it generates has its own scores."""

import warnings

import keras
import numpy as np
import pytest
from keras import ops

import kformer
from kformer.decoding import SearchOptions, decoder_for, search
from kformer.models import TransformerDecoder
from kformer.training import MaskedCrossentropy
from tests.peers import to_numpy

SIZES = {
    "num_layers": 2,
    "hidden_dim": 16,
    "intermediate_dim": 32,
    "num_heads": 4,
    "max_length": 40,
}
V = 29
OPTIONS = {
    "sinusoidal": {},
    "learned": {"position_encoding": "learned", "share_output": False},
    "rope": {
        "position_encoding": "rope",
        "num_key_value_heads": 2,
        "normalization": "rms_norm",
        "gated": True,
        "activation": "silu",
    },
    "alibi": {"position_encoding": "alibi", "normalize_first": False},
    "t5": {"position_encoding": "t5"},
    "local": {"attention_kind": "local", "attention_window": 3, "position_encoding": "rope"},
    "linear": {"attention_kind": "linear"},
}
# JAX compiles each operation for each shape; these three kinds have all operations.
if keras.backend.backend() == "jax":
    OPTIONS = {kind: OPTIONS[kind] for kind in ("rope", "local", "linear")}
by_kind = pytest.mark.parametrize("kind", OPTIONS)
PROMPTS = [[5, 6, 7, 8, 9, 10], [11], [], [12, 13, 5]]


@pytest.fixture
def language_model(randomize, rng):
    def make(**options):
        model = randomize(TransformerDecoder(V, **{**SIZES, **options}))
        # The same on every backend, and large, so that prompts have different continuations.
        for weight in model.trainable_weights:
            if len(weight.shape) == 2:
                weight.assign(rng.normal(0, 0.5, weight.shape).astype("float32"))
        return model

    return make


def logits_of(model, ids):
    return to_numpy(model({"token_ids": ops.convert_to_tensor(np.array([ids], "int32"))}))[0]


def greedy(model, prompt, count):
    """The ids of a greedy search without a cache."""
    ids = [model.start_id, *prompt]
    for _ in range(count):
        # Padding behind a token has no effect on it, and one length is compiled once.
        padding = [model.pad_id] * (model.max_length - len(ids))
        logits = logits_of(model, ids + padding)[len(ids) - 1]
        logits[[model.pad_id, model.start_id]] = -np.inf
        ids.append(int(logits.argmax()))
        if ids[-1] == model.end_id:
            break
    found = ids[1 + len(prompt) :]
    return found[:-1] if found and found[-1] == model.end_id else found


@by_kind
def test_prompts_in_a_batch_continue_as_they_do_alone(language_model, kind):
    model = language_model(**OPTIONS[kind])
    expected = [greedy(model, prompt, 6) for prompt in PROMPTS]
    assert len({tuple(row) for row in expected}) > 1
    assert model.generate(PROMPTS, max_new_tokens=6) == expected


@pytest.mark.parametrize("kind", ["rope", "local", "linear"])
def test_cached_steps_equal_one_pass(language_model, kind):
    model = language_model(**OPTIONS[kind])
    ids = np.array([[2, 5, 6, 7, 8, 9, 10, 11], [2, 12, 13, 14, 0, 0, 0, 0]], "int32")
    cache = model.init_cache(*model.encode(ops.convert_to_tensor(ids[:, :4])), max_length=4)
    found = []
    for index in range(4):
        logits, cache = model.decode_step(ids[:, 3 + index : 4 + index], cache, index)
        found.append(to_numpy(logits)[:, 0])
    expected = to_numpy(model({"token_ids": ops.convert_to_tensor(ids)}))[:, 3:7]
    np.testing.assert_allclose(found[0], expected[:, 0], atol=1e-4)
    np.testing.assert_allclose(np.stack(found, axis=1)[0], expected[0], atol=1e-4)


@pytest.mark.any_backend(quickest="torch")
def test_beams_and_samples(language_model):
    model = language_model()
    beams = model.generate(PROMPTS, max_new_tokens=5, beam_size=4, n_best=3)
    assert [len(rows) for rows in beams] == [3] * 4 and all(
        len({tuple(row) for row in rows}) == 3 for rows in beams
    )
    # A beam of full width finds the likeliest of all continuations.
    small = TransformerDecoder(
        7, **{**SIZES, "num_layers": 1, "hidden_dim": 8, "num_heads": 2}, seed=3
    )
    best, score = None, -np.inf
    for first in (1, 3, 4, 5, 6):
        for second in (1, 3, 4, 5, 6):
            for row in ([first, second, 3], [first, 3], [3]):
                logits = logits_of(small, [2, 4, *row])
                logits = logits - np.log(np.exp(logits).sum(-1, keepdims=True))
                total = sum(logits[1 + index][token] for index, token in enumerate(row))
                if row.index(3) == len(row) - 1 and total > score:
                    best, score = row[:-1], total
    assert small.generate([[4]], max_new_tokens=2, beam_size=25, length_penalty=0.0) == [best]
    samples = [
        model.generate(PROMPTS, max_new_tokens=8, sampling=True, seed=seed) for seed in (1, 1, 2)
    ]
    assert samples[0] == samples[1] != samples[2]
    # The samples of a prompt do not depend on the other prompts of the batch.
    assert model.generate(PROMPTS[:1], max_new_tokens=8, sampling=True, seed=1) == samples[0][:1]


@pytest.mark.heavy
@by_kind
@pytest.mark.any_backend(quickest="torch")
def test_trained_saved_and_loaded(language_model, tmp_path, quick_compile, rng, kind):
    model = language_model(**OPTIONS[kind])
    ids = rng.integers(4, V, (4, 9)).astype("int32")
    ids[1, 6:] = 0
    model.compile(
        keras.optimizers.Adam(0.01),
        kformer.MaskedCrossentropy(),
        metrics=[kformer.MaskedAccuracy()],
        **quick_compile,
    )
    assert model.can_skip_logits(({"token_ids": ids}, ids))
    losses = [
        model.fit({"token_ids": ids[:, :-1]}, ids[:, 1:], verbose=0).history["loss"][0]
        for _ in range(6)
    ]
    assert losses[-1] < losses[0]
    model.save(tmp_path / "model.keras")
    again = keras.saving.load_model(tmp_path / "model.keras")
    assert again.get_config() == model.get_config()
    np.testing.assert_array_equal(logits_of(again, ids[0]), logits_of(model, ids[0]))


def test_packed_sequences_do_not_see_each_other(language_model):
    model = language_model()
    one, other = [2, 5, 6, 7], [2, 8, 9]
    inputs = {
        "token_ids": np.array([[*one, *other, 0]]),
        "segments": np.array([[1, 1, 1, 1, 2, 2, 2, 0]]),
    }
    logits = to_numpy(
        model({name: ops.convert_to_tensor(part, "int32") for name, part in inputs.items()})
    )[0]
    np.testing.assert_allclose(logits[:4], logits_of(model, one), atol=1e-5)
    np.testing.assert_allclose(logits[4:7], logits_of(model, other), atol=1e-5)
    seen = model.inspect(inputs)
    assert len(seen["decoder_hidden_states"]) == 3 and seen["decoder_attention_scores"][
        0
    ].shape == (1, 4, 8, 8)
    np.testing.assert_allclose(to_numpy(seen["logits"])[0], logits, atol=1e-5)


@pytest.fixture
def llama():
    """A Llama of the library transformers with random weights."""
    transformers = pytest.importorskip("transformers")
    import torch

    config = transformers.LlamaConfig(
        vocab_size=V,
        hidden_size=32,
        intermediate_size=48,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=64,
        pad_token_id=0,
        bos_token_id=2,
        eos_token_id=3,
        rms_norm_eps=1e-5,
    )
    torch.manual_seed(0)
    model = transformers.LlamaForCausalLM(config).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.mul_(6) if parameter.ndim == 2 else parameter.add_(
                0.2 * torch.randn(parameter.shape)
            )
    return model


def same_as_llama(llama):
    """A `TransformerDecoder` with the weights of a Llama."""
    model = TransformerDecoder(
        V,
        num_layers=2,
        hidden_dim=32,
        intermediate_dim=48,
        num_heads=4,
        num_key_value_heads=2,
        max_length=64,
        share_output=False,
        scale_embeddings=False,
        position_encoding="rope",
        normalization="rms_norm",
        gated=True,
        activation="silu",
        use_bias=False,
    )
    arrays = {name: value.detach().numpy() for name, value in llama.state_dict().items()}
    network = model.network
    network.embedding.embeddings.assign(arrays["model.embed_tokens.weight"])
    network.output.projection.kernel.assign(arrays["lm_head.weight"].T)
    network.stack.norm.scale.assign(arrays["model.norm.weight"])
    for index, layer in enumerate(network.stack.layers):
        prefix = f"model.layers.{index}"
        attention, dense = layer.self_attention, layer.feed_forward
        parts = [arrays[f"{prefix}.self_attn.{part}_proj.weight"].T for part in "qkv"]
        attention.query_key_value_kernel.assign(np.concatenate(parts, axis=1))
        attention.output_kernel.assign(arrays[f"{prefix}.self_attn.o_proj.weight"].T)
        for ours, theirs in (
            ("gate", "gate_proj"),
            ("intermediate", "up_proj"),
            ("output_projection", "down_proj"),
        ):
            getattr(dense, ours).kernel.assign(arrays[f"{prefix}.mlp.{theirs}.weight"].T)
        layer.self_attention_norm.scale.assign(arrays[f"{prefix}.input_layernorm.weight"])
        layer.feed_forward_norm.scale.assign(arrays[f"{prefix}.post_attention_layernorm.weight"])
    return model


@pytest.mark.parametrize("settings", [{"num_beams": 1}, {"num_beams": 4}], ids=str)
def test_a_published_language_model(llama, settings):
    """The same logits and the same continuations as a Llama."""
    import torch

    model = same_as_llama(llama)
    ids = np.random.default_rng(0).integers(4, V, (6, 12)).astype("int32")
    ids[:, 0] = 2
    with torch.no_grad():
        expected = llama(torch.tensor(ids, dtype=torch.int64)).logits.numpy()
    found = to_numpy(model({"token_ids": ops.convert_to_tensor(ids)}))
    assert np.abs(found - expected).max() / np.abs(expected).max() < 1e-5
    left = torch.tensor(ids, dtype=torch.int64)
    left[1, :5], left[1, 5] = 0, 2
    expected = llama.generate(
        left,
        attention_mask=left != 0,
        max_new_tokens=12,
        do_sample=False,
        early_stopping=False,
        length_penalty=0.9,
        bad_words_ids=[[0]],
        **settings,
    )[:, 12:].tolist()
    prompts = [row[1:].tolist() for row in ids]
    prompts[1] = ids[1, 6:].tolist()
    # That library generates the start token, too.
    options = {
        "mode": "huggingface",
        "length_penalty": 0.9,
        "beam_size": settings["num_beams"],
        "forced_end": False,
        "forbidden_ids": [0],
    }
    found = model.generate(prompts, max_new_tokens=12, **options)
    expected = [
        row[: row.index(3)] if 3 in row else [token for token in row if token] for row in expected
    ]
    assert found == expected and len({tuple(row) for row in expected}) > 4


@pytest.mark.heavy
@pytest.mark.parametrize(
    "search",
    [{}, {"beam_size": 3}, {"sampling": True}, {"mode": "huggingface", "beam_size": 2}],
    ids=str,
)
@pytest.mark.parametrize("positions", ["sinusoidal", "learned"])
def test_each_prompt_has_its_own_limit(language_model, positions, search, backend):
    if backend == "jax" and positions == "learned" and search:
        pytest.skip("one search is enough for the positions, and each costs JAX a compilation")
    model = language_model(position_encoding=positions, num_layers=1)
    prompts = [[5, 6], [7, 8] * 18, [9] * 37, [10] * 31]
    found = model.generate(prompts, max_new_tokens=12, **search)
    # The first row's number is the same alone, and with it its random numbers.
    assert model.generate(prompts[:1], max_new_tokens=12, **search) == found[:1]
    assert all(
        len(row) <= min(12, 39 - len(prompt)) for row, prompt in zip(found, prompts, strict=True)
    )
    if "sampling" not in search:
        assert [model.generate([row], max_new_tokens=12, **search)[0] for row in prompts] == found
        assert greedy(model, prompts[3], 8) == found[3] or search
    assert max(map(len, found)) > 3


def test_a_prompt_that_is_too_long_loses_its_beginning(language_model):
    model = language_model()
    prompts = [[5] * 10 + [6, 7, 8] * 10, [9, 8, 7]]
    expected = model.generate([prompts[0][-27:], prompts[1]], max_new_tokens=12)
    with pytest.warns(UserWarning, match="Prompt 0 has 40 tokens, but .* 40 allows 38: only"):
        assert model.generate(prompts, max_new_tokens=12) == expected


def test_a_single_new_token(language_model):
    model = language_model()
    for options in ({}, {"mode": "huggingface"}, {"mode": "huggingface", "beam_size": 2}):
        found = model.generate([[5], [6, 7]], max_new_tokens=1, forced_end=False, **options)
        assert all(len(row) <= 1 for row in found) and any(found)


@pytest.mark.any_backend
def test_errors(language_model):
    model = language_model()
    with pytest.raises(ValueError, match="A prompt holds 29, which is not a token"):
        model.generate([[5, 29]])
    with pytest.raises(ValueError, match="Unknown option 'heads': the options are hidden_dim"):
        TransformerDecoder(V, heads=3)
    with pytest.raises(ValueError, match="start_id and pad_id are both 0"):
        kformer.TransformerDecoder(20, start_id=0)
    with pytest.raises(ValueError, match="cannot have global_tokens"):
        TransformerDecoder(V, attention_kind="local", attention_window=2, global_tokens=1)
    assert model.generate([]) == []


@pytest.mark.any_backend
@pytest.mark.parametrize(
    ("loss", "ignores_end"),
    [
        (MaskedCrossentropy(), True),
        (MaskedCrossentropy(pad_id=0), True),
        (MaskedCrossentropy(pad_id=-1), False),
        (keras.losses.SparseCategoricalCrossentropy(ignore_class=0), True),
        (keras.losses.SparseCategoricalCrossentropy(), False),
        ("sparse_categorical_crossentropy", False),
        (None, False),
    ],
)
def test_a_loss_that_ignores_the_end_token_is_warned_of(loss, ignores_end):
    model = kformer.TransformerDecoder(20, pad_id=0, end_id=0)
    with warnings.catch_warnings(record=True) as found:
        warnings.simplefilter("always")
        model.compile("adam", loss)
    warned = any("does not learn to end" in str(each.message) for each in found)
    assert warned == ignores_end


@pytest.mark.skipif(keras.backend.backend() != "tensorflow", reason="other rows are integers")
@pytest.mark.parametrize("beam_size", [1, 2])
def test_a_graph_searches_an_empty_batch(language_model, beam_size):
    import tensorflow as tf

    model, options = language_model(), SearchOptions(beam_size=beam_size, max_length=4)

    @tf.function(input_signature=[tf.TensorSpec([None, None], tf.int32)])
    def found(ids):
        limits = tf.fill(tf.shape(ids)[:1], 4)
        return search(decoder_for(model), ids, limits, limits, options=options, steps=5)[0].ids

    assert [found(np.full((rows, 3), 5, "int32")).shape[0] for rows in (2, 0)] == [2, 0]


@pytest.mark.any_backend
def test_only_the_searches_of_the_last_options_are_kept(language_model):
    model, ways = language_model(), [0.5 + 0.1 * i for i in range(10)]
    options = {"max_new_tokens": 2, "sampling": True}
    found = [model.generate([[5]], temperature=way, **options) for way in ways]
    assert len(model._searchers) == 8
    assert [model.generate([[5]], temperature=way, **options) for way in ways] == found


@pytest.mark.parametrize("kind", OPTIONS)
def test_prompts_that_are_all_empty(language_model, kind):
    model = language_model(**OPTIONS[kind])
    longer = model.generate([[], [5]], max_new_tokens=4)
    assert model.generate([[]], max_new_tokens=4) == longer[:1]
