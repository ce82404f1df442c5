"""Plans as JSON, schema loadmaster.plan/1.

A file is read by people and by programs: names of ops, devices and modules stand beside the numbers, which alone make
the plan again. Of a captured torch model it also has what a run needs: how it was captured, the cluster in full, and
the model's graph, packed. docs/formats.md shows every field. Whatever a file says is checked as it is read, with the
place in the file (`files.text.Row`); whether the plan is one of a given problem is asked when it is used (`check`).
"""

from __future__ import annotations

import base64
import json
import zlib
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from loadmaster.cluster import Cluster
from loadmaster.cluster.presets import THIS_MACHINE
from loadmaster.errors import InvalidPlan, InvalidSetting
from loadmaster.files.cluster import cluster_from_json, cluster_to_json
from loadmaster.files.graph import graph_from_json, graph_to_json
from loadmaster.files.packing import most_unpacked
from loadmaster.files.text import PLAN_SCHEMA, Row, parse_json
from loadmaster.graph import PIPELINE, WEIGHT, Graph
from loadmaster.graph.columns import Ints, ints
from loadmaster.plans import Plan, check
from loadmaster.plans.additions import Additions
from loadmaster.plans.expansion import whole
from loadmaster.problem import Problem

MOST_BYTES = 2**28  # of a model's graph, unpacked
MOST_ENTRIES = 2**26  # of a table of tensors by devices: half a gigabyte


def plan_to_json(plan: Plan, problem: Problem, extra: Mapping[str, Any] | None = None) -> dict[str, Any]:
    """The plan as plain data. Names are there to be read; numbers alone make the plan again.

    Args:
        plan: checked here: InvalidPlan where it breaks a rule.
        problem: that it is a plan of; expanded by what the plan adds.
        extra: goes beside, such as the seed and the method; its keys must be none of the format's own.
    """
    check(plan, problem)
    problem = whole(problem, plan)
    graph, devices = problem.graph, problem.cluster.device_names
    rows = zip(plan.device.tolist(), plan.rank.tolist(), plan.kernel.tolist(), strict=True)
    data: dict[str, Any] = {
        "schema": PLAN_SCHEMA,
        "graph": {"name": problem.source.name, "digest": plan.graph_digest},
        "cluster": {"name": problem.cluster.name, "digest": plan.cluster_digest, "devices": list(devices)},
        "counts": {"ops": len(plan.device), "tensors": graph.num_tensors, "devices": len(devices)},
        **_circumstances(problem),
        **_checked_extra(extra or {}),
        "ops": [
            {
                "op": op,
                "name": graph.op_name[op],
                "on": devices[device],
                "device": device,
                "rank": rank,
                "kernel": kernel,
                **_origin(graph, op),
            }
            for op, (device, rank, kernel) in enumerate(rows)
        ],
        "sends": None,
    }
    if plan.added is not None:
        data["added"] = _added_to_json(plan.added)
    if plan.send_rank is not None:
        data["sends"] = [
            {"tensor": t, "name": graph.tensor_name[t], "on": devices[to], "to": to, "rank": int(plan.send_rank[t, to])}
            for t, to in np.argwhere(plan.send_rank != -1).tolist()
        ]
    return data


def _added_to_json(added: Additions) -> dict[str, Any]:
    """What is recomputed ("op") or offloaded ("tensor"), and who reads its copy; numbers are of the graph."""
    rows = zip(added.op.tolist(), added.tensor.tolist(), added.after.tolist(), strict=True)
    reads = zip(added.reader.tolist(), added.read.tolist(), added.source.tolist(), strict=True)
    return {
        "ops": [{"op": op, "tensor": tensor, "after": after} for op, tensor, after in rows],
        "reads": [{"reader": reader, "tensor": tensor, "from": source} for reader, tensor, source in reads],
    }


def _circumstances(problem: Problem) -> dict[str, Any]:
    """Of a plan that can be run: how its model was captured, and the cluster; of one for this machine: the cluster."""
    captured = problem.source.captured
    if not captured:
        return {"on": cluster_to_json(problem.cluster)} if problem.cluster.name == THIS_MACHINE else {}
    return {"captured": dict(captured), "on": cluster_to_json(problem.cluster), "model": _packed(problem.source)}


def _packed(graph: Graph) -> str:
    """The graph of a model that is in no file and no zoo: its JSON, compressed, in base 64."""
    text = json.dumps(graph_to_json(graph), separators=(",", ":"))
    return base64.b64encode(zlib.compress(text.encode(), 9)).decode("ascii")


def graph_of_plan(data: Mapping[str, Any], where: str = "plan") -> Graph | None:
    """The graph that a plan's file has with it, as those of captured models do; else None. Unpacked to 256 MiB at most,
    and InvalidPlan where it cannot be: give the model with --model."""
    packed = data.get("model")
    if packed is None:
        return None
    try:
        reader = zlib.decompressobj()
        raw = base64.b64decode(packed, validate=True)
        most = min(MOST_BYTES, most_unpacked(len(raw)))
        text = reader.decompress(raw, most)
        if reader.unconsumed_tail:
            raise InvalidPlan(f"its model has more than {most >> 20} MiB", f"{where}: model", "give it with --model")
        graph = graph_from_json(parse_json(text, f"{where}: model"), f"{where}: model")
    except (TypeError, ValueError, zlib.error):
        raise InvalidPlan("its model cannot be unpacked", f"{where}: model", "give the model with --model") from None
    captured = data.get("captured")
    return replace(graph, captured=dict(captured)) if isinstance(captured, dict) else graph


