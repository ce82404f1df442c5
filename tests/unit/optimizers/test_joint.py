"""How a search for kernels and places shares out its epochs, worked out by hand; what it begins with, and in which
order, with parts that only write down what they are asked."""

from __future__ import annotations

from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from loadmaster import Budget
from loadmaster.graph.columns import ints
from loadmaster.optimizers import joint
from loadmaster.optimizers.joint import Joint, gain, share_of
from loadmaster.optimizers.starts import Scored
from loadmaster.plans import Plan
from loadmaster.search import WORST, Score, Search
from loadmaster.simulator import simulate
from tests.unit.optimizers.test_joint_epochs import relus


@pytest.mark.parametrize(
    ("fused", "moved", "share"),
    [
        (0.1, 0.3, 0.25),
        (0.2, 0.3, 0.4),
        (0.3, 0.1, 0.5),  # three quarters, and never more than a half
        (0.0, 0.3, 0.02),  # nothing, and never less than a fiftieth
        (0.02, 0.08, 0.2),
        (0.0, 0.0, 0.03),
    ],
)
def test_the_half_that_gained_more_has_more_of_the_next_epoch(fused: float, moved: float, share: float) -> None:
    assert share_of(fused, moved) == pytest.approx(share)


def test_a_gain_is_a_share_of_what_was_there_before() -> None:
    assert gain(Score(0, 200), Score(0, 150)) == pytest.approx(0.25)
    assert gain(Score(0, 200), Score(0, 200)) == 0
    assert gain(Score(0, 1), Score(0, 1)) == 0
    assert gain(Score(0, 0), Score(0, 0)) == 1, "of a step of no time"
    assert gain(Score(40, 200), Score(10, 900)) == pytest.approx(0.75), "bytes that are short, whatever the time"
    assert gain(Score(1, 200), Score(0, 900)) == 1


# What it begins with


def alone(ops: int) -> Any:
    return ints(np.arange(ops))


def two_together(ops: int) -> Any:
    return ints([0, 0, *range(2, ops)])


