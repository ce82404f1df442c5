"""What levels and choices of a policy mean, against what BRKGA is by default and against the paper's two devices."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("torch")

import torch
from safetensors.torch import save_file

from loadmaster.errors import UnreadableFile
from loadmaster.learn.regal2020 import actions
from loadmaster.learn.regal2020.actions import (
    BIASES,
    CHOICES,
    FIRST,
    LEVELS,
    MEANS,
    VARIANCES,
    WIDTHS,
    level_targets,
    levels_near,
    likeliest_choices,
)
from loadmaster.learn.regal2020.networks import PolicyNetwork


def test_scales_run_from_end_to_end() -> None:
    assert [MEANS[0], MEANS[1], MEANS[8], MEANS[15]] == [1 / 32, 1 / 16, 0.5, 15 / 16]
    assert VARIANCES[11] == pytest.approx(1 / 3) and VARIANCES[12] == pytest.approx(1.28 / 3)
    assert [WIDTHS[0], WIDTHS[15]] == pytest.approx([0.02, 1.0])
    assert np.diff(np.log(WIDTHS)) == pytest.approx(np.full(15, np.log(50) / 15))
    assert [BIASES[0], BIASES[6], BIASES[15]] == pytest.approx([0.5, 0.7, 1.0])
    assert {len(scale) for scale in (MEANS, VARIANCES, WIDTHS, BIASES)} == {LEVELS} == {16}
    assert CHOICES == (5, 4, 4, 5, 4, 7, 2)


def test_a_network_that_leans_towards_choices_makes_them() -> None:
    network, known = actions.untrained_policy("graph", 3)
    assert isinstance(network, PolicyNetwork) and known["constant"] == list(FIRST)
    chances = np.full(sum(CHOICES), -1.0)
    starts = np.cumsum([0, *CHOICES[:-1]])
    for start, choice in zip(starts, FIRST, strict=True):
        chances[start + choice] = 2.0
    assert likeliest_choices(chances).tolist() == list(FIRST)
    assert all(0 <= choice < size for choice, size in zip(FIRST, CHOICES, strict=True))


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
