"""Tails and what a step waits for, of runs that are drawn by hand."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from loadmaster.optimizers.annealing import critical
from loadmaster.simulator.state import MADE
from tests.unit.optimizers.annealing.told import Draws, plain

LINK = {"send_classes": 3, "send_class": np.array([0, 1, 2, 0])}  # from the first device to the second, and back


def tails(
    place: list[int], top: int = 3, rest: tuple[int, ...] = (), known: tuple[int, ...] = (0, 0, 0, 0)
) -> list[int]:
    """Ops of 10, 20, 30 and 40 ns, on the second device one more. What op 0 makes 1 and 2 read: 7 ns to the second
    device and 9 back. Op 3 comes after op 1."""
    layout = SimpleNamespace(
        devices=2,
        op_ns=(10 * np.arange(1, 5)[:, None] + np.arange(2)).reshape(-1),
        send_ns=np.array([0, 7, 9]),
        make_start=np.array([0, 1, 1, 1, 1]),
        makes=np.array([0]),
        reader_start=np.array([0, 2]),
        readers=np.array([1, 2]),
        next_start=np.array([0, 0, 1, 1, 1]),
        nexts=np.array([3]),
        rest=np.array(rest, np.int64),
        **LINK,
    )
    tail = np.array(known)
    plain(critical.measure_tails)(layout, np.array(place), top, tail)
    return tail.tolist()  # type: ignore[no-any-return]


def test_a_tail_is_the_longest_way_to_the_end_with_what_is_sent() -> None:
    assert tails([0, 0, 0, 0]) == [70, 60, 30, 40]
    assert tails([0, 0, 1, 0]) == [70, 60, 31, 40]
    assert tails([0, 1, 1, 1]) == [10 + 7 + 62, 62, 31, 41]
    assert tails([1, 0, 1, 0]) == [11 + 9 + 60, 60, 31, 40]
    assert tails([0, 0, 1, 0], rest=(0, 0, 100, 0)) == [10 + 7 + 131, 60, 131, 40]
    assert tails([0, 0, 0, 0], rest=(900, 0, 0, 5)) == [910, 65, 30, 45]
    assert tails([0, 0, 0, 0], top=0, rest=(900,)) == [910, 0, 0, 0]


def test_tails_after_the_last_that_is_asked_for_stay() -> None:
    assert tails([0, 0, 0, 0], top=1, known=(0, 0, 500, 3)) == [510, 23, 500, 3]
    assert tails([0, 0, 0, 0], top=0, known=(0, 1, 2, 3)) == [12, 1, 2, 3]


@pytest.mark.parametrize(
    ("end", "rest", "last"),
    [([5, 9, 9], [], 1), ([9, 9, 5], [], 0), ([5, 9, 9], [10, 0, 1], 0), ([0, 0], [], 0), ([3, 2], [0, 2], 1)],
)
def test_the_first_after_which_the_step_ends_last(end: list[int], rest: list[int], last: int) -> None:
    assert plain(critical._ends_last)(np.array(end), np.array(rest)) == last


class Run:
    """(device, start, end, what it reads, what it comes after) of each op, which makes the tensor of its number; -1
    reads an input."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, *ops: tuple[int, int, int, list[int], list[int]]) -> None:
        monkeypatch.setattr(critical, "_ends_last", plain(critical._ends_last))
        count = len(ops)
        reads = [count if tensor < 0 else tensor for op in ops for tensor in op[3]]
        sends = np.zeros((count + 1, 3), np.int64)
        sends[:, 1], sends[:, 2] = 7, 9
        self.place = np.array([op[0] for op in ops])
        self.layout = SimpleNamespace(devices=2, send_ns=sends.reshape(-1), rest=np.zeros(0, np.int64), **LINK)
        self.terrain = SimpleNamespace(
            producer=np.array([*range(count), -1]),
            read_start=np.cumsum([0, *(len(op[3]) for op in ops)]),
            reads=np.array(reads, np.int64),
            after_start=np.cumsum([0, *(len(op[4]) for op in ops)]),
            after=np.array([other for op in ops for other in op[4]], np.int64),
        )
        start, end = np.array([op[1] for op in ops]), np.array([op[2] for op in ops])
        turn = np.empty(count, np.int64)
        turn[np.argsort(start, kind="stable")] = np.arange(count)
        self.record = SimpleNamespace(start_ns=start, end_ns=end, turn=turn)
        self.scratch = SimpleNamespace(
            record=self.record,
            turns=np.full(count, -7),
            critical=np.full(count, -7),
            queued=np.zeros(count, bool),
            old_tail=np.zeros(count, np.int64),
            peak=np.zeros(2, np.int64),
        )

    def critical(self) -> tuple[list[int], list[bool]]:
        """(ops, whether each waited for its device)."""
        count = plain(critical.critical_ops)(self.layout, self.terrain, self.place, self.scratch)
        return self.scratch.critical[:count].tolist(), self.scratch.queued[:count].tolist()


