"""A joint graph of forward and backward as columns: what each op makes, reads and costs.

`evaluate` says what a set of saved tensors leads to: the ops that the backward pass runs again, what they cost, and the
peak of both passes. Light ops count as Inductor fuses them: an elementwise op gets memory of its own only where a
library call reads it, the backward pass needs it, or too many tensors went into it. Costs are in bytes moved; flops
become bytes by the machine's balance.
"""

from __future__ import annotations

import operator
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import fx
from torch.utils._pytree import tree_leaves, tree_map
from torch.utils.flop_counter import flop_registry

# Flops in the time of one byte, 65 % of what data sheets say: 989 Tflop/s to 4.8 TB/s (H200), 312 to 2.0 (A100), 67 to
# 4.8 in float32. A CPU core has about 8.
BALANCE = {torch.bfloat16: 130.0, torch.float16: 130.0, torch.float8_e4m3fn: 260.0}
FULL_PRECISION, TENSOR_FLOAT, CPU_BALANCE = 9.0, 65.0, 8.0
INLINED = 0.1  # of its bytes: an elementwise op made again inside the kernel that reads it
READS = 4  # Inductor stores a value used twice that more tensors went into (config.realize_reads_threshold)
BUILTIN = ("aten", "prims", "inductor_prims", "higher_order")


@dataclass(frozen=True, eq=False)
class CutOutcome:
    """What a set of saved tensors leads to.

    Attributes:
        again: ops that the backward pass runs again.
        cost: of them, in bytes moved.
        forward_bytes, backward_bytes: peak of each pass beside what is resident (weights, inputs).
    """

    again: frozenset[int]
    cost: float
    forward_bytes: int
    backward_bytes: int

    @property
    def peak_bytes(self) -> int:
        return max(self.forward_bytes, self.backward_bytes)


