"""Graphs and clusters that are drawn: steps that branch, graphs of a corpus with other times and sizes, devices that
are more or less alike."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from loadmaster.cluster import Cluster, Device, Link, dense_channels
from loadmaster.graph import ACTIVATION, Graph, GraphBuilder
from loadmaster.graph.columns import ints
from loadmaster.zoo import synthetic

FEWEST_OPS = 60  # of an example
COUNTS = (2, 2, 2, 3, 4, 4, 4, 5, 6, 8, 8)  # of devices, each as likely


def vary(graph: Graph, rng: np.random.Generator) -> Graph:
    """Larger activations and more work, as of a larger batch, and log-normal noise on sizes and work."""
    noise = float(rng.choice([0.0, 0.1, 0.3]))
    batch = float(rng.choice([1, 4, 8, 16, 32, 64]))
    sizes = np.exp(noise * rng.standard_normal(graph.num_tensors)) * np.where(graph.role == ACTIVATION, batch, 1.0)
    work = np.exp(noise * rng.standard_normal(graph.num_ops)) * batch
    return replace(
        graph,
        nbytes=ints(np.ceil(graph.nbytes * np.minimum(sizes, 128.0))),
        flops=ints(np.ceil(graph.flops * np.minimum(work, 128.0))),
        bytes_moved=ints(np.ceil(graph.bytes_moved * np.minimum(work, 128.0))),
    )


def draw_graph(rng: np.random.Generator) -> Graph:
    """A random graph of the kinds of the zoo, or the training step of a network that branches at random."""
    if rng.random() < 0.2:
        kind = sorted(synthetic.KINDS)[int(rng.integers(len(synthetic.KINDS)))]
        return next(iter(synthetic.generate(kind, 1, int(rng.integers(2**31)), (FEWEST_OPS + 20, 400))))
    return branching_step(rng)


def branching_step(rng: np.random.Generator, most: int = 500) -> Graph:
    """Forward ops in several lanes that split and join, the backward ops that mirror them, and the weights' updates."""
    builder, lanes = GraphBuilder("branching step"), int(rng.integers(2, 9))
    count, noise = int(rng.integers(60 * most // 500, most)), float(rng.uniform(0.2, 1.0))
    size, flops = 2.0 ** rng.uniform(17, 24), 2.0 ** rng.uniform(26, 33)
    ends = [builder.tensor(int(size), "input")] * lanes
    forward: list[tuple[list[int], int, int | None, int, int]] = []
    for op in range(count):
        lane = int(rng.integers(lanes))
        reads = list(dict.fromkeys([ends[lane], *([ends[int(rng.integers(lanes))]] if rng.random() < 0.2 else [])]))
        made = builder.tensor(max(1, int(size * np.exp(noise * rng.standard_normal()))))
        heavy = rng.random() < 0.4
        weight = builder.tensor(int(size * 2.0 ** rng.uniform(-6, 2)), "weight") if heavy else None
        work = int((flops if heavy else size) * np.exp(noise * rng.standard_normal()))
        held = [] if weight is None else [weight]
        builder.op(f"f{op}", "mm" if heavy else "add", [*reads, *held], [made], flops=work)
        forward.append((reads, made, weight, work, op))
        ends[lane] = made
    _backward(builder, forward, sorted(set(ends)))
    return builder.build()


def _backward(
    builder: GraphBuilder, forward: list[tuple[list[int], int, int | None, int, int]], ends: list[int]
) -> None:
    size = dict(enumerate(builder._nbytes))
    loss = builder.tensor(4)
    builder.op("loss", "sum", ends, [loss], flops=1_000)
    grads: dict[int, list[int]] = {end: [loss] for end in ends}
    makers = {made for _, made, *_ in forward}
    for reads, made, weight, work, op in reversed(forward):
        arriving = grads.get(made, [loss])
        for read in reads:
            if read in makers:
                grad = builder.tensor(size[read])
                builder.op(f"b{op} {read}", "add" if weight is None else "mm", [*arriving, *reads], [grad], flops=work)
                grads.setdefault(read, []).append(grad)
        if weight is not None:
            change, updated = builder.tensor(size[weight]), builder.tensor(size[weight], "weight", alias_of=weight)
            builder.op(f"w{op}", "mm", [*arriving, reads[0]], [change], flops=work)
            builder.op(f"u{op}", "add", [change, weight], [updated], flops=size[weight] // 4)


def draw_cluster(rng: np.random.Generator, counts: Sequence[int] = COUNTS) -> Cluster:
    """Presets, or drawn ones, like or unlike, over buses, wires of their own or free links."""
    count = int(rng.choice(counts))
    kind = rng.random()
    if kind < 0.3:
        return Cluster.preset(f"{count}xp100-pcie")
    if kind < 0.4:
        first = int(rng.integers(1, count))
        return Cluster.preset(f"{first}xp100-pcie+{count - first}xk80")
    return _drawn_cluster(rng, count, unlike=rng.random() < 0.5, free=rng.random() < 0.15)


def _drawn_cluster(rng: np.random.Generator, count: int, unlike: bool, free: bool) -> Cluster:
    speed = 2.0 ** rng.uniform(-2, 0, count) if unlike else np.ones(count)
    flops, traffic = 1e13 * 2.0 ** rng.uniform(-1, 2), 7e11 * 2.0 ** rng.uniform(-1, 2)
    launch_ns = int(rng.integers(1_000, 10_000))
    devices = tuple(
        Device(f"d{i}", "drawn", int(2**37 * (0.5 + s)), flops * s, traffic * s, launch_ns)
        for i, s in enumerate(speed.tolist())
    )
    link = Link(None, 0) if free else Link(1e10 * 2.0 ** rng.uniform(-1, 5), int(rng.integers(2_000, 25_000)))
    bus, pairs = bool(rng.random() < 0.5), [(a, b) for a in range(count) for b in range(count) if a != b]
    channel = np.full((count, count), -1, np.int64)
    for a, b in pairs:
        channel[a, b] = a if bus else a * count + b  # a bus: all that a device sends goes over one wire
    return Cluster("drawn", devices, dict.fromkeys(pairs, link), dense_channels(ints(channel)))
