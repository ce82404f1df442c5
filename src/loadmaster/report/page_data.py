"""What the page draws, packed: whole numbers as differences in variable-length bytes, text as JSON, all of it deflated.

The layout: four bytes with the length of the head, the head (JSON: names, lengths and counts of the columns, and all
that is no column), then the columns. page_data.js reads it back.
"""

from __future__ import annotations

import base64
import json
import zlib
from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

import numpy as np

from loadmaster.graph.columns import Ints, rows_of
from loadmaster.report.explain import Explanation
from loadmaster.report.modules import coloured, module_labels
from loadmaster.report.occupancy import wire_name
from loadmaster.report.schedule import Schedule
from loadmaster.report.scopes import paths_of

MOST_MODULES = 24  # of which the heaviest eight get a colour each


def packed(schedule: Schedule, found: Explanation) -> str:
    """The data of a page, as text that is safe inside a script element."""
    columns = {**_op_columns(schedule, found), **_send_columns(schedule, found), **_memory_columns(schedule)}
    texts = {"op_name": [schedule.label(kernel) for kernel in range(schedule.num_kernels)]}
    texts["send_name"] = [schedule.tensor_label(tensor) for tensor in schedule.send_tensor.tolist()]
    return base64.b64encode(zlib.compress(_joined(_head(schedule, found), columns, texts), 9)).decode("ascii")


def _joined(head: dict[str, Any], columns: dict[str, Ints], texts: dict[str, list[str]]) -> bytes:
    parts = {name: varints(column) for name, column in columns.items()}
    parts |= {name: _json_bytes(text) for name, text in texts.items()}
    head["columns"] = [[name, len(parts[name]), len(columns[name])] for name in columns]
    head["texts"] = [[name, len(parts[name])] for name in texts]
    first = _json_bytes(head)
    return len(first).to_bytes(4, "little") + first + b"".join(parts.values())


def _json_bytes(value: Any) -> bytes:
    return json.dumps(value, ensure_ascii=False, separators=(",", ":")).encode("utf-8", "replace")


def varints(column: Ints) -> bytes:
    """Differences from one entry to the next, zigzag, seven bits a byte, lowest first."""
    step: Ints = np.diff(column, prepend=np.int64(0)).astype(np.int64)
    left = ((step << 1) ^ (step >> 63)).astype(np.uint64)
    length = np.ones(len(left), np.int64)
    for bits in range(7, 64, 7):
        length += left >= np.uint64(1 << bits)
    start = np.cumsum(length) - length
    out = np.zeros(int(length.sum()), np.uint8)
    for place in range(int(length.max(initial=0))):
        more = length > place
        seven = (left[more] >> np.uint64(7 * place)) & np.uint64(127)
        out[start[more] + place] = seven.astype(np.uint8) | np.where(length[more] > place + 1, 128, 0).astype(np.uint8)
    return out.tobytes()


def _head(schedule: Schedule, found: Explanation) -> dict[str, Any]:
    problem, graph = schedule.problem, schedule.problem.graph
    paths, kinds = paths_of(graph), sorted(set(graph.kind))
    names = _modules(schedule)[1]
    return {
        "step_ns": schedule.step_ns,
        "step_basis": problem.basis,
        "devices": list(problem.cluster.device_names),
        "memory_bytes": problem.memory_bytes.tolist(),
        "peak_bytes": schedule.timeline.peak_bytes.tolist(),
        "wires": [wire_name(schedule, int(channel)) for channel in np.unique(schedule.send_channel)],
        "paths": [list(path) for path in dict.fromkeys(paths)],
        "kinds": kinds,
        "modules": names,
        "peaks": [asdict(peak) for peak in found.peaks],
        "device_times": [asdict(row) for row in found.devices],
    }


def _modules(schedule: Schedule) -> tuple[Ints, list[str]]:
    """([kernels] number of its colour, names of those that have one; the number after the last is all others)."""
    return coloured(module_labels(schedule, MOST_MODULES), schedule.end_ns - schedule.start_ns)


def _numbered(values: Sequence[Any], names: Sequence[Any]) -> Ints:
    number = {name: at for at, name in enumerate(names)}
    return np.array([number[value] for value in values], np.int64)


def _op_columns(schedule: Schedule, found: Explanation) -> dict[str, Ints]:
    """Kernel by kernel, in program order; one op that is not fused is a kernel."""
    graph = schedule.problem.graph
    paths = paths_of(graph)
    made = np.zeros(schedule.num_kernels, np.int64)
    np.add.at(made, rows_of(graph.make_start), graph.own_bytes[graph.makes])
    on_path = np.zeros(schedule.num_kernels, np.int64)
    on_path[[piece.index for piece in found.path.pieces if piece.kind == "op"]] = 1
    reader, maker = _reads(schedule)
    return {
        "op_device": schedule.device,
        "op_start": schedule.start_ns,
        "op_length": schedule.end_ns - schedule.start_ns,
        "op_ops": schedule.members,
        "op_kind": _numbered(graph.kind, sorted(set(graph.kind))),
        "op_path": _numbered(paths, list(dict.fromkeys(paths))),
        "op_module": _modules(schedule)[0],
        "op_bytes": made,
        "op_critical": on_path,
        "read_reader": reader,
        "read_maker": maker,
    }


def _reads(schedule: Schedule) -> tuple[Ints, Ints]:
    """(reader, maker) of every tensor that a kernel reads from another."""
    graph = schedule.problem.graph
    maker, reader = graph.producer[graph.reads], rows_of(graph.read_start)
    return reader[maker >= 0], maker[maker >= 0]


def _send_columns(schedule: Schedule, found: Explanation) -> dict[str, Ints]:
    line = schedule.timeline
    on_path = np.zeros(len(schedule.send_tensor), np.int64)
    on_path[[piece.index for piece in found.path.pieces if piece.kind == "transfer"]] = 1
    return {
        "send_wire": np.searchsorted(np.unique(schedule.send_channel), schedule.send_channel),
        "send_src": line.send_src,
        "send_dst": line.send_dst,
        "send_start": line.send_start_ns,
        "send_length": line.send_end_ns - line.send_start_ns,
        "send_bytes": schedule.problem.graph.nbytes[schedule.send_tensor],
        "send_maker": schedule.maker[schedule.send_tensor],
        "send_critical": on_path,
        "path_kind": np.array([piece.kind == "transfer" for piece in found.path.pieces], np.int64),
        "path_index": np.array([piece.index for piece in found.path.pieces], np.int64),
    }


def _memory_columns(schedule: Schedule) -> dict[str, Ints]:
    line = schedule.timeline
    return {"curve_start": line.curve_start, "curve_ns": line.curve_ns, "curve_bytes": line.curve_bytes}
