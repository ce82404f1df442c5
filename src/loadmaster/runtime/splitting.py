"""A captured step in which ops are split: the same step for the graph with the parts, so that its plans can run.

A part is the traced call on slices of its arguments; slices, concatenations and additions are calls of torch. Only the
joined loss is no op of torch. The step that comes out is like any captured one: it is placed, ordered, sent between
processes and verified by the same code.
"""

from __future__ import annotations

import operator
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, fx

from loadmaster.errors import CannotRun
from loadmaster.importers.torch.graph import Call, CapturedStep, Update
from loadmaster.importers.torch.mutation import GIVEN
from loadmaster.importers.torch.values import ValueMode
from loadmaster.passes.splitting import Split, SplitGraph, SplitOrigin, grow, split_region
from loadmaster.passes.splitting.axes import bare_kind
from loadmaster.passes.splitting.parts import ADD, CONCATENATE, JOIN_LOSS, SLICE

aten = torch.ops.aten
_SHAPED = {"view": aten.view.default, "_unsafe_view": aten.view.default, "reshape": aten.view.default}
_MEAN = 1  # how torch writes the reduction of a loss


def split_step(captured: CapturedStep, splits: Sequence[Split]) -> CapturedStep:
    """The step after the splits, one after another."""
    for split in splits:
        made = split_region(captured.graph, grow(captured.graph, split))
        captured = _StepRewrite(captured, made).step()
    return captured


def join_losses(losses: Sequence[Tensor], weights: Sequence[Tensor], mean: bool) -> tuple[Tensor, Tensor]:
    """The loss over all samples of those of the parts, each with the weight of its samples."""
    total = torch.stack(list(weights)).sum()
    if mean:
        return (torch.stack(list(losses)) * torch.stack(list(weights))).sum() / total, total
    return torch.stack(list(losses)).sum(), total


