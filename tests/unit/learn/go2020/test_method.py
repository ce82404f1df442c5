"""GO as a method: from scratch, zero-shot, fine-tuned, one task at a time."""

from __future__ import annotations

from dataclasses import asdict, replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings

torch = pytest.importorskip("torch")

from loadmaster.baselines.lists.schedulers import Heft  # noqa: E402
from loadmaster.bench.methods import ExpertBestOrder  # noqa: E402
from loadmaster.cost import price  # noqa: E402
from loadmaster.errors import InvalidSetting, UnreadableFile  # noqa: E402
from loadmaster.learn.go2020.agent import Agent, load_go  # noqa: E402
from loadmaster.learn.go2020.method import Go  # noqa: E402
from loadmaster.learn.go2020.network import GoNetwork, NetworkShape  # noqa: E402
from loadmaster.papers.training import write_tensors  # noqa: E402
from loadmaster.plans import check  # noqa: E402
from loadmaster.problem import Problem  # noqa: E402
from loadmaster.search import Budget, Result, Search, solve  # noqa: E402
from loadmaster.simulator import first_come, simulate  # noqa: E402
from loadmaster.zoo.shelf import load_zoo  # noqa: E402
from tests.strategies import problems  # noqa: E402

ONE = Go(scratch=True)
ALL = "fusion,placement,schedule"


@pytest.fixture(scope="module")
def problem() -> Problem:
    return price(load_zoo("transformer-xl-2"), "2xp100-pcie")


@pytest.fixture(scope="module")
def weights(tmp_path_factory: pytest.TempPathFactory) -> str:
    """An untrained network in a file, with a schedule that moves ops."""
    path = tmp_path_factory.mktemp("weights") / "go.safetensors"
    torch.manual_seed(3)
    shape = NetworkShape(hidden=16, tasks=("placement", "schedule"))
    tensors = {f"network.{name}": tensor for name, tensor in GoNetwork(shape).state_dict().items()}
    write_tensors(path, tensors, {"policy": {"shape": asdict(shape), "groups": 1024}})
    return str(path)


def run(problem: Problem, method: Go, simulations: int, seed: int = 0) -> Result:
    return solve(problem, method, Budget(None, simulations), seed)


def test_from_scratch_it_beats_the_expert_under_the_best_order_and_heft(problem: Problem) -> None:
    found = run(problem, ONE, 320)
    assert found.simulations == 320
    assert found.fits
    assert found.value < 0.97 * solve(problem, ExpertBestOrder()).value
    assert found.value < 0.8 * solve(problem, Heft()).value


@pytest.mark.parametrize("tasks", ["placement", "schedule", "fusion", "placement,schedule", ALL])
def test_every_choice_of_tasks_changes_only_what_it_is_for(problem: Problem, tasks: str) -> None:
    method = replace(ONE, tasks=tasks)
    search = Search(problem, Budget(None, 60), 1)
    plan = method.optimize(search)
    check(plan, problem)
    inner = method.inner.optimize(Search(problem, Budget(None, 60)))
    assert search.simulations <= 60
    if "placement" not in tasks:
        np.testing.assert_array_equal(plan.device, inner.device)
    if "fusion" not in tasks:
        assert not plan.fuses
    if tasks == "fusion":
        np.testing.assert_array_equal(plan.rank, inner.rank)
        assert simulate(problem, plan).step_ns < simulate(problem, inner).step_ns


@settings(max_examples=6, deadline=None)
@given(problem=problems(max_ops=10, max_devices=3))
def test_small_problems_of_every_kind(problem: Problem) -> None:
    for tasks in ("placement,schedule", ALL):
        method = replace(ONE, tasks=tasks)
        one, two = (run(problem, method, 40, 7) for _ in range(2))
        assert one.simulations <= 40
        for column in ("kernel", "device", "rank"):
            np.testing.assert_array_equal(getattr(one.plan, column), getattr(two.plan, column), column)


def test_zero_shot_simulates_eight_plans_and_fine_tuning_goes_on_from_there(problem: Problem, weights: str) -> None:
    zero = run(problem, Go(checkpoint=weights), 1_000)
    assert zero.simulations == 8
    tuned = run(problem, Go(checkpoint=weights, finetune=5, rollouts=16), 1_000)
    # Two chains that are measured first, and a timeline for the ranks of each; each step: a timeline, four plans
    # decided anew, and the draws.
    assert tuned.simulations <= 8 + 2 * 2 + 5 * (1 + 4 + 16)
    assert tuned.simulations > 60
    assert tuned.value <= zero.value
    assert run(problem, Go(checkpoint=weights), 3).simulations == 3


def test_fine_tuning_leaves_the_loaded_weights_as_they_were(problem: Problem, weights: str) -> None:
    before = {name: tensor.clone() for name, tensor in load_go(weights).state_dict().items()}
    run(problem, Go(checkpoint=weights, finetune=2), 100)
    for name, tensor in load_go(weights).state_dict().items():
        torch.testing.assert_close(tensor, before[name], rtol=0, atol=0)


def test_coarser_groups_are_what_the_network_scores(problem: Problem) -> None:
    agent = Agent(replace(ONE, groups=8), Search(problem, Budget(None, 80)))
    agent.learn(None)
    assert agent.pool[0].decided.device.shape == (8,)
    assert agent.search.best is not None
    check(agent.search.best, problem)


def test_first_come_first_served_tells_what_placement_alone_is_worth(problem: Problem, weights: str) -> None:
    expert = solve(problem, "expert")
    for method in (replace(ONE, order="fifo"), Go(checkpoint=weights, order="fifo", finetune=3)):
        found = run(problem, method, 300)
        alone = first_come(problem, found.plan.device)
        assert simulate(problem, alone).step_ns == found.value
        assert found.value < expert.value
        np.testing.assert_array_equal(found.plan.rank, alone.rank)


def test_fusion_on_the_experts_placement_beats_the_rule_of_compilers(problem: Problem) -> None:
    found = run(problem, replace(ONE, tasks="fusion"), 400)
    greedy = solve(problem, "greedy-fusion:inner=expert")
    assert found.value < 0.99 * greedy.value


@pytest.mark.full
def test_all_three_decisions_together_beat_each_alone() -> None:
    problem = price(load_zoo("wavenet-2x18"), "2xp100-pcie")  # where fusion gains much: by its rules, on few graphs
    together, *alone = (run(problem, replace(ONE, tasks=tasks), 300).value for tasks in (ALL, *ALL.split(",")))
    assert together < 0.97 * min(alone)


def test_tells_what_is_wrong_with_its_settings(tmp_path: Path) -> None:
    with pytest.raises(InvalidSetting, match="tasks"):
        Go(tasks="placing")
    with pytest.raises(InvalidSetting, match="pooling"):
        Go(pooling="mean")
    with pytest.raises(InvalidSetting, match="fewer"):
        Go(samples=0)
    with pytest.raises(InvalidSetting, match="share"):
        Go(share=1.0)
    with pytest.raises(InvalidSetting, match="tasks"):
        Go(tasks="schedule", order="fifo")
    with pytest.raises(UnreadableFile, match="no trained weights"):
        load_go("nothing-of-that-name")
    write_tensors(tmp_path / "x.safetensors", {"a": torch.zeros(1)}, {"policy": {}})
    with pytest.raises(UnreadableFile, match="holds no policy"):
        load_go(str(tmp_path / "x.safetensors"))
