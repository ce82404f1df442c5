"""The placer that groups go through one after another: what it draws, by what it sees and by its own likelihood."""

from __future__ import annotations

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from loadmaster.cost import price  # noqa: E402
from loadmaster.graph.columns import ints  # noqa: E402
from loadmaster.learn.mirhoseini2017.policy import RnnPolicy  # noqa: E402
from loadmaster.learn.recurrent import seq2seq  # noqa: E402
from loadmaster.learn.recurrent.inputs import scene_of  # noqa: E402
from loadmaster.passes.groups import group_ops  # noqa: E402
from loadmaster.problem import Problem  # noqa: E402
from loadmaster.zoo.synthetic import generate  # noqa: E402
from tests.graphs.tiny import diamond, pair  # noqa: E402
from tests.unit.learn.stand_in import shaken  # noqa: E402


def layered(cluster: str = "2xp100-pcie") -> Problem:
    (graph,) = generate("layered", 1, 3, (60, 60))
    return price(graph, cluster)


@pytest.mark.parametrize("features", [True, False])
def test_what_was_drawn_is_what_the_likelihood_says(features: bool) -> None:
    """Drawn step by step, and worked out for all steps at once: with the same noise both choose the same devices."""
    problem = layered("2xp100-pcie+1xk80")
    label = group_ops(problem, 20, "window")
    policy = shaken(RnnPolicy(scene_of(problem, label, 20, features), 16))
    noise = torch.from_numpy(np.random.default_rng(1).gumbel(size=(6, 20, 3)).astype(np.float32))
    picks, so_far = policy.placer.draw(policy.scene, noise)
    with torch.no_grad():
        chances = policy.placer.logits(policy.scene, picks, so_far)
    assert torch.equal((chances + noise).argmax(dim=2), picks)
    assert len(torch.unique(picks)) == 3
    np.testing.assert_allclose(chances.exp().sum(dim=2), 1, rtol=1e-5)


def test_numbers_so_far_by_hand() -> None:
    # The diamond with every op a group. a on d0, b on d1, c on d0: what d sees is b's send to d0 (10 ns) or c's and b's
    # to d1 (9 ns for c). Times are in shares of 70 ns over two devices.
    problem = price(diamond(), pair(memory_bytes=1_000))
    label = ints(range(4))
    scene = scene_of(problem, label, 4, True)
    policy = RnnPolicy(scene, 16)
    wanted = torch.tensor([[0, 1, 0, 0]])
    noise = torch.nn.functional.one_hot(wanted, 2).float() * 1_000
    picks, so_far = policy.placer.draw(scene, noise)
    assert picks.tolist() == wanted.tolist()
    sends = np.expm1(so_far[0, :, :, 0].numpy()) * 70 / 4
    np.testing.assert_allclose(sends, [[0, 0], [0, 15], [0, 15], [10, 9]], atol=1e-3)
    times = np.expm1(so_far[0, :, :, 1].numpy()) * 70 / 2
    np.testing.assert_allclose(times, [[0, 0], [10, 0], [10, 20], [40, 20]], atol=1e-3)


def test_an_equal_device_is_not_used_before_the_one_of_lower_number() -> None:
    problem = layered("3xp100-pcie")
    label = group_ops(problem, 12, "window")
    policy = shaken(RnnPolicy(scene_of(problem, label, 12, True), 16))
    drawn = policy.draw(64, np.random.default_rng(0), 0.0).placement
    for row in drawn.tolist():
        firsts = [row.index(device) for device in sorted(set(row))]
        assert row[0] == 0 and firsts == sorted(firsts) and set(row) == set(range(len(set(row))))
    assert max(len(set(row)) for row in drawn.tolist()) == 3


@pytest.mark.parametrize("full", [True, False])
def test_an_untrained_placer_prefers_no_device(full: bool) -> None:
    scene = scene_of(price(diamond(), "1xp100-pcie+1xk80"), ints(range(4)), 4, full)
    policy = RnnPolicy(scene, 4)
    picks, so_far = policy.placer.draw(scene, torch.zeros(1, 4, 2))
    with torch.no_grad():
        chances = policy.placer.logits(scene, picks, so_far).exp()[0]
    np.testing.assert_allclose(chances, np.full((4, 2), 0.5))


def test_a_placer_reads_devices_where_they_have_a_width() -> None:
    assert [seq2seq.PlacerShape(3, 2, device_width=width).full for width in (0, 1, 2)] == [False, True, True]


@pytest.mark.parametrize("samples", [2, 3])
def test_each_sample_may_read_groups_of_its_own(samples: int) -> None:
    generator = torch.Generator().manual_seed(3)
    placer = shaken(seq2seq.Placer(seq2seq.PlacerShape(5, 3, hidden=8, both_ways=True)))
    vectors, noise = (torch.randn(samples, 6, width, generator=generator) for width in (5, 3))
    scene = seq2seq.Scene(vectors, torch.ones(1, 6, 3, dtype=torch.bool))
    picks, so_far = placer.draw(scene, noise)
    with torch.no_grad():
        chances = placer.logits(scene, picks, so_far)
    assert (chances + noise).argmax(dim=2).tolist() == picks.tolist()
    for one in range(samples):
        alone = seq2seq.Scene(vectors[one : one + 1], scene.able)
        assert placer.draw(alone, noise[one : one + 1])[0].tolist() == [picks[one].tolist()]
