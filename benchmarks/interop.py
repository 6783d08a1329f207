"""Measures imported models of real shapes: beside the library that they come from, and trimmed.

    python benchmarks/interop.py shapes --shape opus-mt --train-source F --train-target F --work DIR
        [--source F] [--steps 128] [--accept] [--spread 0.7 3 0.3 93 4] [--backends A,B]
    python benchmarks/interop.py trim --text F --text F --lines F --work DIR [--hidden 512]
        [--layers 2] [--count 64] [--threads N] [--backend NAME]
    python benchmarks/interop.py toolkits --work DIR [--formats A,B] [--size 60M] [--backend NAME]

shapes. Makes a folder of the shape as it is published (small, opus-mt, nllb, t5-small,
t5-v1.1-small), with the Hugging Face library: random weights (scaled so that outputs differ and
end), and SentencePiece models trained on the text. Then it imports the folder on each backend, in a
process of its own, and compares encoder output and logits of a padded batch, and the ids of greedy
search and of a beam of 4 on 64 sentences. With `--source` the lines of that file are also
translated by the library and by the exported SavedModel, in a process that can import neither Keras
nor kformer.

trim. Files and memory of a multilingual model before and after its vocabulary is trimmed. Makes a
folder with NLLB's vocabulary of 256,206 pieces as it is published: random weights, the family's
tokenizer trained on the text, with invented pieces up to that size, and as many layers of that
width on each side as the options say (NLLB-200 has 12 or 24 of 1,024). `kformer import`, `kformer
trim` and `kformer translate` then run in processes of their own. The lines are translated greedily
in 24 tokens, since random weights seldom end a sentence. The resident memory is the peak of the
whole process: Python, the backend and the model.

toolkits. The time and memory of importing other toolkits' files: Marian, fairseq, OpenNMT-py and
OpenNMT-tf, with the weights of a base Transformer (random ones), and a folder of CTranslate2.
`kformer import` runs in a process of its own; an import of the tests' small fixture, beside it,
says what the process takes without a large model.
"""

import argparse
import io
import json
import pathlib
import resource
import shutil
import subprocess
import sys
import time

import numpy as np

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent))
from benchmarks import toolkit_files  # noqa: E402
from benchmarks.common import (  # noqa: E402
    BACKENDS,
    cpu_name,
    environment,
    measured,
    names,
    once,
    print_command,
    print_head,
    print_row,
    read,
    size_on_disk,
    write,
)

