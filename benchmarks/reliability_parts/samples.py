"""The small things that the parts work on, made once in a work folder."""

import contextlib
import fcntl
import hashlib
import json
import os
import pathlib
import shutil
import time
import zipfile

PAIRS = {"train": 64, "valid": 10}
SIZES = {
    "num_encoder_layers": 1,
    "num_decoder_layers": 1,
    "hidden_dim": 16,
    "intermediate_dim": 32,
    "num_heads": 2,
}


def make_corpus(folder):
    """Writes the training and validation set, and a small untrained run (in a process with Keras).

    Args:
        folder: path.
    """
    import kformer

    folder = pathlib.Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    for split, count in PAIRS.items():
        pairs = kformer.examples.generate_pairs(count, split=split, categories="time")
        for side in ("source", "target"):
            text = "".join(getattr(pair, side) + "\n" for pair in pairs)
            (folder / f"{split}.{side}").write_text(text, encoding="utf-8")
    paths = [folder / "train.source", folder / "train.target"]
    tokenizer = kformer.Tokenizer.train(paths, vocabulary_size=360, model_type="unigram")
    model = kformer.Transformer(tokenizer.vocabulary_size, **SIZES, dropout=0.2, max_length=48)
    kformer.Translator(model, tokenizer).save(folder / "small")


def corpus(zygote, work):
    """The folder with the corpus and the small run, which is made if it is missing."""
    folder = pathlib.Path(work).resolve() / "corpus"
    with _made_once(folder) as is_missing:
        if is_missing:
            call = "benchmarks.reliability_parts.samples:make_corpus"
            outcome = zygote.run(call, {"folder": str(folder)})
            if outcome.code:
                raise RuntimeError(f"The samples could not be made: {outcome}")
    return folder


@contextlib.contextmanager
def _made_once(folder):
    """Yields whether a folder is still to be made; meanwhile other campaigns wait."""
    with open(folder.with_suffix(".lock"), "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        is_missing = not (folder / "done").exists()
        if is_missing:
            shutil.rmtree(folder, ignore_errors=True)
        yield is_missing
        (folder / "done").write_text("")


def train_arguments(folder, output, **changes):
    """The arguments of a short training of a new tokenizer and model: 2 epochs of some 6 steps."""
    options = {f"{split}_{side}": folder / f"{split}.{side}" for split in PAIRS for side in _SIDES}
    options |= {"vocabulary_size": 360, "batch_tokens": 128, "max_shapes": 1, "epochs": 2}
    options |= {"checkpoint_every": 3, "dropout": 0.2, "output": output, **changes}
    arguments = ["train"]
    if "start_from" in changes:
        del options["vocabulary_size"]
    else:
        for name, value in SIZES.items():
            arguments += ["--model-option", f"{name}={value}"]
    for name, value in options.items():
        arguments += [f"--{name.replace('_', '-')}", str(value)]
    return arguments


_SIDES = ("source", "target")


def digests(folder):
    """What is in a folder: dict of relative path to a digest of its content.

    The seconds of a history, the dates in `.keras` files and checksums of these do not count, and
    neither do the paths of the folder itself in a config.
    """
    folder = pathlib.Path(folder)
    found = {}
    for path in sorted(folder.rglob("*")):
        name = path.relative_to(folder).as_posix()
        # A kill may leave a folder aside with nothing but an empty lock: its owner is not known.
        is_aside = path.parent.name.startswith(".partial-")
        if is_aside and path.name == ".lock" and not path.stat().st_size:
            continue
        if path.is_dir() and not path.is_symlink():
            if not any(path.iterdir()) and not path.name.startswith(".partial-"):
                found[name + "/"] = "an empty folder"
            continue
        found[name] = hashlib.blake2b(_content(path, folder), digest_size=8).hexdigest()
    return found


def _content(path, folder):
    if path.is_symlink():
        return str(path.readlink()).encode()
    data = path.read_bytes()
    if path.name == "history.csv":
        rows = [line.split(",") for line in data.decode(errors="replace").splitlines()]
        if rows and "seconds" in rows[0]:
            column = rows[0].index("seconds")
            data = json.dumps([row[:column] + row[column + 1 :] for row in rows]).encode()
        return data
    if path.suffix == ".keras":
        with contextlib.suppress(zipfile.BadZipFile), zipfile.ZipFile(path) as archive:
            names = sorted(set(archive.namelist()) - {"metadata.json"})
            return b"".join(name.encode() + archive.read(name) for name in names)
    if path.name in ("config.json", "state.json"):
        with contextlib.suppress(ValueError):
            value = json.loads(data)
            # Those of `.keras` files, which hold the date.
            return json.dumps(_without_checksums(value)).replace(str(folder), "RUN").encode()
    return data


def _without_checksums(value):
    if not isinstance(value, dict):
        return value
    kept = {name: part for name, part in value.items() if "checksum" not in name}
    return {name: _without_checksums(part) for name, part in kept.items()}


def let_an_hour_pass(folder):
    """Makes what killed processes left in a folder an hour old, so that the next one removes it."""
    hour_ago = time.time() - 3600
    for path in pathlib.Path(folder).rglob(".partial-*"):
        os.utime(path, (hour_ago, hour_ago))


def difference(found, expected):
    """A sentence about two results of `digests`, or None if they are equal."""
    names = sorted(found.keys() | expected.keys())
    parts = []
    for name in names:
        if found.get(name) != expected.get(name):
            how = "differs" if name in found and name in expected else "is new"
            parts.append(f"{name} {how if name in found else 'is missing'}")
    return "; ".join(parts[:6]) or None


def trained(zygote, work):
    """A folder with a finished training `whole`, and with one that was killed, `interrupted`.

    They are made if they are missing.
    """
    folder = pathlib.Path(work).resolve() / f"trained-{zygote.backend}"
    texts = corpus(zygote, work)
    with _made_once(folder) as is_missing:
        if is_missing:
            _train_both(zygote, texts, folder)
    return folder


def _train_both(zygote, texts, folder):
    folder.mkdir(parents=True)
    run = folder / "run"
    whole = zygote.command(*train_arguments(texts, run), hook={"root": str(run)}, seconds=900)
    if whole.code:
        raise RuntimeError(f"The training of the samples failed: {whole}")
    run.rename(folder / "whole")
    hook = {"root": str(run), "kill_at": int(0.8 * len(whole.operations))}
    killed = zygote.command(*train_arguments(texts, run), hook=hook, seconds=900)
    if killed.code != -9:
        raise RuntimeError(f"The training of the samples was not killed: {killed}")
    run.rename(folder / "interrupted")
