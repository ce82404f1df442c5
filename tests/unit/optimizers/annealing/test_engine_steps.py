"""Steps of the loop of annealing as plain Python, each by itself, with parts that are told."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from loadmaster.optimizers.annealing import engine
from loadmaster.optimizers.annealing.state import (
    IDLE,
    KINDS,
    LOOK_AT,
    RAN,
    ROOMY,
    WAITED,
)
from tests.unit.optimizers.annealing.told import Draws, copied, plain


def test_cooling_of_one_simulation_ends_cold() -> None:
    habits = engine.Habits(np.ones(KINDS), 0.5, 0.5, 0.01, 0.0001, 7, 1)
    told = [float(engine.temperature(habits, ran)) for ran in (7, 8, 9)]
    assert told == pytest.approx([0.01, 0.0001, 0.0001])
    assert engine.temperature(engine.Habits(np.ones(KINDS), 0.5, 0.5, 0.0, 0.1, 7, 1), 8) == 0.0


@pytest.mark.parametrize(
    ("limits", "full", "device"),
    [([10, 20, 30], [0, 15, 19], 2), ([10, 20, 30], [0, 9, 25], 1), ([10, 10], [3, 3], 0), ([5, 5], [9, 6], 1)],
)
def test_the_roomiest_device_has_most_memory_left(limits: list[int], full: list[int], device: int) -> None:
    found = plain(engine._roomiest)(SimpleNamespace(limits=np.array(limits)), SimpleNamespace(full=np.array(full)))
    assert found == device


@pytest.mark.parametrize(
    ("full", "draws", "op"),
    [
        ([6, 5], [], 0),  # it is on one that is too full
        ([5, 6], [1], 1),
        ([5, 6], [0, 2], 2),
        ([5, 5], [1] * engine.LOOKS, 0),  # as full as it may be
    ],
)
def test_an_op_on_a_device_that_is_too_full(
    full: list[int], draws: list[int], op: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    told = Draws(monkeypatch, engine, *draws)
    chain = SimpleNamespace(place=np.array([0, 1, 1]))
    terrain, scratch = SimpleNamespace(limits=np.array([5, 5])), SimpleNamespace(full=np.array(full))
    assert plain(engine._crowded)(terrain, chain, scratch, 0, None) == op and not told.unused


def test_ops_of_kernels_in_the_order_of_dispatch() -> None:
    """Kernels 0 (ops 0, 1 and 4), 2 (2 and 3) and 5; the second runs first."""
    turn = np.array([1, -1, 0, -1, -1, 2])
    scratch = SimpleNamespace(
        record=SimpleNamespace(turn=turn), turns=np.empty(6, int), turn_of=np.empty(6, int), old_tail=np.full(6, 77)
    )
    plain(engine._turns_of_members)(np.array([0, 0, 2, 2, 0, 5]), scratch)
    assert scratch.turns.tolist() == [2, 3, 0, 1, 4, 5] and scratch.turn_of.tolist() == [2, 3, 0, 1, 4, 5]


# What is kept


class Judged:
    """A chain of two devices with 100 bytes each, and runs that are told: with memory, and (`quick`) without."""

    def __init__(
        self,
        monkeypatch: pytest.MonkeyPatch,
        now: tuple[int, int],
        found: tuple[int, int],
        slack: float = 0.0,
        best: tuple[int, int] | None = None,
        quick: int | None = None,
        always_fits: bool = False,
        ample: bool = False,
    ) -> None:
        self.limits, self.timed = list[Any](), list[int]()
        over, value = found

        def run(
            layout: Any, place: Any, rank: Any, sends: Any, running: Any, most_ns: Any, most: Any, peak: Any, *_: Any
        ) -> int:
            self.limits.append((int(most_ns), int(most)))
            peak[:] = 100, 100 + over
            return value

        def step_time(layout: Any, place: Any, rank: Any, running: Any, most_ns: Any) -> int:
            assert quick is not None
            self.timed.append(int(most_ns))
            running.ahead[:] = 0  # all is started
            return quick

        column, counts = np.arange(3), np.zeros(5, np.int64)
        counts[ROOMY] = ample
        score = np.array([*now, *(now if best is None else best)])
        zeros = {
            name: np.zeros(3, np.int64)
            for name in ("best_place", "best_rank", "best_priority", "best_kernel", "best_sequence")
        }
        self.chain = SimpleNamespace(
            score=score,
            counts=counts,
            place=column,
            rank=column,
            priority=column,
            kernel=column,
            sequence=column,
            **zeros,
        )
        running = SimpleNamespace(ahead=np.zeros(2, np.int64), worked=None)
        scratch = SimpleNamespace(
            load=np.array([3, 4]),
            running=running,
            peak=np.zeros(2, np.int64),
            no_sends=None,
            empty=None,
            full=np.zeros(2, np.int64),
        )
        goal = SimpleNamespace(step_price=1)
        terrain = SimpleNamespace(
            limits=np.array([100, 100]), goal=goal, quick=quick is not None, always_fits=always_fits
        )
        monkeypatch.setattr(engine, "run", run)
        monkeypatch.setattr(engine, "step_time", step_time)
        monkeypatch.setattr(engine, "_run", plain(engine._run))
        monkeypatch.setattr(engine, "copy", copied)
        monkeypatch.setattr(engine, "_remember", plain(engine._remember))
        monkeypatch.setattr(engine, "stops_at", lambda goal, bar: (int(bar), 1_000))
        monkeypatch.setattr(engine, "value_of", lambda goal, time, peak, worked: time)
        self.keep, self.gain = plain(engine._judge)(None, terrain, self.chain, scratch, None, slack)
        self.ahead, self.full = running.ahead.tolist(), scratch.full.tolist()


@pytest.mark.parametrize(
    ("now", "found", "slack", "keep", "gain"),
    [
        ((0, 100), (0, 100), 0.0, True, 0.0),
        ((0, 100), (0, 101), 0.0, False, 0.0),
        ((0, 100), (0, 101), 0.01, True, 0.0),
        ((0, 100), (0, 102), 0.01, False, 0.0),
        ((0, 100), (0, 80), 0.0, True, 0.2),
        ((0, 100), (1, 50), 0.5, False, 0.0),  # it fits, and must go on doing so
        ((10, 100), (5, 999), 0.0, True, 0.5),
        ((10, 100), (10, 100), 0.0, True, 0.0),
        ((10, 100), (10, 90), 0.0, True, 0.1),
        ((10, 100), (10, 101), 0.0, False, 0.0),
        ((10, 100), (11, 50), 0.0, False, 0.0),
        ((10, 100), (11, 999), 0.1, True, 0.0),
        ((10, 100), (12, 50), 0.1, False, 0.0),
        ((10, 100), (0, 999), 0.0, True, 1.0),
        ((1, 100), (0, 999), 0.0, True, 1.0),
    ],
)
def test_what_is_kept_and_what_it_gains(
    now: tuple[int, int], found: tuple[int, int], slack: float, keep: bool, gain: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    told = Judged(monkeypatch, now, found, slack)
    assert bool(told.keep) is keep and told.gain == pytest.approx(gain) and told.ahead == [3, 4]
    assert told.chain.score[:2].tolist() == list(found if keep else now)
    assert told.full == ([100, 100 + found[0]] if keep else [0, 0])
    limit = (int(now[1] * (1 + slack)), 1_000) if now[0] == 0 else (engine.FOREVER, engine.FOREVER)
    assert told.limits == [limit], "no longer than may be kept, where it fits"


def test_a_run_that_was_stopped_is_not_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    told = Judged(monkeypatch, (0, 100), (0, -1))
    assert not told.keep and told.gain == 0.0 and told.chain.score.tolist() == [0, 100, 0, 100]


@pytest.mark.parametrize(
    ("found", "best", "better"),
    [
        ((0, 99), (0, 100), True),
        ((0, 100), (0, 100), False),
        ((0, 100), (1, 5), True),
        ((1, 5), (0, 100), False),
        ((1, 99), (1, 100), True),
        ((1, 99), (1, 99), False),
    ],
)
def test_the_best_that_was_seen_is_remembered(
    found: tuple[int, int], best: tuple[int, int], better: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    told = Judged(monkeypatch, (2, 1_000), found, best=best)
    assert told.keep and told.chain.score[2:].tolist() == list(found if better else best)
    for name in ("place", "rank", "priority", "kernel", "sequence"):
        assert getattr(told.chain, f"best_{name}").tolist() == ([0, 1, 2] if better else [0, 0, 0])


@pytest.mark.parametrize(
    ("now", "quick", "settings", "ran"),
    [
        ((0, 100), -1, {}, False),  # too long, whatever it holds
        ((0, 100), 90, {}, True),
        ((0, 100), 90, {"always_fits": True}, False),  # all tensors fit anywhere
        ((0, 100), 90, {"ample": True}, True),  # the best so far
        ((0, 100), 90, {"ample": True, "best": (0, 91)}, True),
        ((0, 100), 90, {"ample": True, "best": (0, 90)}, False),  # much was left, and it is not the best
        ((0, 100), 90, {"ample": True, "best": (1, 80)}, True),
        ((7, 100), 90, {"ample": True, "always_fits": True}, True),  # memory is short: what it holds comes first
    ],
)
def test_what_devices_hold_is_looked_at_where_it_may_matter(
    now: tuple[int, int], quick: int, settings: dict[str, Any], ran: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    told = Judged(monkeypatch, now, (0, 90), quick=quick, **settings)
    assert bool(told.limits) is ran and told.timed == ([] if now[0] else [100])
    assert bool(told.keep) is (quick >= 0)
    if ran:
        assert told.ahead == [3, 4], "the second run begins anew, too"


def test_without_ranks_there_is_no_quick_run(monkeypatch: pytest.MonkeyPatch) -> None:
    chain = SimpleNamespace(rank=np.zeros(0), place=None, score=np.array([0, 9, 0, 9]))
    scratch = SimpleNamespace(running=SimpleNamespace(ahead=np.zeros(0)), load=[], no_sends=None, peak=None, empty=None)
    monkeypatch.setattr(engine, "run", lambda *given: 5)
    monkeypatch.setattr(engine, "copy", copied)
    assert plain(engine._run)(None, SimpleNamespace(quick=True), chain, scratch, None, 9, 9) == 5


@pytest.mark.parametrize(
    ("peak", "over", "now", "roomy"),
    [
        ((80, 80), 0, 0, 1),
        ((81, 10), 0, 0, 0),
        ((10, 81), 0, 0, 0),
        ((103, 104), 0, 7, 0),  # too large, and nobody had looked
        ((103, 104), 5, 5, 0),  # that was known, as it was when it was judged
    ],
)
def test_what_a_look_says_of_memory(peak: tuple[int, int], over: int, now: int, roomy: int) -> None:
    scratch = SimpleNamespace(peak=np.array(peak), full=np.zeros(2, np.int64))
    chain = SimpleNamespace(counts=np.full(5, 9), score=np.array([over, 50, 0, 40]))
    plain(engine._note_memory)(SimpleNamespace(limits=np.array([100, 100])), chain, scratch)
    assert scratch.full.tolist() == list(peak) and chain.counts[ROOMY] == roomy
    assert chain.score.tolist() == [now, 50, 0, 40]


# The walk


class Walked:
    """A walk whose moves and judgements are told; what is undone, and how often it looks up what the step waits for."""

    def __init__(
        self,
        monkeypatch: pytest.MonkeyPatch,
        moves: list[tuple[int, int, bool]],
        simulations: int,
        *,
        merges: bool = True,
        keep: bool = True,
        gain: float = 0.25,
        over: int = 0,
        evict: bool = False,
        idle: int = 0,
    ) -> None:
        self.moves, self.undone, self.looked, self.merged, self.evicting = 0, 0, 0, 0, list[bool]()
        counts = np.zeros(5, np.int64)
        counts[LOOK_AT], counts[IDLE] = 1_000, idle
        self.chain: Any = SimpleNamespace(
            counts=counts,
            random=None,
            score=np.array([over, 5, over, 5]),
            place=np.zeros(4),
            spent=np.zeros(99),
            gained=np.zeros(99),
        )
        scratch: Any = SimpleNamespace(arms=None, total=[0], running=SimpleNamespace(tally=[0, 2]))

        def move(*given: Any) -> Any:
            self.evicting.append(bool(given[7]))
            moved, pairs, ranked = moves[self.moves % len(moves)]
            self.moves += 1
            return 0, 0, 0, moved, 0, pairs, ranked

        def merge(*_: Any) -> bool:
            self.merged += 1
            return merges

        def undo(*_: Any) -> None:
            self.undone += 1

        def look(layout: Any, terrain: Any, chain: Any, *_: Any) -> None:
            self.looked += 1
            chain.counts[LOOK_AT] += 10

        monkeypatch.setattr(engine, "measure", lambda *_: None)
        monkeypatch.setattr(engine, "pick", lambda *_: 3)
        monkeypatch.setattr(engine, "_move", move)
        monkeypatch.setattr(engine.fusion, "merge_anew", merge)
        monkeypatch.setattr(engine, "_undo", undo)
        monkeypatch.setattr(engine, "_look", look)
        monkeypatch.setattr(engine, "slack_of", lambda *_: 0.0)
        monkeypatch.setattr(engine, "temperature", lambda *_: 0.0)
        monkeypatch.setattr(engine, "_judge", lambda *_: (keep, gain))
        monkeypatch.setattr(engine, "write_down", lambda *_: None)
        self.given = (None, None, self.chain, scratch, None, None, SimpleNamespace(evict=evict))
        self.go_on(simulations)

    def go_on(self, simulations: int) -> None:
        plain(engine.walk)(*self.given, simulations, None)


MOVED, PAIRED, RANKED, NOTHING = (1, 0, False), (0, 1, False), (0, 0, True), (0, 0, False)


@pytest.mark.parametrize("what", [MOVED, PAIRED, RANKED])
def test_a_move_that_changes_something_is_a_simulation(
    what: tuple[int, int, bool], monkeypatch: pytest.MonkeyPatch
) -> None:
    told = Walked(monkeypatch, [what], 5)
    assert told.moves == 5 and told.undone == 0 and told.chain.counts[RAN] == 5
    assert told.chain.gained[3] == 5 and told.chain.spent[3] == pytest.approx(5 * 2 / 4)
    back = Walked(monkeypatch, [what], 5, keep=False, gain=0.0)
    assert back.undone == 5 and back.chain.gained[3] == 0


def test_priorities_that_give_the_same_kernels_change_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    told = Walked(monkeypatch, [PAIRED], 1, merges=False)
    assert told.moves == told.undone == engine.MOST_IDLE
    for what in (MOVED, RANKED, (1, 2, False), (0, 2, True)):
        assert Walked(monkeypatch, [what], 3, merges=False).moves == 3


def test_so_many_draws_in_a_row_that_change_nothing_count_as_a_simulation(monkeypatch: pytest.MonkeyPatch) -> None:
    told = Walked(monkeypatch, [NOTHING], 2)
    assert told.moves == 2 * engine.MOST_IDLE and told.undone == 0 and told.merged == 0
    assert told.chain.counts[IDLE] == 0
    between = Walked(monkeypatch, [*[NOTHING] * (engine.MOST_IDLE - 1), MOVED], 3)
    assert between.moves == 3 * engine.MOST_IDLE and between.chain.counts[IDLE] == 0, "in a row"
    late = Walked(monkeypatch, [NOTHING], 1, idle=engine.MOST_IDLE - 2)
    assert late.moves == 2, "what it has counted before goes on"


def test_it_looks_up_what_the_step_waits_for_when_that_is_due(monkeypatch: pytest.MonkeyPatch) -> None:
    told = Walked(monkeypatch, [MOVED], 5)
    told.chain.counts[LOOK_AT] = 7
    told.go_on(2)
    assert told.looked == 0
    told.go_on(1)
    assert told.looked == 1


@pytest.mark.parametrize(("over", "evict", "evicting"), [(1, True, True), (0, True, False), (1, False, False)])
def test_full_devices_are_emptied_where_memory_is_short(
    over: int, evict: bool, evicting: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert Walked(monkeypatch, [MOVED], 2, over=over, evict=evict).evicting == [evicting] * 2


@pytest.mark.parametrize(("aim", "price", "aims"), [(0.5, 1, True), (0.0, 1, False), (0.5, 0, False)])
def test_a_look_is_a_simulation_where_moves_are_aimed(
    aim: float, price: int, aims: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    counts = np.array([40, 40, 0, 0])
    chain = SimpleNamespace(counts=counts, spent=None, gained=None)
    asked = list[Any]()
    monkeypatch.setattr(engine.choice, "fade", lambda *given: asked.append(given[2]))
    monkeypatch.setattr(engine.choice, "choose", lambda *given: asked.append(given[2:4]))
    monkeypatch.setattr(engine, "_critical", lambda *_: 17)
    terrain = SimpleNamespace(goal=SimpleNamespace(step_price=price))
    habits = SimpleNamespace(aim=aim, weights=None, follow=0.5)
    plain(engine._look)(None, terrain, chain, SimpleNamespace(total=[0], arms=None), None, habits)
    assert asked == [engine.REFRESH, (aim if aims else 0.0, False)]
    assert counts[LOOK_AT] == 40 + engine.REFRESH and counts[RAN] == 40 + aims and counts[WAITED] == 17 * aims
