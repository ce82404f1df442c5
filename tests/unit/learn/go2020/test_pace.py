"""How much is drawn between two passes of a network and how warm, by a clock and counts that are told."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

pytest.importorskip("torch")

from loadmaster.learn.go2020 import chains
from loadmaster.learn.go2020.chains import DrawPace


def pace(*, counts: bool = False, simulations: int = 0, left: float = 100.0, **given: Any) -> DrawPace:
    search: Any = SimpleNamespace(
        counts_simulations=counts, simulations=simulations, seconds_left=left, progress=given.pop("progress", 0.0)
    )
    settings: Any = SimpleNamespace(share=given.pop("share", 0.5), rollouts=given.pop("rollouts", 64))
    return DrawPace(search, settings, given.pop("steps", None), given.pop("hot", 0.1))


@pytest.mark.parametrize(("simulations", "draws"), [(0, 16), (135, 16), (136, 17), (511, 63), (512, 64), (9_999, 64)])
def test_where_simulations_count_draws_are_an_eighth_of_them(simulations: int, draws: int) -> None:
    assert pace(counts=True, simulations=simulations).next(0, 1.0) == (None, draws)


def test_the_last_two_passes_are_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    ticks = iter([0.0, 1.0, 5.0, 7.0, 10.0, 14.0, 20.0, 28.0])
    monkeypatch.setattr(chains, "time", SimpleNamespace(perf_counter=lambda: next(ticks)))
    some = pace()
    for known in ([1.0], [1.0, 2.0], [2.0, 4.0], [4.0, 8.0]):
        with some:
            pass
        assert some.network_s == known


def test_drawing_takes_its_share_of_the_time() -> None:
    some = pace(share=0.75)
    some.network_s = [0.5]  # of the first step, learning is not known yet
    assert some.next(0, 0.1) == (pytest.approx(1.5 * 3), 2**31)
    some.network_s = [0.5, 1.0]
    assert some.next(1, 0.1) == (pytest.approx(1.5 * 3), 2**31)
    some.network_s = [0.5, 0.5]
    assert some.next(1, 0.1) == (pytest.approx(1.0 * 3), 2**31)


@pytest.mark.parametrize(("draw_s", "share"), [(0.005, 0.5), (0.0049, 0.9)])
def test_where_learning_is_dear_draws_get_most_of_the_time(draw_s: float, share: float) -> None:
    some = pace(share=0.5)
    some.network_s = [0.5, 0.5]
    assert some.next(3, draw_s)[0] == pytest.approx(share / (1 - share))
    steps = pace(share=0.5, steps=1_000)  # with a number of steps, these are wanted
    steps.network_s = [0.5, 0.5]
    assert steps.next(3, draw_s)[0] == pytest.approx(1.0)
    more = pace(share=0.95)
    more.network_s = [0.5, 0.5]
    assert more.next(3, draw_s)[0] == pytest.approx(0.95 / 0.05)


@pytest.mark.parametrize(("left", "seconds"), [(3.0, 1.0), (2.9, 2.9)])
def test_what_would_be_left_for_no_further_pass_is_used_up(left: float, seconds: float) -> None:
    some = pace(share=0.5, left=left)
    some.network_s = [0.5, 0.5]
    assert some.next(3, 1.0)[0] == pytest.approx(seconds)


def test_steps_share_out_the_time_that_is_left() -> None:
    some = pace(share=0.5, left=100.0, steps=10)
    some.network_s = [0.5, 0.5]
    assert some.next(0, 1.0)[0] == pytest.approx(9.0)  # a tenth, less the passes
    assert some.next(5, 1.0)[0] == pytest.approx(19.0)


def test_how_far_cooling_has_come() -> None:
    by_steps = pace(steps=8)
    assert [by_steps.share(step) for step in (0, 4, 8)] == [0.0, 0.5, 1.0]
    clocked = pace(progress=0.2)
    clocked.search.progress = 0.6  # type: ignore[misc]
    assert clocked.share(3) == pytest.approx(0.5)
    counted = pace(counts=True, simulations=100)
    found = []
    for used in (0, 512, 1_023, 1_024, 1_024 + 768, 1_024 + 1_536):
        counted.search.simulations = 100 + used  # type: ignore[misc]
        found.append(counted.share(0))
    assert found == pytest.approx([0.0, 0.5, 1_023 / 1_024, 0.0, 0.5, 0.0])
    assert by_steps.temperature(0) == pytest.approx(0.1)
    assert by_steps.temperature(8) == pytest.approx(0.1 * chains.COLD)
