"""The one JSON format: graphs, clusters and plans, each with its schema number; docs/formats.md shows all three."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, NoReturn

import numpy as np

from loadmaster._jsontext import PathLike, Row, checked_path, read_json, read_json_lines, shown, too_deep, unknown_key, write_json
from loadmaster.cluster import Cluster, Device, Link, dense_channels
from loadmaster.columns import Ints, ints, rows_of
from loadmaster.errors import InvalidCluster, InvalidGraph, InvalidPlan, InvalidSetting, LoadmasterError, UnreadableFile
from loadmaster.graph import MOST_NS, NOWHERE, ROLES, UNGIVEN, Graph, GraphBuilder
from loadmaster.plan import Plan
from loadmaster.problem import Problem

GRAPH_SCHEMA, CLUSTER_SCHEMA, PLAN_SCHEMA = "loadmaster.graph/1", "loadmaster.cluster/1", "loadmaster.plan/1"
MOST_MEMORY_BYTES = 2**60
MOST_CHANNEL = 2**31 - 1
MOST_SEND_RANKS = 2**26  # entries of a table of tensors by devices: half a gigabyte

_OP_KEYS = frozenset(
    "name kind flops inputs outputs scope source dtype bytes_moved workspace_bytes colocate after time_ns".split()
)
_TENSOR_KEYS = frozenset("id bytes role shape dtype alias_of".split())
_ORIGIN_KEYS = ("source", "family", "model", "mode")


# Graphs


def load_graph(path: PathLike) -> Graph:
    """The graph of a .json, .json.gz or .json.xz file."""
    found = checked_path(path)
    if ".jsonl" in found.suffixes:
        fix = "take one with load_graphs, or name its line: " + f"{found.name}#1"
        raise UnreadableFile(f"'{found}' holds many graphs, one a line", "", fix)
    data = read_json(found)
    _check_schema(data, GRAPH_SCHEMA, str(found), InvalidGraph)
    return graph_from_json(data, str(found))


def load_graphs(path: PathLike) -> Iterator[Graph]:
    """The graphs of a .jsonl, .jsonl.gz or .jsonl.xz file, one graph a line, read one at a time."""
    return (graph for graph, _ in load_records(path))


def load_records(path: PathLike) -> Iterator[tuple[Graph, dict[str, str]]]:
    """As load_graphs, each with what its line says of its origin: source, family, model, mode."""
    return map(_record, read_json_lines(path))


def _record(line: tuple[Any, str]) -> tuple[Graph, dict[str, str]]:
    data, where = line
    if isinstance(data, dict) and "schema" in data:
        _check_schema(data, GRAPH_SCHEMA, where, InvalidGraph)
    graph = graph_from_json(data, where)
    return graph, {key: data[key] for key in _ORIGIN_KEYS if isinstance(data.get(key), str)}


def _check_schema(data: Any, schema: str, where: str, error: type[LoadmasterError]) -> None:
    given = Row(data, where, error).data.get("schema")
    if given == schema:
        return
    kind = schema.partition(".")[2].partition("/")[0]
    if given in (GRAPH_SCHEMA, CLUSTER_SCHEMA, PLAN_SCHEMA):
        raise error(f"this is a file of '{given}', not a {kind}", where, f"give a file of '{schema}'")
    what = "'schema' is missing" if given is None else f"'schema' is {shown(given)}"
    raise error(what, where, f"if this is a {kind}, write \"schema\": \"{schema}\" in it")


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
        known = len(index)
        if index.setdefault(tensor["id"], row) != known:
            what = f"two tensors have the id {shown(tensor['id'])}"
            raise InvalidGraph(what, f"tensors[{index[tensor['id']]}] and tensors[{row}]", "give each its own")
    return index


def _add_tensor(builder: GraphBuilder, tensor: dict[str, Any], index: Mapping[int | str, int]) -> str:
    """Adds the tensor and returns its dtype."""
    get = tensor.get
    shape, dtype, alias, role = get("shape"), get("dtype"), get("alias_of"), get("role")
    well = (
        tensor.keys() <= _TENSOR_KEYS
        and type(get("bytes")) in (int, float)
        and type(role) is str
        and (dtype is None or type(dtype) is str)
        and (alias is None or type(alias) in (int, str) and alias in index)
        and (shape is None or type(shape) is list and all(type(n) is int and n >= 0 for n in shape))
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


def _add_op(
    builder: GraphBuilder, row: int, op: Any, index: Mapping[int | str, int], dtypes: list[str]
) -> None:
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
}
_WANTED = {list: "a list", str: "a text", int: "a whole number", float: "a whole number", type(None): "null"}


def _is_well_typed(op: dict[str, Any]) -> bool:
    times, after = op.get("time_ns"), op.get("after")
    return (
        all(key in _OP_TYPES and type(value) in _OP_TYPES[key] for key, value in op.items())
        and op.keys() >= {"name", "kind", "flops", "inputs", "outputs"}
        and (type(times) is not list or (bool(times) and all(type(time) in _MAYBE_NUMBER for time in times)))
        and (after is None or all(type(name) is str for name in after))
    )


def _blame_op(op: Any, number: int) -> NoReturn:
    name = op.get("name") if isinstance(op, dict) else None
    row = Row(op, f"op '{name}'" if isinstance(name, str) else f"ops[{number}]", InvalidGraph, _OP_KEYS)
    for key in ("name", "kind", "flops", "inputs", "outputs"):
        row.any(key)
    for key, value in op.items():
        if type(value) not in _OP_TYPES[key]:
            raise row.wrong(key, " or ".join(dict.fromkeys(_WANTED[kind] for kind in _OP_TYPES[key])))
    if type(op.get("time_ns")) is list and not (op["time_ns"] and all(type(t) in _MAYBE_NUMBER for t in op["time_ns"])):
        raise row.wrong("time_ns", "one whole number, or a list with one per device, null where it cannot run")
    raise row.wrong("after", "a list of op names")


def _indices(op: Mapping[str, Any], key: str, index: Mapping[int | str, int]) -> list[int]:
    try:
        if all(type(tensor) in (int, str) for tensor in op[key]):
            return [index[tensor] for tensor in op[key]]
    except KeyError:
        pass
    missing = next(tensor for tensor in op[key] if type(tensor) not in (int, str) or tensor not in index)
    what = f"'{key}' names tensor {shown(missing)}, which does not exist"
    raise InvalidGraph(what, f"op '{op['name']}'", "add it to \"tensors\", or name the id of one that is there")


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
    if not times or times[0] == UNGIVEN:
        return None
    if len(times) == 1 and times[0] != NOWHERE:
        return times[0]
    return [None if time == NOWHERE else time for time in times]


def save_graph(graph: Graph, path: PathLike) -> None:
    """Writes a .json, .json.gz or .json.xz file."""
    write_json(graph_to_json(graph), path)


# Clusters


def load_cluster(path: PathLike) -> Cluster:
    """The cluster of a .json file (or .json.gz, .json.xz)."""
    data = read_json(path)
    _check_schema(data, CLUSTER_SCHEMA, str(path), InvalidCluster)
    return cluster_from_json(data, str(path))


def cluster_from_json(data: Any, where: str = "cluster") -> Cluster:
    """The cluster of parsed JSON; `where` says in errors what was read."""
    known = frozenset("schema name devices links default_link op_ns".split())
    head = Row(data, where, InvalidCluster, known)
    devices = tuple(_device(row, f"{where}: devices[{i}]") for i, row in enumerate(head.rows("devices")))
    names = [device.name for device in devices]
    number = {name: i for i, name in enumerate(names)}
    if len(number) < len(names):
        twin = next(name for i, name in enumerate(names) if name in names[:i])
        raise InvalidCluster(f"two devices are called '{twin}'", where, "give every device its own name")
    links, wires = _links(head, number, where)
    _fill_default(head, links, wires, len(devices), where)
    op_ns = head.whole("op_ns", MOST_NS) if head.has("op_ns") else None
    name = head.text("name", Path(where).name.partition(".")[0])
    return Cluster(name, devices, links, _channels(wires, len(devices)), op_ns)


def _device(data: Any, where: str) -> Device:
    known = frozenset("name kind memory_bytes flops_per_s bytes_per_s launch_ns".split())
    row = Row(data, where, InvalidCluster, known)
    name = row.text("name")
    row.where = f"{where} '{name}'"
    memory = row.whole("memory_bytes", MOST_MEMORY_BYTES)
    rates = row.any("flops_per_s")
    speed: float | dict[str, float] = row.rate("flops_per_s") if not isinstance(rates, dict) else _rates(rates, row.where)
    return Device(name, row.text("kind"), memory, speed, row.rate("bytes_per_s"), row.whole("launch_ns", MOST_NS))


def _rates(data: dict[str, Any], where: str) -> dict[str, float]:
    row = Row(data, f"{where}: flops_per_s", InvalidCluster)
    if "default" not in data:
        raise InvalidCluster("'default' is missing", row.where, "add \"default\", the rate for dtypes that are not listed")
    return {dtype: row.rate(dtype) for dtype in data}


Wire = tuple[int, int | str]  # what kind of label, and the label


def _links(
    head: Row, number: Mapping[str, int], where: str
) -> tuple[dict[tuple[int, int], Link], dict[tuple[int, int], Wire]]:
    links: dict[tuple[int, int], Link] = {}
    wires: dict[tuple[int, int], Wire] = {}
    for i, data in enumerate(head.rows("links") if head.has("links") else []):
        row = Row(data, f"{where}: links[{i}]", InvalidCluster, frozenset("from to bytes_per_s latency_ns channel".split()))
        ends = row.text("from"), row.text("to")
        for key, name in zip(("from", "to"), ends, strict=True):
            if name not in number:
                raise row.wrong(key, f"the name of a device: {', '.join(number)}")
        pair = number[ends[0]], number[ends[1]]
        if pair[0] == pair[1]:
            raise row.wrong("to", "another device than 'from'")
        if pair in links:
            raise InvalidCluster(f"there are two links from '{ends[0]}' to '{ends[1]}'", row.where, "keep one")
        links[pair] = _link(row)
        wires[pair] = _wire(row, pair)
    return links, wires


def _link(row: Row) -> Link:
    free = row.any("bytes_per_s") is None
    return Link(None if free else row.rate("bytes_per_s"), row.whole("latency_ns", MOST_NS))


def _wire(row: Row, pair: tuple[int, int]) -> Wire:
    if not row.has("channel"):
        return 2, f"{pair[0]}>{pair[1]}"
    if isinstance(row.data["channel"], str):
        return 1, row.text("channel")
    if type(row.data["channel"]) is not int:
        raise row.wrong("channel", "a whole number or a name; links with the same one share a wire")
    return 0, row.whole("channel", MOST_CHANNEL)


def _fill_default(
    head: Row, links: dict[tuple[int, int], Link], wires: dict[tuple[int, int], Wire], count: int, where: str
) -> None:
    if not head.has("default_link"):
        return
    row = Row(head.data["default_link"], f"{where}: default_link", InvalidCluster, {"bytes_per_s", "latency_ns", "channel"})
    link, channel = _link(row), row.data.get("channel", "pair")
    if channel not in ("pair", "out", "bus"):
        raise row.wrong("channel", '"pair" (a wire per pair), "out" (one out of each device) or "bus" (one for all)')
    for pair in np.ndindex(count, count):
        if pair[0] != pair[1] and pair not in links:
            links[pair] = link
            label = {"pair": f"{pair[0]}>{pair[1]}", "out": f"{pair[0]}>", "bus": ">"}[channel]
            wires[pair] = 2, label


def _channels(wires: Mapping[tuple[int, int], Wire], count: int) -> Ints:
    """[devices, devices] numbers keep their order; names and wires without either follow, as they first come."""
    numbers = sorted({wire for wire in wires.values() if wire[0] == 0})
    labels = dict.fromkeys(wire for _, wire in sorted(wires.items(), key=lambda item: item[0]) if wire[0])
    number = {wire: i for i, wire in enumerate([*numbers, *labels])}
    channel = np.full((count, count), -1, np.int64)
    for pair, wire in wires.items():
        channel[pair] = number[wire]
    return dense_channels(channel)


def cluster_to_json(cluster: Cluster) -> dict[str, Any]:
    """What cluster_from_json reads back to a cluster of the same digest; every link is written out."""
    names = cluster.device_names
    data: dict[str, Any] = {"schema": CLUSTER_SCHEMA, "name": cluster.name}
    if cluster.op_ns is not None:
        data["op_ns"] = cluster.op_ns
    data["devices"] = [
        {
            "name": device.name,
            "kind": device.kind,
            "memory_bytes": device.memory_bytes,
            "flops_per_s": dict(device.flops_per_s) if isinstance(device.flops_per_s, Mapping) else device.flops_per_s,
            "bytes_per_s": device.bytes_per_s,
            "launch_ns": device.launch_ns,
        }
        for device in cluster.devices
    ]
    data["links"] = [
        {
            "from": names[src],
            "to": names[dst],
            "bytes_per_s": link.bytes_per_s,
            "latency_ns": link.latency_ns,
            "channel": int(cluster.channel[src, dst]),
        }
        for (src, dst), link in sorted(cluster.links.items())
    ]
    return data


def save_cluster(cluster: Cluster, path: PathLike) -> None:
    write_json(cluster_to_json(cluster), path)


# Plans


def plan_to_json(plan: Plan, problem: Problem, extra: Mapping[str, Any] | None = None) -> dict[str, Any]:
    """Names are there to be read; numbers alone make the plan again. `extra` goes beside them, such as the seed."""
    graph, devices = problem.graph, problem.cluster.device_names
    rows = zip(plan.device.tolist(), plan.rank.tolist(), plan.kernel.tolist(), strict=True)
    data: dict[str, Any] = {
        "schema": PLAN_SCHEMA,
        "graph": {"name": problem.source.name, "digest": plan.graph_digest},
        "cluster": {"name": problem.cluster.name, "digest": plan.cluster_digest, "devices": list(devices)},
        "counts": {"ops": len(plan.device), "tensors": graph.num_tensors, "devices": len(devices)},
        **_checked_extra(extra or {}),
        "ops": [
            {"op": op, "name": graph.op_name[op], "on": devices[device], "device": device, "rank": rank, "kernel": kernel}
            for op, (device, rank, kernel) in enumerate(rows)
        ],
        "sends": None,
    }
    if plan.send_rank is not None:
        data["sends"] = [
            {"tensor": t, "name": graph.tensor_name[t], "on": devices[to], "to": to, "rank": int(plan.send_rank[t, to])}
            for t, to in np.argwhere(plan.send_rank != -1).tolist()
        ]
    return data


_PLAN_KEYS = frozenset("schema graph cluster counts ops sends".split())


def _checked_extra(extra: Mapping[str, Any]) -> Mapping[str, Any]:
    taken = sorted(_PLAN_KEYS & extra.keys())
    if taken:
        raise InvalidSetting(f"'{taken[0]}' is a key of the format itself", "extra keys of a plan", "call it otherwise")
    return extra


def plan_from_json(data: Any, where: str = "plan") -> Plan:
    """The plan of parsed JSON; whether it suits a problem is for `check` to say."""
    head = Row(data, where, InvalidPlan)
    counts = Row(head.any("counts"), f"{where}: counts", InvalidPlan)
    tensors, devices = (counts.whole(key, MOST_SEND_RANKS) for key in ("tensors", "devices"))
    rows = head.rows("ops")
    if counts.whole("ops", MOST_SEND_RANKS) != len(rows):
        raise InvalidPlan(f"{len(rows)} ops are listed, but the count is {counts.data['ops']}", where, "is the file whole?")
    table = _numbers(rows, ("op", "device", "rank", "kernel"), f"{where}: ops")
    order = np.argsort(table[:, 0], kind="stable")
    if not np.array_equal(table[order, 0], np.arange(len(rows))):
        raise InvalidPlan("the numbers of the ops are not 0, 1, 2, …, each once", f"{where}: ops", "list every op once")
    device, rank, kernel = (ints(column) for column in table[order, 1:].T)
    digests = [Row(head.any(key), f"{where}: {key}", InvalidPlan).text("digest") for key in ("graph", "cluster")]
    return Plan(digests[0], digests[1], kernel, device, rank, _send_rank(head, tensors, devices, where))


def _numbers(rows: list[Any], keys: tuple[str, ...], where: str) -> Ints:
    """[rows, keys] of a list of objects."""
    table = []
    for i, data in enumerate(rows):
        row = Row(data, f"{where}[{i}]", InvalidPlan)
        for key in keys:
            if type(row.any(key)) is not int or not -(2**31) <= row.data[key] < 2**31:
                raise row.wrong(key, "a whole number under 2^31")
        table.append([data[key] for key in keys])
    return np.array(table, np.int64).reshape(len(rows), len(keys))


def _send_rank(head: Row, tensors: int, devices: int, where: str) -> Ints | None:
    if not head.has("sends"):
        return None
    if tensors * devices > MOST_SEND_RANKS:
        raise InvalidPlan(f"{tensors} tensors on {devices} devices are too many", f"{where}: counts", "check the counts")
    table = _numbers(head.rows("sends"), ("tensor", "to", "rank"), f"{where}: sends")
    off = (table[:, 0] < 0) | (table[:, 0] >= tensors) | (table[:, 1] < 0) | (table[:, 1] >= devices)
    if off.any():
        what = f"there is no tensor {table[off.argmax(), 0]} or no device {table[off.argmax(), 1]}"
        raise InvalidPlan(what, f"{where}: sends[{off.argmax()}]", f"there are {tensors} tensors and {devices} devices")
    ranks = np.full((tensors, devices), -1, np.int64)
    ranks[table[:, 0], table[:, 1]] = table[:, 2]
    return ints(ranks)


def save_plan(plan: Plan, problem: Problem, path: PathLike, extra: Mapping[str, Any] | None = None) -> None:
    write_json(plan_to_json(plan, problem, extra), path)


def load_plan(path: PathLike) -> Plan:
    data = read_json(path)
    _check_schema(data, PLAN_SCHEMA, str(path), InvalidPlan)
    return plan_from_json(data, str(path))
