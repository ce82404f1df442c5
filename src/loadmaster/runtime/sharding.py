"""A captured step in which every op runs on every device, each on its share.

A share of what is whole is a slice; what is put together is sent and concatenated, and summands are added up in the
order of devices, so that all have the same bits. Weights in shares are parts of the module's own. The step that comes
out is like any captured one: it is sent between processes, run and verified by the same code.
"""

from __future__ import annotations

import operator
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from torch import fx

from loadmaster.cluster import Cluster
from loadmaster.cost import price
from loadmaster.errors import CannotRun, InvalidPlan
from loadmaster.graph.columns import ints
from loadmaster.importers.torch.graph import Call, CapturedStep, Update, captured_of, draws_random
from loadmaster.importers.torch.mutation import GIVEN, written_by
from loadmaster.importers.torch.step import Cut, Given
from loadmaster.importers.torch.values import ValueMode
from loadmaster.passes.splitting.axes import RESHAPES, bare_kind
from loadmaster.passes.splitting.sharded import SHARDING, Sharded
from loadmaster.passes.splitting.sharding import OF_LOSS, SUMMAND, Layout, Share, shard
from loadmaster.plans import Plan
from loadmaster.problem import Problem

aten = torch.ops.aten
_SIZED = (*RESHAPES, "expand", "slice_backward")  # their second argument is a shape
_CUTS = ("split", "split_with_sizes")
_MEAN = 1  # how torch writes the reduction of a loss


@dataclass(frozen=True, eq=False)
class Spread:
    """The step on shares, and the plan that runs it.

    Attributes:
        captured: the step in which every op runs on every device, each on its share.
        problem: of that step.
        plan: of that problem.
    """

    captured: CapturedStep
    problem: Problem
    plan: Plan


def spread(captured: CapturedStep, made: Sharded, cluster: Cluster) -> Spread:
    """`captured` is the step on one device."""
    if captured.graph.digest != made.graph:
        raise InvalidPlan(f"the plan is of another step: digest {made.graph}", captured.graph.digest, "plan again")
    for call in captured.calls:
        if isinstance(call, Call) and (draws_random(call.node) or written_by(call.node) or call.lands):
            what = f"'{call.node.name}' draws random numbers or writes to a buffer, and would on every device"
            raise CannotRun(what, "run", "leave dropout and batch norm out, or plan without --split")
    writer = _ShardWriter(captured, made)
    step = writer.step()
    problem = price(step.graph, cluster)
    where = [writer.place[name] for name in problem.graph.op_name]
    rank = np.empty(problem.num_ops, np.int64)
    rank[sorted(range(problem.num_ops), key=lambda op: (where[op][0], op))] = np.arange(problem.num_ops)
    return Spread(step, problem, Plan.of(problem, [device for _, device in where], ints(rank)))


