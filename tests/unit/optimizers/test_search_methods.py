"""Local search, annealing, BRKGA and auto: what they promise beyond every optimizer's promises."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise

import numpy as np
import pytest

from loadmaster.catalog.specs import make_optimizer
from loadmaster.cluster import Cluster
from loadmaster.cost import price
from loadmaster.errors import InvalidSetting, MissingExtra
from loadmaster.graph import Graph, GraphBuilder
from loadmaster.graph.columns import Ints
from loadmaster.optimizers import racing
from loadmaster.optimizers.auto import Auto
from loadmaster.optimizers.genetic import breeding
from loadmaster.optimizers.genetic.brkga import Brkga, decoder_of, evolve, genes_of, prior_of
from loadmaster.optimizers.racing import BESIDE, Waiting
from loadmaster.optimizers.simple import legal
from loadmaster.optimizers.starts import ORDERED, StartRecipe, made, of_another, ordered, orders, unlike
from loadmaster.passes.groups import mirrored_position
from loadmaster.plans import Plan
from loadmaster.problem import Problem
from loadmaster.search import Budget, Search, solve
from loadmaster.simulator import layout
from tests.graphs.tiny import chain, diamond, fork, join, pair
from tests.reference import brute_force


def ladder(layers: int, width: int = 1000) -> Graph:
    """Forward ops f0 … fn, then backward ops bn … b0 that each read their forward op's output; weights updated in
    place.

    x -> f0 -> f1 -> … -> fn
         |     |           |
    b0 <- b1 <- … <------- bn
    """
    builder = GraphBuilder("ladder")
    here = builder.tensor(width, "input")
    weights, saved = [], []
    for i in range(layers):
        weights.append(builder.tensor(width * 2, "weight"))
        made = builder.tensor(width * (1 + i % 3))
        builder.op(f"f{i}", "aten.mm.default", [here, weights[i]], [made], flops=10**7, scope=f"layers.{i}")
        saved.append(made)
        here = made
    for i in reversed(range(layers)):
        grad = builder.tensor(width)
        builder.op(
            f"b{i}", "aten.mm.default", [here, saved[i], weights[i]], [grad], flops=2 * 10**7, scope=f"layers.{i}"
        )
        new = builder.tensor(width * 2, "weight", alias_of=weights[i])
        after = [f"f{i}", f"b{i}"]
        builder.op(
            f"u{i}",
            "optim.sgd",
            [weights[i], grad],
            [new],
            flops=width,
            colocate=f"w{i}",
            after=after,
            scope=f"layers.{i}",
        )
        here = grad
    return builder.build()


def problem_of(layers: int = 12, on: str = "2xp100-pcie", objective: str = "step-time") -> Problem:
    return price(ladder(layers), Cluster.preset(on), objective=objective)  # type: ignore[arg-type]


def test_a_backward_op_has_the_position_of_its_forward_op() -> None:
    problem = problem_of(6)
    position = mirrored_position(problem)
    index = {name: op for op, name in enumerate(problem.graph.op_name)}
    for layer in range(5):
        assert abs(position[index[f"b{layer}"]] - position[index[f"f{layer}"]]) <= 1


def best_of_all(problem: Problem, objective: str) -> tuple[int, int]:
    """By all placements and orders, found once."""
    key = (problem.graph.name, objective)
    if key not in _best:
        _best[key] = brute_force(problem, objective)
    return _best[key]


_best: dict[tuple[str, str], tuple[int, int]] = {}


@pytest.mark.parametrize("spec", ["auto", "anneal:start=one-device", "local-search:start=one-device", "joint"])
@pytest.mark.parametrize("objective", ["step-time", "peak-memory"])
def test_search_finds_the_best_plan_of_small_problems(spec: str, objective: str) -> None:
    """All placements and orders tried by the slow simulator. What fuses too is at least as good."""
    for graph in (chain(), diamond(), fork(), join()):
        problem = price(graph, pair(memory_bytes=60), objective=objective)
        best = best_of_all(problem, objective)
        found = solve(problem, spec, Budget(None, 400), seed=1).score
        assert tuple(found) <= best if spec == "joint" else tuple(found) == best, graph.name


@pytest.mark.parametrize("objective", ["step-time", "peak-memory"])
def test_search_gets_near_the_best_of_a_ladder(objective: str) -> None:
    """A ladder of twelve layers on two devices; the best is what seven times as many simulations give. A search that
    forgets to undo a load is 15 % away. In the mean of eight seeds: about one in three ends 3 % away."""
    problem = problem_of(12, objective=objective)

    def mean(spec: str) -> float:
        return float(np.mean([solve(problem, spec, Budget(None, 1_500), seed=seed).value for seed in range(8)]))

    values = {spec: mean(spec) for spec in ("auto", "anneal")}
    best = min(solve(problem, "auto", Budget(None, 10_000), seed=seed).value for seed in range(3))
    assert all(value <= best * 1.02 for value in values.values()), (values, best)


@pytest.mark.parametrize("objective", ["step-time", "peak-memory"])
def test_auto_never_gets_worse_with_more_simulations(objective: str) -> None:
    problem = problem_of(objective=objective)
    budgets = (1, 2, 5, 17, 60, 61, 150, 400, 401, 900)
    scores = [solve(problem, "auto", Budget(None, count), seed=3).score for count in budgets]
    assert all(later <= earlier for earlier, later in pairwise(scores))


@pytest.mark.parametrize("objective", ["step-time", "peak-memory"])
def test_auto_is_never_worse_than_a_one_shot_method(objective: str) -> None:
    problem = problem_of(objective=objective, on="2xa100-nvlink+2xp100-pcie")
    auto = solve(problem, "auto", Budget(None, 300))
    for name in ("one-device", "expert", "expert:order=program", "heft", "etf", "cpop", "sct", "heft:contention=no"):
        assert auto.score <= solve(problem, name, Budget(None, 300)).score, name


def test_auto_scores_every_start_and_the_best_under_every_order() -> None:
    search = Search(problem_of(), Budget(None, 1000))
    waiting = Waiting(search)
    every = [plan for start in waiting.left if (plan := made_here(start)) is not None]
    scored = list(made(search, waiting.due()))
    assert search.simulations >= len(scored) and not waiting.left
    assert sorted({decisions(plan) for plan in every}) == sorted(decisions(start.plan) for start in scored)  # each once
    found = ordered(search, scored)
    tried = {decisions(start.plan) for start in found}
    for start in unlike(sorted(scored, key=lambda start: start.score), ORDERED):
        assert {decisions(plan) for plan in orders(search, start.plan)} <= tried
    assert len(found) > len(scored) and search.best_score == found[0].score == min(start.score for start in found)


def test_the_genetic_search_takes_no_more_than_is_left(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(racing, "EVOLVED_AFTER", 150)
    problem = problem_of(objective="peak-memory")
    for simulations in (200, 300, 400):
        assert solve(problem, "placement", Budget(None, simulations)).simulations <= simulations + 1


def made_here(start: StartRecipe) -> Plan | None:
    """Its plan, where the package that it needs is there."""
    try:
        return start.make()
    except MissingExtra:
        return None


def decisions(plan: Plan) -> tuple[bytes, bytes]:
    """Equal for plans that place and order alike."""
    return plan.device.tobytes(), np.argsort(plan.rank, kind="stable").tobytes()


def test_where_the_clock_counts_slow_starts_wait_until_the_search_has_done_much_more() -> None:
    search = Search(problem_of(), Budget(600.0, None))
    waiting = Waiting(search)
    slow = waiting.left[-1].price
    assert slow not in [start.price for start in waiting.due()]
    while waiting.left:
        search.count(50)
        if slow in [start.price for start in waiting.due()]:
            assert waiting.cost <= BESIDE * search.simulations
    assert search.simulations > 10 * slow


def test_one_start_is_made_however_little_time_is_left() -> None:
    search = Search(problem_of(), Budget(1e-6, None))
    search.count(1)
    assert len(Waiting(search).due()) == 1
    assert Auto().optimize(search).device.shape == (search.problem.num_ops,)


def test_the_old_name_of_the_temperature_is_still_understood() -> None:
    for name in ("anneal", "auto", "joint", "separate", "anneal-fusion", "anneal-order", "go"):
        assert make_optimizer(f"{name}:heat=0.02") == make_optimizer(f"{name}:temperature=0.02"), name


@pytest.mark.parametrize(
    "spec", ["anneal:start=expert", "local-search:start=expert", "brkga:start=expert,evaluations=150"]
)
def test_search_is_no_worse_than_its_start_and_reproducible(spec: str) -> None:
    problem = problem_of()
    start = solve(problem, "expert", Budget(None, 1))
    one, two = (solve(problem, spec, Budget(None, 200), seed=5) for _ in range(2))
    assert one.score <= start.score
    assert one.plan.device.tolist() == two.plan.device.tolist() and one.plan.rank.tolist() == two.plan.rank.tolist()
    assert one.simulations <= 200


def test_genes_of_a_plan_decode_to_it() -> None:
    problem = problem_of(8, "4xp100-pcie")
    rng = np.random.default_rng(1)
    device = legal(problem, rng.integers(0, 4, problem.num_ops))
    plan = Plan.of(problem, device, rng.permutation(problem.num_ops))
    decoder = decoder_of(problem, Brkga())
    place, rank, _ = breeding.decode_one(layout(problem), decoder, genes_of(problem, decoder, plan))
    assert place.tolist() == device.tolist()
    assert np.argsort(rank, kind="stable").tolist() == np.argsort(plan.rank).tolist()


def test_stopping_evaluations_early_changes_no_result(monkeypatch: pytest.MonkeyPatch) -> None:
    problem = problem_of(10, objective="peak-memory")
    bounded = solve(problem, Brkga(evaluations=600), Budget(None, 600), seed=2)
    whole = breeding.breed

    def unbounded(*args: object) -> None:
        whole(*args[:-1], breeding.STOPPED)

    monkeypatch.setattr(breeding, "breed", unbounded)
    assert solve(problem, Brkga(evaluations=600), Budget(None, 600), seed=2).value == bounded.value


def test_priors_draw_where_they_say() -> None:
    """Fresh genes of a "given order" prior stay within half a width of their position; uniform ones fill the range."""
    problem = problem_of(30)
    settings = Brkga(order="given", width=0.2, evaluations=100, population=100)
    decoder, prior = decoder_of(problem, settings), prior_of(problem, settings)
    search, genes = Search(problem, Budget(None, 100)), []
    keep = breeding.breed

    def spy(*args: object) -> None:
        keep(*args)
        genes.append(np.array(args[4]))

    try:
        breeding.breed = spy
        evolve(search, settings, decoder, prior)
    finally:
        breeding.breed = keep
    drawn = genes[-1] / 65536
    priority = drawn[:, decoder.blocks * 2 : decoder.blocks * 2 + problem.num_ops]
    position = (np.arange(problem.num_ops) + 0.5) / problem.num_ops
    assert np.abs(priority - position).max() <= 0.1 + 1e-3
    assert abs(drawn[:, : decoder.blocks * 2].mean() - 0.5) < 0.03 and drawn[:, : decoder.blocks * 2].std() > 0.25


def test_a_tight_memory_limit_is_met_by_search() -> None:
    problem = price(ladder(12), Cluster.preset("2xp100-pcie"), memory_limit=42_000)
    assert not solve(problem, "one-device", Budget(None, 1)).fits
    assert solve(problem, Auto(), Budget(None, 800)).fits


@pytest.mark.parametrize(
    "spec", ["anneal:start=expert", "local-search:start=expert", "auto", "brkga:evaluations=1000000000"]
)
def test_an_interrupt_returns_the_best_plan_so_far(spec: str) -> None:
    problem, seen, at = problem_of(), [], list[int]()

    def stop(search: Search) -> None:
        seen.append(search.best_score)
        at[:] = [search.simulations]
        if search.best is not None and search.simulations > 300:
            raise KeyboardInterrupt

    result = solve(problem, spec, Budget(None, 10**7), listener=stop)
    assert result.interrupted and result.simulations <= at[0] + 100
    assert result.score <= min(seen)


def test_the_plan_of_another_method_joins_the_starts_of_auto() -> None:
    problem = problem_of(8, "2xp100-pcie")
    other = solve(problem, "random:samples=5", Budget(None, 40))
    given = legal(problem, np.arange(problem.num_ops) % 2)
    search = Search(problem, Budget(None, 400))
    assert [start.plan.device.tolist() for start in of_another(search, Fixed(given))] == [given.tolist()]
    assert not any((start.plan.device == given).all() for start in made(search, Waiting(search).due()))
    assert solve(problem, "auto:also=[random:samples=5]", Budget(None, 400)).score <= other.score


@dataclass(frozen=True)
class Fixed:
    device: Ints

    def optimize(self, search: Search) -> Plan:
        return Plan.of(search.problem, self.device)


@pytest.mark.parametrize("method", ["brkga:elites=4", "brkga:mutants=-1", "regal:elites=1,checkpoint=none"])
def test_shares_of_a_population_are_shares(method: str) -> None:
    with pytest.raises(InvalidSetting, match=r"elites=0\.2"):
        solve(problem_of(6), method, Budget(None, 30))
