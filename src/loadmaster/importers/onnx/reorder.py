"""Writes an ONNX model with its nodes in the order of a plan, which runtimes that follow the file keep.

The model that comes out is checked by ONNX itself; only the order of its nodes is another. A plan of another model is
refused by its digest.
"""

from __future__ import annotations

from collections.abc import Mapping
from os import PathLike
from pathlib import Path

import numpy as np
import onnx
from onnx import NodeProto

from loadmaster.cost import price
from loadmaster.errors import CannotRun, InvalidPlan
from loadmaster.importers.onnx.model import load_onnx
from loadmaster.importers.onnx.shapes import reads_of
from loadmaster.plans import Plan


def reorder(
    model: str | PathLike[str], plan: Plan, out: str | PathLike[str], sizes: Mapping[str, int] | None = None
) -> int:
    """Writes the model with its nodes in plan order; how many are in another place than before.

    `sizes` are those the model was planned with. They decide the order alone: the file that comes out keeps its open
    dimensions."""
    graph = load_onnx(model, dims=sizes)
    if graph.digest != plan.graph_digest:
        what = f"the plan was made for another model: digest {plan.graph_digest}, this one has {graph.digest}"
        raise InvalidPlan(what, str(model), "plan this model, and give that plan")
    proto = onnx.load_model(str(model))
    folded = price(graph, "1xcpu").graph
    made = [tuple(folded.tensor_name[t] for t in folded.makes_of(op)) for op in range(folded.num_ops)]
    ranked = [name for op in np.argsort(plan.rank, kind="stable").tolist() for name in made[op]]
    nodes = _in_order(list(proto.graph.node), ranked)
    before = [node.SerializeToString() for node in proto.graph.node]
    del proto.graph.node[:]
    proto.graph.node.extend(nodes)
    try:
        onnx.checker.check_model(proto)
    except onnx.checker.ValidationError as error:
        reason = str(error).splitlines()[0]
        raise CannotRun(f"the ordered model is not valid: {reason}", str(model), "report this model") from error
    onnx.save_model(proto, str(Path(out)))
    return sum(old != node.SerializeToString() for old, node in zip(before, nodes, strict=True))


def _in_order(nodes: list[NodeProto], ranked: list[str]) -> list[NodeProto]:
    """Nodes by the first result of theirs in `ranked`, each after those whose results it reads; those that a plan does
    not have (views, constants) just before their first reader, or at the end."""
    maker = {name: index for index, node in enumerate(nodes) for name in node.output if name}
    placed: dict[int, None] = {}

    def place(wanted: int) -> None:
        stack = [wanted]
        while stack:
            index = stack[-1]
            before = [maker[name] for name in reads_of(nodes[index]) if name in maker and maker[name] not in placed]
            if before and index not in placed:
                stack += before
            else:
                placed.setdefault(stack.pop())

    for index in [maker[name] for name in ranked if name in maker] + list(range(len(nodes))):
        if index not in placed:
            place(index)
    return [nodes[index] for index in placed]
