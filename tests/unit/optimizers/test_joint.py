"""How a search for kernels and places shares out its epochs, worked out by hand."""

from __future__ import annotations

import pytest

from loadmaster.optimizers.joint import gain, share_of
from loadmaster.search import Score


@pytest.mark.parametrize(
    ("fused", "moved", "share"),
    [
        (0.1, 0.3, 0.25),
        (0.2, 0.3, 0.4),
        (0.3, 0.1, 0.5),  # three quarters, and never more than a half
        (0.0, 0.3, 0.1),  # nothing, and never less than a tenth
        (0.02, 0.08, 0.2),
        (0.0, 0.0, 0.25),
    ],
)
def test_the_half_that_gained_more_has_more_of_the_next_epoch(fused: float, moved: float, share: float) -> None:
    assert share_of(fused, moved) == pytest.approx(share)


def test_a_gain_is_a_share_of_what_was_there_before() -> None:
    assert gain(Score(0, 200), Score(0, 150)) == pytest.approx(0.25)
    assert gain(Score(0, 200), Score(0, 200)) == 0
    assert gain(Score(0, 0), Score(0, 0)) == 1, "of a step of no time"
    assert gain(Score(40, 200), Score(10, 900)) == pytest.approx(0.75), "bytes that are short, whatever the time"
    assert gain(Score(1, 200), Score(0, 900)) == 1
