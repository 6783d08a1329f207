"""Checks the options of the layers on every backend: one table, four checks for each option.

    python benchmarks/options.py --work DIR [--backends tensorflow,jax,torch] [--options RoPE,local]

- trains: 40 steps of `model.fit` on generated pairs reduce the loss by at least a fifth; the table
  has the loss before and after;
- cached: token by token with a cache (growing and static; on JAX static), the logits are those of
  one pass; the table has the largest difference;
- half: `mixed_bfloat16` with the same weights; the table has the largest difference of a logit,
  relative to the largest logit;
- exports: the SavedModel, in a process with TensorFlow, translates as the translator did on that
  backend; the table has the number of equal texts, greedy and beam.

Each backend runs in a process of its own, and the exports in another one.
"""

import argparse
import json
import os
import pathlib
import subprocess
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent))
from benchmarks.tables import print_command, print_head, print_row  # noqa: E402

BACKENDS = ("tensorflow", "jax", "torch")
OPTIONS = {
    "the paper's": {},
    "pre-norm": {"normalize_first": True},
    "final norm": {"final_norm": True},
    "RMSNorm": {"normalization": "rms_norm", "normalize_first": True},
    "learned": {"position_encoding": "learned"},
    "no positions": {"position_encoding": None},
    "RoPE": {"position_encoding": "rope"},
    "ALiBi": {"position_encoding": "alibi"},
    "T5 bias": {
        "position_encoding": "t5",
        "attention_scale": 1.0,
        "scale_output": True,
        "scale_embeddings": False,
    },
    "GELU": {"activation": "gelu"},
    "GELU by tanh": {"activation": "gelu_tanh"},
    "SiLU": {"activation": "silu"},
    "GeGLU": {"activation": "gelu", "gated": True},
    "SwiGLU": {"activation": "silu", "gated": True},
    "no biases": {"use_bias": False},
    "grouped queries": {"num_key_value_heads": 1},
    "head size": {"head_dim": 12},
    "dropout of attention": {"attention_dropout": 0.1, "activation_dropout": 0.1},
    "stochastic depth": {"stochastic_depth": 0.1},
    "local": {"attention_kind": "local", "attention_window": 3},
    "dilated": {"attention_kind": "local", "attention_window": 3, "attention_dilation": 2},
    "local and global": {"attention_kind": "local", "attention_window": 3, "global_tokens": 2},
    "linear": {"attention_kind": "linear", "position_encoding": "rope"},
    "Llama's layers": {
        "position_encoding": "rope",
        "normalization": "rms_norm",
        "normalize_first": True,
        "activation": "silu",
        "gated": True,
        "use_bias": False,
        "num_key_value_heads": 2,
    },
}
SIZES = {
    "num_encoder_layers": 2,
    "num_decoder_layers": 2,
    "hidden_dim": 32,
    "intermediate_dim": 64,
    "num_heads": 4,
    "max_length": 64,
}
TEXTS, STEPS = 12, 40


def data():
    """Tokenizer, training set and texts; the same in every process."""
    import kformer

    pairs = kformer.examples.generate_pairs(3000, seed=0, categories=["time"])
    sources, targets = [pair.source for pair in pairs], [pair.target for pair in pairs]
    tokenizer = kformer.Tokenizer.train(
        texts=sources[:1000] + targets[:1000], vocabulary_size=420, model_type="unigram"
    )
    train = kformer.data.ParallelDataset(
        sources, targets, tokenizer, batch_tokens=1024, seed=0, max_shapes=1
    )
    return tokenizer, train, sources[:TEXTS]


def check(work, names):
    """Checks each option on one backend; returns a dict of results."""
    import keras

    import kformer

    tokenizer, train, texts = data()
    found = {}
    for name in names:
        keras.utils.set_random_seed(0)
        model = kformer.Transformer(
            tokenizer.vocabulary_size, **{"dropout": 0.0, **SIZES, **OPTIONS[name]}, seed=0
        )
        model.compile(keras.optimizers.Adam(0.003, beta_2=0.98), kformer.MaskedCrossentropy())
        first = loss_of(model, train)
        model.fit(train, steps_per_epoch=STEPS, verbose=0)
        last = loss_of(model, train)
        found[name] = {
            "first": first,
            "last": last,
            "cached": cached_difference(model, train),
            "half": half_difference(model, train),
        }
        translator = kformer.Translator(model, tokenizer)
        expected = {
            str(beams): translator(texts, beam_size=beams, max_length=24) for beams in (1, 4)
        }
        folder = work / keras.backend.backend() / name.replace(" ", "-")
        translator.save(folder)
        (folder / "expected.json").write_text(json.dumps(expected), encoding="utf-8")
        print(name, found[name], file=sys.stderr, flush=True)
    return found


def loss_of(model, train):
    inputs, labels = train.batch_at(0)
    return float(model.evaluate(inputs, labels, verbose=0, batch_size=len(labels)))


