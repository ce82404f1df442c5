"""The one JSON format: graphs, clusters, plans, addresses.

A file begins with its schema and its number; docs/formats.md shows every field. Readers take plain, .gz and .xz, check
what they read as they read it, and name the place of what is wrong; writers give the same bytes for the same data, and
never leave half a file (`writing`).
"""

from loadmaster.files.cluster import cluster_from_json, cluster_to_json
from loadmaster.files.documents import (
    load_cluster,
    load_graph,
    load_graphs,
    load_plan,
    load_plan_file,
    load_records,
    save_addresses,
    save_cluster,
    save_graph,
    save_graphs,
    save_plan,
)
from loadmaster.files.graph import graph_from_json, graph_to_json
from loadmaster.files.plan import PlanFile, plan_from_json, plan_to_json

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