class _StepRewrite:
    """Writes the traced step again, op by op of the new graph."""

    def __init__(self, captured: CapturedStep, made: SplitGraph) -> None:
        self.captured, self.old, self.new, self.origin = captured, captured.graph, made.graph, made.origin
        self.fx = fx.Graph()
        self.index = {name: tensor for tensor, name in enumerate(self.new.tensor_name)}
        self.op_of = {name: op for op, name in enumerate(self.old.op_name)}
        self.node: dict[int, fx.Node] = {}  # new tensor -> what makes it
        self.given: dict[int, fx.Node] = {}
        self.calls: list[Call | Update] = []
        fakes = [given.fake for given in captured.trace.given]
        self.mode: ValueMode = fakes[0].fake_mode  # type: ignore[attr-defined]

    def step(self) -> CapturedStep:
        with self.mode.forgetting(), torch.no_grad():
            self._given()
            for op, name in enumerate(self.new.op_name):
                self.calls.append(self._call(op, name))
        old, trace = self.captured, self.captured.trace
        outputs = tuple(self._moved(tensor) for tensor in old.outputs)
        gradients = {name: self._moved(tensor) for name, tensor in old.gradients.items()}
        results = [self.node[tensor] for tensor in (*outputs, *gradients.values())]
        self.fx.output(results)
        found = dict(zip(gradients, results[len(outputs) :], strict=True))
        module = fx.GraphModule(trace.module, self.fx)
        again = replace(trace, module=module, outputs=results[: len(outputs)], gradients=found)
        calls = tuple(self.calls)
        return replace(
            old, graph=self.new, trace=again, calls=calls, given=self.given, outputs=outputs, gradients=gradients
        )

    def _moved(self, tensor: int) -> int:
        return self.index[self.old.tensor_name[tensor]]

    def _given(self) -> None:
        tensors = {node: tensor for tensor, node in self.captured.given.items()}
        for node in self.captured.trace.module.graph.nodes:
            if node.op in GIVEN:
                copy = self.fx.node_copy(node)
                if node in tensors:
                    tensor = self._moved(tensors[node])
                    self.node[tensor] = self.given[tensor] = copy

    def _call(self, op: int, name: str) -> Call | Update:
        origin = self.origin.get(name)
        if origin is None:
            return self._copy(self.captured.calls[self.op_of[name]])
        if origin.part >= 0:
            return self._part(op, origin)
        return self._between(op, origin)

    # Ops that stay whole

    def _copy(self, call: Call | Update) -> Call | Update:
        if isinstance(call, Update):
            weight, gradient, *state = map(self._moved, call.reads)
            return Update(call.weight, (weight, gradient, *state))
        where = {node: self._moved(tensor) for node, tensor in call.reads.items()}
        makes = _mapped(call.makes, self._moved)
        node = self._node(call.node.target, call, where, None)
        node.meta = dict(call.node.meta)
        self._keep(node, makes, node.meta.get("val"))
        lands = {which: self._moved(tensor) for which, tensor in call.lands.items()}
        for which, tensor in lands.items():
            made = node if which is None else self._result(node, which, node.meta["val"])
            self._emit(aten.copy_.default, (self.node[tensor], made), {})
        return Call(node, self._reads(where.values()), makes, lands)

    def _node(
        self, target: Any, call: Call, where: Mapping[fx.Node, int], samples: int | None, shape: Any = None
    ) -> fx.Node:
        """The call with its operands in their new places. `samples`: rows of an operand of which only the form counts;
        `shape`: in place of the one that is among its arguments."""

        def operand(node: fx.Node) -> fx.Node:
            if node in where:
                return self.node[where[node]]
            form = node.meta["val"]
            rows = samples is not None and node is call.node.args[1]
            size = [samples, *form.shape[1:]] if rows else list(form.shape)
            return self._emit(aten.zeros.default, (size,), {"dtype": form.dtype})

        args, kwargs = fx.map_arg((call.node.args, call.node.kwargs), operand)
        args = args if shape is None else (args[0], list(shape), *args[2:])
        return self.fx.call_function(target, args, kwargs)

    def _emit(self, target: Any, args: Any, kwargs: Any) -> fx.Node:
        """A call with its form."""
        node = self.fx.call_function(target, args, kwargs)
        node.meta["val"] = self._form(target, args, kwargs)
        return node

    def _form(self, target: Callable[..., Any], args: Any, kwargs: Any) -> Any:
        with self.mode:
            real = fx.map_arg((args, kwargs), lambda node: node.meta["val"])
            return target(*real[0], **real[1])

    def _keep(self, node: fx.Node, makes: Any, value: Any) -> None:
        """Which tensors its results are."""
        if isinstance(makes, (list, tuple)):
            for which, part in enumerate(makes):
                if part is not None:
                    self._keep(self._result(node, which, value), part, value[which])
        elif makes is not None:
            self.node[makes] = node

    def _result(self, node: fx.Node, which: int, value: Any) -> fx.Node:
        for user in node.users:
            if user.target is operator.getitem and user.args[1] == which:
                return user
        found = self.fx.call_function(operator.getitem, (node, which))
        found.meta["val"] = value[which]
        return found

    def _reads(self, tensors: Any) -> dict[fx.Node, int]:
        return {self.node[tensor]: tensor for tensor in tensors}

    # Ops in parts

    def _part(self, op: int, origin: SplitOrigin) -> Call:
        call = self.captured.calls[origin.op]
        assert isinstance(call, Call)
        reads, makes = self.new.reads_of(op).tolist(), self.new.makes_of(op).tolist()
        to = dict(zip(self.old.reads_of(origin.op).tolist(), reads, strict=True))
        made = dict(zip(self.old.makes_of(origin.op).tolist(), makes, strict=True))
        where = {node: to[tensor] for node, tensor in call.reads.items()}
        kind = bare_kind(self.old.kind[origin.op])
        shape = self.new.shape[makes[0]] if kind in (*_SHAPED, "expand") else None
        samples = self._rows(reads[0])
        node = self._shaped(_SHAPED.get(kind, call.node.target), call, where, samples, shape)
        results = _mapped(call.makes, made.__getitem__)
        self._keep(node, results, node.meta["val"])
        return Call(node, self._reads(where.values()), results, {})

    def _shaped(
        self, target: Any, call: Call, where: Mapping[fx.Node, int], samples: int | None, shape: Any
    ) -> fx.Node:
        """A part of a view may have to be copied: it need not lie as the whole did."""
        node = self._node(target, call, where, samples, shape)
        try:
            node.meta["val"] = self._form(target, node.args, node.kwargs)
        except RuntimeError:
            if target is not aten.view.default:
                raise
            node.target = aten.reshape.default
            node.meta["val"] = self._form(node.target, node.args, node.kwargs)
        return node

    def _rows(self, tensor: int) -> int | None:
        shape = self.new.shape[tensor]
        return shape[0] if shape else None

    # Slices, concatenations, sums

    def _between(self, op: int, origin: SplitOrigin) -> Call:
        kind, reads, makes = self.new.kind[op], self.new.reads_of(op).tolist(), self.new.makes_of(op).tolist()
        operands = [self.node[tensor] for tensor in reads]
        if kind == SLICE:
            shape = self.new.shape[makes[0]]
            assert shape is not None
            first = _part_of(self.new.op_name[op]) * shape[origin.dim]
            node = self._emit(SLICES, (operands[0], origin.dim, first, first + shape[origin.dim]), {})
        elif kind == CONCATENATE:
            node = self._emit(aten.cat.default, (operands, origin.dim), {})
        elif kind == ADD:
            node = self._emit(aten.add.Tensor, tuple(operands), {})
        elif kind == JOIN_LOSS:
            return self._loss(operands, reads, makes, self._reduction(origin.op))
        else:
            raise CannotRun(f"there is no call for '{kind}'", self.new.op_name[op], "plan without --split")
        self._keep(node, makes[0], node.meta["val"])
        return Call(node, self._reads(reads), makes[0], {})

    def _loss(self, operands: list[fx.Node], reads: list[int], makes: list[int], mean: bool) -> Call:
        half = len(operands) // 2
        node = self._emit(join_losses, (operands[:half], operands[half:], mean), {})
        self._keep(node, makes, node.meta["val"])
        return Call(node, self._reads(reads), makes, {})

    def _reduction(self, op: int) -> bool:
        """Whether the loss is a mean over samples, rather than their sum."""
        call = self.captured.calls[op]
        assert isinstance(call, Call)
        return bool(call.node.args[3] == _MEAN)


SLICES = aten.slice_copy.Tensor


def _part_of(name: str) -> int:
    found = re.search(r"/part(\d+)$", name)
    assert found is not None
    return int(found[1])


def _mapped(makes: Any, to: Callable[[int], int]) -> Any:
    if isinstance(makes, (list, tuple)):
        return [_mapped(part, to) for part in makes]
    return None if makes is None else to(makes)
