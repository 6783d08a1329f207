"""A folder for the examples of docstrings and pages: text, trained runs and a SavedModel."""

import pathlib
import re
import shutil
import zipfile

import kformer
from kformer.export.web.export import RUNTIME_FILES

ROOT = pathlib.Path(__file__).resolve().parent.parent
FROZEN = ROOT / "tests" / "frozen_run"


def prepare(folder):
    """Writes text of a few hundred pairs, the run `runs/en-de` and its SavedModel."""
    for name, split, count in (("train", "train", 300), ("val", "valid", 20), ("test", "test", 20)):
        pairs = kformer.examples.generate_pairs(count, split=split, categories=("time",))
        for language, side in (("en", "source"), ("de", "target")):
            text = "".join(f"{getattr(pair, side)}\n" for pair in pairs)
            (folder / f"{name}.{language}").write_text(text, encoding="utf-8")
    shutil.copytree(FROZEN, folder / "runs" / "en-de")
    shutil.copytree(ROOT / "saved_models" / "frozen", folder / "saved_models" / "en-de")
    return folder


def add_what_is_mentioned(code, folder):
    """Adds what takes longer, for code that mentions it."""
    for mention, add in _ON_MENTION.items():
        if re.search(mention, code):
            add(folder)


def _add_checkpoint(folder):
    """Trains `runs/en-de` further by one step, for a checkpoint."""
    model, tokenizer, _ = kformer.saving.load_run(folder / "runs/en-de")
    train = kformer.data.ParallelDataset(
        str(folder / "train.en"), str(folder / "train.de"), tokenizer, batch_tokens=512, seed=0
    )
    model.compile(**kformer.training.paper_recipe(model))
    checkpoint = kformer.training.Checkpoint(folder / "runs/en-de")
    model.fit(train, epochs=1, steps_per_epoch=1, callbacks=[checkpoint], verbose=0)


def _add_more_runs(folder):
    for name in ("1", "2", "3"):
        shutil.copytree(FROZEN, folder / "runs" / name)


def _add_published(folder):
    """A folder as the library `transformers` writes it."""
    kformer.export.export_huggingface(kformer.Translator.load(FROZEN), folder / "opus-mt-en-de")


def _add_opus(folder):
    """A zip as OPUS-MT publishes Marian's models."""
    fixture = ROOT / "tests" / "interop" / "toolkits" / "data" / "marian-opusmt"
    with zipfile.ZipFile(folder / "opus-2020-02-26.zip", "w") as archive:
        for name in ("decoder.yml", "opus.npz", "source.spm", "target.spm", "vocab.yml"):
            archive.write(fixture / name, name)


def add_browser_runtime(folder):
    """The package onnxruntime-web, with files of its names alone; returns its folder."""
    package = folder / "node_modules" / "onnxruntime-web"
    (package / "dist").mkdir(parents=True)
    (package / "package.json").write_text('{"version": "1.30.0"}')
    for name in RUNTIME_FILES:
        (package / "dist" / name).write_text(name)
    return package


def _add_word_vectors(folder):
    lines = (f"{word} {' '.join(['0.5'] * 100)}\n" for word in ("the", "dog", "half", "past"))
    (folder / "glove.6B.100d.txt").write_text("".join(lines), encoding="utf-8")


_ON_MENTION = {
    r"load_checkpoint\(\"runs|fit_from|average_checkpoints": _add_checkpoint,
    r"runs/1": _add_more_runs,
    r"\"opus-mt-en-de\"": _add_published,
    r"\"opus-2020-02-26.zip\"": _add_opus,
    r"glove": _add_word_vectors,
    r"node_modules/onnxruntime-web": add_browser_runtime,
}
