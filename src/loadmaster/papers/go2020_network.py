"""The network of GO (Zhou et al. 2020, arXiv 2010.12438): what it reads of a graph, and its scores for three tasks.

    op features → GraphSAGE → modulated segments of attention → fusion → placement → schedule   (one pass)
                      │                 ▲                             │
                      └─ pooled graph ──┘        decisions of a pass are read by the next

Read from the top: the input (section 3.1), graph embedding (3.2, equations 1 and 2), segment-recurrent attention (3.3),
feature modulation (3.4, equation 5), the three heads (3.5). Rows are samples of graphs, side by side and padded.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn import functional

from loadmaster.graph.columns import Bools, Ints, ints, rows_of
from loadmaster.papers.features import DEVICES_WIDTH, GRAPH_WIDTH, OPS_WIDTH, PAIRS_WIDTH, features_of, group_features
from loadmaster.papers.grouped import able_groups, groups_of, totals
from loadmaster.problem import CANNOT, Problem

Floats = NDArray[np.float32]

TASKS = ("fusion", "placement", "schedule")  # in the order in which a pass decides them
LEVELS = 20  # priorities of fusion and of schedule
MIDDLE = LEVELS // 2  # of schedule: a group stays where the critical path has it
SEGMENT = 16  # groups that attend to each other and to the segment before
NEAR = 5  # columns of a group and a device under the last decisions
LEANING = 0.5  # at first
NEVER = -1e9  # the score of a device that cannot run the group

# ---------------------------------------------------------------- the input: section 3.1


@dataclass(frozen=True, eq=False)
class GoGraph:
    """One problem in numbers, group by group along the program.

    Attributes:
        traffic: [edges] time to send what passes along it, as a root, about 1.
        time: [groups, devices] as a share of an equal part of the whole.
        size: [groups] as a share of all bytes.
        capacity: [devices] memory, as a share of all bytes.
    """

    label: Ints  # [ops] group of each op
    ops: Floats  # [groups, OPS_WIDTH]
    devices: Floats  # [devices, DEVICES_WIDTH]
    pairs: Floats  # [groups, devices, PAIRS_WIDTH]
    able: Bools  # [groups, devices]
    graph: Floats  # [GRAPH_WIDTH]
    before: Ints  # [edges]
    after: Ints  # [edges]
    traffic: Floats  # [edges]
    time: Floats  # [groups, devices]
    size: Floats  # [groups]
    capacity: Floats  # [devices]


def read_problem(problem: Problem, groups: int, scopes: bool = True) -> GoGraph:
    """The problem in at most that many groups: ops of a module, or along heavy tensors where it says no modules."""
    features = features_of(problem) if scopes else features_of(problem).without_scopes()
    label = groups_of(problem, groups)
    coarse = group_features(features, label)
    count, devices = len(coarse.ops), problem.num_devices
    slow = np.where(problem.op_ns == CANNOT, problem.best_ns[:, None] * 10, problem.op_ns)
    unit = max(1.0, float(problem.best_ns.sum())) / devices
    size = _group_bytes(problem, label, count)
    return GoGraph(
        label=label,
        ops=coarse.ops,
        devices=coarse.devices,
        pairs=coarse.pairs.reshape(count, devices, -1),
        able=able_groups(problem, label),
        graph=coarse.graph,
        before=coarse.before,
        after=coarse.after,
        traffic=_traffic(problem, label, coarse.before, coarse.after, count),
        time=(totals(label, slow, count) / unit).astype(np.float32),
        size=(size / size.sum()).astype(np.float32),
        capacity=np.minimum(16.0, problem.memory_bytes / size.sum()).astype(np.float32),
    )


def _group_bytes(problem: Problem, label: Ints, count: int) -> NDArray[np.float64]:
    """[groups] bytes that its ops make, and resident bytes where they are first read; at least 1."""
    graph = problem.graph
    own, made = graph.own_bytes, graph.is_made
    total = np.bincount(label[graph.producer[made]], own[made], count)
    there = np.flatnonzero(problem.resident[graph.reads])
    tensors, first = np.unique(graph.reads[there], return_index=True)
    readers = rows_of(graph.read_start)[there[first]]
    return np.asarray(total + np.bincount(label[readers], own[tensors], count) + 1.0)


def _traffic(problem: Problem, label: Ints, before: Ints, after: Ints, count: int) -> Floats:
    graph = problem.graph
    reader, maker = rows_of(graph.read_start), graph.producer[graph.reads]
    made = maker >= 0
    if not problem.send_ns.size or not made.any():
        return np.ones(len(before), np.float32)
    cost = np.maximum(problem.send_ns, 0).max(axis=1).astype(np.float64)
    sent: dict[int, float] = {}
    keys, where = np.unique(label[maker[made]] * count + label[reader[made]], return_inverse=True)
    sent = dict(zip(keys.tolist(), np.bincount(where, cost[graph.reads[made]]).tolist(), strict=True))
    along = np.array([sent.get(key, 0.0) for key in (before * count + after).tolist()])
    mean = along.mean() if len(along) else 0.0
    return np.sqrt((along + 1.0) / (mean + 1.0)).clip(0, 8).astype(np.float32)


@dataclass(frozen=True, eq=False)
class GoBatch:
    """Several problems, padded to the most groups and devices among them; fields as in GoGraph.

    Attributes:
        there: [graphs, groups] no padding.
        decides: [graphs, tasks] which tasks are the network's.
        given: [graphs, groups] device of each group, where placement is not.
    """

    ops: Tensor  # [graphs, groups, OPS_WIDTH]
    devices: Tensor  # [graphs, devices, DEVICES_WIDTH]
    pairs: Tensor  # [graphs, groups, devices, PAIRS_WIDTH]
    able: Tensor  # [graphs, groups, devices]
    graph: Tensor  # [graphs, GRAPH_WIDTH]
    there: Tensor  # [graphs, groups]
    before: Tensor  # [edges] graph * groups + group
    after: Tensor  # [edges]
    traffic: Tensor  # [edges]
    time: Tensor  # [graphs, groups, devices]
    size: Tensor  # [graphs, groups]
    capacity: Tensor  # [graphs, devices]
    decides: Tensor  # [graphs, tasks]
    given: Tensor  # [graphs, groups]


def batch_of(
    many: Sequence[GoGraph],
    tasks: Sequence[Sequence[str]],
    given: Sequence[Ints | None],
    device: torch.device | str = "cpu",
) -> GoBatch:
    groups = max(len(one.ops) for one in many)
    padded = ("ops", "devices", "pairs", "able", "graph", "time", "size", "capacity")
    columns = {name: [torch.tensor(getattr(one, name)) for one in many] for name in padded}
    columns["there"] = [torch.ones(len(one.ops), dtype=torch.bool) for one in many]
    columns["given"] = [torch.tensor(ints([]) if one is None else one) for one in given]
    wires = {
        "before": np.concatenate([one.before + row * groups for row, one in enumerate(many)]),
        "after": np.concatenate([one.after + row * groups for row, one in enumerate(many)]),
        "traffic": np.concatenate([one.traffic for one in many]),
        "decides": np.array([[task in wanted for task in TASKS] for wanted in tasks]),
    }
    joined = {name: torch.from_numpy(column).to(device) for name, column in wires.items()}
    return GoBatch(**joined, **{name: pad(parts, name, groups).to(device) for name, parts in columns.items()})


def pad(parts: list[Tensor], name: str, groups: int) -> Tensor:
    """[graphs, ...] zeros where a graph has fewer groups or devices than another."""
    sizes = [max(sizes) for sizes in zip(*(part.shape for part in parts), strict=True)]
    sizes = [groups] if name == "given" else sizes
    whole = parts[0].new_zeros(len(parts), *sizes)
    for row, part in enumerate(parts):
        whole[row][tuple(slice(size) for size in part.shape)] = part
    return whole


# ---------------------------------------------------------------- decisions of a pass


class GoDecisions(NamedTuple):
    """Of each group of each row: its priority among merges (0: its ops join no reader), its device, its level."""

    fusion: Tensor  # [rows, groups]
    device: Tensor  # [rows, groups]
    level: Tensor  # [rows, groups]


@dataclass(frozen=True, eq=False)
class GoPass:
    """One pass of the network: what it decided and how likely that and everything else was.

    Attributes:
        chance: [rows, tasks, groups] log-probability of the decisions; 0 where nothing was decided.
        entropy: [rows, tasks, groups] of the distributions; 0 where nothing was decided.
    """

    made: GoDecisions
    chance: Tensor
    entropy: Tensor


# ---------------------------------------------------------------- graph embedding: section 3.2


class Sage(nn.Module):
    """A round of GraphSAGE (Hamilton et al. 2017) with max pooling.

    Equation 1: h_N(v) = max over neighbours u of relu(W h_u + b). Equation 2: h_v' = f([h_v, h_N(v)]).
    Differs from the paper: neighbours before and after are pooled apart.
    """

    def __init__(self, hidden: int) -> None:
        super().__init__()
        self.heard = nn.Linear(hidden, 2 * hidden)
        self.join = nn.Linear(3 * hidden, hidden)

    def forward(self, state: Tensor, batch: GoBatch) -> Tensor:
        flat = state.flatten(0, 1)
        earlier, later = self.heard(flat).relu().chunk(2, dim=1)
        up, down = pooled_max(earlier, batch.before, batch.after), pooled_max(later, batch.after, batch.before)
        joined: Tensor = self.join(torch.cat([flat, up, down], dim=1)).relu()
        return state + joined.view_as(state)


def pooled_max(values: Tensor, source: Tensor, target: Tensor) -> Tensor:
    """[nodes, width] for each node the largest of its neighbours' values, which are 0 or more; 0 without any."""
    index = target[:, None].expand(-1, values.shape[1])
    return torch.zeros_like(values).scatter_reduce(0, index, values[source], "amax")