class Joint:
    """The columns of a joint graph; `nodes[i]` is op i.

    Attributes:
        reads: [ops] indices of what each op reads.
        nbytes: [ops] of its result; 0 for views and results that are no tensors.
        root: [ops] the op whose memory a view shows, else itself.
        light: [ops] elementwise: may become part of its readers' kernels.
        fixed: [ops] may not run twice: random numbers, collectives, ops of others.
        forward, backward: indices in order. The backward pass starts where gradients come in.
        results, gradients: indices that each pass returns.
    """

    def __init__(self, graph: fx.Graph, results: int, larger: float = 1.0) -> None:
        self.larger = larger
        self.nodes = [node for node in graph.nodes if node.op != "output"]
        number = self.number = {node: index for index, node in enumerate(self.nodes)}
        self.reads = [[number[read] for read in node.all_input_nodes] for node in self.nodes]
        self.given = [node.op != "call_function" for node in self.nodes]
        self.view = [_is_view(node) for node in self.nodes]
        self.root = list(range(len(self.nodes)))
        for index in range(len(self.nodes)):
            if self.view[index]:
                self.root[index] = self.root[self.reads[index][0]]
        self.nbytes = [
            0 if view or given else self._bytes(node)
            for node, view, given in zip(self.nodes, self.view, self.given, strict=True)
        ]
        self.light = [_is_light(node) for node in self.nodes]
        self.fixed = [_is_fixed(node) for node in self.nodes]
        self._sides(graph, results)
        self.heavy_cost = [self._cost(index) for index in range(len(self.nodes))]

    def _sides(self, graph: fx.Graph, results: int) -> None:
        outputs: Any = graph.output_node().args[0]
        ends = [[self.number[n] for n in part if isinstance(n, fx.Node)] for part in _halves(outputs, results)]
        self.results, self.gradients = ends
        late = [False] * len(self.nodes)
        for index, node in enumerate(self.nodes):
            late[index] = is_tangent(node) or any(late[read] for read in self.reads[index])
        self.late = late
        first = self._behind(self.results)
        second = self._behind(self.gradients)
        count = range(len(self.nodes))
        self.forward = [i for i in count if first[i] and not late[i] and not self.given[i]]
        self.backward = [i for i in count if second[i] and late[i] and not self.given[i]]

    def _behind(self, ends: Iterable[int]) -> list[bool]:
        found = [False] * len(self.nodes)
        for end in ends:
            found[end] = True
        for index in reversed(range(len(self.nodes))):
            if found[index]:
                for read in self.reads[index]:
                    found[read] = True
        return found

    def _bytes(self, node: fx.Node) -> int:
        value = node.meta.get("val")
        if not isinstance(value, torch.Tensor):
            return 0
        grown = self.larger if any(not isinstance(size, int) for size in value.shape) else 1.0
        return round(numel(value) * value.element_size() * grown)

    def _cost(self, index: int) -> float:
        """Of an op that is run on its own."""
        node = self.nodes[index]
        if self.given[index] or self.view[index] or node.target is operator.getitem:
            return 0.0
        moved = self.nbytes[index] + sum(self.nbytes[self.root[read]] for read in self.reads[index])
        return moved + flops_of(node) / balance(node)

    def evaluate(self, saved: frozenset[int]) -> CutOutcome:
        again = self.again(saved)
        ends = [self.root[i] for i in (*self.results, *saved)]
        forward = self._behind((*self.results, *saved))
        first = [i for i, needed in enumerate(forward) if needed and not self.given[i] and not self.late[i]]
        front = self.peak(first, (), ends)
        later = self.in_order(again)
        held = {self.root[i] for i in (*self.results, *saved) if not self.given[self.root[i]]}
        stay = [self.root[i] for i in (*self.gradients, *self.results)]
        return CutOutcome(again, self.cost(again), front, self.peak(later, held, stay))

    def again(self, saved: frozenset[int]) -> frozenset[int]:
        """Early ops that the backward pass runs since neither they nor a result that hides them is saved."""
        found = set[int]()
        ask = [read for index in self.backward for read in self.reads[index]]
        ask += [index for index in self.gradients if not self.late[index]]
        while ask:
            index = ask.pop()
            if not (self.given[index] or self.late[index] or index in saved or index in found):
                found.add(index)
                ask += self.reads[index]
        return frozenset(found)

    def cost(self, again: frozenset[int]) -> float:
        return sum(self.cost_again(index, again) for index in again)

    def cost_again(self, index: int, again: frozenset[int] | set[int]) -> float:
        inlined = self.light[index] and not self._read_by_library(index, again)
        return INLINED * self.nbytes[index] if inlined else self.heavy_cost[index]

    def _read_by_library(self, index: int, again: frozenset[int] | set[int]) -> bool:
        for user in self.nodes[index].users:
            number = self.number.get(user, -1)
            if number < 0 or not (self.late[number] or number in again):
                continue
            if self._read_by_library(number, again) if self.view[number] else not self.light[number]:
                return True
        return False

    def in_order(self, again: frozenset[int]) -> list[int]:
        """The backward pass as autograd would run it: what is made again comes right before its first reader."""
        order, placed = list[int](), set[int]()
        for index in self.backward:
            ask, wanted = list(self.reads[index]), set[int]()
            while ask:
                read = ask.pop()
                if read in again and read not in placed and read not in wanted:
                    wanted.add(read)
                    ask += self.reads[read]
            order += sorted(wanted)
            placed |= wanted
            order.append(index)
        return order

    def peak(self, order: Sequence[int], held: Iterable[int], stay: Iterable[int]) -> int:
        """Most bytes at once while the ops run in that order.

        Args:
            order: indices.
            held: roots that are there before.
            stay: roots that remain afterwards.
        """
        kept = set(stay)
        sources = self._sources(order, kept)
        last = dict[int, int]()
        for at, index in enumerate(order):
            if sources[index] is None or self.view[index]:
                continue
            for root in sources[index]:
                last[root] = at
        live = {root: self.nbytes[root] for root in held}
        now = top = sum(live.values())
        for at, index in enumerate(order):
            if index in self._inlined or self.view[index]:
                continue
            live[index] = self.nbytes[index]
            now += live[index]
            gone = [root for root in {*sources[index], index} if root in live and root not in kept]
            gone = [root for root in gone if last.get(root, at) == at]
            lent = self.light[index] and any(live[root] == live[index] for root in gone if root != index)
            top = max(top, now - (live[index] if lent else 0))
            now -= sum(live.pop(root) for root in gone)
        return top

    def _sources(self, order: Sequence[int], kept: set[int]) -> dict[int, list[int]]:
        """Roots in memory that each op reads, by way of ops that become part of it."""
        inside = set(order)
        sources, inlined = dict[int, list[int]](), set[int]()
        for index in order:
            found = set[int]()
            for read in self.reads[index]:
                root = self.root[read]
                if root in inlined:
                    found.update(sources[root])
                elif not self.given[root]:
                    found.add(root)
            sources[index] = list(found)
            small = len(found) <= READS or len(self.nodes[index].users) == 1
            may = self.light[index] and index not in kept and not self.view[index] and small
            if may and not self._library_reader(index, inside):
                inlined.add(index)
        self._inlined = inlined
        return sources

    def _library_reader(self, index: int, inside: set[int]) -> bool:
        for user in self.nodes[index].users:
            number = self.number.get(user, -1)
            if number not in inside:
                continue
            if self._library_reader(number, inside) if self.view[number] else self._is_library(number):
                return True
        return False

    def _is_library(self, index: int) -> bool:
        return not self.light[index] and not _is_reduction(self.nodes[index])


