"""Inlining: what is light is made where it is read, and never costs time or memory."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from loadmaster import load
from loadmaster.cost import Calibrated, price
from loadmaster.graph import Graph, GraphBuilder
from loadmaster.optimizers.fusion.greedy import greedy_kernels
from loadmaster.optimizers.memory import inlining
from loadmaster.optimizers.memory.closures import Closure
from loadmaster.optimizers.memory.draft import Version
from loadmaster.optimizers.memory.inlining import Inline, inlined
from loadmaster.plans import Plan, check
from loadmaster.plans.expansion import whole
from loadmaster.problem import Problem
from loadmaster.search import Budget, solve
from loadmaster.simulator import simulate

SIZE, SHAPE = 4 << 20, (1024, 1024)


def layers(count: int) -> Graph:
    """Products, each with a residual sum of its relu, and back: the derivative reads the relu's result."""
    builder = GraphBuilder("layers")

    def tensor(role: str = "activation") -> int:
        return builder.tensor(SIZE, role, shape=SHAPE)

    def op(name: str, kind: str, reads: list[int], makes: list[int]) -> None:
        builder.op(name, kind, reads, makes, flops=10**6)

    x, kept = tensor("input"), []
    for i in range(count):
        weight, made, positive, out = tensor("weight"), tensor(), tensor(), tensor()
        op(f"mm{i}", "aten.mm.default", [x, weight], [made])
        op(f"relu{i}", "aten.relu.default", [made], [positive])
        op(f"add{i}", "aten.add.Tensor", [x, positive], [out])
        kept.append((weight, positive))
        x = out
    for i in reversed(range(count)):
        weight, positive = kept[i]
        back, down = tensor(), tensor("output" if i == 0 else "activation")
        op(f"relu{i}.back", "aten.threshold_backward.default", [x, positive], [back])
        op(f"mm{i}.back", "aten.mm.default", [back, weight], [down])
        x = down
    return builder.build()


def fused(problem: Problem) -> Plan:
    return Plan.of(problem, np.zeros(problem.num_ops, np.int64), None, greedy_kernels(problem))


@pytest.fixture(scope="module")
def problem() -> Problem:
    return price(layers(5), "1xa100-nvlink")


def test_what_a_relu_makes_is_never_written(problem: Problem) -> None:
    """It is written once and read once less: what it reads is there, and is held in its place. The last one shares a
    kernel with its derivative anyway."""
    plan = fused(problem)
    made = inlined(problem, plan)
    check(made, problem)
    assert made.added is not None
    assert {problem.graph.op_name[op] for op in made.added.op} == {f"relu{i}" for i in range(4)}
    assert made.num_kernels == plan.num_kernels
    before, after = simulate(problem, plan), simulate(whole(problem, made), made)
    assert after.peak_bytes[0] <= before.peak_bytes[0]
    saved = before.step_ns - after.step_ns
    once = SIZE * 1e9 / int(problem.bytes_per_s[0])
    assert abs(saved - 4 * 2 * once) <= 10


def test_products_and_outputs_are_left(problem: Problem) -> None:
    made = inlined(problem, Plan.of(problem, np.zeros(problem.num_ops, np.int64)))
    kinds = [] if made.added is None else [problem.graph.kind[op] for op in made.added.op]
    assert "aten.mm.default" not in kinds


@pytest.mark.parametrize("cluster", ["1xa100-nvlink", "2xp100-pcie"])
def test_the_method_is_never_worse_than_what_it_starts_from(cluster: str) -> None:
    problem = price(layers(4), cluster)
    plain = solve(problem, "greedy-fusion", Budget(None, 20))
    found = solve(problem, "inline:inner=greedy-fusion", Budget(None, 20))
    assert found.value <= plain.value
    assert found.value >= found.lower_bound


