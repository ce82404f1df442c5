"""Writes afresh what becomes of problems to which ops are added: python -m tests.golden.added [SCENE ...]

Additions that are as they should be, and the same with one number changed, most of which are refused: of each the graph
that comes of it, or what is said.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from dataclasses import fields, replace
from functools import partial
from pathlib import Path

import numpy as np

from loadmaster import Budget, GraphBuilder, price
from loadmaster.errors import LoadmasterError
from loadmaster.graph.columns import ints
from loadmaster.plans import Plan, additions
from loadmaster.plans.additions import Additions, updated_by
from loadmaster.plans.expansion import expand
from loadmaster.plans.plan import without_additions
from loadmaster.problem import Problem
from loadmaster.search import solve
from tests.golden.passes import problem_told
from tests.golden.plans import ALL
from tests.golden.scenes import Scenes, Told, checksum, exact

scene = Scenes(Path(__file__).with_suffix(".json"))


def normed() -> Problem:
    """A batch norm whose statistics are updated, weights that are updated once, twice and by an op that does not read
    them, a view of one, and tensors that are written over."""
    build = GraphBuilder("normed")
    x = build.tensor(300, "input")
    weights = [build.tensor(100 + at, "weight") for at in range(4)]
    mean, made = build.tensor(4, "state"), list[int]()
    new, out, kept = build.tensor(4, "state", alias_of=mean), build.tensor(90), build.tensor(4)
    build.op("norm", "aten.native_batch_norm.default", [x, mean], [new, out, kept], time_ns=[9, 5])
    for at, weight in enumerate(weights):
        made.append(build.tensor(60 + at))
        build.op(f"use{at}", "aten.mm.default", [out if at < 2 else made[at - 2], weight], [made[at]], time_ns=[20, 30])
    over = build.tensor(62, alias_of=made[2])
    build.op("over", "aten.relu_.default", [made[2]], [over], time_ns=[3, 3], after=["use3"])
    build.op("join", "aten.add.Tensor", [over, made[3], kept], [last := build.tensor(40)], time_ns=[7, 7])
    for at, reads in ((0, [weights[0], last]), (1, [weights[1], last]), (2, [last])):
        changed = build.tensor(100 + at, "weight", alias_of=weights[at])
        build.op(f"update{at}", "optim.sgd", reads, [changed], time_ns=[4, 4], after=[f"use{at}"])
        if at == 1:
            again = build.tensor(101, "weight", alias_of=changed)
            build.op("update again", "optim.sgd", [changed, last], [again], time_ns=[4, 4])
    build.op("out", "any", [last, made[0]], [build.tensor(8, "output")], time_ns=[2, 2])
    return price(build.build(), "2xp100-pcie", memory_limit=700)


def simple(problem: Problem) -> Iterator[Additions]:
    """Every op again for each of its readers, every tensor that may be on a stay for each: those that are refused,
    too."""
    graph = problem.graph
    for tensor in range(graph.num_tensors):
        for reader in graph.readers_of(tensor).tolist()[:2]:
            rows = [(int(graph.producer[tensor]), -1), (-1, tensor)]
            for op, stay in rows if graph.producer[tensor] >= 0 else rows[1:]:
                yield Additions(*(ints([each]) for each in (op, stay, -1, reader, tensor, 0)))


def away(problem: Problem) -> Additions:
    """A weight that is updated once lives elsewhere, and comes home."""
    graph, updates = problem.graph, updated_by(problem.graph)
    root = next(t for t in range(graph.num_tensors) if updates[t] >= 0 and graph.producer[t] < 0)
    update = int(updates[root])
    readers = graph.readers_of(root).tolist()
    source = [1 if reader == graph.producer[update] else 0 for reader in readers]
    columns = ([-1] * 3, [root, root, update], [-1, readers[0], -1], readers, [root] * len(readers), source)
    return Additions(*map(ints, columns))


def altered(given: Additions, problem: Problem) -> Iterator[tuple[str, Additions]]:
    """With one number changed, a row left out, or a row twice."""
    graph = problem.graph
    numbers = {-2, -1, 0, 1, graph.num_ops - 1, graph.num_ops, graph.num_tensors - 1, graph.num_tensors}
    for field in fields(Additions):
        column = getattr(given, field.name)
        for at in range(min(len(column), 4)):
            for value in sorted({*numbers, int(column[at]) - 1, int(column[at]) + 1, len(given)} - {int(column[at])}):
                other = column.copy()
                other[at] = value
                yield f"{field.name} {at} {value}", replace(given, **{field.name: ints(other)})
    own, redirected = ("op", "tensor", "after"), ("reader", "read", "source")
    for names in (own, redirected):
        columns = {name: getattr(given, name) for name in names}
        yield f"less {names[0]}", replace(given, **{name: ints(part[:-1]) for name, part in columns.items()})
        more = {name: ints(np.append(part, part[-1:])) for name, part in columns.items()}
        yield f"more {names[0]}", replace(given, **more)
    yield "one less", replace(given, after=ints(given.after[:-1]))
    yield "one read less", replace(given, read=ints(given.read[:-1]))


def told(problem: Problem, added: Additions) -> float:
    try:
        whole = expand(problem, added)
    except LoadmasterError as error:
        return checksum(str(error))
    if whole.expansion is None:
        return -1.0
    rows = problem_told("", whole)
    parts = [rows[name] for name in sorted(rows)] + [exact(whole.expansion.place), whole.graph.op_name]
    return checksum(parts)


def expanded(name: str) -> Told:
    problem = normed() if name == "normed" else ALL[name]()
    found: Told = {"one each": [told(problem, added) for added in simple(problem)]}
    graph = problem.graph
    masks = (additions.repeatable(graph), additions.may_stay(graph), additions.may_live_elsewhere(graph))
    found["masks"] = [exact(each)[-1] for each in (*masks, updated_by(graph), additions.statistics(graph))]
    some = {}
    if name != "normed":
        result = solve(problem, "recompute", Budget(None, 30), seed=2)
        if result.plan.added is not None:
            some["recompute"] = result.plan.added
            bare = without_additions(problem, result.plan)
            found["bare"] = [checksum((bare.device.tolist(), bare.rank.tolist(), bare.kernel.tolist()))]
    if (updated_by(graph)[graph.producer < 0] >= 0).any():
        some["away"] = away(problem)
    for kind, given in some.items():
        found[kind] = [told(problem, given), *(told(problem, other) for _, other in altered(given, problem))]
        whole = expand(problem, given)
        plan = Plan.of(whole, whole.able.argmax(1)[whole.leader])
        found[f"{kind} plan"] = [checksum(repr(plan)), float(plan.added is given), checksum(repr(given))]
    return found


scene.made |= {name: partial(expanded, name) for name in ("normed", "tight", "hosted", "zero")}


if __name__ == "__main__":
    scene.write(sys.argv[1:])
