"""What HDP's grouper sees of units, worked out by hand."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from loadmaster.graph.columns import ints  # noqa: E402
from loadmaster.learn.hdp2018 import policy  # noqa: E402
from loadmaster.learn.hdp2018.policy import HdpPolicy  # noqa: E402


@pytest.mark.parametrize("mates", [0, 1, 19, 20, 21, 30])
def test_a_unit_sees_the_first_twenty_of_its_mates(mates: int) -> None:
    """Unit 3 reads from all before it and is read by all behind it."""
    others = [unit for unit in range(mates + 1) if unit != 3][:mates]
    beside = [(unit, 3) if unit < 3 else (3, unit) for unit in others]
    count = max(4, mates + 1)
    found = policy._mates(ints(np.array(beside, np.int64).reshape(mates, 2)), count)
    wanted = [unit / count for unit in others[:20]]
    assert found[3].tolist() == wanted + [-1.0] * (20 - len(wanted))
    if mates:
        assert found[others[0]].tolist() == [3 / count] + [-1.0] * 19


def test_places_are_waves_along_the_mirrored_program(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(policy, "mirrored_position", lambda problem: np.array([5.0, 1.0, 9.0, 1.0]))
    problem: Any = SimpleNamespace(num_ops=4)
    found = policy._places(problem, ints([0, 1, 1, 0]), 2)
    mean = [(2 / 4 + 1 / 4) / 2, (0 / 4 + 3 / 4) / 2]  # places 2, 0, 3 and 1
    for unit, place in enumerate(mean):
        waves = [np.pi * place * 2**n for n in range(7)]
        np.testing.assert_allclose(found[unit], [*np.sin(waves), *np.cos(waves)])


def grouper(scores: Any, groups: int) -> Any:
    made: Any = HdpPolicy.__new__(HdpPolicy)
    torch.nn.Module.__init__(made)
    made.grouper = lambda vectors: torch.tensor(scores)
    made.units, made.groups = SimpleNamespace(vectors=torch.zeros(len(scores), 1)), groups
    return made


def test_groups_are_drawn_by_their_chance_or_the_likeliest_are_taken() -> None:
    made = grouper([[0.0, 0.0, -50.0], [-50.0, 1.0, 0.0]], 3)
    rng: Any = SimpleNamespace(random=lambda shape: np.array([[[0.4], [0.7]], [[0.6], [0.9999999]]]))
    noise = torch.zeros(2, 3)
    assert made._draw_groups(2, rng, noise, False).tolist() == [[0, 1], [1, 2]]
    assert made._draw_groups(3, rng, torch.tensor([[0.0, 1.0, 0.0], [0.0, 0.0, 9.0]]), True).tolist() == [[1, 2]] * 3


def test_entropy_is_of_groups_that_hold_something(monkeypatch: pytest.MonkeyPatch) -> None:
    made = grouper([[0.0, 0.0], [0.0, 1.0]], 2)
    even = torch.full((1, 2, 3), 1 / 3).log()
    even[0, 1] = torch.tensor([0.5, 0.25, 0.25]).log()
    made.placer = SimpleNamespace(logits=lambda scene, picks, so_far: even)
    made.scene = lambda group: None
    drawn: Any = SimpleNamespace(choices=(torch.tensor([[1, 1]]), torch.tensor([[0, 2]]), None, torch.zeros(2, 2)))
    likely = made.likelihood(drawn)
    own = 0.5 * np.log(2) + 0.5 * np.log(4)  # of the group that holds both units
    assert float(likely.entropy) == pytest.approx(own, rel=1e-5) and likely.even == pytest.approx(
        own / np.log(3), rel=1e-5
    )
    grouping = np.log(0.5) + (1.0 - np.log(1 + np.e))
    assert float(likely.chance[0]) == pytest.approx(np.log(1 / 3) + np.log(0.25) + grouping, rel=1e-5)
