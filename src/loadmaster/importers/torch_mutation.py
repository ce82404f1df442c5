"""Ops that write to what they are given, and which of those writes a graph can hold as they are.

A write to a weight, a buffer or an input becomes an output that aliases it. A write to an activation, or to something
that is also seen through a view, is traced away before.
"""

from __future__ import annotations

import operator
from collections.abc import Sequence
from typing import Any, NamedTuple

from torch import Tensor, fx
from torch._ops import OpOverload

GIVEN = ("placeholder", "get_attr")


def written_by(node: fx.Node) -> list[fx.Node]:
    """The arguments that the op writes to, by its schema."""
    if not isinstance(node.target, OpOverload) or not node.target._schema.is_mutable:
        return []
    written = []
    for position, argument in enumerate(node.target._schema.arguments):
        if argument.alias_info is None or not argument.alias_info.is_write:
            continue
        value = node.args[position] if position < len(node.args) else node.kwargs.get(argument.name)
        parts = value if isinstance(value, (list, tuple)) else [value]
        written += [part for part in parts if isinstance(part, fx.Node)]
    return written


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
    """A result that its op can write straight into a given tensor."""

    maker: fx.Node
    which: int | None  # among the results of its op
    given: fx.Node


def landings(graph: fx.Graph) -> dict[fx.Node, Landing]:
    """For each final `copy_` of a result into a given tensor: where the result may be written instead.

    Only where all others that read the old value come before the op that makes the new one.
    """
    position = {node: index for index, node in enumerate(graph.nodes)}
    found: dict[fx.Node, Landing] = {}
    for copy in graph.nodes:
        if str(copy.target) != "aten.copy_.default":
            continue
        given, result = copy.args[:2]
        landing = Landing(*maker_of(result), given)
        if given.op in GIVEN and landing[:2] not in {other[:2] for other in found.values()} and _fits(result, landing):
            others = [user for user in given.users if user is not copy]
            if all(position[user] <= position[landing.maker] for user in others) and not _views(others, given):
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
    """Whether the result has memory of its own, and of the same form."""
    value, target = result.meta["val"], landing.given.meta["val"]
    same_form = value.shape == target.shape and value.dtype == target.dtype and value.stride() == target.stride()
    return (
        same_form
        and landing.maker.op == "call_function"
        and not _views([landing.maker], *landing.maker.all_input_nodes)
    )


def _views(nodes: Sequence[fx.Node], *bases: fx.Node) -> bool:
    storages = {storage_of(tensor) for base in bases for tensor in tensors_in(base.meta["val"])}
    return any(_shows(node, storages) for node in nodes)
