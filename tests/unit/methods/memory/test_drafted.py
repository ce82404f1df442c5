"""What becomes of a draft's jobs: which are used, after what each comes."""

from __future__ import annotations

from loadmaster.methods.memory import drafted
from loadmaster.methods.memory.draft import Job, Version
from tests.unit.methods.memory.test_closures import draft_of_two


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
