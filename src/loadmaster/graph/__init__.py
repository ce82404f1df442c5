"""Graph: a computation as flat columns; the builder, folding of views, kinds of ops.

The first type of the path. Importers fill a `GraphBuilder` (`builder`), which checks what it is given (`given`) and
makes a `Graph` (`graph`). `folding` takes views out before anything is priced, `kinds` says what sort of work an op is
and how a compiler fuses it, `modules` groups ops by the module that issues them, `order` has the compiled walks over
dependencies, and `columns` the read-only arrays that every type from here on is made of. Nothing here knows a device:
`cost.price` joins a graph with a `Cluster`.
"""

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