# ---------------------------------------------------------------- segment-recurrent attention: section 3.3


class SegmentAttention(nn.Module):
    """A layer of Transformer-XL (Dai et al. 2019) without positions: each group attends to its own segment and to the
    cached states, without gradient, of the one before. Without attention: the feed-forward half alone."""

    def __init__(self, hidden: int, heads: int, attention: bool) -> None:
        super().__init__()
        self.heads, self.attention = heads, attention
        self.norm, self.norm_out = nn.LayerNorm(hidden), nn.LayerNorm(hidden)
        if attention:
            self.query, self.key_value = nn.Linear(hidden, hidden), nn.Linear(hidden, 2 * hidden)
            self.out = nn.Linear(hidden, hidden)
        self.feed = nn.Sequential(nn.Linear(hidden, 2 * hidden), nn.ReLU(), nn.Linear(2 * hidden, hidden))

    def forward(self, state: Tensor, there: Tensor) -> Tensor:
        if self.attention:
            state = state + self.attended(self.norm(state), there)
        out: Tensor = state + self.feed(self.norm_out(state))
        return out

    def attended(self, state: Tensor, there: Tensor) -> Tensor:
        rows, groups, hidden = state.shape
        length = min(SEGMENT, groups)
        spare = -groups % length
        segments = functional.pad(state, (0, 0, 0, spare)).view(rows, -1, length, hidden)
        seen = functional.pad(there, (0, spare)).view(rows, -1, length)
        cached = torch.cat([torch.zeros_like(segments[:, :1]), segments[:, :-1].detach()], dim=1)
        known = torch.cat([torch.zeros_like(seen[:, :1]), seen[:, :-1]], dim=1)
        allowed = torch.cat([known, seen], dim=2)[:, :, None, None, :].expand(-1, -1, 1, length, -1)
        itself = functional.pad(torch.eye(length, dtype=torch.bool, device=state.device), (length, 0))
        key, value = self.key_value(torch.cat([cached, segments], dim=2)).chunk(2, dim=-1)
        query, key, value = (
            each.unflatten(3, (self.heads, -1)).transpose(2, 3) for each in (self.query(segments), key, value)
        )
        mixed = functional.scaled_dot_product_attention(query, key, value, allowed | itself)
        out: Tensor = self.out(mixed.transpose(2, 3).reshape(rows, -1, hidden)[:, :groups])
        return out


