"""The compiled dynamic programme: from every downset, all larger ones that one more device can reach."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from loadmaster.baselines.pipeline.stages import DeviceSets
from loadmaster.compiled import compiled
from loadmaster.graph.columns import Bools, Ints, Ints32, Whole

NEVER = np.int64(2**62)


class Lattice(NamedTuple):
    """Downsets of the units, smaller ones first, and how adding one unit leads from one to the next.

    Attributes:
        after: the downset with that unit.
    """

    start: np.ndarray  # [downsets + 1]
    unit: np.ndarray
    after: np.ndarray


class UnitCosts(NamedTuple):
    """What units cost. A touch is a tensor that a unit makes or reads.

    Attributes:
        times: [units, kinds] NEVER where it cannot run.
        limits: [kinds] bytes.
        held_up: [kinds] transfers keep it from computing.
        maker: [tensors] unit that makes it.
        readers: [tensors] other units that read it.
    """

    times: np.ndarray  # [units, kinds]
    held_bytes: np.ndarray  # [units]
    limits: np.ndarray  # [kinds]
    held_up: np.ndarray  # [kinds]
    touch_start: np.ndarray  # [units + 1]
    touch: np.ndarray
    maker: np.ndarray  # [tensors]
    readers: np.ndarray  # [tensors]
    send_ns: np.ndarray  # [tensors]


@compiled
def _turn(loads: UnitCosts, inside: Bools, count: Ints32, unit: Whole, by: Whole, flow: Ints) -> None:
    """Puts a unit into the stage (by = 1) or takes it out (-1); flow: ns received and sent by the stage."""
    maker, readers, send_ns = loads.maker, loads.readers, loads.send_ns
    for at in range(loads.touch_start[unit], loads.touch_start[unit + 1]):
        tensor = loads.touch[at]
        home = maker[tensor]
        if inside[home]:
            flow[1] -= send_ns[tensor] if count[tensor] < readers[tensor] else 0
        else:
            flow[0] -= send_ns[tensor] if count[tensor] > 0 else 0
        if home != unit:
            count[tensor] += by
        is_inside = (by > 0) if home == unit else inside[home]
        if is_inside:
            flow[1] += send_ns[tensor] if count[tensor] < readers[tensor] else 0
        else:
            flow[0] += send_ns[tensor] if count[tensor] > 0 else 0
    inside[unit] = by > 0


@compiled
def best_stages(
    lattice: Lattice, loads: UnitCosts, moves: DeviceSets, most: Whole, effort: Whole
) -> tuple[Ints, Ints32, Ints32]:
    """(value, before, by): of the best stages that cover each downset and use each set of devices, the largest load,
    the downset before the last stage and the move that added it; values over `most` are not looked for. An empty value:
    it takes more effort than that."""
    start, units, after = lattice.start, lattice.unit, lattice.after
    times, limits, held_up = loads.times, loads.limits, loads.held_up
    source, target, kind_of = moves.source, moves.target, moves.kind
    sets, kinds, units_count = len(start) - 1, len(limits), len(loads.held_bytes)
    value = np.full((moves.states, sets), NEVER)
    before, by = np.zeros((moves.states, sets), np.int32), np.zeros((moves.states, sets), np.int32)
    value[0, 0] = 0
    stamp, path, edge = (
        np.full(sets, -1, np.int32),
        np.zeros(units_count + 1, np.int64),
        np.zeros(units_count + 1, np.int64),
    )
    inside, count = np.zeros(units_count, np.bool_), np.zeros(len(loads.send_ns), np.int32)
    work, flow, spent = np.zeros(kinds, np.int64), np.zeros(2, np.int64), 0
    for base in range(sets):
        open_states = False
        for state in range(moves.states):
            open_states = open_states or value[state, base] <= most
        if not open_states:
            continue
        depth, held = 0, np.int64(0)
        path[0], edge[0] = base, start[base]
        while depth >= 0:
            here = path[depth]
            if edge[depth] == start[here + 1]:
                depth -= 1
                if depth >= 0:  # the unit that led here leaves the stage
                    unit = units[edge[depth] - 1]
                    _turn(loads, inside, count, unit, -1, flow)
                    held -= loads.held_bytes[unit]
                    for kind in range(kinds):
                        work[kind] -= times[unit, kind]
                continue
            unit, there = units[edge[depth]], after[edge[depth]]
            edge[depth] += 1
            if stamp[there] == base:
                continue
            stamp[there] = base
            spent += 1
            _turn(loads, inside, count, unit, 1, flow)
            held += loads.held_bytes[unit]
            fits = False
            for kind in range(kinds):
                work[kind] += times[unit, kind]
                fits = fits or (work[kind] <= most and held <= limits[kind])
            if fits:
                for move in range(len(source)):
                    kind = kind_of[move]
                    if held > limits[kind]:
                        continue
                    load = work[kind] + flow[0] + flow[1] if held_up[kind] else max(work[kind], flow[0], flow[1])
                    worst = max(load, value[source[move], base])
                    if worst <= most and worst < value[target[move], there]:
                        value[target[move], there] = worst
                        before[target[move], there] = base
                        by[target[move], there] = move
                depth += 1
                path[depth], edge[depth] = there, start[there]
            else:
                _turn(loads, inside, count, unit, -1, flow)
                held -= loads.held_bytes[unit]
                for kind in range(kinds):
                    work[kind] -= times[unit, kind]
        if spent > effort:
            return np.empty((0, 0), np.int64), before, by
    return value, before, by
