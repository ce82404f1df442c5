"""Plans op by op as plans of modules, where no module is split: what runtimes that place modules take of them.

A plan whose modules are whole says the same in fewer words: layers, and the largest modules beside them. One that
splits a module is refused, with the module and how to plan for such a runtime.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import cached_property

import numpy as np

from loadmaster.errors import InvalidPlan
from loadmaster.graph import STATE, WEIGHT
from loadmaster.plans import Plan
from loadmaster.problem import Problem
from loadmaster.serving.exports import ModulePlan, ModuleRow

SHOWN = 3  # of the modules that are split


def modules_of(problem: Problem, plan: Plan, runtime: str = "device-map") -> ModulePlan:
    """Layers, and the largest modules beside them that are whole; refuses a plan that splits a module, and says which
    and how to plan for the runtime."""
    tree = _Tree(problem, plan)
    rows = [*tree.parameters("", tree.loose), *(row for name in tree.children("") for row in tree.rows(name))]
    if not rows and not tree.split:
        what = f"'{problem.source.name}' does not say which module an op belongs to"
        raise InvalidPlan(what, "export", "give the model as package.module:callable")
    if tree.split:
        shown = "; ".join(f"'{name}' on {', '.join(tree.names(name))}" for name in tree.split[:SHOWN])
        more = f" and {len(tree.split) - SHOWN} more" if len(tree.split) > SHOWN else ""
        what = f"{len(tree.split)} modules are split over devices: {shown}{more}"
        raise InvalidPlan(what, problem.source.name, f"plan again with --for {runtime}: it keeps modules whole")
    cluster = problem.cluster
    kinds = tuple(device.kind for device in cluster.devices)
    return ModulePlan(
        problem.source.name, cluster.device_names, kinds, tuple(cluster.memory_bytes.tolist()), tuple(rows)
    )


class _Tree:
    """Modules by path, with the ops under each."""

    def __init__(self, problem: Problem, plan: Plan) -> None:
        self.problem, self.plan = problem, plan
        self.split: list[str] = []

    @cached_property
    def under(self) -> dict[str, list[int]]:
        """Ops of a module and of all inside it, in the order of the program."""
        found: dict[str, list[int]] = {}
        for op, scope in enumerate(self.problem.graph.scope):
            parts = scope.split(".") if scope else []
            for length in range(1, len(parts) + 1):
                found.setdefault(".".join(parts[:length]), []).append(op)
        return found

    @cached_property
    def loose(self) -> list[int]:
        """Ops of the model itself, outside all its modules."""
        return [op for op, scope in enumerate(self.problem.graph.scope) if not scope]

    def children(self, path: str) -> list[str]:
        depth = path.count(".") + 1 if path else 0
        inside = f"{path}." if path else ""
        return [name for name in self.under if name.startswith(inside) and name.count(".") == depth]

    def devices(self, path: str) -> set[int]:
        return set(self.plan.device[self.under[path]].tolist())

    def names(self, path: str) -> list[str]:
        return [self.problem.cluster.device_names[device] for device in sorted(self.devices(path))]

    def rows(self, path: str) -> Iterator[ModuleRow]:
        """The module in one row where it is whole; else its parts, and the parameters it has itself."""
        inside = self.children(path)
        if len(self.devices(path)) == 1 and not self._has_layers(path):
            yield self._row(path, self.under[path])
        elif not inside:
            self.split.append(path)
        else:
            own = [op for op in self.under[path] if self.problem.graph.scope[op] == path]
            yield from self.parameters(path, own)
            for name in inside:
                yield from self.rows(name)

    def _has_layers(self, path: str) -> bool:
        """Whether a list of layers is inside, each of which gets a row."""
        if any(part.isdecimal() for part in path.split(".")):
            return False
        inside = f"{path}."
        return any(name.startswith(inside) and name.rpartition(".")[2].isdecimal() for name in self.under)

    def parameters(self, path: str, own: list[int]) -> Iterator[ModuleRow]:
        """Weights that a module reads itself, by name: maps of devices take those too."""
        graph = self.problem.graph
        weights = dict.fromkeys(int(t) for op in own for t in graph.reads_of(op) if graph.role[t] == WEIGHT)
        for weight in weights:
            name = graph.tensor_name[weight]
            readers = [op for op in own if weight in graph.reads_of(op)]
            if len(set(self.plan.device[readers].tolist())) > 1:
                self.split.append(path)
            elif name.rpartition(".")[0] == path:
                yield self._row(name, readers)

    def _row(self, name: str, ops: list[int]) -> ModuleRow:
        problem, graph = self.problem, self.problem.graph
        device = int(self.plan.device[ops[0]])
        read = np.unique(np.concatenate([graph.reads_of(op) for op in ops]))
        kept = read[(graph.role[read] == WEIGHT) | (graph.role[read] == STATE)]
        kept = kept[~graph.is_made[kept]]
        where = problem.cluster.device_names[device]
        time_ns = int(problem.op_ns[ops, device].sum())
        return ModuleRow(name, where, where, int(graph.nbytes[kept].sum()), time_ns)
