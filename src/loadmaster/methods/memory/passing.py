"""What a chain of ops that run again holds: they run one after the other, and most of what they make is gone when the
kernel begins that they run for.

A draft charges all copies made at a position to that position; what is never there at once is taken off again here.
"""

from __future__ import annotations

from itertools import groupby
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from loadmaster.methods.memory.draft import Draft


def in_turn(draft: Draft, at: int) -> list[range]:
    """The chains of a position in the order in which they run: as they were made, each after those it reads from."""
    chains, ops = draft.chains.get(at, []), len(draft.at)
    number = {job: chain for chain, jobs in enumerate(chains) for job in jobs}
    order, seen = list[int](), set[int]()

    def visit(chain: int) -> None:
        if chain in seen:
            return
        seen.add(chain)  # two chains may read from each other, one op from another
        for job in chains[chain]:
            for tensor in draft.reads[draft.jobs[job].op]:
                source = draft.source.get((ops + job, tensor))
                maker = -1 if source is None else number.get(draft.versions[source].job, -1)
                if maker >= 0 and maker != chain:
                    visit(maker)
        order.append(chain)

    for chain in range(len(chains)):
        visit(chain)
    return [chains[chain] for chain in order]


def passing(draft: Draft, at: int) -> tuple[int, int]:
    """(device, bytes) of the copies made at a position that are not there when most is: while the kernel runs, or while
    one of the chains before it does, when the later ones and the kernel have not begun. Of several devices, the first
    one's chains."""
    home = draft.device[draft.jobs[draft.chains[at][0][0]].op]
    chains = [_Chain(draft, jobs) for jobs in in_turn(draft, at) if draft.device[draft.jobs[jobs[0]].op] == home]
    later = sum(chain.made for chain in chains)
    gone, least = 0, sum(chain.inner for chain in chains)
    for chain in chains:
        later -= chain.made
        least = min(least, int(draft.begins[at]) + gone + chain.made - chain.most + later)
        gone += chain.inner
    return home, least


class _Chain:
    """Bytes that its ops make, that only they read, and that are there at once, workspace included."""

    def __init__(self, draft: Draft, jobs: range) -> None:
        self.made = self.inner = self.most = there = 0
        ops = len(draft.at)
        turn = {job: number for number, (_, group) in enumerate(_kernels(draft, jobs)) for job in group}
        ends: dict[int, int] = {}  # turn -> bytes that are gone after it
        for number, (_, group) in enumerate(_kernels(draft, jobs)):
            for job in group:
                for copy in draft.jobs[job].makes:
                    version = draft.versions[copy]
                    if version.inner:
                        continue
                    nbytes = draft.nbytes[version.tensor]
                    self.made, there = self.made + nbytes, there + nbytes
                    if all(where == version.made and reader - ops in jobs for where, reader in version.uses):
                        self.inner += nbytes
                        last = max((turn[reader - ops] for _, reader in version.uses), default=number)
                        ends[last] = ends.get(last, 0) + nbytes
            self.most = max(self.most, there + sum(draft.workspace[draft.jobs[job].op] for job in group))
            there -= ends.get(number, 0)


def _kernels(draft: Draft, jobs: range) -> list[tuple[int, list[int]]]:
    """Members of one kernel run in one again."""
    return [(at, list(group)) for at, group in groupby(jobs, key=lambda job: draft.at[draft.jobs[job].op])]