# ---------------------------------------------------------------- the policy: sections 3.4 and 3.5


@dataclass(frozen=True)
class GoShape:
    """Sizes and parts of the network; what a file of weights says of itself.

    Attributes:
        embedding: GraphSAGE reads the edges; no: a group sees its own features before attention.
        attention: in the shared layers and in those of the tasks.
        modulation: of features by the pooled graph.
        shared: layers of attention that the tasks share.
    """

    hidden: int = 32
    sage: int = 2
    shared: int = 2
    heads: int = 2
    embedding: bool = True
    attention: bool = True
    modulation: bool = True


class GoNetwork(nn.Module):
    """Scores for all groups at once. `embed` reads a graph once; `decide` is one pass over its samples."""

    def __init__(self, shape: GoShape) -> None:
        super().__init__()
        self.shape = shape
        hidden = shape.hidden
        self.enter = nn.Linear(OPS_WIDTH + GRAPH_WIDTH + len(TASKS), hidden)
        self.enter_device = nn.Linear(DEVICES_WIDTH + GRAPH_WIDTH, hidden)
        self.sage = nn.ModuleList(Sage(hidden) for _ in range(shape.sage * shape.embedding))
        self.condition = nn.Linear(hidden, hidden)  # c of equation 5
        self.before = nn.Linear(NEAR + 2, hidden)  # what the pass before decided
        self.body = nn.ModuleList(SegmentAttention(hidden, shape.heads, shape.attention) for _ in range(shape.shared))
        self.task = nn.ModuleDict({task: SegmentAttention(hidden, shape.heads, shape.attention) for task in TASKS})
        self.fusion_head, self.schedule_head = nn.Linear(hidden, LEVELS), nn.Linear(hidden, LEVELS)
        self.pair_group, self.pair_device = nn.Linear(hidden, hidden), nn.Linear(hidden, hidden)
        self.pair = nn.Linear(PAIRS_WIDTH + NEAR, hidden)
        self.placement_head = nn.Linear(hidden, 1)
        self.leaning = nn.Parameter(torch.full((hidden,), LEANING))  # how far samples lean apart
        self.fused, self.placed = nn.Linear(1, hidden), nn.Linear(hidden, hidden)  # each task sees the one before
        for head in (self.fusion_head, self.schedule_head, self.placement_head):
            nn.init.zeros_(head.weight)  # untrained: every decision is as likely as any other
            nn.init.zeros_(head.bias)
        nn.init.normal_(self.condition.weight, std=0.02)
        nn.init.ones_(self.condition.bias)

    def known(self) -> dict[str, object]:
        """What a file of weights says of the network."""
        return asdict(self.shape)

    def embed(self, batch: GoBatch) -> tuple[Tensor, Tensor, Tensor]:
        """([graphs, groups, hidden] groups, [graphs, devices, hidden] devices, [graphs, 1, hidden] factors)."""
        groups, devices = batch.ops.shape[1], batch.devices.shape[1]
        whole = torch.cat([batch.graph, batch.decides.float()], dim=1)[:, None]
        state = self.enter(torch.cat([batch.ops, whole.expand(-1, groups, -1)], dim=2)).relu()
        for layer in self.sage:
            state = layer(state, batch)
        device = self.enter_device(torch.cat([batch.devices, batch.graph[:, None].expand(-1, devices, -1)], dim=2))
        pooled = state.masked_fill(~batch.there[:, :, None], -torch.inf).amax(dim=1, keepdim=True)
        factor = self.condition(pooled) if self.shape.modulation else torch.ones_like(pooled)
        return state, device, factor

    def decide(
        self,
        batch: GoBatch,
        embedded: tuple[Tensor, Tensor, Tensor],
        samples: int,
        last: GoDecisions | None,
        noise: Noise,
    ) -> GoPass:
        """One pass for so many samples of each graph, which are rows side by side; decisions come from `noise`."""
        row = torch.arange(len(batch.ops), device=batch.ops.device).repeat_interleave(samples)
        (state, factor), device, near = (embedded[0], embedded[2]), embedded[1][row], near_of(batch, row, last)
        if last is not None:
            own = near.gather(2, last.device[:, :, None, None].expand(-1, -1, 1, NEAR))[:, :, 0]
            scaled = torch.stack([last.fusion, last.level], dim=2) / LEVELS
            state, factor = state[row] + self.before(torch.cat([own, scaled], dim=2)), factor[row]
        first = row if last is None else slice(None)  # in the first pass the samples of a graph share these layers
        there = batch.there if last is None else batch.there[row]
        for layer in self.body:
            state = layer(factor * state, there)  # equation 5: x' = g(c(x0) * x)
        fusing = (state + self.task["fusion"](factor * state, there))[first]
        factor, there = factor[first], batch.there[row]
        decides = batch.decides[row]
        fusion, *of_fusion = noise.choose("fusion", self.fusion_head(fusing), decides[:, 0], there, None)

        placing = fusing + self.fused(fusion[:, :, None] / LEVELS)
        placing = placing + self.task["placement"](factor * placing, there)
        scores = self.place_scores(placing, device, batch, row, near, noise.lean)
        chosen, *of_device = noise.choose("placement", scores, decides[:, 1], there, batch.given[row])

        scheduling = placing + self.placed(device.gather(1, chosen[:, :, None].expand(-1, -1, device.shape[2])))
        scheduling = scheduling + self.task["schedule"](factor * scheduling, there)
        middle = torch.full_like(chosen, MIDDLE)
        level, *of_level = noise.choose("schedule", self.schedule_head(scheduling), decides[:, 2], there, middle)
        parts = zip(of_fusion, of_device, of_level, strict=True)
        return GoPass(GoDecisions(fusion, chosen, level), *(torch.stack(each, dim=1) for each in parts))

    def place_scores(
        self, state: Tensor, device: Tensor, batch: GoBatch, row: Tensor, near: Tensor, lean: Tensor
    ) -> Tensor:
        """[rows, groups, devices] from the group, the device and what lies between them: any number of devices.

        A sample leans [rows, hidden] its own way, in all of its groups alike: independent draws would scatter
        neighbours (ours; noise on weights as in Fortunato et al. 2018, arXiv 1706.10295).
        """
        between = self.pair(torch.cat([batch.pairs[row], near], dim=3))
        seen = (self.pair_group(state)[:, :, None] + self.pair_device(device)[:, None] + between).relu()
        leaning: Tensor = (seen @ (self.leaning * lean)[:, None, :, None])[..., 0]
        scores: Tensor = self.placement_head(seen)[..., 0] + leaning
        return scores.masked_fill(~batch.able[row], NEVER)


