"""What the page draws, packed: whole numbers in variable-length bytes, text as JSON, all of it deflated.

The layout: four bytes with the length of the head, the head (JSON: names, lengths and counts of the columns, and all
that is no column), then the columns. A column is of values or of differences from one to the next; starts are gaps
after what ended before on the same device or link. page_data.js reads it back.
"""

from __future__ import annotations

import base64
import json
import zlib
from collections.abc import Iterable, Sequence
from dataclasses import asdict
from typing import Any

import numpy as np

from loadmaster.graph.columns import Ints, ints, rows_of
from loadmaster.pipelines.microbatches import parse_action
from loadmaster.pipelines.stages import phases_of
from loadmaster.report.bottleneck import Sentence
from loadmaster.report.drawing import PHASES, is_pipeline, numbered
from loadmaster.report.explain import Report
from loadmaster.report.modules import groups_of, paths_of
from loadmaster.report.occupancy import wire_name
from loadmaster.report.schedule import Schedule

MANY_OPS = 150_000  # from here on phases are not worked out
MOST_POINTS = 40_000  # of the memory curves together; beyond, the highest of each of some thousand columns is kept
AGAIN, WAITS = 1, 2  # states of an op: it runs again; it is a tensor that waits elsewhere


def packed(schedule: Schedule, found: Report, sentences: Sequence[Sentence] = ()) -> str:
    """The data of a page, as text that is safe inside a script element. `sentences`: whose evidence is wanted."""
    differences = {**_memory_columns(schedule), **_path_columns(found), **_evidence(sentences)}
    values = {**_op_columns(schedule, found), **_send_columns(schedule, found)}
    texts = {"op_name": [schedule.label(kernel) for kernel in range(schedule.num_kernels)]}
    texts["send_name"] = [_own_name(schedule, tensor) for tensor in schedule.send_tensor.tolist()]
    return base64.b64encode(zlib.compress(_joined(_head(schedule, found), differences, values, texts), 9)).decode(
        "ascii"
    )


def _own_name(schedule: Schedule, tensor: int) -> str:
    """Empty where the page names it after the op that makes it."""
    name = schedule.tensor_label(tensor)
    return "" if name.startswith("output of ") else name


def _joined(
    head: dict[str, Any], differences: dict[str, Ints], values: dict[str, Ints], texts: dict[str, list[str]]
) -> bytes:
    parts = {name: varints(np.diff(column, prepend=np.int64(0))) for name, column in differences.items()}
    parts |= {name: varints(column) for name, column in values.items()}
    parts |= {name: _json_bytes(text) for name, text in texts.items()}
    head["columns"] = [[name, len(parts[name]), len(column), 1] for name, column in differences.items()]
    head["columns"] += [[name, len(parts[name]), len(column), 0] for name, column in values.items()]
    head["texts"] = [[name, len(parts[name])] for name in texts]
    first = _json_bytes(head)
    return len(first).to_bytes(4, "little") + first + b"".join(parts.values())


def _json_bytes(value: Any) -> bytes:
    return json.dumps(value, ensure_ascii=False, separators=(",", ":")).encode("utf-8", "replace")


def varints(column: Ints) -> bytes:
    """Zigzag, seven bits a byte, lowest first."""
    step = np.asarray(column, np.int64)
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


def _head(schedule: Schedule, found: Report) -> dict[str, Any]:
    problem, graph = schedule.problem, schedule.problem.graph
    paths, (_, names) = paths_of(graph), numbered(schedule)
    peaks = [asdict(peak) for peak in found.peaks]
    for peak in peaks:
        peak["largest"] = peak["largest"][:8]
    rows = sorted(found.reasons.rows, key=lambda row: (row.group, row.device))
    return {
        "step_ns": schedule.step_ns,
        "unit": found.objective.unit,
        "devices": list(problem.cluster.device_names),
        "memory_bytes": problem.memory_bytes.tolist(),
        "peak_bytes": schedule.timeline.peak_bytes.tolist(),
        "wires": [wire_name(schedule, int(channel)) for channel in np.unique(schedule.send_channel)],
        "paths": [list(path) for path in dict.fromkeys(paths)],
        "kinds": sorted(set(graph.kind)),
        "modules": list(names),
        "phases": [] if is_pipeline(schedule) or schedule.num_kernels > MANY_OPS else _phase_names(schedule)[1],
        "peaks": peaks,
        "reasons": [_reason(row) for row in rows],
    }


def _reason(row: Any) -> list[Any]:
    """[group, device, ops, verdict, [device, change, more bytes over]…]"""
    moves = [[move.device, move.change, move.over_bytes] for move in row.moves[:4]]
    return [row.group, row.device, row.ops, row.verdict, moves]


def _phase_names(schedule: Schedule) -> tuple[Ints, list[str]]:
    """([kernels] number of its phase, names)"""
    phase = phases_of(schedule.problem)
    used = [number for number in PHASES if bool((phase == number).any())]
    return ints([used.index(number) for number in phase.tolist()]), [PHASES[number] for number in used]


def _numbered(values: Sequence[Any], names: Iterable[Any]) -> Ints:
    number = {name: at for at, name in enumerate(names)}
    return np.array([number[value] for value in values], np.int64)


def _gaps(resource: Ints, start: Ints, end: Ints) -> Ints:
    """Of each, how long after the end of the one before it in the list with the same resource it starts."""
    order = np.argsort(resource, kind="stable")
    before = np.zeros(len(start), np.int64)
    same = resource[order][1:] == resource[order][:-1]
    before[order[1:][same]] = end[order[:-1][same]]
    return ints(start - before)


