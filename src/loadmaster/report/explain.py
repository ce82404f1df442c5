"""explain: why a plan takes as long as it does, in numbers that add up and were simulated.

Reads a Result; each part is worked out by a module of its own: `critical` (what the step waits for), `occupancy` (what
devices and wires do), `memory` (what fills them), `moves` and `whatif` (what other decisions would change), `kernels`,
`expense`, `other_hardware`. Parts that describe the plan are exact. Parts that try alternatives simulate them, for
about `seconds` in all, and may come upon a better plan, which is then offered.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any

from loadmaster.baselines.fusion.sharing import fusing_of
from loadmaster.cluster import Cluster
from loadmaster.errors import InvalidSetting
from loadmaster.plans import Plan, check
from loadmaster.plans.expansion import whole
from loadmaster.problem import Problem
from loadmaster.problem.bounds import Among, Bound, bound_of
from loadmaster.problem.objective import Objective
from loadmaster.report.added import NOTHING, Added, added_of
from loadmaster.report.critical import CriticalPath, critical_path
from loadmaster.report.expense import Expense, expense
from loadmaster.report.kernels import Fusion, fusion
from loadmaster.report.memory import Peak, peaks
from loadmaster.report.moves import GroupDecisions, decisions
from loadmaster.report.occupancy import DeviceTime, WireLoad, device_times, wire_loads
from loadmaster.report.other_hardware import Hardware, on_other_hardware
from loadmaster.report.schedule import Schedule
from loadmaster.report.standing import bound_summary
from loadmaster.report.whatif import WhyNotFaster, why_not_faster
from loadmaster.search import Budget, Result
from loadmaster.simulator import settle, simulate

SCHEMA = "loadmaster.explanation/1"


@dataclass(frozen=True, repr=False)
class Explanation:
    """Why a plan takes as long as it does: what the step waits for, what devices do meanwhile, what fills their memory,
    what other decisions would change, and what binds.

    Times add up to the step exactly, bytes to the peaks exactly; costs of moves and changes were simulated. `text` is
    for people, `to_json` for programs (schema loadmaster.explanation/1).

    Attributes:
        graph, cluster, method: names, as reports show them.
        objective: what the plan was made for.
        step_ns: of the plan.
        value: of the objective, in its unit.
        lower_bound: what no plan of the class `among` can beat, in the same unit.
        cut: more work might raise it.
        over_bytes: over the memory of the devices; 0: it fits.
        path: what the step waits for, from its start to its end.
        devices: computing, waiting and idle time of each.
        wires: busiest first.
        peaks: of each device, what fills it when it is fullest.
        decisions: groups of ops, and what moving each elsewhere would cost.
        why_not_faster: what binds, and what changes of the problem would bring.
        fusion: what kernels save.
        expense: money and energy of a step, where the cluster says prices.
        hardware: empty, or this cluster first and then the others asked for.
        added: ops that run again, tensors that wait on a host.
        better: a better plan that the trials came upon, where they did.
        among: the class of plans that the bound holds for.
    """

    graph: str
    cluster: str
    method: str
    objective: Objective
    step_ns: int
    value: int
    lower_bound: int
    over_bytes: int
    path: CriticalPath
    devices: tuple[DeviceTime, ...]
    wires: tuple[WireLoad, ...]
    peaks: tuple[Peak, ...]
    decisions: GroupDecisions
    why_not_faster: WhyNotFaster
    fusion: Fusion
    expense: Expense
    hardware: tuple[Hardware, ...]
    added: Added = NOTHING
    better: Plan | None = None
    among: Among = field(default_factory=Among)
    cut: bool = False

    @property
    def gap(self) -> float:
        """How far above the lower bound, as a share of it."""
        if self.lower_bound == 0:
            return 0.0 if self.value == 0 else math.inf
        return self.value / self.lower_bound - 1

    @property
    def optimal(self) -> bool:
        """No plan of the class `among` is better: it fits and meets the bound."""
        return self.over_bytes == 0 and self.value == self.lower_bound

    @property
    def bound(self) -> Bound:
        """The lower bound with its class."""
        return Bound(self.lower_bound, self.among, self.cut)

    def to_json(self) -> dict[str, Any]:
        """As plain data, all fields and those of their parts by name, with the gap and whether it is optimal; `better`
        is only said to be there: `better_result` makes a Result of it."""
        gap = self.gap if math.isfinite(self.gap) else None
        data = asdict(replace(self, better=None))
        del data["better"], data["among"], data["cut"]
        data["bound"] = bound_summary(self.bound)
        if self.added == NOTHING:
            del data["added"]
        found = {"objective": self.objective.name, "gap": gap, "better_plan": self.better is not None}
        found |= {"optimal": True} if self.optimal else {}
        return {"schema": SCHEMA, **data, **found}

    def text(self) -> str:
        """The whole of it in words."""
        from loadmaster.report.words import in_words

        return in_words(self)

    def __str__(self) -> str:
        return self.text()

    def __repr__(self) -> str:
        return f"Explanation({self.graph!r} on {self.cluster!r} by {self.method}; print it, or .to_json())"


def explain(
    result: Result, clusters: Sequence[Cluster] = (), *, seconds: float = 4.0, method: str = "best-of"
) -> Explanation:
    """Explains a result.

    Args:
        result: of `solve`, or `replayed` of a plan from a file.
        clusters: others to plan for, too, to say what other hardware would bring.
        seconds: about what trying alternatives takes; planning for each other cluster takes as long again.
        method: that plans for the other clusters.
    """
    if not isinstance(result, Result):
        fix = "give a Result: solve(problem), or loadmaster.report.explain.replayed(problem, plan)"
        raise InvalidSetting.instead_of("result", result, "explain", fix)
    if not isinstance(seconds, float | int) or seconds <= 0:
        raise InvalidSetting(f"{seconds!r} seconds for alternatives", "explain", "give more than 0 seconds")
    problem, line = result.problem, result.timeline
    schedule = Schedule.of(problem, result.plan, line)
    times = device_times(schedule)
    why, better = why_not_faster(schedule, seconds * 0.6)
    return Explanation(
        graph=problem.source.name,
        cluster=problem.cluster.name,
        method=result.method,
        objective=problem.objective,
        step_ns=line.step_ns,
        value=result.value,
        lower_bound=result.lower_bound,
        over_bytes=line.over_bytes,
        among=result.among,
        cut=result.cut,
        path=critical_path(schedule),
        devices=times,
        wires=wire_loads(schedule),
        peaks=peaks(schedule),
        decisions=decisions(schedule, seconds * 0.4),
        why_not_faster=why,
        added=added_of(result),
        fusion=fusion(schedule),
        expense=expense(problem.cluster, times, line.step_ns),
        hardware=on_other_hardware(result, clusters, method, Budget(seconds)) if clusters else (),
        better=better,
    )


def better_result(result: Result, found: Explanation) -> Result | None:
    """The better plan that the trials came upon, settled, checked and simulated afresh; None where there is none."""
    if found.better is None:
        return None
    problem = result.problem
    plan = settle(problem, found.better, simulate(problem, found.better))
    again = replayed(problem, plan, f"{result.method}, {found.why_not_faster.control.how}")
    again = replace(again, seed=result.seed, simulations=result.simulations, seconds=result.seconds)
    return again if again.score < result.score else None


def replayed(problem: Problem, plan: Plan, name: str = "plan") -> Result:
    """A plan that was saved, or made by hand, as a result: checked, simulated afresh, with its bound.

    >>> import loadmaster as lm
    >>> g = lm.GraphBuilder("tiny")
    >>> ops = [g.op(f"op{i}", "task", [], [], time_ns=100) for i in range(2)]
    >>> problem = lm.price(g.build(), "2xp100-pcie")
    >>> replayed(problem, lm.Plan.of(problem, [0, 0]), "hand")
    Result(tiny on 2xp100-pcie by hand: 200 ns a step, +100.0 % above the bound, unfused)

    Args:
        problem: that the plan is for.
        plan: such as `load_plan(file)`.
        name: where it comes from, as reports say it.

    Raises:
        InvalidPlan: the plan breaks a rule, or is for another problem.
    """
    check(plan, problem)
    bound = bound_of(problem, fusing=fusing_of(problem, plan), adding=plan.added is not None)
    problem = whole(problem, plan)
    return Result(problem, plan, simulate(problem, plan), name, 0, (), *(bound.value, 1, 0.0), among=bound.among)
