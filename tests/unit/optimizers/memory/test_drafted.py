"""What becomes of a draft's jobs: which are used, after what each comes."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from loadmaster.optimizers.memory import drafted
from loadmaster.optimizers.memory.draft import Job, Version
from tests.unit.optimizers.memory.test_closures import draft_of_two


@pytest.mark.parametrize(("distance", "found"), [(1, True), (39, True), (40, False)])
def test_a_copy_comes_after_a_kernel_of_its_device_that_is_near(distance: int, found: bool) -> None:
    """The op that runs again is at position 3 of 99, its device runs nothing else but one kernel before position 60."""
    near = 60 - distance
    device = [1 if op in (3, near) else 0 for op in range(99)]
    draft: Any = SimpleNamespace(heads=np.arange(99), device=device, at=list(range(99)))
    assert drafted._before(draft, Job(3, 60)) == (near if found else -1)
    assert drafted._before(draft, Job(near, 60)) == (near if found else -1), "the kernel of the op itself"
    device[3] = 0
    device[5] = 1
    assert drafted._before(draft, Job(5, 5)) == -1 and drafted._before(draft, Job(5, 6)) == 5
    assert drafted._before(draft, Job(1, 1)) == -1, "not before it was first made"


def test_jobs_that_somebody_reads_in_the_end_are_used() -> None:
    """Of three ops. Job 0 brings home what op 0 updates, job 1 a weight that nobody updates, job 2 is a stay; op 1
    reads from job 3, which reads from job 4; job 5 reads from job 1, and nobody from it."""
    jobs = [Job(-1, 0, given=3), Job(-1, 0, given=4), Job(-1, 0, stay=1), Job(0, 1), Job(0, 1), Job(0, 1)]
    draft: Any = SimpleNamespace(
        at=[0, 1, 2], trips=dict.fromkeys(range(3)), jobs=jobs, producer=[-1, 1, 2, 0, -1, 2], heads=np.array([7, 8, 9])
    )
    redirected = [(1, 5, 3), (3 + 3, 5, 4), (3 + 5, 4, 1)]
    assert drafted._used(draft, redirected) == {0, 3, 4}
    assert drafted._used(draft, [*redirected, (0, 4, 1)]) == {0, 1, 3, 4}
    assert [drafted._last_op(draft, at) for at in (-1, 0, 2)] == [-1, 7, 9]


@pytest.mark.parametrize(("devices", "joined", "after"), [(1, False, -1), (2, True, -1), (2, False, 1)])
def test_what_an_addition_is_told(devices: int, joined: bool, after: int) -> None:
    """An op comes after the kernel before it, where there are several devices and it is a kernel of its own; a stay
    names its tensor and comes back after its trigger."""
    draft: Any = SimpleNamespace(
        at=[0, 1, 2], heads=np.arange(3), device=[0, 0, 0], problem=SimpleNamespace(num_devices=devices),
        versions=[SimpleNamespace(tensor=40), SimpleNamespace(tensor=41)],
    )  # fmt: skip
    assert drafted._row(draft, Job(0, 2, joined)) == (0, -1, after)
    assert drafted._row(draft, Job(-1, 2, stay=1, trigger=0)) == (-1, 41, 0)
    assert drafted._row(draft, Job(-1, 2, given=0, trigger=2)) == (-1, 0, 2)


def test_a_copy_that_nobody_reads_is_left_out_whatever_it_reads() -> None:
    """Job 0 is the second op again, and reads what job 1 makes, the first op again, as the last op does."""
    draft = draft_of_two()
    first, second = 2, 1
    draft.jobs += [Job(1, 3), Job(0, 3)]
    unread, copy = draft.add(Version(second, 3, 0)), draft.add(Version(first, 3, 1))
    draft.jobs[0].makes, draft.jobs[1].makes = (unread,), (copy,)
    draft.chains[3] = [range(1, 2), range(0, 1)]
    for reader in (4 + 0, 3):
        draft.use(copy, 3, reader)
    made = drafted.plan_of(draft)
    assert made.added is not None and made.added.op.tolist() == [0]
    assert list(zip(made.added.reader.tolist(), made.added.read.tolist(), strict=True)) == [(3, first)]
    draft.source[3, first] = draft.of[first][0]
    assert drafted.plan_of(draft) is draft.plan, "nobody reads either"
