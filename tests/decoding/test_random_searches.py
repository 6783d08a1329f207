"""Search equals a plain NumPy search: random models, options and batches.

Every hypothesis has the tokens, score and rank that `numpy_search` finds with the model's full
forward pass, without a cache; where two hypotheses are so near that float32 cannot tell them apart,
they may differ.
"""

import dataclasses
import itertools

import keras
import numpy as np
import pytest

import kformer
from kformer.decoding import Searcher, SearchOptions
from tests.decoding.numpy_search import Oracle, Special

VOCABULARY, LONGEST = 19, 9
_SIZES = {
    "num_encoder_layers": 1,
    "num_decoder_layers": 2,
    "hidden_dim": 16,
    "intermediate_dim": 32,
    "num_heads": 2,
    "max_length": 24,
}
_TIE = 1e-4
_TOLERANCE = 5e-4
_KINDS = (
    {},
    {"normalize_first": True, "normalization": "rms_norm"},
    {"position_encoding": "learned", "final_norm": True},
    {"position_encoding": "rope", "use_bias": False},
    {"position_encoding": "alibi", "num_key_value_heads": 1},
    {"position_encoding": "t5", "attention_scale": 1.0, "scale_output": True},
    {"activation": "silu", "gated": True, "head_dim": 12},
    {"attention_kind": "local", "attention_window": 3, "attention_dilation": 2},
    {"attention_kind": "local", "attention_window": 3, "global_tokens": 2},
    {"attention_kind": "linear", "position_encoding": "rope"},
    {"decoder_autoregression": "ssru"},
    {"decoder_autoregression": "ssru", "normalize_first": True, "activation": "gelu_sigmoid"},
)


def random_model(rng):
    """A Transformer, or an ensemble of two, with random layers and weights."""
    kind = _KINDS[int(rng.integers(len(_KINDS)))]
    if rng.random() < 0.2:
        return kformer.models.Ensemble([random_transformer(rng, kind) for _ in range(2)])
    return random_transformer(rng, kind)


def random_transformer(rng, kind):
    options = {**_SIZES, "share_output": bool(rng.random() < 0.3), **kind}
    model = kformer.Transformer(VOCABULARY, **options)
    spread = rng.choice([0.5, 1.0, 2.0])
    for weight in model.trainable_weights:
        shape = tuple(weight.shape)
        values = rng.normal(size=shape)
        if len(shape) > 1:
            values *= spread / shape[0 if weight.name == "kernel" else -1] ** 0.5
        else:
            values = 0.2 * values + ("gamma" in weight.name or "scale" in weight.name)
        weight.assign(values.astype("float32"))
    return model


def random_options(rng, model):
    """`SearchOptions` of all kinds."""
    mode = str(rng.choice(["kformer", "huggingface"], p=[0.65, 0.35]))
    beam_size = int(rng.choice([1, 2, 3, 4, 6], p=[0.2, 0.2, 0.2, 0.3, 0.1]))
    ordinary = [
        i for i in range(VOCABULARY) if i not in (model.pad_id, model.start_id, model.end_id)
    ]

    def some(chance, least, most):
        if rng.random() > chance:
            return ()
        count = int(rng.integers(least, most + 1))
        return tuple(int(i) for i in rng.choice(ordinary, min(count, len(ordinary)), replace=False))

    prefix = some(0.25, 1, 2)
    options = {
        "mode": mode,
        "beam_size": beam_size,
        "n_best": int(rng.integers(1, beam_size + 1)),
        "length_penalty": float(rng.choice([0.0, 0.6, 1.0, 1.7, -0.5])),
        "min_length": int(rng.choice([0, 0, 0, 1, 3])),
        "forbidden_ids": some(0.3, 1, 11),
        "prefix_ids": prefix,
        # An ensemble takes the mean of probabilities among the list, of each of its models.
        "shortlist": () if hasattr(model, "models") else some(0.2, 5, 10),
        "renormalize": bool(rng.random() < 0.2),
        "forced_end": bool(rng.random() < 0.6),
        "early_stopping": [False, True, "never", "shrink"][int(rng.integers(4))],
        **random_limits(rng, len(prefix)),
    }
    if set(options["shortlist"]) <= set(options["forbidden_ids"]):
        options["shortlist"] = ()
    options["max_length"] = max(options["max_length"], options["min_length"])
    return SearchOptions(**options)


def random_limits(rng, least=0):
    """Limits, which each call may change."""
    return {
        "max_length": int(rng.integers(3, 12)),
        "length_ratio": float(rng.choice([0.0, 1.0, 1.5])),
        "length_offset": least + int(rng.integers(1, 6)),
    }


