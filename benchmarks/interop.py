"""Compares imported models of real shapes with the library that they come from.

    python benchmarks/interop.py --shape opus-mt --train-source F --train-target F --source F
        --work DIR
    python benchmarks/interop.py --shape t5-v1.1-small --steps 32 --train-source F
        --train-target F --work DIR
    python benchmarks/interop.py --shape nllb --train-source F --train-target F --work DIR

Makes a folder of the shape as it is published, with the Hugging Face library: random weights
(scaled so that outputs differ and end), and SentencePiece models trained on the text. Then it
imports the folder on each backend, in a process of its own, and compares encoder output and logits
of a padded batch, and the ids of greedy search and of a beam of 4 on 64 sentences. With `--source`
the lines of that file are also translated by the library and by the exported SavedModel, in a
process that can import neither Keras nor kformer.
"""

import argparse
import io
import json
import os
import pathlib
import resource
import subprocess
import sys
import time

import numpy as np

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent))
from benchmarks.tables import print_command, print_head, print_row  # noqa: E402

T5 = {"query_scale": 0.125}
BACKENDS = ("tensorflow", "jax", "torch")
SHAPES = {
    "small": (
        "marian",
        {
            "vocab_size": 16_000,
            "hidden_dim": 128,
            "intermediate_dim": 256,
            "layers": 4,
            "heads": 4,
            "positions": 512,
        },
    ),
    "opus-mt": (
        "marian",
        {
            "vocab_size": 58_101,
            "hidden_dim": 512,
            "intermediate_dim": 2048,
            "layers": 6,
            "heads": 8,
            "positions": 512,
        },
    ),
    "nllb": (
        "m2m_100",
        {
            "vocab_size": 256_206,
            "hidden_dim": 1024,
            "intermediate_dim": 4096,
            "layers": 12,
            "heads": 16,
            "positions": 1024,
        },
    ),
    "t5-small": (
        "t5",
        {
            "vocab_size": 32_128,
            "hidden_dim": 512,
            "intermediate_dim": 2048,
            "layers": 6,
            "heads": 8,
            "positions": 512,
            **T5,
        },
    ),
    "t5-v1.1-small": (
        "t5-v1.1",
        {
            "vocab_size": 32_128,
            "hidden_dim": 512,
            "intermediate_dim": 1024,
            "layers": 8,
            "heads": 6,
            "positions": 512,
            **T5,
        },
    ),
}
T5_CONFIG = {
    "d_kv": 64,
    "relative_attention_num_buckets": 32,
    "relative_attention_max_distance": 128,
}
T5_EXTRA_IDS = 100
SENTENCES, LONGEST = 64, 40
# Scales of the weights, as in tests/interop/published.py; `spread_of` starts from them.
SPREADS = {
    "small": (0.7, 3.5, 0.3, 40, 4),
    "opus-mt": (0.7, 3, 0.3, 93, 4),
    "nllb": (0.5, 8, 0.5, 10, 1),
}
SPREADS |= {"t5-small": (1, 2, 0.5, None, 6.5), "t5-v1.1-small": (1, 2, 0.5, None, 4)}


def make(options):
    """Makes the folder and what the library computes with it."""
    from tests.interop.published import forward, random_sources, random_targets

    kind, sizes = SHAPES[options.shape]
    folder = options.work / "folder"
    model, spread = spread_of(options, kind, sizes)
    write_tokenizer(folder, kind, sizes, options)
    model.save_pretrained(folder)
    source_ids, target_ids = (
        random_sources(model, SENTENCES, LONGEST, shortest=10),
        random_targets(model, 8),
    )
    encoded, logits = forward(model, source_ids[:8], target_ids)
    expected = {}
    for name, beams in (("greedy", 1), ("beam", 4)):
        expected[name] = [
            list(map(int, row)) for row in their_ids(model, source_ids, beams, options.steps)
        ]
    np.savez(
        options.work / "numbers.npz",
        source_ids=source_ids,
        target_ids=target_ids,
        encoded=encoded,
        logits=logits,
    )
    texts = {}
    if options.source:
        lines = read_lines(options)
        for name, beams in (("greedy", 1), ("beam", 4)):
            texts[name] = their_texts(folder, model, lines, beams, options.steps)
    made = {"made": made_as(options), "ids": expected, "texts": texts, "spread": spread}
    (options.work / "expected.json").write_text(json.dumps(made))