def crossing(monkeypatch: pytest.MonkeyPatch) -> Run:
    """Op 2 waits for what op 0 sends, op 3 for its device, and op 4 for what op 3 sends back."""
    return Run(
        monkeypatch,
        (0, 0, 10, [-1], []),
        (0, 10, 35, [0], []),
        (1, 17, 25, [0], []),
        (1, 25, 31, [2], []),
        (0, 40, 50, [1, 3], []),
    )


def test_a_chain_leads_back_from_the_end_to_the_first_op(monkeypatch: pytest.MonkeyPatch) -> None:
    run = crossing(monkeypatch)
    assert run.critical() == ([4, 3, 2, 0], [False, True, False, False])
    assert run.scratch.turns.tolist() == [0, 1, 2, 3, 4]


def test_of_makers_the_last_and_of_those_that_come_at_once_the_first(monkeypatch: pytest.MonkeyPatch) -> None:
    late = ((1, 0, 4, [], []), (0, 0, 8, [], []), (0, 13, 15, [1, 0], []))
    assert Run(monkeypatch, *late).critical()[0] == [2, 0], "4 and 9 for the way are later than 8"
    there = ((0, 0, 4, [], []), (1, 0, 8, [], []), (1, 11, 15, [1, 0], []))
    assert Run(monkeypatch, *there).critical()[0] == [2, 0], "and so are 4 and 7"
    assert kernels(monkeypatch, Run(monkeypatch, *there), [0, 1, 2]) == [True, False, True]
    even = ((1, 0, 4, [], []), (0, 0, 13, [], []), (1, 20, 22, [1, 0], []))
    assert Run(monkeypatch, *even).critical()[0] == [2, 1]
    both = ((0, 0, 6, [], []), (1, 0, 4, [], []), (0, 13, 15, [0, 1], []))
    assert Run(monkeypatch, *both).critical()[0] == [2, 1]
    tie = ((0, 0, 3, [], []), (0, 3, 6, [], []), (1, 13, 15, [1, 0], []))
    assert Run(monkeypatch, *tie).critical()[0] == [2, 1, 0]


def test_what_an_op_comes_after_counts_where_it_ended_later(monkeypatch: pytest.MonkeyPatch) -> None:
    for end, cause in ((17, 0), (18, 1)):
        ops = ((0, 0, 10, [], []), (0, 10, end, [], []), (1, end, 30, [0], [1]))
        chain, queued = Run(monkeypatch, *ops).critical()
        assert chain == ([2, 0] if cause == 0 else [2, 1, 0]) and not queued[0]
    alone = Run(monkeypatch, (0, 0, 10, [], []), (1, 10, 12, [], [0]))
    assert alone.critical()[0] == [1, 0], "the first op, though nothing is read"


class Queue:
    """Four ops in a row on one device, 10 ns each; the last reads what op 0 makes and is ready when that ends."""

    def __init__(
        self, monkeypatch: pytest.MonkeyPatch, reads: list[int], after: list[int], maker: int = 0, here: int = 0
    ) -> None:
        self.run = Run(
            monkeypatch,
            (maker, 0, 10, [], []),
            (here, 10, 20, [], []),
            (here, 20, 30, [], []),
            (here, 30, 40, reads, after),
        )

    def overtaking(self, monkeypatch: pytest.MonkeyPatch, queued: str, *draws: int) -> tuple[int, int]:
        told = Draws(monkeypatch, critical, *draws)
        flags = np.array([flag == "q" for flag in queued])
        found = np.array([3, 2, 1, 0])
        given = (self.run.layout, self.run.terrain, self.run.place, self.run.record)
        op, other = plain(critical.overtaking)(*given, found, flags, 4, None)
        assert not told.unused
        return int(op), int(other)


