"""What a line of stages becomes, and what a rehearsal says of it."""

from __future__ import annotations

import numpy as np

from loadmaster.pipelines.cuts import Rehearsals, StageLine
from loadmaster.pipelines.microbatches import Action
from loadmaster.pipelines.slots import slots_of
from loadmaster.pipelines.stages import phases_of
from tests.unit.pipelines.lines import problem


def real(count: int = 3) -> Rehearsals:
    base = problem(4, 2)
    phase = phases_of(base)
    slot = np.array([int(scope.removeprefix("layer")) for scope in base.graph.scope])
    return Rehearsals(slots_of(base, slot, phase), count, 0)


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
