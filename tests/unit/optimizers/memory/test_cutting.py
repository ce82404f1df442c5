"""The least bytes to keep, and what is made again from them, on drafts of a few tensors."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from loadmaster.optimizers.memory import cutting
from loadmaster.optimizers.memory.closures import Closure
from loadmaster.optimizers.memory.cutting import MOST_FLOW, can_leave, make_light_again, saved_by_cut, turning_point
from loadmaster.optimizers.memory.draft import Version

TURN = 3


def test_the_parts_meet_where_most_is_held_on_one_device() -> None:
    draft: Any = SimpleNamespace(memory=np.array([[9, 5, 0], [0, 5, 8]]))
    assert turning_point(draft) == 0


@pytest.mark.parametrize(
    ("able", "may_leave", "inner", "leaves"),
    [(True, True, False, True), (False, True, False, False), (True, False, False, False), (True, True, True, False)],
)
def test_what_is_stored_and_can_be_made_again_may_leave(able: bool, may_leave: bool, inner: bool, leaves: bool) -> None:
    draft: Any = SimpleNamespace(
        versions=[Version(0, 1, inner=inner)], able=[able], producer=[0], may_leave=[may_leave]
    )
    assert can_leave(draft, 0) is leaves


def row(first: int, second: int, **changes: Any) -> Any:
    """Op 0 is heavy and makes tensor 0; op 1 makes tensor 1 from it, which is read after the turn."""
    versions = [Version(0, 0, uses=[(1, 1)]), Version(1, 1, uses=[(2, 5), (TURN + 1, 6)])]
    draft: Any = SimpleNamespace(
        versions=versions, nbytes=[first, second], producer=[0, 1], able=np.array([True, True]),
        heavy=np.array([True, False]), overwritten=set(), reads=[[], [0]], makes=[[0], [1]],
    )  # fmt: skip
    vars(draft).update(changes)
    return draft


def test_the_smaller_of_a_tensor_and_what_it_is_made_from_is_kept() -> None:
    assert saved_by_cut(row(10, 20), TURN) == {0}
    assert saved_by_cut(row(20, 10), TURN) == {1}
    assert saved_by_cut(row(0, 20), TURN) == {0}
    assert saved_by_cut(row(2, 3), TURN) == {0} and saved_by_cut(row(3, 2), TURN) == {1}
    assert saved_by_cut(row(1, 2), TURN) == {0} and saved_by_cut(row(2, 1), TURN) == {1}


@pytest.mark.parametrize(
    "changes", [{"able": np.array([True, False])}, {"heavy": np.array([True, True])}, {"overwritten": {1}}]
)
def test_what_no_light_op_makes_again_is_kept_itself(changes: Any) -> None:
    assert saved_by_cut(row(10, 20, **changes), TURN) == {1}


def test_what_lives_within_a_kernel_cannot_be_kept() -> None:
    draft = row(20, 10)
    draft.versions[1].inner = True
    assert saved_by_cut(draft, TURN) == {0}


def test_only_what_is_read_after_the_turn_counts_and_only_as_it_was_first_made() -> None:
    draft = row(10, 20)
    draft.versions[1].uses = [(2, 5), (TURN, 6)]
    assert saved_by_cut(draft, TURN) == set()
    draft.versions.append(Version(1, 2, job=0, uses=[(TURN + 1, 6)]))
    assert saved_by_cut(draft, TURN) == set(), "a copy is no source"
    draft.versions[1].uses.append((TURN + 1, 6))
    draft.versions[1].made = TURN
    assert saved_by_cut(draft, TURN) == set(), "made by the kernel at the turn itself"
    assert saved_by_cut(row(10, 20, versions=[]), TURN) == set()


def test_bytes_beyond_what_a_flow_can_carry_are_counted_in_larger_units() -> None:
    huge = row(3 * MOST_FLOW // 2, 20)
    huge.versions = huge.versions[:1]
    huge.versions[0].uses = [(TURN + 1, 6)]
    assert saved_by_cut(huge, TURN) == {0}
    assert saved_by_cut(row(3 * MOST_FLOW, 2 * MOST_FLOW), TURN) == {1}
    assert saved_by_cut(row(2 * MOST_FLOW, 3 * MOST_FLOW), TURN) == {0}


def test_a_tensor_that_two_are_made_from_is_kept_once() -> None:
    """Two of 8 bytes from one of 10: that one; from one of 20: both."""
    versions = [Version(0, 0, uses=[(1, 1), (2, 2)]), *(Version(t, t, uses=[(TURN + t, 6)]) for t in (1, 2))]
    for size, kept in ((10, {0}), (20, {1, 2})):
        draft = row(
            0, 0, versions=versions, nbytes=[size, 8, 8], producer=[0, 1, 2], able=np.ones(3, bool),
            heavy=np.array([True, False, False]), reads=[[], [0], [0]],
        )  # fmt: skip
        assert saved_by_cut(draft, TURN) == kept


def test_all_that_is_read_later_and_not_kept_is_made_again_as_it_is_needed(monkeypatch: pytest.MonkeyPatch) -> None:
    """By their first readers. Tensor 3 is kept, 4 is not read later, 5 is made at the turn, 6 cannot leave."""
    uses = {
        0: [(5, 1), (9, 1)],
        1: [(6, 1), (7, 1)],
        2: [(4, 1)],
        3: [(5, 1)],
        4: [(TURN, 1)],
        5: [(6, 1)],
        6: [(6, 1)],
    }
    versions = [Version(t, TURN if t == 5 else 1, uses=[(2, 0), *given]) for t, given in uses.items()]
    draft: Any = SimpleNamespace(
        versions=versions, makes=[[0], [3], []], able=np.array([True, True, True]), heavy=np.array([False, False, True])
    )
    seen = list[Any]()

    def joined(_: Any, left: Any, tensor: int, allowed: Any) -> bool:
        seen.append((tensor, left[tensor], allowed.tolist()))
        return tensor != 0

    monkeypatch.setattr(cutting, "turning_point", lambda _: TURN)
    monkeypatch.setattr(cutting, "can_leave", lambda _, number: number != 6)
    monkeypatch.setattr(cutting, "_joined", joined)
    monkeypatch.setattr(cutting, "_apart", lambda _, left, tensor, allowed: (seen.append("apart"), left.pop(1)))
    make_light_again(draft, {3})
    allowed = [True, False, False]
    assert seen == [(2, (2, uses[2]), allowed), (0, (0, uses[0]), allowed), "apart"], "1 was made on the way"


def noted(closures: dict[Any, Any], monkeypatch: Any) -> list[Any]:
    made = list[Any]()

    def closure_of(draft: Any, tensors: Any, at: int, allowed: Any, join: bool, gone: Any = ()) -> Any:
        return closures.get((tensors, at, join, bool(gone)))

    monkeypatch.setattr(cutting, "closure_of", closure_of)
    monkeypatch.setattr(cutting, "make_again", lambda draft, drops, closure, at: made.append((drops, closure, at)))
    return made


def test_a_tensor_is_made_within_every_kernel_that_reads_it(monkeypatch: pytest.MonkeyPatch) -> None:
    later = [(7, 5), (5, 7), (5, 2)]
    closures = {((0,), 5, True, True): "at five", ((0,), 7, True, True): "at seven"}
    made = noted(closures, monkeypatch)
    draft: Any = SimpleNamespace(open={5: True, 7: True})
    left: Any = {0: (3, later), 1: (4, [])}
    assert cutting._joined(draft, left, 0, None) and left == {1: (4, [])}  # type: ignore[arg-type]
    assert made == [([(3, [(5, 7), (5, 2)])], "at five", 5), ([(3, [(7, 5)])], "at seven", 7)]
    left[0] = (3, later)
    draft.open[7] = False
    assert not cutting._joined(draft, left, 0, None) and 0 in left and len(made) == 2  # type: ignore[arg-type]


def test_a_tensor_is_made_once_for_all_with_what_is_made_on_the_way(monkeypatch: pytest.MonkeyPatch) -> None:
    """Ops 0, 1, 2 make tensors 0, 1, 2, each from the one before: 1 is read at the same place or later and is made for
    that too, 0 is needed before and is left for its own turn."""
    draft: Any = SimpleNamespace(makes=[[0], [1], [2]])
    closure, whole = Closure((0, 1, 2), (), False, 5), Closure((0, 1, 2), (), False, 9)
    left: Any = {2: (12, [(8, 1), (6, 1)]), 1: (11, [(6, 2), (9, 2)]), 0: (10, [(5, 3), (9, 3)])}
    made = noted({((2,), 6, False, True): closure, ((2, 1), 6, False, True): whole}, monkeypatch)
    cutting._apart(draft, left, 2, None)  # type: ignore[arg-type]
    assert made == [([(12, [(8, 1), (6, 1)]), (11, [(6, 2), (9, 2)])], whole, 6)] and set(left) == {0}


def test_where_not_all_can_be_made_the_tensor_alone_is_and_where_it_cannot_it_stays(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    draft: Any = SimpleNamespace(makes=[[0], [1], [2]])
    closure = Closure((1, 2), (), False, 5)
    left: Any = {2: (12, [(6, 1)]), 1: (11, [(6, 2)])}
    made = noted({((2,), 6, False, False): closure}, monkeypatch)
    cutting._apart(draft, left, 2, None)  # type: ignore[arg-type]
    assert made == [([(12, [(6, 1)])], closure, 6)] and set(left) == {1}
    cutting._apart(draft, left, 1, None)  # type: ignore[arg-type]
    assert not left and len(made) == 1
