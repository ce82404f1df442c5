"""Classes of plans: which contains which, and that bounds and results keep to it."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import product

from loadmaster import Budget, GraphBuilder, load, price, solve
from loadmaster.baselines.fusion.greedy import sharing_of
from loadmaster.baselines.simple import OneDevice
from loadmaster.plans import Plan
from loadmaster.problem.bounds import Among, Bound, bound_of
from loadmaster.report.standing import bounds_of, standing, standing_beside
from loadmaster.report.summary import compare_summary
from loadmaster.report.units import time_text
from loadmaster.search import Search

CLASSES = [Among(*row) for row in product(("none", "rules", "any"), (False, True), (False, True), (False, True))]


def test_a_class_covers_those_it_contains() -> None:
    order = ["none", "rules", "any"]
    for one, other in product(CLASSES, CLASSES):
        contains = order.index(one.kernels) >= order.index(other.kernels) and one.parts == other.parts
        contains &= (one.adding or not other.adding) and (not one.fitting or other.fitting)
        assert one.covers(other) == contains
    assert len({among.words for among in CLASSES}) == len(CLASSES), "each has words of its own"
    assert len({among.short for among in CLASSES}) == len(CLASSES) // 2, "in a table all plans that count fit"


def test_bounds_of_wider_classes_are_no_higher() -> None:
    for objective in ("step-time", "peak-memory", "throughput"):
        problem = price(load("zoo:rnnlm"), "4xp100-pcie", objective=objective)
        fusing = {"none": False, "rules": sharing_of(problem), "any": True}
        found = [
            bound_of(problem, fusing=fusing[kernels], adding=adding, fitting=fitting, seconds=0.05)
            for kernels, adding, fitting in product(fusing, (False, True), (False, True))
        ]
        for one, other in product(found, found):
            assert one.value <= other.value or not one.among.covers(other.among) or one.cut != other.cut


def test_a_row_above_a_smaller_value_is_not_called_optimal() -> None:
    """Two launches of 5 us, one after the other; fused they are one."""
    g = GraphBuilder("pair of ops")
    a, b, c = g.tensor(10_000, "input"), g.tensor(10_000), g.tensor(10_000, "output")
    g.op("scale", "aten.relu.default", [a], [b])
    g.op("shift", "aten.relu.default", [b], [c])
    problem = price(g.build(), "2xp100-pcie")
    apart, fused = (solve(problem, method, Budget(None, 5_000)) for method in ("placement", "auto"))
    assert fused.value < apart.value and apart.optimal and fused.optimal
    assert apart.among.kernels == "none" and fused.among.kernels != "none"
    assert standing(apart) == "best unfused"
    assert standing_beside(apart, [apart, fused]) == "best unfused"
    assert standing_beside(fused, [apart, fused]) == standing(fused)
    rows = compare_summary([apart, fused])["methods"]
    assert [row.get("optimal", False) for row in rows] == [False, standing(fused) == "optimal"]
    assert rows[0]["gap"] == 0 and rows[0]["bound"]["among"]["kernels"] == "none"
    said = bounds_of(apart).words(time_text)
    assert said.startswith("The best unsplit, unfused plan that fits; at most ") and said.endswith(
        "from any unsplit plan."
    )


def test_what_a_search_has_shown_of_a_class_holds_for_those_in_it() -> None:
    problem = price(load("zoo:rnnlm"), "2xp100-pcie")
    far = 10**15
    for kernels in ("none", "rules", "any"):
        told = _Telling(Bound(far, Among(kernels, fitting=True)))
        assert solve(problem, told, Budget(None, 1)).lower_bound == far
    other = Bound(far, Among("none", fitting=True, parts=True))
    assert solve(problem, _Telling(other), Budget(None, 1)).lower_bound < far


@dataclass(frozen=True)
class _Telling:
    """A method that says it has proved something."""

    bound: Bound

    def optimize(self, search: Search) -> Plan:
        search.prove(self.bound)
        return OneDevice().optimize(search)
