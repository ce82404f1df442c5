"""warm_up: compiles what a method can reach before the clock of a search runs.

The method first runs on a few ops, on the same cluster and for the same objective: loops are compiled or loaded, and
weights of policies are read. Once per process, method and objective. Run as a program it compiles what annealing needs,
for a process that loads its model meanwhile.
"""

from __future__ import annotations

from loadmaster.catalog.specs import make_method
from loadmaster.cluster import Cluster
from loadmaster.cost import price
from loadmaster.errors import MissingExtra
from loadmaster.graph import Graph, GraphBuilder
from loadmaster.problem.bounds import lower_bound
from loadmaster.problem.objective import Objective
from loadmaster.search.budget import Budget
from loadmaster.search.search import Method, Search
from loadmaster.simulator import settle, simulate

_WARM: set[tuple[str, bool, str]] = set()


def warm_up(method: Method, cluster: Cluster, objective: Objective | str) -> None:
    """Runs the method on a few ops under both kinds of budget, once in a process: compiled loops are made or loaded,
    and weights read, before the clock of a search runs. What goes wrong there is left for the real problem to show,
    except for a package that is missing."""
    key = (repr(method), len(cluster.devices) > 1, str(objective))
    if key in _WARM:
        return
    small = price(_few_ops(), cluster, objective=objective)
    for budget in (Budget(None, 200), Budget(1.0, 200)):
        try:
            plan = method.optimize(Search(small, budget))
            line = simulate(small, settle(small, plan, simulate(small, plan)))
            lower_bound(small, fusing=plan.fuses, fitting=line.over_bytes == 0)
        except MissingExtra:
            raise
        except Exception:
            return
    _WARM.add(key)


def _few_ops() -> Graph:
    """Layers of three ops, each of which reads two of the layer before and a weight of its own."""
    build = GraphBuilder("warming up")
    layer = [build.tensor(4096, "input") for _ in range(3)]
    for depth in range(5):
        made = [build.tensor(4096, "output" if depth == 4 else "activation") for _ in range(3)]
        for i, out in enumerate(made):
            reads = [layer[i], layer[(i + 1) % 3], build.tensor(1 << 14, "weight")]
            build.op(f"op{depth}.{i}", "add" if i else "matmul", reads, [out], flops=1 << 20)
        layer = made
    return build.build()


if __name__ == "__main__":
    warm_up(make_method("anneal:start=one-device"), Cluster.preset("2xp100-pcie"), "step-time")
