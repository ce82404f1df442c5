"""How chains share out simulations, with walks that only count."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from loadmaster.optimizers.annealing import chains
from loadmaster.optimizers.annealing.chains import Chains, Decisions, compile_walk, side_by_side
from loadmaster.optimizers.annealing.state import FUSE_WINDOW, LOOK_AT, RAN, SHIFT
from loadmaster.optimizers.fusion.starts import fusing_for
from loadmaster.search import Budget, Score, Search
from tests.unit.optimizers.annealing.test_engine import chains_of
from tests.unit.optimizers.fusion.test_search import tangled
from tests.unit.optimizers.test_search_methods import problem_of


class Walks:
    """Two chains whose walks only count: steps of each call, and lengths of coolings."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, budget: int = 1_000) -> None:
        self.chains = chains_of(problem_of(3), Decisions(), count=2, budget=budget + 2)
        self.search = self.chains.search
        self.steps, self.lengths, self.shared = list[int](), set[tuple[int, int]](), 0

        def walk(layout: Any, terrain: Any, chain: Any, scratch: Any, policy: Any, fusing: Any, *given: Any) -> None:
            habits, steps, _ = given
            self.lengths.add((int(habits.begun), int(habits.length)))
            self.steps.append(int(steps))
            chain.counts[RAN] += steps

        def share(temperature: float) -> None:
            self.shared += 1

        monkeypatch.setattr(chains.engine, "walk", walk)
        self.threads = set[int]()

        def spread(part: Any, count: int, threads: int) -> None:
            self.threads.add(threads)
            part(0, count)

        monkeypatch.setattr(chains, "spread", spread)
        monkeypatch.setattr(self.chains, "_share", share)
        self.before = self.search.simulations

    @property
    def counted(self) -> int:
        return self.search.simulations - self.before


