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


FAULTS = {
    "trainings": _resume_at_the_start_of_the_epoch,
    "commands": _written_in_place,
}