def _halves(outputs: Any, results: int) -> tuple[list[Any], list[Any]]:
    return list(outputs[:results]), list(outputs[results:])


def is_tangent(node: fx.Node) -> bool:
    return node.op == "placeholder" and "tangents" in str(node.target)


def numel(value: torch.Tensor) -> int:
    count = 1
    for size in value.shape:
        count *= size if isinstance(size, int) else hint(size)
    return count


def hint(size: Any) -> int:
    """What an open size was when the graph was traced."""
    known = getattr(size.node, "hint", None)
    return int(known) if known is not None else 1


def packet(node: fx.Node) -> Any:
    return getattr(node.target, "overloadpacket", node.target)


def _is_view(node: fx.Node) -> bool:
    if node.op != "call_function":
        return False
    if packet(node) in (torch.ops.aten._unsafe_view, torch.ops.aten.reshape):
        return True
    returns: list[Any] = getattr(getattr(node.target, "_schema", None), "returns", [])
    alias = returns[0].alias_info if len(returns) == 1 else None
    return alias is not None and not alias.is_write and bool(node.all_input_nodes)


_LIGHT = {
    torch.ops.prims.convert_element_type,
    torch.ops.prims.iota,
    torch.ops.aten.full,
    torch.ops.aten.full_like,
    torch.ops.aten.where,
    torch.ops.aten.clone,
    torch.ops.aten.expand,
    torch.ops.aten.scalar_tensor,
    torch.ops.aten.arange,
    torch.ops.aten.constant_pad_nd,
    torch.ops.aten.embedding,
    torch.ops.aten.index,
    torch.ops.aten.gather,
}
_REDUCTIONS = {"sum", "mean", "amax", "amin", "var_mean", "var", "any", "argmax", "argmin", "max", "min", "prod"}


def _is_light(node: fx.Node) -> bool:
    if node.op != "call_function":
        return False
    return torch.Tag.pointwise in getattr(node.target, "tags", ()) or packet(node) in _LIGHT or _is_random(node)


def _is_reduction(node: fx.Node) -> bool:
    name = getattr(packet(node), "__name__", "")
    if node.target is operator.getitem:
        return _is_reduction(node.args[0])  # type: ignore[arg-type]
    return name in _REDUCTIONS or name.startswith(("prepare_softmax", "cumsum", "inductor_reduce"))


def _is_random(node: fx.Node) -> bool:
    return getattr(packet(node), "__name__", "").startswith("inductor_random")


def _is_fixed(node: fx.Node) -> bool:
    """Whether it must not be run twice."""
    if node.op != "call_function":
        return True
    if node.target is operator.getitem:
        return _is_fixed(node.args[0])  # type: ignore[arg-type]
    name = getattr(packet(node), "__name__", str(node.target))
    if torch.Tag.nondeterministic_seeded in getattr(node.target, "tags", ()) or "seed" in name or "rand" in name:
        return True
    schema = getattr(node.target, "_schema", None)
    if schema is not None and schema.is_mutable:
        return True
    space = getattr(node.target, "namespace", "aten")
    return space not in BUILTIN or isinstance(node.target, torch._ops.HigherOrderOperator)


def flops_of(node: fx.Node) -> float:
    count = flop_registry.get(packet(node))
    if count is None:
        return 0.0
    args, kwargs = tree_map(lambda leaf: _plain(leaf), (node.args, node.kwargs))
    try:
        return float(count(*args, **kwargs, out_val=_plain(node)))
    except Exception:  # of an op whose counter takes other arguments: its traffic is its cost
        return 0.0


def _plain(leaf: Any) -> Any:
    """A value without open sizes."""
    value = leaf.meta.get("val") if isinstance(leaf, fx.Node) else leaf
    if isinstance(value, torch.Tensor):
        return torch.empty([s if isinstance(s, int) else hint(s) for s in value.shape], device="meta")
    if isinstance(value, (list, tuple)):
        return type(value)(_plain(v) for v in value)
    return hint(value) if isinstance(value, torch.SymInt) else value


def balance(node: fx.Node) -> float:
    """Flops that the op's device does in the time of one byte."""
    value = next((v for v in tree_leaves(node.meta.get("val")) if isinstance(v, torch.Tensor)), None)
    if value is None or value.device.type == "cpu":
        return CPU_BALANCE
    full = TENSOR_FLOAT if torch.get_float32_matmul_precision() != "highest" else FULL_PRECISION
    return BALANCE.get(value.dtype, full)
