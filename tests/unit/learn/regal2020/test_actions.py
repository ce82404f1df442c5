"""What levels and choices of a policy mean, against what BRKGA is by default and against the paper's two devices."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

pytest.importorskip("torch")

import torch
from safetensors.torch import save_file

from loadmaster.errors import UnreadableFile
from loadmaster.learn.regal2020 import actions
from loadmaster.learn.regal2020.actions import (
    BIASES,
    BLOCKS,
    CHOICES,
    FIRST,
    LEVELS,
    MEANS,
    STANDARD,
    VARIANCES,
    WIDTHS,
    RegalAction,
    constant_action,
    level_targets,
    levels_near,
    likeliest_choices,
    random_action,
    replace_blocks,
)
from loadmaster.learn.regal2020.networks import PolicyNetwork
from loadmaster.optimizers.genetic.brkga import Brkga

FEATURES: Any = SimpleNamespace(num_ops=3, num_devices=2, orders=np.array([[0.5, 0.1], [0.2, 0.9], [0.8, 0.3]]))


def test_scales_run_from_end_to_end() -> None:
    assert [MEANS[0], MEANS[1], MEANS[8], MEANS[15]] == [1 / 32, 1 / 16, 0.5, 15 / 16]
    assert VARIANCES[11] == pytest.approx(1 / 3) and VARIANCES[12] == pytest.approx(1.28 / 3)
    assert [WIDTHS[0], WIDTHS[15]] == pytest.approx([0.02, 1.0])
    assert np.diff(np.log(WIDTHS)) == pytest.approx(np.full(15, np.log(50) / 15))
    assert [BIASES[0], BIASES[6], BIASES[15]] == pytest.approx([0.5, 0.7, 1.0])
    assert {len(scale) for scale in (MEANS, VARIANCES, WIDTHS, BIASES)} == {LEVELS} == {16}
    assert CHOICES == (5, 4, 4, 5, 4, 7, 2)


def test_the_standard_choices_are_those_of_brkga() -> None:
    """Affinities drawn alike for every device and op, priorities anywhere, the usual bias, genes for sends."""
    made, plain = constant_action(FEATURES, STANDARD), Brkga()
    assert MEANS[made.mean].tolist() == [0.5] * 6 and VARIANCES[made.variance] == pytest.approx([1 / 3] * 6)
    assert WIDTHS[made.width] == pytest.approx([1.0] * 3) and BIASES[made.bias] == pytest.approx([plain.rho] * 3)
    strength, _, order, _, _, blocks, sends = made.choices.tolist()
    assert actions.STRENGTH[strength] == 0.0 and actions.ORDER[order] == actions.ORDERS[0]
    assert BLOCKS[blocks] == ("op", 0) and actions.SENDS[sends] is True
    assert made.place.tolist() == [0.5, 0.2, 0.8] and made.chance.tolist() == [0.0] * 6


def test_a_network_that_leans_towards_choices_makes_them() -> None:
    network, known = actions.untrained_policy("graph", 3)
    assert isinstance(network, PolicyNetwork) and known["constant"] == list(FIRST)
    chances = np.full(sum(CHOICES), -1.0)
    starts = np.cumsum([0, *CHOICES[:-1]])
    for start, choice in zip(starts, FIRST, strict=True):
        chances[start + choice] = 2.0
    assert likeliest_choices(chances).tolist() == list(FIRST)
    assert all(0 <= choice < size for choice, size in zip(FIRST, CHOICES, strict=True))


@pytest.mark.parametrize(
    ("by", "blocks", "chosen"),
    [
        ("policy", 5, ("mirror", 32)),
        ("op", 5, ("op", 0)),
        ("mirror", 65, ("mirror", 128)),  # the nearest by ratio
        ("mirror", 63, ("mirror", 32)),
        ("mirror", 16, ("mirror", 32)),
        ("mirror", 1, ("mirror", 8)),
        ("edges", 500, ("edges", 192)),
        ("edges", 30, ("edges", 24)),
        ("edges", 40, ("edges", 64)),
    ],
)
def test_blocks_nearest_to_those_asked_for(by: str, blocks: int, chosen: tuple[str, int]) -> None:
    given = constant_action(FEATURES, (0, 0, 0, 0, 0, 2, 1))
    found = replace_blocks(given, by, blocks)
    assert BLOCKS[int(found.choices[5])] == chosen and given.choices[5] == 2
    assert found.choices.tolist()[:5] == [0] * 5 and found.choices[6] == 1


@pytest.mark.parametrize("devices", [2, 4])
def test_chances_become_levels_around_one_half(devices: int) -> None:
    """A chance of one is the highest level, of none the lowest, an even one the middle, at full strength."""
    chance = np.log(np.array([1.0, 1e-12, 1 / devices, 0.5 / devices] * devices))
    shift = np.arange(3 * 4).reshape(4, 3) * 0.25
    choices = np.array([4, 1, 0, 2, 3, 0, 0])
    mean, variance, width, bias = level_targets(chance, shift, choices, devices)
    assert mean[:4] == pytest.approx([16.0, 0.0, 8.0, 4.0], abs=1e-6)
    assert width.tolist() == (9 + shift[:, 0]).tolist() and bias.tolist() == (12 + shift[:, 2]).tolist()
    assert variance.tolist() == np.repeat(5 + shift[:, 1], devices).tolist()
    half = level_targets(chance, shift, np.array([2, 1, 0, 2, 3, 0, 0]), devices)[0]
    assert half[:4] == pytest.approx([12.0, 4.0, 8.0, 6.0], abs=1e-6)
    over = 0.5 + 0.5 / devices
    some = level_targets(np.log(np.array([over])), shift[:1], choices, devices)[0]
    assert some == pytest.approx([12.0])  # half of the way from even to certain


def test_levels_are_the_nearest_there_are() -> None:
    assert levels_near(np.array([-3.0, 0.4, 0.6, 7.5, 14.6, 15.4, 99.0]), None).tolist() == [0, 0, 1, 8, 15, 15, 15]
    drawn = levels_near(np.full(4_000, 8.0), np.random.default_rng(1)).astype(float)
    assert drawn.mean() == pytest.approx(8.0, abs=0.05) and drawn.std() == pytest.approx(0.58, abs=0.03)


def test_levels_are_drawn_half_a_level_apart() -> None:
    rng: Any = SimpleNamespace(standard_normal=lambda count: np.array([1.0, -1.0, 4.0, -4.0])[:count])
    assert levels_near(np.array([8.2, 8.2, 14.0, 1.2]), rng).tolist() == [9, 8, 15, 0]


def test_random_actions_use_all_levels() -> None:
    rng = np.random.default_rng(2)
    many: list[RegalAction] = [random_action(FEATURES, rng) for _ in range(300)]
    for name, size in (("mean", 6), ("variance", 6), ("width", 3), ("bias", 3)):
        levels = np.stack([getattr(each, name) for each in many])
        assert levels.shape[1] == size and set(levels.reshape(-1).tolist()) == set(range(LEVELS))
    choices = np.stack([each.choices for each in many])
    assert [set(column.tolist()) for column in choices.T] == [set(range(size)) for size in CHOICES]


@pytest.mark.parametrize("wrong", ["choices", "network", "weights"])
def test_a_checkpoint_of_another_version_is_refused(wrong: str, tmp_path: Path) -> None:
    known = {"choices": list(CHOICES), "network": "graph"}
    known |= {} if wrong == "weights" else {wrong: [1] if wrong == "choices" else "other"}
    network = PolicyNetwork(CHOICES, "graph").state_dict()
    tensors = {f"network.{name}": tensor for name, tensor in network.items()}
    if wrong == "weights":
        tensors = {"other": torch.zeros(1)}
    save_file(tensors, tmp_path / "policy.safetensors", {"policy": json.dumps(known)})
    with pytest.raises(UnreadableFile, match="holds no policy that this version can run"):
        actions.load_policy(str(tmp_path / "policy.safetensors"))
