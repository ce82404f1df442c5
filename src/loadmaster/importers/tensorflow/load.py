"""Files of TensorFlow: which of its messages one holds is found by looking."""

from __future__ import annotations

from collections.abc import Mapping

from loadmaster.errors import UnreadableFile
from loadmaster.files.text import PathLike
from loadmaster.graph import Graph
from loadmaster.importers.reading import read_bytes, read_text, stem_of, uncollected
from loadmaster.importers.tensorflow.costs import cost_graph, is_cost_graph
from loadmaster.importers.tensorflow.graph import graph_of
from loadmaster.importers.tensorflow.nodes import from_bytes, from_text
from loadmaster.importers.tensorflow.textproto import parse_textproto


def load_graph_def(path: PathLike, *, sizes: Mapping[str, int] | None = None, name: str = "") -> Graph:
    """The graph of a binary GraphDef; `sizes` are those of axes that it leaves open."""
    with uncollected():
        return graph_of(from_bytes(read_bytes(path), str(path)), name or stem_of(path), sizes or {})


def load_textproto(path: PathLike, *, sizes: Mapping[str, int] | None = None, name: str = "") -> Graph:
    """The graph of a GraphDef or a CostGraphDef written as text."""
    with uncollected():
        fields = parse_textproto(read_text(path), str(path))
        if "node" not in fields:
            raise UnreadableFile("there is no node in it", str(path), "give a GraphDef or a CostGraphDef as text")
        if is_cost_graph(fields):
            return cost_graph(fields, name or stem_of(path))
        return graph_of(from_text(fields), name or stem_of(path), sizes or {})
