"""Additions: the ops that a plan adds to a graph. Some run again, some keep a tensor on another device, or have it live
there.

This is rule 15 of the simulator as data. Two questions come before any plan: what may be added (`repeatable`,
`may_stay`, `may_live_elsewhere`), which methods ask, and whether given additions leave what is computed as it is
(`check_additions`), which `expansion` asks. Ops that write in place are why either is a question: what was overwritten
cannot be read again.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from loadmaster.errors import InvalidPlan
from loadmaster.graph import ACTIVATION, Graph
from loadmaster.graph.columns import Bools, Ints, digest, ints, rows_of

# What they do is not known, or has no value that could be made again.
_UNREPEATABLE = re.compile(r"^(while|call|conditional|loop|if|scan|rng.*|empty.*)$")
# In training they update running statistics, on which nothing else that they make depends.
_BATCH_NORM = re.compile(r"^(_?native_batch_norm.*|cudnn_batch_norm|miopen_batch_norm|_batch_norm_with_update.*)$")

SEVERAL = -2  # in `updated_by`


@dataclass(frozen=True, eq=False)
class Additions:
    """Recomputation and offload, as data. Addition i is op `num_ops + i`; it reads and makes copies of tensors.

    One that runs op o again reads what o reads and makes what o makes once more, at the same price on every device; of
    a batch norm all but its running statistics. A stay reads a tensor on its own device (which has it sent there),
    keeps it without a second copy of its bytes, and sends it back to those that read it from the stay. Who reads which
    copy is listed; all else reads the original.

    What is there before the step lives where its stays are, all on one device. If it is updated, the op that does so
    reads it from a stay and overwrites what came; a stay of what it makes, a return, which nobody reads, brings that
    home.

    Attributes:
        op: [added] the op that runs again, -1 for a stay.
        tensor: [added] the tensor that stays, or returns; -1 for an op that runs again.
        after: [added] an op of the graph that must have ended before it starts, or -1.
        reader: [redirections] an op of the graph, or an addition as num_ops + i.
        read: [redirections] the tensor of the graph that it would have read.
        source: [redirections] the addition whose copy it reads instead.
    """

    op: Ints  # [added]
    tensor: Ints  # [added]
    after: Ints  # [added]
    reader: Ints  # [redirections]
    read: Ints  # [redirections]
    source: Ints  # [redirections]

    def __len__(self) -> int:
        return len(self.op)

    @cached_property
    def digest(self) -> str:
        return digest("additions/1", self.op, self.tensor, self.after, self.reader, self.read, self.source)

    @property
    def num_again(self) -> int:
        """How many times an op runs again."""
        return int((self.op >= 0).sum())

    @property
    def num_stays(self) -> int:
        """How many stays and returns there are."""
        return int((self.tensor >= 0).sum())

    def __repr__(self) -> str:
        return f"Additions({self.num_again:,} ops again, {self.num_stays:,} stays)"


def same_additions(one: Additions | None, other: Additions | None) -> bool:
    """Whether two plans add the same ops, so that their columns mean the same."""
    if one is None or other is None:
        return one is other
    return one is other or one.digest == other.digest


def repeatable(graph: Graph) -> Bools:
    """[ops] may run again: it overwrites nothing, and nobody overwrites what it makes; but for running statistics,
    which a batch norm leaves alone then. One that draws random numbers draws the same ones again."""
    makes_fixed = np.zeros(graph.num_ops, bool)
    fixed = _in_place(graph) & ~statistics(graph)
    np.logical_or.at(makes_fixed, rows_of(graph.make_start), fixed[graph.makes])
    unknown = np.array([bool(_UNREPEATABLE.match(_plain(kind))) for kind in graph.kind], bool)
    makes = np.diff(graph.make_start) > 0
    able: Bools = makes & ~makes_fixed & ~unknown
    return able


def statistics(graph: Graph) -> Bools:
    """[tensors] running statistics as a batch norm leaves them, over those that were there before the step."""
    found = np.zeros(graph.num_tensors, bool)
    over = np.flatnonzero(graph.is_in_place & ~graph.is_made[graph.owner])
    found[over] = [bool(_BATCH_NORM.match(_plain(graph.kind[op]))) for op in graph.producer[over].tolist()]
    return found


def reads_again(graph: Graph, ops: Ints) -> tuple[Ints, Ints]:
    """(which of the ops, place in `graph.reads`) of all that the ops read when they run again: what they read the first
    time but for their running statistics."""
    starts, count = graph.read_start[ops], np.diff(graph.read_start)[ops]
    row = np.repeat(np.arange(len(ops)), count)
    at = np.arange(len(row)) + np.repeat(starts - np.cumsum(count) + count, count)
    left = statistics(graph)
    if left.any():
        own = graph.producer[left] * graph.num_tensors + graph.owner[left]
        keep = ~np.isin(ops[row] * graph.num_tensors + graph.owner[graph.reads[at]], own)
        row, at = row[keep], at[keep]
    return ints(row), ints(at)


def overwriters(graph: Graph) -> Bools:
    """[ops] write in place."""
    writes = np.zeros(graph.num_ops, bool)
    writes[graph.producer[graph.is_in_place]] = True
    return writes


def may_stay(graph: Graph) -> Bools:
    """[tensors] may leave its device: made in the step, dropped in it, and never written over."""
    able: Bools = graph.is_made & (graph.role == ACTIVATION) & ~_in_place(graph)
    return able


def updated_by(graph: Graph) -> Ints:
    """[tensors] of what is there before the step: the one tensor that is written over it, by an op that reads it; -1
    where nothing is; SEVERAL where more is, or by an op that does not. SEVERAL for all that the step makes."""
    found = np.where(graph.is_made, SEVERAL, -1)
    over = np.flatnonzero(graph.is_in_place & ~graph.is_made[graph.owner])
    roots = graph.owner[over]
    plain = graph.alias_of[over] == roots
    reads = rows_of(graph.read_start) * graph.num_tensors + graph.reads
    plain &= np.isin(graph.producer[over] * graph.num_tensors + roots, reads)
    found[roots] = np.where(plain, over, SEVERAL)
    count = np.bincount(roots, minlength=graph.num_tensors)
    found[count > 1] = SEVERAL
    return ints(found)


def may_live_elsewhere(graph: Graph) -> Bools:
    """[tensors] there before the step, read in it, and updated at most once: it may live on another device than those
    that read it."""
    read = np.zeros(graph.num_tensors, bool)
    read[graph.reads] = True
    able: Bools = ~graph.is_made & ~graph.is_alias & read & (updated_by(graph) != SEVERAL)
    return able


def returns(graph: Graph, added: Additions) -> Bools:
    """[added] brings home what was written over a tensor that was there before the step."""
    made = (added.tensor >= 0) & graph.is_made[added.tensor]
    back: Bools = made & ~graph.is_made[graph.owner[added.tensor]]
    return back


def homes(graph: Graph, added: Additions) -> Ints:
    """[added] of a stay or return of what is there before the step: that tensor; else -1."""
    root = graph.owner[added.tensor]
    return ints(np.where((added.tensor >= 0) & ~graph.is_made[root], root, -1))


def _in_place(graph: Graph) -> Bools:
    """[tensors] written over in place, or written so."""
    fixed: Bools = graph.is_alias | graph.is_base
    return fixed


def _plain(kind: str) -> str:
    name = re.sub(r"^(aten|prims|onnx|ai\.onnx)\.", "", kind.lower())
    return name.split(".")[0].split("::")[-1].rstrip("_")


def check_additions(graph: Graph, added: Additions) -> None:
    """Refuses additions that are none of the graph's, would change what is computed, or are read by nobody."""
    _check_columns(graph, added)
    _check_ops(graph, added)
    _check_homes(graph, added)
    _check_redirections(graph, added)


