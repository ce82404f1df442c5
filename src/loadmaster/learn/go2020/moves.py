"""Changes of a plan that GO learns to value: some groups that hang together go to another device.

Drawn and simulated one by one while training, so that the network learns what a single change is worth from where a
plan stands, not only what good plans look like.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn import functional

from loadmaster.graph.columns import Ints, ints
from loadmaster.learn.go2020.input import GoInput
from loadmaster.learn.go2020.network import GoOutputs
from loadmaster.learn.go2020.policy import OFF, Decided, draw_units

# Where no reason is given: part of how the weights that are shipped were trained; another value needs new ones.
LEAST = 1e-3  # gain that counts as one


@dataclass(frozen=True, eq=False)
class Moves:
    """Several single changes of one plan; what each gained, where that was simulated.

    Attributes:
        member: [members of all moves] group.
        device: [moves] where to.
        gain: [moves] logarithm of the value before ÷ after.
    """

    member: Ints  # [members of all moves]
    move: Ints  # [members of all moves]
    device: Ints  # [moves]
    gain: NDArray[np.float32]  # [moves]

    def members_of(self, move: int) -> Ints:
        return self.member[np.searchsorted(self.move, move) : np.searchsorted(self.move, move, "right")]


def draw_moves(one: GoInput, decided: Decided, better: Ints, count: int, rng: np.random.Generator) -> Moves:
    """Half of them what a better plan has otherwise, some of it at a time; half at random."""
    order = np.argsort(one.mirror, kind="stable")
    changed = np.flatnonzero(better != decided.device)
    members, devices = [], []
    for turn in range(count):
        if turn % 2 and len(changed):
            first = changed[int(rng.integers(len(changed)))]
            same = (better == better[first]) & (decided.device == decided.device[first])
            near = np.flatnonzero(np.abs(one.mirror - one.mirror[first]) < 2.0 ** rng.uniform(0, 8))
            members.append(near[same[near]])
            devices.append(int(better[first]))
        else:
            members.append(np.flatnonzero(draw_units(one, order, False, rng) != OFF))
            devices.append(_another(one, decided, members[-1], rng))
    return _moves(members, devices)


def _another(one: GoInput, decided: Decided, members: Ints, rng: np.random.Generator) -> int:
    here = int(np.bincount(decided.device[members]).argmax())
    other = np.flatnonzero(one.able[members].all(axis=0) & (np.arange(one.num_devices) != here))
    return int(rng.choice(other)) if len(other) else here


def _moves(members: Sequence[Ints], devices: Sequence[int]) -> Moves:
    flat = np.concatenate([np.zeros(0, np.int64), *members])
    move = np.repeat(np.arange(len(members)), [len(part) for part in members])
    return Moves(ints(flat), ints(move), ints(devices), np.zeros(len(members), np.float32))


def changed(decided: Decided, moves: Moves, some: Sequence[int]) -> Decided:
    """The decisions after some of the moves."""
    device = decided.device.copy()
    for move in some:
        device[moves.members_of(move)] = moves.device[move]
    return replace(decided, device=ints(device))


def all_changes(decided: Decided, moves: Moves) -> list[Decided]:
    """The decisions after each move alone."""
    return [changed(decided, moves, [move]) for move in range(len(moves.device))]


def move_loss(outputs: GoOutputs, decided: Sequence[Decided], many: Sequence[Moves]) -> Tensor:
    """How badly scores tell moves that gain from those that do not; what gains or loses much counts more."""
    groups, first = outputs.place.shape[1], 0
    rows, units, targets, here, gains = [], [], [], [], []
    for row, (stands, moves) in enumerate(zip(decided, many, strict=True)):
        rows.append(row * groups + moves.member)
        units.append(first + moves.move)
        targets.append(moves.device[moves.move])
        here.append(stands.device[moves.member])
        gains.append(moves.gain)
        first += len(moves.device)

    def tensor(parts: Sequence[NDArray[np.generic]]) -> Tensor:
        return torch.from_numpy(np.concatenate(parts)).to(outputs.place.device)

    flat = outputs.place.reshape(-1, outputs.place.shape[2])[tensor(rows)]
    more = (flat.gather(1, tensor(targets)[:, None]) - flat.gather(1, tensor(here)[:, None]))[:, 0].clamp(-20, 20)
    unit, gain = tensor(units), tensor(gains)
    size = more.new_zeros(first).index_add(0, unit, torch.ones_like(more)).clamp(min=1)
    score = more.new_zeros(first).index_add(0, unit, more) / size
    weight = 0.1 + (gain.abs() / 0.01).clamp(max=4)
    loss = functional.binary_cross_entropy_with_logits(score, (gain > LEAST).float(), reduction="none")
    return (loss * weight).sum() / weight.sum()
