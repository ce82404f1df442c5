"""Stages of the bound on the step time: how often each runs, memory's price against a linear program, bundles of ops
and ways between ops by hand."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from scipy.optimize import linprog

from loadmaster import GraphBuilder, price
from loadmaster.graph.columns import Ints, ints
from loadmaster.problem import Problem
from loadmaster.problem.bounds import crowds, step, together, turns
from loadmaster.problem.bounds.allowed import Work
from loadmaster.problem.bounds.kinds import Kinds, kinds_of
from tests.graphs.tiny import pair
from tests.unit.problem.bounds.test_turns import crossing


def kinds(times: np.ndarray, count: list[int], memory: list[int]) -> Kinds:
    return Kinds(ints(times), ints(count), ints(memory), ints(np.zeros((0, 1))), ints(np.zeros((len(count),) * 2)))


def in_fractions(given: Kinds, held: Ints) -> float:
    """The least step if each op may be spread over kinds, within their memory."""
    ops, count = given.times.shape
    goal = np.append(np.zeros(ops * count), 1.0)
    rows, limits = np.zeros((2 * count, ops * count + 1)), np.zeros(2 * count)
    for kind in range(count):
        rows[kind, kind:-1:count] = np.maximum(given.times[:, kind], 0)
        rows[kind, -1] = -given.count[kind]
        rows[count + kind, kind:-1:count] = held
        limits[count + kind] = given.memory[kind] * given.count[kind]
    whole = np.hstack([np.kron(np.eye(ops), np.ones(count)), np.zeros((ops, 1))])
    reach = [(0.0, 0.0 if time < 0 else 1.0) for time in given.times.reshape(-1)] + [(0.0, None)]
    answer: Any = linprog(goal, rows, limits, whole, np.ones(ops), reach)
    return float(answer.fun) if answer.success else np.inf


def test_work_that_memory_sends_elsewhere(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each op is a bundle of its own here, so that the prices are the best there are."""
    rng, raised = np.random.default_rng(3), 0
    for _ in range(40):
        times = np.stack([rng.integers(10, 900, 9), rng.integers(900, 9_000, 9)], axis=1)
        times[rng.integers(0, 9), 0] = -1
        held = ints(rng.integers(0, 4_000, 9))
        given = kinds(times, [int(rng.integers(1, 3)), 2], [int(rng.integers(2_000, 9_000)), 40_000])
        monkeypatch.setattr(step, "op_residents", lambda _, held=held: held)
        monkeypatch.setattr(step, "_bundles", lambda kinds, held: (np.arange(9), 9))
        found, best = step._work_in_memory(None, given), in_fractions(given, held)  # type: ignore[arg-type]
        if held.sum() <= given.memory.min():
            assert found == 0
            continue
        assert found <= best * (1 + 1e-9) and found >= best * (1 - 1e-5) - 2
        free = kinds(times, given.count.tolist(), [10**9, 10**9])
        raised += found > 1.01 * in_fractions(free, held)
    assert raised > 10


