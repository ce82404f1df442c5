"""Stand-ins for the scheduler nodes of PyTorch Inductor, so that its order functions run on any graph.

Written for torch 2.13: `torch._inductor.memory` is private to torch and may change with any release.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

from loadmaster.problem import Problem


@dataclass(eq=False)
class _Storage:
    """What Inductor asks of a buffer's node: a layout of no special kind, elements and their type."""

    nbytes: int
    dtype: Any
    layout: object = None

    def get_numel(self) -> int:
        return self.nbytes

    def get_dtype(self) -> Any:
        return self.dtype


@dataclass(eq=False)
class _Buffer:
    name: str
    node: _Storage
    users: tuple[Any, ...] = ()
    defining_op: Any = None
    mpi_buffer: Any = None

    def get_name(self) -> str:
        return self.name


@dataclass(eq=False)
class _Node:
    op: int
    outputs: list[_Buffer]
    unmet_dependencies: list[Any]
    read_writes: Any = field(default_factory=lambda: SimpleNamespace(reads=()))
    mpi_node: Any = None

    def get_name(self) -> str:
        return f"op{self.op}"

    def get_outputs(self) -> list[_Buffer]:
        return self.outputs

    def get_buffer_names(self) -> list[str]:
        return [buffer.name for buffer in self.outputs]


@dataclass(eq=False)
class _Stage:
    nodes: list[_Node]
    buffers: dict[str, _Buffer]
    outputs: Any  # names of buffers that live to the end
    handler: Any  # what Inductor sees as the graph being compiled


def order(problem: Problem, rule: str, memory: Any, virtual: Any) -> list[int]:
    """Ops in the order that Inductor's rule gives."""
    stage = _stage(problem, memory)
    parts: tuple[Any, ...] = (stage.nodes, stage.buffers, {}, memory.OrderedSet(), stage.outputs)
    with virtual.V.set_graph_handler(stage.handler):
        if rule == "best":
            return [node.op for node in memory.reorder_for_peak_memory(*parts)]
        _, inputs = memory.prepare_planning_info(*parts)
        if rule == "lpmf":
            found = memory.topological_sort_lpmf(stage.nodes, inputs, stage.buffers, stage.outputs)
        else:
            found = getattr(memory, f"topological_sort_{rule}")(stage.nodes)
    return [node.op for node in found]


def _stage(problem: Problem, memory: Any) -> _Stage:
    graph, byte = problem.graph, memory.torch.uint8
    real: dict[str, str] = {}  # a tensor written in place -> the one it overwrites, if the step made that one
    buffers: dict[str, _Buffer] = {}
    nodes = []
    for op in range(problem.num_ops):
        made = []
        for tensor in graph.makes_of(op).tolist():
            under = int(graph.alias_of[tensor])
            own = under < 0
            made.append(_Buffer(f"t{tensor}", _Storage(int(graph.nbytes[tensor]) if own else 0, byte)))
            if not own and graph.is_made[under]:
                real[f"t{tensor}"] = f"t{under}"
        made.append(_Buffer(f"end{op}", _Storage(0, byte)))  # for ops that wait for this one without reading
        buffers |= {buffer.name: buffer for buffer in made}
        nodes.append(_Node(op, made, _dependencies(problem, op, memory)))
    stays = memory.OrderedSet(f"t{tensor}" for tensor in problem.stays.nonzero()[0].tolist())
    hints = dict.fromkeys(("optimization_hint", "size_hint"), lambda size, fallback=0: size)  # by torch's version
    sizes = SimpleNamespace(**hints)
    handler = SimpleNamespace(scheduler=SimpleNamespace(mutation_real_name=real), sizevars=sizes)
    return _Stage(nodes, buffers, stays, handler)


def _dependencies(problem: Problem, op: int, memory: Any) -> list[Any]:
    graph = problem.graph
    read = [t for t in graph.reads_of(op).tolist() if graph.is_made[t]]
    waits = [SimpleNamespace(name=f"t{tensor}") for tensor in read]
    earlier = (SimpleNamespace(name=f"end{before}") for before in graph.after_of(op).tolist())
    return [*waits, *earlier]
