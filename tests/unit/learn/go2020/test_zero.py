"""Zero-shot of GO: candidates and what is said of them, timelines as it sees them, moves it values."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from loadmaster.cost import price  # noqa: E402
from loadmaster.graph.columns import ints  # noqa: E402
from loadmaster.learn.features import features_of  # noqa: E402
from loadmaster.learn.go2020.candidates import SLOTS, candidates_of  # noqa: E402
from loadmaster.learn.go2020.controls import best_in_order, fixed_order  # noqa: E402
from loadmaster.learn.go2020.examples import DRAWN, GoKey, find_elite, make_problem, suits, worth  # noqa: E402
from loadmaster.learn.go2020.input import GoInput, go_input  # noqa: E402
from loadmaster.learn.go2020.losses import choice_loss  # noqa: E402
from loadmaster.learn.go2020.moves import Moves, all_changes, draw_moves, move_loss  # noqa: E402
from loadmaster.learn.go2020.network import GoNetwork, GoOutputs, NetworkShape, go_batch  # noqa: E402
from loadmaster.learn.go2020.policy import place_ops  # noqa: E402
from loadmaster.learn.go2020.rollouts import example_job, look  # noqa: E402
from loadmaster.learn.go2020.timeline import seen_of  # noqa: E402
from loadmaster.learn.go2020.zero import Judged, candidate_decided, zero_shot  # noqa: E402
from loadmaster.optimizers.cuts import cut_stacks  # noqa: E402
from loadmaster.plans import Plan, check  # noqa: E402
from loadmaster.problem import Problem  # noqa: E402
from loadmaster.search import Budget, solve  # noqa: E402
from loadmaster.simulator import simulate  # noqa: E402
from loadmaster.zoo.shelf import load_zoo  # noqa: E402


@pytest.fixture(autouse=True)
def _one_thread() -> None:
    torch.set_num_threads(1)
    torch.manual_seed(0)


@pytest.fixture(scope="module")
def problem() -> Problem:
    return price(load_zoo("transformer-xl-2"), "4xp100-pcie")


@pytest.fixture(scope="module")
def one(problem: Problem) -> GoInput:
    return go_input(problem, 64)


def test_candidates_are_legal_unlike_and_made_without_a_simulation(
    problem: Problem, monkeypatch: pytest.MonkeyPatch
) -> None:
    def never(*_: object) -> None:
        raise AssertionError("a candidate was simulated")

    features = features_of(problem)
    monkeypatch.setattr("loadmaster.search.search.simulate", never)
    monkeypatch.setattr("loadmaster.search.search.simulate_many", never)
    candidates = candidates_of(problem, features)
    for device in candidates.device:
        check(Plan.of(problem, ints(device)), problem)
    assert len(np.unique(candidates.device, axis=0)) == len(candidates) > 10
    assert len(set(candidates.slot.tolist())) == len(candidates)
    assert np.isfinite(candidates.summary).all()


def test_the_bound_of_a_summary_is_below_what_the_simulation_takes(problem: Problem) -> None:
    """Longest path and busiest device, in units of the ideal: the step can be no shorter."""
    candidates = candidates_of(problem, features_of(problem))
    steps = np.array([simulate(problem, Plan.of(problem, ints(device))).step_ns for device in candidates.device])
    path, load = (2.0 ** candidates.summary[:, column].astype(float) for column in (6, 7))
    all_on_one = candidates.slot == SLOTS.index("one-device")
    unit = float(problem.op_ns[:, 0].sum()) / load[all_on_one][0]
    assert (np.maximum(path, load) * unit <= steps * 1.001).all()


def test_every_stack_of_modules_is_cut_over_all_devices() -> None:
    problem = price(load_zoo("gnmt-2"), "2xp100-pcie")
    device = cut_stacks(problem, np.ones(problem.num_ops))
    for stack in ("encoder.layers.", "decoder.layers."):
        members = [op for op, scope in enumerate(problem.graph.scope) if scope.startswith(stack)]
        share = np.bincount(device[members], minlength=2) / len(members)
        np.testing.assert_allclose(share, 0.5, atol=0.02)


def test_a_candidate_is_taken_op_by_op_and_a_moved_group_as_a_whole(problem: Problem) -> None:
    coarse = go_input(problem, 12)
    candidate = next(h for h in range(len(coarse.candidates)) if SLOTS[coarse.candidates.slot[h]] == "heft")
    decided = candidate_decided(coarse, candidate)
    np.testing.assert_array_equal(place_ops(problem, coarse.label, [decided])[0], coarse.candidates.device[candidate])
    device = decided.device.copy()
    device[5] = (device[5] + 1) % 4
    [moved] = place_ops(problem, coarse.label, [replace(decided, device=ints(device))])
    assert (moved[coarse.label == 5] == device[5]).all()
    np.testing.assert_array_equal(moved[coarse.label != 5], coarse.candidates.device[candidate][coarse.label != 5])


def test_slack_is_what_an_op_can_be_late_without_the_step_ending_later(problem: Problem) -> None:
    """The last op to end has none; an op that ends long before its only reader starts, on the same device, has some."""
    one = go_input(problem, 0)
    plan = Plan.of(problem, ints(np.zeros(problem.num_ops)))
    line = simulate(problem, plan)
    seen = seen_of(problem, one.label, plan.device, line)
    last = one.label[int(line.end_ns.argmax())]
    assert seen.groups[last, 2] == pytest.approx(0, abs=1e-6)
    assert (seen.groups[:, 2] <= 1e-5).all()  # one device, never idle: nothing can be late
    np.testing.assert_allclose(seen.pairs[:, 0, 4], line.end_ns.max() / line.step_ns, rtol=1e-5)
    assert (seen.pairs[:, 1:, 4] == 0).all()  # the others do nothing


def test_the_loss_of_moves_falls_where_gains_are_scored_above_losses(one: GoInput) -> None:
    decided = candidate_decided(one, 0)
    moves = draw_moves(one, decided, decided.device, 20, np.random.default_rng(1))
    gain = np.where(np.arange(20) % 2, 0.05, -0.05).astype(np.float32)
    valued = Moves(moves.member, moves.move, moves.device, gain)
    place = torch.zeros(1, one.num_groups, 4, requires_grad=True)
    loss = move_loss(GoOutputs(place, torch.zeros(1), torch.zeros(0)), [decided], [valued])
    assert float(loss.detach()) == pytest.approx(np.log(2), rel=1e-5)
    loss.backward()
    with torch.no_grad():
        better = move_loss(GoOutputs(place - place.grad, torch.zeros(1), torch.zeros(0)), [decided], [valued])
    assert better < loss


def test_each_change_moves_its_members_and_nothing_else(one: GoInput) -> None:
    decided = candidate_decided(one, 3)
    moves = draw_moves(one, decided, ints((decided.device + 1) % 4), 16, np.random.default_rng(2))
    for move, after in enumerate(all_changes(decided, moves)):
        members = moves.members_of(move)
        assert (after.device[members] == moves.device[move]).all()
        rest = np.setdiff1d(np.arange(one.num_groups), members)
        np.testing.assert_array_equal(after.device[rest], decided.device[rest])


def test_the_samples_are_the_most_promising_candidates(problem: Problem, one: GoInput) -> None:
    network = GoNetwork(NetworkShape(hidden=16))
    with torch.no_grad():
        for weight in network.parameters():
            weight += 0.2 * torch.randn_like(weight)
        scores = network.choose(go_batch([one])).numpy()

    def judge(wanted: list[list]) -> list[list[Judged]]:  # type: ignore[type-arg]
        return [[look(problem, one.label, decided) for decided in wanted[0]]]

    [outcomes] = zero_shot(network, [one], go_batch([one]), 5, judge)
    best = np.argsort(-scores, kind="stable")[:5]
    for candidate, outcome in zip(best, outcomes, strict=True):
        np.testing.assert_array_equal(outcome.decided.base, one.candidates.device[candidate])


def test_random_weights_stand_beside_the_trained_ones(problem: Problem) -> None:
    trained, random = (solve(problem, spec, Budget(None, 8)) for spec in ("go", "go:checkpoint=none"))
    again = solve(problem, "go:checkpoint=none", Budget(None, 8))
    assert random.value == again.value and max(trained.simulations, random.simulations) <= 8


@pytest.mark.parametrize("checkpoint", ["go", "none"])
def test_zero_shot_leaves_fusion_to_rules_within_its_samples(problem: Problem, checkpoint: str) -> None:
    plain = solve(problem, f"go:samples=4,checkpoint={checkpoint}", Budget(None, 50))
    fusing = solve(problem, f"go:tasks=[fusion,placement,schedule],checkpoint={checkpoint}", Budget(None, 50))
    assert fusing.simulations <= 8 and len(np.unique(fusing.plan.kernel)) < problem.num_ops
    assert fusing.value < plain.value


def test_the_choice_learns_which_candidate_is_best(one: GoInput) -> None:
    batch, network = go_batch([one]), GoNetwork(NetworkShape(hidden=16))
    value = torch.linspace(100, 200, len(one.candidates)).flip(0)
    adam = torch.optim.Adam(network.parameters(), lr=1e-2)
    for _ in range(40):
        loss = choice_loss(network.choose(batch), batch, value)
        adam.zero_grad()
        loss.backward()
        adam.step()
    assert int(network.choose(batch).argmax()) == len(one.candidates) - 1


def test_the_fixed_order_is_the_best_rule_first_then_what_adds_most() -> None:
    keys = [key for seed in range(30) if suits(key := GoKey(DRAWN, seed))][:4]
    examples = [example_job((key, find_elite(key, 1), 32, False)) for key in keys]
    known = [example for example in examples if example is not None]
    order = fixed_order(known)
    assert sorted(order) == list(range(len(SLOTS)))
    for example in known:
        assert best_in_order(example, order, len(SLOTS)) == example.candidate_value.min()
        assert best_in_order(example, order, 8) <= best_in_order(example, order, 1)


def test_a_plan_that_does_not_fit_is_worth_less_than_any_that_does_in_four_times_its_time() -> None:
    problem = make_problem(GoKey(DRAWN, 1))
    values = worth(problem, ints([0, 1, 10**15]), ints([100, 100, 100]))
    assert values.tolist() == [100, 401, 800]