@pytest.mark.parametrize(
    ("simulations", "active", "steps"),
    [(10, 2, [5, 5]), (10, 1, [10]), (1, 2, [1, 1]), (3, 2, [1, 1]), (18, 2, [7, 7, 2, 2]), (7, 1, [7])],
)
def test_chains_share_a_cooling_and_look_at_each_other_between_rounds(
    simulations: int, active: int, steps: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    told = Walks(monkeypatch)
    monkeypatch.setattr(chains, "ROUND", 7)
    told.chains.active = active
    if active == 1:
        steps = [min(7, left) for left in range(simulations, 0, -7)]
    told.chains.cool(simulations, 0.1, 0.01)
    assert told.steps == steps and told.counted == sum(steps)
    assert told.lengths == {(0, max(1, simulations // active))} and told.shared == len(steps) // active
    told.chains.cool(active, 0.1, 0.01)
    assert (sum(steps) // active, 1) in told.lengths, "the next begins where this one ended"


@pytest.mark.parametrize(("cores", "threads"), [(1, 1), (2, 2), (16, 2)])
def test_there_are_no_more_threads_than_cores(cores: int, threads: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LOADMASTER_THREADS", str(cores))
    told = Walks(monkeypatch)
    told.chains.cool(10, 0.1, 0.01)
    assert told.steps == [5, 5] and told.threads == {threads}


@pytest.mark.parametrize(
    ("cores", "ops", "seconds", "count"),
    [
        (4, 10, None, 1),  # simulations are counted: no machine may tell
        (4, 10, 1.0, 4),
        (1, 10, 1.0, 1),
        (64, 10, 1.0, 16),
        (64, 40_000, 1.0, 10),  # what each needs grows with the problem
        (64, 500_000, 1.0, 1),
        (4, 0, 1.0, 4),
    ],
)
def test_by_the_clock_as_many_walk_as_there_are_cores_and_there_is_room(
    cores: int, ops: int, seconds: float | None, count: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LOADMASTER_THREADS", str(cores))
    search = Search(problem_of(3), Budget(seconds, 100))
    assert side_by_side(search, ops) == count


@pytest.mark.parametrize(
    ("cores", "simulations", "several", "active", "total"),
    [
        (4, 900, False, 4, 1_800),  # each has half of what one alone has
        (4, 900, True, 4, 1_800),
        (9, 900, False, 6, 2_204),  # there are no more chains
        (4, 33, False, 2, 46),  # one for every sixteen simulations
        (4, 15, False, 1, 15),
        (4, 15, True, 2, 15),
        (1, 900, False, 1, 900),
        (1, 900, True, 2, 900),
    ],
)
def test_those_that_walk_side_by_side_each_have_a_part_of_a_cooling(
    cores: int, simulations: int, several: bool, active: int, total: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LOADMASTER_THREADS", str(cores))
    some = chains_of(problem_of(3), Decisions(), count=6)
    assert some.enlist(simulations, False) == simulations and some.active == 1
    assert some.enlist(simulations, True) == simulations and some.active == 2
    some.search = Search(some.problem, Budget(600.0, None))
    assert some.enlist(simulations, several) == total and some.active == active


def test_simulations_side_by_side_count_once_for_how_far_a_search_has_come(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LOADMASTER_THREADS", "2")
    told = Walks(monkeypatch)
    told.chains.search = told.chains.pace.search = search = Search(told.chains.problem, Budget(600.0, None))
    told.chains.cool(20, 0.1, 0.01)
    assert sum(told.steps) == search.simulations == 20 and search.in_turn == 10


def test_by_the_clock_chains_look_at_each_other_when_they_look_at_the_clock(monkeypatch: pytest.MonkeyPatch) -> None:
    told = Walks(monkeypatch)
    monkeypatch.setattr(chains, "ROUND", 7)
    told.chains.pace.count = 9
    assert told.chains._round == 7
    told.chains.search = Search(told.chains.problem, Budget(600.0, None))
    monkeypatch.setenv("LOADMASTER_THREADS", "1")
    assert told.chains._round == 7
    monkeypatch.setenv("LOADMASTER_THREADS", "2")
    assert told.chains._round == 9
    told.chains.pace.count = 5
    assert told.chains._round == 7


def test_near_the_end_of_the_budget_fewer_walk(monkeypatch: pytest.MonkeyPatch) -> None:
    told = Walks(monkeypatch, budget=5)
    left = told.search.simulations_left
    told.chains.cool(100, 0.1, 0.01)
    assert told.steps == [left // 2, left // 2, *[1] * (left % 2)] and told.search.spent
    assert told.shared == 0, "the round was not walked to its end"
    told.chains.cool(100, 0.1, 0.01)
    assert told.counted == left


def test_where_there_is_nothing_to_move_no_simulation_is_used(monkeypatch: pytest.MonkeyPatch) -> None:
    told = Walks(monkeypatch)
    told.chains.weights[:] = 0
    told.chains.cool(10, 0.1, 0.01)
    assert told.steps == []


def test_moves_of_order_are_weighed_down_and_up_again() -> None:
    some = chains_of(problem_of(3), Decisions())
    usual = some.weights.copy()
    for share in (0.25, 1.0):
        some.weigh_order(share)
        assert some.weights[SHIFT:FUSE_WINDOW].tolist() == (usual[SHIFT:FUSE_WINDOW] * share).tolist()
        assert some.weights[:SHIFT].tolist() == usual[:SHIFT].tolist() and not some.weights[FUSE_WINDOW:].any()


def test_one_chain_may_change_kernels_and_weighs_them_as_two_do() -> None:
    problem = tangled(12, 1)
    one, two = (chains_of(problem, Decisions(fusing=True), count=count) for count in (1, 2))
    one.weigh_order(0.5)
    two.weigh_order(0.5)
    assert one.weights.tolist() == two.weights.tolist() and one.weights[FUSE_WINDOW:].any()
    assert len(fusing_for(problem, 1)) == 1


def test_chains_that_are_started_anew_stand_there_and_look_around_first() -> None:
    some = chains_of(problem_of(3), Decisions(), count=2)
    first, second = some.chains
    first.counts[RAN], first.counts[LOOK_AT] = 40, 90
    first.score[2:], second.score[2:] = (0, 7), (0, 5)
    second.best_place[:] = 1
    some.return_to_best()
    for chain in (first, second):
        assert chain.place.tolist() == chain.best_place.tolist() == second.best_place.tolist()
        assert chain.score.tolist() == [0, 5, 0, 5]
    assert first.counts[LOOK_AT] == 40 and some.score == Score(0, 5)


def test_what_is_better_than_the_best_of_the_search_is_offered() -> None:
    some = chains_of(problem_of(3), Decisions())
    best = some.search.best_score
    some.chains[0].score[2:] = best
    plan = some.search.best
    some._offer()
    assert some.search.best is plan
    some.chains[0].score[3] = best.value - 1
    some._offer()
    assert some.search.best is not plan and some.search.best_score == Score(best.over_bytes, best.value - 1)


def test_the_walk_is_made_for_one_chain_without_a_step(monkeypatch: pytest.MonkeyPatch) -> None:
    made = list[Any]()
    monkeypatch.setattr(chains.engine, "compile_walk", lambda *given: made.append(given))
    some: Chains = chains_of(tangled(12, 1), Decisions())
    before = some.search.simulations
    for fusing in ((), fusing_for(some.problem, 1)):
        compile_walk(some.search, fusing)
    assert some.search.simulations == before
    assert made[0][4] is None and made[1][4] is not None
    assert not made[0][5].weights[FUSE_WINDOW:].any() and made[1][5].weights[FUSE_WINDOW:].any()
    assert [len(given[2].priority) for given in made] == [0, len(made[1][4].old_priority)]
    assert np.array_equal(made[0][2].place, np.zeros(12))
