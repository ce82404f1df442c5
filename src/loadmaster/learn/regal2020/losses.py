"""What a policy is judged by while it learns: how well it imitates elites, and how likely the actions it drew were.

Imitation is the likelihood of an elite's devices and order under the action; reinforcement weighs drawn actions by what
BRKGA reached under them, against others of the same graph.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from loadmaster.learn.examples import Elite, Key
from loadmaster.learn.regal2020.actions import (
    BIAS,
    CHOICES,
    LEVELS,
    NOISE,
    SPREAD,
    STRENGTH,
    WIDTH,
    RegalAction,
    level_targets,
    levels_near,
    likeliest_choices,
)
from loadmaster.learn.regal2020.networks import Batch, Outputs
from loadmaster.papers.features import Features


@dataclass(frozen=True, eq=False)
class Example:
    """A problem as the network sees it, with good plans to imitate.

    Attributes:
        key: which it is.
        features: what the network sees.
        elite: the plan to imitate.
    """

    key: Key
    features: Features
    elite: Elite


def imitation_loss(outputs: Outputs, chosen: list[Example]) -> tuple[Tensor, float]:
    """Cross-entropy of the elites' devices, heavy ops counting more, and the squared error of their places."""
    device = outputs.chance.device
    first, picks, at = 0, [], []
    for example in chosen:
        devices = example.features.num_devices
        picks.append(first + np.arange(len(example.elite.device)) * devices + example.elite.device)
        at.append((example.elite.turn + 0.5) / len(example.elite.turn))
        first += len(example.elite.device) * devices
    pick = torch.from_numpy(np.concatenate(picks)).to(device)
    place = torch.from_numpy(np.concatenate(at).astype(np.float32)).to(device)
    weight = torch.from_numpy(np.concatenate([e.features.weight for e in chosen])).to(device)
    likely = outputs.chance[pick]
    smooth = -(0.95 * likely + 0.05 * outputs.chance.clamp(min=-10).mean())
    error = (outputs.place - place).square()
    loss = (weight * smooth).sum() / weight.sum() + 5 * error.mean()
    return loss, float((likely.detach() > np.log(0.5)).float().mean())


def draw_actions(
    outputs: Outputs, chosen: list[Example], samples: int, rng: np.random.Generator
) -> list[list[RegalAction]]:
    """[graphs][samples] actions drawn from the policy."""
    logits = outputs.choices.cpu().numpy().astype(np.float64)
    actions: list[list[RegalAction]] = []
    for index, part in enumerate(_parts(outputs, [example.features for example in chosen])):
        drawn = []
        for _ in range(samples):
            choices = _draw_choices(logits[index], rng)
            drawn.append(_levels_around(part, chosen[index].features, choices, rng))
        actions.append(drawn)
    return actions


def likeliest_action(outputs: Outputs, features: Features) -> RegalAction:
    choices = likeliest_choices(outputs.choices[0].cpu().numpy())
    return _levels_around(next(_parts(outputs, [features])), features, choices, None)


def _parts(outputs: Outputs, many: Sequence[Features]) -> Iterator[tuple[np.ndarray, ...]]:
    """Chances, places and shifts of each problem of a batch."""
    chance, place, shift = (t.cpu().numpy() for t in (outputs.chance, outputs.place, outputs.shift))
    pair = op = 0
    for features in many:
        pairs, ops = features.num_ops * features.num_devices, features.num_ops
        yield chance[pair : pair + pairs], place[op : op + ops], shift[op : op + ops]
        pair, op = pair + pairs, op + ops


def _draw_choices(logits: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    noisy = logits + rng.gumbel(size=len(logits))
    return likeliest_choices(noisy)


def _levels_around(
    part: tuple[np.ndarray, ...], features: Features, choices: np.ndarray, rng: np.random.Generator | None
) -> RegalAction:
    chance, place, shift = part
    targets = level_targets(chance, shift, choices, features.num_devices)
    mean, variance, width, bias = (levels_near(target, rng) for target in targets)
    return RegalAction(choices, mean, variance, width, bias, chance, place)


def choice_log_chance(logits: Tensor, picks: Tensor) -> tuple[Tensor, Tensor]:
    """[graphs, samples] log-probability of the choices, and the mean entropy of a choice."""
    total = torch.zeros(picks.shape[:2], device=logits.device)
    entropy = torch.zeros((), device=logits.device)
    for index, part in enumerate(torch.split(logits, list(CHOICES), dim=1)):
        chance = part.log_softmax(dim=1)
        total = total + chance.gather(1, picks[:, :, index])
        entropy = entropy - (chance.exp() * chance).sum(dim=1).mean() / len(CHOICES)
    return total, entropy


def level_log_chance(outputs: Outputs, batch: Batch, chosen: list[Example], actions: list[list[RegalAction]]) -> Tensor:
    """[graphs, samples] log-density of the drawn levels around their targets, the mean over ops."""
    device, count = outputs.chance.device, batch.num_graphs
    graph_of_pair = batch.graph_of_op[batch.op_of_pair]
    even = torch.tensor([1 / e.features.num_devices for e in chosen], device=device)[graph_of_pair]
    chance = outputs.chance.exp()
    centred = torch.where(chance >= even, 0.5 + 0.5 * (chance - even) / (1 - even).clamp(min=1e-9), 0.5 * chance / even)
    columns = []
    for sample in range(len(actions[0])):
        drawn = [row[sample] for row in actions]
        picks = np.stack([action.choices for action in drawn])

        def per_graph(table: Sequence[float], column: int, picks: np.ndarray = picks) -> Tensor:
            return torch.tensor([float(table[i]) for i in picks[:, column]], device=device)

        def levels(name: str, drawn: list[RegalAction] = drawn) -> Tensor:
            return torch.from_numpy(np.concatenate([getattr(a, name) for a in drawn]).astype(np.float32)).to(device)

        mean = (0.5 + (centred - 0.5) * per_graph(STRENGTH, 0)[graph_of_pair]) * LEVELS
        variance = per_graph(SPREAD, 1)[graph_of_pair] + outputs.shift[batch.op_of_pair, 1]
        width = per_graph(WIDTH, 3)[batch.graph_of_op] + outputs.shift[:, 0]
        bias = per_graph(BIAS, 4)[batch.graph_of_op] + outputs.shift[:, 2]
        by_pair = (levels("mean") - mean).square() + (levels("variance") - variance).square()
        by_op = (levels("width") - width).square() + (levels("bias") - bias).square()
        columns.append(
            _mean_per_graph(by_pair, graph_of_pair, count) + _mean_per_graph(by_op, batch.graph_of_op, count)
        )
    return -torch.stack(columns, dim=1) / (2 * NOISE**2)


def _mean_per_graph(values: Tensor, graph: Tensor, count: int) -> Tensor:
    size = torch.zeros(count, device=values.device).index_add(0, graph, torch.ones_like(values))
    return torch.zeros(count, device=values.device).index_add(0, graph, values) / size