def test_nothing_is_worked_out_where_all_fits_anywhere(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(step, "op_residents", lambda _: ints([60, 40]))
    times = np.array([[10, 50], [10, 50]])
    assert step._work_in_memory(None, kinds(times, [1, 1], [100, 400])) == 0  # type: ignore[arg-type]
    # 99 bytes: 1 part in 100 must go elsewhere, of the first op 1 / 60 at 40 more; its time here less.
    tight = step._work_in_memory(None, kinds(times, [1, 1], [99, 400]))  # type: ignore[arg-type]
    assert tight == int(in_fractions(kinds(times, [1, 1], [99, 400]), ints([60, 40])))
    assert step._work_in_memory(None, kinds(times[:, :1], [2], [40])) == 0, "one kind"  # type: ignore[arg-type]


def test_where_no_plan_fits_devices_cost_alike() -> None:
    price_of, rent = step._memory_prices(kinds(np.array([[10, 50]]), [1, 3], [5, 5]), ints([100]))
    assert price_of.tolist() == [0.25, 0.25] and rent.tolist() == [0, 0]


def test_ops_alike_are_one_bundle() -> None:
    """By the ratio of times in half powers of two, by bytes for a ns in powers of two, and by where they cannot run."""
    times = np.array([[100, 200], [1000, 2000], [100, 283], [100, 200], [100, -1], [100, 200], [100, 210], [0, 0]])
    held = ints([1000, 10_000, 1000, 2000, 1000, 0, 1000, 1000])
    bundle, size = step._bundles(kinds(times, [1, 1], [1, 1]), held)
    assert size == len(set(bundle.tolist())) == 6
    assert bundle[0] == bundle[1] == bundle[6]
    assert len({int(bundle[at]) for at in (0, 2, 3, 4, 5, 7)}) == 6
    one, two = step._bundles(kinds(np.array([[1, 700], [1, 9_000], [1, 40_000]]), [1, 1], [1, 1]), ints([5, 5, 5]))
    assert two == 2 and one[1] == one[2] != one[0], "a thousand times slower is as good as any more"
    for held_bytes, ns, same in (([1, 1], [2**20, 2**24], True), ([1, 1], [2**16, 2**24], False)):
        assert (step._bundles(kinds(np.array([ns, ns]).T, [1, 1], [1, 1]), ints(held_bytes))[1] == 1) == same
    for held_bytes, same in (([2**50, 2**52], True), ([2**47, 2**52], False)):
        assert (step._bundles(kinds(np.ones((2, 2)), [1, 1], [1, 1]), ints(held_bytes))[1] == 1) == same
    wide = np.stack([np.full(9, 2**20), 2 ** np.arange(20, 29)], axis=1)
    many = np.repeat(wide, 60, axis=0)
    held = ints(2 ** (np.arange(540) % 60).clip(0, 50))
    bundle, size = step._bundles(kinds(many, [1, 1], [1, 1]), held)
    assert size <= 400 and bundle.max() == size - 1


def several() -> Problem:
    """Two tensors from the same op to the same reader, another reader of one, and one that only waits."""
    g = GraphBuilder("several")
    small, large = g.tensor(10), g.tensor(200)
    g.op("a", "any", [], [small, large], time_ns=10)
    g.op("b", "any", [small, large], [g.tensor(1)], time_ns=10)
    g.op("c", "any", [small], [g.tensor(1)], time_ns=10, after=["b"])
    g.op("d", "any", [], [g.tensor(1)], time_ns=10, after=["a"])
    return price(g.build(), pair())


def test_of_several_tensors_the_longest_send_counts() -> None:
    """5 ns and 10 bytes a ns: 6 and 25."""
    problem = several()
    later, earlier = step._ways(problem, kinds_of(problem, False, False))
    assert [column.tolist() for column in later] == [[0, 3, 4, 4, 4], [1, 2, 3, 2], [25, 6, 0, 0]]
    assert [column.tolist() for column in earlier] == [[0, 0, 1, 3, 4], [0, 0, 1, 0], [25, 6, 0, 0]]


class Counted:
    """How often functions of a module are called."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.calls, self.patch = dict[str, int](), monkeypatch

    def watch(self, module: Any, *names: str) -> None:
        for name in names:
            own = getattr(module, name)

            def call(*given: Any, own: Any = own, name: str = name) -> Any:
                self.calls[name] = self.calls.get(name, 0) + 1
                return own(*given)

            self.patch.setattr(module, name, call)


@pytest.mark.parametrize(
    ("limits", "calls"),
    [
        ({}, {"crowd": 4, "apart": 2}),
        ({"CROWD_TURNS": 3}, {"crowd": 6, "apart": 2}),
        ({"MOST_CROWDED": 5}, {}),
        ({"MOST_CROWDED": 6}, {"crowd": 4, "apart": 2}),
        ({"SENT_TURNS": 0}, {"crowd": 4}),
        ({"SENT_EFFORT": 6 * 4 - 1}, {"crowd": 4}),
        ({"SENT_EFFORT": 6 * 4}, {"crowd": 4, "apart": 2}),
        ({"LEAST_SHARED": 7}, {"crowd": 4, "apart": 2}),
        ({"LEAST_SHARED": 6, "MOST_SHARED": 6}, {"crowd": 4, "apart": 2, "together": 1}),
        ({"LEAST_SHARED": 2, "MOST_SHARED": 5}, {"crowd": 4, "apart": 2}),
        ({"LEAST_SHARED": 2, "MOST_TOGETHER": 6}, {"crowd": 4, "apart": 2, "together": 1}),
        ({"LEAST_SHARED": 2, "MOST_TOGETHER": 5}, {"crowd": 4, "apart": 2, "turns": 1}),
    ],
)
def test_limits_say_which_stages_run(
    limits: dict[str, int], calls: dict[str, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of six ops with four ways between them; `apart` is called once more to see that it raises nothing."""
    monkeypatch.setattr(step, "LEAST_SHARED", 64)
    for name, limit in limits.items():
        monkeypatch.setattr(step, name, limit)
    counted = Counted(monkeypatch)
    counted.watch(crowds, "crowd", "apart")
    for module, name in ((together, "together"), (turns, "turns")):
        monkeypatch.setattr(
            module, "least_step", lambda facts, span, name=name: counted.calls.update({name: 1}) or span
        )
    step.step_bound(crossing())
    assert counted.calls == calls


class Asked(Work):
    """Up once it was asked so many times."""

    def __init__(self, times: int) -> None:
        super().__init__()
        self.times = times

    def is_up(self, more_ns: float = 0.0) -> bool:
        self.times -= 1
        return self.times < 0


@pytest.mark.parametrize(
    ("asked", "calls"),
    [(0, {}), (1, {"crowd": 1}), (3, {"crowd": 3}), (4, {"crowd": 4}), (5, {"crowd": 4, "apart": 2})],
)
def test_work_is_looked_at_before_each_stage(
    asked: int, calls: dict[str, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    counted = Counted(monkeypatch)
    counted.watch(crowds, "crowd", "apart")
    step.step_bound(crossing(), allowed=Asked(asked))
    assert counted.calls == calls


@pytest.mark.parametrize(
    ("ops", "stages"),
    [(63, {"crowded"}), (64, {"crowded", "together"}), (2_000, {"crowded", "together"}), (2_001, {"crowded", "turns"}),
     (12_000, {"crowded", "turns"}), (12_001, {"turns"})],
)  # fmt: skip
def test_how_large_problems_may_be_for_each_stage(ops: int, stages: set[str], monkeypatch: pytest.MonkeyPatch) -> None:
    graph = GraphBuilder("many")
    for op in range(ops):
        graph.op(f"op{op}", "any", [], [], time_ns=1)
    seen = set[str]()

    def crowded(given: Any, head: Ints, tail: Ints) -> tuple[Ints, Ints]:
        seen.add("crowded")
        return head, tail

    monkeypatch.setattr(step, "_crowded", crowded)
    for module, name in ((together, "together"), (turns, "turns")):
        monkeypatch.setattr(module, "least_step", lambda facts, span, name=name: seen.add(name) or span)
    assert step.step_bound(price(graph.build(), pair())) == -(-ops // 2)
    assert seen == stages
