"""HDP 2018: grouper and placer are drawn and learned together, and each of their parts counts."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from loadmaster.errors import InvalidSetting  # noqa: E402
from loadmaster.graph.columns import ints  # noqa: E402
from loadmaster.papers import hdp2018 as paper  # noqa: E402
from loadmaster.papers.adam import Adam  # noqa: E402
from loadmaster.papers.environment import Measurements  # noqa: E402
from loadmaster.papers.methods import Hdp  # noqa: E402
from loadmaster.papers.mirhoseini2017 import follow  # noqa: E402
from loadmaster.search import Budget, solve  # noqa: E402
from tests.unit.papers.lanes import brute_force, lanes  # noqa: E402

SMALL = Hdp(most=4, hidden=16, rate=1e-2)


@pytest.mark.parametrize(("mates", "kept"), [(0, 0), (1, 1), (19, 19), (20, 20), (30, 20)])
def test_an_op_sees_the_first_twenty_of_its_neighbours(mates: int, kept: int) -> None:
    """Op 3 reads from all before it and is read by all behind it."""
    others = [op for op in range(mates + 1) if op != 3][:mates]
    beside = [(op, 3) if op < 3 else (3, op) for op in others]
    count = max(4, mates + 1)
    found = paper.mates(ints(np.array(beside, np.int64).reshape(mates, 2)), count)
    assert found[3].tolist() == [op / count for op in others[:kept]] + [-1.0] * (20 - kept)


def test_what_the_placer_reads_is_of_the_groups_that_were_drawn() -> None:
    problem = lanes(2)
    policy = paper.policy_of(problem, replace(SMALL, most=3), 0)
    read, able = policy.groups_read(torch.tensor([[0, 0, 1, 1, 1], [2, 2, 2, 2, 2]]))
    kinds = read[:, :, :32].expm1().sum(dim=2)  # counts of ops
    assert kinds.tolist() == [pytest.approx([2, 3, 0]), pytest.approx([0, 0, 5])]
    wires = read[:, :, 57:60]
    assert wires[0].tolist() == [[1, 1, 0], [0, 1, 0], [0, 0, 0]] and able.all()
    assert torch.equal(read[:, :, 60:], wires.transpose(1, 2))


@pytest.mark.parametrize("step", [0, 400, 600, 800])
def test_noise_ends_and_then_drawing(step: int) -> None:
    policy = paper.policy_of(lanes(3), SMALL, 0)
    drawn = policy.draw(64, np.random.default_rng(0), step)
    assert bool(drawn.noise.any()) == bool(drawn.placer_noise.any()) == (step < 750)
    same_groups = (drawn.group == drawn.group[0]).all(dim=1)
    assert not same_groups.all(), "groups are always drawn"
    assert torch.isfinite(policy.log_prob(drawn)).all()


def test_one_gradient_teaches_both_networks() -> None:
    problem = lanes(3)
    policy = paper.policy_of(problem, SMALL, 0)
    with torch.no_grad():
        policy.placer.head.weight[0] = 1.0  # it starts at zero, which lets no gradient through
    drawn = policy.draw(8, np.random.default_rng(0), 0)
    adam = Adam(policy.parameters(), 1e-3)
    follow(adam, np.linspace(-1, 1, 8), policy.log_prob(drawn))
    for part in (
        policy.grouper[0],
        policy.grouper[1],
        policy.placer.encoder,
        policy.placer.decoder,
        policy.placer.head,
    ):
        assert all(p.grad is not None and p.grad.abs().sum() > 0 for p in part.parameters()), part
    given = paper.policy_of(problem, replace(SMALL, groups="window"), 0)
    drawn = given.draw(8, np.random.default_rng(0), 0)
    assert (drawn.group == drawn.group[0]).all()
    follow(Adam(given.parameters(), 1e-3), np.linspace(-1, 1, 8), given.log_prob(drawn))
    assert given.grouper[0].weight.grad is None and given.placer.head.weight.grad.abs().sum() > 0


def test_a_draw_is_as_likely_as_its_groups_and_its_devices_together() -> None:
    policy = paper.policy_of(lanes(2), replace(SMALL, most=2), 0)
    rng = np.random.default_rng(1)
    drawn = policy.draw(3, rng, 900)  # no noise
    with torch.no_grad():
        grouped = policy.grouper(policy.ops.vectors).log_softmax(dim=1)
        alone = torch.stack([grouped[torch.arange(5), row].sum() for row in drawn.group])
        placed = policy.placer.log_chances(*policy.groups_read(drawn.group), drawn.device)
        devices = placed.gather(2, drawn.device[:, :, None])[:, :, 0].sum(dim=1)
        np.testing.assert_allclose(policy.log_prob(drawn), alone + devices, atol=1e-4)


def ends(monkeypatch: pytest.MonkeyPatch, hdp: Hdp, simulations: int) -> float:
    """Mean step time of the last placements that a policy draws, one of two devices ten times as fast."""
    seen: list[float] = []
    plain = paper.reward

    def watched(measured: Measurements, unit_ns: float) -> np.ndarray:
        seen.append(float(np.nanmean(measured.step_ns)))
        return plain(measured, unit_ns)

    monkeypatch.setattr(paper, "reward", watched)
    solve(lanes(2, slow=10), hdp, Budget(None, simulations))
    return float(np.mean(seen[-10:]))


def test_learning_makes_good_draws_likelier_than_without(monkeypatch: pytest.MonkeyPatch) -> None:
    fast = ends(monkeypatch, SMALL, 400)
    still = ends(monkeypatch, replace(SMALL, rate=0.0), 400)
    even = ends(monkeypatch, replace(SMALL, control="random"), 400)
    assert fast < 0.75 * min(still, even), (fast, still, even)


def test_finds_the_optimum_of_a_few_lanes_and_repeats_itself() -> None:
    results = [solve(lanes(), replace(SMALL, most=8, samples=8), Budget(None, 400), seed=1) for _ in range(2)]
    assert results[0].value == brute_force(lanes())
    np.testing.assert_array_equal(results[0].plan.device, results[1].plan.device)


def test_what_does_not_fit_costs_a_penalty() -> None:
    result = solve(lanes(4, memory_bytes=250), SMALL, Budget(None, 100))
    assert result.simulations == 100 and result.fits


@pytest.mark.parametrize(("devices", "groups"), [("2xp100-pcie", 40), ("8xp100-pcie", 160)])
def test_groups_by_the_number_of_devices(devices: str, groups: int) -> None:
    from loadmaster.cost import price
    from loadmaster.zoo.synthetic import generate

    problem = price(next(generate("layered", 1, 0, (60, 60))), devices)
    assert paper.policy_of(problem, Hdp(), 0).groups == groups
    assert paper.policy_of(problem, Hdp(most=7), 0).groups == 7


def test_settings_out_of_range_are_refused() -> None:
    for wrong in ({"samples": 0}, {"hidden": 0}):
        with pytest.raises(InvalidSetting):
            Hdp(**wrong)  # type: ignore[arg-type]