SIZES = ("vocab_size", "hidden_dim", "intermediate_dim", "layers", "heads", "positions")
# The family and the sizes of each shape.
SHAPES = {
    "small": ("marian", (16_000, 128, 256, 4, 4, 512)),
    "opus-mt": ("marian", (58_101, 512, 2048, 6, 8, 512)),
    "nllb": ("m2m_100", (256_206, 1024, 4096, 12, 16, 1024)),
    "t5-small": ("t5", (32_128, 512, 2048, 6, 8, 512)),
    "t5-v1.1-small": ("t5-v1.1", (32_128, 512, 1024, 8, 6, 512)),
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

    kind, values = SHAPES[options.shape]
    sizes = dict(zip(SIZES, values, strict=True))
    if kind.startswith("t5"):
        sizes["query_scale"] = 0.125
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
    return [line for line in read(options.source) if line][: options.limit]


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
        if options.source and options.part_of == "tensorflow":
            saved = kformer.Translator(model, translator.tokenizer, search).export(
                options.work / f"saved-{name}", beam_size=beams
            )
            result[f"{name} texts"] = served(saved, options, expected["texts"][name], name)
    (options.work / f"{options.part_of}.json").write_text(json.dumps(result))


def served(saved, options, expected, name):
    """The number of lines that the SavedModel translates as the library does."""
    from benchmarks.formats import SERVE

    files = [str(options.work / file) for file in (f"lines-{name}.json", f"texts-{name}.json")]
    pathlib.Path(files[0]).write_text(json.dumps(read_lines(options)))
    subprocess.run([sys.executable, "-c", SERVE, str(saved), *files], check=True)
    return sum(
        one.strip() == other
        for one, other in zip(json.loads(pathlib.Path(files[1]).read_text()), expected, strict=True)
    )


def print_shapes(work, backends):
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


# A trimmed vocabulary.

PIECES = 256_206
LANGUAGES = ("--source-language", "eng_Latn", "--target-language", "deu_Latn")
SEARCH = ("--beam-size", 1, "--max-length", 24)


def write_folder(options, folder):
    """Writes a published model with random weights."""
    import sentencepiece

    from kformer.interop.tokenizers import LANGUAGES
    from tests.interop.published import published_model
    from tests.interop.tokenizer_folders import nllb

    out = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(
        input=",".join(map(str, options.text)),
        model_writer=out,
        model_type="bpe",
        vocab_size=8000,
        hard_vocab_limit=False,
        minloglevel=2,
    )
    # Beside its pieces are the padding, a mask, two that are unused, and the languages.
    model = filled_up(out.getvalue(), PIECES - len(LANGUAGES["nllb"]) - 4)
    config = nllb(folder, {"bpe": model})
    special = ("pad_token_id", "eos_token_id", "decoder_start_token_id")
    sizes = {
        "vocab_size": config["vocab_size"],
        "hidden_dim": options.hidden,
        "intermediate_dim": 4 * options.hidden,
        "layers": options.layers,
        "heads": max(1, options.hidden // 64),
        "positions": 128,
    }
    model = published_model(
        config["model_type"], sizes=sizes, **{name: config[name] for name in special}
    )
    model.save_pretrained(folder)


def report_trim(options):
    work = options.work
    folder, whole, small = (work / name for name in ("folder", "whole", "small"))
    machine = {"backend": options.backend, "threads": options.threads}
    if not (folder / "config.json").exists():
        write_folder(options, folder)
    if not whole.exists():
        measured(work / "import.log", "import", folder, "--output", whole, *LANGUAGES, **machine)

    def trim():
        texts = [part for path in options.text for part in ("--text", path)]
        arguments = ("trim", whole, *texts, "--output", small, "--json")
        printed = measured(work / "trim.log", *arguments, backend=options.backend)[2]
        return json.loads(printed.strip().splitlines()[-1])

    sizes = once(work / "trim.json", trim)
    lines = read(options.lines)[: options.count]
    source = work / "lines"
    write(source, lines)
    print_command()
    print(f"{cpu_name()}, {options.backend}, {options.threads or 'all'} threads; ", end="")
    print(f"hidden size {options.hidden}, {options.layers} + {options.layers} layers\n")
    print_head(("model", "pieces", "parameters", "file, MB", "peak, MiB", f"{len(lines)} lines, s"))
    for name, run, size in (("whole", whole, "before"), ("trimmed", small, "after")):
        arguments = ("translate", run, "--input", source, "--output", work / f"{name}.out")
        seconds, memory, _ = measured(work / f"{name}.log", *arguments, *SEARCH, **machine)
        parts = [sizes[size][key] for key in ("pieces", "parameters")]
        parts += [round(sizes[size]["bytes"] / 1e6), round(memory), round(seconds)]
        print_row(name, *(f"{part:,}" for part in parts))


def report_shapes(options):
    if options.part_of:
        return make(options) if options.part_of == "make" else check(options)
    made = options.work / "expected.json"
    if made.exists() and (former := json.loads(made.read_text()).get("made")) != made_as(options):
        raise SystemExit(f"{options.work} holds what was made with {former}; give another --work")
    for part in [*([] if made.exists() else ["make"]), *options.backends]:
        backend = "torch" if part == "make" else part
        command = [sys.executable, *sys.argv, "--part-of", part]
        subprocess.run(command, check=True, env=environment(backend))
    print_shapes(options.work, options.backends)


def report_toolkits(options):
    print_command()
    print(f"{cpu_name()}, {options.backend}\n")
    print_head(("format", "files, MB", "import, s", "of CPU", "peak, MiB"))
    small = toolkit_files.DATA / "marian-opusmt"
    for name in ("(a small fixture)", *options.formats):
        make, file, is_tokens = toolkit_files.FORMATS.get(name, (None, "", False))
        folder, run = options.work / f"{name}-{options.size}", options.work / "run"
        if make is not None and not folder.exists():
            folder.mkdir()
            make(folder, options.size)
        path = (small if make is None else folder) / file
        shutil.rmtree(run, ignore_errors=True)
        arguments = ["import", path, "--output", run, *["--pretokenized"] * is_tokens]
        log = options.work / f"{name}.log"
        before = _cpu_seconds()
        seconds, peak, _ = measured(log, *arguments, backend=options.backend)
        cpu = _cpu_seconds() - before
        size = size_on_disk(small if make is None else folder) / 1e6
        print_row(name, f"{size:,.0f}", f"{seconds:.1f}", f"{cpu:.1f}", f"{peak:,.0f}")
    shutil.rmtree(run)


def _cpu_seconds():
    """Seconds of the CPU that the ended processes of this one took."""
    usage = resource.getrusage(resource.RUSAGE_CHILDREN)
    return usage.ru_utime + usage.ru_stime


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parts = parser.add_subparsers(dest="part", required=True)
    part = parts.add_parser("shapes", help="beside the library that they come from")
    part.add_argument("--shape", choices=SHAPES, required=True)
    text = {"type": pathlib.Path, "required": True, "help": "text for the SentencePiece models"}
    part.add_argument("--train-source", **text)
    part.add_argument("--train-target", **text)
    part.add_argument("--source", type=pathlib.Path, help="lines to translate end to end")
    part.add_argument("--limit", type=int, help="the first N of these lines")
    spread = "of the weights: see tests/interop/published.py"
    part.add_argument("--spread", type=float, nargs=5, help=spread)
    steps = "most tokens of a translation, its start and end token included"
    part.add_argument("--steps", type=int, default=128, help=steps)
    accept = "take the weights as they come, however alike the outputs are"
    part.add_argument("--accept", action="store_true", help=accept)
    part.add_argument("--backends", type=names, default=list(BACKENDS))
    part.add_argument("--part-of", help=argparse.SUPPRESS)

    part = parts.add_parser("trim", help="a trimmed vocabulary")
    part.add_argument("--text", type=pathlib.Path, action="append", required=True)
    part.add_argument("--lines", type=pathlib.Path, required=True, help="to translate")
    part.add_argument("--hidden", type=int, default=512)
    part.add_argument("--layers", type=int, default=2)
    part.add_argument("--count", type=int, default=64)
    part.add_argument("--threads", type=int)
    part.add_argument("--backend", default="torch")

    part = parts.add_parser("toolkits", help="other toolkits' files")
    part.add_argument("--formats", type=names, default=list(toolkit_files.FORMATS))
    part.add_argument("--size", choices=toolkit_files.SIZES, default="60M")
    part.add_argument("--backend", default="torch")

    for part in parts.choices.values():
        part.add_argument("--work", type=pathlib.Path, required=True)
    options = parser.parse_args()
    options.work.mkdir(parents=True, exist_ok=True)
    reports = {"shapes": report_shapes, "trim": report_trim, "toolkits": report_toolkits}
    reports[options.part](options)


if __name__ == "__main__":
    main()