def _check_columns(graph: Graph, added: Additions) -> None:
    count, ops = len(added), graph.num_ops
    for name, column, least, most in (
        ("op", added.op, -1, ops),
        ("tensor", added.tensor, -1, graph.num_tensors),
        ("after", added.after, -1, ops),
    ):
        if column.shape != (count,) or ((column < least) | (column >= most)).any():
            raise InvalidPlan(f"additions have a '{name}' out of range", "added", f"use {least} to {most - 1}")
    rows = len(added.reader)
    for name, column, most in (
        ("reader", added.reader, ops + count),
        ("read", added.read, graph.num_tensors),
        ("source", added.source, count),
    ):
        if column.shape != (rows,) or ((column < 0) | (column >= most)).any():
            raise InvalidPlan(f"additions have a '{name}' out of range", "added", f"use 0 to {most - 1}")


def _check_ops(graph: Graph, added: Additions) -> None:
    again = added.op >= 0
    if (again == (added.tensor >= 0)).any():
        at = int((again == (added.tensor >= 0)).argmax())
        raise InvalidPlan(f"addition {at} is neither an op that runs again nor a stay", "added", "give one of the two")
    wrong = again & ~repeatable(graph)[added.op]
    if wrong.any():
        op = int(added.op[wrong.argmax()])
        why = "it overwrites a tensor, makes one that is overwritten, or calls what is not known"
        raise InvalidPlan(f"op '{graph.op_name[op]}' cannot run again: {why}", f"op {op}", "keep its result")
    able = may_stay(graph) | may_live_elsewhere(graph)
    updates = updated_by(graph)
    able[updates[updates >= 0]] = True
    wrong = ~again & ~able[added.tensor]
    if wrong.any():
        tensor = int(added.tensor[wrong.argmax()])
        why = "only what a step makes, drops and never overwrites can, or what is there before it and updated once"
        raise InvalidPlan(f"tensor '{graph.tensor_name[tensor]}' cannot be offloaded: {why}", "added", "keep it")


