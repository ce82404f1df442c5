"""Heaps of what waits and of what ends, beside Python's own; where they lie for a placement."""

from __future__ import annotations

import heapq
from collections import Counter
from dataclasses import replace
from itertools import accumulate

import numpy as np
import pytest

from loadmaster.plans import Plan
from loadmaster.problem import Problem
from loadmaster.simulator import heaps, simulate, state
from tests.problems import ALL


@pytest.mark.parametrize("start", [0, 5])
def test_keys_come_off_lowest_first_and_nothing_beside_the_heap_is_touched(start: int) -> None:
    rng, room = np.random.default_rng(start), 24
    heap = np.full(start + room + 3, -7, np.int64)
    wanted = list[int]()
    for turn in range(400):
        if len(wanted) < room and (not wanted or rng.random() < (0.7 if turn < 200 else 0.4)):
            key = int(rng.integers(0, 40)) << 32 | turn
            heaps.push(heap, start, len(wanted), key)
            heapq.heappush(wanted, key)
        else:
            assert heaps.pop(heap, start, len(wanted) - 1) == heapq.heappop(wanted)
        assert sorted(heap[start : start + len(wanted)].tolist()) == sorted(wanted)
        assert (heap[:start] == -7).all() and (heap[start + room :] == -7).all()


def test_events_come_in_the_order_of_their_ends() -> None:
    rng, room = np.random.default_rng(3), 20
    event_ns, event_at = np.full(room + 2, -7, np.int64), np.full(room + 2, -7, np.int32)
    open_: Counter[tuple[int, int]] = Counter()
    for turn in range(400):
        count = open_.total()
        if count < room and (not count or rng.random() < (0.7 if turn < 200 else 0.4)):
            end = int(rng.integers(0, 30))
            heaps.push_event(event_ns, event_at, count, end, turn)
            open_[end, turn] += 1
        else:
            soonest = int(event_ns[0])
            assert soonest == min(end for end, _ in open_)
            open_[soonest, int(heaps.pop_event(event_ns, event_at, count - 1))] -= 1
            open_ = +open_
        left = open_.total()
        assert Counter(zip(event_ns[:left].tolist(), event_at[:left].tolist(), strict=True)) == open_
        assert (event_ns[room:] == -7).all() and (event_at[room:] == -7).all()


def test_of_what_ends_at_once_none_goes_past_another() -> None:
    """The first stays on top while others come, and the last takes its place."""
    event_ns, event_at = np.zeros(4, np.int64), np.zeros(4, np.int32)
    for at in range(4):
        heaps.push_event(event_ns, event_at, at, 9, at)
    assert [int(heaps.pop_event(event_ns, event_at, left)) for left in (3, 2, 1, 0)] == [0, 3, 2, 1]


def starts_by_hand(problem: Problem, device: np.ndarray) -> list[int]:
    """Room for the ops of each device, then for the sends of each channel, each tensor once for a destination."""
    graph, channel = problem.graph, problem.cluster.channel
    waiting = Counter(device.tolist())
    sends = set()
    for op in range(graph.num_ops):
        for tensor in graph.reads[graph.read_start[op] : graph.read_start[op + 1]].tolist():
            maker = problem.updater[tensor] if problem.resident[tensor] else graph.producer[tensor]
            if maker >= 0 and device[maker] != device[op]:
                sends.add((tensor, int(device[maker]), int(device[op])))
    waiting.update(problem.num_devices + int(channel[home, there]) for _, home, there in sends)
    resources = problem.num_devices + int(channel.max()) + 2
    return [0, *accumulate(waiting[at] for at in range(resources - 1))]


@pytest.mark.parametrize("name", ["unlike", "tight", "tasks", "odd", "zero", "hosted"])
def test_heaps_that_lie_close_have_room_for_what_waits_and_change_nothing(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    problem = ALL[name]()
    rng = np.random.default_rng(1)
    chosen = np.array([rng.choice(np.flatnonzero(able)) for able in problem.able])
    device = chosen[problem.leader]
    plan = Plan.of(problem, device)
    wide, line = state.layout_of(problem), simulate(problem, plan)
    monkeypatch.setattr(state, "MOST_HEAPS", wide.heap_entries)
    assert not state.layout_of(problem).packed
    monkeypatch.setattr(state, "MOST_HEAPS", wide.heap_entries - 1)
    close = state.layout_of(problem)
    assert close.packed and not wide.packed
    scratch = state.make_run_scratch(close, False)
    heaps.pack_heaps(close, device.astype(np.int32), scratch)
    assert scratch.heap_start.tolist() == starts_by_hand(problem, device)
    assert len(scratch.heap) == problem.num_ops + len(problem.dispatch_ns) + close.most_sends
    again = replace(problem)  # of which nothing is known yet
    for one, other in zip(vars(line).values(), vars(simulate(again, plan)).values(), strict=True):
        np.testing.assert_array_equal(one, other)
