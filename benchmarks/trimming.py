"""Files and memory of a multilingual model before and after its vocabulary is trimmed.

    python benchmarks/trimming.py --text F --text F --lines F --work DIR [--hidden 512]
        [--layers 2] [--count 64] [--threads N] [--backend NAME]

Makes a folder with NLLB's vocabulary of 256,206 pieces as it is published, with the Hugging Face
library: random weights, the family's tokenizer trained on the text, with invented pieces up to that
size, and as many layers of that width on each side as the options say (NLLB-200 has 12 or 24 of
1,024). `kformer import`, `kformer trim` and `kformer translate` then run in processes of their own.
The lines are translated greedily in 24 tokens, since random weights seldom end a sentence.

The resident memory is the peak of the whole process: Python, the backend and the model.
"""

import argparse
import io
import json
import pathlib
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent))
from benchmarks.inference import cpu_name  # noqa: E402
from benchmarks.measured import measured  # noqa: E402
from benchmarks.tables import print_command, print_head, print_row  # noqa: E402

PIECES = 256_206
LANGUAGES = ("--source-language", "eng_Latn", "--target-language", "deu_Latn")
SEARCH = ("--beam-size", 1, "--max-length", 24)


def write_folder(options, folder):
    """Writes a published model with random weights."""
    import sentencepiece

    from benchmarks.interop import filled_up
    from kformer.interop.tokenizers import NLLB_LANGUAGES
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
    model = filled_up(out.getvalue(), PIECES - len(NLLB_LANGUAGES) - 4)
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


def main():
    options = parse()
    work = options.work
    work.mkdir(parents=True, exist_ok=True)
    folder, whole, small = (work / name for name in ("folder", "whole", "small"))
    machine = {"backend": options.backend, "threads": options.threads}
    if not (folder / "config.json").exists():
        write_folder(options, folder)
    if not whole.exists():
        measured(work / "import.log", "import", folder, "--output", whole, *LANGUAGES, **machine)
    record = work / "trim.json"
    if not record.exists():
        texts = [part for path in options.text for part in ("--text", path)]
        arguments = ("trim", whole, *texts, "--output", small, "--json")
        printed = measured(work / "trim.log", *arguments, backend=options.backend)[2]
        record.write_text(printed.strip().splitlines()[-1], encoding="utf-8")
    sizes = json.loads(record.read_text(encoding="utf-8"))
    lines = options.lines.read_text(encoding="utf-8").splitlines()[: options.count]
    source = work / "lines"
    source.write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
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


def parse():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--text", type=pathlib.Path, action="append", required=True)
    parser.add_argument("--lines", type=pathlib.Path, required=True, help="to translate")
    parser.add_argument("--work", type=pathlib.Path, required=True)
    parser.add_argument("--hidden", type=int, default=512)
    parser.add_argument("--layers", type=int, default=2)
    parser.add_argument("--count", type=int, default=64)
    parser.add_argument("--threads", type=int)
    parser.add_argument("--backend", default="torch")
    return parser.parse_args()


if __name__ == "__main__":
    main()
