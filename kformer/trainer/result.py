"""`TrainResult`: what `train_run` returns."""

import pathlib
from typing import NamedTuple


class TrainResult(NamedTuple):
    """The result of `train_run`.

    Attributes:
        path: `pathlib.Path`. The run directory.
        steps: int. The steps of the training so far.
        history: dict of str to list. The metrics at the end of each epoch trained in this call.
        best: dict or `None`. The `epoch` of the saved model, and the `nll`, `mixed_nll` or `bleu`
            by which it was chosen; `None` without a validation set.
    """

    path: pathlib.Path
    steps: int
    history: dict[str, list[float]]
    best: dict[str, float] | None
