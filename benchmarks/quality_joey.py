"""Joey NMT as a peer of benchmarks/quality_peers.py: its own code, in an environment of its own.

The configuration is its published one for IWSLT14 German-English (`transformer_iwslt14_deen_bpe`:
Adam (0.9, 0.999), label smoothing 0.1, Xavier, tied tables, beam 5, alpha 1.0) with three
differences. The rate rises over the first fifth of the updates and falls with their root, since the
published `plateau` ends in a TypeError with today's PyTorch. Sizes, tokens per batch and tokenizer
are those of a run of kformer, unless the published sizes are asked for. And validations choose a
checkpoint by perplexity, without the search, which would take longer than the training.
"""

import datetime
import json
import math
import os
import pathlib
import re
import resource
import subprocess
import sys
import time

# What the published configuration has instead of a run's sizes and what trials choose.
PUBLISHED = {
    "sizes": {"layers": 6, "hidden": 256, "inner": 1024, "heads": 4, "batch_tokens": 4096},
    "rate": 0.0003,
    "dropout": 0.3,
}
ALPHA = 1.0
WARMUP, VALIDATIONS, LONGEST = 0.2, 5, 100
STEPS_OF_SPEED = 60


def sizes_of(run):
    """The sizes and tokens per batch of a run of kformer."""
    from benchmarks.quality_torch import settings_of
    from kformer.models import PRESETS

    settings = settings_of(run)
    config = PRESETS[settings["preset"]].config
    return {
        "layers": config["num_encoder_layers"],
        "hidden": config["hidden_dim"],
        "inner": config["intermediate_dim"],
        "heads": config["num_heads"],
        "batch_tokens": settings["batch_tokens"],
    }


