"""Names of a pipeline's actions, there and back."""

from __future__ import annotations

import pytest

from loadmaster.pipelines.microbatches import LETTERS, UPDATE, action_name, parse_action


@pytest.mark.parametrize("phase", range(len(LETTERS)))
@pytest.mark.parametrize(("stage", "microbatch"), [(0, 0), (0, 1), (3, 0), (12, 10)])
def test_a_name_says_which_action_it_is(phase: int, stage: int, microbatch: int) -> None:
    name = action_name(phase, stage, microbatch)
    plain = phase == UPDATE and microbatch == 0
    assert name == LETTERS[phase] + str(stage) + ("" if plain else "." + str(microbatch))
    found = parse_action(name)
    assert (found.phase, found.stage, found.microbatch, found.name) == (phase, stage, microbatch, name)
