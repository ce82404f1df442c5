"""Placeto's network: messages up and down the groups, pooled by relation and device, a score for each device.

With once="step" the groups are embedded anew for every decision; with once="episode" only as they are at the start, and
what has changed since then is seen by the head alone.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise
from typing import Literal

import numpy as np
import torch
from torch import Tensor, nn

from loadmaster.learn.placeto2019.board import DEVICES_WIDTH, GRAPH_WIDTH, GROUPS_WIDTH, Board

Aggregator = Literal["messages", "simple"]
Embedding = Literal["graph", "partitioner"]
Once = Literal["step", "episode"]
AGGREGATORS: tuple[Aggregator, ...] = ("messages", "simple")
EMBEDDINGS: tuple[Embedding, ...] = ("graph", "partitioner")
ONCE: tuple[Once, ...] = ("step", "episode")

CHANGING = 6  # columns of a group that change in an episode: see `changing`
PAIRS_WIDTH = 21  # columns of the current group on each device: see `episodes.Walk`
POOL = 8  # numbers pooled per relation
CANNOT_SCORE = -1e9
# Before training the policy leans away from sends to done neighbours and from loaded devices, towards done neighbours.
LEAN = {0: -4.0, 2: -4.0, 4: 4.0, 6: -3.0}
LOUD, LOUDER = 5.0, 10.0  # scores per unit of the head and of the linear part: Adam's steps are small beside LEAN


@dataclass(frozen=True, eq=False)
class BoardTensors:
    """A board as tensors.

    Attributes:
        time: [groups, devices] squeezed.
        into: [groups, groups] row g: the groups that g waits for, each by its part.
        out: [groups, groups] row g: the groups that wait for g.
        tie: [groups, groups] as a share of what the second receives.
        fro: [groups, groups] as a share of what the first sends.
        related: [3, groups, groups] rows that add up to 1, or 0.
    """

    groups: Tensor  # [groups, GROUPS_WIDTH + GRAPH_WIDTH]
    devices: Tensor  # [devices, DEVICES_WIDTH]
    graph: Tensor  # [GRAPH_WIDTH]
    time: Tensor  # [groups, devices]
    able: Tensor  # [groups, devices]
    into: Tensor  # [groups, groups]
    out: Tensor  # [groups, groups]
    tie: Tensor  # [groups, groups]
    fro: Tensor  # [groups, groups]
    related: Tensor  # [3, groups, groups]

    @property
    def num_devices(self) -> int:
        return len(self.devices)


def tensors_of(board: Board, device: torch.device | str = "cpu") -> BoardTensors:
    def tensor(values: np.ndarray) -> Tensor:
        return torch.from_numpy(np.ascontiguousarray(values, np.float32)).to(device)

    def shares(values: np.ndarray, axis: int) -> Tensor:
        return tensor(values / np.maximum(1e-9, values.sum(axis=axis, keepdims=True)))

    whole = np.broadcast_to(board.graph, (board.num_groups, GRAPH_WIDTH))
    return BoardTensors(
        groups=tensor(np.concatenate([board.groups, whole], axis=1)),
        devices=tensor(board.devices),
        graph=tensor(board.graph),
        time=tensor(np.log2(1 + board.time) / 4),
        able=torch.from_numpy(board.able.copy()).to(device),
        into=shares(board.edges.T.astype(np.float64), 1),
        out=shares(board.edges.astype(np.float64), 1),
        tie=shares(board.tie, 0),
        fro=shares(board.tie, 1),
        related=shares(board.related, 2),
    )


def changing(board_tensors: BoardTensors, place: Tensor, done: Tensor, current: Tensor) -> Tensor:
    """[..., groups, CHANGING] time on its device, speed of that device, done, current, share received from and sent to
    other devices; place [..., groups, devices] is one-hot."""
    time = (place * board_tensors.time).sum(dim=-1)
    speed = place @ board_tensors.devices[:, 0]
    near_in = ((board_tensors.tie.T @ place) * place).sum(dim=-1)
    near_out = ((board_tensors.fro @ place) * place).sum(dim=-1)
    return torch.stack([time, speed, done.expand_as(time), current.expand_as(time), near_in, near_out], dim=-1)


class PlacetoNetwork(nn.Module):
    """Placeto's network (Addanki et al. 2019, arXiv 1906.08879).

    Differs from the paper: its softmax has a fixed number of devices; here each device gets a score from what is known
    of it and of the groups on it, so that any number of unlike devices shares one set of weights. Messages are averaged
    over neighbours, not added up, and the weights of a direction are shared by its rounds. A linear part of the score
    starts as a plain heuristic (LEAN), so that the first episodes are not random. Sizes are ours.
    """

    def __init__(
        self,
        aggregator: Aggregator = "messages",
        embedding: Embedding = "graph",
        hidden: int = 32,
        rounds: int = 8,
    ) -> None:
        super().__init__()
        self.aggregator, self.embedding, self.rounds = aggregator, embedding, rounds
        raw = GROUPS_WIDTH + GRAPH_WIDTH + CHANGING
        self.enter = _mlp(raw, hidden, hidden)
        self.ways = nn.ModuleList(_Way(raw, hidden, self._messages) for _ in range(2))
        self.pool = nn.Linear(2 * hidden, 3 * POOL)
        seen = 2 * hidden + 4 * 3 * POOL + PAIRS_WIDTH + DEVICES_WIDTH + GRAPH_WIDTH
        self.head = _mlp(seen, 2 * hidden, hidden, 1)
        last = self.head[-1]
        assert isinstance(last, nn.Linear)
        nn.init.normal_(last.weight, std=0.01)
        nn.init.zeros_(last.bias)
        self.lean = nn.Linear(PAIRS_WIDTH, 1, bias=False)
        nn.init.zeros_(self.lean.weight)
        with torch.no_grad():
            for column, weight in LEAN.items():
                self.lean.weight[0, column] = weight / LOUDER

    @property
    def _messages(self) -> bool:
        return self.aggregator == "messages" and self.embedding == "graph"

    def embed(self, board_tensors: BoardTensors, change: Tensor) -> Tensor:
        """[..., groups, 2 hidden] of groups as `change` has them."""
        raw = torch.cat([board_tensors.groups.expand(*change.shape[:-2], -1, -1), change], dim=-1)
        state = self.enter(raw)
        if self.embedding == "partitioner":
            return torch.cat([state, state], dim=-1)
        if self.aggregator == "simple":
            sums = (board_tensors.into @ raw, board_tensors.out @ raw)
            ways = [way for way in self.ways if isinstance(way, _Way)]
            return torch.cat([state + way.plain(each) for way, each in zip(ways, sums, strict=True)], dim=-1)
        both = []
        for way, neighbours in zip(self.ways, (board_tensors.into, board_tensors.out), strict=True):
            seen = state
            for _ in range(self.rounds):
                seen = way(seen, neighbours)
            both.append(seen)
        return torch.cat(both, dim=-1)

    def pooled(self, board_tensors: BoardTensors, state: Tensor, group: Tensor, done: Tensor) -> Tensor:
        """[steps, groups, 6 POOL] (or with episodes in front) what each other group adds to its device's pool, all
        groups and done ones apart; group [steps], done [steps, groups]."""
        values = self.pool(state)
        related = board_tensors.related[:, group]
        if self.aggregator == "simple":
            related = related.sum(dim=0, keepdim=True).expand(3, -1, -1) / 3
        weights = related.permute(1, 2, 0).repeat_interleave(POOL, dim=-1)
        each = values * weights
        return torch.cat([each, each * done[..., None]], dim=-1)

    def scores(
        self, board_tensors: BoardTensors, state: Tensor, pool: Tensor, place: Tensor, pairs: Tensor, able: Tensor
    ) -> Tensor:
        """[episodes, steps, devices]; state [episodes?, steps, 2 hidden] of the current groups, place [episodes, steps,
        groups, devices], pairs [episodes, steps, devices, PAIRS_WIDTH]."""
        on = place.transpose(-1, -2) @ pool
        shape = (*pairs.shape[:-1], -1)
        whole = on.sum(dim=-2, keepdim=True).expand(shape)
        own = state[..., None, :].expand(shape)
        seen = torch.cat(
            [own, on, whole, pairs, board_tensors.devices.expand(shape), board_tensors.graph.expand(shape)], dim=-1
        )
        raw: Tensor = LOUD * self.head(seen)[..., 0] + LOUDER * self.lean(pairs)[..., 0]
        return raw.masked_fill(~able, CANNOT_SCORE)


class _Way(nn.Module):
    """Messages in one direction; `plain` for sums of raw columns in their place."""

    def __init__(self, raw: int, hidden: int, messages: bool) -> None:
        super().__init__()
        self.tell = nn.Linear(hidden, hidden) if messages else None
        self.hear = nn.Linear(hidden, hidden) if messages else None
        self.raw = None if messages else nn.Linear(raw, hidden)

    def forward(self, state: Tensor, neighbours: Tensor) -> Tensor:
        assert self.tell is not None and self.hear is not None
        heard: Tensor = self.hear(neighbours @ self.tell(state).relu()).relu()
        return state + heard

    def plain(self, summed: Tensor) -> Tensor:
        assert self.raw is not None
        seen: Tensor = self.raw(summed).relu()
        return seen


def _mlp(*widths: int) -> nn.Sequential:
    layers: list[nn.Module] = []
    for wide, narrow in pairwise(widths):
        layers += [nn.Linear(wide, narrow), nn.ReLU()]
    return nn.Sequential(*layers[:-1])