def near_of(batch: GoBatch, row: Tensor, last: GoDecisions | None) -> Tensor:
    """[rows, groups, devices, NEAR] under the last decisions: whether the group is there, the shares of what it reads
    and of what reads it that are there, and how full the device is in time and in bytes. All 0 before the first."""
    graphs, groups, devices = batch.able.shape
    if last is None:
        return batch.time.new_zeros(len(row), groups, devices, NEAR)
    place = functional.one_hot(last.device, devices).float() * batch.there[row][:, :, None]
    beside = place.view(graphs, -1, groups, devices).transpose(1, 2).reshape(graphs * groups, -1)  # samples abreast

    shares = []
    for source, target in ((batch.before, batch.after), (batch.after, batch.before)):
        total = torch.zeros_like(beside).index_add(0, target, beside[source] * batch.traffic[:, None])
        each = total.view(graphs, groups, -1, devices).transpose(1, 2).reshape(place.shape)
        shares.append(each / each.sum(dim=2, keepdim=True).clamp(min=1e-6))
    time = (batch.time[row] * place).sum(dim=1)
    held = (batch.size[row][:, :, None] * place).sum(dim=1)
    full = (held / batch.capacity[row].clamp(min=1e-6)).clamp(max=4)
    load = torch.stack([time, full], dim=2)[:, None].expand(-1, groups, -1, -1)
    return torch.cat([torch.stack([place, *shares], dim=3), load], dim=3)


