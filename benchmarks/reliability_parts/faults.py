"""Faults for the self-test, planted into a process of a part, never into the package itself.

Each is a fault that a change to kformer could bring back; the part of its name must see it.
"""

import contextlib
import importlib


def plant(name):
    """Plants a fault into this process."""
    FAULTS[name]()


def _replace(path, value):
    """Replaces `module:attribute` or `module:class.attribute`; returns what stood there."""
    module, names = path.split(":")
    holder = importlib.import_module(module)
    *outer, last = names.split(".")
    for part in outer:
        holder = getattr(holder, part)
    old = getattr(holder, last)
    setattr(holder, last, value)
    return old


def _resume_at_the_start_of_the_epoch():
    import dataclasses

    def load(path):
        model, state = real(path)
        return model, dataclasses.replace(state, step_in_epoch=0)

    real = _replace("kformer.trainer.run:load_checkpoint", None)
    _replace("kformer.trainer.run:load_checkpoint", load)


def _written_in_place():
    import pathlib

    @contextlib.contextmanager
    def replacing(path):
        yield pathlib.Path(path)

    _replace("kformer.utils.files:replacing", replacing)


def _checksums_not_compared():
    import zipfile

    zipfile.ZipExtFile._update_crc = lambda self, data: None


def _lock_not_taken():
    _replace("kformer.utils.files:locked", lambda folder, **options: contextlib.nullcontext())


def _files_not_synced():
    import os

    def sync_to_disk(path):
        if os.path.isdir(path):
            real(path)

    real = _replace("kformer.utils.files:sync_to_disk", sync_to_disk)


def _rows_shifted():
    def translate(self, texts, **options):
        results = real(self, texts, **options)
        return results[-1:] + results[:-1]

    name = "kformer.export.saved_model.reader:SavedModelTranslator.translate"
    real = _replace(name, translate)


def _beam_misordered():
    def call(self, *arguments, **options):
        found = real(self, *arguments, **options)
        return type(found)(*(part[:, ::-1] for part in found))

    real = _replace("kformer.decoding.searcher:Searcher.__call__", call)


def _pickles_loaded():
    import torch

    real = torch.load
    torch.load = lambda *arguments, **options: real(
        *arguments, **{**options, "weights_only": False}
    )
    _replace("kformer.interop.pickles:_check_pickle", lambda file: None)


FAULTS = {
    "trainings": _resume_at_the_start_of_the_epoch,
    "commands": _written_in_place,
    "damage": _checksums_not_compared,
    "writers": _lock_not_taken,
    "strings": _rows_shifted,
    "malicious": _pickles_loaded,
    "power_cut": _files_not_synced,
    "search": _beam_misordered,
}
