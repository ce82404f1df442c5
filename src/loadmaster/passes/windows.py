"""Windows: a part of a step as a problem of its own, what goes on around it held still.

A step is long and its parts hardly know of each other: what a plan does at one moment matters to the ops of about that
moment. A window has the ops of such a part. Some of them may be pinned, so that it begins and ends as the whole does.
What it reads from further back is made at its start on the device where the whole has it. How long the step goes on
after an op whose result is read further on, or after the last op of a device, is taken from the timeline of the whole.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from loadmaster.graph import ACTIVATION, INPUT, OUTPUT, Graph
from loadmaster.graph.columns import Bools, Ints, ints, rows_of
from loadmaster.problem import CANNOT, Problem

ENDLESS = 2**40  # ns: what comes after so long is never waited for


@dataclass(frozen=True, eq=False)
class Window:
    """Some ops as a problem, between ops of no length: for each device one that has what comes from further back, and
    one that reads what goes further on. Those take part in sends, and nobody waits for the second kind.

    Attributes:
        problem: of the ops, with those that stand before and behind them.
        ops: [ops of the window] in the whole.
        first: where they begin in the problem.
    """

    problem: Problem
    ops: Ints  # [ops of the window]
    first: int

    def part(self, column: NDArray[np.integer]) -> NDArray[np.integer]:
        """What a column of the problem says of the ops."""
        return column[self.first : self.first + len(self.ops)]


def window(problem: Problem, device: NDArray[np.integer], ops: Ints, pinned: Bools, rest_ns: Ints) -> Window:
    """The ops as a problem of their own.

    Args:
        problem: of the whole step.
        device: [ops of the whole] where the plan has them.
        ops: of the window, ascending.
        pinned: [ops of the window] stays where `device` has it.
        rest_ns: [ops of the window] how long the step goes on after each because of what is not in the window.
    """
    graph, count, devices = problem.graph, len(ops), problem.num_devices
    read_start, reads = some_rows(graph.read_start, graph.reads, ops)
    _, makes = some_rows(graph.make_start, graph.makes, ops)
    reader = rows_of(read_start)
    maker = problem.maker[reads]
    far = (maker >= 0) & (index_among(ops, maker) < 0)  # has come to where it is read, or is on its way
    own = np.unique(np.concatenate([reads[~far], makes]))
    copies, copy = np.unique(reads[far] * devices + device[ops[reader[far]]], return_inverse=True)
    wanted, wanting = _wanted(problem, device, ops, makes)
    sources, sinks = np.unique(copies % devices), np.unique(wanting)
    first, total = len(sources), len(sources) + count + len(sinks)
    read = np.empty(len(reads), np.int64)
    read[~far], read[far] = np.searchsorted(own, reads[~far]), len(own) + copy
    rows = np.concatenate([reader + first, np.searchsorted(sinks, wanting) + first + count])
    owner = np.where(graph.is_made[own], index_among(ops, graph.producer[own]) + first, -1)
    owner = np.concatenate([owner, np.searchsorted(sources, copies % devices)])
    tensors, made = np.concatenate([own, copies // devices]), np.flatnonzero(owner >= 0)
    after_start, after = some_rows(graph.after_start, graph.after, ops)
    before = index_among(ops, after)
    inside, ends = before >= 0, (first, len(sinks))
    small = replace(
        graph,
        op_name=("",) * total,
        kind=("",) * total,
        dtype=("",) * total,
        scope=("",) * total,
        source=("",) * total,
        flops=ints(np.zeros(total)),
        bytes_moved=ints(np.zeros(total)),
        workspace_bytes=_between(ends, graph.workspace_bytes[ops], 0),
        colocate=_between(ends, _dense(graph.colocate[ops]), -1),
        time_ns=ints(np.zeros((total, 0))),
        after_start=_starts(rows_of(after_start)[inside] + first, total),
        after=ints(before[inside] + first),
        make_start=_starts(owner[made], total),
        makes=ints(made[np.argsort(owner[made], kind="stable")]),
        read_start=_starts(rows, total),
        reads=ints(np.concatenate([read, np.searchsorted(own, wanted)])[np.argsort(rows, kind="stable")]),
        tensor_name=("",) * len(tensors),
        producer=ints(owner),
        nbytes=ints(graph.nbytes[tensors]),
        role=_roles(graph.role[tensors], owner),
        alias_of=ints(np.concatenate([index_among(own, graph.alias_of[own]), np.full(len(copies), -1)])),
        shape=(None,) * len(tensors),
        tensor_dtype=("",) * len(tensors),
        signature={},
    )
    op_ns = np.full((total, devices), CANNOT, np.int64)
    op_ns[np.arange(first), sources] = 0
    op_ns[np.arange(first + count, total), sinks] = 0
    _inner_times(op_ns[first : first + count], problem, device, ops, pinned)
    rest = np.concatenate([np.zeros(first), rest_ns, np.full(len(sinks), -ENDLESS)])
    return Window(_priced(problem, small, ints(op_ns), ints(tensors), ops, ints(rest), ends), ops, first)


def _inner_times(
    op_ns: NDArray[np.int64], problem: Problem, device: NDArray[np.integer], ops: Ints, pinned: Bools
) -> None:
    op_ns[:] = problem.op_ns[ops]
    held = np.flatnonzero(pinned)
    op_ns[held] = CANNOT
    op_ns[held, device[ops[held]]] = problem.op_ns[ops[held], device[ops[held]]]


def _priced(
    problem: Problem, graph: Graph, op_ns: Ints, tensors: Ints, ops: Ints, rest_ns: Ints, ends: tuple[int, int]
) -> Problem:
    every, nothing, dispatch = ints(np.arange(graph.num_ops)), ints(np.zeros((graph.num_ops, 0))), problem.dispatch_ns
    return replace(
        problem,
        graph=graph,
        source_ops=every,
        heads=every,
        tie=every,
        op_ns=op_ns,
        compute_ns=nothing,
        fixed_ns=nothing,
        traffic_bytes=ints(np.zeros(graph.num_ops)),
        read_bytes=ints([]),
        send_ns=ints(problem.send_ns[tensors]),
        dispatch_ns=_between(ends, dispatch[ops], 0) if len(dispatch) else dispatch,
        spread_ns=ints(np.zeros((2, 0, 0))),
        rest_ns=rest_ns,
    )


def _wanted(problem: Problem, device: NDArray[np.integer], ops: Ints, makes: Ints) -> tuple[Ints, Ints]:
    """(tensors, devices) what the ops make and others read, once for each device that does."""
    rows, reader = some_rows(*problem.graph.readers, makes)
    tensor, later = makes[rows_of(rows)], index_among(ops, reader) < 0
    keys = np.unique(tensor[later] * problem.num_devices + device[reader[later]])
    return ints(keys // problem.num_devices), ints(keys % problem.num_devices)


def some_rows(start: Ints, values: Ints, rows: Ints) -> tuple[Ints, Ints]:
    """Some rows of a ragged column."""
    length = start[rows + 1] - start[rows]
    new = np.zeros(len(rows) + 1, np.int64)
    np.cumsum(length, out=new[1:])
    at = np.arange(new[-1]) + np.repeat(start[rows] - new[:-1], length)
    return ints(new), ints(values[at])


def index_among(among: Ints, values: Ints) -> Ints:
    """Where each value is among ascending ones; -1 where it is not."""
    if not len(among):
        return ints(np.full(len(values), -1))
    at = np.minimum(np.searchsorted(among, values), len(among) - 1)
    return ints(np.where(among[at] == values, at, -1))


def _starts(rows: Ints, size: int) -> Ints:
    start = np.zeros(size + 1, np.int64)
    np.cumsum(np.bincount(rows, minlength=size), out=start[1:])
    return ints(start)


def _dense(groups: Ints) -> Ints:
    """Groups that are there, numbered from 0; -1 stays."""
    known, dense = np.unique(groups, return_inverse=True)
    return ints(dense - (1 if len(known) and known[0] < 0 else 0))


def _between(ends: tuple[int, int], column: Ints, value: int) -> Ints:
    """A column of the ops with a value for what stands before and behind them."""
    return ints(np.concatenate([np.full(ends[0], value), column, np.full(ends[1], value)]))


def _roles(role: Ints, owner: Ints) -> Ints:
    """What the window makes comes and goes, but for outputs; what it does not make was there before."""
    made, given = np.where(role == OUTPUT, OUTPUT, ACTIVATION), np.where(role == ACTIVATION, INPUT, role)
    return ints(np.where(owner >= 0, made, given))
