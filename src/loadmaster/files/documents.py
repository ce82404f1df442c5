"""The one JSON format: graphs, clusters, plans, addresses, each with its schema number; docs/formats.md shows them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any

from loadmaster.cluster import Cluster
from loadmaster.errors import InvalidCluster, InvalidGraph, InvalidPlan, LoadmasterError, UnreadableFile
from loadmaster.files.graph import graph_from_json, graph_to_json
from loadmaster.files.text import (
    CLUSTER_SCHEMA,
    GRAPH_SCHEMA,
    PLAN_SCHEMA,
    PathLike,
    Row,
    checked_path,
    read_json,
    read_json_lines,
    shown,
    uncollected,
    write_json,
    write_json_lines,
)
from loadmaster.graph import Graph
from loadmaster.plans import Plan
from loadmaster.problem import Problem

if TYPE_CHECKING:
    from loadmaster.files.plan import PlanFile
    from loadmaster.simulator.arenas import Arenas

_ORIGIN_KEYS = ("source", "family", "model", "mode")


def load_graph(path: PathLike) -> Graph:
    """The graph of a .json, .json.gz or .json.xz file."""
    found = checked_path(path)
    if ".jsonl" in found.suffixes:
        fix = "take one with load_graphs, or name its line: " + f"{found.name}#1"
        raise UnreadableFile(f"'{found}' holds many graphs, one a line", "", fix)
    with uncollected():
        data = read_json(found)
        _check_schema(data, GRAPH_SCHEMA, str(found), InvalidGraph)
        return graph_from_json(data, str(found))


def load_graphs(path: PathLike) -> Iterator[Graph]:
    """The graphs of a .jsonl, .jsonl.gz or .jsonl.xz file, one graph a line, read one at a time."""
    return (graph for graph, _ in load_records(path))


def load_records(path: PathLike) -> Iterator[tuple[Graph, dict[str, str]]]:
    """As load_graphs, each with what its line says of its origin: source, family, model, mode."""
    return map(_record, read_json_lines(path))


def _record(line: tuple[Any, str]) -> tuple[Graph, dict[str, str]]:
    data, where = line
    if isinstance(data, dict) and "schema" in data:
        _check_schema(data, GRAPH_SCHEMA, where, InvalidGraph)
    graph = graph_from_json(data, where)
    return graph, {key: data[key] for key in _ORIGIN_KEYS if isinstance(data.get(key), str)}


def _check_schema(data: Any, schema: str, where: str, error: type[LoadmasterError]) -> None:
    given = Row(data, where, error).data.get("schema")
    if given == schema:
        return
    kind = schema.partition(".")[2].partition("/")[0]
    if given in (GRAPH_SCHEMA, CLUSTER_SCHEMA, PLAN_SCHEMA):
        raise error(f"this is a file of '{given}', not a {kind}", where, f"give a file of '{schema}'")
    what = "'schema' is missing" if given is None else f"'schema' is {shown(given)}"
    raise error(what, where, f'if this is a {kind}, write "schema": "{schema}" in it')


def save_graph(graph: Graph, path: PathLike) -> None:
    """Writes a .json, .json.gz or .json.xz file."""
    write_json(graph_to_json(graph), path)


def save_graphs(graphs: Iterable[Graph], path: PathLike) -> int:
    """Writes a .jsonl, .jsonl.gz or .jsonl.xz file, one graph a line; how many."""
    return write_json_lines(map(graph_to_json, graphs), path)


def load_cluster(path: PathLike) -> Cluster:
    """The cluster of a .json file (or .json.gz, .json.xz)."""
    from loadmaster.files.cluster import cluster_from_json

    data = read_json(path)
    _check_schema(data, CLUSTER_SCHEMA, str(path), InvalidCluster)
    return cluster_from_json(data, str(path))


def save_cluster(cluster: Cluster, path: PathLike) -> None:
    """Writes a cluster to a JSON file (schema loadmaster.cluster/1); `Cluster.load` reads it."""
    from loadmaster.files.cluster import cluster_to_json

    write_json(cluster_to_json(cluster), path)


def save_plan(plan: Plan, problem: Problem, path: PathLike, extra: Mapping[str, Any] | None = None) -> None:
    """Writes a plan to a JSON file (schema loadmaster.plan/1), after a check against its problem.

    The file has names beside numbers, so that it can be read; numbers alone make the plan again. It is written beside,
    then renamed: there is never half a file.

    >>> import loadmaster as lm, tempfile
    >>> g = lm.GraphBuilder("tiny")
    >>> number = g.op("only", "task", [], [], time_ns=100)
    >>> problem = lm.price(g.build(), "2xp100-pcie")
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     lm.save_plan(lm.Plan.of(problem, [1]), problem, f"{folder}/plan.json", {"seed": 0})
    ...     lm.load_plan(f"{folder}/plan.json").device.tolist()
    [1]

    Args:
        plan, problem: the plan, and what it is a plan of.
        path: .json, .json.gz or .json.xz.
        extra: goes beside the plan, such as the seed; none of the format's own keys.

    Raises:
        InvalidPlan: the plan breaks a rule.
        InvalidSetting: a key of `extra` is one of the format's own.
        UnwritableFile: the disk is full, or it is not permitted.
    """
    from loadmaster.files.plan import plan_to_json

    write_json(plan_to_json(plan, problem, extra), path)


def load_plan(path: PathLike) -> Plan:
    """The plan of a file. `check(plan, problem)` says whether it suits a problem.

    >>> import loadmaster as lm, tempfile
    >>> g = lm.GraphBuilder("tiny")
    >>> number = g.op("only", "task", [], [], time_ns=100)
    >>> result = lm.plan(g.build(), on="2xp100-pcie", budget=lm.Budget(None, 1), method="one-device")
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     result.save(f"{folder}/plan.json")
    ...     lm.load_plan(f"{folder}/plan.json").device.tolist()
    [0]

    Raises:
        UnreadableFile: there is no such file, or it is cut short or no JSON.
        InvalidPlan: it is of another format, or a number in it cannot be; the error says where in the file.
    """
    return load_plan_file(path).plan


def load_plan_file(path: PathLike) -> PlanFile:
    """The plan with what its file says of how it came about."""
    from loadmaster.files.plan import plan_file_from_json

    data = read_json(path)
    _check_schema(data, PLAN_SCHEMA, str(path), InvalidPlan)
    return plan_file_from_json(data, str(path))


def save_addresses(arenas: Arenas, plan: Plan, problem: Problem, path: PathLike) -> None:
    """Where everything lies in the memory of each device; loadmaster does not read it back."""
    from loadmaster.files.arenas import addresses_to_json

    write_json(addresses_to_json(arenas, plan, problem), path)
