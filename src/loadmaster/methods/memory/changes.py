"""Changes of a draft: readers that read a copy, or another version, instead; each with the way back.

A change keeps up the draft's memory curve as it is made, so that what it frees is known at once, and returns a function
that takes it back: `dropping` tries changes and keeps those that pay.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial

from loadmaster.methods.memory.closures import Closure, beyond_ns, moved_bytes, vanishing
from loadmaster.methods.memory.draft import Draft, Drop, Job, Version


def make_again(draft: Draft, drops: Sequence[Drop], closure: Closure, at: int) -> Callable[[], None]:
    """Lets those that read versions later read copies instead, made at a position."""
    undo: list[Callable[[], None]] = []
    tensors = [draft.versions[number].tensor for number, _ in drops]
    made = _run_again(draft, closure, {*tensors}, at, undo)
    for tensor, (number, later) in zip(tensors, drops, strict=True):
        undo.append(reuse(draft, number, made[tensor], later))
        draft.versions[made[tensor]].cost_ns = closure.cost_ns
    _charge(draft, closure, tensors[0], at, undo)
    return lambda: _all(undo)


def _run_again(
    draft: Draft, closure: Closure, wanted: set[int], at: int, undo: list[Callable[[], None]]
) -> dict[int, int]:
    """Tensor -> its new version, of all that the closure makes."""
    fresh: dict[int, int] = {}
    vanish, jobs = vanishing(draft, closure, wanted), range(len(draft.jobs), len(draft.jobs) + len(closure.ops))
    if not closure.joined:
        draft.chains.setdefault(at, []).append(jobs)
        undo.append(partial(_unchain, draft, at))
    for op in closure.ops:
        job = len(draft.jobs)
        draft.jobs.append(Job(op, at, closure.joined))
        made = [draft.add(Version(t, at, job, inner=t in vanish)) for t in draft.makes[op]]
        draft.jobs[job].makes = tuple(made)
        for copy in made:
            draft.hold(draft.versions[copy], at, at, 1)
            draft.note(draft.versions[copy])
        undo.append(partial(_forget, draft, made))
        for tensor in draft.reads[op]:
            reader = len(draft.at) + job
            if draft.producer[tensor] >= 0 or tensor in draft.lodged:
                source = fresh[tensor] if tensor in fresh else _nearest(draft, tensor, at)
                undo.append(_read(draft, source, at, reader))
            else:
                draft.given[tensor].append((at, reader))
                undo.append(partial(draft.given[tensor].remove, (at, reader)))
        fresh.update(zip(draft.makes[op], made, strict=True))
    return fresh


def _unchain(draft: Draft, at: int) -> None:
    draft.chains[at].pop()
    draft.changed.add(at)


def _nearest(draft: Draft, tensor: int, at: int) -> int:
    """The version a copy at a position reads: one that is there, or the last that can be kept until then."""
    found = draft.there(tensor, at)
    return found if found >= 0 else draft.latest(tensor, at)


def _forget(draft: Draft, made: list[int]) -> None:
    for copy in reversed(made):
        version = draft.versions[copy]
        draft.hold(version, version.made, version.made, -1)
        draft.of[version.tensor].pop()
        draft.versions.pop()
    draft.jobs.pop()


def _read(draft: Draft, number: int, at: int, reader: int) -> Callable[[], None]:
    version = draft.versions[number]
    until = -1 if draft.lasting[version.tensor] else at
    draft.hold(version, version.last() + 1, until, 1)
    draft.use(number, at, reader)

    def back() -> None:
        version.uses.remove((at, reader))
        draft.note(version)
        del draft.source[reader, version.tensor]
        draft.hold(version, version.last() + 1, until, -1)

    return back


def reuse(draft: Draft, number: int, other: int, later: list[tuple[int, int]]) -> Callable[[], None]:
    """Lets later readers read another version that is there anyway, or nearly."""
    old, new = draft.versions[number], draft.versions[other]
    old_last, new_last = old.last(), new.last()
    for use in later:
        old.uses.remove(use)
        new.uses.append(use)
        draft.source[use[1], old.tensor] = other
    draft.hold(old, old.last() + 1, old_last, -1)
    draft.hold(new, new_last + 1, new.last(), 1)
    draft.note(old, new)

    def back() -> None:
        moved, stayed = new.last(), old.last()
        for use in later:
            new.uses.remove(use)
            old.uses.append(use)
            draft.source[use[1], old.tensor] = number
        draft.hold(new, new.last() + 1, moved, -1)
        draft.hold(old, stayed + 1, old.last(), 1)
        draft.note(old, new)

    return back


def _charge(draft: Draft, closure: Closure, wanted: int, at: int, undo: list[Callable[[], None]]) -> None:
    draft.extra_ns += closure.cost_ns
    joined = list(closure.ops) if closure.joined else []
    inner = {t for op in joined for t in draft.makes[op]}
    moved, fixed = moved_bytes(draft, joined, inner), beyond_ns(draft, joined, inner)
    compute = sum(draft.compute[op] for op in joined)
    traffic = moved - draft.nbytes[wanted] if joined else 0
    launch = max((draft.launch[op] for op in joined), default=0)
    columns = (
        (draft.kernel_compute, compute),
        (draft.kernel_traffic, traffic),
        (draft.kernel_fixed, fixed),
        (draft.kernel_launch, max(0, launch - int(draft.kernel_launch[at]))),
    )

    def apply(sign: int) -> None:
        for column, amount in columns:
            column[at] += sign * amount
        draft.members[at] += sign * len(joined)

    apply(1)

    def back() -> None:
        draft.extra_ns -= closure.cost_ns
        apply(-1)

    undo.append(back)


def _all(undo: list[Callable[[], None]]) -> None:
    for step in reversed(undo):
        step()
