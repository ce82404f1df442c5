"""Whole modules: another optimizer's search, held to plans that keep every module or block on one device."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from loadmaster.graph.modules import Granularity, bind
from loadmaster.optimizers.auto import Auto
from loadmaster.plans import Plan
from loadmaster.problem import Problem
from loadmaster.search import Optimizer, Search


@dataclass(frozen=True)
class WholeModules:
    """Binds the ops of each module together and lets `inner` plan under that from the start.

    Runtimes that place modules can take such a plan; rounding a plan op by op afterwards loses what it gained. A graph
    that knows no modules is planned op by op.
    """

    granularity: Granularity = "block"
    inner: Optimizer = field(default_factory=Auto)

    def optimize(self, search: Search) -> Plan:
        bound = bound_problem(search.problem, self.granularity)
        part = search.part(1.0, bound)
        plan = self.inner.optimize(part)
        best = plan if part.best is None else part.best
        own = Plan.of(search.problem, best.device, best.rank, best.kernel)
        return replace(own, send_rank=best.send_rank)


def bound_problem(problem: Problem, granularity: Granularity) -> Problem:
    """The same problem in which ops of one module must share a device."""
    if not any(problem.graph.scope):
        return problem
    return replace(problem, graph=bind(problem.graph, granularity))
