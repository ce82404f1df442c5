"""Rehearsals of pipelines."""

from __future__ import annotations

from loadmaster.pipelines.microbatched import plan_pipeline
from loadmaster.search import Budget
from tests.unit.pipelines.lines import problem


def test_a_line_that_goes_there_and_back_is_found() -> None:
    """Three devices, three microbatches, layers that can be cut anywhere: one stage each has bubbles that a second
    stage on the way back fills."""
    found = plan_pipeline(problem(12, 3), 3, Budget(None, 60))
    assert found.best.cut.stages > 3 and found.best.score < found.others[0].score
