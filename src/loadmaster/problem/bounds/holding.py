"""What devices must hold, whatever the plan: storages and residents, of all devices together and of one.

The memory side of bounds: rules 7 and 8 of the simulator with the device left open. A storage is a tensor that owns
memory with all that is written over it in place. `peak` adds these up, `step` prices them, since residents that a fast
device cannot hold send their ops elsewhere, and `cuts` gets the network of storages from here.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np

from loadmaster.graph.columns import Bools, Ints, from_pairs, ints, inverse, rows_of
from loadmaster.problem import Problem

if TYPE_CHECKING:
    from loadmaster.problem.bounds.cuts import CutView

from loadmaster.problem.bounds.kernels import Fusing, saving_of


@dataclass(frozen=True, eq=False)
class Storages:
    """Storages: tensors that own memory, each with all that is written over it in place. `fusing`: those that a kernel
    may hide have no bytes."""

    problem: Problem
    fusing: Fusing = False

    @cached_property
    def _stays(self) -> Bools:
        """[tensors] of a storage, whether it or anything written over it lives to the end."""
        stays = np.zeros(self.problem.graph.num_tensors, bool)
        stays[self.problem.graph.owner[self.problem.stays]] = True
        return stays

    @cached_property
    def resident_bytes(self) -> int:
        """Every resident tensor that is read or updated is on at least one device for the whole step."""
        graph = self.problem.graph
        used = self.problem.is_updated.copy()
        used[graph.reads] = True
        return int(graph.nbytes[used & self.problem.resident].sum())

    @cached_property
    def kept_bytes(self) -> int:
        """Made by the step and alive at its end."""
        return int(self.problem.graph.nbytes[self._stays & ~self.problem.resident].sum())

    @cached_property
    def _seen(self) -> Bools:
        """[tensors] no kernel hides it."""
        if not self.fusing:
            return np.ones(self.problem.graph.num_tensors, bool)
        return saving_of(self.problem, self.fusing).never_inner

    @cached_property
    def appears(self) -> Ints:
        """[ops] bytes that are there when the op starts and were not before."""
        graph, total = self.problem.graph, self.problem.graph.workspace_bytes.copy()
        new = ~graph.is_alias & self._seen
        np.add.at(total, rows_of(graph.make_start), np.where(new[graph.makes], graph.nbytes[graph.makes], 0))
        return ints(total)

    @cached_property
    def last_bytes(self) -> int:
        """Residents apart, what is there when the last of some ops runs: what it reads and makes, no less than the
        least that one of them does, and all that they made and that lives to the end. Some: those of the most bytes,
        however many. So it is whatever runs again and in whatever order."""
        problem, graph = self.problem, self.problem.graph
        read, made = graph.owner[graph.reads], graph.owner[graph.makes]
        read_stored, made_stored = stored(problem, self.fusing)
        passing = ~self._stays & ~problem.resident
        some, other = read_stored & passing[read], made_stored & passing[made]
        rows = np.concatenate([rows_of(graph.read_start)[some], rows_of(graph.make_start)[other]])
        needs = sum_once(rows, np.concatenate([read[some], made[other]]), graph.nbytes, problem.num_ops)
        needs = ints(needs + graph.workspace_bytes)
        lasting = np.flatnonzero(self._stays & graph.is_made)
        lasts = np.zeros(problem.num_ops, np.int64)
        np.add.at(lasts, graph.producer[lasting], graph.nbytes[lasting])
        order = np.argsort(-needs, kind="stable")
        return int((needs[order] + np.cumsum(lasts[order])).max(initial=0))

    @cached_property
    def net(self) -> CutView:
        from loadmaster.problem.bounds.cuts import CutView

        problem, graph = self.problem, self.problem.graph
        storages = np.flatnonzero(graph.is_fresh)
        number = np.full(graph.num_tensors, -1, np.int64)
        number[storages] = np.arange(len(storages))
        use_op, use_storage = rows_of(graph.read_start), number[graph.owner[graph.reads]]
        written = np.flatnonzero(graph.is_in_place)
        use_op = np.concatenate([use_op, graph.producer[written]])
        use_storage = np.concatenate([use_storage, number[graph.owner[written]]])
        key = np.unique((use_op * len(storages) + use_storage)[use_storage >= 0])
        use_op, use_storage = key // max(1, len(storages)), key % max(1, len(storages))
        use_start = np.zeros(problem.num_ops + 1, np.int64)
        np.cumsum(np.bincount(use_op, minlength=problem.num_ops), out=use_start[1:])
        wait_start, waits = graph.dependencies
        user_start, users = inverse(ints(use_start), ints(use_storage), len(storages))
        follow_start, follows = inverse(wait_start, waits, problem.num_ops)
        return CutView(
            wait_start,
            waits,
            follow_start,
            follows,
            ints(storages),
            graph.producer[storages],
            ints(np.where(self._seen[storages], graph.nbytes[storages], 0)),
            self._stays[storages],
            user_start,
            users,
            self.appears,
        )


def device_bytes(problem: Problem, fusing: Fusing, elsewhere: bool = False) -> Ints:
    """[ops] bytes on the device of each op at once, whatever the plan: when it starts, and at the end of the step.

    There are the residents that its colocation group updates or, where nobody updates them, reads; and what it reads,
    makes and needs while it runs, or what the group makes that lives to the end. `elsewhere`: residents may live on
    another device than those that read or update them, and are there while an op needs them.
    """
    graph, ops = problem.graph, problem.num_ops
    group = problem.leader
    reader, maker = rows_of(graph.read_start), rows_of(graph.make_start)
    root_read, root_made = graph.owner[graph.reads], graph.owner[graph.makes]
    fixed = problem.is_fixed & (not elsewhere)
    updated = problem.is_updated & (not elsewhere)
    home = sum_once(
        np.concatenate([group[reader[fixed[graph.reads]]], group[problem.updater[updated]]]),
        np.concatenate([graph.reads[fixed[graph.reads]], np.flatnonzero(updated)]),
        graph.nbytes,
        ops,
    )
    read_stored, made_stored = stored(problem, fusing)
    reads = (read_stored | problem.resident[root_read]) & ~fixed[root_read]
    makes = (made_stored | problem.resident[root_made]) & ~fixed[root_made]
    rows = np.concatenate([reader[reads], maker[makes]])
    roots = np.concatenate([root_read[reads], root_made[makes]])
    # An updated resident of the op's own group is in `home` already.
    apart = ~updated[roots] | (group[rows] != group[problem.updater[roots]])
    running = sum_once(rows[apart], roots[apart], graph.nbytes, ops) + graph.workspace_bytes
    kept = problem.stays[graph.makes] & ~problem.resident[root_made]
    ending = sum_once(group[maker[kept]], root_made[kept], graph.nbytes, ops)
    return ints(home[group] + np.maximum(running, ending[group]))


def stored(problem: Problem, fusing: Fusing) -> tuple[Bools, Bools]:
    """[reads], [makes] of the graph: what lies in memory there, whatever the kernel."""
    if fusing:
        saving = saving_of(problem, fusing)
        return saving.read_stored, saving.made_stored
    return np.ones(len(problem.graph.reads), bool), np.ones(len(problem.graph.makes), bool)


def sum_once(rows: Ints, tensors: Ints, nbytes: Ints, size: int) -> Ints:
    """[rows] bytes of the tensors of each row, each counted once."""
    start, once = from_pairs(rows, tensors, size)
    total = np.concatenate([[0], np.cumsum(nbytes[once])])
    return ints(total[start[1:]] - total[start[:-1]])


def op_residents(problem: Problem) -> Ints:
    """[ops] bytes of residents, each given to one op that must run where it lies: its updater, else its first
    reader."""
    graph = problem.graph
    start, readers = graph.readers
    read = np.diff(start) > 0
    holder = problem.updater.copy()
    fixed = problem.resident & (holder < 0) & read
    holder[fixed] = readers[start[:-1][fixed]]
    mine = problem.resident & (holder >= 0)
    total = np.zeros(problem.num_ops, np.int64)
    np.add.at(total, holder[mine], graph.nbytes[mine])
    return ints(total)