def test_a_residual_sum_of_many_layers_is_stored() -> None:
    """Else the norms of the last layers would read what all layers added: 31 tensors and more."""
    problem = price(load("zoo:vit-base/train"), "1xh200", cost=Calibrated.shipped())
    plan = fused(problem)
    made = inlined(problem, plan)
    assert made.added is not None and simulate(problem, made).step_ns < simulate(problem, plan).step_ns
    graph, reads = whole(problem, made).graph, []
    for kernel in set(made.kernel.tolist()):
        members = np.flatnonzero(made.kernel == kernel).tolist()
        own = {t for op in members for t in graph.makes_of(op).tolist()}
        reads.append(len({t for op in members for t in graph.reads_of(op).tolist()} - own))
    assert max(reads) <= 12


@pytest.mark.parametrize(("role", "again"), [("activation", True), ("output", False)])
def test_what_is_written_anyway_is_not_made_again(role: str, again: bool) -> None:
    """A relu that two kernels far apart read; as a result of the step it is stored whatever they do."""
    builder = GraphBuilder("result")
    x, weight = (builder.tensor(SIZE, kind, shape=SHAPE) for kind in ("input", "weight"))
    made, positive = builder.tensor(SIZE, shape=SHAPE), builder.tensor(SIZE, role, shape=SHAPE)
    builder.op("mm", "aten.mm.default", [x, weight], [made], flops=10**6)
    builder.op("relu", "aten.relu.default", [made], [positive], flops=10**6)
    last = made
    for at in range(2):
        product, out = builder.tensor(SIZE, shape=SHAPE), builder.tensor(SIZE, "output", shape=SHAPE)
        builder.op(f"mm{at}", "aten.mm.default", [last, weight], [product], flops=10**6)
        builder.op(f"add{at}", "aten.add.Tensor", [product, positive], [out], flops=10**6)
        last = product
    problem = price(builder.build(), "1xa100-nvlink")
    found = inlined(problem, Plan.of(problem, np.zeros(problem.num_ops, np.int64)))
    names = set() if found.added is None else {problem.graph.op_name[op] for op in found.added.op}
    assert ("relu" in names) == again


class Asked:
    """A search of which so much is left, whose plans are worth what they say."""

    def __init__(self, left: int, best: Any = None, spent: bool = False) -> None:
        self.simulations_left, self.best, self.spent, self.problem = left, best, spent, "problem"
        self.best_score = 0 if best is None else best.value
        self.scored = list[Any]()

    @contextmanager
    def keeping(self, share: float) -> Iterator[Any]:
        yield self

    def score(self, plan: Any) -> Any:
        self.scored.append(plan)
        return plan.value


def of_value(value: int, added: Any = None) -> Any:
    return SimpleNamespace(value=value, added=added)