class Noise:
    """Where decisions come from: drawn at a temperature per row, or those of a pass that is looked at again.

    Attributes:
        lean: [rows, hidden] standard normal, or 0: which way the placements of a sample lean.
    """

    def __init__(
        self,
        lean: Tensor,
        temperature: Tensor | None = None,
        generator: torch.Generator | None = None,
        again: GoDecisions | None = None,
    ) -> None:
        self.lean, self.temperature, self.generator = lean, temperature, generator
        self.again = None if again is None else dict(zip(TASKS, again, strict=True))

    def choose(
        self, task: str, scores: Tensor, decides: Tensor, there: Tensor, otherwise: Tensor | None
    ) -> tuple[Tensor, Tensor, Tensor]:
        """([rows, groups] decisions, their log-probability, the entropy); `otherwise` or 0 where it is not decided."""
        chances = scores.log_softmax(dim=2)
        decided = decides[:, None] & there
        if self.again:
            picked = self.again[task]
        else:  # the largest log-chance plus Gumbel noise is a draw; at temperature 0 it is the likeliest
            assert self.temperature is not None
            even = torch.rand(chances.shape, generator=self.generator, device=chances.device).clamp(1e-9, 1 - 1e-7)
            picked = (chances - self.temperature[:, None, None] * (-even.log()).log()).argmax(dim=2)
        made = torch.where(decided, picked, torch.zeros_like(picked) if otherwise is None else otherwise)
        chance = chances.gather(2, made[:, :, None])[:, :, 0] * decided
        entropy = -(chances.exp() * chances.clamp(min=-50)).sum(dim=2) * decided
        return made, chance, entropy
