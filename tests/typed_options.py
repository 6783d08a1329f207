"""How a program gives options, for the type checkers alone: each sees every name and type.

A line with `type: ignore` is wrong, and the checkers say so: else the comment itself is an error.
"""

import pathlib
from typing import assert_type

import kformer
from kformer.decoding import SearchOptions
from kformer.serving.settings import ServerSettings
from kformer.trainer import TrainOptions


def options() -> None:
    """Right calls."""
    training = TrainOptions("a", pathlib.Path("b"), preset="small", dropout=0.1, teachers=["run"])
    assert_type(training, TrainOptions)
    assert_type(training.dropout, float | None)
    assert_type(training.epochs, int | None)
    search = SearchOptions(beam_size=5, length_penalty=1, shortlist=[4, 5], early_stopping="never")
    assert_type(search.beam_size, int)
    assert_type(search.max_text_bytes, int | None)
    settings = ServerSettings(["en-de=saved_models/en-de"], port=8502, api_keys="keys")
    assert_type(settings.port, int)
    assert_type(kformer.decoding.SearchOptions().mode, str)


def wrong_options() -> None:
    """Misspelt, missing and mistyped options."""
    TrainOptions(dropot=0.1)  # type: ignore[call-arg]
    TrainOptions(epochs="many")  # type: ignore[arg-type]
    TrainOptions("a", "b", teachers=3)  # type: ignore[arg-type]
    print(TrainOptions().dropot)  # type: ignore[attr-defined]
    SearchOptions(beamsize=4)  # type: ignore[call-arg]
    SearchOptions(beam_size=None)  # type: ignore[arg-type]
    SearchOptions(sampling="yes")  # type: ignore[arg-type]
    ServerSettings()  # type: ignore[call-arg]
    ServerSettings([], prot=1)  # type: ignore[call-arg]
    ServerSettings([], port="http")  # type: ignore[arg-type]
