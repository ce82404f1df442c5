"""Which problems schedules are learned from, with random numbers that are told."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from loadmaster.cost import price
from loadmaster.graph.columns import ints
from loadmaster.learn.scheduling import examples
from loadmaster.learn.scheduling.examples import ScheduleKey
from tests.graphs.tiny import chain, pair
from tests.unit.learn.told import Told


class Drawn:
    """A generator whose next numbers are told; what it chooses from is written down."""

    def __init__(self, *numbers: float) -> None:
        self.numbers, self.asked = list(numbers), list[Any]()

    def random(self) -> float:
        return self.numbers.pop(0)

    def integers(self, *bounds: int) -> int:
        self.asked.append(bounds)
        return 0

    def choice(self, some: Any) -> Any:
        self.asked.append(some)
        return some[0]

    def uniform(self, low: float, high: float) -> float:
        self.asked.append((low, high))
        return low


@pytest.mark.parametrize(
    ("number", "made"),
    [(0.44, "branching"), (0.46, "unrolled"), (0.79, "unrolled"), (0.81, "layered"), (0.94, "layered")],
)
def test_graphs_by_what_is_drawn(number: float, made: str, monkeypatch: pytest.MonkeyPatch) -> None:
    rng: Any = Drawn(number)
    monkeypatch.setattr(examples, "branching_step", lambda rng: "branching")
    monkeypatch.setattr(examples, "unrolled_step", lambda rng: "unrolled")
    monkeypatch.setattr(examples.synthetic, "generate", lambda name, count, seed, ops: [(name, count, seed, ops)])
    found: Any = examples.draw_graph(rng)
    assert found == (("layered", 1, 0, (80, 800)) if made == "layered" else made)
    assert rng.asked == ([(2**31,)] if made == "layered" else [])
    other: Any = Drawn(0.96)
    kinds = sorted(examples.synthetic.KINDS)
    assert examples.draw_graph(other)[0] == kinds[0]  # type: ignore[index]
    assert other.asked == [(len(kinds),), (2**31,)]


@pytest.mark.parametrize(("ops", "suits"), [(23, False), (24, True), (None, False)])
@pytest.mark.parametrize(("number", "tight"), [(0.49, True), (0.51, False)])
def test_an_example_is_made_coarser_and_half_of_them_tight(
    ops: int | None, suits: bool, number: float, tight: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    rng, asked = Drawn(number), list[Any]()
    small = None if ops is None else SimpleNamespace(num_ops=ops)
    seeds: list[Any] = []
    monkeypatch.setattr(np.random, "default_rng", lambda seed: seeds.append(seed) or rng)
    for name, gives in {
        "draw_graph": lambda rng: "drawn",
        "vary": lambda graph, rng: f"{graph} varied",
        "graph_of": lambda line: f"line {line}",
        "draw_cluster": lambda rng: "cluster",
        "price": lambda graph, cluster: graph,
        "tightened": lambda problem, spare, rng: f"{problem} tight {spare}",
        "coarser": lambda problem, most: asked.append((problem, most)) or small,
        "view_of": lambda problem: "view",
        "first_plan": lambda problem, kind: f"plan {kind}",
    }.items():
        monkeypatch.setattr(examples, name, gives)
    make = examples.make_example.__wrapped__
    rng.numbers = [number, number]
    found = make(ScheduleKey(-1, 5))
    assert found == ((small, "view", "plan 0") if suits else None)  # type: ignore[comparison-overlap]
    make(ScheduleKey(0, 6))
    words = " tight 1.1" if tight else ""
    assert asked == [(f"drawn{words}", 200), (f"line 0 varied{words}", 200)]
    assert seeds == [[0, 5, 7], [1, 6, 7]]
    one = [*([(1.1, 1.8)] if tight else []), [200, 600, examples.MOST_OPS], *([(1, 6)] if suits else [])]
    assert rng.asked == one * 2


@pytest.mark.parametrize(
    ("kind", "by", "searches"), [(1, 1, False), (2, 2, False), (3, 3, False), (4, 3, True), (5, 3, True)]
)
def test_first_plans_are_by_rules_or_of_a_short_search(
    kind: int, by: int, searches: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Search:
        def __init__(self, problem: Any, budget: Any) -> None:
            assert budget.simulations == 60
            self.best = found[0]

    asked: list[Any] = []
    monkeypatch.setattr(examples, "best_by_rule", lambda problem, kinds: f"by {kinds}")
    monkeypatch.setattr(examples, "Search", Search)
    monkeypatch.setattr(
        examples, "improve", lambda search, plan, hot, cold, chains: asked.append((plan, hot, cold, chains))
    )
    problem: Any = None
    for best in ("better", None):
        asked.clear()
        found = [best]
        assert examples.first_plan(problem, kind) == ((best or "by 3") if searches else f"by {by}")
        assert asked == ([("by 3", 0.0, 0.0, 1)] if searches else [])


@pytest.mark.parametrize(
    ("ops", "blocks", "chains", "found"),
    [
        (50, 9, 9, 50),
        (51, 9, 8, 9),
        (51, None, 8, 8),
        (51, None, None, 51),
        (51, 2_000, 8, 2_000),
        (51, 99_999, 8, None),
    ],
)
def test_a_problem_of_too_many_ops_becomes_blocks_or_chains(
    ops: int, blocks: int | None, chains: int | None, found: int | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    def coarse(count: int | None) -> Any:
        return None if count is None else SimpleNamespace(problem=SimpleNamespace(num_ops=count))

    monkeypatch.setattr(examples, "blocks", lambda problem, most: coarse(blocks) if most == 50 else 0)
    monkeypatch.setattr(examples, "chain_small_ops", lambda problem, share: coarse(chains) if share == 1 / 64 else 0)
    problem: Any = SimpleNamespace(num_ops=ops)
    small = examples.coarser(problem, 50)
    assert (None if small is None else small.num_ops) == found


def test_twice_as_many_ops_as_there_should_be_will_still_do(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(examples, "blocks", lambda *_: None)
    monkeypatch.setattr(examples, "chain_small_ops", lambda *_: None)
    for more, fits in ((0, True), (1, False)):
        problem: Any = SimpleNamespace(num_ops=2 * examples.MOST_OPS + more)
        assert (examples.coarser(problem, 50) is problem) == fits


def described(graph: Any) -> dict[str, Any]:
    return {
        name: (graph.kind[op], graph.reads_of(op).tolist(), graph.makes_of(op).tolist())
        for op, name in enumerate(graph.op_name)
    }


def test_two_layers_of_two_cells_by_hand() -> None:
    """Cells of two ops; the wide op on top reads its own cell and, both times, the last one."""
    normal = [0.0] * 24
    normal[2:4] = [np.log(2.0), np.log(3.0)]  # of f1: twice as large, three times the work
    rng: Any = Told([2, 2, 2, 1, 1], [10.0, 20.0, 1.0, 1.0, 0.0, 2.0], [0.39], normal)
    graph = examples.unrolled_step(rng)
    assert rng.asked[:6] == [(1, 9), (4, 25), (16, 23), (27, 33), (0.0, 0.5), (1, 4)]
    assert rng.asked[6:] == [(-2, 4), (-2, 4), (0, 5), (2,), (2,)] and not any(rng.lists.values())
    assert graph.nbytes[:8].tolist() == [2048, 1024, 4096, 1024, 1024, 1024, 2048, 1024]
    assert described(graph) == {
        "f0": ("mm", [3, 0], [5]),
        "f1": ("add", [5], [6]),
        "f2": ("mm", [4, 6, 0], [7]),
        "f3": ("add", [7], [8]),
        "f4": ("mm", [6, 1], [9]),
        "f5": ("add", [9], [10]),
        "f6": ("mm", [8, 10, 1], [11]),
        "f7": ("add", [11], [12]),
        "f8": ("mm", [10, 12, 2], [13]),
        "f9": ("mm", [12, 2], [14]),
        "f10": ("add", [13], [15]),
        "f11": ("add", [14], [16]),
        "loss": ("sum", [15, 16], [17]),
        "b11 14": ("add", [17, 14], [18]),
        "b10 13": ("add", [17, 13], [19]),
        "b9 12": ("mm", [18, 12], [20]),
        "w9": ("mm", [18, 12], [21]),
        "b8 10": ("mm", [19, 10, 12], [22]),
        "b8 12": ("mm", [19, 10, 12], [23]),
        "w8": ("mm", [19, 10], [24]),
        "b7 11": ("add", [20, 23, 11], [25]),
        "b6 8": ("mm", [25, 8, 10], [26]),
        "b6 10": ("mm", [25, 8, 10], [27]),
        "w6": ("mm", [25, 8], [28]),
        "b5 9": ("add", [22, 27, 9], [29]),
        "b4 6": ("mm", [29, 6], [30]),
        "w4": ("mm", [29, 6], [31]),
        "b3 7": ("add", [26, 7], [32]),
        "b2 6": ("mm", [32, 4, 6], [33]),
        "w2": ("mm", [32, 4], [34]),
        "b1 5": ("add", [30, 33, 5], [35]),
        "w0": ("mm", [35, 3], [36]),
        "u2": ("add", [21, 24, 2], [37]),
        "u1": ("add", [28, 31, 1], [38]),
        "u0": ("add", [34, 36, 0], [39]),
    }
    assert {made: old for made, old in enumerate(graph.alias_of.tolist()) if old >= 0} == {37: 2, 38: 1, 39: 0}
    sizes = {21: 4096, 28: 1024, 34: 2048, 30: 2048, 17: 4, 37: 4096}
    assert {tensor: int(graph.nbytes[tensor]) for tensor in sizes} == sizes
    work = dict(zip(graph.op_name, graph.flops.tolist(), strict=True))
    heavy = 2**20
    cells = [work[f"f{op}"] for op in range(12)]
    assert cells == [heavy, 768, heavy, 256, heavy, 256, heavy, 256, 2 * heavy, 2 * heavy, 512, 512]
    assert all(work[name] == work[f"f{name[1:].split()[0]}"] for name in work if name[0] in "bw")
    assert [work[name] for name in ("loss", "u2", "u1", "u0")] == [1_000, 2 * 1024, 2 * 256, 2 * 512]


def test_without_a_look_at_other_cells_a_top_reads_its_own() -> None:
    rng: Any = Told([1, 2, 1], [10.0, 20.0, 0.0, 0.0, 0.0], [0.41], [0.0] * 12)
    made = described(examples.unrolled_step(rng))
    tops = {name: reads for name, (_, reads, _) in made.items() if name[0] == "f"}
    assert tops == {"f0": [2, 0], "f1": [3, 4, 0], "f2": [4, 1], "f3": [5, 1], "f4": [6], "f5": [7]}


@pytest.mark.parametrize(
    ("peak", "random", "memory"),
    [(300, None, [225, 225]), (300, 0.49, [225, 225]), (300, 0.51, [150, 300]), (0, 0.51, [1, 1])],
)
def test_memory_is_shared_alike_or_not(
    peak: int, random: float | None, memory: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    held = SimpleNamespace(peak_bytes=np.array([peak, 0]))
    monkeypatch.setattr(examples, "simulate", lambda problem, plan: held)
    rng: Any = None if random is None else Told([], [np.array([1.0, 2.0])], [random], [])
    tight = examples.tightened(price(chain(), pair()), 1.5, rng)
    assert tight.memory_bytes.tolist() == memory == [device.memory_bytes for device in tight.cluster.devices]
    assert random is None or random < 0.5 or rng.asked == [(1, 2, 2)]


@pytest.mark.parametrize(("kinds", "scored"), [(1, 4), (2, 3), (3, 7)])
def test_rules_are_cuts_list_schedules_or_both(kinds: int, scored: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Cuts in their own order and in that of the critical path."""
    plans = list[Any]()

    class Search:
        best = "best"

        def __init__(self, problem: Any, budget: Any) -> None: ...

        def score(self, plan: Any) -> None:
            plans.append(plan)

    def method(**how: bool) -> Any:
        return SimpleNamespace(optimize=lambda search: how)

    monkeypatch.setattr(examples, "Search", Search)
    monkeypatch.setattr(examples, "cuts", lambda problem: [ints([0, 0, 1]), ints([0, 1, 1])])
    monkeypatch.setattr(examples, "Heft", method)
    monkeypatch.setattr(examples, "Etf", method)
    assert examples.best_by_rule(price(chain(), pair()), kinds) == "best"  # type: ignore[comparison-overlap]
    assert len(plans) == scored
    assert [how for how in plans if isinstance(how, dict)] == (
        [{}, {"memory": True}, {"memory": True}] if kinds & 2 else []
    )


def test_clusters_have_two_to_sixteen_devices(monkeypatch: pytest.MonkeyPatch) -> None:
    found = list[Any]()
    monkeypatch.setattr(examples, "draw_by_chances", lambda rng, counts, **chances: found.append((counts, chances)))
    examples.draw_cluster(None)  # type: ignore[arg-type]
    [(counts, chances)] = found
    assert (min(counts), max(counts)) == (2, 16) and all(0 < chance < 1 for chance in chances.values())
