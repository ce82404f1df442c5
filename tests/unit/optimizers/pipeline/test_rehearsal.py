"""Rehearsals of pipelines: what they estimate is what the simulator finds where links are free, and nothing is worse
than where they began."""

from __future__ import annotations

from itertools import pairwise

from hypothesis import given, settings
from hypothesis import strategies as st

from loadmaster.cost import price
from loadmaster.optimizers.pipeline.cuts import Rehearsals, StageLine
from loadmaster.optimizers.pipeline.microbatched import _Planner, plan_pipeline
from loadmaster.optimizers.pipeline.slots import slots_of
from loadmaster.search import Budget
from tests.unit.optimizers.pipeline.lines import devices, line, problem

LAYERS, DEVICES = 7, 3


@st.composite
def lines(draw: st.DrawFn) -> StageLine:
    edges = sorted(draw(st.sets(st.integers(1, LAYERS - 1), max_size=5)))
    stages = len(edges) + 1
    device = draw(st.tuples(*[st.integers(0, DEVICES - 1)] * stages))
    return StageLine(tuple(edges), device, draw(st.tuples(*[st.integers(1, 4)] * stages)))


def rehearsing(count: int, memory: int = 2**40) -> tuple[_Planner, Rehearsals]:
    """A layer takes 70 ns forward, 110 backward and 40 for its weights; links are free."""
    priced = price(line(LAYERS, 70, 110, 40), devices(DEVICES, memory=memory))
    planner = _Planner(priced, count, Budget(None, 1000), 0)
    slot = planner.layouts[0]
    return planner, Rehearsals(slots_of(priced, slot, planner.phase), count, 0)


@settings(max_examples=25, deadline=None)
@given(lines(), st.integers(1, 5))
def test_the_simulator_finds_what_was_rehearsed(found: StageLine, count: int) -> None:
    planner, rehearsals = rehearsing(count)
    judged = planner._judge_line(planner.layouts[0], found, rehearsals)
    assert rehearsals.worth(found) == (0, judged.score.value)


@settings(max_examples=25, deadline=None)
@given(lines(), st.integers(1, 5), st.integers(0, 30_000))
def test_what_fits_in_a_rehearsal_fits(found: StageLine, count: int, memory: int) -> None:
    """A layer saves 2,000 bytes, of which a rehearsal keeps all until the gradients of weights are there."""
    planner, rehearsals = rehearsing(count, memory)
    judged = planner._judge_line(planner.layouts[0], found, rehearsals)
    assert rehearsals.worth(found)[0] or not judged.score.over_bytes


@settings(max_examples=15, deadline=None)
@given(lines(), st.integers(1, 5))
def test_annealing_leaves_whole_lines_no_worse_than_its_start(start: StageLine, count: int) -> None:
    _, rehearsals = rehearsing(count)
    worth, found = rehearsals.anneal(start, 300)
    assert worth == rehearsals.worth(found) <= rehearsals.worth(start)
    assert all(a < b for a, b in pairwise((0, *found.edges, LAYERS)))
    assert len(found.device) == len(found.most) == len(found.edges) + 1
    assert set(found.device) <= set(range(DEVICES)) and set(found.device) >= set(start.device) - {-1}
    assert all(1 <= most <= count or most in start.most for most in found.most)


def test_sums_over_slots_are_those_of_the_ops() -> None:
    given_problem = problem(4, 2, weights=500)
    planner = _Planner(given_problem, 2, Budget(None, 10), 0)
    slots = slots_of(given_problem, planner.layouts[0], planner.phase)
    assert slots.forward[:, 0].tolist() == [0, 100, 200, 300, 400]
    assert slots.backward[:, 0].tolist() == [0, 0, 100, 200, 300]  # the first layer passes nothing on
    assert slots.weight[:, 1].tolist() == [0, 1700, 3300, 4900, 6500]  # and 3 x 500 bytes to add up, a byte a ns
    assert slots.resident.tolist() == [0, 1000, 2000, 3000, 4000]
    assert slots.saved.tolist() == [0, 2000, 4000, 6000, 8000]


def test_a_line_that_goes_there_and_back_is_found() -> None:
    """Three devices, three microbatches, layers that can be cut anywhere: one stage each has bubbles that a second
    stage on the way back fills."""
    found = plan_pipeline(problem(12, 3), 3, Budget(None, 60))
    assert found.best.cut.stages > 3 and found.best.score < found.others[0].score
