"""The one JSON format: graphs, clusters, plans, addresses. Its parts are loaded when first used, so that who only
writes a file (`writing`) does not wait for the compiled loops behind plans."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from loadmaster.files.cluster import cluster_from_json as cluster_from_json
    from loadmaster.files.cluster import cluster_to_json as cluster_to_json
    from loadmaster.files.documents import load_cluster as load_cluster
    from loadmaster.files.documents import load_graph as load_graph
    from loadmaster.files.documents import load_graphs as load_graphs
    from loadmaster.files.documents import load_plan as load_plan
    from loadmaster.files.documents import load_plan_file as load_plan_file
    from loadmaster.files.documents import load_records as load_records
    from loadmaster.files.documents import save_addresses as save_addresses
    from loadmaster.files.documents import save_cluster as save_cluster
    from loadmaster.files.documents import save_graph as save_graph
    from loadmaster.files.documents import save_graphs as save_graphs
    from loadmaster.files.documents import save_plan as save_plan
    from loadmaster.files.graph import graph_from_json as graph_from_json
    from loadmaster.files.graph import graph_to_json as graph_to_json
    from loadmaster.files.plan import PlanFile as PlanFile
    from loadmaster.files.plan import plan_from_json as plan_from_json
    from loadmaster.files.plan import plan_to_json as plan_to_json

_HOMES = {
    "cluster": ("cluster_from_json", "cluster_to_json"),
    "documents": (
        "load_cluster",
        "load_graph",
        "load_graphs",
        "load_plan",
        "load_plan_file",
        "load_records",
        "save_addresses",
        "save_cluster",
        "save_graph",
        "save_graphs",
        "save_plan",
    ),
    "graph": ("graph_from_json", "graph_to_json"),
    "plan": ("PlanFile", "plan_from_json", "plan_to_json"),
}
_HOME = {name: module for module, names in _HOMES.items() for name in names}

__all__ = [*_HOME]


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module 'loadmaster.files' has no attribute '{name}'")
    value = getattr(import_module(f"loadmaster.files.{_HOME[name]}"), name)
    globals()[name] = value
    return value
