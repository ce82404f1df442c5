"""What GO learns by: PPO's loss, imitation of better plans, the choice among candidates, entropy.

PPO (Schulman et al., 2017) on draws of parts of a plan: a unit that was drawn together is one decision, with the chance
it had then. Imitation is cross-entropy of a better plan's decisions.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from loadmaster.graph.columns import Ints
from loadmaster.learn.go2020.chains import Sample
from loadmaster.learn.go2020.network import MIDDLE, GoBatch, GoOutputs, LastDecisions
from loadmaster.learn.go2020.policy import OFF, DrawnPart, Draws


def policy_loss(
    outputs: GoOutputs, batch: GoBatch, draws: Sequence[Draws], gain: Sequence[NDArray[np.float64]], clip: float = 0.2
) -> Tensor:
    """PPO: minus the clipped gain, the mean over what was decided, each kind of decision counting alike."""
    groups = np.arange(len(draws)) * outputs.place.shape[1]
    ops = np.cumsum([0, *batch.num_ops[:-1]])
    terms = []
    for scores, parts, first in (
        (outputs.place, [drawn.device for drawn in draws], groups),
        (outputs.level, [drawn.level for drawn in draws], groups),
        (outputs.fusion, [drawn.fusion for drawn in draws], ops),
    ):
        ratio, weight = _ratios(scores.reshape(-1, scores.shape[-1]), parts, first, gain)
        if len(ratio):
            clipped = ratio.clamp(1 - clip, 1 + clip)
            terms.append(-torch.minimum(ratio * weight, clipped * weight).mean())
    return torch.stack(terms).sum() if terms else outputs.place.sum() * 0


def _ratios(
    scores: Tensor, parts: Sequence[DrawnPart], first_row: Ints, gain: Sequence[NDArray[np.float64]]
) -> tuple[Tensor, Tensor]:
    """[units of all draws] how much likelier what was drawn is now, and what it gained."""
    rows, units, picks, before, weight = [], [], [], [], []
    first = 0
    for part, at, gained in zip(parts, first_row.tolist(), gain, strict=True):
        for sample, chance in enumerate(part.chance):
            members = np.flatnonzero(part.unit[sample] != OFF)
            own = part.unit[sample, members]
            rows.append(at + members)
            units.append(first + own)
            pick = np.zeros(len(chance), np.int64)
            pick[own] = part.made[sample, members]
            picks.append(pick)
            before.append(chance)
            weight.append(np.full(len(chance), gained[sample]))
            first += len(chance)

    def tensor(parts: list[np.ndarray], kind: torch.dtype) -> Tensor:
        return torch.from_numpy(np.concatenate(parts)).to(scores.device, kind)

    unit = tensor(units, torch.long)
    total = scores.new_zeros(first, scores.shape[1]).index_add(0, unit, scores[tensor(rows, torch.long)])
    size = scores.new_zeros(first).index_add(0, unit, scores.new_ones(len(unit)))
    chance_now = (total / size.clamp(min=1)[:, None]).log_softmax(dim=1)
    now = chance_now.gather(1, tensor(picks, torch.long)[:, None])[:, 0]
    # In a bound: a decision that asked nobody may have been next to impossible.
    return (now - tensor(before, torch.float32)).clamp(-10, 5).exp(), tensor(weight, torch.float32)


# Where no reason is given: part of how the weights that are shipped were trained; another value needs new ones.
REST = 5.0  # how much the middle level of an untrained network is ahead of the others


def freed(outputs: GoOutputs, last: LastDecisions, stay: Tensor) -> tuple[Tensor, Tensor]:
    """Scores [graphs, groups, devices] and [graphs, groups, levels] by which chains draw: without the lead that staying
    has in a network, for a chain simulates nothing but changes."""
    level = outputs.level - REST * torch.nn.functional.one_hot(torch.tensor(MIDDLE), outputs.level.shape[2])
    return outputs.place - stay.detach() * last.device, level


def sample_loss(scores: Sequence[Tensor], sample: Sample, clip: float = 0.2) -> Tensor:
    """PPO over what chains drew: minus the clipped gain, each kind of decision counting alike. What does not gain is
    undone, so that it is worth nothing, and less than the mean."""
    loss = scores[0].sum() * 0
    if not len(sample.gain):  # nothing was drawn
        return loss
    gain = torch.from_numpy(np.clip((sample.gain - sample.gain.mean()) / (sample.gain.std() + 1e-4), -3, 3))
    for kind, said in enumerate(scores):
        rows = np.flatnonzero(sample.kind == kind)
        if len(rows):
            chance = (torch.from_numpy(sample.share[rows, : said.shape[1]]) @ said[0]).log_softmax(dim=1)
            now = chance.gather(1, torch.from_numpy(sample.pick[rows])[:, None])[:, 0]
            ratio = (now - torch.from_numpy(sample.chance[rows])).clamp(-10, 5).exp()
            loss = loss - torch.minimum(ratio * gain[rows], ratio.clamp(1 - clip, 1 + clip) * gain[rows]).mean()
    return loss


def imitation_loss(
    outputs: GoOutputs, batch: GoBatch, last: LastDecisions, device: Tensor, level: Tensor, moved_share: float = 0.4
) -> Tensor:
    """Cross-entropy of a better plan's devices and levels. What it changes of the last decisions is little, and counts
    for a fixed share of the whole; heavy groups count more."""
    weight = (0.5 + batch.time.amin(dim=2) * batch.there.sum(dim=1, keepdim=True)).clamp(max=4) * batch.there
    place_loss = -outputs.place.log_softmax(dim=2).clamp(min=-12).gather(2, device[..., None])[..., 0]
    level_loss = -outputs.level.log_softmax(dim=2).clamp(min=-12).gather(2, level[..., None])[..., 0]
    moved = device != last.device.argmax(dim=2)
    later = (level - MIDDLE).abs() > 0
    return _balanced(place_loss, weight, moved, moved_share) + 0.3 * _balanced(level_loss, weight, later, moved_share)


def _balanced(loss: Tensor, weight: Tensor, rare: Tensor, share: float) -> Tensor:
    def mean(some: Tensor) -> Tensor:
        return (loss * some).sum() / some.sum().clamp(min=1e-6)

    return (1 - share) * mean(weight * ~rare) + share * mean(weight * rare)


def choice_loss(scores: Tensor, batch: GoBatch, value: Tensor, temperature: float = 0.05) -> Tensor:
    """Soft cross-entropy over the candidates of each graph: the better one simulates, the likelier it should be."""
    wanted = _log_softmax_of_rows(-value.log() / temperature, batch).exp()
    return -(wanted * _log_softmax_of_rows(scores, batch)).sum() / len(batch.num_candidates)


def _log_softmax_of_rows(column: Tensor, batch: GoBatch) -> Tensor:
    return torch.cat([part.log_softmax(dim=0) for part in torch.split(column, list(batch.num_candidates))])


def entropy_of(outputs: GoOutputs, batch: GoBatch) -> Tensor:
    """Of a decision in the mean, devices and levels added."""
    total = outputs.place.new_zeros(())
    for scores in (outputs.place, outputs.level):
        chance = scores.log_softmax(dim=2)
        total = total - ((chance.exp() * chance).sum(dim=2) * batch.there).sum() / batch.there.sum()
    return total