@pytest.mark.parametrize(
    ("left", "spent", "added", "asked"),
    [(2, False, None, True), (1, False, None, False), (2, True, None, False), (2, False, "added", False)],
)
def test_a_plan_is_inlined_where_a_draft_and_a_simulation_are_left(
    left: int, spent: bool, added: Any, asked: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    plan, better = of_value(5, added), of_value(4)
    monkeypatch.setattr(inlining, "inlined", lambda problem, given, search: better if given is plan else None)
    search: Any = Asked(left, spent=spent)
    found = Inline(SimpleNamespace(optimize=lambda part: plan)).optimize(search)  # type: ignore[arg-type]
    assert search.scored == ([better] if asked else [])
    assert found is plan, "the search has none that is best"


@pytest.mark.parametrize(("value", "chosen"), [(6, "inner"), (5, "inner"), (4, "best")])
def test_a_better_plan_of_the_search_is_inlined_in_place_of_the_last(
    value: int, chosen: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    plan, best, given = of_value(5), of_value(value), list[Any]()
    monkeypatch.setattr(inlining, "inlined", lambda problem, plan, search: given.append(plan) or of_value(9))
    found = Inline(SimpleNamespace(optimize=lambda part: plan)).optimize(Asked(9, best))  # type: ignore[arg-type]
    assert len(given) == 1 and given[0] is (plan if chosen == "inner" else best) and found is best


def inline(costs: list[int | None], monkeypatch: Any, peak: int = 100, **given: Any) -> tuple[list[Any], list[Any]]:
    """Tensor 0, of 50 bytes at a byte a ns, is read in its own kernel, 1, and by others at 3 and 4; (made, undone)."""
    made, undone = list[Any](), list[Any]()
    memory = np.array([[100, 0]])
    settings = {"lasting": [False], "overwritten": set()} | given
    uses = settings.pop("uses", [(1, 8), (4, 3), (3, 4), (3, 9)])
    draft: Any = SimpleNamespace(
        versions=[Version(0, 1, uses=uses)], memory=memory, nbytes=[50], device=[1], producer=[0],
        problem=SimpleNamespace(bytes_per_s=[1, 10**9]), **settings,
    )  # fmt: skip
    closures = dict(zip((3, 4), costs, strict=True))

    def closure(_: Any, tensor: int, at: int, later: Any) -> Any:
        return None if closures[at] is None else Closure((0,), (), True, closures[at] or 0)

    def again(_: Any, drops: Any, closure: Any, at: int) -> Any:
        made.append((at, drops))
        memory[0, 1] = peak
        return lambda: undone.append(at)

    monkeypatch.setattr(inlining, "_closure", closure)
    monkeypatch.setattr(inlining, "make_again", again)
    inlining._inline(draft, 0)
    return made, undone


BOTH = [(3, [(0, [(3, 4), (3, 9)])]), (4, [(0, [(4, 3)])])]


def test_a_tensor_is_made_where_it_is_read_if_that_takes_no_longer_than_to_write_it(monkeypatch: Any) -> None:
    assert inline([20, 30], monkeypatch) == (BOTH, [])
    assert inline([20, 31], monkeypatch) == ([], [])
    assert inline([20, None], monkeypatch) == ([], [])
    assert inline([20, 30], monkeypatch, peak=101) == (BOTH, [4, 3]), "it takes more memory"
    for given in ({"lasting": [True]}, {"overwritten": {0}}, {"uses": [(1, 8)]}):
        assert inline([20, 30], monkeypatch, **given) == ([], []), given


@pytest.mark.parametrize(("reads", "found"), [(4, True), (5, False)])
def test_what_reads_many_tensors_is_not_made_again(reads: int, found: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Ops 0 and 1, of which the second reads what the first makes, and tensors from 10 on."""
    closure = Closure((0, 1), (), True, 5)
    monkeypatch.setattr(inlining, "closure_of", lambda *_: closure)
    draft: Any = SimpleNamespace(
        at=[0, 1, 2], open={3: True, 4: False}, heavy=np.array([False]), makes=[[0], [1]],
        reads=[[10], [0, 10, *range(11, 10 + reads)]],
    )  # fmt: skip
    assert (inlining._closure(draft, 1, 3, [(3, 2)]) is closure) is found
    assert inlining._closure(draft, 1, 4, [(4, 2)]) is None, "a kernel that nothing joins"
    assert inlining._closure(draft, 1, 3, [(3, 2), (3, 3)]) is None, "a copy reads it"
    assert (inlining._closure(draft, 1, 3, [(3, 2), (4, 3)]) is closure) is found, "a copy elsewhere is no matter"


def test_light_ops_that_draw_nothing_are_inlined_op_0_among_them(monkeypatch: pytest.MonkeyPatch) -> None:
    kinds = ("aten.relu.default", "aten.mm.default", "aten.bernoulli.p", "aten.relu.default", "aten.relu.default")
    builder = GraphBuilder("kinds")
    for at, kind in enumerate(kinds):
        builder.op(f"op{at}", kind, [], [builder.tensor(8, shape=(2,))], flops=1)
    problem = price(builder.build(), "1xa100-nvlink")
    draft: Any = SimpleNamespace(
        problem=problem, producer=range(5), able=[True, True, True, False, True],
        versions=[Version(at, at, inner=at == 4) for at in range(5)],
    )  # fmt: skip
    seen = list[int]()
    monkeypatch.setattr(inlining, "_inline", lambda _, number: seen.append(number))
    inlining.inline_light(draft)
    assert seen == [0]
