"""Writes afresh what passes make of problems and graphs: python -m tests.golden.passes [SCENE ...]

Of each graph or problem that comes out a few sums of its columns are kept, as in `tests.golden.inputs`; of what is no
number, a checksum of its words. Models of the zoo are taken as they are shipped, so that no version of torch matters.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from dataclasses import replace
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np

from loadmaster.cluster import Cluster, Link
from loadmaster.cost import price
from loadmaster.errors import LoadmasterError
from loadmaster.graph import UNGIVEN, Graph
from loadmaster.graph.columns import ints
from loadmaster.passes import coarsen, fuse
from loadmaster.passes.blocks import blocks
from loadmaster.passes.chaining import chain_small_ops, together_ns
from loadmaster.passes.groups import GROUPERS, chain_groups, group_ops, grouping, scope_groups, weight_groups
from loadmaster.passes.joining import join_edges, join_in_a_row, join_neighbours
from loadmaster.passes.microbatches import Replicas, repeated
from loadmaster.passes.splitting import Split, axes_of, sharded_graph, split_graph
from loadmaster.passes.splitting.sharded import least_ns
from loadmaster.passes.splitting.sharding import WAYS, Share, more_axes, reshaped, shard
from loadmaster.passes.splitting.tensor_parallel import tensor_parallel
from loadmaster.passes.stages import in_stages, phases_of, settle_stages, weight_ops
from loadmaster.passes.windows import window
from loadmaster.plans import Plan
from loadmaster.problem import Problem
from loadmaster.simulator import simulate
from loadmaster.zoo.shelf import load_zoo
from tests.golden.inputs import lopsided, sums_of
from tests.golden.plans import PROBLEMS, held, layers, zero
from tests.golden.scenes import Scenes, Told, checksum
from tests.golden.shapes import drawn_step
from tests.unit.passes.splitting.test_axes import SHAPES, Shape, one_op

scene = Scenes(Path(__file__).with_suffix(".json"))
SOME = PROBLEMS | {"zero": zero, "held": held, "lopsided": lopsided}


def graph_told(name: str, graph: Graph) -> Told:
    columns = (graph.read_start, graph.reads, graph.producer, graph.nbytes, graph.flops, graph.bytes_moved)
    columns = (*columns, graph.role, graph.alias_of, graph.after_start, graph.after, graph.colocate, graph.time_ns)
    sums = [sums_of(np.asarray(column))[-2] for column in (*columns, graph.workspace_bytes)]
    return {name: [float(graph.num_ops), float(graph.num_tensors), *sums, checksum((graph.kind, graph.shape))]}


def problem_told(name: str, problem: Problem) -> Told:
    columns = (problem.op_ns, problem.send_ns, problem.memory_bytes, problem.resident)
    return {f"{name} ns": [sums_of(np.asarray(each))[-2] for each in columns], **graph_told(name, problem.graph)}


@scene
def axes_of_the_zoo() -> Told:
    """Of every op of six models, by kind."""
    found: Told = {}
    for name in ("transformer-xl-2", "vit-base", "unet-ddpm", "t5-base", "gpt2", "inception-v3-b32"):
        graph, by_kind = load_zoo(name), dict[str, list[Any]]()
        for op in range(graph.num_ops):
            by_kind.setdefault(graph.kind[op], []).append(axes_of(graph, op))
        found |= {f"{name} {kind}": [float(len(all_of)), checksum(all_of)] for kind, all_of in by_kind.items()}
    return found


@scene
def axes_of_altered_shapes() -> Told:
    """Of ops whose axes are known, with a shape more or less, or one that is longer, shorter or wider: what is refused
    and what is not."""
    found: Told = {}
    for kind, (reads, makes, _) in SHAPES.items():
        altered = {what: axes_of(one_op(f"aten.{kind}", *shapes), 0) for what, *shapes in alterations(reads, makes)}
        found[kind] = [float(sum(map(len, altered.values()))), *(checksum(axes) for axes in altered.values())]
    return found


def alterations(reads: list[Shape], makes: list[Shape]) -> Iterator[tuple[str, list[Shape], list[Shape]]]:
    """(what is done, reads, makes)"""
    yield "one read less", reads[:-1], makes
    yield "one read more", [*reads, reads[-1]], makes
    yield "no read", [], makes
    yield "one make less", reads, makes[:-1]
    yield "one make more", reads, [*makes, makes[-1]]
    for at, shape in enumerate((*reads, *makes)):
        first, last = (1, *shape[1:])[: len(shape)], (*shape[:-1], 1)[: len(shape)]
        others = (
            (*shape, 7),
            shape[1:],
            (13, *shape[1:]),
            (*shape[:-1], 13),
            first,
            last,
            (*shape[:1], 13, *shape[2:]),
        )
        for number, other in enumerate(others):
            some = [*reads, *makes]
            some[at] = other
            yield f"{at} {number}", some[: len(reads)], some[len(reads) :]


@scene
def shares_of_the_zoo() -> Told:
    """A model on shares of all devices, by samples and by features."""
    found: Told = {}
    for name, on in (("transformer-xl-2", "2xa100-nvlink"), ("gpt2", "4xa100-nvlink"), ("vit-base", "2xp100-pcie")):
        graph, cluster = load_zoo(name), Cluster.preset(on)
        for way in WAYS:
            made = sharded_graph(graph, cluster, way)
            found[f"{name} {way} least"] = [float(least_ns(price(graph, cluster), way))]
            if made is not None:
                found |= graph_told(f"{name} {way}", made.graph)
                found[f"{name} {way} devices"] = [checksum(sorted(made.device.items()))]
    for way in WAYS:
        made = sharded_graph(layers(2, 3, 2, given=2, training=True), Cluster.preset("2xp100-pcie"), way)
        found |= {f"given {way}": [-1.0]} if made is None else graph_told(f"given {way}", made.graph)
    return found


@scene
def shares_of_drawn_steps() -> Told:
    """What each device has of every tensor, by samples and by features, and the graph that comes of it."""
    found: Told = {}
    for seed in range(16):
        graph = drawn_step(seed)
        for way, ways in product(WAYS, (2, 3, 4)):
            made = shard(graph, ways, way)
            told = (sorted(made.layout.items()), sorted(made.wanted.items()), sorted(made.stored.items()))
            found[f"{seed} {way} {ways}"] = [checksum(each) for each in told]
        axes = [axes_of(graph, op) for op in range(graph.num_ops)]
        more = [tuple(more_axes(graph, op)) for op in range(graph.num_ops)]
        found[f"{seed} axes"] = [float(graph.num_ops), checksum(axes), checksum(more)]
        for way, on in (("features", "2xa100-nvlink"), ("samples", "4xa100-nvlink")):
            apart = price(graph, "2xa100-nvlink+2xp100-pcie")
            found[f"{seed} {way} least"] = [float(least_ns(apart, way))]  # type: ignore[arg-type]
            whole = sharded_graph(graph, Cluster.preset(on), way)  # type: ignore[arg-type]
            found |= {f"{seed} {way}": [-1.0]} if whole is None else graph_told(f"{seed} {way}", whole.graph)
    for given, made in (
        ((6, 8), (6, 2, 4)),
        ((6, 2, 4), (6, 8)),
        ((12, 4), (3, 4, 4)),
        ((24,), (2, 3, 4)),
        ((4, 6), (24,)),
    ):
        shares = [Share(dim, blocks) for dim in range(len(given)) for blocks in (1, 2, 3)]
        told_of = [reshaped(given, made, share, ways) for share in shares for ways in (2, 3, 4)]
        found[f"{given} as {made}"] = [checksum(told_of)]
    return found


@scene
def parts_of_drawn_steps() -> Told:
    """Every op of them that can be, in two parts along each of its axes, alone and with ops around it."""
    found: Told = {}
    for seed in (0, 1, 2, 4, 7):
        graph = drawn_step(seed)
        for op, name in enumerate(graph.op_name):
            for axis in range(len(axes_of(graph, op))):
                rows = []
                for parts, ops in ((2, 1), (2, 4), (3, 2)):
                    try:
                        rows += graph_told("", split_graph(graph, [Split(name, axis, parts, ops)]))[""]
                    except LoadmasterError as error:
                        rows.append(checksum(str(error)))
                found[f"{seed} {name} {axis}"] = [checksum([f"{each:.9g}" for each in rows])]
    return found


def partly_timed() -> Graph:
    """Of which some ops have given times, others not."""
    graph = layers(2, 3, 2, given=2, training=True)
    time = np.array(graph.time_ns)
    time[::3] = UNGIVEN
    return replace(graph, time_ns=ints(time), flops=ints(np.arange(graph.num_ops) * 10**7))


@scene
def graphs_with_some_times() -> Told:
    """On shares of all devices, in parts, in stages, priced."""
    graph, cluster, found = partly_timed(), Cluster.preset("2xp100-pcie"), Told()
    problem = price(graph, cluster)
    found |= problem_told("whole", problem)
    for way in WAYS:
        made = sharded_graph(graph, cluster, way)
        found |= {way: [-1.0]} if made is None else graph_told(way, made.graph)
    for op, name in enumerate(graph.op_name):
        for axis in range(len(axes_of(graph, op))):
            found |= graph_told(f"{name} {axis}", split_graph(graph, [Split(name, axis, 2, 2)]))
    phase = phases_of(problem)
    wanted = ints(np.arange(problem.num_ops) * 2 // problem.num_ops)
    stage = settle_stages(problem, ints(np.where(phase == 0, wanted, 1 - wanted)), phase)
    found |= graph_told("repeated", repeated(in_stages(problem, stage, phase, split_backward=True), 3))
    return found


@scene
def parts_of_ops() -> Told:
    """Single ops in parts along each of their axes, alone and with what is around them."""
    found: Told = {}
    graph = layers(2, 3, 2, training=True, fusable=True)
    model = load_zoo("transformer-xl-2")
    heavy = [model.op_name[op] for op in np.argsort(-model.flops, kind="stable")[:40:8]]
    for whole, names in (
        (graph, [name for name in graph.op_name if name.startswith(("mm 1", "act 1", "grad 0"))]),
        (model, heavy),
    ):
        for name in names:
            op = whole.op_name.index(name)
            for axis in range(len(axes_of(whole, op))):
                for parts, ops in ((2, 1), (4, 3)):
                    try:
                        split = split_graph(whole, [Split(name, axis, parts, ops)])
                    except LoadmasterError as error:
                        found[f"{name} {axis} {parts}"] = [checksum(str(error))]
                    else:
                        found |= graph_told(f"{name} {axis} {parts}", split)
    return found


@scene
def tensor_parallel_layers() -> Told:
    found: Told = {}
    for name, ways in (("gpt2", 2), ("gpt2", 4)):
        made = tensor_parallel(load_zoo(name), ways, lambda nbytes: 7 + nbytes // 3)
        found |= graph_told(f"{name} {ways}", made.graph)
        found[f"{name} {ways} reductions"] = [float(made.reductions), checksum(sorted(made.device.items()))]
    return found


@scene
def groups_of_ops() -> Told:
    found: Told = {}
    for name in SOME:
        problem = SOME[name]()
        for by in GROUPERS:
            for most in (3, 8, 30):
                found[f"{name} {by} {most}"] = sums_of(group_ops(problem, most, by))
        made = grouping(problem)
        found[f"{name} grouping"] = [checksum({key: np.asarray(value).tolist() for key, value in vars(made).items()})]
        sets = (scope_groups(problem), weight_groups(problem), chain_groups(problem))
        found[f"{name} sets"] = [checksum(each) for each in sets]
    rng = np.random.default_rng(3)
    for count in (5, 30, 80):
        time, heads = rng.random(count), rng.integers(0, count - 1, 2 * count)
        tails = heads + 1 + rng.integers(0, count, 2 * count) % (count - 1 - heads + 1)
        tails = np.minimum(tails, count - 1)
        for most in (1, 4, 12):
            found[f"edges {count} {most}"] = sums_of(join_edges(ints(heads), ints(tails), count // 5, time, most))
            found[f"neighbours {count} {most}"] = sums_of(join_neighbours(time, most))
        alike, alone = ints(np.arange(count) // 9), ints(np.full(count, -1))
        rows = join_in_a_row(ints(heads), ints(tails), ints(1000 * time), alone, alike, 1500.0)
        found[f"in a row {count}"] = sums_of(rows)
    return found


@scene
def coarser_problems() -> Told:
    """Blocks, chains of small ops, kernels; and plans carried down and up."""
    found: Told = {}
    for name in SOME:
        problem = SOME[name]()
        for most in (6, 14, 40):
            made = blocks(problem, most)
            found |= (
                {f"{name} blocks {most}": [-1.0]}
                if made is None
                else problem_told(f"{name} blocks {most}", made.problem)
            )
        for small in (1 / 64, 1 / 8, 1.0):
            made = chain_small_ops(problem, small)
            if made is not None:
                found |= problem_told(f"{name} chained {small}", made.problem)
                found[f"{name} together {small}"] = sums_of(together_ns(problem, made))
                device = np.arange(made.problem.num_ops) % problem.num_devices
                device = np.where(
                    made.problem.able[np.arange(len(device)), device], device, made.problem.able.argmax(1)
                )
                plan = Plan.of(made.problem, device[made.problem.leader], np.arange(len(device))[::-1])
                whole = made.up(plan)
                again = made.down(whole)
                found[f"{name} plans {small}"] = [*sums_of(whole.device), *sums_of(whole.rank), *sums_of(again.device)]
        pairs = np.arange(problem.num_ops)
        group = problem.graph.colocate
        for op in range(1, problem.num_ops - 1, 3):
            same = (problem.able[op] == problem.able[op + 1]).all() and group[op] == group[op + 1]
            pairs[op + 1] = op if same else op + 1
        try:
            found |= problem_told(f"{name} fused", fuse(problem, ints(pairs)))
            found |= problem_told(f"{name} coarse", coarsen(problem, ints(pairs)).problem)
        except LoadmasterError as error:
            found[f"{name} fused"] = [checksum(str(error)[:40])]
    return found


@scene
def windows_of_steps() -> Told:
    found: Told = {}
    for name in SOME:
        problem = SOME[name]()
        device = np.arange(problem.num_ops) // 2 % problem.num_devices
        device = np.where(problem.able[np.arange(problem.num_ops), device], device, problem.able.argmax(1))[
            problem.leader
        ]
        line = simulate(problem, Plan.of(problem, device))
        for first, last in ((0, 0.4), (0.3, 0.7), (0.5, 1)):
            ops = ints(np.arange(int(first * problem.num_ops), int(last * problem.num_ops)))
            pinned = np.arange(len(ops)) % 4 == 0
            made = window(problem, device, ops, pinned, ints(line.step_ns - line.end_ns[ops]))
            found |= problem_told(f"{name} {first}", made.problem)
            after = [float(made.first), *sums_of(made.problem.graph.after), *sums_of(made.part(made.problem.best_ns))]
            found[f"{name} {first} part"] = after
    return found


@scene
def stages_and_microbatches() -> Told:
    found: Told = {}
    for name in ("transformer-xl-2", "vit-base"):
        problem = price(load_zoo(name), "4xp100-pcie")
        phase = phases_of(problem)
        found[f"{name} phases"] = sums_of(phase)
        for count in (2, 3):
            wanted = ints(np.arange(problem.num_ops) * count // problem.num_ops)
            wanted = ints(np.where(phase == 0, np.minimum(2 * wanted, count - 1), count - 1 - wanted))
            stage = settle_stages(problem, wanted, phase)
            found[f"{name} {count}"] = [*sums_of(stage), *sums_of(weight_ops(problem, stage, phase))]
            for split in (False, True):
                try:
                    staged = in_stages(problem, stage, phase, split_backward=split)
                except LoadmasterError as error:
                    found[f"{name} {count} {split}"] = [checksum(str(error)[:30])]
                    continue
                found |= problem_told(f"{name} {count} {split}", staged.problem)
                found |= graph_told(f"{name} {count} {split} x4", repeated(staged, 4))
                twice = Replicas((2,) + (1,) * (count - 1), (Link(1e10, 5_000),) + (None,) * (count - 1))
                found |= graph_told(f"{name} {count} {split} twice", repeated(staged, 4, (), twice))
    return found


if __name__ == "__main__":
    scene.write(sys.argv[1:])
