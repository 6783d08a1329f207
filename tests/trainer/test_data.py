"""The text of a training."""

import pytest

from kformer.utils.progress import Progress


@pytest.mark.any_backend
def test_a_long_preparation_says_how_far_it_is(monkeypatch):
    said, now = [], [0.0]
    monkeypatch.setattr("kformer.utils.progress.time.perf_counter", lambda: now[0])
    progress = Progress(what="pairs prepared", name="data", report=said.append)
    for seconds, done in ((1, 100), (20, 2000), (21, 2100), (40, 5000)):
        now[0] = float(seconds)
        progress(done, 5000)
    assert said == ["data: 2,000 of 5,000 pairs prepared, 100 per second, 30 s left"]