class _ShardWriter:
    """Writes the traced step op by op, each once for every device."""

    def __init__(self, captured: CapturedStep, made: Sharded) -> None:
        self.captured, self.made, self.ways = captured, made, made.devices
        self.old, self.trace, self.fx = captured.graph, captured.trace, fx.Graph()
        self.sharding = shard(self.old, self.ways, made.way)
        self.mode: ValueMode = captured.trace.given[0].fake.fake_mode  # type: ignore[attr-defined]
        self.own: dict[tuple[int, int], fx.Node] = {}  # (tensor, device) -> what it has of it
        self.read: dict[tuple[int, Layout, int], fx.Node] = {}  # the same as somebody reads it
        self.place: dict[str, tuple[int, int]] = {}  # of each op of the new graph: its turn and its device
        self.turn = self.summed = 0
        self.losses: dict[int, tuple[int, int]] = {}  # loss or weight -> the pair of them
        self.mean: dict[int, bool] = {}

    def step(self) -> CapturedStep:
        with self.mode.forgetting(), torch.no_grad():
            given = self._given()
            for op, call in enumerate(self.captured.calls):
                self.turn = op
                if isinstance(call, Update):
                    self._update(op, call)
                else:
                    self._calls(op, call)
            results = [self._as(tensor, None, 0) for tensor in self.captured.outputs]
            found = self._gradients()
        self.fx.output([*results, *found.values()])
        module = fx.GraphModule(self.trace.module, self.fx)
        trace = replace(self.trace, module=module, given=given, outputs=results, gradients=found)
        made = captured_of(trace, self.captured.optimizer, self.old.name, self.captured.training)
        remembered = {**made.graph.captured, SHARDING: vars(self.made)}
        return replace(made, graph=replace(made.graph, captured=remembered))

    # Weights, buffers, inputs

    def _given(self) -> list[Given]:
        given, tensor_of = list(self.trace.given), {node: tensor for tensor, node in self.captured.given.items()}
        places = self.trace.module.graph.find_nodes(op="placeholder")
        whole = {node: self.fx.node_copy(node) for node in places}
        for node, one in zip(places, self.trace.given, strict=True):
            given += self._parts_of(tensor_of[node], whole[node], one)
        for node in self.trace.module.graph.nodes:
            if node.op in GIVEN and node not in whole:
                copy = self.fx.node_copy(node)
                for part in range(self.ways):
                    self.own[tensor_of[node], part] = copy
        return given

    def _parts_of(self, tensor: int, whole: fx.Node, one: Given) -> list[Given]:
        """What the devices have of a given tensor: of a weight in shares, or that is updated, their own."""
        layout, updated = self.sharding.source(tensor), one.name in self.captured.gradients
        if not updated and (one.role == "input" or layout is None):
            for part in range(self.ways):
                self.own[tensor, part] = whole
                if isinstance(layout, Share):
                    self.own[tensor, part] = self._slice(whole, layout, part)
            return []
        made = []
        for part in range(self.ways):
            cut = Cut(layout.dim, layout.blocks, part, self.ways) if isinstance(layout, Share) else None
            if cut is None and part == 0:
                self.own[tensor, 0] = whole
                continue
            node = self.fx.placeholder(f"{whole.name}_of_device_{part}")
            with self.mode:
                fake = torch.empty_like(one.fake, requires_grad=False)
                node.meta = {**whole.meta, "val": fake if cut is None else cut.of(fake)}
            self.own[tensor, part] = node
            made.append(Given(_named(one.name, part), one.role, node.meta["val"], one.name, cut))
        return made

    def _update(self, op: int, update: Update) -> None:
        wanted, split = self.sharding.wanted[op][0], isinstance(self.sharding.source(update.reads[0]), Share)
        for part in range(self.ways):
            self._as(update.reads[1], wanted, part)
            name = update.weight if part == 0 and not split else _named(update.weight, part)
            self.place[f"{self.captured.optimizer}:{name}"] = (self.turn, part)

    def _gradients(self) -> dict[str, fx.Node]:
        found = {}
        for op, call in enumerate(self.captured.calls):
            if isinstance(call, Update):
                split = isinstance(self.sharding.source(call.reads[0]), Share)
                for part in range(self.ways):
                    name = call.weight if part == 0 and not split else _named(call.weight, part)
                    found[name] = self._as(call.reads[1], self.sharding.wanted[op][0], part)
        return found

    # Calls

    def _calls(self, op: int, call: Call) -> None:
        wanted = dict(zip(self.old.reads_of(op).tolist(), self.sharding.wanted[op], strict=True))
        for part in range(self.ways):
            self._call(op, call, wanted, part)

    def _call(self, op: int, call: Call, wanted: dict[int, Layout], part: int) -> None:
        def operand(node: fx.Node) -> fx.Node:
            if node in call.reads:
                tensor = call.reads[node]
                return self._as(tensor, wanted[tensor], part)
            return self._stand_in(op, node, part)

        args, kwargs = fx.map_arg((call.node.args, call.node.kwargs), operand)
        target, args = self._fitted(op, call, args, part)
        node = self._emit(target, args, kwargs, part, dict(call.node.meta))
        self._keep(op, call.makes, node, part)

    def _fitted(self, op: int, call: Call, args: Any, part: int) -> tuple[Any, Any]:
        """Shapes among the arguments are those of shares; a bias is added by the first device alone."""
        kind, target = bare_kind(self.old.kind[op]), call.node.target
        layouts = [self.sharding.source(tensor) for tensor in self.old.makes_of(op).tolist()]
        if kind in _SIZED and isinstance(layouts[0], Share):
            shape = self._share_of(tuple(call.node.meta["val"].shape), layouts[0])
            target = aten.reshape.default if kind in RESHAPES else target
            return target, (args[0], list(shape), *(() if kind in RESHAPES else args[2:]))
        if kind in _CUTS and isinstance(self.sharding.wanted[op][0], Share) and self._along(op, call):
            sizes = args[1]
            fewer = [size // self.ways for size in sizes] if isinstance(sizes, (list, tuple)) else sizes // self.ways
            return target, (args[0], fewer, *args[2:])
        if kind == "addmm" and layouts[0] == SUMMAND:
            if call.node.kwargs:
                raise CannotRun(f"'{call.node.name}' scales what it adds", "run", "plan without --split")
            return (target, args) if part == 0 else (aten.mm.default, args[1:])
        return target, args

    def _along(self, op: int, call: Call) -> bool:
        """Whether it cuts along the dimension of the share."""
        layout, args = self.sharding.wanted[op][0], call.node.args
        dim = int(args[2]) if len(args) > 2 else 0  # type: ignore[arg-type]
        rank = len(self.old.shape[int(self.old.reads_of(op)[0])] or ())
        return isinstance(layout, Share) and dim % rank == layout.dim

    def _share_of(self, shape: tuple[int, ...], layout: Share) -> tuple[int, ...]:
        return (*shape[: layout.dim], shape[layout.dim] // self.ways, *shape[layout.dim + 1 :])

    def _stand_in(self, op: int, node: fx.Node, part: int) -> fx.Node:
        """For an operand of which only the form counts: like what the op makes or reads in that form."""
        form = node.meta["val"]
        shape = tuple(form.shape)
        made = [(t, self.sharding.source(t)) for t in self.old.makes_of(op).tolist()]
        read = zip(self.old.reads_of(op).tolist(), self.sharding.wanted[op], strict=True)
        alike = [layout for tensor, layout in (*made, *read) if self.old.shape[tensor] == shape]
        if alike and isinstance(alike[0], Share):
            shape = self._share_of(shape, alike[0])
        return self._emit(aten.zeros.default, (list(shape),), {"dtype": form.dtype}, part)

    def _keep(self, op: int, makes: Any, node: fx.Node, part: int) -> None:
        if isinstance(makes, (list, tuple)):
            pair = [one for one in makes if isinstance(one, int)]
            for which, tensor in enumerate(makes):
                if tensor is not None:
                    found = self.fx.call_function(operator.getitem, (node, which))
                    found.meta["val"] = node.meta["val"][which]
                    self.own[tensor, part] = found
                    if self.sharding.source(tensor) == OF_LOSS:
                        self.losses[tensor] = (pair[0], pair[1])
                        self.mean[tensor] = self._reduction(op)
        elif makes is not None:
            self.own[makes, part] = node

    def _reduction(self, op: int) -> bool:
        """Whether the loss is a mean over samples, rather than their sum."""
        call = self.captured.calls[op]
        assert isinstance(call, Call)
        return bool(call.node.args[3] == _MEAN)

    # What is put together

    def _as(self, tensor: int, wanted: Layout, part: int) -> fx.Node:
        source, key = self.sharding.source(tensor), (tensor, wanted, part)
        if source == wanted:
            return self.own[tensor, part]
        if key not in self.read:
            if isinstance(wanted, Share) and source == SUMMAND:
                self.read[key] = self._added([self._slice(v, wanted, part, at) for at, v in self._every(tensor)], part)
            elif isinstance(wanted, Share):
                self.read[key] = self._slice(self._as(tensor, None, part), wanted, part)
            elif isinstance(source, Share):
                self.read[key] = self._joined(tensor, source, part)
            elif source is None:
                self.read[key] = self.own[tensor, part]
            else:
                self._sum(tensor, source)
        return self.read[key]

    def _every(self, tensor: int) -> list[tuple[int, fx.Node]]:
        return [(part, self.own[tensor, part]) for part in range(self.ways)]

    def _slice(self, whole: fx.Node, layout: Share, part: int, device: int | None = None) -> fx.Node:
        """The share of a device, taken on it or, of a summand, where the summand is."""
        cut = Cut(layout.dim, layout.blocks, part, self.ways)
        at = part if device is None else device
        places = cut._places(whole.meta["val"])
        pieces = [
            self._emit(aten.slice.Tensor, (whole, layout.dim, first, first + size), {}, at) for first, size in places
        ]
        return pieces[0] if len(pieces) == 1 else self._emit(aten.cat.default, (pieces, layout.dim), {}, at)

    def _joined(self, tensor: int, layout: Share, part: int) -> fx.Node:
        shares = [value for _, value in self._every(tensor)]
        if layout.blocks > 1:
            size = shares[0].meta["val"].shape[layout.dim] // layout.blocks
            shares = [
                self._emit(aten.slice.Tensor, (share, layout.dim, b * size, (b + 1) * size), {}, at)
                for b in range(layout.blocks)
                for at, share in enumerate(shares)
            ]
        return self._emit(aten.cat.default, (shares, layout.dim), {}, part)

    def _sum(self, tensor: int, source: Layout) -> None:
        """Added up on one device after another's turn, from where it goes to all."""
        owner = self.summed % self.ways
        self.summed += 1
        if source == OF_LOSS:
            total = dict(zip(self.losses[tensor], self._loss(*self.losses[tensor], owner), strict=True))
        else:
            total = {tensor: self._added([value for _, value in self._every(tensor)], owner)}
        self.read |= {(t, None, part): value for t, value in total.items() for part in range(self.ways)}

    def _added(self, summands: Sequence[fx.Node], part: int) -> fx.Node:
        total = summands[0]
        for one in summands[1:]:
            total = self._emit(aten.add.Tensor, (total, one), {}, part)
        return total

    def _loss(self, loss: int, weight: int, part: int) -> tuple[fx.Node, fx.Node]:
        """Over all samples, of those of each device with the weight of its samples."""
        losses, weights = (
            self._emit(aten.stack.default, ([v for _, v in self._every(t)],), {}, part) for t in (loss, weight)
        )
        total = self._emit(aten.sum.default, (weights,), {}, part)
        if not self.mean[loss]:
            return self._emit(aten.sum.default, (losses,), {}, part), total
        parts = self._emit(aten.mul.Tensor, (losses, weights), {}, part)
        whole = self._emit(aten.sum.default, (parts,), {}, part)
        return self._emit(aten.div.Tensor, (whole, total), {}, part), total

    def _emit(self, target: Any, args: Any, kwargs: Any, part: int, meta: dict[str, Any] | None = None) -> fx.Node:
        node = self.fx.call_function(target, args, kwargs)
        with self.mode:
            real = fx.map_arg((args, kwargs), lambda one: one.meta["val"])
            node.meta = {**(meta or {}), "val": target(*real[0], **real[1])}
        node.meta.pop("loadmaster_written", None)
        self.place[node.name] = (self.turn, part)
        return node


def _named(weight: str, part: int) -> str:
    return f"{weight} of device {part}"