def test_an_op_that_was_ready_may_overtake_what_ran_since(monkeypatch: pytest.MonkeyPatch) -> None:
    some = Queue(monkeypatch, [0], [])
    assert some.overtaking(monkeypatch, "qqq.", 0, 1) == (3, 1), "all that ran since 10"
    assert some.overtaking(monkeypatch, "qqq.", 0, 0, 0) == (3, 2)
    assert some.overtaking(monkeypatch, "qqq.", 0, 0, 1) == (3, 1)
    assert some.overtaking(monkeypatch, "qqq.", 3, 1) == (3, 1), "the next that waited, from the end on"
    assert some.overtaking(monkeypatch, "q.q.", 0, 1) == (3, 2), "as far as each waited for the one before"
    assert some.overtaking(monkeypatch, "..q.", 0, 1) == (1, 0)
    assert some.overtaking(monkeypatch, "....", 2) == (-1, -1)
    first = Queue(monkeypatch, [], [])
    assert first.overtaking(monkeypatch, "qqq.", 0, 1) == (3, 0), "it could have been the first"
    assert first.overtaking(monkeypatch, "qqq.", 1, 1) == (2, 0)


def test_it_is_ready_when_the_last_that_it_waits_for_is_there(monkeypatch: pytest.MonkeyPatch) -> None:
    assert Queue(monkeypatch, [0], [], maker=1).overtaking(monkeypatch, "qqq.", 0, 1) == (3, 2), "19, by the link"
    assert Queue(monkeypatch, [0], [], here=1).overtaking(monkeypatch, "qqq.", 0, 1) == (3, 2), "17"
    assert Queue(monkeypatch, [0], [1]).overtaking(monkeypatch, "qqq.", 0, 1) == (3, 2)
    assert Queue(monkeypatch, [], [0]).overtaking(monkeypatch, "qqq.", 0, 1) == (3, 1)
    assert Queue(monkeypatch, [0, 2], []).overtaking(monkeypatch, "qqq.", 0) == (-1, -1), "it was ready just then"
    assert Queue(monkeypatch, [-1], []).overtaking(monkeypatch, "qqq.", 0, 1) == (3, 0), "an input is there"


def kernels(monkeypatch: pytest.MonkeyPatch, run: Run, kernel: list[int], made: list[int] | None = None) -> list[bool]:
    """Of the same run: which ops stand for a kernel of the chain."""
    count = len(kernel)
    origin = np.full(count + 1, MADE + 1)
    origin[list(range(count)) if made is None else made] = MADE
    shown: Any = SimpleNamespace(
        **vars(run.layout),
        read_start=run.terrain.read_start,
        reads=run.terrain.reads,
        maker=np.array([*range(count), 0]),
        origin=origin,
    )
    plain(critical.critical_kernels)(shown, run.place, np.array(kernel), run.scratch)
    return run.scratch.queued.tolist()  # type: ignore[no-any-return]


def test_kernels_of_a_chain(monkeypatch: pytest.MonkeyPatch) -> None:
    run = crossing(monkeypatch)
    assert kernels(monkeypatch, run, [0, 1, 2, 3, 4]) == [True, False, True, True, True]
    assert kernels(monkeypatch, run, [0, 1, 2, 3, 4], made=[0, 1, 2]) == [True, True, False, False, True], (
        "as if it had been there"
    )


def test_ops_that_stand_for_no_kernel_run_nowhere(monkeypatch: pytest.MonkeyPatch) -> None:
    """Ops 0 and 1 are one kernel, which ends at 10; what it makes is at 17 where op 2 is, and then op 3 waits."""
    run = Run(monkeypatch, (0, 0, 10, [], []), (0, 0, -1, [], []), (1, 17, 25, [0], []), (1, 25, 31, [2], []))
    run.record.turn = np.array([0, -1, 1, 2])
    assert kernels(monkeypatch, run, [0, 0, 2, 3]) == [True, False, True, True]
