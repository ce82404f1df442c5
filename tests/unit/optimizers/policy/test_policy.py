"""The learned list scheduler: what it is without weights, what any weights may not break, and files of weights."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import loadmaster as lm
from loadmaster.errors import UnreadableFile
from loadmaster.graph.columns import ints
from loadmaster.learn.go2020.drawing import branching_step
from loadmaster.optimizers.lists.schedulers import Heft
from loadmaster.optimizers.policy.decoding import PAIR, decode, former_of
from loadmaster.optimizers.policy.policy import HIDDEN, decoded, net_of, size_of
from loadmaster.optimizers.policy.proposing import NO_LOG, proposals
from loadmaster.optimizers.policy.views import CONTEXT, view_of
from loadmaster.optimizers.policy.weights import read_weights, write_weights
from loadmaster.plans import Plan
from loadmaster.problem import Problem
from loadmaster.search import Budget, Search
from loadmaster.simulator import simulate
from loadmaster.zoo.synthetic import generate
from tests.strategies import problems


def layered(devices: str = "4xp100-pcie", seed: int = 3) -> Problem:
    return lm.price(next(iter(generate("layered", 1, seed, (60, 80)))), devices)


def random_weights(seed: int) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal(size_of())


@pytest.mark.parametrize("cluster", ["2xp100-pcie", "2xp100-pcie+2xk80", "8xp100-pcie"])
def test_without_weights_it_is_heft(cluster: str) -> None:
    problem = layered(cluster)
    by_rule = Heft().optimize(Search(problem, Budget(None, 1)))
    first, *_ = decoded(problem, view_of(problem), net_of(np.zeros(size_of())))
    assert (first.device == by_rule.device).all()
    assert simulate(problem, first).step_ns == simulate(problem, by_rule).step_ns


@settings(max_examples=25, deadline=None)
@given(problems(), st.integers(0, 100))
def test_any_weights_give_plans_that_hold(problem: Problem, seed: int) -> None:
    view, net = view_of(problem), net_of(random_weights(seed))
    assert view.context.shape == (problem.num_ops, CONTEXT)
    assert np.isfinite(view.context).all()
    plan = None
    for given_plan in (None, Plan.of(problem, ints(problem.able.argmax(axis=1)[problem.leader]))):
        for plan in decoded(problem, view, net, given_plan, noise=0.2, seed=seed + 1):
            lm.check(plan, problem)


def test_planned_starts_wait_for_what_an_op_reads() -> None:
    problem = layered()
    device, begin, scores = decode(
        problem, view_of(problem), net_of(random_weights(1)), ints(np.arange(problem.num_ops)), former_of(problem, None)
    )
    end = begin + problem.op_ns[np.arange(problem.num_ops), device]
    start, before = problem.graph.dependencies
    for op in range(problem.num_ops):
        assert all(end[maker] <= begin[op] for maker in before[start[op] : start[op + 1]])
    assert np.isfinite(scores).all()
    assert (scores.argmax(axis=1) == device).mean() > 0.99  # some ops may have no choice


def test_scores_about_a_plan_leave_it_as_it_is() -> None:
    problem = layered()
    plan = Heft().optimize(Search(problem, Budget(None, 1)))
    former = former_of(problem, plan)
    forced = decode(problem, view_of(problem), net_of(random_weights(2)), former.order, former, forced=True)
    assert (forced.device == plan.device).all()
    said = proposals(problem, view_of(problem), net_of(random_weights(2)), plan)
    assert said.place.shape == (problem.num_ops, 4)
    assert len(NO_LOG.kind) == 0


def test_devices_that_would_be_too_full_are_avoided() -> None:
    """One of the devices has room for a single tensor; HEFT, which does not look, puts as much there as elsewhere."""
    graph = next(iter(generate("layered", 1, 5, (60, 80))))
    roomy = lm.price(graph, "4xp100-pcie")
    small = roomy.memory_bytes.copy()
    small[0] = int(roomy.graph.nbytes.max())
    tight = replace(roomy, memory_bytes=ints(small))
    plan = next(decoded(tight, view_of(tight), net_of(np.zeros(size_of()))))
    by_rule = Heft().optimize(Search(tight, Budget(None, 1)))
    assert (plan.device == 0).sum() < (by_rule.device == 0).sum()


def test_it_never_ends_worse_than_the_plan_it_improves() -> None:
    problem = layered("2xp100-pcie+2xk80")
    first = lm.solve(problem, "etf", Budget(None, 1)).value
    assert lm.solve(problem, "learned-list:start=etf", Budget(None, 9)).value <= first
    assert lm.solve(problem, "learned-list", Budget(None, 1)).simulations == 1


def test_it_can_join_the_starts_of_a_search() -> None:
    problem = layered()
    alone = lm.solve(problem, "learned-list", Budget(None, 8)).value
    assert lm.solve(problem, "placement:also=learned-list", Budget(None, 60)).value <= alone


def test_the_weights_that_come_with_the_package_are_better_than_none(tmp_path: Path) -> None:
    """On generated graphs of a kind that they were trained on, with other seeds."""
    write_weights(tmp_path / "none.safetensors", np.zeros(size_of()), {})
    gains = []
    for seed in range(6):
        problem = lm.price(branching_step(np.random.default_rng([seed, 12_345]), 160), "4xp100-pcie")
        values = [
            lm.solve(problem, f"learned-list{weights}", Budget(None, 8)).value
            for weights in ("", f":weights={tmp_path / 'none.safetensors'}")
        ]
        gains.append(values[1] / values[0])
    assert np.exp(np.mean(np.log(gains))) > 1.0


def test_weights_are_a_safetensors_file(tmp_path: Path) -> None:
    path, weights = tmp_path / "w.safetensors", random_weights(4)
    write_weights(path, weights, {"seed": 4})
    assert (read_weights(path) == weights).all()
    numpy_door = pytest.importorskip("safetensors.numpy")
    assert (numpy_door.load_file(path)["weights"] == weights).all()


def test_the_vector_of_weights_is_cut_into_the_layers() -> None:
    net = net_of(np.arange(size_of(), dtype=np.float64))
    assert net.of_pair.shape == (PAIR, HIDDEN)
    assert net.of_op.shape == (CONTEXT, HIDDEN)
    assert net.of_pair[0, 0] == PAIR
    assert net.out[-1] == size_of() - 1


@pytest.mark.parametrize(
    "data", [b"", b"\x00" * 20, b"\xff" * 40, (2).to_bytes(8, "little") + b"{}", (9**9).to_bytes(8, "little")]
)
def test_a_file_that_holds_none_is_refused(tmp_path: Path, data: bytes) -> None:
    path = tmp_path / "w.safetensors"
    path.write_bytes(data)
    with pytest.raises(UnreadableFile, match="holds no weights"):
        read_weights(path)


def test_weights_of_another_size_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "w.safetensors"
    write_weights(path, np.zeros(size_of() + 1), {})
    with pytest.raises(UnreadableFile, match="make no network"):
        read_weights(path)
    for odd in (np.nan, np.inf, -1e300):  # sums of them are no numbers, and no device is the best of such
        write_weights(path, np.full(size_of(), odd), {})
        with pytest.raises(UnreadableFile, match="holds weights beyond"):
            read_weights(path)
    with pytest.raises(UnreadableFile, match="there is no file"):
        read_weights(tmp_path / "none.safetensors")
