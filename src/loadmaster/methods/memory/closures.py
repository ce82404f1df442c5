"""Closures: what it takes to have a tensor again at a position, and the time of that.

The tensor's op has to run again, and so have those that make what it reads, back to what is there, or is kept until
then because that is cheaper; at most so many ops (`MOST_AGAIN`), so deep. Run inside the kernel that reads the tensor,
a closure takes no launch and no memory; as kernels of its own it takes both.
"""

from __future__ import annotations

from collections.abc import Container, Iterable
from typing import NamedTuple

from loadmaster.baselines.fusion.greedy import MOST_MEMBERS
from loadmaster.baselines.fusion.spaces import fits
from loadmaster.graph.columns import Bools
from loadmaster.methods.memory.draft import Draft

MOST_AGAIN = 400  # ops that run again for one tensor
MOST_DEPTH = 200  # of them one after the other


class Closure(NamedTuple):
    """What it takes to have a tensor at a position: ops that run there, versions that are kept until then.

    Attributes:
        keeps: versions.
    """

    ops: tuple[int, ...]
    keeps: tuple[int, ...]
    joined: bool
    cost_ns: int


def closure_of(
    draft: Draft, tensors: tuple[int, ...], at: int, allowed: Bools, join: bool, gone: Container[int] = ()
) -> Closure | None:
    """How to have tensors again at a position, or None; `join`: inside the kernel that is there. What they are made
    from is made again too by ops that are allowed to ([ops]); else it is kept, where it can be. `gone`: tensors
    that count as not there, as they are to be dropped."""
    ops: list[int] = []
    keeps: list[int] = []
    seen: set[int] = set()
    waiting: list[int] = []  # ops that are looked at, each for one that reads what it makes

    def need(wanted: int) -> bool:
        first = wanted in tensors  # whichever of them is come upon first
        if wanted in seen:
            return True
        seen.add(wanted)
        maker = draft.producer[wanted]
        if maker < 0:
            here = wanted not in draft.lodged or draft.there(wanted, at) >= 0
            return here and draft.updated_at.get(wanted, 1 << 60) >= at
        if wanted in draft.overwritten:
            return False
        if not first and wanted not in gone and draft.there(wanted, at) >= 0:
            return True
        again = bool(draft.able[maker]) and len(ops) < MOST_AGAIN and len(waiting) < MOST_DEPTH
        # What only lives inside a kernel cannot be kept; to keep a tensor on is else a way to have it.
        kept = -1 if first else draft.latest(wanted, at)
        run = again and (first or kept < 0 or bool(allowed[maker]))
        if run and join and not _may_join(draft, maker, at):
            return False
        if run:
            waiting.append(maker)
            if maker not in ops_set and not all(need(read) for read in draft.reads[maker]):
                return False
            waiting.pop()
            if maker not in ops_set:
                ops_set.add(maker)
                ops.append(maker)
            return True
        if kept < 0 or draft.home(draft.versions[kept]) != home:
            return False
        keeps.append(kept)
        return True

    home = draft.device[draft.producer[tensors[0]]]
    if join and draft.device[int(draft.heads[at])] != home:
        return None
    ops_set: set[int] = set()
    if not all(need(tensor) for tensor in tensors):
        return None
    if any(draft.device[op] != home for op in ops) or (join and draft.members[at] + len(ops) > MOST_MEMBERS):
        return None
    found = Closure(tuple(sorted(ops)), tuple(keeps), join, 0)
    cost = _joined_ns(draft, ops, at, tensors[0]) if join else _apart_ns(draft, found, {*tensors})
    return found._replace(cost_ns=cost)


def _may_join(draft: Draft, op: int, at: int) -> bool:
    """Whether the kernel at the position may make what the op makes, for what it reads itself."""
    loop = (draft.loops.points[op], draft.loops.rows[op], draft.loops.apart[op])
    return bool(draft.free[op] and not draft.scatters[op] and fits(*loop, draft.points[at], draft.rows[at]))


def _apart_ns(draft: Draft, closure: Closure, wanted: set[int]) -> int:
    """Of kernels of their own: members of one kernel run in one again."""
    vanish, groups = vanishing(draft, closure, wanted), dict[int, list[int]]()
    for op in closure.ops:
        groups.setdefault(draft.at[op], []).append(op)
    return sum(_time(draft, group, vanish, 0.0, 0.0, 0.0, 0) for group in groups.values())


def moved_bytes(draft: Draft, ops: Iterable[int], vanish: set[int]) -> int:
    """What the ops move in a kernel in which those tensors are inner."""
    return sum(_moved_by(draft, op, vanish) for op in ops)


def _moved_by(draft: Draft, op: int, vanish: set[int]) -> int:
    moved = draft.traffic[op] - sum(draft.nbytes[t] for t in draft.makes[op] if t in vanish)
    pairs = zip(draft.reads[op], draft.read_bytes[op], strict=True)
    return max(0, moved - sum(size for t, size in pairs if t in vanish))


def beyond_ns(draft: Draft, ops: Iterable[int], vanish: set[int]) -> float:
    """What the ops take beyond what they compute and move in that kernel; less than nothing where they were measured to
    take less, but no more than that (rule 12)."""
    total = 0.0
    for op in ops:
        rate = int(draft.problem.bytes_per_s[draft.device[op]])
        total += max(draft.fixed[op], -max(draft.compute[op], _moved_by(draft, op, vanish) * 1e9 / rate))
    return total


def _time(
    draft: Draft, ops: list[int], vanish: set[int], compute: float, traffic: float, fixed: float, launch: int
) -> int:
    """Of a kernel of the ops beside others, which are given in sum."""
    device = draft.device[ops[0]]
    launch = max(launch, *(draft.launch[op] for op in ops))
    compute += sum(draft.compute[op] for op in ops)
    fixed += beyond_ns(draft, ops, vanish)
    moving = (traffic + moved_bytes(draft, ops, vanish)) * 1e9 / int(draft.problem.bytes_per_s[device])
    return int(launch + max(0.0, max(compute, moving) + fixed))


def _joined_ns(draft: Draft, ops: list[int], at: int, tensor: int) -> int:
    """What the kernel at the position takes more when the ops are part of it."""
    device = draft.device[ops[0]]
    was = (draft.kernel_compute[at], draft.kernel_traffic[at], draft.kernel_fixed[at])
    vanish = {t for op in ops for t in draft.makes[op]}
    rate, launch = int(draft.problem.bytes_per_s[device]), int(draft.kernel_launch[at])
    before = launch + max(0.0, max(was[0], was[1] * 1e9 / rate) + was[2])
    return int(_time(draft, ops, vanish, was[0], was[1] - draft.nbytes[tensor], was[2], launch) - before)


def vanishing(draft: Draft, closure: Closure, wanted: set[int]) -> set[int]:
    """What stays inside the kernels that run again: all that joins another kernel; else what one alone reads."""
    made = {t for op in closure.ops for t in draft.makes[op]}
    if closure.joined:
        return made
    readers: dict[int, set[int]] = {}
    for op in closure.ops:
        for tensor in draft.reads[op]:
            readers.setdefault(tensor, set()).add(draft.at[op])
    return {t for t in made - wanted if readers.get(t) == {draft.at[draft.producer[t]]}}
