"""What there is time for, by a clock that is set by hand."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from loadmaster import price
from loadmaster.optimizers.multilevel import multilevel
from loadmaster.optimizers.multilevel.multilevel import TimeLeft
from loadmaster.search import Budget, Search
from tests.graphs.tiny import diamond, pair


class Clock:
    """Seconds that pass only when they are told to."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, module: Any) -> None:
        self.now = 100.0
        monkeypatch.setattr(module, "time", SimpleNamespace(perf_counter=lambda: self.now))


def search_with(seconds_left: float, *, counts: bool = False) -> Any:
    """Of 4 ops that read 4 tensors."""
    problem = price(diamond(), pair())
    return SimpleNamespace(
        problem=problem, seconds_left=seconds_left, counts_simulations=counts, spent=False, simulations_left=3
    )


def test_simulations_say_how_fast_the_machine_is(monkeypatch: pytest.MonkeyPatch) -> None:
    clock, search = Clock(monkeypatch, multilevel), search_with(1.0)
    left = TimeLeft(search)
    assert left.run_s == pytest.approx(8 * 200e-9) and left.reads == 8 and left.devices == 2

    def scoring(seconds: float) -> None:
        def score(_: Any) -> None:
            clock.now += seconds

        search.score = score
        left.score(None)  # type: ignore[arg-type]

    scoring(1e-7)
    assert left.run_s == pytest.approx(8 * 50e-9), "not believed to be more than four times as fast"
    scoring(3e-6)
    assert left.run_s == pytest.approx(3e-6)
    scoring(1e-6)
    assert left.run_s == pytest.approx(3e-6), "the slowest so far"


def test_what_would_be_done_in_time_is_begun() -> None:
    """8 ops and reads on 2 devices at 100 ns each: 1.6 us; 1.2 times that, and 12 simulations of 1.6 us."""
    need = 1.2 * 1.6e-6 + 12 * 1.6e-6
    for left, allowed in ((need * 1.001, True), (need * 0.999, False)):
        assert TimeLeft(search_with(left)).allows(100.0) == allowed
    slow = TimeLeft(search_with(2 * need * 1.001))
    slow.run_s *= 2
    assert slow.allows(100.0)
    slow.search.seconds_left = 2 * need * 0.999
    assert not slow.allows(100.0)
    ended = search_with(1.0)
    ended.spent = True
    assert not TimeLeft(ended).allows(100.0)
    counted = search_with(0.0, counts=True)
    assert TimeLeft(counted).allows(1e9)
    counted.simulations_left = 0
    assert not TimeLeft(counted).allows(1e-9)


def test_the_end_takes_twelve_simulations() -> None:
    left = TimeLeft(search_with(1.0))
    left.run_s = 0.01
    assert left.share_before_the_end() == pytest.approx(1 - 0.12)
    left.search.seconds_left = 0.05
    assert left.share_before_the_end() == 0
    assert TimeLeft(search_with(0.0, counts=True)).share_before_the_end() == 1


class Never:
    """A clock that allows nothing, and remembers what was asked."""

    def __init__(self) -> None:
        self.asked = list[float]()

    def allows(self, each_ns: float) -> bool:
        self.asked.append(each_ns)
        return False


@pytest.mark.parametrize(
    ("memory", "budget", "asked"),
    [
        (2**30, Budget(None, 9), [200.0, 160.0, 160.0, 2_000.0, 570.0, 570.0, 570.0]),
        (2**30, Budget(60.0), [200.0, 160.0, 160.0, 2_000.0, 570.0]),
        (2 * 198, Budget(60.0), [200.0, 160.0, 160.0, 2_000.0, 570.0]),
        (2 * 198 - 1, Budget(60.0), [200.0, 160.0, 160.0, 160.0, 2_000.0, 570.0]),
    ],
)
def test_what_each_plan_takes_for_an_op_on_two_devices(memory: int, budget: Budget, asked: list[float]) -> None:
    """An expert's two runs of 200 ns on all devices, lists of 60 and a run, one more where memory is less than four
    times all tensors, 198 bytes; 20 runs of a coarse problem; rolling, three times 190."""
    problem = price(diamond(), pair(memory))
    assert problem.graph.nbytes.sum() == 198
    clock: Any = Never()
    plans = list(multilevel.Multilevel()._plans(Search(problem, budget), clock))
    assert len(plans) == 1 and clock.asked == pytest.approx(asked)
