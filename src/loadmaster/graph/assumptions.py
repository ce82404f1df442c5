"""What an importer did not know of a graph: ops whose sizes or arithmetic are taken from what is likely."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from loadmaster.errors import ImportFailed
from loadmaster.graph.graph import WEIGHT, Graph

MOST_ASSUMED = 0.1  # of a graph's arithmetic, traffic or weights; above it a plan rests on a guess
_MOST_NAMED = 3


@dataclass(frozen=True)
class Assumptions:
    """Of a graph of which not all is known.

    Attributes:
        share: of the arithmetic, of the bytes moved, or of the bytes of weights, which such ops read: the largest.
        of: which it is, "work" or "weights".
        ops: how many.
        kinds: of these ops, the most frequent first.
        of_sizes: ops whose sizes are assumed too; no bound holds over these.
    """

    share: float
    of: str
    ops: int
    kinds: tuple[str, ...]
    of_sizes: int

    def __str__(self) -> str:
        named = ", ".join(self.kinds[:_MOST_NAMED]) + (", …" if len(self.kinds) > _MOST_NAMED else "")
        ops = f"{self.ops} op{'s' if self.ops > 1 else ''} ({named})"
        sizes = f", {self.of_sizes} of unknown size" if self.of_sizes else ""
        return f"up to {100 * self.share:.{0 if self.share > 0.1 else 1}f} % of the {self.of} is assumed: {ops}{sizes}"


def assumptions_of(graph: Graph) -> Assumptions | None:
    """None where all is known."""
    if not graph.assumed:
        return None
    ops = [op for op, name in enumerate(graph.op_name) if name in graph.assumed]
    shares = [float(column[ops].sum() / max(1, column.sum())) for column in (graph.flops, graph.bytes_moved)]
    weights = np.where((graph.role == WEIGHT) & (graph.alias_of < 0), graph.nbytes, 0)
    read = np.unique(graph.owner[np.concatenate([graph.reads_of(op) for op in ops])])
    of_weights = float(weights[read].sum() / max(1, weights.sum()))
    share, of = max((max(shares), "work"), (of_weights, "weights"))
    kinds, counts = np.unique([graph.kind[op] for op in ops], return_counts=True)
    frequent = tuple(str(kinds[place]) for place in np.argsort(-counts, kind="stable"))
    return Assumptions(share, of, len(ops), frequent, sum(word == "sizes" for word in graph.assumed.values()))


def refuse_guesses(graph: Graph, where: str) -> Graph:
    """The graph, unless so much of it is assumed that a plan would rest on a guess."""
    found = assumptions_of(graph)
    if found is not None and found.share > MOST_ASSUMED:
        fix = (
            "say more: sizes or values behind '#', lm.cost_of for an op of your own; "
            "or accept the guess: --assume, or assume=True in Python"
        )
        raise ImportFailed(str(found), where, fix)
    return graph
