"""Search against a plain NumPy search: random models, options and batches.

A trial makes a model with random layers and weights, two sets of search options, and five batches
for each. Every hypothesis must have the tokens, score and rank that `numpy_search` finds with the
model's full forward pass, without a cache; where two hypotheses are so near that float32 cannot
tell them apart, the difference is noted and not counted. On TensorFlow each trial also exports
a translator, and compares the SavedModel's texts and scores with the same NumPy search.
"""

import itertools
import pathlib
import tempfile

import numpy as np

from benchmarks.reliability_parts import faults
from benchmarks.reliability_parts.numpy_search import Oracle, Special
from benchmarks.reliability_parts.zygote import Zygote

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


def random_model(rng, vocabulary_size=VOCABULARY):
    """A Transformer, or an ensemble of two, with random layers and weights, and its description."""
    import kformer
    from benchmarks.options import OPTIONS

    names = list(rng.choice(list(OPTIONS), 2, replace=False))
    if rng.random() < 0.1 and vocabulary_size == VOCABULARY:
        models = [random_transformer(rng, names[:1], vocabulary_size) for _ in range(2)]
        return kformer.models.Ensemble(models), f"ensemble, {names[0]}"
    try:
        return random_transformer(rng, names, vocabulary_size), ", ".join(names)
    except ValueError:  # The two options do not go together.
        return random_transformer(rng, names[:1], vocabulary_size), names[0]


def random_transformer(rng, names, vocabulary_size):
    import kformer
    from benchmarks.options import OPTIONS

    options = {**_SIZES, "share_output": bool(rng.random() < 0.3)}
    for name in names:
        options |= OPTIONS[name]
    model = kformer.Transformer(vocabulary_size, **options)
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


def random_options(rng, model, size=VOCABULARY):
    """`SearchOptions` of all kinds."""
    from kformer.decoding import SearchOptions

    mode = str(rng.choice(["kformer", "huggingface"], p=[0.65, 0.35]))
    beam_size = int(rng.choice([1, 2, 3, 4, 6], p=[0.2, 0.2, 0.2, 0.3, 0.1]))
    ordinary = [i for i in range(size) if i not in (model.pad_id, model.start_id, model.end_id)]

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
        "early_stopping": [False, True, "never"][int(rng.integers(3))],
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


def random_batch(rng, model, size=VOCABULARY):
    """Source ids `[B, S]`, padded; at least one row is full."""
    rows, length = int(rng.integers(1, 5)), int(rng.integers(1, LONGEST + 1))
    ordinary = [i for i in range(size) if i != model.pad_id]
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
    import keras

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
    for place, (one, other) in enumerate(itertools.zip_longest(found, expected)):
        if one is not None and not np.isfinite(one[1]):
            one = None
        if one is None and other is None:
            continue
        if one is None or other is None:
            return f"entry {place}: {one} where {other} was expected"
        ids = tuple(one[0])
        same = ids[: len(other.ids)] == other.ids and set(ids[len(other.ids) :]) <= {special.pad}
        if not same:
            if margin < _TIE:
                return "a tie"
            return f"entry {place}: {one} where {other} was expected (margin {margin:.1e})"
        scale = max(1.0, abs(other.score) / 10)
        if max(abs(one[1] - other.score), abs(one[2] - other.rank)) > _TOLERANCE * scale:
            return f"entry {place}: {one} where {other} was expected"
    return None


def oracle_of(model, forward, options, row):
    """The `Oracle` of one row of source ids."""
    special = Special(model.pad_id, model.start_id, model.end_id)
    limit = int(options.limits(np.array([(row != model.pad_id).sum()]))[0])
    return Oracle(lambda prefixes: forward(row, prefixes), options, special, limit)