def made_as(options):
    """The options that the folder depends on, as JSON."""
    return {
        "shape": options.shape,
        "steps": options.steps,
        "source": options.source and str(options.source),
        "limit": options.limit,
    }


def read_lines(options):
    lines = options.source.read_text(encoding="utf-8").split("\n")
    return [line for line in lines if line][: options.limit]


def settings_of(model, beams, steps):
    special = {
        f"{name}_token_id": getattr(model.config, f"{name}_token_id")
        for name in ("pad", "eos", "decoder_start")
    }
    forced = {
        "bad_words_ids": [[special["pad_token_id"]]],
        "forced_eos_token_id": special["eos_token_id"],
    }
    return {**special, **forced, "max_length": steps, "num_beams": beams}


def their_ids(model, source_ids, beams, steps):
    from tests.interop.published import generate

    return generate(model, source_ids, settings_of(model, beams, steps), batch_size=16)


def spread_of(options, kind, sizes):
    """Scales of the weights with which outputs differ and end.

    The bias of the end token, the fourth scale, is found by bisection.
    """
    from tests.interop.published import published_model, random_sources

    *matrices, end, length = SPREADS[options.shape] if options.spread is None else options.spread
    is_t5, accept = kind.startswith("t5"), options.accept
    end = None if is_t5 else end  # T5 has no bias of its outputs to change.
    low, high = 0.0, None
    for _ in range(20):
        model = published_model(
            kind,
            spread=(*matrices, end, length),
            sizes=sizes,
            **(T5_CONFIG if kind.startswith("t5") else {}),
        )
        source_ids, counts = random_sources(model, SENTENCES, LONGEST, shortest=10), []
        for beams in (1, 4):
            ids = their_ids(model, source_ids, beams, options.steps)
            counts.append(
                (len(set(map(tuple, ids))), sum(len(row) < options.steps - 1 for row in ids))
            )
            print(
                f"end {end}, beams {beams}: {counts[-1][0]} distinct, {counts[-1][1]} end in time",
                file=sys.stderr,
                flush=True,
            )
            if not accept and (counts[-1][1] < SENTENCES // 2 or counts[-1][0] < 50):
                break
        if (
            accept
            or len(counts) == 2
            and all(distinct >= 50 and ended >= SENTENCES // 2 for distinct, ended in counts)
        ):
            return model, (*matrices, end, length)
        if is_t5:
            break
        if counts[-1][1] < SENTENCES // 2:
            low = end
        else:
            high = end
        end = 1.02 * low if high is None else (low + high) / 2
    raise SystemExit("no weight of the end token was found; give --spread with other numbers")


def write_tokenizer(folder, kind, sizes, options):
    """Writes tokenizer files of the family, with invented pieces up to the vocabulary size."""
    import sentencepiece

    folder.mkdir(parents=True, exist_ok=True)

    def train(*files, model_type, size, **settings):
        out = io.BytesIO()
        settings |= {
            "model_type": model_type,
            "vocab_size": size,
            "hard_vocab_limit": False,
            "minloglevel": 2,
        }
        sentencepiece.SentencePieceTrainer.train(
            input=",".join(map(str, files)), model_writer=out, **settings
        )
        return out.getvalue()

    def pieces(model):
        processor = sentencepiece.SentencePieceProcessor(model_proto=model)
        return [processor.id_to_piece(i) for i in range(len(processor))][3:]

    def write(name, content):
        (folder / name).write_text(json.dumps(content, ensure_ascii=False), encoding="utf-8")

    if kind == "marian":
        models = [
            train(file, model_type="unigram", size=8000)
            for file in (options.train_source, options.train_target)
        ]
        for side, model in zip(("source", "target"), models, strict=True):
            (folder / f"{side}.spm").write_bytes(model)
        vocabulary = list(dict.fromkeys(["</s>", "<unk>", *pieces(models[0]), *pieces(models[1])]))
        vocabulary += [
            f"\u2581invented{i}" for i in range(sizes["vocab_size"] - 1 - len(vocabulary))
        ] + ["<pad>"]
        write("vocab.json", {piece: i for i, piece in enumerate(vocabulary)})
        write(
            "tokenizer_config.json",
            {"tokenizer_class": "MarianTokenizer", "source_lang": "en", "target_lang": "de"},
        )
    elif kind.startswith("t5"):
        ids = {"pad_id": 0, "eos_id": 1, "unk_id": 2, "bos_id": -1}
        model = train(
            options.train_source, options.train_target, model_type="unigram", size=8000, **ids
        )
        (folder / "spiece.model").write_bytes(filled_up(model, sizes["vocab_size"] - T5_EXTRA_IDS))
        write(
            "tokenizer_config.json", {"tokenizer_class": "T5Tokenizer", "extra_ids": T5_EXTRA_IDS}
        )
    else:
        model = train(options.train_source, options.train_target, model_type="bpe", size=8000)
        (folder / "sentencepiece.bpe.model").write_bytes(model)
        write(
            "tokenizer_config.json",
            {"tokenizer_class": "NllbTokenizer", "src_lang": "eng_Latn", "tgt_lang": "deu_Latn"},
        )


def filled_up(model, size):
    """A SentencePiece model with invented pieces after its own, which no text contains."""
    from sentencepiece import sentencepiece_model_pb2

    proto = sentencepiece_model_pb2.ModelProto.FromString(model)
    for number in range(size - len(proto.pieces)):
        proto.pieces.add(piece=f"\u2581invented{number}", score=-1000.0)
    return proto.SerializeToString()


def their_texts(folder, model, lines, beams, steps):
    import torch
    import transformers

    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    model.generation_config = transformers.GenerationConfig(**settings_of(model, beams, steps))
    texts = []
    with torch.no_grad():
        for start in range(0, len(lines), 32):
            inputs = tokenizer(lines[start : start + 32], padding=True, return_tensors="pt")
            texts += tokenizer.batch_decode(model.generate(**inputs), skip_special_tokens=True)
    return texts


def check(options):
    """Compares what one backend computes with the folder with the library's results."""
    import dataclasses

    from keras import ops

    import kformer
    from tests.interop.published import trim

    before, start = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss, time.perf_counter()
    translator = kformer.interop.load_checkpoint(options.work / "folder")
    seconds, memory = (
        time.perf_counter() - start,
        resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before,
    )
    model, numbers = translator.model, np.load(options.work / "numbers.npz")
    expected = json.loads((options.work / "expected.json").read_text())
    source_ids = numbers["source_ids"]
    encoded, mask = model.encode(ops.convert_to_tensor(source_ids[:8]))
    real = ops.convert_to_numpy(mask)
    logits = model({"source_ids": source_ids[:8], "target_ids": numbers["target_ids"]})
    result = {"seconds": seconds, "memory": memory, "weights": model.count_params() * 4}
    ours = {"encoded": ops.convert_to_numpy(encoded)[real], "logits": ops.convert_to_numpy(logits)}
    for name, theirs in (("encoded", numbers["encoded"][real]), ("logits", numbers["logits"])):
        result[name] = float(np.abs(ours[name] - theirs).max() / np.abs(theirs).max())
    search = kformer.decoding.SearchOptions(
        mode="huggingface",
        length_penalty=1.0,
        max_length=options.steps - 2,
        length_ratio=float(options.steps),
        forbidden_ids=(model.pad_id,),
    )
    for name, beams in (("greedy", 1), ("beam", 4)):
        searcher = kformer.decoding.Searcher(model, dataclasses.replace(search, beam_size=beams))
        rows = [
            row
            for start in range(0, SENTENCES, 16)
            for row in searcher(source_ids[start : start + 16]).ids[:, 0]
        ]
        ours = [trim(row, model.end_id, model.pad_id) for row in rows]
        result[name] = sum(
            one == other for one, other in zip(ours, expected["ids"][name], strict=True)
        )
        if options.source and options.part == "tensorflow":
            saved = kformer.Translator(model, translator.tokenizer, search).export(
                options.work / f"saved-{name}", beam_size=beams
            )
            result[f"{name} texts"] = served(saved, options, expected["texts"][name], name)
    (options.work / f"{options.part}.json").write_text(json.dumps(result))


def served(saved, options, expected, name):
    """The number of lines that the SavedModel translates as the library does."""
    from benchmarks.backends import SERVE

    files = [str(options.work / file) for file in (f"lines-{name}.json", f"texts-{name}.json")]
    pathlib.Path(files[0]).write_text(json.dumps(read_lines(options)))
    subprocess.run([sys.executable, "-c", SERVE, str(saved), *files], check=True)
    return sum(
        one.strip() == other
        for one, other in zip(json.loads(pathlib.Path(files[1]).read_text()), expected, strict=True)
    )


def report(work, backends):
    """Prints the table."""
    print_command()
    head = ["backend", "encoder output", "logits", "greedy ids equal", "beam-4 ids equal"]
    head += ["import, s", "memory / weights", "texts equal"]
    print_head(head)
    for backend in backends:
        row = json.loads((work / f"{backend}.json").read_text())
        texts = [f"{name} {row.get(f'{name} texts')}" for name in ("greedy", "beam")]
        texts = ", ".join(texts) if "greedy texts" in row else "-"
        cells = [f"{row[name]:.1e}" for name in ("encoded", "logits")]
        cells += [f"{row[name]} of {SENTENCES}" for name in ("greedy", "beam")]
        cells += [f"{row['seconds']:.1f}", f"{row['memory'] * 1024 / row['weights']:.2f}", texts]
        print_row(backend, *cells)


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--shape", choices=SHAPES, required=True)
    parser.add_argument(
        "--train-source", type=pathlib.Path, required=True, help="text for the SentencePiece models"
    )
    parser.add_argument("--train-target", type=pathlib.Path, required=True)
    parser.add_argument("--source", type=pathlib.Path, help="lines to translate end to end")
    parser.add_argument("--limit", type=int, help="of these lines, so many")
    parser.add_argument("--work", type=pathlib.Path, required=True)
    parser.add_argument(
        "--spread", type=float, nargs=5, help="of the weights: see tests/interop/published.py"
    )
    parser.add_argument(
        "--steps",
        type=int,
        default=128,
        help="most tokens of a translation, its start and end token included",
    )
    parser.add_argument(
        "--accept",
        action="store_true",
        help="take the weights as they come, however alike the outputs are",
    )
    parser.add_argument("--backends", default=",".join(BACKENDS))
    parser.add_argument("--part", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.part:
        return make(options) if options.part == "make" else check(options)
    options.work.mkdir(parents=True, exist_ok=True)
    made = options.work / "expected.json"
    if made.exists() and (former := json.loads(made.read_text()).get("made")) != made_as(options):
        parser.error(f"{options.work} holds what was made with {former}; give another --work")
    parts = [] if made.exists() else ["make"]
    backends = options.backends.split(",")
    for part in parts + backends:
        backend = "torch" if part == "make" else part
        environment = {
            **os.environ,
            "KERAS_BACKEND": backend,
            "TF_CPP_MIN_LOG_LEVEL": "3",
            "HF_HUB_OFFLINE": "1",
        }
        subprocess.run(
            [sys.executable, __file__, *sys.argv[1:], "--part", part], check=True, env=environment
        )
    report(options.work, backends)


if __name__ == "__main__":
    main()
