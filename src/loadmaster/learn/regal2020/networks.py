"""Networks that read a problem once: over its wiring (graph), over its ops in program order (sequence), or both.

Both end in the same heads: a score for each op and device from the two's embeddings, so that one set of weights serves
any number of unlike devices; numbers per op; and logits of the few choices made once per graph.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Literal

import numpy as np
import torch
from torch import Tensor, nn

from loadmaster.papers.features import DEVICES_WIDTH, GRAPH_WIDTH, OPS_WIDTH, ORDERS, PAIRS_WIDTH, Features

Kind = Literal["graph", "sequence", "both"]
PER_OP = 3  # shift of the priority's width, of the affinities' variance and of the elite bias, in levels


@dataclass(frozen=True, eq=False)
class Batch:
    """Several problems side by side as tensors; pairs of op and device in op-major order within each problem.

    Attributes:
        able: [pairs] bool.
        program: [ops] the ops as the programs have them, one graph after the other.
        mirror: [ops] the ops in the mirrored orders.
    """

    ops: Tensor  # [ops, OPS_WIDTH]
    devices: Tensor  # [devices, DEVICES_WIDTH]
    pairs: Tensor  # [pairs, PAIRS_WIDTH]
    able: Tensor  # [pairs]
    graphs: Tensor  # [graphs, GRAPH_WIDTH]
    before: Tensor  # [edges]
    after: Tensor  # [edges]
    orders: Tensor  # [ops, orders]
    program: Tensor  # [ops]
    mirror: Tensor  # [ops]
    graph_of_op: Tensor  # [ops]
    op_of_pair: Tensor  # [pairs]
    device_of_pair: Tensor  # [pairs]
    num_ops: tuple[int, ...]
    num_pairs: tuple[int, ...]

    @property
    def num_graphs(self) -> int:
        return len(self.num_ops)


@dataclass(frozen=True, eq=False)
class Outputs:
    """What the network says.

    Attributes:
        chance: [pairs] log-probability that the op is best on that device.
        place: [ops] where in the step it is dispatched, about 0 to 1.
        choices: [graphs, sum of the choices' sizes] logits.
    """

    chance: Tensor  # [pairs]
    place: Tensor  # [ops]
    shift: Tensor  # [ops, PER_OP]
    choices: Tensor  # [graphs, sum of the choices' sizes]


def batch_of(many: Sequence[Features], device: torch.device | str = "cpu") -> Batch:
    sizes, widths = [f.num_ops for f in many], [f.num_devices for f in many]
    first_op, first_device = np.cumsum([0, *sizes[:-1]]), np.cumsum([0, *widths[:-1]])

    def floats(parts: Sequence[np.ndarray]) -> Tensor:
        return torch.from_numpy(np.concatenate(parts)).to(device)

    op_of_pair = [np.repeat(np.arange(n), d) + at for n, d, at in zip(sizes, widths, first_op, strict=True)]
    device_of_pair = [np.tile(np.arange(d), n) + at for n, d, at in zip(sizes, widths, first_device, strict=True)]
    return Batch(
        ops=floats([f.ops for f in many]),
        devices=floats([f.devices for f in many]),
        pairs=floats([f.pairs for f in many]),
        able=floats([f.able for f in many]),
        graphs=floats([f.graph[None] for f in many]),
        before=floats([f.before + at for f, at in zip(many, first_op, strict=True)]),
        after=floats([f.after + at for f, at in zip(many, first_op, strict=True)]),
        orders=floats([f.orders for f in many]),
        program=floats([np.arange(sum(sizes))]),
        mirror=floats([np.argsort(f.mirror, kind="stable") + at for f, at in zip(many, first_op, strict=True)]),
        graph_of_op=floats([np.repeat(np.arange(len(many)), sizes)]),
        op_of_pair=floats(op_of_pair),
        device_of_pair=floats(device_of_pair),
        num_ops=tuple(sizes),
        num_pairs=tuple(n * d for n, d in zip(sizes, widths, strict=True)),
    )


def mean_by(values: Tensor, row: Tensor, count: int) -> Tensor:
    """[count, width] the mean of the values of each row; 0 where there are none."""
    total = values.new_zeros(count, values.shape[1]).index_add(0, row, values)
    size = values.new_zeros(count).index_add(0, row, values.new_ones(len(row)))
    return total / size.clamp(min=1)[:, None]


def log_softmax_by(scores: Tensor, row: Tensor, count: int) -> Tensor:
    """Log-softmax of the scores within each row."""
    top = scores.new_full((count,), -torch.inf).scatter_reduce(0, row, scores.detach(), "amax")
    shifted = scores - top[row]
    total = scores.new_zeros(count).index_add(0, row, shifted.exp())
    return shifted - total.log()[row]


def _mlp(*widths: int) -> nn.Sequential:
    layers: list[nn.Module] = []
    for wide, narrow in pairwise(widths):
        layers += [nn.Linear(wide, narrow), nn.ReLU()]
    return nn.Sequential(*layers[:-1])


class GraphBody(nn.Module):
    """Rounds of messages along the edges, both ways with weights of their own, and a look at the whole graph."""

    def __init__(self, hidden: int, rounds: int) -> None:
        super().__init__()
        self.down = nn.ModuleList(nn.Linear(hidden, hidden) for _ in range(rounds))
        self.up = nn.ModuleList(nn.Linear(hidden, hidden) for _ in range(rounds))
        self.join = nn.ModuleList(_mlp(4 * hidden, hidden, hidden) for _ in range(rounds))
        self.norm = nn.ModuleList(nn.LayerNorm(hidden) for _ in range(rounds))

    def forward(self, state: Tensor, batch: Batch) -> Tensor:
        count = len(state)
        for down, up, join, norm in zip(self.down, self.up, self.join, self.norm, strict=True):
            above = mean_by(down(state).relu()[batch.before], batch.after, count)
            below = mean_by(up(state).relu()[batch.after], batch.before, count)
            whole = mean_by(state, batch.graph_of_op, batch.num_graphs)[batch.graph_of_op]
            state = norm(state + join(torch.cat([state, above, below, whole], dim=1)))
        return state


class SequenceBody(nn.Module):
    """A recurrent network over the ops in program order: the graph as a sequence (GAS in REGAL 2020)."""

    def __init__(self, hidden: int, rounds: int) -> None:
        super().__init__()
        self.cell = nn.GRU(hidden, hidden // 2, num_layers=2, batch_first=True, bidirectional=True)
        self.norm = nn.LayerNorm(hidden)

    def forward(self, state: Tensor, batch: Batch) -> Tensor:
        rows = nn.utils.rnn.pack_sequence(list(torch.split(state, list(batch.num_ops))), enforce_sorted=False)
        out, sizes = nn.utils.rnn.pad_packed_sequence(self.cell(rows)[0], batch_first=True)
        flat = torch.cat([row[:size] for row, size in zip(out, sizes.tolist(), strict=True)])
        normed: Tensor = self.norm(state + flat)
        return normed


class BothBody(nn.Module):
    """Messages along the edges, and from as many ops before and after, in the program's order and in the mirrored one:
    4 ** round. A few rounds along edges reach a few ops away; where the bytes of a step balance shows farther on."""

    def __init__(self, hidden: int, rounds: int) -> None:
        super().__init__()
        self.tell = nn.ModuleList(nn.Linear(hidden, 4 * hidden) for _ in range(rounds))
        self.join = nn.ModuleList(_mlp(6 * hidden, hidden, hidden) for _ in range(rounds))
        self.norm = nn.ModuleList(nn.LayerNorm(hidden) for _ in range(rounds))

    def forward(self, state: Tensor, batch: Batch) -> Tensor:
        count = len(state)
        for turn, (tell, join, norm) in enumerate(zip(self.tell, self.join, self.norm, strict=True)):
            down, up, program, mirror = tell(state).relu().chunk(4, dim=1)
            above = mean_by(down[batch.before], batch.after, count)
            below = mean_by(up[batch.after], batch.before, count)
            told = [_from_both_sides(program, batch.program, batch, 4**turn)]
            told.append(_from_both_sides(mirror, batch.mirror, batch, 4**turn))
            whole = mean_by(state, batch.graph_of_op, batch.num_graphs)[batch.graph_of_op]
            state = norm(state + join(torch.cat([state, above, below, *told, whole], dim=1)))
        return state


def _from_both_sides(said: Tensor, order: Tensor, batch: Batch, far: int) -> Tensor:
    """[ops, width] in an order of all ops, half of what the op so far before says, and the other half of what the one
    so far after does; those of another graph say nothing."""
    place = torch.empty_like(order)
    place[order] = torch.arange(len(order), device=order.device)
    heard = []
    for half, step in zip(said.chunk(2, dim=1), (-far, far), strict=True):
        at = place + step
        there = order[at.clamp(0, len(order) - 1)]
        inside = (at >= 0) & (at < len(order)) & (batch.graph_of_op[there] == batch.graph_of_op)
        heard.append(half[there] * inside[:, None])
    return torch.cat(heard, dim=1)


BODIES: dict[Kind, type[nn.Module]] = {"graph": GraphBody, "sequence": SequenceBody, "both": BothBody}


class PolicyNetwork(nn.Module):
    """Embeds ops and devices, lets the ops see each other, and answers for ops, pairs and the whole graph."""

    def __init__(
        self, choices: Sequence[int], kind: Kind = "graph", hidden: int = 64, rounds: int = 4, dropout: float = 0.0
    ) -> None:
        super().__init__()
        self.choices = tuple(choices)
        self.dropout = nn.Dropout(dropout)  # has no weights, and does nothing but while learning
        self.enter = _mlp(OPS_WIDTH + GRAPH_WIDTH, hidden, hidden)
        self.enter_device = _mlp(DEVICES_WIDTH + GRAPH_WIDTH, hidden, hidden)
        self.body: nn.Module = BODIES[kind](hidden, rounds)
        self.pair = _mlp(3 * hidden + PAIRS_WIDTH, hidden, 1)
        self.order = _mlp(hidden, hidden, len(ORDERS) + 1)
        self.shift = _mlp(hidden, hidden, PER_OP)
        self.choose = _mlp(2 * hidden + GRAPH_WIDTH, hidden, sum(self.choices))
        for head in (self.shift, self.choose):
            _start_at_zero(head)

    def lean(self, choices: Sequence[int], by: float = 1.0) -> None:
        """Lets the untrained policy prefer these choices."""
        last = self.choose[-1]
        assert isinstance(last, nn.Linear)
        with torch.no_grad():
            for first, choice in zip(np.cumsum([0, *self.choices[:-1]]).tolist(), choices, strict=True):
                last.bias[first + choice] += by

    def forward(self, batch: Batch) -> Outputs:
        whole = batch.graphs[batch.graph_of_op]
        entered = self.dropout(self.enter(torch.cat([batch.ops, whole], dim=1)))
        state = self.dropout(self.body(entered, batch))
        pooled = mean_by(state, batch.graph_of_op, batch.num_graphs)
        far = state.new_full((batch.num_graphs, state.shape[1]), -torch.inf)
        far = far.scatter_reduce(0, batch.graph_of_op[:, None].expand_as(state), state, "amax")
        return Outputs(
            chance=self._chance(state, batch),
            place=self._place(state, batch),
            shift=self.shift(state),
            choices=self.choose(torch.cat([pooled, far, batch.graphs], dim=1)),
        )

    def _chance(self, state: Tensor, batch: Batch) -> Tensor:
        first_pair = torch.zeros(len(batch.devices), dtype=torch.long, device=state.device)
        first_pair[batch.device_of_pair] = batch.graph_of_op[batch.op_of_pair]
        device = self.enter_device(torch.cat([batch.devices, batch.graphs[first_pair]], dim=1))
        op_state, device_state = state[batch.op_of_pair], device[batch.device_of_pair]
        seen = torch.cat([op_state, device_state, op_state * device_state, batch.pairs], dim=1)
        scores = self.pair(seen)[:, 0].masked_fill(~batch.able, -30.0)
        return log_softmax_by(scores, batch.op_of_pair, len(state))

    def _place(self, state: Tensor, batch: Batch) -> Tensor:
        """A mixture of the orders, op by op, and a little beside it."""
        raw: Tensor = self.order(state)
        mixed = (raw[:, :-1].softmax(dim=1) * batch.orders).sum(dim=1)
        return mixed + 0.1 * raw[:, -1].tanh()


def _start_at_zero(head: nn.Sequential) -> None:
    last = head[-1]
    assert isinstance(last, nn.Linear)
    nn.init.zeros_(last.weight)
    nn.init.zeros_(last.bias)
