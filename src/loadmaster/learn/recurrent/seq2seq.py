"""The placer that Mirhoseini 2017 and HDP 2018 share: an encoder over groups, a decoder that places one after another.

Placements are drawn step by step without gradients; how likely they were is then worked out for all steps at once.
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import TypeVar

import numpy as np
import torch
from torch import Tensor, nn

# Where no reason is given: part of how the weights that are shipped were trained; another value needs new ones.
SO_FAR = 3  # numbers per device that change while groups are placed: sends to there, time there, bytes there
Held = TypeVar("Held")
MASKED = -30.0  # logit of a device that cannot run the group


@dataclass(frozen=True, eq=False)
class Scene:
    """A grouped problem as the placer reads it. Vectors may differ from sample to sample (first axis), or be one.

    Attributes:
        able: [1 or samples, groups, devices] bool.
    """

    vectors: Tensor  # [1 or samples, groups, width]
    able: Tensor  # [1 or samples, groups, devices]
    full: Full | None = None

    @property
    def num_groups(self) -> int:
        return self.vectors.shape[1]

    @property
    def num_devices(self) -> int:
        return self.able.shape[2]


@dataclass(frozen=True, eq=False)
class Full:
    """What the published features leave out: devices, memory and links.

    Attributes:
        send: [groups, devices, groups, devices] sends to (third, fourth) of what (first, second) has, if earlier.
        load: [groups, devices] time.
        held: [groups, devices] bytes.
        twin: [devices] the equal device of next lower number; the number of devices, where there is none.
    """

    devices: Tensor  # [devices, width]
    pairs: Tensor  # [groups, devices, width]
    send: Tensor  # [groups, devices, groups, devices]
    load: Tensor  # [groups, devices]
    held: Tensor  # [groups, devices]
    twin: Tensor  # [devices]


@dataclass(frozen=True)
class PlacerShape:
    """What is needed to build the network again.

    Attributes:
        width: of a group's vector.
        both_ways: the encoder reads the groups in both directions.
        device_width: 0: a logit per device by its number, as published.
    """

    width: int
    devices: int
    hidden: int = 128
    both_ways: bool = False
    device_width: int = 0
    pair_width: int = 0

    @property
    def full(self) -> bool:
        return self.device_width > 0


class Placer(nn.Module):
    """LSTM encoder, LSTM decoder with attention that is fed the device of the group before.

    `encode` reads the groups once, `draw` decides one after another, `logits` gives the scores of decisions that were
    drawn before, all at once.
    """

    def __init__(self, shape: PlacerShape) -> None:
        super().__init__()
        hidden = shape.hidden
        self.shape = shape
        self.enter = nn.Sequential(nn.Linear(shape.width, hidden), nn.LayerNorm(hidden), nn.ReLU())
        ways = 2 if shape.both_ways else 1
        self.encoder = nn.LSTM(hidden, hidden // ways, batch_first=True, bidirectional=shape.both_ways)
        self.decoder = nn.LSTM(2 * hidden, hidden, batch_first=True)
        self.before = nn.Embedding(shape.devices + 1, hidden)  # the device of the group before; the last: none
        self.ask = nn.Linear(hidden, hidden, bias=False)
        self.join = nn.Linear(3 * hidden, hidden)
        self.head = DeviceHead(shape) if shape.full else nn.Linear(hidden, shape.devices)
        if not shape.full:
            _quiet(self.head)

    def encode(self, vectors: Tensor) -> Tensor:
        """[1 or samples, groups, hidden]"""
        entered = self.enter(vectors)
        seen: Tensor = self.encoder(entered)[0] + entered
        return seen

    # ---------------------------------------------------------------- drawing

    @torch.no_grad()
    def draw(self, scene: Scene, noise: Tensor) -> tuple[Tensor, Tensor]:
        """Places the groups one after another: the largest logit plus noise [samples, groups, devices] wins.

        Gives devices [samples, groups] and the numbers per device that each choice saw.
        """
        walk = _Walk(self, scene, noise)
        for group in range(scene.num_groups):
            walk.place(group)
        return walk.picks, walk.so_far

    def logits(self, scene: Scene, picks: Tensor, so_far: Tensor) -> Tensor:
        """[samples, groups, devices] log-probabilities along placements that were drawn."""
        samples, groups = picks.shape
        encoded = self.encode(scene.vectors).expand(samples, groups, -1)
        first = torch.full((samples, 1), self.shape.devices, device=picks.device)
        fed = self.before(torch.cat([first, picks[:, :-1]], dim=1))
        state = self.decoder(torch.cat([encoded, fed], dim=2))[0]
        look = (self.ask(state) @ encoded.transpose(1, 2) * self.shape.hidden**-0.5).softmax(dim=2)
        out = torch.tanh(self.join(torch.cat([state, look @ encoded, encoded], dim=2)))
        raw = self.head(out, scene.full, so_far) if isinstance(self.head, DeviceHead) else self.head(out)
        raw = raw.masked_fill(~scene.able, MASKED)
        raw = raw if scene.full is None else raw.masked_fill(_second(picks, scene.full), MASKED)
        chances: Tensor = raw.log_softmax(dim=2)
        return chances


def _second(picks: Tensor, full: Full) -> Tensor:
    """[samples, groups, devices] where an equal device of lower number is still unused: the placement would be a
    relabelling of another, and learned twice."""
    devices = len(full.twin)
    hot = nn.functional.one_hot(picks, devices + 1)
    used = hot.cumsum(dim=1) - hot > 0
    used[:, :, devices] = True
    return ~used[:, :, full.twin]


class DeviceHead(nn.Module):
    """A score for each group and device from the features of both, so that unlike devices are told apart."""

    def __init__(self, shape: PlacerShape) -> None:
        super().__init__()
        inner = shape.hidden // 2
        self.state = nn.Linear(shape.hidden, inner)
        self.pair = nn.Linear(shape.device_width + shape.pair_width, inner, bias=False)
        self.number = nn.Embedding(shape.devices, inner)
        self.so_far = nn.Linear(SO_FAR, inner, bias=False)
        self.score = nn.Linear(inner, 1)
        self.plain = nn.Linear(shape.pair_width + SO_FAR, 1, bias=False)
        self.own = nn.Linear(shape.hidden, shape.devices)
        for part in (self.score, self.plain, self.own):
            _quiet(part)

    def still(self, full: Full) -> tuple[Tensor, Tensor]:
        """What does not change while groups are placed: inner [groups, devices, inner], plain [groups, devices]."""
        devices = full.devices.expand(len(full.pairs), -1, -1)
        inner = self.pair(torch.cat([devices, full.pairs], dim=2)) + self.number.weight
        width = full.pairs.shape[2]
        return inner, (full.pairs @ self.plain.weight[:, :width].T)[..., 0]

    def rate(self, out: Tensor, still: tuple[Tensor, Tensor], so_far: Tensor) -> Tensor:
        """[…, devices] scores, from the decoder's output […, hidden] and the numbers so far […, devices, SO_FAR]."""
        inner = (self.state(out)[..., None, :] + still[0] + self.so_far(so_far)).relu()
        plain = still[1] + (so_far @ self.plain.weight[:, -SO_FAR:].T)[..., 0]
        scores: Tensor = self.score(inner)[..., 0] + plain + self.own(out)
        return scores

    def forward(self, out: Tensor, full: Full | None, so_far: Tensor) -> Tensor:
        assert full is not None, "this network was made for devices with features"
        return self.rate(out, self.still(full), so_far)


