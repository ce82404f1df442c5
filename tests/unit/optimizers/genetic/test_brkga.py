"""Blocks, priors and generations of the genetic search, with broods whose fitness is told."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from loadmaster import Budget, GraphBuilder, price
from loadmaster.errors import InvalidSetting
from loadmaster.graph.columns import ints
from loadmaster.optimizers.genetic import breeding, brkga
from loadmaster.optimizers.genetic.brkga import Brkga, decoder_of, evolve, genes_of, prior_of
from loadmaster.plans import Plan
from loadmaster.problem import Problem
from loadmaster.search import WORST, Score, Search
from loadmaster.simulator import layout

HEAVY, STOPPED = int(breeding.HEAVY_PENALTY), int(breeding.STOPPED)


def line(ops: int = 10, scopes: str = "", **given: Any) -> Problem:
    build = GraphBuilder("line")
    last = build.tensor(8, "input")
    for op in range(ops):
        read, last = last, build.tensor(8)
        build.op(f"op{op}", "any", [read], [last], time_ns=100, scope=scopes[op] if scopes else "")
    return price(build.build(), "2xp100-pcie", **given)


@pytest.mark.parametrize(
    ("by", "blocks", "found"),
    [
        ("op", 4, list(range(10))),
        ("program", 4, [0, 0, 0, 1, 1, 2, 2, 2, 3, 3]),
        ("program", 99, list(range(10))),
        ("program", 1, [0] * 10),
        ("scope", 4, [0, 0, 1, 1, 0, 2, 2, 1, 0, 0]),
    ],
)
def test_ops_that_share_an_affinity(by: Any, blocks: int, found: list[int]) -> None:
    problem = line(scopes="aabbaccbaa")
    assert brkga._blocks(problem, Brkga(by=by, blocks=blocks)).tolist() == found


def test_without_modules_blocks_are_by_the_mirrored_order() -> None:
    problem = line()
    mirror, scope = (brkga._blocks(problem, Brkga(by=by, blocks=3)) for by in ("mirror", "scope"))  # type: ignore[arg-type]
    assert mirror.tolist() == scope.tolist() and sorted(set(mirror.tolist())) == [0, 1, 2]


def test_how_many_genes_there_are_and_where_they_are_drawn() -> None:
    problem = line()
    tensors = problem.graph.num_tensors
    settings = Brkga(by="program", blocks=3, order="given", width=0.5, rho=0.5)
    prior = prior_of(problem, settings)
    assert len(prior.center) == 3 * 2 + 10 + tensors * 2 and set(prior.bias.tolist()) == {128}
    assert len(prior_of(problem, Brkga(by="program", blocks=3, sends=False)).center) == 3 * 2 + 10
    assert prior.center[6:16].tolist() == pytest.approx([(op + 0.5) / 10 for op in range(10)])
    assert set(prior.width[6:16].tolist()) == {0.5}
    for part in (slice(0, 6), slice(16, None)):
        assert set(prior.center[part].tolist()) == {0.5} and set(prior.width[part].tolist()) == {1.0}
    assert set(prior_of(problem, Brkga()).width.tolist()) == {1.0}
    decoder = decoder_of(problem, settings)
    assert decoder.blocks == 3 and decoder.block_of.tolist() == [0, 0, 0, 0, 1, 1, 1, 2, 2, 2]


@pytest.mark.parametrize(
    ("elites", "mutants", "fine"),
    [(0.0, 0.0, True), (0.99, 1.0, True), (1.0, 0.1, False), (-0.1, 0.1, False), (0.2, 1.1, False), (0.2, -0.1, False)],
)
def test_shares_are_of_one(elites: float, mutants: float, fine: bool) -> None:
    settings = Brkga(elites=elites, mutants=mutants)
    if fine:
        brkga._check_shares(settings)
    else:
        with pytest.raises(InvalidSetting):
            brkga._check_shares(settings)


def test_what_does_not_fit_is_worse_than_all_that_does() -> None:
    assert brkga._fitness(Score(0, 5)) == 5 and brkga._fitness(Score(3, 5)) == HEAVY + 3
    assert brkga._fitness(Score(1, 0)) == HEAVY + 1


def test_genes_of_a_plan_are_high_where_it_is_and_in_its_order() -> None:
    problem = line(4)
    decoder = decoder_of(problem, Brkga())
    plan = Plan.of(problem, [0, 1, 1, 0], [30, 10, 20, 0])
    genes = genes_of(problem, decoder, plan)
    assert genes[:8].reshape(4, 2).argmax(axis=1).tolist() == [0, 1, 1, 0]
    assert np.argsort(genes[8:12]).tolist() == [3, 1, 2, 0] and genes[8:12].tolist()[3] == 0
    sends = genes[12:].reshape(-1, 2)
    read_by = {int(tensor): op for op in range(4) for tensor in problem.graph.reads_of(op)}
    for tensor in range(problem.graph.num_tensors):
        soonest = genes[8 + read_by[tensor]] if tensor in read_by else 65_535
        assert sends[tensor].tolist() == [soonest] * 2


class Offered:
    """A search that says what it is offered."""

    def __init__(self, problem: Problem, best: Score | None) -> None:
        self.problem, self.best_score = problem, WORST if best is None else best
        self.best = None if best is None else Plan.of(problem, [0] * problem.num_ops)
        self.got = list[Score]()

    def offer(self, plan: Plan, score: Score) -> bool:
        self.got.append(score)
        return True

    def timeline(self, plan: Plan) -> Any:
        return Search(self.problem, Budget(None, 9)).timeline(plan)


@pytest.mark.parametrize(
    ("fitness", "best", "offered"),
    [
        (50, Score(0, 51), True),
        (50, Score(0, 50), False),
        (50, Score(0, 49), False),
        (50, Score(1, 5), True),
        (50, None, True),
        (HEAVY + 5, Score(6, 0), True),
        (HEAVY + 5, Score(5, 9), False),
        (HEAVY + 5, Score(0, 10**9), False),
        (HEAVY, Score(1, 9), True),
    ],
)
def test_what_is_no_better_than_the_best_is_not_decoded(fitness: int, best: Score | None, offered: bool) -> None:
    problem = line(4, memory_limit=10)
    decoder = decoder_of(problem, Brkga(sends=False))
    search: Any = Offered(problem, best)
    genes = genes_of(problem, decoder, Plan.of(problem, [0, 1, 1, 0]))
    assert brkga._offer(search, layout(problem), decoder, genes, fitness) is offered
    assert len(search.got) == offered
    if offered:
        short = search.got[0].over_bytes > 0
        assert search.got[0] == Score(0, 50) if fitness < HEAVY else short


class Brood:
    """Generations whose fitness is told row by row; which rows were bred, of how many mutants, and up to what."""

    def __init__(
        self,
        monkeypatch: pytest.MonkeyPatch,
        settings: Brkga,
        values: list[int],
        simulations: int = 10**6,
        first: bool = False,
    ) -> None:
        self.asked, self.offered = list[tuple[int, ...]](), list[int]()
        self.parents = list[list[int]]()
        left = iter(values)

        def breed(plain: Any, decoder: Any, prior: Any, old: Any, new: Any, order: Any, *given: Any) -> None:
            elites, mutants, _, low, high, fresh, most = given
            self.asked.append((elites, mutants, low, high, most))
            self.parents.append(order.tolist())
            for row in range(low, high):
                fresh[row] = next(left)
                new[row] = fresh[row] % 60_000

        def offer(search: Search, plain: Any, decoder: Any, genes: Any, fitness: int) -> bool:
            assert genes[0] == fitness % 60_000 or first
            self.offered.append(fitness)
            return search.offer(Plan.of(search.problem, [0] * 4), Score(0, fitness))

        monkeypatch.setattr(breeding, "breed", breed)
        monkeypatch.setattr(brkga, "_offer", offer)
        monkeypatch.setattr(brkga, "spread", lambda part, count: part(0, count))
        problem = line(4)
        self.search = Search(problem, Budget(None, simulations))
        start = Plan.of(problem, [1] * 4) if first else None
        evolve(self.search, settings, decoder_of(problem, settings), prior_of(problem, settings), start)


def test_elites_are_kept_and_the_rest_bred_up_to_the_worst_of_them(monkeypatch: pytest.MonkeyPatch) -> None:
    told = Brood(
        monkeypatch,
        Brkga(population=5, elites=0.4, mutants=0.2, evaluations=11),
        [50, 40, 90, 30, 60, 45, 20, 70, 80, 10, 99],
    )
    assert told.asked == [(2, 5, 0, 5, STOPPED), (2, 1, 2, 5, 40), (2, 1, 2, 5, 30)]
    assert told.offered == [30, 20, 10] and told.search.simulations == 11
    # The two best, then the others as they stand.
    assert told.parents[1][:2] == [3, 1] and told.parents[1][2:] == [0, 2, 4]
    assert told.parents[2] == [3, 0, 1, 2, 4], "of 30, 40, 45, 20 and 70"


def test_there_are_three_at_least_one_elite_and_one_child(monkeypatch: pytest.MonkeyPatch) -> None:
    few = Brood(monkeypatch, Brkga(population=1, elites=0.0, mutants=1.0, evaluations=7), list(range(100, 80, -1)))
    assert few.asked == [(1, 3, 0, 3, STOPPED), (1, 1, 1, 3, 98), (1, 1, 1, 3, 96)]
    small = Brood(monkeypatch, Brkga(population=50, evaluations=2), list(range(100, 50, -1)))
    assert small.asked == [(1, 3, 0, 2, STOPPED)], "no more than asked for"


def test_it_ends_with_the_budget(monkeypatch: pytest.MonkeyPatch) -> None:
    told = Brood(monkeypatch, Brkga(population=5, elites=0.4, evaluations=100), list(range(100, 0, -1)), simulations=7)
    assert [(low, high) for _, _, low, high, _ in told.asked] == [(0, 5), (2, 4)] and told.search.simulations == 7


def test_it_ends_with_the_evaluations_and_threads_have_rows_of_their_own(monkeypatch: pytest.MonkeyPatch) -> None:
    told = Brood(monkeypatch, Brkga(population=5, elites=0.4, mutants=0.0, evaluations=7), list(range(100, 0, -1)))
    assert [(low, high) for _, _, low, high, _ in told.asked] == [(0, 5), (2, 4)]
    rows = list[tuple[int, int]]()
    monkeypatch.setattr(breeding, "breed", lambda *given: rows.append(given[9:11]))
    monkeypatch.setattr(brkga, "_offer", lambda search, *_: search.offer(Plan.of(search.problem, [0] * 4), Score(0, 1)))
    monkeypatch.setattr(brkga, "spread", lambda part, count: part(1, count))
    problem, settings = line(4), Brkga(population=5, elites=0.4, evaluations=8)
    evolve(Search(problem, Budget(None, 99)), settings, decoder_of(problem, settings), prior_of(problem, settings))
    assert rows == [(1, 5), (3, 5)]


def test_while_an_elite_does_not_fit_no_evaluation_is_stopped(monkeypatch: pytest.MonkeyPatch) -> None:
    values = [50, HEAVY, 60, HEAVY + 1, HEAVY + 2, 70, 80, 90, 1, 2, 3]
    settings = Brkga(population=5, elites=0.6, mutants=0.0, evaluations=9)
    told = Brood(monkeypatch, settings, values)
    assert [most for *_, most in told.asked] == [STOPPED, STOPPED, 70]


@pytest.mark.parametrize(("patience", "simulations"), [(0, 17), (1, 8), (3, 8), (4, 11), (6, 11), (7, 14)])
def test_patience_is_in_simulations_without_a_gain(
    patience: int, simulations: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = Brkga(population=5, elites=0.4, mutants=0.0, evaluations=17, patience=patience)
    told = Brood(monkeypatch, settings, [50] * 40)
    assert told.search.simulations == simulations


def test_a_plan_to_begin_with_takes_the_place_of_the_last(monkeypatch: pytest.MonkeyPatch) -> None:
    settings = Brkga(population=5, elites=0.2, mutants=0.0, evaluations=10)
    told = Brood(monkeypatch, settings, [10_000] * 40, first=True)
    assert told.search.simulations == 10 and told.asked[1][4] == told.search.best_score.value < 10_000
    assert told.parents[1][0] == 4
    only = Brood(monkeypatch, Brkga(population=5, evaluations=5), [10_000] * 40, first=True)
    assert only.search.simulations == 5 and only.search.best_score.value == 10_000, "there is no room for it"
    seeds = list[int]()
    monkeypatch.setattr(breeding, "breed", lambda *given: seeds.append(given[8]))
    monkeypatch.setattr(brkga, "_offer", lambda search, *_: search.offer(Plan.of(search.problem, [0] * 4), Score(0, 1)))
    problem = line(4)
    settings = Brkga(population=4, evaluations=12)
    evolve(Search(problem, Budget(None, 99)), settings, decoder_of(problem, settings), prior_of(problem, settings))
    assert len(set(seeds)) == len(seeds) > 2, "every generation has a seed of its own"


def test_genes_stand_for_the_device_of_highest_affinity_that_can() -> None:
    decode = getattr(breeding.decode, "py_func", breeding.decode)
    able = np.array([[True, True, True], [False, True, True], [True, True, True]])
    decoder = SimpleNamespace(block_of=np.array([0, 0, 1]), able=able, blocks=2, sends=True)
    plain = SimpleNamespace(devices=3)
    genes = np.array([9, 5, 5, 0, 0, 0, 70, 80, 60, 1, 2, 3, 4], np.uint16)
    place, rank, sends = np.empty(3, np.int32), np.empty(3, np.int32), np.empty(4, np.int64)
    decode(plain, decoder, genes, place, rank, sends)
    assert place.tolist() == [0, 1, 0], "of equals the first"
    assert rank.tolist() == [70, 80, 60] and sends.tolist() == [1, 2, 3, 4]


def test_a_child_has_each_gene_of_one_of_its_parents(monkeypatch: pytest.MonkeyPatch) -> None:
    child = getattr(breeding._child, "py_func", breeding._child)
    bits = iter([0x0706050403020100, 0x000000000000FF80])
    monkeypatch.setattr(breeding, "draw", lambda state: np.uint64(next(bits)))
    genes, bias = np.zeros(10, np.uint16), np.full(10, 4, np.uint8)
    bias[8:] = 0x81, 0xFF
    child(genes, np.full(10, 1, np.uint16), np.full(10, 2, np.uint16), bias, None)
    assert genes.tolist() == [1, 1, 1, 1, 2, 2, 2, 2, 1, 2]


def test_a_fresh_gene_is_around_its_center(monkeypatch: pytest.MonkeyPatch) -> None:
    mutant = getattr(breeding._mutant, "py_func", breeding._mutant)
    table = np.array([np.arange(256) / 256, np.full(256, 0.25)], np.float32)
    drawn = {0: 0.0, 255: 255 / 256, 128 | (32_768 << 8): 128.5 / 256, 255 | (32_768 << 8): 255.5 / 256}
    for bits, share in drawn.items():
        monkeypatch.setattr(breeding, "draw", lambda state, bits=bits: np.uint64(bits))
        genes = np.zeros(3, np.uint16)
        center, width = np.array([0.5, 0.25, 0.9], np.float32), np.array([1.0, 0.5, 1.0], np.float32)
        mutant(genes, SimpleNamespace(table=table, shape=np.array([0, 0, 1]), center=center, width=width), None)
        high = 0.25 + 0.75 / 2 if bits == 255 | (32_768 << 8) else 0.25
        told = [0.5 + share - 0.5, 0.25 + 0.5 * (share - 0.5), 0.9 + high - 0.5]
        assert genes.tolist() == [int(min(65_535, max(0, 65_536 * value))) for value in told]


@pytest.mark.parametrize(
    ("step", "peaks", "fitness"),
    [
        (70, [100, 50], 70),
        (70, [101, 50], HEAVY + 1),
        (70, [103, 54], HEAVY + 7),
        (-1, [0, 0], STOPPED),
        (0, [0, 0], 0),
    ],
)
def test_fitness_is_the_value_of_what_fits(
    step: int, peaks: list[int], fitness: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    score = getattr(breeding.score, "py_func", breeding.score)

    def run(
        layout: Any, place: Any, rank: Any, sends: Any, scratch: Any, most_ns: Any, most: Any, peak: Any, *_: Any
    ) -> int:
        assert (most_ns, most) == (900, 901)
        peak[:] = peaks
        return step

    monkeypatch.setattr(breeding, "run", run)
    monkeypatch.setattr(breeding, "stops_at", lambda goal, most: (most, most + 1))
    monkeypatch.setattr(breeding, "value_of", lambda goal, step, peak, worked: step)
    decoder = SimpleNamespace(goal=None, limits=ints([100, 50]))
    found = score(
        SimpleNamespace(devices=2), decoder, None, None, None, SimpleNamespace(worked=None), None, np.zeros(2, int), 900
    )
    assert found == fitness