def random_batch(rng, model):
    """Source ids `[B, S]`, padded; at least one row is full."""
    rows, length = int(rng.integers(1, 5)), int(rng.integers(1, LONGEST + 1))
    ordinary = [i for i in range(VOCABULARY) if i != model.pad_id]
    ids = rng.choice(ordinary, (rows, length)).astype("int32")
    lengths = np.append(length, rng.integers(1, length + 1, rows - 1))
    return np.where(np.arange(length) < lengths[:, None], ids, model.pad_id).astype("int32")


class Forward:
    """The logits of a model's full forward pass, in arrays of one shape (for JAX)."""

    def __init__(self, model, rows=6, source=LONGEST, target=16):
        self._model, self._shape = model, (rows, source, target)
        self._run = _compiled(lambda inputs: model(inputs))

    def __call__(self, source_ids, prefixes):
        rows, source, target = self._shape
        pad, start = self._model.pad_id, self._model.start_id
        sources = np.full((rows, source), pad, "int32")
        sources[:, : len(source_ids)] = source_ids
        targets = np.full((rows, target), pad, "int32")
        targets[:, 0] = start
        for row, ids in zip(targets, prefixes, strict=False):
            row[1 : len(ids) + 1] = ids
        logits = self._run({"source_ids": sources, "target_ids": targets})
        return np.asarray(logits)[: len(prefixes), len(prefixes[0])]


def _compiled(function):
    if keras.backend.backend() == "jax":
        import jax

        return jax.jit(function)
    if keras.backend.backend() == "tensorflow":
        import tensorflow as tf

        return tf.function(function, autograph=False)

    def run(inputs):
        import torch

        with torch.no_grad():
            return keras.ops.convert_to_numpy(function(inputs))

    return run


def judged(found, expected, margin, special):
    """None, "a tie", or a sentence on how hypotheses differ.

    Args:
        found: list of (ids, score, rank); a score of minus infinity stands for no hypothesis.
        expected: list of `Found`.
    """
    for index, (one, other) in enumerate(itertools.zip_longest(found, expected)):
        if one is not None and not np.isfinite(one[1]):
            one = None
        if one is None and other is None:
            continue
        if one is None or other is None:
            return f"entry {index}: {one} where {other} was expected"
        ids = tuple(one[0])
        same = ids[: len(other.ids)] == other.ids and set(ids[len(other.ids) :]) <= {special.pad}
        if not same:
            if margin < _TIE:
                return "a tie"
            return f"entry {index}: {one} where {other} was expected (margin {margin:.1e})"
        scale = max(1.0, abs(other.score) / 10)
        if max(abs(one[1] - other.score), abs(one[2] - other.rank)) > _TOLERANCE * scale:
            return f"entry {index}: {one} where {other} was expected"
    return None


def oracle_of(model, forward, options, row):
    """The `Oracle` of one row of source ids."""
    special = Special(model.pad_id, model.start_id, model.end_id)
    limit = int(options.limits(np.array([(row != model.pad_id).sum()]))[0])
    return Oracle(lambda prefixes: forward(row, prefixes), options, special, limit)


@pytest.mark.parametrize("seed", range(3))
def test_search_equals_the_numpy_search(seed):
    rng = np.random.default_rng(seed)
    model = random_model(rng)
    forward, options = Forward(model), random_options(rng, model)
    limits = random_limits(rng, max(len(options.prefix_ids), options.min_length))
    limits["max_length"] = max(limits["max_length"], options.min_length)
    options = dataclasses.replace(options, **limits)
    source_ids = random_batch(rng, model)
    found = [np.asarray(part) for part in Searcher(model, options)(source_ids)]
    special = Special(model.pad_id, model.start_id, model.end_id)
    for row, *hypotheses in zip(source_ids, *found, strict=True):
        oracle = oracle_of(model, forward, options, row)
        expected = oracle.search()
        hypotheses = list(zip(*(part.tolist() for part in hypotheses), strict=True))
        assert judged(hypotheses, expected, oracle.margin, special) in (None, "a tie"), options


@pytest.mark.any_backend
def test_the_numpy_search_finds_the_best_of_all_hypotheses():
    """With a beam as wide as there are prefixes: the best of all sequences, enumerated."""
    table = np.random.default_rng(0).normal(size=(6, 6)) * 2

    def logits_of(prefixes):
        return np.stack([table[prefix[-1] if prefix else 1] for prefix in prefixes])

    options = SearchOptions(beam_size=100, n_best=5, length_penalty=0.6)
    oracle = Oracle(logits_of, options, Special(pad=0, start=1, end=2), limit=3)
    log_p = table - np.log(np.exp(table).sum(axis=1, keepdims=True))
    every = []
    for length in range(4):
        for ids in itertools.product((3, 4, 5), repeat=length):
            pairs = zip((1, *ids), (*ids, 2), strict=True)
            score = sum(log_p[pair] for pair in pairs)
            every.append((score / ((5 + length + 1) / 6) ** 0.6, (*ids, 2)))
    best = [ids for _, ids in sorted(every, reverse=True)[:5]]
    assert [one.ids for one in oracle.search()] == best
