"""What processes of GO's training are asked, and the plans they start from."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

pytest.importorskip("torch")

from loadmaster.graph.columns import ints
from loadmaster.learn.go2020 import rollouts
from loadmaster.learn.go2020.examples import GoKey
from loadmaster.learn.go2020.rollouts import Pools
from loadmaster.search import Score


@pytest.mark.parametrize(("moved", "starts"), [(0, 1), (1, 1), (2, 2), (5, 2)])
def test_a_plan_on_the_way_has_half_of_what_a_search_changed(
    moved: int, starts: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    groups = 8
    first = SimpleNamespace(device=np.zeros(groups, np.int64), level=None, fusion=None, base=None)
    target = np.eye(2)[(np.arange(groups) < moved).astype(int)]
    for name, made in (
        ("candidate_decided", first),
        ("group_shares", None),
        ("like_devices", target),
        ("device_class", None),
        ("group_levels", None),
    ):
        monkeypatch.setattr(rollouts, name, lambda *_, made=made: made)
    monkeypatch.setattr(rollouts, "start_at", lambda _, __, decided, device, *___: (decided.device, device))
    one: Any = SimpleNamespace(label=None, candidate_shares=lambda _: None)
    made = list(rollouts.starts_of(None, one, 0, None, None, np.random.default_rng(1)))  # type: ignore[arg-type]
    assert len(made) == starts
    assert all(device.tolist() == [1] * moved + [0] * (groups - moved) for _, device in made)  # type: ignore[misc, attr-defined]
    assert [int(begun.sum()) for begun, _ in made] == [0, moved // 2][:starts]  # type: ignore[misc]
    ones = np.flatnonzero(made[-1][0])  # type: ignore[index]
    assert (np.diff(ones) == 1).all() and (len(ones) == 0 or ones[-1] < moved)


def test_devices_are_renamed_by_the_time_of_groups_on_their_best_device() -> None:
    """Two groups of one second say that devices change names, one of three that they do not; its slow device does not
    count."""
    shares = np.eye(2, dtype=np.float32)[[0, 0, 1]]
    like = np.eye(2, dtype=np.float32)[[1, 1, 1]]
    one: Any = SimpleNamespace(time=np.array([[1.0, 9.0], [1.0, 9.0], [3.0, 3.0]]))
    alike = ints([0, 0])
    np.testing.assert_array_equal(rollouts.like_devices(shares, like, one, alike), shares)
    one.time[2] = 1.5
    np.testing.assert_array_equal(rollouts.like_devices(shares, like, one, alike), shares[:, ::-1])
    np.testing.assert_array_equal(rollouts.like_devices(shares, like, one, ints([0, 1])), shares)


@pytest.mark.parametrize("pools", [1, 3])
def test_eight_jobs_of_each_process_are_under_way(pools: int) -> None:
    under_way, most = [0], [0]

    class Pool:
        def submit(self, function: Any, job: Any) -> Any:
            under_way[0] += 1
            most[0] = max(most[0], under_way[0])

            def result() -> Any:
                under_way[0] -= 1
                return function(job)

            return SimpleNamespace(result=result, cancel=lambda: None)

    made: Any = Pools.__new__(Pools)
    made.pools = [Pool() for _ in range(pools)]
    jobs = [(GoKey(0, seed),) for seed in range(50)]
    assert [key.seed for (key,) in made.in_order(lambda job: job, jobs)] == list(range(50))
    assert most[0] == 8 * pools and under_way[0] == 0
    assert {made.home(key) for (key,) in jobs} == set(range(pools))


def test_what_decisions_are_worth(monkeypatch: pytest.MonkeyPatch) -> None:
    problem = SimpleNamespace(graph=SimpleNamespace(nbytes=np.array([3, 4])))
    monkeypatch.setattr(rollouts.examples, "make_problem", lambda key: problem)
    monkeypatch.setattr(rollouts, "Search", lambda problem, budget: budget.simulations)
    monkeypatch.setattr(rollouts, "score_decided", lambda search, label, many: (search, label))
    assert rollouts.value_job((GoKey(0, 0), ints([5]), ["a", "b"])) == (2, ints([5]), 7.0)  # type: ignore[list-item]
    monkeypatch.setattr(rollouts.examples, "worth", lambda problem, over, value: over * 1_000 + value)
    assert rollouts.worth_job((GoKey(0, 0), [Score(1, 5), Score(0, 9), Score(0, 8)])) == 8


def test_a_start_has_its_single_changes_simulated(monkeypatch: pytest.MonkeyPatch) -> None:
    moves = rollouts.Moves(ints([]), ints([]), ints([]), np.zeros(0, np.float32))
    outcome = SimpleNamespace(score=Score(0, 100))
    monkeypatch.setattr(rollouts, "look", lambda *_: outcome)
    monkeypatch.setattr(rollouts, "draw_moves", lambda one, decided, device, count, rng: moves)
    monkeypatch.setattr(rollouts, "all_changes", lambda decided, moves: "changes")
    monkeypatch.setattr(rollouts, "Search", lambda problem, budget: budget.simulations)
    monkeypatch.setattr(rollouts, "score_decided", lambda search, label, many: (search, many))
    worth = {True: ints([100]), False: ints([50, 200])}
    monkeypatch.setattr(rollouts.examples, "worth", lambda problem, over, value: worth[not isinstance(over, int)])
    one: Any = SimpleNamespace(label=None)
    start = rollouts.start_at(None, one, "decided", "device", "level", None)  # type: ignore[arg-type]
    np.testing.assert_allclose(start.moves.gain, np.log([2.0, 0.5]), rtol=1e-6)
    assert (start.outcome, start.device, start.level) == (outcome, "device", "level")


@pytest.mark.parametrize(("candidates", "starts"), [(2, 2), (3, 3), (9, 3)])
def test_without_an_elite_an_example_starts_from_three_candidates(
    candidates: int, starts: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    for suits in (True, False):
        monkeypatch.setattr(rollouts.examples, "suits", lambda key, suits=suits: suits)
        monkeypatch.setattr(rollouts.examples, "make_problem", lambda key: None)
        monkeypatch.setattr(rollouts.examples, "make_input", lambda *_: SimpleNamespace(candidates=[0] * candidates))
        monkeypatch.setattr(rollouts.examples, "plain_values", lambda problem: "plain")
        monkeypatch.setattr(rollouts, "candidate_decided", lambda one, n: SimpleNamespace(device=n, level=n))
        monkeypatch.setattr(rollouts, "start_at", lambda problem, one, first, device, level, rng: (device, level))
        found = rollouts.example_job((GoKey(-1, 7), None, 8, False))
        if not suits:
            assert found is None
            continue
        rng = np.random.default_rng([0, 7, 3])
        picks = rng.choice(candidates, starts, replace=False).tolist()
        assert found is not None and list(found.starts) == [(pick, pick) for pick in picks]


def test_a_window_has_its_size_wherever_it_begins() -> None:
    members = ints([3, 5, 8, 9])
    found = {tuple(rollouts._window(members, 3, np.random.default_rng(seed)).tolist()) for seed in range(30)}
    assert found == {(3, 5, 8), (5, 8, 9)}
    assert rollouts._window(members, 4, np.random.default_rng(0)).tolist() == members.tolist()


def test_levels_of_groups_are_means_by_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rollouts, "Plan", SimpleNamespace(of=lambda problem, device, rank: rank))
    monkeypatch.setattr(rollouts, "critical_ranks", lambda problem, device: [len(device)])
    monkeypatch.setattr(rollouts, "simulate", lambda problem, plan: SimpleNamespace(turn=f"turn {plan}"))
    asked = []
    monkeypatch.setattr(
        rollouts, "levels_of", lambda plain, turn: asked.append((plain, turn)) or np.array([10, 2, 8, 0])
    )
    problem: Any = SimpleNamespace(best_ns=np.array([0, 0, 2, 4]))
    found = rollouts.group_levels(problem, ints([0, 1, 0, 1]), ints([0, 0, 0, 0]), "wanted")  # type: ignore[arg-type]
    # (10 * 1 + 8 * 3) / 4 and (2 * 1 + 0 * 5) / 6
    assert found.tolist() == [8, 0] and asked == [("turn 1", "wanted")]


@pytest.mark.parametrize("ray", ["", "there"])
def test_each_process_has_a_pool_and_a_cluster_one_for_all(ray: str, monkeypatch: pytest.MonkeyPatch) -> None:
    made, begun = list[Any](), list[Any]()

    class Crew:
        def __init__(self, *given: Any) -> None:
            made.append(given)

        def __enter__(self) -> Any:
            return self

        def __exit__(self, *_: object) -> None: ...

        def submit(self, function: Any, job: Any) -> Any:
            begun.append(function(job))
            return SimpleNamespace(result=lambda: None)

    monkeypatch.setattr(rollouts, "crew", Crew)
    with rollouts.ExitStack() as stack:
        pools = Pools(stack, 3, ray).pools
    assert made == ([(1, "there")] if ray else [(1,)] * 3)
    assert len(pools) == 3 and len(set(map(id, pools))) == (1 if ray else 3) and begun == [0] * 3