def _op_columns(schedule: Schedule, found: Report) -> dict[str, Ints]:
    """Kernel by kernel, in program order; one op that is not fused is a kernel."""
    graph = schedule.problem.graph
    paths = paths_of(graph)
    made = np.zeros(schedule.num_kernels, np.int64)
    np.add.at(made, rows_of(graph.make_start), graph.own_bytes[graph.makes])
    on_path = np.zeros(schedule.num_kernels, np.int64)
    on_path[[piece.index for piece in found.path.pieces if piece.kind == "op"]] = 1
    pipeline = is_pipeline(schedule)
    phase = ints([]) if pipeline or schedule.num_kernels > MANY_OPS else _phase_names(schedule)[0]
    batch = [parse_action(name).microbatch for name in graph.op_name] if pipeline else []
    maker, reader = graph.producer[graph.reads], rows_of(graph.read_start)
    here = maker >= 0
    return {
        "op_device": schedule.device,
        "op_gap": _gaps(schedule.device, schedule.start_ns, schedule.end_ns),
        "op_length": schedule.end_ns - schedule.start_ns,
        "op_ops": schedule.members,
        "op_kind": _numbered(graph.kind, sorted(set(graph.kind))),
        "op_path": _numbered(paths, dict.fromkeys(paths)),
        "op_module": numbered(schedule)[0],
        "op_phase": phase,
        "op_batch": ints(batch),
        "op_group": _group_numbers(schedule, found),
        "op_state": _states(schedule),
        "op_bytes": made,
        "op_critical": ints(on_path),
        "read_count": ints(np.bincount(reader[here], minlength=schedule.num_kernels)),
        "read_back": ints((reader - maker)[here]),
    }


def _group_numbers(schedule: Schedule, found: Report) -> Ints:
    """[kernels] the row of reasons that speaks of it."""
    names = schedule.problem.cluster.device_names
    keys = sorted((row.group, row.device) for row in found.reasons.rows)
    number = {key: at for at, key in enumerate(keys)}
    group = np.zeros(schedule.num_kernels, np.int64)
    for each in groups_of(schedule.problem, schedule.device, schedule.end_ns - schedule.start_ns):
        group[each.kernels] = number.get((each.name, names[each.device]), 0)
    return ints(group)


def _states(schedule: Schedule) -> Ints:
    """[kernels] AGAIN, WAITS, or 0."""
    state = np.zeros(schedule.num_kernels, np.int64)
    expansion = schedule.whole.expansion
    if expansion is not None:
        added = expansion.addition[schedule.heads]
        some = np.flatnonzero(added >= 0)
        state[some] = np.where(expansion.added.op[added[some]] >= 0, AGAIN, WAITS)
    return ints(state)


def _send_columns(schedule: Schedule, found: Report) -> dict[str, Ints]:
    line = schedule.timeline
    on_path = np.zeros(len(schedule.send_tensor), np.int64)
    on_path[[piece.index for piece in found.path.pieces if piece.kind == "transfer"]] = 1
    wire = np.searchsorted(np.unique(schedule.send_channel), schedule.send_channel)
    return {
        "send_wire": ints(wire),
        "send_src": line.send_src,
        "send_dst": line.send_dst,
        "send_gap": _gaps(ints(wire), line.send_start_ns, line.send_end_ns),
        "send_length": line.send_end_ns - line.send_start_ns,
        "send_bytes": schedule.problem.graph.nbytes[schedule.send_tensor],
        "send_maker": schedule.maker[schedule.send_tensor],
        "send_critical": ints(on_path),
    }


def _path_columns(found: Report) -> dict[str, Ints]:
    pieces = found.path.pieces
    kind = ints([int(piece.kind == "transfer") for piece in pieces])
    return {"path_kind": kind, "path_index": ints([piece.index for piece in pieces])}


def _evidence(sentences: Sequence[Sentence]) -> dict[str, Ints]:
    """What each sentence points to, one after another."""
    start = np.cumsum([0, *(len(sentence.indexes) for sentence in sentences)])
    return {"evidence_start": ints(start), "evidence": ints([at for sentence in sentences for at in sentence.indexes])}


def _memory_columns(schedule: Schedule) -> dict[str, Ints]:
    line = schedule.timeline
    if len(line.curve_ns) <= MOST_POINTS:
        return {"curve_start": line.curve_start, "curve_ns": line.curve_ns, "curve_bytes": line.curve_bytes}
    columns = MOST_POINTS // (2 * schedule.num_devices)
    kept = [_thinned(*line.curve(device), schedule.step_ns, columns) for device in range(schedule.num_devices)]
    start = np.cumsum([0, *(len(times) for times, _ in kept)])
    times, sizes = (np.concatenate([curve[part] for curve in kept]) for part in (0, 1))
    return {"curve_start": ints(start), "curve_ns": ints(times), "curve_bytes": ints(sizes)}


def _thinned(times: Ints, sizes: Ints, step_ns: int, columns: int) -> tuple[Ints, Ints]:
    """Of each column the highest point and the last."""
    column = np.minimum(times * columns // max(1, step_ns), columns)
    last = np.flatnonzero(np.append(np.diff(column) > 0, True))
    by = np.lexsort((sizes, column))
    highest = by[np.flatnonzero(np.append(np.diff(column[by]) > 0, True))]
    keep = np.union1d(last, highest)
    return ints(times[keep]), ints(sizes[keep])
