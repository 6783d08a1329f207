"""Numbers in sentences."""

import pytest

from kformer_options.wording import counted


@pytest.mark.any_backend
def test_one_is_singular():
    numbers = [counted(number, "step") for number in (0, 1, 2, 29_000)]
    assert numbers == ["0 steps", "1 step", "2 steps", "29,000 steps"]
