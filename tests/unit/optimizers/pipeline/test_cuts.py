"""How rehearsals are shared out over lines of stages, and what a line becomes."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from loadmaster.optimizers.pipeline import cuts
from loadmaster.optimizers.pipeline.cuts import MOST_CHUNKS, Rehearsals, StageLine
from loadmaster.optimizers.pipeline.slots import slots_of
from loadmaster.passes.microbatches import Action
from loadmaster.passes.stages import phases_of
from tests.unit.optimizers.pipeline.lines import problem


def line(number: int, stages: int = 2) -> StageLine:
    return StageLine(tuple(range(1, stages)), tuple(range(stages)), (number,) * stages)


class Sharing:
    """Rehearsals in which a line is worth its number, and one better after it was annealed."""

    def __init__(self, room: int = 3, spent: Any = lambda: False) -> None:
        self.rehearsals: Any = Rehearsals.__new__(Rehearsals)
        self.given = list[Any]()
        vars(self.rehearsals).update(room=room, spent=spent, worth=self.worth, anneal=self.anneal)

    def worth(self, line: StageLine) -> tuple[int, int]:
        return 0, 10 * line.most[0]

    def anneal(self, line: StageLine, rehearsals: int) -> Any:
        self.given.append((line.most[0], rehearsals))
        return (0, 10 * line.most[0] - 1), StageLine(line.edges, line.device, (line.most[0], 99))


def test_all_starts_have_a_little_and_the_best_have_more(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of five starts one is there twice and one has too many stages. A half for all four; then a half for two of those
    known by then, the best and what became of it."""
    monkeypatch.setattr(cuts, "ROUNDS", ((0.5, 1.0), (0.5, 0.5)))
    sharing = Sharing()
    starts = [line(4), line(2), line(2), line(3), line(1), line(9, 4)]
    found = sharing.rehearsals.best(starts, 101, 3)
    assert sharing.given == [(1, 12), (2, 12), (3, 12), (4, 12), (1, 25), (1, 25)]
    assert [each.most for each in found] == [(1, 99), (1, 1), (2, 99)]


def test_at_least_the_best_has_more_and_nothing_is_made_of_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cuts, "ROUNDS", ((1.0, 0.1),))
    sharing = Sharing()
    sharing.rehearsals.best([line(5), line(3, 3)], 40, 9)
    assert sharing.given == [(3, 40)]
    assert sharing.rehearsals.best([], 40, 9) == [] and sharing.rehearsals.best([line(3, 4)], 40, 9) == []


def test_without_time_lines_are_only_compared() -> None:
    sharing = Sharing(spent=lambda: True)
    assert sharing.rehearsals.best([line(5), line(3)], 40, 1) == [line(3)] and not sharing.given


def real(count: int = 3) -> Rehearsals:
    base = problem(4, 2)
    phase = phases_of(base)
    slot = np.array([int(scope.removeprefix("layer")) for scope in base.graph.scope])
    return Rehearsals(slots_of(base, slot, phase), count, 0)


def test_a_line_becomes_columns_with_room_to_grow() -> None:
    rehearsals = real()
    assert (rehearsals.room, rehearsals.size, rehearsals.devices) == (2 * MOST_CHUNKS, 4, 2)
    stages = rehearsals._stages(StageLine((1, 3), (1, 0, 1), (3, 2, 1)))
    assert stages.begin.tolist() == [0, 1, 3, 4] + [0] * (rehearsals.room - 3)
    assert stages.device.tolist()[:3] == [1, 0, 1] and stages.most.tolist()[:3] == [3, 2, 1]
    assert len(stages.device) == len(stages.most) == rehearsals.room and stages.number.tolist() == [3]


def test_every_action_of_a_line_is_there_once() -> None:
    """Forward, backward and weights, of two stages and three microbatches; the time is that of (3 + 1) passes."""
    rehearsals, two = real(), StageLine((2,), (0, 1), (2, 1))
    actions = rehearsals.actions(two)
    assert len(actions) == 18 and set(actions) == {
        Action(p, s, m) for p in {a.phase for a in actions} for s in (0, 1) for m in range(3)
    }
    over, value = rehearsals.worth(two)
    assert over == 0 and 3 * 600 <= value <= 4 * 600
    worth, better = rehearsals.anneal(two, 50)
    assert worth <= (over, value) and rehearsals.worth(better) == worth