def _check_homes(graph: Graph, added: Additions) -> None:
    """What is there before the step and stays elsewhere is read there as it is; updated, it returns, once."""
    home, back = homes(graph, added), returns(graph, added)
    own = added.reader >= graph.num_ops
    moved = np.flatnonzero(home >= 0)
    if np.isin(added.reader[own] - graph.num_ops, moved).any():
        raise InvalidPlan("a stay of what is there before the step reads a copy", "added", "let it read the original")
    if np.isin(added.source, np.flatnonzero(back)).any():
        raise InvalidPlan("a reader reads what was brought home", "added", "let it read what was made")
    updates, names = updated_by(graph), graph.tensor_name
    sources = {(int(r), int(t)) for r, t in zip(added.reader, added.read, strict=True)}
    for root in np.unique(home[moved]).tolist():
        update = int(updates[root])
        count = int((back & (home == root)).sum())
        if count != (update >= 0):
            what = f"'{names[root]}' lives elsewhere and is updated, but is brought home {count} times"
            raise InvalidPlan(what, "added", "give one stay of what is written over it")
        if update >= 0 and (int(graph.producer[update]), root) not in sources:
            what = f"'{names[root]}' lives elsewhere, but what updates it reads it from no stay"
            raise InvalidPlan(what, f"op '{graph.op_name[graph.producer[update]]}'", "name the stay that it reads")


def _check_redirections(graph: Graph, added: Additions) -> None:
    reader, read, source = added.reader, added.read, added.source
    unread = np.setdiff1d(np.flatnonzero(~returns(graph, added)), source)
    if len(unread):
        raise InvalidPlan(f"no op reads addition {unread[0]}", "added", "leave it out")
    keys = reader * graph.num_tensors + read
    if len(np.unique(keys)) < len(keys):
        raise InvalidPlan("a reader reads a tensor from two copies", "added", "name one copy for each read")
    again = (graph.producer[read] == added.op[source]) & (added.op[source] >= 0) & ~statistics(graph)[read]
    made = np.where(added.op[source] >= 0, again, added.tensor[source] == read)
    if not made.all():
        at = int((~made).argmax())
        what = f"addition {source[at]} makes no copy of tensor '{graph.tensor_name[read[at]]}'"
        raise InvalidPlan(what, "added", "name the addition that does")
    wanted = np.isin(keys, _read_keys(graph, added))
    if not wanted.all():
        at = int((~wanted).argmax())
        what = f"a reader of tensor '{graph.tensor_name[read[at]]}' does not read it"
        raise InvalidPlan(what, "added", "name ops that read it")


def _read_keys(graph: Graph, added: Additions) -> Ints:
    """Every (reader, tensor) there is, additions included, as one number."""
    rows, reads, _ = reads_with(graph, added)
    return ints(rows * graph.num_tensors + reads)


def reads_with(graph: Graph, added: Additions) -> tuple[Ints, Ints, Ints]:
    """(reader, tensor of the graph, place in `graph.reads`, -1 for a stay) of all reads of ops and additions, before
    any is redirected."""
    again, stays = np.flatnonzero(added.op >= 0), np.flatnonzero(added.tensor >= 0)
    which, place = reads_again(graph, added.op[again])
    at = np.concatenate([np.arange(len(graph.reads)), place, np.full(len(stays), -1)])
    rows = np.concatenate([rows_of(graph.read_start), graph.num_ops + again[which], graph.num_ops + stays])
    known = len(at) - len(stays)
    return ints(rows), ints(np.concatenate([graph.reads[at[:known]], added.tensor[stays]])), ints(at)
