"""Ops that write to what they are given, and which of those writes a graph can hold as they are.

A write to a weight, a buffer or an input becomes an output that aliases it. A write to an activation, or to something
that is also seen through a view, is traced away before.
"""

from __future__ import annotations

import operator
from collections import Counter
from collections.abc import Sequence
from typing import Any, NamedTuple

from torch import Tensor, fx
from torch._ops import OpOverload

GIVEN = ("placeholder", "get_attr")
_KEY = "loadmaster_written"


def written_by(node: fx.Node) -> list[fx.Node]:
    """The arguments that the op writes to, by its schema."""
    if not isinstance(node.target, OpOverload) or not node.target._schema.is_mutable:
        return []
    if _KEY not in node.meta:
        node.meta[_KEY] = _find_written(node, node.target)
    written: list[fx.Node] = node.meta[_KEY]
    return written


def _find_written(node: fx.Node, op: OpOverload) -> list[fx.Node]:
    written = []
    for position, argument in enumerate(op._schema.arguments):
        if argument.alias_info is None or not argument.alias_info.is_write:
            continue
        value = node.args[position] if position < len(node.args) else node.kwargs.get(argument.name)
        parts = value if isinstance(value, (list, tuple)) else [value]
        written += [_written_first(part) for part in parts if isinstance(part, fx.Node)]
    return written


def _written_first(node: fx.Node) -> fx.Node:
    """What a chain of writes started from: each op is given the result of the write before."""
    if isinstance(node.target, OpOverload) and isinstance(node.meta.get("val"), Tensor):
        for before in written_by(node):
            if storage_of(before.meta["val"]) == storage_of(node.meta["val"]):
                return before
    return node


def storage_of(tensor: Tensor) -> int:
    """Equal for two tensors that share memory, as long as both live."""
    return int(tensor.untyped_storage()._cdata)


def tensors_in(value: Any) -> list[Tensor]:
    """The tensors of an op's result: one, or several in a list."""
    if isinstance(value, Tensor):
        return [value]
    return [tensor for part in value for tensor in tensors_in(part)] if isinstance(value, (list, tuple)) else []


def writes_only_given(graph: fx.Graph) -> bool:
    """Whether every write is to a given tensor of which there are no views."""
    written: set[fx.Node] = set()
    for node in graph.nodes:
        written.update(written_by(node))
    if any(node.op not in GIVEN for node in written):
        return False
    storages = {storage_of(node.meta["val"]) for node in written}
    return not any(_shows(node, storages) for node in graph.nodes)


def _shows(node: fx.Node, storages: set[int]) -> bool:
    if node.op != "call_function" or node.target is operator.getitem or written_by(node):
        return False
    return any(storage_of(tensor) in storages for tensor in tensors_in(node.meta.get("val")))


class Landing(NamedTuple):
    """A result that its op can write straight into a given tensor.

    Attributes:
        which: among the results of its op.
    """

    maker: fx.Node
    which: int | None
    given: fx.Node


def landings(graph: fx.Graph) -> dict[fx.Node, Landing]:
    """For each `copy_` of a result into a given tensor: the op that may write there itself, so that no copy is made."""
    position = {node: index for index, node in enumerate(graph.nodes)}
    writes = Counter(given for node in graph.nodes for given in written_by(node))
    found: dict[fx.Node, Landing] = {}
    for copy in graph.nodes:
        if str(copy.target) != "aten.copy_.default":
            continue
        given, result = copy.args[:2]
        landing = Landing(*maker_of(result), given)
        taken = any(landing[:2] == other[:2] for other in found.values())
        others = [user for user in given.users if user is not copy]
        # All who read the old value must come before the op that makes the new one.
        in_time = all(position[user] <= position[landing.maker] for user in others) and not _views(others, given)
        if given.op in GIVEN and writes[given] == 1 and not taken and in_time and _fits(result, landing):
            found[copy] = landing
    return found


def maker_of(node: fx.Node) -> tuple[fx.Node, int | None]:
    """The op that makes it, and which of its results it is where there are several."""
    if node.target is operator.getitem:
        source, index = node.args
        assert isinstance(source, fx.Node) and isinstance(index, int)
        return source, index
    return node, None


def _fits(result: fx.Node, landing: Landing) -> bool:
    """Whether the result has memory of its own and of the same form, and is not returned."""
    value, target = result.meta["val"], landing.given.meta["val"]
    if value.shape != target.shape or value.dtype != target.dtype or value.stride() != target.stride():
        return False
    if landing.maker.op != "call_function" or any(user.op == "output" for user in result.users):
        return False
    return not _views([landing.maker], *landing.maker.all_input_nodes)


def _views(nodes: Sequence[fx.Node], *bases: fx.Node) -> bool:
    storages = {storage_of(tensor) for base in bases for tensor in tensors_in(base.meta["val"])}
    return any(_shows(node, storages) for node in nodes)