def _origin(graph: Graph, op: int) -> dict[str, Any]:
    """Where an op comes from and which weights it reads, where that is known."""
    weights = [graph.tensor_name[t] for t in graph.reads_of(op) if not graph.is_made[t] and graph.role[t] == WEIGHT]
    found = {"module": graph.scope[op], "source": graph.source[op], "weights": weights}
    return {key: value for key, value in found.items() if value}


@dataclass(frozen=True, eq=False)
class PlanFile:
    """A plan, and what its file says of the model and the cluster it was made for; older files say nothing.

    Attributes:
        plan: its columns, and the digests of what it was made for.
        captured: as `Graph.captured`; empty for a graph that no torch model was captured to.
        cluster: in full, of a plan that can be run; None otherwise.
        modules: [ops] path of the module that an op belongs to; empty where the file names none.
        graph: of a pipeline: its actions.
    """

    plan: Plan
    captured: Mapping[str, Any]
    cluster: Cluster | None
    modules: tuple[str, ...] = ()
    graph: Graph | None = None


def plan_file_from_json(data: Any, where: str = "plan") -> PlanFile:
    """A plan and what its file says of how it was made, from plain data.

    Args:
        data: parsed JSON.
        where: the file's name, for errors.

    Raises:
        InvalidPlan: with the place of the first thing that is wrong.
        InvalidCluster: likewise of the cluster that the file describes.
    """
    head = Row(data, where, InvalidPlan)
    captured = data.get("captured") or {}
    if not isinstance(captured, dict):
        raise head.wrong("captured", "an object")
    described = data.get("on")
    cluster = cluster_from_json(described, f"{where}: on") if isinstance(described, dict) else None
    plan = plan_from_json(data, where)
    modules = tuple(str(row.get("module", "")) for row in sorted(head.rows("ops"), key=lambda row: row["op"]))
    graph = graph_of_plan(data, where) if PIPELINE in captured else None
    return PlanFile(plan, captured, cluster, modules, graph)


_PLAN_KEYS = frozenset(["schema", "graph", "cluster", "captured", "on", "model", "counts", "ops", "sends", "added"])


def _checked_extra(extra: Mapping[str, Any]) -> Mapping[str, Any]:
    if not isinstance(extra, Mapping):
        raise InvalidSetting.instead_of("set of keys", extra, "extra keys of a plan", "give a dict")
    taken = sorted(_PLAN_KEYS & extra.keys())
    if taken:
        raise InvalidSetting(f"'{taken[0]}' is a key of the format itself", "extra keys of a plan", "call it otherwise")
    return extra


def plan_from_json(data: Any, where: str = "plan") -> Plan:
    """The plan of parsed JSON; whether it suits a problem is for `check` to say."""
    head = Row(data, where, InvalidPlan)
    counts = Row(head.any("counts"), f"{where}: counts", InvalidPlan)
    tensors, devices = (counts.whole(key, MOST_ENTRIES) for key in ("tensors", "devices"))
    rows = head.rows("ops")
    if counts.whole("ops", MOST_ENTRIES) != len(rows):
        raise InvalidPlan(
            f"{len(rows)} ops are listed, but the count is {counts.data['ops']}", where, "is the file whole?"
        )
    table = _numbers(rows, ("op", "device", "rank", "kernel"), f"{where}: ops")
    order = np.argsort(table[:, 0], kind="stable")
    if not np.array_equal(table[order, 0], np.arange(len(rows))):
        raise InvalidPlan("the numbers of the ops are not 0, 1, 2, …, each once", f"{where}: ops", "list every op once")
    device, rank, kernel = (ints(column) for column in table[order, 1:].T)
    digests = [Row(head.any(key), f"{where}: {key}", InvalidPlan).text("digest") for key in ("graph", "cluster")]
    sends = _send_rank(head, tensors, devices, where)
    return Plan(digests[0], digests[1], kernel, device, rank, sends, _added_from_json(head, where))


def _added_from_json(head: Row, where: str) -> Additions | None:
    if not head.has("added"):
        return None
    given = Row(head.any("added"), f"{where}: added", InvalidPlan)
    ops = _numbers(given.rows("ops"), ("op", "tensor", "after"), f"{where}: added: ops")
    reads = _numbers(given.rows("reads"), ("reader", "tensor", "from"), f"{where}: added: reads")
    return Additions(*(ints(column) for column in (*ops.T, *reads.T)))


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
    if tensors * devices > MOST_ENTRIES:
        raise InvalidPlan(
            f"{tensors} tensors on {devices} devices are too many", f"{where}: counts", "check the counts"
        )
    table = _numbers(head.rows("sends"), ("tensor", "to", "rank"), f"{where}: sends")
    off = (table[:, 0] < 0) | (table[:, 0] >= tensors) | (table[:, 1] < 0) | (table[:, 1] >= devices)
    if off.any():
        what = f"there is no tensor {table[off.argmax(), 0]} or no device {table[off.argmax(), 1]}"
        raise InvalidPlan(what, f"{where}: sends[{off.argmax()}]", f"there are {tensors} tensors and {devices} devices")
    if len(np.unique(table[:, 0] * devices + table[:, 1])) < len(table):
        raise InvalidPlan("a tensor is sent to a device twice", f"{where}: sends", "list each tensor and device once")
    ranks = np.full((tensors, devices), -1, np.int64)
    ranks[table[:, 0], table[:, 1]] = table[:, 2]
    return ints(ranks)
