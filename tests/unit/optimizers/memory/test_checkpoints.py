"""Segments that run again, and where they are cut, on rows worked out by hand."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from loadmaster.graph.columns import ints
from loadmaster.optimizers.memory import checkpoints
from loadmaster.optimizers.memory.checkpoints import LayerCheckpointing, SqrtCheckpointing, checkpointed, narrow_cuts
from loadmaster.optimizers.memory.draft import Version


def row(*spans: tuple[int, int, int]) -> Any:
    """Tensors of (bytes, position made, last reader)."""
    versions = [Version(tensor, made, uses=[(last, 99)]) for tensor, (_, made, last) in enumerate(spans)]
    return SimpleNamespace(versions=versions, nbytes=[size for size, _, _ in spans])


def test_cuts_are_made_where_the_least_bytes_cross() -> None:
    """What is made at one position and read at another crosses every edge between; what is read at a position is still
    there before it. Two halves of eight: at most two positions from the middle."""
    assert narrow_cuts(row((9, 0, 3), (5, 2, 4), (8, 4, 7)), 8, 2).tolist() == [2 + 2]
    # 9 | 9 | 9 | 9 + 5 | 5 | 8 | 8 before each of 1 to 7.
    assert narrow_cuts(row((9, 0, 3), (5, 2, 5), (1, 4, 5), (8, 4, 7)), 8, 2).tolist() == [4]
    assert narrow_cuts(row((9, 0, 2), (7, 2, 3), (8, 3, 7)), 8, 2).tolist() == [3]
    assert narrow_cuts(row((3, 0, 7)), 8, 2).tolist() == [2], "of equals the first"
    twice = row((9, 0, 1), (5, 2, 4), (8, 4, 7))
    twice.versions[0].uses.append((3, 98))
    assert narrow_cuts(twice, 8, 2).tolist() == [4]


def test_what_is_read_after_the_turn_alone_or_lives_in_a_kernel_crosses_nothing() -> None:
    plain, later = row((9, 0, 3), (5, 2, 4)), row((9, 0, 3), (5, 2, 4), (50, 4, 8), (50, 8, 9))
    inner = row((9, 0, 3), (5, 2, 4), (50, 3, 4))
    inner.versions[2].inner = True
    for draft in (later, inner):
        assert narrow_cuts(draft, 8, 2).tolist() == narrow_cuts(plain, 8, 2).tolist() == [5]
    assert narrow_cuts(row((9, 0, 3), (5, 2, 4), (50, 4, 7)), 8, 2).tolist() == [4]


def test_as_many_segments_about_equally_far_apart() -> None:
    """Thirds of twelve begin at 4 and 8, give or take two."""
    assert narrow_cuts(row(), 12, 3).tolist() == [2, 6]
    assert narrow_cuts(row((4, 0, 2), (3, 2, 6), (4, 6, 11)), 12, 3).tolist() == [3, 6]
    assert narrow_cuts(row(), 3, 3).tolist() == [0, 1], "one position at least to choose from"
    assert narrow_cuts(row(), 4, 1).tolist() == []


def test_the_square_root_of_the_positions_is_the_number_of_segments(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = list[Any]()

    def cuts(draft: Any, turn: int, segments: int) -> Any:
        asked.append((turn, segments))
        return np.array([2, 5][: segments - 1])

    monkeypatch.setattr(checkpoints, "narrow_cuts", cuts)
    assert SqrtCheckpointing._segments(None, 9).tolist() == [0, 0, 1, 1, 1, -1, -1, -1, -1]  # type: ignore[arg-type]
    assert SqrtCheckpointing._segments(None, 0).tolist() == []  # type: ignore[arg-type]
    assert asked == [(9, 3), (0, 1)]


def test_layers_are_the_modules_that_are_numbered_outermost() -> None:
    """Before the turn at 5: op 0 is in no layer; op 4 runs after the turn."""
    scopes = ("embed", "h.0.mlp", "h.0", "h.1.attn.2", "h.2")
    draft: Any = SimpleNamespace(problem=SimpleNamespace(graph=SimpleNamespace(scope=scopes)), at=[0, 1, 3, 4, 5])
    assert LayerCheckpointing._segments(draft, 5).tolist() == [-1, 0, -1, 0, 1]


def checked(versions: list[Version], segment: list[int], monkeypatch: Any, turn: int = 4, stays: Any = ()) -> list[Any]:
    """What is run again for each segment, last first."""
    seen = list[Any]()
    monkeypatch.setattr(checkpoints, "can_leave", lambda draft, number: number not in stays)
    monkeypatch.setattr(checkpoints, "_rerun", lambda draft, drops, inside: seen.append((drops, inside.tolist())))
    monkeypatch.setattr(checkpoints, "plan_of", lambda draft: "plan")
    draft: Any = SimpleNamespace(versions=versions, at=[0, 1, 2, 3, 4, 7])
    assert checkpointed(draft, turn, ints(segment)) == "plan"
    return seen


def test_what_a_segment_makes_and_the_backward_part_reads_is_made_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """Positions 0 and 1 are segment 0, position 2 is segment 1, position 3 in none; the turn is at 4."""
    versions = [
        Version(0, 0, uses=[(1, 3), (6, 2)]),
        Version(1, 1, uses=[(2, 2), (7, 9)]),  # the next segment reads it: its input, which is kept
        Version(2, 2, uses=[(4, 2), (5, 9), (8, 9)]),  # the kernel at the turn is not backward
        Version(3, 1, uses=[(1, 1)]),
        Version(4, 0, job=0, uses=[(6, 9)]),  # a copy
        Version(5, 3, uses=[(6, 9)]),
        Version(6, 4, uses=[(6, 9)]),
        Version(7, 0, uses=[(6, 9)]),
    ]
    seen = checked(versions, [0, 0, 1, -1], monkeypatch, stays={7})
    assert seen == [
        ([(2, [(5, 9), (8, 9)])], [False, False, True, False, False, False]),
        ([(0, [(6, 2)])], [True, True, False, False, False, False]),
    ]


def test_without_segments_nothing_is_made_again(monkeypatch: pytest.MonkeyPatch) -> None:
    assert checked([Version(0, 0, uses=[(6, 9)])], [-1, -1, -1, -1], monkeypatch) == []


def test_as_much_of_a_segment_as_can_run_again_does(monkeypatch: pytest.MonkeyPatch) -> None:
    """All drops at once before their first reader; without the last where that cannot be, and so on."""
    asked, made = list[Any](), list[Any]()

    def closure_of(draft: Any, tensors: Any, at: int, allowed: Any, join: bool) -> Any:
        asked.append((tensors, at, allowed, join))
        return "closure" if len(tensors) == fits else None

    monkeypatch.setattr(checkpoints, "closure_of", closure_of)
    monkeypatch.setattr(checkpoints, "make_again", lambda draft, drops, closure, at: made.append((drops, closure, at)))
    draft: Any = SimpleNamespace(versions=[Version(10 + at, 0) for at in range(3)])
    drops: Any = [(0, [(8, 1), (7, 1)]), (1, [(9, 1)]), (2, [(5, 1)])]
    fits = 2
    checkpoints._rerun(draft, drops, "inside")  # type: ignore[arg-type]
    assert asked == [((10, 11, 12), 5, "inside", False), ((10, 11), 7, "inside", False)]
    assert made == [(drops[:2], "closure", 7)]
    fits = 0
    checkpoints._rerun(draft, drops, "inside")  # type: ignore[arg-type]
    assert len(asked) == 5 and len(made) == 1


def better(lines: dict[int, tuple[int, int]], kinds: tuple[str, ...], monkeypatch: Any, spent: bool = False) -> Any:
    """(turns that were tried, the chosen one): memory is highest at 3; plans of each turn take (ns, bytes)."""
    tried, scored = list[int](), list[int]()
    draft: Any = SimpleNamespace(problem=None, plan=None, line=None, at=[0, 1, 2, 4])
    monkeypatch.setattr(checkpoints, "_drafted", lambda *_: draft)
    monkeypatch.setattr(checkpoints, "turning_point", lambda _: 3)
    monkeypatch.setattr(checkpoints, "Draft", lambda *_: draft)

    def plan(_: Any, turn: int, segment: Any) -> int:
        tried.append(turn)
        assert segment == ("segments", turn)
        return turn

    monkeypatch.setattr(checkpoints, "checkpointed", plan)

    def timeline(plan: int) -> Any:
        ns, size = lines[plan]
        return SimpleNamespace(step_ns=ns, peak_bytes=np.array([size, 1]))

    problem = SimpleNamespace(graph=SimpleNamespace(kind=kinds))
    search: Any = SimpleNamespace(problem=problem, timeline=timeline, score=scored.append, spent=spent)
    found = checkpoints._better(search, None, lambda _, turn: ("segments", turn))  # type: ignore[arg-type,return-value]
    assert scored == ([] if spent else [found])
    return tried, found


def test_of_two_places_to_turn_the_one_of_less_time_and_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    plain, early, late = ("a",) * 4, ("a", "x_backward", "backward", "a"), ("a", "a", "a", "backward")
    assert better({3: (1, 1)}, plain, monkeypatch) == ([3], 3)
    assert better({3: (1, 1)}, late, monkeypatch) == ([3], 3), "no later than where most is held"
    assert better({3: (10, 6), 1: (8, 8)}, early, monkeypatch) == ([3, 1], 3)
    assert better({3: (10, 7), 1: (8, 8)}, early, monkeypatch) == ([3, 1], 1)
    assert better({3: (1, 1)}, plain, monkeypatch, spent=True) == ([3], 3)
