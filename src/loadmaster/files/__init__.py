"""The one JSON format: graphs, clusters, plans, addresses.

A file begins with its schema and its number; docs/formats.md shows every field. Readers take plain, .gz and .xz, check
what they read as they read it, and name the place of what is wrong; writers give the same bytes for the same data, and
never leave half a file (`writing`).

Names here are imported when they are first used.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from loadmaster.deferred import deferred

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
    "PlanFile": "plan",
    "cluster_from_json": "cluster",
    "cluster_to_json": "cluster",
    "graph_from_json": "graph",
    "graph_to_json": "graph",
    "load_cluster": "documents",
    "load_graph": "documents",
    "load_graphs": "documents",
    "load_plan": "documents",
    "load_plan_file": "documents",
    "load_records": "documents",
    "plan_from_json": "plan",
    "plan_to_json": "plan",
    "save_addresses": "documents",
    "save_cluster": "documents",
    "save_graph": "documents",
    "save_graphs": "documents",
    "save_plan": "documents",
}

__all__ = [
    "PlanFile",
    "cluster_from_json",
    "cluster_to_json",
    "graph_from_json",
    "graph_to_json",
    "load_cluster",
    "load_graph",
    "load_graphs",
    "load_plan",
    "load_plan_file",
    "load_records",
    "plan_from_json",
    "plan_to_json",
    "save_addresses",
    "save_cluster",
    "save_graph",
    "save_graphs",
    "save_plan",
]

__getattr__ = deferred(__name__, _HOMES)
