"""Untying: a copy of a shared weight for every module that reads it, as runtimes have it whose stages share nothing.

vLLM, Megatron and torch's pipelining keep the table of words with the first stage and a tied head with the last;
llama.cpp keeps the table on the host and a copy with the head. A plan for them has to have room for both.
"""

from __future__ import annotations

from loadmaster.graph import WEIGHT, Graph, GraphBuilder


def untied(graph: Graph) -> Graph:
    """The same graph; each module but the first that reads a weight of another reads its own."""
    first: dict[int, str] = {}
    copied: dict[tuple[int, str], str] = {}
    for op in range(graph.num_ops):
        for tensor in graph.reads_of(op):
            owner = int(graph.owner[tensor])
            if graph.role[owner] == WEIGHT and graph.nbytes[owner]:
                scope = first.setdefault(owner, graph.scope[op])
                if scope != graph.scope[op]:
                    copied.setdefault((owner, graph.scope[op]), f"{graph.tensor_name[owner]}@{graph.scope[op]}")
    return _rewritten(graph, copied) if copied else graph


def _rewritten(graph: Graph, copied: dict[tuple[int, str], str]) -> Graph:
    builder = GraphBuilder(graph.name)
    builder.captured = graph.captured
    makers = [graph.scope[int(op)] if op >= 0 else "" for op in graph.producer]
    own: dict[tuple[int, str], int] = {}
    for (tensor, scope), name in copied.items():
        own[tensor, scope] = builder.copy_tensor(graph, tensor, None, name=name)
    new: list[int] = []
    for tensor in range(graph.num_tensors):
        alias = int(graph.alias_of[tensor])
        memory = None if alias < 0 else own.get((int(graph.owner[tensor]), makers[tensor]), new[alias])
        new.append(builder.copy_tensor(graph, tensor, memory))
    for op in range(graph.num_ops):
        reads = [own.get((int(t), graph.scope[op]), new[int(t)]) for t in graph.reads_of(op)]
        makes = [new[int(t)] for t in graph.makes_of(op)]
        after = [graph.op_name[before] for before in graph.after_of(op)]
        builder.copy_op(graph, op, reads, makes, after=after)
    return builder.build()
