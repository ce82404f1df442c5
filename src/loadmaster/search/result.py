"""Result: what `solve` found, and what a person does with it: explain it, save it, run it, or look at its plan and
timeline."""

from __future__ import annotations

from dataclasses import dataclass, field
from os import PathLike
from typing import TYPE_CHECKING, Any

from loadmaster.plans import Plan
from loadmaster.problem import Problem
from loadmaster.problem.bounds import Among, Bound
from loadmaster.search.budget import Score
from loadmaster.search.invocation import Invocation
from loadmaster.search.search import Moment
from loadmaster.simulator import Timeline

if TYPE_CHECKING:
    from loadmaster.report.explain import Report


@dataclass(frozen=True, eq=False)
class Result:
    """What a search found: a plan that was checked and simulated afresh, what it costs, and how far from the best of
    its class it is at most.

    In a notebook it shows itself: figures, a timeline and a table of modules.

    >>> import loadmaster as lm
    >>> g = lm.GraphBuilder("tiny")
    >>> ops = [g.op(f"op{i}", "task", [], [], time_ns=100) for i in range(4)]
    >>> result = lm.solve(lm.price(g.build(), "2xp100-pcie"), "heft", lm.Budget(None, 1))
    >>> result.value, result.lower_bound, result.gap, result.optimal
    (200, 200, 0.0, True)
    >>> result.among.short  # of given times as short as a launch, fused plans may be better
    'unfused'

    Attributes:
        problem: that the plan's columns are about; expanded where the plan adds ops.
        plan: settled: its ranks are the order in which things happen.
        timeline: start and end of every op and send, and the memory of every device over time.
        method: as a spec.
        seed: of the search.
        history: every improvement, in order.
        lower_bound: what no plan of the class `among` can beat, in the unit of the objective.
        simulations, seconds: that the search took, compiling apart.
        interrupted: Ctrl-C ended the search early; this is the best it had found.
        started_from: where the plans it was given to begin from came from.
        among: the class of plans that the bound holds for: those that the method chose from or, where the plan is
            optimal, the widest in which that is known.
        cut: more work might raise the bound.
        asked: what was typed for it, or None: then advice names no command.
    """

    problem: Problem
    plan: Plan
    timeline: Timeline
    method: str
    seed: int
    history: tuple[Moment, ...]
    lower_bound: int
    simulations: int
    seconds: float
    interrupted: bool = False
    started_from: tuple[str, ...] = ()
    among: Among = field(default_factory=Among)
    cut: bool = False
    asked: Invocation | None = None

    @property
    def bound(self) -> Bound:
        """The lower bound with its class."""
        return Bound(self.lower_bound, self.among, self.cut)

    @property
    def fits(self) -> bool:
        """Whether no device holds more than its memory at any time."""
        return self.timeline.over_bytes == 0

    @property
    def value(self) -> int:
        """Of the objective, in its unit: ns of the step, bytes of the largest peak."""
        return self.problem.value(self.timeline)

    @property
    def score(self) -> Score:
        """What plans are compared by: bytes over the limits, then the objective."""
        return Score(self.timeline.over_bytes, self.value)

    def explain(self, **settings: Any) -> Report:
        """How good it is, what holds it up, what fills the memory, what to do next. Settings are those of
        `report.explain.explain`."""
        from loadmaster.report.explain import explain

        return explain(self, **settings)

    def save(self, path: str | PathLike[str]) -> None:
        """Writes the plan, and how it was found, to a JSON file that `load_plan` and the command line read.

        Raises DoesNotFit for a plan that does not fit, and UnwritableFile where the file cannot be written.
        """
        from loadmaster.report.summary import save_result

        save_result(self, path)

    def __repr__(self) -> str:
        from loadmaster.report.summary import result_line

        return f"Result({result_line(self)})"

    def _repr_html_(self) -> str:
        from loadmaster.report.notebook import result_html

        return result_html(self)

    @property
    def optimal(self) -> bool:
        """No plan of the class `among` is better: it fits and meets the bound."""
        return self.fits and self.value == self.lower_bound

    @property
    def gap(self) -> float:
        """How far above the lower bound, as a share of it: at most so far from the best of its class."""
        if self.lower_bound == 0:
            return 0.0 if self.value == 0 else float("inf")
        return self.value / self.lower_bound - 1
