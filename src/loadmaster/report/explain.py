"""explain: the one report of a plan, which page, terminal, notebook, JSON and diff are drawn from.

It answers four questions: how good is the plan (`Verdict`), what holds it up (`Bottleneck`), what fills the memory
(`Peak`) and what to do next (`NextStep`). What describes the plan is exact; moves and next steps were simulated or
searched for, in about `seconds`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

from loadmaster.baselines.fusion.greedy import fusing_of
from loadmaster.cluster import Cluster
from loadmaster.errors import InvalidSetting
from loadmaster.plans import Plan, check
from loadmaster.plans.expansion import whole
from loadmaster.problem import Problem
from loadmaster.problem.bounds import bound_of
from loadmaster.report.actions import SHARE, allowance, try_actions, uses
from loadmaster.report.added import Added, added_of
from loadmaster.report.answers import ShortReport, basis_of, of_memory, verdict_of
from loadmaster.report.bottleneck import bottleneck, with_hardware
from loadmaster.report.critical import CriticalPath, critical_path
from loadmaster.report.expense import Expense, expense
from loadmaster.report.kernels import Fusion, fusion
from loadmaster.report.memory import peaks
from loadmaster.report.moves import GroupDecisions, decisions
from loadmaster.report.occupancy import DeviceTime, WireLoad, device_times, wire_loads
from loadmaster.report.other_hardware import Hardware, on_other_hardware
from loadmaster.report.schedule import Schedule
from loadmaster.report.whatif import WhatIf, what_ifs
from loadmaster.search import Budget, Result
from loadmaster.simulator import simulate

SCHEMA = "loadmaster.report/1"
LEAST_MOVES_S, MOST_MOVES_S = 0.2, 2.0  # for what moving each group would cost


@dataclass(frozen=True, repr=False)
class Report(ShortReport):
    """The four answers, and all that they rest on.

    Times add up to the step exactly, bytes to the peaks exactly. `text` is for people, `to_json` for programs.

    Attributes:
        graph, method: names, as they are shown.
        reasons: groups of ops, and what each would cost on each other device.
        path: what the step waits for, from its start to its end.
        devices, wires: what each does with the step; links busiest first.
        what_ifs: the same plan on changed hardware.
        fusion, expense, added: what kernels save, money and energy, what runs again or waits on a host.
        hardware: empty, or this cluster first and then the others asked for.
        provenance: (name, text): how the plan was made.
    """

    graph: str
    method: str
    reasons: GroupDecisions
    path: CriticalPath
    devices: tuple[DeviceTime, ...]
    wires: tuple[WireLoad, ...]
    what_ifs: tuple[WhatIf, ...]
    fusion: Fusion
    expense: Expense
    added: Added
    hardware: tuple[Hardware, ...]
    provenance: tuple[tuple[str, str], ...]

    def to_json(self) -> dict[str, Any]:
        """As plain data, all fields by name; `better` is only said to be there."""
        data = asdict(replace(self, better=None, verdict=replace(self.verdict, bounds=None)))  # type: ignore[arg-type]
        data["verdict"] |= {"bounds": self.verdict.bounds.to_json(), "speed_up": self.verdict.speed_up}
        data |= {"objective": self.objective.name, "better": None if self.better is None else self.better.value}
        return {"schema": SCHEMA, **data}

    def text(self, verbose: bool = True, width: int | None = None) -> str:
        """In words: the four answers, and all tables after them, cut to `width` letters a line where that is given."""
        from loadmaster.report.sections import in_words

        return in_words(self, width) if verbose else self.short()

    def __str__(self) -> str:
        return self.text()

    def __repr__(self) -> str:
        return f"Report({self.graph!r} on {self.cluster!r} by {self.method}; print it, or .to_json())"


def explain(
    result: Result,
    clusters: Sequence[Cluster] = (),
    *,
    seconds: float | None = None,
    method: str = "best-of",
    saved: str | None = None,
) -> Report:
    """The report of a result: how good it is, what limits it, what fills the memory, and what to do next.

    >>> import loadmaster as lm
    >>> g = lm.GraphBuilder("tiny")
    >>> number = g.op("only", "task", [], [], time_ns=100)
    >>> result = lm.plan(g.build(), on="1xcpu", budget=lm.Budget(None, 1), method="one-device")
    >>> lm.explain(result, seconds=0.1).verdict.step_ns
    100

    Args:
        result: of `plan` or `solve`, or `replayed` of a plan from a file.
        clusters: others to plan for, too, to say what other hardware would bring.
        seconds: for what is tried: by default a fifth of the search's own, one at least. Planning for each other
            cluster takes as long again.
        method: that plans for the other clusters.
        saved: the file that the plan is in.
    """
    if not isinstance(result, Result):
        fix = "give a Result: solve(problem), or loadmaster.report.explain.replayed(problem, plan)"
        raise InvalidSetting.instead_of("result", result, "explain", fix)
    if seconds is not None and (not isinstance(seconds, float | int) or seconds <= 0):
        raise InvalidSetting(f"{seconds!r} seconds for what is tried", "explain", "give more than 0 seconds")
    schedule, objective = Schedule.of(result.problem, result.plan, result.timeline), result.problem.objective
    allowed = allowance(result) if seconds is None else seconds
    moves_s = min(MOST_MOVES_S, max(LEAST_MOVES_S, SHARE * allowed))
    actions, better = try_actions(result, allowed)
    times, wires, path, ifs = device_times(schedule), wire_loads(schedule), critical_path(schedule), what_ifs(schedule)
    held, limit = peaks(schedule), bottleneck(schedule, path, wires)
    return Report(
        graph=result.problem.source.name,
        cluster=result.problem.cluster.name,
        method=result.method,
        objective=objective,
        verdict=verdict_of(result),
        bottleneck=of_memory(held) if objective.of_memory else with_hardware(limit, ifs, schedule.step_ns),
        peaks=held,
        actions=actions,
        uses=tuple(uses(result, saved)),
        reasons=decisions(schedule, moves_s),
        path=path,
        devices=times,
        wires=wires,
        what_ifs=ifs,
        fusion=fusion(schedule),
        expense=expense(result.problem.cluster, times, result.timeline.step_ns),
        added=added_of(result),
        hardware=on_other_hardware(result, clusters, method, Budget(allowed)) if clusters else (),
        provenance=_provenance(result),
        better=better,
    )


def _provenance(result: Result) -> tuple[tuple[str, str], ...]:
    from loadmaster import __version__

    problem, plan = result.problem, result.plan
    own = result.among.words + ("; more work might raise it" if result.cut else "")
    asked = () if result.asked is None else (("asked", result.asked.command()),)
    return (
        ("graph", f"{problem.source.name}, digest {plan.graph_digest}"),
        ("ops", f"{problem.source.num_ops:,} imported, {problem.num_ops:,} planned, {plan.num_kernels:,} kernels"),
        ("cluster", f"{problem.cluster.name}, digest {plan.cluster_digest}"),
        ("objective", problem.objective.name),
        *asked,
        ("method", result.method + ("; interrupted" if result.interrupted else "")),
        ("search", f"{result.simulations:,} simulations in {result.seconds:.1f} s, seed {result.seed}"),
        ("bound", f"of {own}"),
        ("times", basis_of(problem)),
        ("made with", f"loadmaster {__version__}"),
    )


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
