"""Graphs as JSON, schema loadmaster.graph/1. Everything is checked in the pass that reads it: graphs are large.

Ops and tensors are rows, a line each, by name; what has its default is left out. Reading one goes through GraphBuilder
like every other importer, and gives a graph of the same digest as was written.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NoReturn

import numpy as np

from loadmaster.errors import InvalidGraph
from loadmaster.files.text import GRAPH_SCHEMA, Row, shown, too_deep
from loadmaster.graph import NOWHERE, ROLES, UNGIVEN, Graph, GraphBuilder
from loadmaster.graph.columns import Ints, rows_of

_TENSOR_KEYS = frozenset(["id", "bytes", "role", "shape", "dtype", "alias_of"])
_ID_TYPES = frozenset([int, str])
_NEEDED = frozenset(["name", "kind", "flops", "inputs", "outputs"])


def graph_from_json(data: Any, where: str = "graph") -> Graph:
    """The graph of parsed JSON; `where` says in errors what was read."""
    try:
        head = Row(data, where, InvalidGraph)
        builder = GraphBuilder(head.text("name"))
        tensors, ops = head.rows("tensors"), head.rows("ops")
        index = _index_tensors(tensors)
        dtypes = [_add_tensor(builder, row, index) for row in tensors]
        for row, op in enumerate(ops):
            _add_op(builder, row, op, index, dtypes)
        return builder.build()
    except InvalidGraph as error:
        place = where if error.where in ("", where) else f"{where}: {error.where}"
        raise InvalidGraph(error.what, place, error.fix) from None
    except RecursionError:
        raise too_deep(where) from None


def _index_tensors(rows: list[Any]) -> dict[int | str, int]:
    """Row of each tensor id."""
    index: dict[int | str, int] = {}
    for row, tensor in enumerate(rows):
        if type(tensor) is not dict or type(tensor.get("id")) not in (int, str):
            Row(tensor, f"tensors[{row}]", InvalidGraph).any("id")
            raise InvalidGraph(f"'id' is {shown(tensor['id'])}", f"tensors[{row}]", "give a whole number or a text")
        key = tensor["id"]
        if key in index:
            what = f"two tensors have the id {shown(key)}"
            raise InvalidGraph(what, f"tensors[{index[key]}] and tensors[{row}]", "give each its own")
        index[key] = row
    return index


def _add_tensor(builder: GraphBuilder, tensor: dict[str, Any], index: Mapping[int | str, int]) -> str:
    """Adds the tensor and returns its dtype."""
    get: Callable[[str], Any] = tensor.get
    shape, dtype, alias, role = get("shape"), get("dtype"), get("alias_of"), get("role")
    well = (
        tensor.keys() <= _TENSOR_KEYS
        and type(get("bytes")) in (int, float)
        and type(role) is str
        and (dtype is None or type(dtype) is str)
        and (alias is None or (type(alias) in (int, str) and alias in index))
        and (shape is None or (type(shape) is list and all(type(n) is int and n >= 0 for n in shape)))
    )
    if not well:
        _blame_tensor(tensor, index)
    owner = None if alias is None else index[alias]
    builder.tensor(get("bytes"), role, name=str(get("id")), shape=shape, dtype=dtype or "", alias_of=owner)
    return dtype or ""


def _blame_tensor(tensor: dict[str, Any], index: Mapping[int | str, int]) -> NoReturn:
    row = Row(tensor, f"tensor {shown(tensor['id'])}", InvalidGraph, _TENSOR_KEYS)
    if type(row.any("bytes")) not in (int, float):
        raise row.wrong("bytes", "a whole number")
    if type(row.any("role")) is not str:
        raise row.wrong("role", f"one of {', '.join(ROLES)}")
    if row.has("dtype") and type(tensor["dtype"]) is not str:
        raise row.wrong("dtype", "a text such as float32")
    alias = tensor.get("alias_of")
    if alias is None or (type(alias) in (int, str) and alias in index):
        raise row.wrong("shape", "a list of whole numbers from 0 up")
    raise InvalidGraph(f"it is an alias of {shown(alias)}, which is no tensor", row.where, "name the id of a tensor")


def _add_op(builder: GraphBuilder, row: int, op: Any, index: Mapping[int | str, int], dtypes: list[str]) -> None:
    if type(op) is not dict or not _is_well_typed(op):
        _blame_op(op, row)
    get = op.get
    inputs, outputs = _indices(op, "inputs", index), _indices(op, "outputs", index)
    # An op that says no dtype works in that of what it makes, or of what it reads.
    dtype = get("dtype") or next((dtypes[t] for t in (*outputs, *inputs) if dtypes[t]), "float32")
    group = get("colocate")
    builder.op(
        op["name"],
        op["kind"],
        inputs,
        outputs,
        flops=op["flops"],
        scope=get("scope") or "",
        source=get("source") or "",
        dtype=dtype,
        bytes_moved=get("bytes_moved"),
        workspace_bytes=get("workspace_bytes") or 0,
        colocate=None if group is None else str(group),
        after=get("after") or (),
        time_ns=get("time_ns"),
        signature=get("signature") or "",
        assumed=get("assumed") or "",
    )


_TEXT, _MAYBE_TEXT = (str,), (str, type(None))
_NUMBER, _MAYBE_NUMBER = (int, float), (int, float, type(None))
_OP_TYPES: Mapping[str, tuple[type, ...]] = {
    "name": _TEXT,
    "kind": _TEXT,
    "flops": _NUMBER,
    "inputs": (list,),
    "outputs": (list,),
    "scope": _MAYBE_TEXT,
    "source": _MAYBE_TEXT,
    "dtype": _MAYBE_TEXT,
    "bytes_moved": _MAYBE_NUMBER,
    "workspace_bytes": _MAYBE_NUMBER,
    "colocate": (int, str, type(None)),
    "after": (list, type(None)),
    "time_ns": (int, float, list, type(None)),
    "signature": _MAYBE_TEXT,
    "assumed": _MAYBE_TEXT,
}
_WANTED = {list: "a list", str: "a text", int: "a whole number", float: "a whole number", type(None): "null"}


def _is_well_typed(op: dict[str, Any]) -> bool:
    for key, value in op.items():
        if type(value) not in _OP_TYPES.get(key, ()):
            return False
    times, after = op.get("time_ns"), op.get("after")
    return (
        op.keys() >= _NEEDED
        and (type(times) is not list or (bool(times) and all(type(time) in _MAYBE_NUMBER for time in times)))
        and (after is None or all(type(name) is str for name in after))
    )


def _blame_op(op: Any, number: int) -> NoReturn:
    name = op.get("name") if isinstance(op, dict) else None
    row = Row(op, f"op '{name}'" if isinstance(name, str) else f"ops[{number}]", InvalidGraph, _OP_TYPES.keys())
    for key in sorted(_NEEDED):
        row.any(key)
    for key, value in op.items():
        if type(value) not in _OP_TYPES[key]:
            raise row.wrong(key, " or ".join(dict.fromkeys(_WANTED[kind] for kind in _OP_TYPES[key])))
    if type(op.get("time_ns")) is list and not (op["time_ns"] and all(type(t) in _MAYBE_NUMBER for t in op["time_ns"])):
        raise row.wrong("time_ns", "one whole number, or a list with one per device, null where it cannot run")
    raise row.wrong("after", "a list of op names")


def _indices(op: Mapping[str, Any], key: str, index: Mapping[int | str, int]) -> list[int]:
    try:
        if _ID_TYPES.issuperset(map(type, op[key])):
            return [index[tensor] for tensor in op[key]]
    except KeyError:
        pass
    missing = next(tensor for tensor in op[key] if type(tensor) not in (int, str) or tensor not in index)
    what = f"'{key}' names tensor {shown(missing)}, which does not exist"
    raise InvalidGraph(what, f"op '{op['name']}'", 'add it to "tensors", or name the id of one that is there')


def graph_to_json(graph: Graph) -> dict[str, Any]:
    """What graph_from_json reads back to a graph of the same digest; what has its default is left out."""
    ids = _tensor_ids(graph)
    return {
        "schema": GRAPH_SCHEMA,
        "name": graph.name,
        "ops": _op_rows(graph, ids),
        "tensors": [_tensor_row(graph, tensor, ids) for tensor in range(graph.num_tensors)],
    }


def _tensor_ids(graph: Graph) -> list[int | str]:
    """Names where they tell tensors apart, else numbers."""
    if len(set(graph.tensor_name)) < graph.num_tensors:
        return list(range(graph.num_tensors))
    return [tensor if name == str(tensor) else name for tensor, name in enumerate(graph.tensor_name)]


def _tensor_row(graph: Graph, tensor: int, ids: list[int | str]) -> dict[str, Any]:
    row: dict[str, Any] = {"id": ids[tensor], "bytes": int(graph.nbytes[tensor]), "role": ROLES[graph.role[tensor]]}
    shape, alias = graph.shape[tensor], int(graph.alias_of[tensor])
    if shape is not None:
        row["shape"] = list(shape)
    if graph.tensor_dtype[tensor]:
        row["dtype"] = graph.tensor_dtype[tensor]
    if alias >= 0:
        row["alias_of"] = ids[alias]
    return row


def _op_rows(graph: Graph, ids: list[int | str]) -> list[dict[str, Any]]:
    moved = _default_bytes_moved(graph)
    rows = []
    for op in range(graph.num_ops):
        row: dict[str, Any] = {
            "name": graph.op_name[op],
            "kind": graph.kind[op],
            "flops": int(graph.flops[op]),
            "inputs": [ids[tensor] for tensor in graph.reads_of(op).tolist()],
            "outputs": [ids[tensor] for tensor in graph.makes_of(op).tolist()],
            "scope": graph.scope[op],
            "source": graph.source[op],
            "dtype": graph.dtype[op],
            "bytes_moved": None if graph.bytes_moved[op] == moved[op] else int(graph.bytes_moved[op]),
            "workspace_bytes": int(graph.workspace_bytes[op]) or None,
            "colocate": None if graph.colocate[op] < 0 else int(graph.colocate[op]),
            "after": [graph.op_name[earlier] for earlier in graph.after_of(op).tolist()] or None,
            "time_ns": _given_time(graph.time_ns[op].tolist()),
            "signature": graph.signature.get(graph.op_name[op]),
            "assumed": graph.assumed.get(graph.op_name[op]),
        }
        rows.append({key: value for key, value in row.items() if value is not None and value != ""})
    return rows


def _default_bytes_moved(graph: Graph) -> Ints:
    size = np.minimum(graph.nbytes, graph.nbytes[graph.owner])
    moved = np.zeros(graph.num_ops, np.int64)
    np.add.at(moved, rows_of(graph.read_start), size[graph.reads])
    np.add.at(moved, rows_of(graph.make_start), size[graph.makes])
    return moved


def _given_time(times: list[int]) -> int | list[int | None] | None:
    if all(time == UNGIVEN for time in times):
        return None
    if len(times) == 1 and times[0] != NOWHERE:
        return times[0]
    return [None if time == NOWHERE else time for time in times]
