"""How GO's examples and their elites are made, step by step, with small numbers worked out by hand."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from loadmaster.cost import price
from loadmaster.graph import GraphBuilder
from loadmaster.graph.columns import ints
from loadmaster.learn.go2020 import examples
from loadmaster.learn.go2020.examples import DRAWN, GoElite, GoKey
from tests.graphs.tiny import chain, diamond, pair


@pytest.mark.parametrize(
    ("ops", "parallel", "seed", "suits"),
    [
        (59, 9.0, 0, False),
        (60, 9.0, 1, True),
        (3_000, 9.0, 1, True),
        (3_001, 9.0, 0, False),
        (99, 1.2, 1, False),
        (99, 1.21, 3, True),
        (99, 1.0, 4, True),
        (99, 1.0, 5, False),
    ],
)
def test_examples_suit_by_their_ops_and_by_what_there_is_to_gain(
    ops: int, parallel: float, seed: int, suits: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(examples, "make_problem", lambda key: SimpleNamespace(num_ops=ops))
    monkeypatch.setattr(examples, "parallelism", lambda problem: parallel)
    assert examples.suits(GoKey(2, seed)) is suits
    if not suits:
        assert examples.find_elite(GoKey(2, seed), 5) is None


def test_parallelism_is_work_over_the_longest_path() -> None:
    assert examples.parallelism(price(diamond(), pair())) == (10 + 20 + 30 + 10) / (10 + 30 + 10)
    assert examples.parallelism(price(chain(), pair())) == 1
    short = GraphBuilder("short")
    for name in "abc":
        short.op(name, "any", [], [short.tensor(1)], time_ns=1)
    assert examples.parallelism(price(short.build(), pair())) == 3


@pytest.mark.parametrize(("spare", "memory"), [(1.5, 75), (0.03, 1), (0.001, 1)])
def test_memory_is_an_equal_share_of_what_one_device_would_hold(
    spare: float, memory: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    held = SimpleNamespace(peak_bytes=np.array([90, 10]))
    monkeypatch.setattr(examples, "simulate", lambda problem, plan: held)
    tight = examples._tighten(price(chain(), pair()), spare)
    assert tight.memory_bytes.tolist() == [memory, memory] == tight.cluster.memory_bytes.tolist()


def test_an_elite_is_worth_the_best_of_what_was_reached_and_of_the_candidates() -> None:
    none = ints([])
    elite = GoElite(none, ints([9, 7]), none, none, none, none, ints([8, 6]))
    assert elite.value == 6
    assert replace(elite, reached=ints([8])).value == 7
    assert replace(elite, reached=none, candidate_value=ints([2**61, 2**60])).value == 2**60


def test_problems_are_of_the_corpus_or_drawn_and_memory_binds_in_two_of_five(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(examples, "graph_of", lambda line: f"line {line}")
    monkeypatch.setattr(examples, "vary", lambda graph, rng: f"{graph}, varied")
    monkeypatch.setattr(examples, "draw_graph", lambda rng: "drawn")
    monkeypatch.setattr(examples, "draw_cluster", lambda rng: "cluster")
    monkeypatch.setattr(examples, "price", lambda graph, cluster: (graph, cluster))
    monkeypatch.setattr(examples, "_tighten", lambda problem, spare: (*problem, spare))
    make: Any = examples.make_problem.__wrapped__
    made = {key: make(key) for key in (GoKey(line, seed) for line in (DRAWN, 0, 3) for seed in range(100))}
    graphs = {DRAWN: "drawn", 0: "line 0, varied", 3: "line 3, varied"}
    assert all(problem[:2] == (graphs[key.line], "cluster") for key, problem in made.items())
    spare = [problem[2] for problem in made.values() if len(problem) == 3]
    assert 0.33 < len(spare) / len(made) < 0.47 and 1.2 <= min(spare) < 1.3 and 2.1 < max(spare) <= 2.2
    assert len(set(spare)) == len(spare)


def test_lines_come_in_another_order_each_time_and_with_the_number_of_the_round() -> None:
    keys = examples.example_keys([0, 4, 7, 9, 12], 15, 1, drawn=0.0)
    rounds = [keys[:5], keys[5:10], keys[10:]]
    assert all(sorted(key.line for key in some) == [0, 4, 7, 9, 12] for some in rounds)
    assert [key.seed for key in keys] == [1] * 5 + [2] * 5 + [3] * 5
    assert len({tuple(key.line for key in some) for some in rounds}) == 3
    assert keys != examples.example_keys([0, 4, 7, 9, 12], 15, 2, drawn=0.0)
    assert examples.example_keys([0, 4], 0, 1) == []


def test_drawn_graphs_stand_before_lines_and_alone_where_there_are_none() -> None:
    keys = examples.example_keys([5, 6], 200, 3, drawn=1.0)
    assert [key.line == DRAWN for key in keys] == [True, False] * 100
    alone = examples.example_keys([], 200, 3, drawn=0.0)
    assert {key.line for key in alone} == {DRAWN}
    for seeds in ([key.seed for key in keys[::2]], [key.seed for key in alone]):
        assert len(set(seeds)) == len(seeds) and 2**30 < max(seeds) < 2**31 and min(seeds) < 2**28
    some = examples.example_keys(range(400), 500, 3)
    assert 0.2 < sum(key.line == DRAWN for key in some) / 500 < 0.32  # 0.35 for every line: 0.35 of 1.35


@pytest.mark.parametrize(
    ("old", "new", "pieces"),
    [
        ((0, 0, 0, 0), (0, 0, 0, 0), []),
        ((0, 0, 0, 0), (1, 1, 0, 0), [[0, 1]]),
        ((0, 0, 0, 0), (1, 0, 0, 1), [[0], [3]]),
        ((1, 0, 0, 0), (1, 1, 1, 0), [[1], [2]]),
        ((0, 1, 0, 0), (1, 0, 0, 0), [[0], [1]]),
        ((0, 0, 0, 0), (1, 1, 1, 1), [[0, 1, 2, 3]]),
        ((0, 0, 0, 0), (0, 1, 1, 1), [[1, 2, 3]]),
    ],
)
def test_pieces_hang_together_and_went_the_same_way(old: Any, new: Any, pieces: list[list[int]]) -> None:
    problem = price(diamond(), pair())
    found = examples.changed_pieces(problem, ints(old), ints(new))
    assert sorted(piece.tolist() for piece in found) == pieces


def test_ops_that_came_from_elsewhere_are_no_piece_though_they_went_to_one_device() -> None:
    problem: Any = price(chain(), "3xp100-pcie")
    found = examples.changed_pieces(problem, ints([0, 1, 1]), ints([2, 2, 0]))
    assert sorted(piece.tolist() for piece in found) == [[0], [1], [2]]


class Judge:
    """Scores devices by a rule, so many times."""

    def __init__(self, rule: Any, left: int = 99) -> None:
        self.problem, self.rule, self.simulations_left = price(diamond(), pair()), rule, left

    def score(self, plan: Any) -> int:
        self.simulations_left -= 1
        return int(self.rule(plan.device.tolist()))


@pytest.mark.parametrize(
    ("rule", "left", "wanted"),
    [
        (lambda device: 5, 99, ([0, 0, 0, 0], 5)),  # as good without them
        (lambda device: 5, 0, ([1, 0, 0, 1], 5)),
        (lambda device: 5 + (device[0] == 0), 99, ([1, 0, 0, 0], 5)),
        (lambda device: 6 - device[0] + 2 * device[3], 99, ([1, 0, 0, 0], 5)),  # the first is worth its place
        (lambda device: 4 + device[3], 99, ([0, 0, 0, 0], 4)),
        # The first can be undone once the last is, whichever was tried first.
        (lambda device: 5 + (device == [0, 0, 0, 1]), 99, ([0, 0, 0, 0], 5)),
    ],
)
@pytest.mark.parametrize("seed", range(3))
def test_changes_that_gain_nothing_are_undone(rule: Any, left: int, wanted: Any, seed: int) -> None:
    judge: Any = Judge(rule, left)
    device, best, order = ints([0, 0, 0, 0]), ints([1, 0, 0, 1]), ints([0, 1, 2, 3])
    found, score = examples._undone(judge, device, best, order, rule(best.tolist()), np.random.default_rng(seed))
    assert (found.tolist(), score) == wanted
    assert judge.simulations_left >= 0


def test_one_simulation_undoes_one_change() -> None:
    judge: Any = Judge(lambda device: 5, 1)
    score: Any = 5
    some, _ = examples._undone(
        judge, ints([0] * 4), ints([1, 0, 0, 1]), ints([0, 1, 2, 3]), score, np.random.default_rng(0)
    )
    assert some.sum() == 1 and judge.simulations_left == 0


@pytest.mark.parametrize(
    ("plain", "now", "left", "order", "asked"),
    [
        ([0, 1, 2, 3], 5, 9, [0, 1, 2, 3], 0),  # it has that order already
        ([0, 2, 1, 3], 5, 9, [0, 2, 1, 3], 1),  # as good in the order of the critical path
        ([0, 2, 1, 3], 6, 9, [0, 1, 2, 3], 1),
        ([0, 2, 1, 3], 4, 1, [0, 2, 1, 3], 1),
        ([0, 2, 1, 3], 4, 0, [0, 1, 2, 3], 0),
    ],
)
def test_a_search_is_followed_by_undoing_and_by_the_order_of_the_critical_path(
    plain: list[int], now: int, left: int, order: list[int], asked: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    problem, made, scored, rounds = price(diamond(), pair()), list[Any](), list[Any](), list[Any]()
    found = SimpleNamespace(device=ints([1, 0, 0, 1]), rank=ints([0, 1, 2, 3]))

    def search(problem: Any, budget: Any, seed: int = -1) -> Any:
        made.append((budget.seconds, budget.simulations, seed))
        itself = SimpleNamespace(best=found, best_score=5, simulations_left=left)

        def score(plan: Any) -> int:
            scored.append(plan.rank.tolist())
            itself.simulations_left -= 1
            return now

        itself.score = score
        return itself

    def undone(judge: Any, device: Any, best: Any, order: Any, score: Any, rng: Any) -> Any:
        rounds.append((device.tolist(), best.tolist(), order.tolist(), score))
        return ints([0, 0, 0, 1]), 5 if score >= 5 else score

    monkeypatch.setattr(examples, "Search", search)
    monkeypatch.setattr(examples, "improve", lambda search, plan, hot, cold, chains: made.append((hot, cold, chains)))
    monkeypatch.setattr(examples, "_undone", undone)
    monkeypatch.setattr(examples, "critical_ranks", lambda problem, device: ints([plain] * len(device)))
    rng = np.random.default_rng(4)
    best, rank = examples.improved(problem, ints([0] * 4), ints([3, 2, 1, 0]), 60, rng)
    assert rank.tolist() == order and scored == [plain] * asked
    assert best.tolist() == ([0, 0, 0, 1] if left else [1, 0, 0, 1])
    again = [] if order == [0, 1, 2, 3] or left < 2 else [([0] * 4, [0, 0, 0, 1], plain, now)]
    assert rounds == ([([0] * 4, [1, 0, 0, 1], [0, 1, 2, 3], 5), *again] if left else [])
    assert made[0][:2] == (None, 60) and made[1] == (0.0, 0.0, 1) and made[2] == (None, examples.UNDOING, -1)


def test_the_seed_of_a_search_is_drawn() -> None:
    seeds = list[int]()

    class Told(Exception):
        pass

    def search(problem: Any, budget: Any, seed: int) -> Any:
        seeds.append(seed)
        raise Told

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(examples, "Search", search)
        rng = np.random.default_rng(2)
        for _ in range(40):
            with pytest.raises(Told):
                examples.improved(None, ints([]), ints([]), 1, rng)  # type: ignore[arg-type]
    assert len(set(seeds)) == 40 and 2**30 < max(seeds) < 2**31 and min(seeds) < 2**28


def test_an_elite_improves_the_best_candidate_and_one_of_the_next(monkeypatch: pytest.MonkeyPatch) -> None:
    """Candidates are placements of the diamond, worth 40 to 10 from the first to the last."""
    problem, devices = price(diamond(), pair()), np.array([[0, 0, 0, 0], [0, 1, 0, 0], [0, 0, 1, 0], [0, 0, 0, 1]])
    budgets, asked = list[Any](), list[Any]()

    class Candidates(SimpleNamespace):
        def __len__(self) -> int:
            return len(self.device)

    def search(problem: Any, budget: Any) -> Any:
        budgets.append(budget.simulations)
        values = ints([40, 30, 20, 10])
        return SimpleNamespace(score_many=lambda devices, ranks: (ints([0] * 4), values))

    def improved(problem: Any, device: Any, rank: Any, simulations: int, rng: Any) -> Any:
        asked.append((device.tolist(), simulations))
        return device, ints([0, 1, 2, 3])

    monkeypatch.setattr(examples, "suits", lambda key: True)
    monkeypatch.setattr(examples, "make_problem", lambda key: problem)
    candidates = Candidates(device=devices, slot=ints([3, 1, 4, 1]))
    monkeypatch.setattr(examples, "candidates_of", lambda problem, features: candidates)
    monkeypatch.setattr(examples, "features_of", lambda problem: None)
    monkeypatch.setattr(examples, "Search", search)
    monkeypatch.setattr(examples, "improved", improved)
    monkeypatch.setattr(examples, "plain_values", lambda problem: ints([7, 8, 9]))
    seconds = []
    for seed in range(30):
        asked.clear()
        elite = examples.find_elite(GoKey(1, seed), 17)
        assert elite is not None and elite.candidate_value.tolist() == [40, 30, 20, 10]
        starts = elite.candidate.tolist()
        assert starts == sorted(set(starts)) and 3 in starts and asked == [(devices[s].tolist(), 17) for s in starts]
        assert elite.device.tolist() == devices[starts].tolist() and elite.plain.tolist() == [7, 8, 9]
        # a, then b or c over there, then d; what is sent takes 5 ns and a tenth of its bytes
        steps = {0: 70, 1: 10 + 15 + 20 + 10 + 10, 2: 10 + 15 + 30 + 9 + 10, 3: 60 + 9 + 10}
        assert elite.reached.tolist() == [steps[start] for start in starts]
        assert [turn[0] for turn in elite.turn.tolist()] == [0] * len(starts)
        second = int(np.random.default_rng([2, seed, 2]).integers(1, 6)) % 4
        assert starts == sorted({3, 3 - second})
        seconds.append(second)
    assert budgets == [4] * 30
    # The second of 1 to 5, counted round the four: 1 and 5 are the same, 4 is the best itself.
    share = np.bincount(seconds, minlength=4) / 30
    assert share[1] > max(share[2], share[3]) > 0 and share[0] > 0 and len(share) == 4


def test_half_of_the_examples_are_seen_without_scopes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(examples, "make_problem", lambda key: key)
    monkeypatch.setattr(
        examples, "go_input", lambda problem, groups, scopes, kernels: (problem, groups, scopes, kernels)
    )
    keys = [GoKey(line, seed) for line in (DRAWN, 0, 5) for seed in range(40)]
    seen: list[Any] = [examples.make_input(key, 8, True) for key in keys]
    assert [(key, groups, kernels) for key, groups, _, kernels in seen] == [(key, 8, True) for key in keys]
    drawn = [bool(np.random.default_rng([key.line + 1, key.seed, 1]).random() < 0.5) for key in keys]
    assert [scopes for _, _, scopes, _ in seen] == drawn and 0.4 < np.mean(drawn) < 0.6
    assert examples.make_input(keys[0], 8)[3] is False  # type: ignore[index]
