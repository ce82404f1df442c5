"""What a draw of levels is worth by the density it came from, worked out op by op."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from loadmaster.learn.features import features_of  # noqa: E402
from loadmaster.learn.regal2020 import actions, losses  # noqa: E402
from loadmaster.learn.regal2020.actions import RegalAction  # noqa: E402
from loadmaster.learn.regal2020.networks import Outputs, batch_of  # noqa: E402
from tests.problems import tasks, unlike  # noqa: E402


class Chosen:
    """An example, as far as it is looked at."""

    def __init__(self, features: object) -> None:
        self.features = features


def test_the_density_of_levels_is_that_of_normal_draws_around_their_targets() -> None:
    rng = np.random.default_rng(0)
    many = [features_of(problem()) for problem in (unlike, tasks)]
    batch = batch_of(many)
    ops, pairs = len(batch.graph_of_op), len(batch.op_of_pair)
    shift = rng.normal(size=(ops, 3))
    chance = rng.uniform(-3, 0, pairs)
    given = (chance, np.zeros(ops), shift, np.zeros((2, sum(actions.CHOICES))))
    outputs = Outputs(*(torch.tensor(each, dtype=torch.float32) for each in given))
    drawn = [[_action(features, rng) for _ in range(2)] for features in many]
    found = losses.level_log_chance(outputs, batch, [Chosen(f) for f in many], drawn)  # type: ignore[arg-type]
    first_op = first_pair = 0
    for graph, features in enumerate(many):
        for sample, action in enumerate(drawn[graph]):
            wanted = _density(features, action, chance[first_pair:], shift[first_op:])
            assert float(found[graph, sample]) == pytest.approx(wanted, rel=1e-4)
        first_op, first_pair = first_op + features.num_ops, first_pair + features.num_ops * features.num_devices


def _action(features: object, rng: np.random.Generator) -> RegalAction:
    ops, devices = features.num_ops, features.num_devices  # type: ignore[attr-defined]
    choices = np.array([rng.integers(size) for size in actions.CHOICES])

    def levels(count: int) -> np.ndarray:
        return rng.integers(0, actions.LEVELS, count).astype(np.uint8)

    wide, empty = ops * devices, np.zeros(0, np.float32)
    return RegalAction(choices, levels(wide), levels(wide), levels(ops), levels(ops), empty, empty)


def _density(features: object, action: RegalAction, chance: np.ndarray, shift: np.ndarray) -> float:
    ops, devices = features.num_ops, features.num_devices  # type: ignore[attr-defined]
    strength, spread = actions.STRENGTH[action.choices[0]], actions.SPREAD[action.choices[1]]
    width, bias = actions.WIDTH[action.choices[3]], actions.BIAS[action.choices[4]]
    by_pair, by_op = [], []
    for op in range(ops):
        by_op.append(
            (int(action.width[op]) - width - shift[op, 0]) ** 2 + (int(action.bias[op]) - bias - shift[op, 2]) ** 2
        )
        for device in range(devices):
            at, even = op * devices + device, 1 / devices
            likely = np.exp(chance[at])
            middle = 0.5 + 0.5 * (likely - even) / (1 - even) if likely >= even else 0.5 * likely / even
            mean = (0.5 + (middle - 0.5) * strength) * actions.LEVELS
            by_pair.append((int(action.mean[at]) - mean) ** 2 + (int(action.variance[at]) - spread - shift[op, 1]) ** 2)
    return -(np.mean(by_pair) + np.mean(by_op)) / (2 * losses.NOISE**2)


def test_the_chance_of_choices_is_the_product_of_each() -> None:
    rng = np.random.default_rng(1)
    logits = torch.tensor(rng.normal(size=(2, sum(actions.CHOICES))))
    picks = torch.tensor(np.stack([[rng.integers(size) for size in actions.CHOICES] for _ in range(6)]))
    picks = picks.reshape(2, 3, len(actions.CHOICES))
    total, entropy = losses.choice_log_chance(logits, picks)
    wanted, surprise, low = np.zeros((2, 3)), 0.0, 0
    for index, size in enumerate(actions.CHOICES):
        part = np.exp(logits.numpy()[:, low : low + size])
        part /= part.sum(axis=1, keepdims=True)
        wanted += np.log(np.take_along_axis(part, picks.numpy()[:, :, index], axis=1))
        surprise += -(part * np.log(part)).sum(axis=1).mean() / len(actions.CHOICES)
        low += size
    np.testing.assert_allclose(total.numpy(), wanted, rtol=1e-5)
    assert float(entropy) == pytest.approx(surprise, rel=1e-4)


def test_chances_of_next_to_nothing_count_up_to_a_bound() -> None:
    elite: Any = SimpleNamespace(device=np.array([0]), turn=np.array([0]))
    features: Any = SimpleNamespace(num_devices=2, weight=np.ones(1, np.float32))
    outputs: Any = SimpleNamespace(chance=torch.tensor([-0.5, -30.0]), place=torch.tensor([0.5]))
    loss, _ = losses.imitation_loss(outputs, [SimpleNamespace(elite=elite, features=features)])  # type: ignore[list-item]
    assert float(loss) == pytest.approx(0.95 * 0.5 + 0.05 * (0.5 + 10) / 2, rel=1e-5)


def test_two_graphs_lie_behind_each_other_and_heavy_ops_count_more() -> None:
    """Of two devices and of three; the second graph has one op."""
    first: Any = SimpleNamespace(device=np.array([1, 0]), turn=np.array([1, 0]))
    second: Any = SimpleNamespace(device=np.array([2]), turn=np.array([0]))
    seen = [SimpleNamespace(num_devices=n, weight=np.array(w, np.float32)) for n, w in ((2, [1, 3]), (3, [4]))]
    chance = torch.tensor([-1.0, -2.0, -3.0, -4.0, -5.0, -6.0, -7.0])
    outputs: Any = SimpleNamespace(chance=chance, place=torch.tensor([0.75, 0.25, 0.0]))
    chosen: Any = [SimpleNamespace(elite=e, features=f) for e, f in zip((first, second), seen, strict=True)]
    loss, right = losses.imitation_loss(outputs, chosen)
    likely = (1 * 2.0 + 3 * 3.0 + 4 * 7.0) / 8
    assert float(loss) == pytest.approx(0.95 * likely + 0.05 * 4.0 + 5 * 0.25 / 3, rel=1e-5) and right == 0


def test_parts_of_a_batch_are_those_of_each_problem() -> None:
    outputs: Any = SimpleNamespace(chance=torch.arange(8), place=torch.arange(3), shift=torch.arange(6).reshape(3, 2))
    many: Any = [SimpleNamespace(num_ops=1, num_devices=2), SimpleNamespace(num_ops=2, num_devices=3)]
    found = [[column.tolist() for column in part] for part in losses._parts(outputs, many)]
    assert found == [[[0, 1], [0], [[0, 1]]], [[2, 3, 4, 5, 6, 7], [1, 2], [[2, 3], [4, 5]]]]


def test_levels_that_are_drawn_are_among_those_there_are(monkeypatch: pytest.MonkeyPatch) -> None:
    targets = [np.array([-3.0, 0.4, 7.6, 15.4, 19.0])] * 4
    monkeypatch.setattr(losses, "level_targets", lambda *_: targets)
    part, features = (np.zeros(1), np.zeros(1), np.zeros(1)), SimpleNamespace(num_devices=2)
    made = losses._levels_around(part, features, np.zeros(7, np.int64), None)  # type: ignore[arg-type]
    for level in (made.mean, made.variance, made.width, made.bias):
        assert level.tolist() == [0, 0, 8, 15, 15]


def test_an_even_chance_is_no_guess() -> None:
    elite: Any = SimpleNamespace(device=np.array([0, 1, 0]), turn=np.array([0, 1, 2]))
    features: Any = SimpleNamespace(num_devices=2, weight=np.ones(3, np.float32))
    chance = torch.tensor([0.5, 0.5, 0.4, 0.6, 0.1, 0.9]).log()
    outputs: Any = SimpleNamespace(chance=chance, place=torch.tensor([0.5, 0.5, 0.5]))
    loss, accuracy = losses.imitation_loss(outputs, [SimpleNamespace(elite=elite, features=features)])  # type: ignore[list-item]
    assert accuracy == pytest.approx(1 / 3)
    likely = np.log([0.5, 0.6, 0.1]).mean()
    every = float(chance.mean())
    error = (((np.arange(3) + 0.5) / 3 - 0.5) ** 2).mean()
    assert float(loss) == pytest.approx(-(0.95 * likely + 0.05 * every) + 5 * error, rel=1e-5)