def search_trial(seed, number, batches=5, fault=None):
    """One trial; runs in a process of its own. Returns a list of (kind, fault or None)."""
    import dataclasses

    from kformer.decoding import Searcher

    if fault:
        faults.plant(fault)
    rng = np.random.default_rng([seed, number])
    model, name = random_model(rng)
    forward, results = Forward(model), []
    for _ in range(2):
        options = random_options(rng, model)
        searcher = Searcher(model, options)
        for _ in range(batches):
            least = max(len(options.prefix_ids), options.min_length)
            limits = random_limits(rng, least)
            limits["max_length"] = max(limits["max_length"], options.min_length)
            now = dataclasses.replace(options, **limits)
            source_ids = random_batch(rng, model)
            found = [np.asarray(part) for part in searcher(source_ids, options=now)]
            verdict = None
            for row, *hypotheses in zip(source_ids, *found, strict=True):
                oracle = oracle_of(model, forward, now, row)
                expected = oracle.search()
                hypotheses = list(zip(*(part.tolist() for part in hypotheses), strict=True))
                special = Special(model.pad_id, model.start_id, model.end_id)
                verdict = verdict or judged(hypotheses, expected, oracle.margin, special)
            kind = f"{options.mode}, {'greedy' if options.beam_size == 1 else 'beam'}"
            detail = verdict if verdict in (None, "a tie") else f"{name}; {now}; {verdict}"
            results.append((kind, detail))
    return results


def export_trial(seed, number, run, batches=10, fault=None):
    """As `search_trial`, with an exported SavedModel of a random model."""
    import kformer
    from kformer.export import SavedModelTranslator
    from kformer.text.text_bound import source_rows

    if fault:
        faults.plant(fault)
    rng = np.random.default_rng([seed, number, 1])
    tokenizer = kformer.Tokenizer.load(pathlib.Path(run) / "tokenizer")
    model, name = random_model(rng, tokenizer.vocabulary_size)
    options = random_options(rng, model, tokenizer.vocabulary_size)
    translator = kformer.Translator(model, tokenizer, options)
    forward, results = Forward(model, source=model.max_length), []
    chosen = {"beam_size": options.beam_size, "n_best": options.n_best}
    with tempfile.TemporaryDirectory() as folder:
        loaded = SavedModelTranslator(translator.export(pathlib.Path(folder) / "model", **chosen))
        for _ in range(batches):
            pairs = kformer.examples.generate_pairs(
                int(rng.integers(1, 5)), seed=int(rng.integers(1 << 30)), split="test"
            )
            texts = [pair.source for pair in pairs]
            verdict = None
            for text, translation in zip(
                texts, loaded.translate(texts, n_best=options.n_best), strict=True
            ):
                rows, _ = source_rows(tokenizer, [text], model.max_length, options.max_text_bytes)
                oracle = oracle_of(model, forward, options, np.array(rows[0]))
                expected = oracle.search()
                wanted = tokenizer.detokenize([list(found.ids) for found in expected])
                for found, text, other in zip(
                    translation.hypotheses, wanted, expected, strict=False
                ):
                    near = abs(found.score - other.score) <= _TOLERANCE * max(
                        1.0, abs(other.score) / 10
                    )
                    if found.text == text and near:
                        continue
                    tie = oracle.margin < _TIE
                    verdict = "a tie" if tie else f"{found} where {text!r}, {other} was expected"
            detail = verdict if verdict in (None, "a tie") else f"{name}; {options}; {verdict}"
            results.append(("exports", detail))
    return results


def run(tally, options):
    """The part: see the module."""
    from benchmarks.reliability_parts.samples import corpus

    module = "benchmarks.reliability_parts.search"
    for backend in options.backends:
        with Zygote(backend, options.work) as zygote:
            texts = corpus(zygote, options.work)
            for number, _ in tally.trials():
                arguments = {"seed": tally.seed, "number": number, "fault": options.fault}
                calls = [(f"{module}:search_trial", arguments)]
                if backend == "tensorflow":
                    run = str(texts / "small")
                    calls.append((f"{module}:export_trial", {**arguments, "run": run}))
                for call, arguments in calls:
                    outcome = zygote.run(call, arguments, seconds=900)
                    if outcome.code:
                        tally.add(f"{backend}, trials", str(outcome))
                    for kind, fault in outcome.value or ():
                        tally.add(f"{backend}, {kind}", None if fault == "a tie" else fault)
                        if fault == "a tie":
                            tally.note("ties")