def configuration(job, updates):
    """The configuration of a training, dict."""
    sizes = job["sizes"]
    pathlib.Path(job["folder"]).mkdir(parents=True, exist_ok=True)
    stack = {
        "type": "transformer",
        "num_layers": sizes["layers"],
        "num_heads": sizes["heads"],
        "embeddings": {"embedding_dim": sizes["hidden"], "scale": True, "dropout": 0.0},
        "hidden_size": sizes["hidden"],
        "ff_size": sizes["inner"],
        "dropout": job["dropout"],
        "layer_norm": "pre",
    }
    every = max(1, updates // VALIDATIONS)
    return {
        "name": "peer",
        "joeynmt_version": "2.3.0",
        "model_dir": f"{job['folder']}/model",
        "use_cuda": False,
        "random_seed": job["seed"],
        "data": {
            **{
                name: f"{job['data']}/{part}" for name, part in (("train", "train"), ("dev", "val"))
            },
            "dataset_type": "plain",
            "src": side_of(job, "source"),
            "trg": side_of(job, "target"),
        },
        "testing": {
            "beam_size": 5,
            "beam_alpha": ALPHA,
            "batch_size": 64,
            "max_output_length": 1,  # Of validations; `translations` sets it.
            "eval_metrics": ["bleu"],
        },
        "training": {
            "optimizer": "adam",
            "normalization": "tokens",
            "adam_betas": [0.9, 0.999],
            "scheduling": "warmupinversesquareroot",
            "learning_rate": job["rate"],
            "learning_rate_warmup": max(1, int(WARMUP * updates)),
            "learning_rate_min": 0.0,
            "label_smoothing": 0.1,
            "batch_size": sizes["batch_tokens"],
            "batch_type": "token",
            "early_stopping_metric": "ppl",
            "epochs": 100_000,
            "updates": every * VALIDATIONS,
            "validation_freq": every,
            "logging_freq": every,
            "overwrite": True,
            "print_valid_sents": [],
        },
        "model": {
            "initializer": "xavier_uniform",
            "embed_initializer": "xavier_uniform",
            "tied_embeddings": True,
            "tied_softmax": True,
            "encoder": stack,
            "decoder": stack,
        },
    }


def side_of(job, side):
    """A language, with the tokenizer of a run of kformer, whose pieces are the vocabulary."""
    import sentencepiece

    tokenizer = pathlib.Path(job["run"]) / "tokenizer"
    described = json.loads((tokenizer / "tokenizer.json").read_text(encoding="utf-8"))
    model = str(tokenizer / described[side]["model"])
    processor = sentencepiece.SentencePieceProcessor(model_file=model)
    pieces = pathlib.Path(job["folder"]) / f"{side}.pieces"
    text = "".join(f"{processor.id_to_piece(i)}\n" for i in range(processor.vocab_size()))
    pieces.write_text(text, encoding="utf-8")
    return {
        "lang": job[side],
        "level": "bpe",
        "voc_file": str(pieces),
        "tokenizer_type": "sentencepiece",
        "tokenizer_cfg": {"model_file": model},
    }


def joey(job, verb, config, *arguments, source=os.devnull):
    """Runs Joey NMT.

    Returns:
        What it printed, its log, and the seconds of CPU time of a second on the clock.
    """
    folder = pathlib.Path(job["folder"])
    path = folder / f"{verb}.yaml"
    # JSON is YAML, but for numbers such as 1e-05.
    path.write_text(re.sub(r"\b(\d)e-", r"\1.0e-", json.dumps(config)), encoding="utf-8")
    environment = {**os.environ, "OMP_NUM_THREADS": str(job["threads"])}
    environment.pop("PYTHONPATH", None)
    command = [job["python"], "-m", "joeynmt", verb, str(path), *map(str, arguments)]
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    begin, spent = time.perf_counter(), cpu_seconds()
    with open(source, "rb") as file:
        process = subprocess.run(command, stdin=file, **pipes, cwd=folder, env=environment)
    if process.returncode:
        raise SystemExit(f"Joey NMT failed:\n{process.stderr[-3000:]}")
    share = (cpu_seconds() - spent) / (time.perf_counter() - begin)
    return process.stdout, process.stderr, share


def cpu_seconds():
    """The CPU time of the processes that this one has started and that have ended."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def spent_on(log):
    """The seconds of a training's steps on the clock, by its log."""

    def time_of(words):
        stamp = re.search(rf"^(\S+ \S+),(\d+) - .*{words}", log, re.MULTILINE)
        moment = datetime.datetime.strptime(stamp[1], "%Y-%m-%d %H:%M:%S")
        return moment.timestamp() + int(stamp[2]) / 1000

    validations = sum(map(float, re.findall(r"Generation took ([\d.]+)", log)))
    return time_of("Training ended") - time_of(r"EPOCH 1\b") - validations


def pace_of(job):
    """The seconds of CPU time of an update."""
    _, log, share = joey(job, "train", configuration(job, STEPS_OF_SPEED), "-t")
    return share * spent_on(log) / STEPS_OF_SPEED


def train(job):
    """Trains for about the job's seconds of CPU time; takes the checkpoint of best perplexity.

    Args:
        job: dict with the paths `run`, `data`, `folder` and `python`, the languages `source` and
            `target`, `sizes`, `seed`, `rate`, `dropout`, `seconds`, `pace` and `threads`.

    Returns:
        Its result: dict with `seconds`, `epochs`, `parameters` and `nll`.
    """
    folder = pathlib.Path(job["folder"])
    updates = max(STEPS_OF_SPEED, int(job["seconds"] / job["pace"]))
    _, log, share = joey(job, "train", configuration(job, updates), "-t")
    (folder / "train.log").write_text(log, encoding="utf-8")
    print(log[-600:], file=sys.stderr)
    losses = [float(ppl) for ppl in re.findall(r"ppl: +([\d.]+|nan|inf),", log)]
    return {
        "seconds": share * spent_on(log),
        "epochs": int(re.findall(r"EPOCH (\d+)", log)[-1]),
        "parameters": int(re.search(r"Total params: (\d+)", log)[1]),
        "nll": math.log(min(losses)),
    }


def translations(job, source):
    """The translations of a file's lines by a beam of 5."""
    config = configuration(job, STEPS_OF_SPEED)
    config["testing"]["max_output_length"] = LONGEST
    printed, *_ = joey(job, "translate", config, source=source)
    return [as_text(line) for line in printed.split("\n")[:-1]]


def as_text(line):
    """A translation without the names of bytes, which Joey's tokenizer leaves as they are."""

    def character(found):
        return bytes.fromhex("".join(re.findall("x(..)", found[0]))).decode(errors="replace")

    return re.sub(r"(<0x[0-9A-F]{2}>)+", character, line)
