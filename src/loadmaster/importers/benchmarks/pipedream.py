"""PipeDream's profiles: a graph.txt of layers with their measured times, and the layers that feed each other.

The format of Narayanan et al., "PipeDream: Generalized Pipeline Parallelism for DNN Training" (SOSP 2019): lines
`id -- description -- forward_compute_time=…, backward_compute_time=…, activation_size=…, parameter_size=…` with times
in milliseconds and sizes in bytes, and indented lines `id -- id`. Each layer becomes a forward op and, beside it, a
backward op, which sends a gradient as large as the activation to each layer it read from. Layers called Input… that
read nothing are inputs, there on every device that reads them.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from loadmaster.errors import InvalidGraph
from loadmaster.files.text import PathLike, read_lines
from loadmaster.graph import Graph, GraphBuilder

NS_PER_MS = 10**6
FACTS = ("forward_compute_time", "backward_compute_time", "activation_size", "parameter_size")
FIX = "write 'id -- what it is -- " + ", ".join(f"{fact}=NUMBER" for fact in FACTS) + "', or, indented, 'id -- id'"


@dataclass
class _ProfiledLayer:
    text: str
    forward_ns: int
    backward_ns: int
    activation_bytes: int
    parameter_bytes: int
    reads: list[str] = field(default_factory=list)

    @property
    def is_input(self) -> bool:
        """What PipeDream's planner leaves out: the batch, whatever the profiler measured while it was loaded."""
        return not self.reads and self.text.startswith("Input")

    def layers_read(self, layers: Mapping[str, object]) -> list[str]:
        return [read for read in self.reads if read in layers]


def load_pipedream(path: PathLike) -> Graph:
    """A training step of the profiled layers, with one time for whatever device."""
    name = Path(path).parent.name or Path(path).stem
    layers = _layers(path)
    graph = GraphBuilder(name)
    roles = {layer: "input" if facts.is_input else "activation" for layer, facts in layers.items()}
    made = {
        layer: graph.tensor(facts.activation_bytes, roles[layer], name=f"{layer}:out")
        for layer, facts in layers.items()
    }
    layers = {layer: facts for layer, facts in layers.items() if not facts.is_input}
    if not layers:
        raise InvalidGraph("there are inputs alone", str(path), "give layers that read them")
    readers: dict[str, list[str]] = {layer: [] for layer in layers}
    for layer, facts in layers.items():
        for read in facts.layers_read(layers):
            readers[read].append(layer)
    gradient = {
        (layer, read): graph.tensor(layers[read].activation_bytes, name=f"{layer}:grad of {read}")
        for layer, facts in layers.items()
        for read in facts.layers_read(layers)
    }
    for layer, facts in layers.items():
        inputs = [made[read] for read in facts.reads]
        weight = (
            [graph.tensor(facts.parameter_bytes, "weight", name=f"{layer}:weight")] if facts.parameter_bytes else []
        )
        graph.op(
            layer,
            "forward",
            [*inputs, *weight],
            [made[layer]],
            time_ns=facts.forward_ns,
            scope=facts.text,
            colocate=layer,
        )
        graph.op(
            f"{layer} backward",
            "backward",
            [*(gradient[reader, layer] for reader in readers[layer]), *inputs, *weight],
            [gradient[layer, read] for read in facts.layers_read(layers)],
            time_ns=facts.backward_ns,
            after=[layer],
            scope=facts.text,
            colocate=layer,
        )
    return graph.build()


def _layers(path: PathLike) -> dict[str, _ProfiledLayer]:
    layers: dict[str, _ProfiledLayer] = {}
    edges: list[tuple[str, str, str]] = []
    for number, raw in enumerate(read_lines(path), 1):
        where = f"{Path(path).name}: line {number}"
        try:
            text = raw.decode()
        except UnicodeDecodeError:
            raise InvalidGraph("the line is no text", where, FIX) from None
        parts = [part.strip() for part in text.split(" -- ")]
        if not text.strip():
            continue
        if text[0].isspace():
            if len(parts) != 2:
                raise InvalidGraph(f"'{text.strip()[:60]}' joins no two layers", where, FIX)
            edges.append((parts[0], parts[1], where))
        elif len(parts) < 3:
            raise InvalidGraph(f"'{text.strip()[:60]}' is no layer", where, FIX)
        elif parts[0] in layers:
            raise InvalidGraph(f"there are two layers '{parts[0]}'", where, "give each its own id")
        else:
            layers[parts[0]] = _layer(" -- ".join(parts[1:-1]) if "=" in parts[-1] else parts[1], parts, where)
    if not layers:
        raise InvalidGraph("there are no layers", str(path), FIX)
    for source, target, where in edges:
        for end in (source, target):
            if end not in layers:
                raise InvalidGraph(f"there is no layer '{end}'", where, "name layers by their id")
        if source not in layers[target].reads:
            layers[target].reads.append(source)
    return layers


def _layer(text: str, parts: list[str], where: str) -> _ProfiledLayer:
    given = next((part for part in parts[2:] if FACTS[0] in part), "")
    forward, backward, activation, parameter = (_number(given, fact, where) for fact in FACTS)
    return _ProfiledLayer(
        text, round(forward * NS_PER_MS), round(backward * NS_PER_MS), round(activation), round(parameter)
    )


def _number(given: str, fact: str, where: str) -> float:
    """The number after the name; a list in brackets is added up."""
    match = re.search(rf"{fact}=(\[[^\]]*\]|[^,\s]+)", given)
    if match is None:
        raise InvalidGraph(f"'{fact}' is missing", where, FIX)
    try:
        values = [float(value) for value in match[1].strip("[]").split(";") if value.strip()]
    except ValueError:
        raise InvalidGraph(f"'{fact}' is {match[1][:40]}", where, "give a number, or [NUMBER; NUMBER]") from None
    if not all(0 <= value < 1e18 for value in values):
        raise InvalidGraph(f"'{fact}' is {match[1][:40]}", where, "give a number of at least 0")
    return sum(values)
