"""How GO draws and learns: chances as they are said, gains that move them, plans that are legal."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from loadmaster.cost import price  # noqa: E402
from loadmaster.graph.columns import ints  # noqa: E402
from loadmaster.learn.go2020 import policy  # noqa: E402
from loadmaster.learn.go2020.input import GoInput, go_input  # noqa: E402
from loadmaster.learn.go2020.losses import policy_loss  # noqa: E402
from loadmaster.learn.go2020.network import MIDDLE, GoNetwork, GoOutputs, NetworkShape, go_batch  # noqa: E402
from loadmaster.learn.go2020.policy import (  # noqa: E402
    OFF,
    UNFIT,
    Decided,
    Drawing,
    Stand,
    advantages,
    draw_changes,
    draw_plans,
    draw_units,
    fused,
    middle_levels,
    moved_ranks,
    rewards,
    score_decided,
    stand_of,
)
from loadmaster.optimizers.lists.schedulers import critical_rank  # noqa: E402
from loadmaster.plans import check  # noqa: E402
from loadmaster.problem import Problem  # noqa: E402
from loadmaster.search import Budget, Search  # noqa: E402
from loadmaster.simulator import simulate  # noqa: E402
from loadmaster.zoo.shelf import load_zoo  # noqa: E402
from loadmaster.zoo.synthetic import generate  # noqa: E402
from tests.unit.learn.go2020.decisions import first_decisions  # noqa: E402

ALL = ("fusion", "placement", "schedule")


@pytest.fixture(scope="module")
def problem() -> Problem:
    return price(next(iter(generate("layered", 1, 5, (80, 80)))), "4xp100-pcie")


@pytest.fixture(scope="module")
def one(problem: Problem) -> GoInput:
    return go_input(problem, 40, kernels=True)


def stand(one: GoInput, rng: np.random.Generator, width: float = 1.0) -> Stand:
    def scores(rows: int, columns: int) -> np.ndarray:
        return (width * rng.standard_normal((rows, columns))).astype(np.float32)

    decided = Decided(ints(np.zeros(one.num_groups)), middle_levels(one.num_groups), middle_levels(len(one.single)))
    return Stand(decided, scores(one.num_groups, 4), scores(one.num_groups, 20), scores(len(one.single), 20))


def test_a_draw_changes_only_what_it_drew_and_units_go_together(one: GoInput) -> None:
    rng = np.random.default_rng(0)
    standing = stand(one, rng)
    draws = draw_plans(one, standing, Drawing(60, whole=0.3, tasks=ALL), rng)
    base = standing.decided
    for part, old in ((draws.device, base.device), (draws.level, base.level), (draws.fusion, base.fusion)):
        for sample in range(60):
            drawn = part.unit[sample] != OFF
            np.testing.assert_array_equal(part.made[sample, ~drawn], old[~drawn])
            for unit in np.unique(part.unit[sample, drawn]):
                assert len(np.unique(part.made[sample, part.unit[sample] == unit])) == 1
            assert len(part.chance[sample]) == len(np.unique(part.unit[sample, drawn]))
    assert (draws.device.unit[draws.whole] != OFF).all()
    assert 0 < draws.whole.sum() < 60


def test_changes_differ_from_what_stands_and_from_each_other(one: GoInput) -> None:
    rng = np.random.default_rng(6)
    standing = stand(one, rng)
    standing.place[:, 0] += 3.0  # most draws would leave all as it is
    draws = draw_changes(one, standing, Drawing(12, whole=0.0, uniform=0.02, tasks=("placement",)), rng, 60)
    assert (draws.device.made != standing.decided.device).any(axis=1).all()
    assert len(np.unique(draws.device.made, axis=0)) == 12
    for made, unit, chance in _rows(draws.device):
        for number in range(len(chance)):
            mean = standing.place[unit == number].mean(axis=0).astype(np.float64)
            share = np.exp(mean[made[unit == number][0]]) / np.exp(mean).sum()
            assert np.exp(chance[number]) == pytest.approx(0.98 * share + 0.005, rel=1e-3)


def test_repeated_gains_make_a_choice_likely() -> None:
    """PPO on a game whose answer is known: the second device is right for every group."""
    one = go_input(price(next(iter(generate("layered", 1, 5, (60, 60)))), "2xp100-pcie"), 20)
    batch, network = go_batch([one]), GoNetwork(NetworkShape(hidden=16, tasks=("placement",)))
    adam, rng = torch.optim.Adam(network.parameters(), lr=5e-3), np.random.default_rng(0)
    nothing = first_decisions([one], batch, [-1])
    for _ in range(60):
        outputs = network(batch, nothing)
        standing = stand_of(outputs, batch, 0, one)
        draws = draw_plans(one, standing, Drawing(8, whole=1.0, tasks=("placement",)), rng)
        reward = draws.device.made.mean(axis=1)
        loss = policy_loss(outputs, batch, [draws], [advantages(reward, draws.whole, 0.0)])
        adam.zero_grad()
        loss.backward()
        adam.step()
    chance = network(batch, nothing).place[0].softmax(1)[:, 1]
    assert float(chance.detach().mean()) > 0.9


def test_units_are_drawn_as_often_as_their_chance_says(one: GoInput) -> None:
    rng = np.random.default_rng(1)
    standing = stand(one, rng)
    standing.place[:] = standing.place[:1]  # all groups alike: every unit has the chances of one group
    draws = draw_plans(one, standing, Drawing(4_000, whole=0.0, uniform=0.2, tasks=("placement",)), rng)
    wanted = 0.8 * np.exp(standing.place[0]) / np.exp(standing.place[0]).sum() + 0.05
    first = [(int(made[unit == 0][0]), chance[0]) for made, unit, chance in _rows(draws.device)]
    share = np.bincount([device for device, _ in first], minlength=4) / len(first)
    np.testing.assert_allclose(share, wanted, atol=0.04)
    for device, chance in first[:50]:
        assert np.exp(chance) == pytest.approx(wanted[device], rel=1e-4)


def _rows(part):  # type: ignore[no-untyped-def]
    return zip(part.made, part.unit, part.chance, strict=True)


def test_the_loss_is_minus_the_clipped_gain_and_its_gradient_favours_what_gained(one: GoInput) -> None:
    rng = np.random.default_rng(2)
    standing = stand(one, rng)
    draws = draw_plans(one, standing, Drawing(6, whole=0.5, uniform=0.0, tasks=ALL), rng)
    gain = np.array([1.0, -1.0, 0.5, 2.0, 0.0, -0.3])
    batch = go_batch([one])
    place = torch.tensor(standing.place[None], requires_grad=True)
    level, fusion = (torch.tensor(t, requires_grad=True) for t in (standing.level[None], standing.fusion))
    loss = policy_loss(GoOutputs(place, level, fusion), batch, [draws], [gain])
    expected = 0.0  # nothing has changed since the draw: every ratio is 1
    for part in (draws.device, draws.level, draws.fusion):
        weights = np.concatenate([np.full(len(c), g) for c, g in zip(part.chance, gain, strict=True)])
        expected -= weights.mean()
    assert float(loss.detach()) == pytest.approx(expected, abs=1e-4)
    loss.backward()
    with torch.no_grad():
        again = policy_loss(GoOutputs(place - 0.1 * place.grad, level, fusion), batch, [draws], [gain])
    assert again < loss


def test_far_from_where_it_was_drawn_a_gain_counts_no_more(one: GoInput) -> None:
    rng = np.random.default_rng(3)
    standing = stand(one, rng, 0.1)
    draws = draw_plans(one, standing, Drawing(4, whole=1.0, uniform=0.0, tasks=("placement",)), rng)
    place = np.zeros_like(standing.place)
    place[np.arange(one.num_groups), draws.device.made[0]] = 20.0
    scores = torch.tensor(place[None], requires_grad=True)
    empty = torch.zeros(1, one.num_groups, 20), torch.zeros(len(one.single), 20)
    loss = policy_loss(GoOutputs(scores, *empty), go_batch([one]), [draws], [np.array([1.0, 0, 0, 0])])
    loss.backward()
    assert scores.grad is not None
    assert scores.grad.abs().max() == 0


def test_rewards_fall_with_time_and_most_with_bytes_over() -> None:
    reward = rewards(ints([0, 0, 1, 500]), ints([100, 400, 100, 100]), 100.0, 1_000.0)
    np.testing.assert_allclose(reward[:2], [-1.0, -2.0])
    assert reward[0] > reward[2] > reward[3]
    assert reward[2] <= -2.0
    gained = advantages(np.array([-1.0, -2.0, -0.5]), np.array([False, False, True]), -1.0)
    assert gained[0] == 0
    assert gained[1] < 0
    assert gained[2] == 0  # the only one that was drawn whole: nothing to compare it with


def test_the_middle_level_is_the_critical_path_order_and_others_move(problem: Problem, one: GoInput) -> None:
    placed = ints(np.arange(problem.num_ops)[None] % 4)
    level = np.full((1, one.num_groups), MIDDLE)
    np.testing.assert_array_equal(moved_ranks(problem, one.label, placed, level)[0], critical_rank(problem, placed[0]))
    level[0, one.label[-1]] = 0
    moved = moved_ranks(problem, one.label, placed, level)[0]
    before = critical_rank(problem, placed[0])
    members = one.label == one.label[-1]
    assert moved[members].mean() < before[members].mean()
    assert sorted(moved.tolist()) == list(range(problem.num_ops))


def test_fused_plans_are_legal_and_priority_zero_fuses_nothing() -> None:
    problem = price(load_zoo("transformer-xl-2"), "2xp100-pcie")
    rng = np.random.default_rng(4)
    device, rank = ints(np.arange(problem.num_ops) % 2), ints(np.arange(problem.num_ops))
    assert not fused(problem, device, rank, ints(np.zeros(problem.num_ops))).fuses
    plan = fused(problem, ints(np.zeros(problem.num_ops)), rank, ints(rng.integers(0, 20, problem.num_ops)))
    check(plan, problem)
    assert plan.fuses


def test_scores_are_those_of_the_simulator(problem: Problem, one: GoInput) -> None:
    rng = np.random.default_rng(5)
    many = draw_plans(one, stand(one, rng), Drawing(5, whole=1.0, tasks=("placement", "schedule")), rng).decided()
    many = [Decided(each.device, each.level, ints([])) for each in many]
    search = Search(problem, Budget(None, 4))
    over, value = score_decided(search, one.label, many)
    assert search.best is not None
    assert simulate(problem, search.best).step_ns == value[:4].min()
    assert (value[4], over[4]) == (2**63 - 1, 2**63 - 1)


def test_an_advantage_is_in_deviations_and_at_most_three() -> None:
    reward, none = np.zeros(50), np.zeros(50, bool)
    reward[:3] = 10, -10, 1
    found = advantages(reward, none, 0.0)
    assert found[0] == 3 and found[1] == -3 and (found[3:] == 0).all()
    assert found[2] == pytest.approx(1 / (reward.std() + 1e-3))
    # Where all was drawn anew, against the mean of those: of the two here 4.
    both = np.array([6.0, 2.0, 1.0])
    found = advantages(both, np.array([True, True, False]), 1.5)
    assert found == pytest.approx(np.array([2.0, -2.0, -0.5]) / (both.std() + 1e-3))


def test_a_reward_is_minus_the_root_of_the_step_and_less_where_it_does_not_fit() -> None:
    value, over = ints([400, 10**9, 100, 100]), ints([0, 0, 50, 10**6])
    found = rewards(over, value, 100.0, 1000.0)
    assert found[:2].tolist() == [-2.0, -100.0], "of more than 10,000 units no more is told"
    assert found[2:] == pytest.approx([-1 - UNFIT - 4 * 0.05, -1 - UNFIT - 4])


def input_of(groups: int, ops: int = 0, kinds: int = 1) -> Any:
    """A line of groups, and ops of so many kinds."""
    start = (
        np.concatenate([[0], np.cumsum([1 + (0 < g < groups - 1) for g in range(groups)])]) if groups > 1 else [0, 0]
    )
    ends = [g for at in range(groups) for g in (at - 1, at + 1) if 0 <= g < groups]
    neighbours = np.array(start), np.array(ends, np.int64)
    kind = ints(np.arange(ops) % kinds)
    return SimpleNamespace(num_groups=groups, single=np.zeros((ops, 1)), kind=kind, neighbours=neighbours)


@pytest.mark.parametrize("groups", [1, 2, 3, 40])
def test_units_of_a_whole_draw_are_runs_of_the_order(groups: int) -> None:
    order = ints(np.arange(groups)[::-1])
    counts = set()
    for seed in range(60):
        units = draw_units(input_of(groups), order, True, np.random.default_rng(seed))
        along = units[order]
        assert along[0] == 0 and set(np.diff(along)) <= {0, 1}
        counts.add(int(along[-1]) + 1)
    assert min(counts) == min(2, groups) and (groups < 40 or 30 < max(counts) <= 40)


@pytest.mark.parametrize("groups", [1, 2, 7, 300])
def test_a_part_that_is_drawn_is_a_third_at_most_and_cut_into_few_units(groups: int) -> None:
    order = ints(np.arange(groups)[::-1])
    sizes, pieces = [], []
    for seed in range(300):
        units = draw_units(input_of(groups), order, False, np.random.default_rng(seed))
        drawn = units[units != OFF]
        assert len(drawn) and set(drawn) == set(range(int(drawn.max()) + 1))
        sizes.append(len(drawn))
        pieces.append(int(drawn.max()) + 1)
    assert min(sizes) == 1 and max(sizes) <= max(1, groups // 3)
    if groups == 300:
        assert max(sizes) > 80 and {1, 2, 4} < set(pieces) and pieces.count(1) > 150


def test_neighbourhoods_are_joined_and_windows_are_runs() -> None:
    rng = np.random.default_rng(0)
    for size in (1, 2, 5, 30):
        for _ in range(20):
            near = policy._neighbourhood(input_of(20), size, rng)
            assert len(near) == min(size, 20) and (np.diff(near) == 1).all()
            window = policy._window(ints(np.arange(20)), size, rng)
            assert len(window) == min(size, 20) and (np.diff(window) == 1).all()
    firsts = {int(policy._window(ints(np.arange(5)), 4, rng)[0]) for _ in range(40)}
    assert firsts == {0, 1}


def test_fusion_is_drawn_by_kind_and_place() -> None:
    sizes, by_kind = set(), 0
    for seed in range(200):
        one = input_of(3, 5, 2)
        units = policy._fusion_units(one, ints([]), False, np.random.default_rng(seed))
        drawn = np.flatnonzero(units != OFF)
        sizes.add(len(drawn))
        assert (np.diff(drawn) == 1).all() and set(units[drawn]) == set(range(int(units.max()) + 1))
        whole = policy._fusion_units(one, ints([]), True, np.random.default_rng(seed))
        assert (whole != OFF).all()
        by_kind += int(whole[0] != whole[1] and whole[0] == whole[2])
    assert sizes == {4}, "of five ops at most four"
    assert by_kind > 20
    many = [
        len(
            np.flatnonzero(
                policy._fusion_units(input_of(3, 64, 2), ints([]), False, np.random.default_rng(seed)) != OFF
            )
        )
        for seed in range(200)
    ]
    assert min(many) == 4 and 40 < max(many) < 64
    assert len(policy._fusion_units(input_of(3), ints([]), True, np.random.default_rng(0))) == 0


def test_units_of_fusion_are_numbered_by_place_and_then_by_kind() -> None:
    """With random numbers that are told: two places, each with two kinds."""
    rng: Any = SimpleNamespace(uniform=lambda low, high: 1.0, random=lambda: 0.5, integers=lambda high: 0)
    units = policy._fusion_units(input_of(3, 8, 2), ints([]), True, rng)
    assert units.tolist() == [0, 1, 0, 1, 2, 3, 2, 3]
    rng.random = lambda: 0.8
    assert policy._fusion_units(input_of(3, 8, 2), ints([]), True, rng).tolist() == [0, 0, 0, 0, 1, 1, 1, 1]


def test_what_nobody_is_asked_about_goes_to_devices_that_can() -> None:
    scores = np.array([[0.0, -30.0, 1.0], [2.0, -30.0, 1.0], [-30.0, -30.0, -30.0]], np.float32)
    rng: Any = SimpleNamespace(random=lambda shape: np.array([[0.0], [0.9999]]))
    picks, chance = policy._pick(ints([0, 0, 1]), scores, 0.5, rng)
    first = np.exp([1.0, -30.0, 1.0])
    wanted = 0.5 * first / first.sum() + 0.5 * np.array([0.5, 0.0, 0.5])
    assert picks.tolist() == [0, 2] and chance == pytest.approx(np.log([wanted[0], 1 / 3]))
    none, empty = policy._pick(ints([OFF, OFF, OFF]), scores, 0.5, np.random.default_rng(0))
    assert len(none) == len(empty) == 0


def test_in_the_last_turn_draws_may_repeat_what_was_seen() -> None:
    one = input_of(3)
    base = Decided(ints([0, 0, 0]), middle_levels(3), ints([]))
    standing = Stand(base, np.array([[9.0, -30.0]] * 3), np.zeros((3, 20)), np.zeros((0, 20)))
    one.mirror = ints([0, 1, 2])
    made: list[int] = []

    def counted(*given: Any) -> Any:
        made.append(1)
        return draw_plans(*given)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(policy, "draw_plans", counted)
        draws = draw_changes(one, standing, Drawing(4, 1.0, 0.0, ("placement",)), np.random.default_rng(0), 3)
    assert len(made) == 3 and len(draws.device.made) == 4 and (draws.device.made == 0).all()


def test_what_a_draw_changes_is_most_often_one_kind_of_decision() -> None:
    rng: Any = SimpleNamespace(random=lambda: 0.5, choice=lambda count, p: int(np.argmax(p)) if p[1] == 0.5 else 9)
    tasks = ("fusion", "placement", "schedule")
    assert policy._tasks_of_draw(tasks, False, rng) == ("placement",), "devices twice as often as either other"
    assert policy._tasks_of_draw(tasks, True, rng) == tasks
    assert policy._tasks_of_draw(("schedule",), False, rng) == ("schedule",)
    rng.random = lambda: 0.05
    assert policy._tasks_of_draw(tasks, False, rng) == tasks


def test_levels_other_than_the_middle_one_move_all_ops(problem: Problem, one: GoInput) -> None:
    placed = ints(np.zeros((1, problem.num_ops)))
    late = np.where(np.arange(one.num_groups) % 2, 0, 19)[None]
    before, moved = critical_rank(problem, placed[0]), moved_ranks(problem, one.label, placed, ints(late))[0]
    odd = one.label % 2 == 1
    assert (moved != before).any() and moved[odd].mean() < before[odd].mean()


def test_a_plan_is_told_by_the_mean_level_of_its_groups_heavy_ops_counting_more(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(policy, "critical_rank", lambda problem, device: None)
    monkeypatch.setattr(policy, "levels_of", lambda rank, turn: np.array([0, 12, 4, 19]))
    monkeypatch.setattr(policy, "group_majority", lambda problem, label, device: "most")
    some: Any = SimpleNamespace(best_ns=np.array([0, 2, 1, 1]))
    plan: Any = SimpleNamespace(device="devices", rank="ranks")
    told = policy.decided_of(some, ints([0, 0, 1, 1]), plan, ints([5]))
    assert told.level.tolist() == [9, 12], "(0 + 3 * 12) / 4 and (4 + 19) / 2, to the even one"
    assert (told.device, told.base, told.rank, told.fusion.tolist()) == ("most", "devices", "ranks", [5])


def test_what_stands_by_default_is_the_likeliest_of_one_problem_of_a_batch() -> None:
    place = torch.tensor([[[0.0, 1.0], [5.0, 9.0]], [[3.0, 1.0], [0.0, 2.0]]])
    level = torch.tensor([[[1.0, 0.0, 0.0]] * 2, [[0.0, 0.0, 7.0], [0.0, 8.0, 7.0]]])
    fusion = torch.tensor([[1.0, 0.0], [0.0, 1.0], [0.0, 4.0], [6.0, 0.0]])
    batch: Any = SimpleNamespace(num_ops=(1, 2))
    one: Any = SimpleNamespace(num_groups=2, num_devices=2)
    found = stand_of(GoOutputs(place, level, fusion), batch, 1, one)
    assert (found.decided.device.tolist(), found.decided.level.tolist()) == ([0, 1], [2, 1])
    assert found.decided.fusion.tolist() == [1, 1] and found.fusion.tolist() == [[0.0, 1.0], [0.0, 4.0]]
    narrow: Any = SimpleNamespace(num_groups=1, num_devices=1)
    assert stand_of(GoOutputs(place, level, fusion), batch, 0, narrow).place.tolist() == [[0.0]]
