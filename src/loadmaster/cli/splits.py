"""`plan --split auto`: plans over graphs in which ops are split, and what is said of them."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from loadmaster.cli import words

SHARES = {
    "samples": "by samples (data parallelism, with weights and their updates in shares)",
    "features": "by features (tensor parallelism, with what is between by rows)",
}

if TYPE_CHECKING:
    from loadmaster.cluster import Cluster
    from loadmaster.files.plan import PlanFile
    from loadmaster.graph import Graph
    from loadmaster.methods.splitting import SplitResult
    from loadmaster.passes.splitting import Split
    from loadmaster.plans import Plan
    from loadmaster.problem import Problem
    from loadmaster.search import Budget, Result


def run(problem: Problem, spec: str, budget: Budget, seed: int, costs: str | None) -> SplitResult:
    """Looks for ops to split and plans the graph that comes of it."""
    from loadmaster.cost import price
    from loadmaster.methods.splitting import solve_split
    from loadmaster.report.screen import solving

    cost = None if costs is None else words.costs_of(costs, problem.source, problem.cluster)

    def reprice(graph: Graph) -> Problem:
        return price(graph, problem.cluster, objective=problem.objective, cost=cost)

    with solving(spec) as listener:
        return solve_split(problem, reprice, spec, budget, seed, listener)


def in_parts(graph: Graph, plan: Plan, captured: Any, cluster: Cluster) -> Graph:
    """The graph with the ops split that the plan has in parts, unless it is that graph already. `captured`: what the
    plan's file says of how its graph was made."""
    from loadmaster.passes.splitting import sharded_graph, sharded_of, split_graph, splits_of

    if not isinstance(captured, dict) or graph.digest == plan.graph_digest:
        return graph
    shares = sharded_of(captured)
    if shares is not None and shares.devices == len(cluster.devices):
        made = sharded_graph(graph, cluster, shares.way)
        return graph if made is None else made.graph
    return split_graph(graph, splits_of(captured))


def problem_of(problem: Problem, file: PlanFile) -> Problem:
    """The problem of the graph in parts."""
    from loadmaster.cost import price

    graph = in_parts(problem.source, file.plan, file.captured, problem.cluster)
    return problem if graph is problem.source else price(graph, problem.cluster, objective=problem.objective)


def rows(parts: SplitResult | None) -> list[tuple[str, Result]]:
    """The best plan of whole ops, to compare."""
    return [("whole ops", parts.before)] if parts is not None and (parts.splits or parts.way) else []


def save_graph(parts: SplitResult | None, save: Path | None) -> Path | None:
    """Writes the graph, split or not, beside the plan, which is for it."""
    if parts is None or save is None:
        return None
    from loadmaster.files import save_graph as write

    beside = save.with_name(f"{save.name.removesuffix('.json')}.graph.json")
    write(parts.result.problem.source, beside)
    return beside


def summary(parts: SplitResult | None) -> dict[str, Any]:
    """What `--json` says of splits."""
    if parts is None:
        return {}
    splits = [vars(split) for split in parts.splits]
    return {"splits": splits, "shares": parts.way, "whole_ops_value": parts.before.value}


def tell(parts: SplitResult | None, beside: Path | None) -> None:
    """Prints what was split and what that brought."""
    if parts is None:
        return
    if parts.way is not None:
        print(f"Every op runs on every device, on its share of the work, {SHARES[parts.way]}.")
    elif not parts.splits:
        print("No op was split: no split that was tried makes the plan better.")
    for split in parts.splits:
        print(_told(split))
    if beside is not None:
        print(f"graph of this plan written to {beside}")


def _told(split: Split) -> str:
    others = "" if split.ops == 1 else f", with up to {split.ops - 1} ops around it,"
    return f"'{split.op}'{others} is split into {split.parts} parts."
