"""The time that a bound may take, by a clock that is set by hand."""

from __future__ import annotations

import pytest

from loadmaster.problem.bounds.allowed import Time


@pytest.mark.parametrize(
    ("seconds", "passed", "share", "late"),
    [
        (None, 99.0, 1.0, False),
        (3.0, 0.5, 1.0, False),
        (2.0, 1.0, 1.0, False),
        (2.0, 1.75, 0.25, True),
        (2.0, 5.0, 0.0, True),
    ],
)
def test_of_the_last_second_there_is_a_part(
    seconds: float | None, passed: float, share: float, late: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = [10.0]
    monkeypatch.setattr(Time, "_now", staticmethod(lambda: clock[0]))
    allowed = Time(seconds)
    assert not allowed.is_up() and not allowed.left_out
    clock[0] += passed
    assert allowed.effort(1000) == 1000 * share
    assert allowed.left_out == late
    assert allowed.is_up() == late, "once something was left out, all that follows is"


def test_time_is_up_once_more_has_passed(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = [0.0]
    monkeypatch.setattr(Time, "_now", staticmethod(lambda: clock[0]))
    allowed = Time(2.0)
    clock[0] = 2.0
    assert not allowed.is_up()
    clock[0] = 2.5
    assert allowed.is_up() and allowed.left_out
    clock[0] = 0.0
    assert allowed.is_up()