class Parts:
    """Parts that write down what they are asked, of which each takes a simulation."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, search: Search, kernels: list[Any]) -> None:
        self.asked, plan = list[Any](), Plan.of(search.problem, [0] * search.problem.num_ops)
        asked = self.asked

        def told(*what: Any) -> list[Scored]:
            asked.append(what)
            search.count(1)
            return [Scored(Score(0, 50), plan)]

        class Fused:
            def __init__(self, search: Search, kernel: Any) -> None:
                self.kernel = kernel.tolist()

            def first(self) -> list[Scored]:
                return told("fused", self.kernel)

        class Race:
            def __init__(self, epochs: Any, waiting: Any, first: list[Scored], fused: Any) -> None:
                asked.append(("race", [start.score.value for start in first]))

            def turns(self) -> Iterator[None]:
                yield

        monkeypatch.setattr(joint, "finalists", lambda search: kernels)
        monkeypatch.setattr(joint, "of_another", lambda search, also: [Scored(Score(0, 40), plan)] if also else [])
        monkeypatch.setattr(joint, "refused", lambda search, start: told("refused", start.score.value)[0])
        monkeypatch.setattr(joint, "plan_fused", lambda part, kernel, inner: told("planned", kernel.tolist()))
        monkeypatch.setattr(joint, "FusedStarts", Fused)
        monkeypatch.setattr(joint, "begun", lambda epochs, first: first)
        monkeypatch.setattr(joint, "placed_first", lambda search, waiting, fused: told("placed"))
        monkeypatch.setattr(joint, "JointRace", Race)

    def of(self, search: Search, also: Any = None) -> list[Any]:
        list(Joint(also=also).turns(search))
        return self.asked


@pytest.mark.parametrize(("ops", "planned"), [(64, True), (65, False)])
def test_few_kernels_are_planned_first(ops: int, planned: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    search = Search(relus(ops), Budget(None, 100))
    one, two = alone(ops), two_together(ops)
    asked = Parts(monkeypatch, search, [one, two]).of(search)
    first = [("planned", one.tolist())] if planned else []
    assert asked == [*first, ("fused", two.tolist()), ("placed",), ("race", [50, 50])]


def test_on_one_device_kernels_are_those_of_the_best_plan(monkeypatch: pytest.MonkeyPatch) -> None:
    search = Search(relus(6, "1xa100-nvlink"), Budget(None, 100))
    one, two = alone(6), two_together(6)
    asked = Parts(monkeypatch, search, [one, two]).of(search)
    assert ("fused", one.tolist()) in asked


def test_where_no_kernel_is_fused_the_first_is_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    search = Search(relus(65), Budget(None, 100))
    asked = Parts(monkeypatch, search, [alone(65)]).of(search)
    assert asked[0] == ("fused", alone(65).tolist())


@pytest.mark.parametrize(("on", "planned"), [("2xp100-pcie", 2), ("1xa100-nvlink", 1)])
def test_for_peak_memory_finalists_are_planned_first(on: str, planned: int, monkeypatch: pytest.MonkeyPatch) -> None:
    search = Search(relus(4, on, "peak-memory"), Budget(None, 100))
    search.offer(Plan.of(search.problem, [0] * 4), Score(0, 70))
    asked = Parts(monkeypatch, search, [ints([0, 0, 2, 3]), alone(4)]).of(search)
    assert asked == [*[("planned", [0, 0, 2, 3]), ("planned", [0, 1, 2, 3])][:planned], ("race", [70])]


@pytest.mark.parametrize(
    ("values", "first"),
    [
        ((100, 94, 96), [1, 0]),  # kernels that are clearly better
        ((100, 95, 96), [0, 1]),
        ((100, 98, 96), [0, 2]),
        ((100, 100, 100), [0, 1]),
        ((100, 102, 101), [0, 2]),
    ],
)
def test_for_peak_memory_on_several_devices_none_and_the_best_kernels_are_finalists(
    values: tuple[int, ...], first: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    search = Search(relus(4, "2xp100-pcie", "peak-memory"), Budget(None, 100))
    kernels = [alone(4), ints([0, 0, 2, 3]), ints([0, 0, 0, 3])]
    monkeypatch.setattr(joint, "simple_kernels", lambda problem: [*kernels[1:], ints([0, 0, 0, 0])])
    known = {kernel.tobytes(): Score(0, value) for kernel, value in zip(kernels, values, strict=True)}
    monkeypatch.setattr(joint, "quick_score", lambda search, kernel: known[kernel.tobytes()])
    assert [kernel.tolist() for kernel in joint.finalists(search)] == [kernels[at].tolist() for at in first]
    monkeypatch.setattr(joint, "simple_kernels", lambda problem: [])
    assert [kernel.tolist() for kernel in joint.finalists(search)] == [[0, 1, 2, 3]]


def test_the_plan_of_another_method_is_fused_and_joins_the_race(monkeypatch: pytest.MonkeyPatch) -> None:
    search = Search(relus(65), Budget(None, 100))
    asked = Parts(monkeypatch, search, [alone(65)]).of(search, also="some")
    assert asked[0] == ("refused", 40) and asked[-1] == ("race", [50, 50, 50])


@pytest.mark.parametrize(
    ("left", "what"),
    [(1, ["planned"]), (2, ["planned", "fused", "placed"]), (4, ["planned", "fused", "placed", "race"])],
)
def test_it_ends_where_the_budget_does(left: int, what: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    search = Search(relus(4), Budget(None, left))
    search.offer(Plan.of(search.problem, [0] * 4), Score(0, 70))
    assert [asked[0] for asked in Parts(monkeypatch, search, [alone(4)]).of(search)] == what


def test_a_search_that_has_ended_asks_for_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    for objective in ("step-time", "peak-memory"):
        search = Search(relus(4, objective=objective), Budget(None, 9))
        search.offer(Plan.of(search.problem, [0] * 4), Score(0, 70))
        search.halt()
        assert Parts(monkeypatch, search, []).of(search, also="some") == []


def test_kernels_of_simple_rules_are_there_once_and_the_best_plans_first() -> None:
    problem = relus(4)
    search = Search(problem, Budget(None, 100))
    some = joint.simple_kernels(problem)
    assert len({kernel.tobytes() for kernel in some}) == len(some) and [0, 0, 0, 0] in [each.tolist() for each in some]
    assert joint.simple_kernels(relus(1)) == []
    best, *others = joint.finalists(search)
    assert best.tolist() == [0, 0, 0, 0] and [0, 1, 2, 3] in [kernel.tolist() for kernel in others]
    assert joint.fuses(best) and not joint.fuses(alone(4))


def test_without_simulations_nothing_is_known_of_kernels() -> None:
    search = Search(relus(4), Budget(None, 1))
    assert joint.quick_score(search, alone(4)) == search.best_score < WORST
    assert joint.quick_score(search, alone(4)) == WORST
    assert [kernel.tolist() for kernel in joint.finalists(search)] == [[0, 1, 2, 3]]


@pytest.mark.parametrize(("value", "better"), [(49, True), (50, False), (51, False)])
def test_a_plan_is_fused_where_that_is_better(value: int, better: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    problem = relus(4)
    start = Scored(Score(0, 50), Plan.of(problem, [1] * 4), "list")
    search = Search(problem, Budget(None, 9))
    kernel = ints([0, 0, 2, 3])
    monkeypatch.setattr(joint, "fused_simply", lambda search, plan, most: [(kernel, None, Score(0, value))])
    found = joint.refused(search, start)
    assert (found is not start) is better
    if better:
        assert found.plan.kernel.tolist() == [0, 0, 2, 3] and found.plan.device.tolist() == [1] * 4
        assert (found.score, found.family) == (Score(0, value), "list")


def placed(
    monkeypatch: pytest.MonkeyPatch, search: Search, due: list[int], best: int, cost: int = 200
) -> tuple[list[int], bool]:
    """(what comes of four placements op by op where the best plan of given kernels has that value, whether more may be
    made)."""
    devices = [[0] * at + [1] * (8 - at) for at in (8, 6, 4, 2)]
    found = [Scored(Score(0, 10 + at), Plan.of(search.problem, device)) for at, device in enumerate(devices)]
    fused = {10: 35, 11: 30, 12: 40, 13: 5}
    monkeypatch.setattr(joint, "made", lambda search, some: found[::-1])
    monkeypatch.setattr(joint, "greedily", lambda search, start: Scored(Score(0, fused[start.score.value]), start.plan))
    waiting: Any = SimpleNamespace(due=lambda: due, left=["more"], cost=cost)
    kernels: Any = SimpleNamespace(part=SimpleNamespace(best_score=Score(0, best)))
    values = [start.score.value for start in joint.placed_first(search, waiting, kernels)]
    return values, bool(waiting.left)


def test_of_placements_op_by_op_the_best_few_are_fused(monkeypatch: pytest.MonkeyPatch) -> None:
    search = Search(relus(8), Budget(None, 100))
    assert placed(monkeypatch, search, [1], best=31) == ([35, 30, 40], True)
    assert placed(monkeypatch, search, [], best=31) == ([], True)
    search.halt()
    assert placed(monkeypatch, search, [1], best=31) == ([], True)


@pytest.mark.parametrize(("cost", "more"), [(199, True), (200, False)])
def test_where_given_kernels_have_a_plan_as_good_no_more_are_made_after_the_first(
    cost: int, more: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    search = Search(relus(8), Budget(None, 100))
    assert placed(monkeypatch, search, [1], best=30, cost=cost) == ([], more)
    assert placed(monkeypatch, search, [1], best=29, cost=cost) == ([], more)


def test_the_best_two_that_are_unlike_go_on_for_an_epoch_before_others_are_made() -> None:
    search = Search(relus(8), Budget(None, 100))
    given = enumerate((40, 30, 35))
    one, two, three = (Scored(Score(0, value), Plan.of(search.problem, [at] * 8), "list") for at, value in given)
    asked = list[int]()

    def go_on(runner: Any) -> None:
        asked.append(runner.score.value)
        runner.score = Score(0, runner.score.value - 5)

    epochs: Any = SimpleNamespace(search=search, go_on=go_on)
    found = joint.begun(epochs, [one, two, three])
    assert [(start.score.value, start.plan) for start in found] == [(25, two.plan), (30, three.plan), (40, one.plan)]
    assert asked == [30, 35] and {start.family for start in found} == {"list"}
    assert joint.begun(epochs, []) == []
    search.halt()
    assert joint.begun(epochs, [one, two, three]) == [two, three, one]


def test_a_placement_is_fused_anew_less_and_less_often_while_that_brings_nothing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    search = Search(relus(8), Budget(None, 100))
    epochs: Any = joint.JointEpochs.__new__(joint.JointEpochs)
    epochs.search, plan = search, Plan.of(search.problem, [0] * 8)
    asked, at = list[int](), 0

    def refused(search: Search, found: Scored) -> Scored:
        asked.append(at)
        return Scored(Score(0, 5), plan) if at == 14 else found

    monkeypatch.setattr(joint, "refused", refused)
    found = Scored(Score(0, 9), plan)
    values = []
    for at in range(20):  # noqa: B007, refused looks at it
        values.append(epochs._refused(found).score.value)
    assert asked == [0, 2, 6, 14, 15, 17]
    assert [at for at, value in enumerate(values) if value == 5] == [14]


def test_a_plan_fused_greedily_is_scored_as_the_simulator_does() -> None:
    search = Search(relus(8), Budget(None, 100))
    start = Scored(Score(0, 10**9), Plan.of(search.problem, [0, 0, 0, 0, 1, 1, 1, 1]), "list")
    found = joint.greedily(search, start)
    assert found.score == Score.of(search.problem, simulate(search.problem, found.plan)) < start.score
    assert found.plan.fuses and found.family == "list" and search.simulations == 1
    assert (search.best_score, found.plan.device.tolist()) == (found.score, start.plan.device.tolist())


def test_starts_of_given_kernels_are_made_as_they_are_due(monkeypatch: pytest.MonkeyPatch) -> None:
    """At first all that are due under the usual orders, later the best of them, each as a plan of ops."""
    search = Search(relus(6), Budget(None, 100))
    some = joint.FusedStarts(search, two_together(6))
    plans = [Plan.of(some.part.problem, [at] * some.part.problem.num_ops) for at in (0, 1)]
    due = iter([["a", "b"], [], ["c"]])
    monkeypatch.setattr(some.waiting, "due", lambda: next(due))
    monkeypatch.setattr(joint, "made", lambda part, some: [Scored(part.score(plan), plan) for plan in plans])
    asked = list[int]()

    def ordered(part: Search, found: list[Scored], most: int = 4) -> list[Scored]:
        asked.append(most)
        return sorted(found, key=joint.by_score)

    monkeypatch.setattr(joint, "ordered", ordered)
    first = some.first()
    assert len(first) == 2 and all(len(start.plan.device) == 6 for start in first)
    assert search.best_score == min(start.score for start in first)
    assert some.more() == []
    assert [start.score for start in some.more()] == [first[0].score]
    assert asked == [4, 1]
