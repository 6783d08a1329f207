"""Every writer of files: what a rename makes visible was synced before, and the rename after.

`DiskCalls` fails at a rename of something that is not synced. The SavedModel and prepared text have
tests of their own.
"""

import pathlib

import pytest

import kformer
from kformer.distillation import soft_targets
from kformer.interop import import_checkpoint
from kformer.saving import TrainingState, load_run, save_checkpoint, save_run
from kformer.saving.run_directory import write_config
from kformer.translating import streaming
from kformer.utils import files
from tests.training.toy import compiled_toy
from tests.utils.disk_calls import DiskCalls

FROZEN = pathlib.Path(__file__).parents[1] / "frozen_run"

pytestmark = pytest.mark.any_backend


def small_translator():
    """A translator with sinusoidal positions, which every format can hold."""
    _, tokenizer, _ = load_run(FROZEN)
    sizes = {"num_encoder_layers": 1, "num_decoder_layers": 1, "hidden_dim": 8, "num_heads": 2}
    model = kformer.Transformer(tokenizer.vocabulary_size, intermediate_dim=16, **sizes)
    return kformer.Translator(model, tokenizer)


def write_soft_targets(folder):
    translator = small_translator()
    texts = ["noon", "half past four"]
    corpus = kformer.data.prepare(texts, texts, translator.tokenizer, folder / "text")
    soft_targets(translator.model, corpus, folder / "targets", num_classes=2)


def write_line(folder):
    with streaming.open_output(folder / "out.txt") as file:
        file.write(b"a line\n")


WRITERS = {
    "tokenizer": lambda folder: load_run(FROZEN)[1].save(folder / "tokenizer"),
    "run": lambda folder: small_translator().save(folder / "run"),
    "config": lambda folder: write_config(folder, {"training": {}}),
    "checkpoint": lambda folder: save_checkpoint(folder, compiled_toy(), TrainingState(3), keep=1),
    "soft targets": write_soft_targets,
    "lines": write_line,
    "JSON": lambda folder: files.write_json(folder / "x.json", {}),
    "ctranslate2": lambda folder: small_translator().export(folder / "ct2", "ctranslate2"),
    "hf": lambda folder: small_translator().export(folder / "hf", "hf"),
    "onnx": lambda folder: small_translator().export(folder / "onnx", "onnx"),
}


@pytest.mark.parametrize("name", WRITERS)
def test_files_are_synced_before_the_rename_that_vouches_for_them(name, tmp_path, monkeypatch):
    calls = DiskCalls(monkeypatch)
    WRITERS[name](tmp_path)
    calls.check_folders()


@pytest.mark.parametrize(
    "writes", [WRITERS["run"], WRITERS["checkpoint"]], ids=["run", "checkpoint"]
)
def test_so_they_are_over_older_ones(writes, tmp_path, monkeypatch):
    save_run(tmp_path / "run", *load_run(FROZEN)[:2])
    save_checkpoint(tmp_path, compiled_toy(), TrainingState(2))
    save_checkpoint(tmp_path, compiled_toy(), TrainingState(3))
    calls = DiskCalls(monkeypatch)
    writes(tmp_path)
    calls.check_folders()


@pytest.mark.heavy
def test_an_import_is_synced_before_the_rename_that_vouches_for_it(tmp_path, monkeypatch):
    small_translator().export(tmp_path / "hf", "hf")
    calls = DiskCalls(monkeypatch)
    import_checkpoint(tmp_path / "hf", tmp_path / "run")
    calls.check_folders()