def cached_difference(model, train):
    """The largest difference of logits between one pass and single steps, for both caches."""
    import keras
    import numpy as np
    from keras import ops

    inputs, _ = train.batch_at(0)
    source_ids, target_ids = (
        ops.convert_to_tensor(inputs[name][:4, :12]) for name in ("source_ids", "target_ids")
    )
    expected = ops.convert_to_numpy(model({"source_ids": source_ids, "target_ids": target_ids}))
    real = ops.convert_to_numpy(target_ids) != model.pad_id
    largest = 0.0
    # JAX would compile again for each length of the growing cache, which is not meant for it.
    for capacity in (12,) if keras.backend.backend() == "jax" else (None, 12):
        encoded, mask = model.encode(source_ids)
        cache = model.init_cache(encoded, mask, max_length=capacity)
        for position in range(target_ids.shape[1]):
            ids = target_ids[:, position : position + 1]
            logits, cache = model.decode_step(ids, cache, position)
            difference = np.abs(ops.convert_to_numpy(logits)[:, 0] - expected[:, position])
            difference = difference[real[:, position]]
            largest = max(largest, float(difference.max(initial=0.0)))
    return largest


def half_difference(model, train):
    import numpy as np
    from keras import ops

    import kformer

    inputs, _ = train.batch_at(0)
    batch = {name: ops.convert_to_tensor(ids[:4, :12]) for name, ids in inputs.items()}
    half = kformer.Transformer.from_config({**model.get_config(), "dtype": "mixed_bfloat16"})
    half.set_weights(model.get_weights())
    both = [ops.convert_to_numpy(ops.cast(one(batch), "float32")) for one in (model, half)]
    return float(np.abs(both[0] - both[1]).max() / np.abs(both[0]).max())


def exports(work, names, backends):
    """The number of texts that each SavedModel translates as the translator did."""
    import kformer
    from kformer.export import SavedModelTranslator

    _, _, texts = data()
    found = {}
    for backend in backends:
        for name in names:
            folder = work / backend / name.replace(" ", "-")
            texts_found = json.loads((folder / "expected.json").read_text(encoding="utf-8"))
            equal = 0
            for beams, expected in texts_found.items():
                path = kformer.Translator.load(folder).export(
                    folder / f"saved-{beams}", beam_size=int(beams), max_length=24
                )
                equal += sum(
                    one == other
                    for one, other in zip(SavedModelTranslator(path)(texts), expected, strict=True)
                )
            found.setdefault(name, {})[backend] = equal
            print(backend, name, equal, file=sys.stderr, flush=True)
    return found


def part(options, name, backend):
    """Runs a part in a process of its own; returns its result."""
    path = options.work / f"{name}.json"
    command = [sys.executable, __file__, *sys.argv[1:], "--part", name]
    environment = {**os.environ, "KERAS_BACKEND": backend, "TF_CPP_MIN_LOG_LEVEL": "3"}
    subprocess.run(command, env=environment, check=True)
    return json.loads(path.read_text(encoding="utf-8"))


def report(options):
    found = {backend: part(options, backend, backend) for backend in options.backends}
    exported = part(options, "exports", "tensorflow")
    print_command()
    heads = [
        f"{backend}: {check}"
        for backend in options.backends
        for check in ("trains", "cached", "half", "exports")
    ]
    print_head(["option", *heads])
    good = True
    for name in options.options:
        cells = []
        for backend in options.backends:
            row, equal = found[backend][name], exported[name][backend]
            cells += [
                f"{row['first']:.2f} → {row['last']:.2f}",
                f"{row['cached']:.0e}",
                f"{row['half']:.3f}",
                f"{equal} of {2 * TEXTS}",
            ]
            good &= (
                row["last"] < 0.8 * row["first"]
                and row["cached"] < 1e-4
                and row["half"] < 0.1
                and equal == 2 * TEXTS
            )
        print_row(name, *cells)
    print(
        "\nall checks hold"
        if good
        else "\nnot all checks hold: a loss fell too little, or a difference is too large"
    )
    return 0 if good else 1


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--work", type=pathlib.Path, required=True, help="folder for models")
    parser.add_argument("--backends", type=lambda text: text.split(","), default=list(BACKENDS))
    parser.add_argument("--options", type=lambda text: text.split(","), default=list(OPTIONS))
    parser.add_argument("--part", help=argparse.SUPPRESS)
    options = parser.parse_args()
    for given, known in ((options.options, OPTIONS), (options.backends, BACKENDS)):
        if unknown := [name for name in given if name not in known]:
            parser.error(f"unknown: {', '.join(unknown)}; choose among {', '.join(known)}")
    options.work.mkdir(parents=True, exist_ok=True)
    if options.part:
        arguments = (options.work, options.options)
        found = (
            exports(*arguments, options.backends)
            if options.part == "exports"
            else check(*arguments)
        )
        (options.work / f"{options.part}.json").write_text(json.dumps(found), encoding="utf-8")
        return 0
    return report(options)


if __name__ == "__main__":
    sys.exit(main())
