"""The step time alone: the loop of `loop` without what devices hold, for searches that ask only how long a step takes.

Counting bytes takes a quarter to nearly half of the time of a run, and most candidates of a search are too slow
whatever they hold: whoever asks for memory too asks `run` about the few that are quick enough. The rules are the same
and so is the time, to the nanosecond (tests/properties/test_quick.py).

Left out, too, is what few problems have: hosts that ask for kernels (rule 14), links without contention, work that
follows the last op; `times_alone` says where it may be asked.
"""

from __future__ import annotations

from loadmaster.compiled import compiled
from loadmaster.graph.columns import Ints32, Whole
from loadmaster.problem.objective import SUM, Goal
from loadmaster.simulator.loop import follow
from loadmaster.simulator.state import Layout, RunScratch, Step


def times_alone(layout: Layout, goal: Goal) -> bool:
    """Whether `step_time` says all that a plan is judged by, but for what devices hold."""
    plain = layout.contention and not len(layout.dispatch) and not len(layout.rest)
    return plain and goal.kind == SUM and goal.step_price > 0 and not len(goal.busy_price)


@compiled(error_model="numpy", _nrt=False, apart=True)
def step_time(layout: Layout, place: Ints32, rank: Ints32, scratch: RunScratch, most_ns: Whole) -> Whole:
    """How long the step takes, or -1 once it must pass most_ns. Where the scratch space is `bounded`, its caller has
    filled `tail` and `ahead`; how many ops became ready is in `tally[READY]`, as after `run`."""
    step = Step(layout, scratch, place, rank, most_ns, False, True, True, False)
    return follow(step, None)
