"""Graph: a computation as flat columns; the builder, folding of views, kinds of ops."""

from loadmaster.graph.builder import GraphBuilder
from loadmaster.graph.graph import (
    ACTIVATION,
    INPUT,
    MOST_BYTES,
    MOST_NS,
    MOST_TOTAL,
    NOWHERE,
    OUTPUT,
    PIPELINE,
    ROLES,
    STATE,
    UNGIVEN,
    WEIGHT,
    Graph,
)

__all__ = [
    "ACTIVATION",
    "INPUT",
    "MOST_BYTES",
    "MOST_NS",
    "MOST_TOTAL",
    "NOWHERE",
    "OUTPUT",
    "PIPELINE",
    "ROLES",
    "STATE",
    "UNGIVEN",
    "WEIGHT",
    "Graph",
    "GraphBuilder",
]