class _Walk:
    """One pass of the decoder over the groups, all samples side by side."""

    def __init__(self, net: Placer, scene: Scene, noise: Tensor) -> None:
        samples, groups, devices = noise.shape
        self.net, self.scene, self.noise = net, scene, noise
        self.encoded = net.encode(scene.vectors)
        hidden = net.shape.hidden
        weight, self.again, *biases = list(net.decoder.parameters())
        self.fed = self.encoded @ weight[:, :hidden].T + biases[0] + biases[1]
        self.table = net.before.weight @ weight[:, hidden:].T
        self.keys = (self.encoded @ net.ask.weight * hidden**-0.5).transpose(1, 2)
        self.values = self.encoded @ net.join.weight[:, hidden : 2 * hidden].T
        self.beside = self.encoded @ net.join.weight[:, 2 * hidden :].T + net.join.bias
        self.still = net.head.still(scene.full) if isinstance(net.head, DeviceHead) and scene.full else None
        self.state, self.cell = noise.new_zeros(samples, hidden), noise.new_zeros(samples, hidden)
        self.last = torch.full((samples,), net.shape.devices, device=noise.device)
        self.picks = torch.zeros((samples, groups), dtype=torch.long, device=noise.device)
        self.so_far = noise.new_zeros(samples, groups, devices, SO_FAR if scene.full else 0)
        self.pending = noise.new_zeros(samples, groups, devices)
        self.there = noise.new_zeros(samples, devices, 2)
        self.block = ~scene.able
        self.rows = torch.arange(samples, device=noise.device)
        self.used = torch.zeros((samples, devices + 1), dtype=torch.bool, device=noise.device)
        self.used[:, devices] = True

    def place(self, group: int) -> None:
        out = self._decode(group)
        seen = self.so_far[:, group]
        if self.scene.full is not None:
            seen[:, :, 0] = torch.log1p(self.pending[:, group])
            seen[:, :, 1:] = torch.log1p(self.there)
        if isinstance(self.net.head, DeviceHead):
            assert self.still is not None
            raw = self.net.head.rate(out, (self.still[0][group], self.still[1][group]), seen)
        else:
            raw = self.net.head(out)
        raw = raw.masked_fill(self.block[:, group], MASKED)
        if self.scene.full is not None:
            raw = raw.masked_fill(~self.used[:, self.scene.full.twin], MASKED)
        self.last = (raw + self.noise[:, group]).argmax(dim=1)
        self.picks[:, group] = self.last
        if self.scene.full is not None:
            self._settle(group, self.scene.full)

    def _decode(self, group: int) -> Tensor:
        """The decoder's LSTM step and its look at all groups; sums as in torch's LSTM, gates in its order."""
        net, hidden = self.net, self.net.shape.hidden
        gates = self.fed[:, group] + self.table[self.last] + self.state @ self.again.T
        opened = torch.sigmoid(gates)
        fresh = torch.tanh(gates[:, 2 * hidden : 3 * hidden])
        self.cell = opened[:, hidden : 2 * hidden] * self.cell + opened[:, :hidden] * fresh
        self.state = opened[:, 3 * hidden :] * torch.tanh(self.cell)
        if len(self.keys) == 1:
            seen = (self.state @ self.keys[0]).softmax(dim=1) @ self.values[0]
        else:
            look = (self.state[:, None] @ self.keys).softmax(dim=2)
            seen = (look @ self.values)[:, 0]
        return torch.tanh(self.state @ net.join.weight[:, :hidden].T + seen + self.beside[:, group])

    def _settle(self, group: int, full: Full) -> None:
        self.pending += full.send[group, self.last]
        self.used[self.rows, self.last] = True
        self.there[self.rows, self.last, 0] += full.load[group, self.last]
        self.there[self.rows, self.last, 1] += full.held[group, self.last]


def _quiet(part: nn.Module) -> None:
    """Starts as if it were not there: the untrained placer prefers no device."""
    for parameter in part.parameters():
        nn.init.zeros_(parameter)


def moved(held: Held, device: torch.device) -> Held:
    """A dataclass of tensors, or of dataclasses of them, on that device."""
    parts = {part.name: getattr(held, part.name) for part in fields(held)}  # type: ignore[arg-type]
    there = {
        name: value.to(device) if isinstance(value, Tensor) else value if value is None else moved(value, device)
        for name, value in parts.items()
    }
    return type(held)(**there)


def gumbel(rng: np.random.Generator, *shape: int) -> Tensor:
    """Noise under which the largest logit is a draw from their softmax."""
    return torch.from_numpy(rng.gumbel(size=shape).astype(np.float32))
