"""Plans fusion, placement and schedule of machine-learning graphs on the devices you have.

>>> import loadmaster as lm
>>> result = lm.plan("zoo:gnmt-4", on="4xp100-pcie", budget=10)  # doctest: +SKIP
>>> result.save("plan.json")  # doctest: +SKIP

`plan` is `load`, `price` and `solve` in one call; each of them, and what lies between them (Graph, Cluster, Problem,
Plan, Timeline, Result), can be used alone. Two products of 100 us each, of which the second reads the first, and one
that reads neither:

>>> g = lm.GraphBuilder("three")
>>> t = g.tensor(1_000)
>>> ops = g.op("a", "task", [], [t], time_ns=100_000), g.op("b", "task", [t], [], time_ns=100_000)
>>> other = g.op("c", "task", [], [], time_ns=100_000)
>>> problem = lm.price(g.build(), "2xp100-pcie")
>>> result = lm.solve(problem, "heft", lm.Budget(None, 1))
>>> result.value, result.optimal, result.plan.device.tolist()
(200000, True, [0, 0, 1])
>>> lm.simulate(problem, lm.Plan.of(problem, [0, 1, 0])).step_ns  # a send between a and b
210084

Names here are imported when they are first used: `import loadmaster` takes neither numba nor torch.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from loadmaster.deferred import deferred

if TYPE_CHECKING:
    from loadmaster.catalog.specs import make_method as make_method
    from loadmaster.cluster import Cluster as Cluster
    from loadmaster.cluster import Device as Device
    from loadmaster.cost import price as price
    from loadmaster.errors import CannotRun as CannotRun
    from loadmaster.errors import DoesNotFit as DoesNotFit
    from loadmaster.errors import ImportFailed as ImportFailed
    from loadmaster.errors import InvalidCluster as InvalidCluster
    from loadmaster.errors import InvalidGraph as InvalidGraph
    from loadmaster.errors import InvalidPlan as InvalidPlan
    from loadmaster.errors import InvalidSetting as InvalidSetting
    from loadmaster.errors import LoadmasterError as LoadmasterError
    from loadmaster.errors import MissingExtra as MissingExtra
    from loadmaster.errors import UnknownName as UnknownName
    from loadmaster.errors import UnreadableFile as UnreadableFile
    from loadmaster.errors import UnwritableFile as UnwritableFile
    from loadmaster.files import load_plan as load_plan
    from loadmaster.files import save_plan as save_plan
    from loadmaster.graph import Graph as Graph
    from loadmaster.graph import GraphBuilder as GraphBuilder
    from loadmaster.importers import load as load
    from loadmaster.importers.torch.opaque import cost_of as cost_of
    from loadmaster.passes import fuse as fuse
    from loadmaster.planning import plan as plan
    from loadmaster.plans import Plan as Plan
    from loadmaster.plans import check as check
    from loadmaster.problem import Problem as Problem
    from loadmaster.problem.bounds import lower_bound as lower_bound
    from loadmaster.report.diff import diff as diff
    from loadmaster.report.explain import explain as explain
    from loadmaster.runtime.apply import apply as apply
    from loadmaster.runtime.placing import place as place
    from loadmaster.search import Budget as Budget
    from loadmaster.search import Method as Method
    from loadmaster.search import Result as Result
    from loadmaster.search import Score as Score
    from loadmaster.search import Search as Search
    from loadmaster.search import solve as solve
    from loadmaster.simulator import Timeline as Timeline
    from loadmaster.simulator import settle as settle
    from loadmaster.simulator import simulate as simulate
    from loadmaster.simulator import simulate_many as simulate_many

__version__ = "0.1.0"

# name -> module that has it; a module is imported when one of its names is first used
_HOMES = {
    "plan": "planning",
    "load": "importers",
    "cost_of": "importers.torch.opaque",
    "price": "cost",
    "solve": "search",
    "simulate": "simulator",
    "simulate_many": "simulator",
    "check": "plans",
    "settle": "simulator",
    "fuse": "passes",
    "lower_bound": "problem.bounds",
    "apply": "runtime.apply",
    "place": "runtime.placing",
    "explain": "report.explain",
    "diff": "report.diff",
    "load_plan": "files",
    "save_plan": "files",
    "make_method": "catalog.specs",
    "Graph": "graph",
    "GraphBuilder": "graph",
    "Cluster": "cluster",
    "Device": "cluster",
    "Budget": "search",
    "Plan": "plans",
    "Problem": "problem",
    "Timeline": "simulator",
    "Result": "search",
    "Search": "search",
    "Method": "search",
    "Score": "search",
    "LoadmasterError": "errors",
    "InvalidGraph": "errors",
    "InvalidCluster": "errors",
    "InvalidPlan": "errors",
    "InvalidSetting": "errors",
    "UnknownName": "errors",
    "UnreadableFile": "errors",
    "UnwritableFile": "errors",
    "ImportFailed": "errors",
    "MissingExtra": "errors",
    "DoesNotFit": "errors",
    "CannotRun": "errors",
}

__all__ = ["__version__", *_HOMES]

__getattr__ = deferred("loadmaster", _HOMES)


def __dir__() -> list[str]:
    return sorted(__all__)
