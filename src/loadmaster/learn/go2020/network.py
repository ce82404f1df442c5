"""The network of GO: all decisions for all groups at once, pass by pass, each pass seeing the last one's.

GraphSAGE along the edges (Hamilton et al., 2017), segments of attention as in Transformer-XL (Dai et al., 2019), then a
recurrent attention layer and a head for each task. Devices are scored by what they are, so there may be any number."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn import functional

from loadmaster.learn.go2020.candidates import BOUND, CLASSES, OVER, SLOTS, SUMMARY_WIDTH
from loadmaster.learn.go2020.input import GoInput
from loadmaster.learn.go2020.timeline import SEEN_PAIRS, SEEN_WIDTH, Seen
from loadmaster.papers.decoding import LEVELS
from loadmaster.papers.features import DEVICES_WIDTH, GRAPH_WIDTH, OPS_WIDTH, PAIRS_WIDTH

# Where no reason is given: part of how the weights that are shipped were trained; another value needs new ones.
MIDDLE = LEVELS // 2
SEGMENT = 256  # groups that attend to each other and to the segment before: memory grows with its square
TASKS = ("fusion", "placement", "schedule")
STATE_WIDTH = 5  # of each pair, under the last decisions
NEVER = -30.0  # the score of a device that cannot run the group


@dataclass(frozen=True)
class NetworkShape:
    """Sizes and switches of the network; what a file of weights says of itself.

    Attributes:
        sage: rounds along the edges.
        layers: of attention, shared by the tasks.
        pooling: of neighbours: max or sum.
        choice: the layers whose pooled states candidates are chosen by: body, or sage before it.
    """

    hidden: int = 64
    sage: int = 2
    layers: int = 2
    heads: int = 4
    tasks: tuple[str, ...] = ("placement", "schedule")
    attention: bool = True
    modulation: bool = True
    pooling: str = "max"
    choice: str = "body"


@dataclass(frozen=True, eq=False)
class GoBatch:
    """Several problems side by side, padded to the most groups and the most devices among them.

    Attributes:
        able: [graphs, groups, devices] bool.
        there: [graphs, groups] bool: no padding.
        before: [edges] graph * groups + group.
        traffic: [edges] how long sending it takes, mean 1.
        time: [graphs, groups, devices] share of the whole.
        size: [graphs, groups] share of all bytes.
        capacity: [graphs, devices] memory as a share of all bytes.
        single: [ops of all graphs, OPS_WIDTH] empty unless kernels are asked for.
        single_group: [ops of all graphs] graph * groups + group.
    """

    ops: Tensor  # [graphs, groups, OPS_WIDTH]
    devices: Tensor  # [graphs, devices, DEVICES_WIDTH]
    pairs: Tensor  # [graphs, groups, devices, PAIRS_WIDTH + CLASSES]
    able: Tensor  # [graphs, groups, devices]
    graphs: Tensor  # [graphs, GRAPH_WIDTH]
    there: Tensor  # [graphs, groups]
    before: Tensor  # [edges]
    after: Tensor  # [edges]
    traffic: Tensor  # [edges]
    time: Tensor  # [graphs, groups, devices]
    size: Tensor  # [graphs, groups]
    capacity: Tensor  # [graphs, devices]
    single: Tensor  # [ops of all graphs, OPS_WIDTH]
    single_group: Tensor  # [ops of all graphs]
    candidates: Tensor  # [candidates of all graphs, len(SLOTS) + SUMMARY_WIDTH]
    candidate_graph: Tensor  # [candidates of all graphs]
    num_groups: tuple[int, ...]
    num_ops: tuple[int, ...]
    num_candidates: tuple[int, ...]


@dataclass(frozen=True, eq=False)
class LastDecisions:
    """What was decided last, which the network sees beside the graph.

    Attributes:
        device: shares of devices, 1 for the one that was chosen.
        level: of priority, from -1 to 1.
        seen, seen_pairs: what its simulation showed of each group, and of each group on each device; None where there
            was none.
    """

    device: Tensor  # [graphs, groups, devices]
    level: Tensor  # [graphs, groups]
    seen: Tensor | None = None  # [graphs, groups, SEEN_WIDTH]
    seen_pairs: Tensor | None = None  # [graphs, groups, devices, SEEN_PAIRS]


@dataclass(frozen=True, eq=False)
class GoOutputs:
    """Scores before the softmax.

    Attributes:
        place: of each device for a group.
        level: of each level of priority for a group.
        fusion: of each fusion priority for an op.
    """

    place: Tensor  # [graphs, groups, devices]
    level: Tensor  # [graphs, groups, LEVELS]
    fusion: Tensor  # [ops of all graphs, LEVELS]


def go_batch(many: Sequence[GoInput], device: torch.device | str = "cpu") -> GoBatch:
    groups, devices = max(i.num_groups for i in many), max(i.num_devices for i in many)
    count = len(many)

    def padded(name: str, *width: int, kind: type = np.float32) -> Tensor:
        whole: NDArray[np.generic] = np.zeros((count, *width), kind)
        for row, one in enumerate(many):
            part = getattr(one, name)
            whole[row][tuple(slice(size) for size in part.shape)] = part
        return torch.from_numpy(whole).to(device)

    def joined(parts: Sequence[np.ndarray]) -> Tensor:
        return torch.from_numpy(np.concatenate(parts)).to(device)

    return GoBatch(
        ops=padded("ops", groups, OPS_WIDTH),
        devices=padded("devices", devices, DEVICES_WIDTH),
        pairs=padded("pairs", groups, devices, PAIRS_WIDTH + CLASSES),
        able=padded("able", groups, devices, kind=np.bool_),
        graphs=padded("graph", GRAPH_WIDTH),
        there=padded("there", groups, kind=np.bool_),
        before=joined([one.before + row * groups for row, one in enumerate(many)]),
        after=joined([one.after + row * groups for row, one in enumerate(many)]),
        traffic=joined([one.traffic for one in many]),
        time=padded("time", groups, devices),
        size=padded("size", groups),
        capacity=padded("capacity", devices),
        single=joined([one.single for one in many]),
        single_group=joined([one.label[: len(one.single)] + row * groups for row, one in enumerate(many)]),
        candidates=joined([_candidate_rows(one) for one in many]),
        candidate_graph=joined([np.full(len(one.candidates), row) for row, one in enumerate(many)]),
        num_groups=tuple(one.num_groups for one in many),
        num_ops=tuple(len(one.single) for one in many),
        num_candidates=tuple(len(one.candidates) for one in many),
    )


def _candidate_rows(one: GoInput) -> NDArray[np.float32]:
    """[candidates, len(SLOTS) + SUMMARY_WIDTH] which rule it is, and what can be said of its placement."""
    return np.concatenate([np.eye(len(SLOTS), dtype=np.float32)[one.candidates.slot], one.candidates.summary], axis=1)


def decisions_of(
    batch: GoBatch, device: Sequence[np.ndarray], level: Sequence[np.ndarray], seen: Sequence[Seen | None] = ()
) -> LastDecisions:
    """Of given devices and levels [groups] of each graph, with what their simulations showed."""
    place, levels = torch.zeros_like(batch.time), torch.zeros_like(batch.size)
    for row, (one, two) in enumerate(zip(device, level, strict=True)):
        rows = torch.arange(len(one), device=place.device)
        place[row, rows, torch.as_tensor(np.array(one, np.int64), device=place.device)] = 1.0
        levels[row, : len(two)] = torch.as_tensor((np.array(two) - MIDDLE) / MIDDLE, dtype=torch.float32)
    if not seen:
        return LastDecisions(place, levels)
    own, pairs = np.zeros((*levels.shape, SEEN_WIDTH), np.float32), np.zeros((*place.shape, SEEN_PAIRS), np.float32)
    for row, each in enumerate(seen):
        if each is not None:
            count, devices = each.pairs.shape[:2]
            own[row, :count], pairs[row, :count, :devices] = each.groups, each.pairs
    return LastDecisions(
        place, levels, torch.from_numpy(own).to(place.device), torch.from_numpy(pairs).to(place.device)
    )


def mlp(*widths: int) -> nn.Sequential:
    layers: list[nn.Module] = []
    for wide, narrow in pairwise(widths):
        layers += [nn.Linear(wide, narrow), nn.ReLU()]
    return nn.Sequential(*layers[:-1])


class Sage(nn.Module):
    """GraphSAGE: the largest (or the sum) of what the neighbours say, before and after with weights of their own."""

    def __init__(self, hidden: int, pooling: str) -> None:
        super().__init__()
        self.down, self.up = nn.Linear(hidden + 1, hidden), nn.Linear(hidden + 1, hidden)
        self.join, self.norm = mlp(3 * hidden, hidden, hidden), nn.LayerNorm(hidden)
        self.reduce = "amax" if pooling == "max" else "sum"

    def forward(self, state: Tensor, batch: GoBatch) -> Tensor:
        flat = state.reshape(-1, state.shape[2])
        weight = batch.traffic[:, None]
        above = self._pool(self.down(torch.cat([flat[batch.before], weight], 1)).relu(), batch.after, flat)
        below = self._pool(self.up(torch.cat([flat[batch.after], weight], 1)).relu(), batch.before, flat)
        joined: Tensor = self.norm(flat + self.join(torch.cat([flat, above, below], 1)))
        return joined.reshape(state.shape)

    def _pool(self, said: Tensor, row: Tensor, flat: Tensor) -> Tensor:
        rows = row[:, None].expand_as(said)
        return torch.zeros_like(flat).scatter_reduce(0, rows, said, self.reduce)


class SegmentAttention(nn.Module):
    """Attention within segments of the program and to the segment before, whose state is kept and not learned through.

    As in Transformer-XL, but to both sides within a segment and without positions. Memory grows with the groups, not
    with their square. Without attention, each group stands alone here.
    """

    def __init__(self, hidden: int, heads: int, attention: bool) -> None:
        super().__init__()
        self.heads, self.attention = heads, attention
        self.ask, self.offer = nn.Linear(hidden, hidden), nn.Linear(hidden, 2 * hidden)
        self.out, self.wide = nn.Linear(hidden, hidden), mlp(hidden, 2 * hidden, hidden)
        self.norm, self.norm_wide = nn.LayerNorm(hidden), nn.LayerNorm(hidden)

    def forward(self, state: Tensor, there: Tensor) -> Tensor:
        seen = self._attend(self.norm(state), there) if self.attention else self.out(self.norm(state))
        state = state + seen
        widened: Tensor = state + self.wide(self.norm_wide(state))
        return widened

    def _attend(self, state: Tensor, there: Tensor) -> Tensor:
        graphs, groups, hidden = state.shape
        length = min(SEGMENT, groups)
        spare = -groups % length
        padded = functional.pad(state, (0, 0, 0, spare)).reshape(graphs, -1, length, hidden)
        known = functional.pad(there, (0, spare)).reshape(graphs, -1, length)
        cached = functional.pad(padded[:, :-1].detach(), (0, 0, 0, 0, 1, 0))
        cached_known = functional.pad(known[:, :-1], (0, 0, 1, 0))
        both, both_known = torch.cat([cached, padded], 2), torch.cat([cached_known, known], 2)
        key, value = self.offer(both).chunk(2, dim=-1)
        # A segment of padding alone would have nothing to look at: it may look at everything.
        seeable = (both_known | ~both_known.any(dim=2, keepdim=True)).flatten(0, 1)[:, None, None]
        asked = self._heads(self.ask(padded))
        seen = functional.scaled_dot_product_attention(asked, self._heads(key), self._heads(value), attn_mask=seeable)
        merged = seen.transpose(1, 2).reshape(graphs, -1, hidden)[:, :groups]
        return self.out(merged)  # type: ignore[no-any-return]

    def _heads(self, columns: Tensor) -> Tensor:
        """[graphs * segments, heads, groups, hidden / heads]"""
        flat = columns.flatten(0, 1)
        return flat.reshape(len(flat), flat.shape[1], self.heads, -1).transpose(1, 2)


class GoNetwork(nn.Module):
    """Shared layers, then one recurrent attention layer per task: fusion, placement, schedule, each seeing the one
    before."""

    def __init__(self, shape: NetworkShape) -> None:
        super().__init__()
        self.shape = shape
        hidden = shape.hidden
        self.enter = mlp(OPS_WIDTH + GRAPH_WIDTH + STATE_WIDTH + 1 + SEEN_WIDTH + SEEN_PAIRS, hidden, hidden)
        self.enter_device = mlp(DEVICES_WIDTH + GRAPH_WIDTH + 2, hidden, hidden)
        self.sage = nn.ModuleList(Sage(hidden, shape.pooling) for _ in range(shape.sage))
        depth = shape.layers + len(TASKS)
        self.modulate = nn.Linear(hidden, hidden * depth)
        attention = (hidden, shape.heads, shape.attention)
        self.body = nn.ModuleList(SegmentAttention(*attention) for _ in range(shape.layers))
        self.task = nn.ModuleDict({name: SegmentAttention(*attention) for name in shape.tasks})
        self.pair_op, self.pair_device = nn.Linear(hidden, hidden), nn.Linear(hidden, hidden)
        self.pair_own = nn.Linear(PAIRS_WIDTH + CLASSES + STATE_WIDTH + SEEN_PAIRS, hidden)
        self.pair_out = mlp(hidden, hidden, 1)
        self.choice = mlp(hidden + GRAPH_WIDTH + len(SLOTS) + SUMMARY_WIDTH, hidden, hidden, 1)
        self.choice_prior = nn.Parameter(torch.tensor([4.0, 8.0]))  # against a long bound, against bytes over
        self.stay = nn.Parameter(torch.tensor(2.0))  # how much a decision of the last pass counts
        self.placed = nn.Linear(hidden, hidden)
        self.level = mlp(hidden, hidden, LEVELS)
        self.fuse = mlp(hidden + OPS_WIDTH, hidden, LEVELS)
        self.fused = nn.Linear(LEVELS, hidden)
        for head in (self.level, self.fuse, self.pair_out, self.choice):
            _start_at_zero(head)
        nn.init.zeros_(self.modulate.weight)
        nn.init.zeros_(self.modulate.bias)
        with torch.no_grad():
            last: Any = self.level[-1]
            last.bias[MIDDLE] = 5.0  # an untrained schedule is nearly the critical-path order

    def forward(self, batch: GoBatch, last: LastDecisions) -> GoOutputs:
        near, load = _under(batch, last)
        pairs = near.new_zeros(*near.shape[:3], SEEN_PAIRS) if last.seen_pairs is None else last.seen_pairs
        near = torch.cat([near, pairs], dim=3)
        state, devices = self._embed(batch, last, near, load)
        state, scale = self._attended(state, batch)
        fusion, state = self._fusion(state, batch, scale)
        placing = self._task("placement", state, batch, scale)
        place = self._place(placing, devices, batch, near)
        chosen = place.softmax(dim=2) @ devices
        scheduling = self._task("schedule", placing + self.placed(chosen), batch, scale)
        return GoOutputs(place, self.level(scheduling), fusion)

    def choose(self, batch: GoBatch) -> Tensor:
        """[candidates of all graphs] how promising each is, from the pooled graph, read once for all of its candidates,
        and what can be said of the candidate."""
        nothing = LastDecisions(torch.zeros_like(batch.time), torch.zeros_like(batch.size))
        near, load = _under(batch, nothing)
        near = torch.cat([near, near.new_zeros(*near.shape[:3], SEEN_PAIRS)], dim=3)
        state, _ = self._embed(batch, nothing, near, load)
        if self.shape.choice == "body":
            state, _ = self._attended(state, batch)
        pooled = _pooled(state, batch)[batch.candidate_graph]
        scores = self.choice(torch.cat([pooled, batch.graphs[batch.candidate_graph], batch.candidates], 1))[:, 0]
        known = batch.candidates[:, len(SLOTS) :]
        prior: Tensor = scores - known[:, [BOUND, OVER]] @ self.choice_prior
        return prior

    def _embed(self, batch: GoBatch, last: LastDecisions, near: Tensor, load: Tensor) -> tuple[Tensor, Tensor]:
        def whole(rows: int) -> Tensor:
            return batch.graphs[:, None].expand(-1, rows, -1)

        own = (near * last.device[..., None]).sum(dim=2)  # what the chosen device looks like from here
        seen = own.new_zeros(*own.shape[:2], SEEN_WIDTH) if last.seen is None else last.seen
        state = self.enter(torch.cat([batch.ops, whole(batch.ops.shape[1]), own, last.level[..., None], seen], 2))
        devices = self.enter_device(torch.cat([batch.devices, whole(batch.devices.shape[1]), load], 2))
        for layer in self.sage:
            state = layer(state, batch)
        return state, devices

    def _attended(self, state: Tensor, batch: GoBatch) -> tuple[Tensor, list[Tensor]]:
        """The shared layers of attention, modulated; and the factors of all layers."""
        scale = self._scales(state, batch)
        for layer, factor in zip(self.body, scale, strict=False):
            state = layer(state * factor, batch.there)
        return state, scale

    def _scales(self, state: Tensor, batch: GoBatch) -> list[Tensor]:
        """Feature modulation: a factor per layer and column from the pooled graph, all ones when it is off."""
        if not self.shape.modulation:
            return [state.new_ones(1)] * (self.shape.layers + len(TASKS))
        factors = 1 + self.modulate(_pooled(state, batch)).reshape(len(state), -1, 1, self.shape.hidden).tanh()
        return list(factors.unbind(dim=1))

    def _task(self, name: str, state: Tensor, batch: GoBatch, scale: list[Tensor]) -> Tensor:
        if name not in self.task:
            return state
        layer: Any = self.task[name]
        factor = scale[self.shape.layers + TASKS.index(name)]
        result: Tensor = state + layer(state * factor, batch.there)
        return result

    def decides(self, task: str) -> bool:
        """Whether it has a layer for that task."""
        return task in self.task

    def _fusion(self, state: Tensor, batch: GoBatch, scale: list[Tensor]) -> tuple[Tensor, Tensor]:
        if "fusion" not in self.task or not len(batch.single):
            return state.new_zeros(len(batch.single), LEVELS), state
        fusing = self._task("fusion", state, batch, scale).reshape(-1, self.shape.hidden)
        scores = self.fuse(torch.cat([fusing[batch.single_group], batch.single], 1))
        chosen = torch.zeros(len(fusing), LEVELS, device=state.device)
        chosen = chosen.index_add(0, batch.single_group, scores.softmax(dim=1))
        mean = chosen / chosen.sum(dim=1, keepdim=True).clamp(min=1)
        return scores, (fusing + self.fused(mean)).reshape(state.shape)

    def _place(self, state: Tensor, devices: Tensor, batch: GoBatch, near: Tensor) -> Tensor:
        own = self.pair_own(torch.cat([batch.pairs, near], 3))
        seen = self.pair_op(state)[:, :, None] + self.pair_device(devices)[:, None] + own
        scores = self.pair_out(seen.relu())[..., 0] + self.stay * near[..., 0]
        masked: Tensor = scores.masked_fill(~batch.able, NEVER)
        return masked


def _pooled(state: Tensor, batch: GoBatch) -> Tensor:
    return state.masked_fill(~batch.there[:, :, None], -torch.inf).amax(dim=1)


def _under(batch: GoBatch, last: LastDecisions) -> tuple[Tensor, Tensor]:
    """What the last decisions mean: [graphs, groups, devices, STATE_WIDTH] and [graphs, devices, 2].

    Of each pair: whether the group is there, how much of its incoming and outgoing traffic is, and how full the device
    is in time and in bytes.
    """
    flat = last.device.reshape(-1, last.device.shape[2])
    weight = batch.traffic[:, None]

    def share(source: Tensor, target: Tensor) -> Tensor:
        total = torch.zeros_like(flat).index_add(0, target, flat[source] * weight)
        return (total / total.sum(dim=1, keepdim=True).clamp(min=1e-6)).reshape(last.device.shape)

    time = (batch.time * last.device).sum(dim=1)
    held = (batch.size[:, :, None] * last.device).sum(dim=1)
    full = (held / batch.capacity.clamp(min=1e-6)).clamp(max=4)
    load = torch.stack([time, full], dim=2)
    spread = load[:, None].expand(-1, flat.shape[0] // len(load), -1, -1)
    near = torch.stack([last.device, share(batch.before, batch.after), share(batch.after, batch.before)], 3)
    return torch.cat([near, spread], dim=3), load


def _start_at_zero(head: nn.Sequential) -> None:
    last = head[-1]
    assert isinstance(last, nn.Linear)
    nn.init.zeros_(last.weight)
    nn.init.zeros_(last.bias)


def shape_of(known: dict[str, object]) -> NetworkShape:
    """The shape that a file of weights tells of; one that does not say so chose before the body had read the graph."""
    shape = NetworkShape(**{"choice": "sage", **known})  # type: ignore[arg-type]
    return replace(shape, tasks=tuple(shape.tasks))
