"""Small problems that together have what plans must heed: unlike devices, groups that stay together, tensors written in
place, shared channels, a limit on memory, ops that may share a kernel, modules, tasks of given times."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np

from loadmaster import GraphBuilder, price
from loadmaster.cluster import Cluster, Device, Link, dense_channels
from loadmaster.cluster.growing import with_host
from loadmaster.graph import Graph
from loadmaster.problem import Problem
from loadmaster.zoo.synthetic import generate


def layers(
    width: int, depth: int, seed: int, *, given: int = 0, training: bool = False, fusable: bool = False
) -> Graph:
    """Layers of `width` lanes, each lane a product and what is done to every number of it; lanes read others of the
    layer before. `given`: times on so many devices, else work. `training`: then a gradient of each, and updates.
    `fusable`: more is done to every number, which one kernel could do."""
    rng, build = np.random.default_rng(seed), GraphBuilder("layers")

    def costs() -> dict[str, Any]:
        if given:
            return {"time_ns": [int(time) for time in rng.integers(20_000, 90_000, given)]}
        return {"flops": int(rng.integers(1, 9)) * 10**8}

    def tensor(rows: int, role: str = "activation") -> int:
        return build.tensor(4 * 512 * rows, role, shape=(rows, 512), dtype="float32")

    lanes, made = [tensor(512, "input") for _ in range(width)], []
    for layer in range(depth):
        outs = []
        for lane in range(width):
            read = [lanes[lane], lanes[int(rng.integers(0, width))]]
            weight, rows = tensor(512, "weight"), 256 * int(rng.integers(1, 4))
            hot, out = tensor(rows), tensor(rows)
            group = {"colocate": layer // 2} if lane == 0 else {}
            scope = f"layers.{layer}.{lane}"
            build.op(f"mm {layer} {lane}", "aten.mm.default", [*read, weight], [hot], scope=scope, **costs(), **group)
            if fusable:
                warm, hot = hot, tensor(rows)
                build.op(f"neg {layer} {lane}", "aten.neg.default", [warm], [hot], scope=scope, **costs())
            build.op(f"act {layer} {lane}", "aten.relu.default", [hot], [out], scope=scope, **costs())
            made.append((layer, lane, weight, hot, rows))
            outs.append(out)
        lanes = outs
    loss = tensor(1, "output")
    build.op("loss", "aten.sum.default", lanes, [loss], scope="head", **costs())
    back = loss
    for layer, lane, weight, hot, rows in reversed(made if training else ()):
        grad, after = tensor(rows), tensor(512)
        scope = f"layers.{layer}.{lane}"
        build.op(f"mm back {layer} {lane}", "aten.mm.default", [back, hot, weight], [grad], scope=scope, **costs())
        build.op(f"grad {layer} {lane}", "aten.mm.default", [grad, hot], [after], scope=scope, **costs())
        new = build.tensor(4 * 512 * 512, "weight", alias_of=weight)
        build.op(f"update {layer} {lane}", "aten.add_.Tensor", [weight, after], [new], scope=scope, **costs())
        back = grad
    return build.build()


def wired(speeds: tuple[float, ...], near: Callable[[int, int], bool], wire: Callable[[int, int], int]) -> Cluster:
    """Devices of so many FLOP/s; links by whether two are near, channels by a number for each pair."""
    count = len(speeds)
    devices = tuple(Device(f"d{at}", f"k{speed:.0e}", 2**30, speed, 5e11, 3_000) for at, speed in enumerate(speeds))
    pairs = [(one, two) for one in range(count) for two in range(count) if one != two]
    links = {pair: Link(2e10, 5_000) if near(*pair) else Link(4e9, 20_000) for pair in pairs}
    channel = np.full((count, count), -1, np.int64)
    for pair in pairs:
        channel[pair] = wire(*pair)
    return Cluster("wired", devices, links, dense_channels(channel))


def unlike() -> Problem:
    """Three unlike devices, the third far away; what a device sends goes one way out."""
    cluster = wired((1e13, 6e12, 2e12), lambda one, two: 2 not in (one, two), lambda one, two: one)
    return price(layers(3, 4, 1), cluster)


def tight() -> Problem:
    """A training step that needs more than the memory of one device."""
    return price(layers(2, 3, 2, training=True), "2xp100-pcie", memory_limit=9 << 20)


def halves() -> Problem:
    """Weights that fit on two devices and not on one, and ops that may share a kernel."""
    return price(layers(3, 3, 6, fusable=True), "2xp100-pcie", memory_limit=11 << 20)


def small() -> Problem:
    return price(layers(2, 3, 3, training=True), "2xp100-pcie", objective="peak-memory")


def tasks() -> Problem:
    """Given times on four devices, two and two on a machine; one wire between the machines."""
    cluster = wired(
        (1e12,) * 4,
        lambda one, two: one // 2 == two // 2,
        lambda one, two: one * 4 + two if one // 2 == two // 2 else 99,
    )
    return price(layers(3, 4, 4, given=4), cluster)


def odd() -> Problem:
    """What is at the edge: times of a few nanoseconds and of none, ops that some devices cannot run, tensors of no
    bytes, ops that read or make nothing, or only wait for others; memory for most of it on one device."""
    build, made = GraphBuilder("odd"), list[int]()
    rng = np.random.default_rng(7)
    for at in range(16):
        times: list[int | None] = [int(time) for time in rng.integers(0, 9, 3)]
        if at % 4 == 1:
            times[at % 3] = None
        reads = [made[int(one)] for one in sorted({*rng.integers(0, len(made), 2).tolist()})] if at > 2 else []
        makes = [build.tensor(int(size) * (at % 5)) for size in rng.integers(1, 40, 1 + at % 2)] if at != 9 else []
        group = {"colocate": "pair"} if at in (4, 6) else {}
        after = [f"op{at - 2}"] if at % 5 == 4 else []
        build.op(f"op{at}", "any", reads, makes, time_ns=times, after=after, scope=f"part{at // 4}", **group)
        made += makes
    cluster = wired((1e9, 1e9, 1e9), lambda one, two: one + two == 1, lambda one, two: one)
    links = {pair: Link(4e10 if sum(pair) == 1 else 2e10, sum(pair) - 1) for pair in cluster.links}
    devices = tuple(replace(device, launch_ns=1) for device in cluster.devices)
    return price(build.build(), replace(cluster, links=links, devices=devices), memory_limit=400)


def held() -> Problem:
    """Judged by throughput; two devices of three do nothing while they send and receive."""
    cluster = wired((4e12, 2e12, 2e12), lambda one, two: 0 in (one, two), lambda one, two: one)
    devices = tuple(replace(device, overlap=at == 0) for at, device in enumerate(cluster.devices))
    return price(layers(2, 4, 11), replace(cluster, devices=devices), objective="throughput")


def drawing() -> Problem:
    """Judged by energy."""
    cluster = wired((4e12, 1e12), lambda one, two: True, lambda one, two: one)
    fast, slow = cluster.devices
    devices = (replace(fast, watts=300.0, idle_watts=50.0), replace(slow, watts=60.0, idle_watts=9.5))
    return price(layers(2, 3, 12, training=True), replace(cluster, devices=devices), objective="energy")


def hosted() -> Problem:
    """A training step that does not fit on the one device that computes, beside a host."""
    cluster, _ = with_host(Cluster.preset("1xp100-pcie"))
    return price(layers(2, 3, 14, training=True, fusable=True), cluster, memory_limit=9 << 20)


def apart() -> Problem:
    """Two unlike devices whose links carry any number of transfers at once; inference in modules."""
    cluster = wired((3e12, 2e12), lambda one, two: True, lambda one, two: one)
    return price(layers(3, 3, 15), replace(cluster, contention=False))


def zero() -> Problem:
    """What has the number 0 is like any other: the first tensor is a weight that is updated, the first op makes what is
    written over, the first group has two ops, the first device is not the fastest and cannot run all."""
    build = GraphBuilder("zero")
    weight, x = build.tensor(600, "weight"), build.tensor(90, "input")
    hot, cold = build.tensor(300), build.tensor(200)
    changed = build.tensor(300, alias_of=hot)
    build.op("make", "any", [weight], [hot, cold], time_ns=[70, 30], colocate="first", scope="one")
    aside, joined = build.tensor(50), build.tensor(80)
    build.op("side", "any", [x, cold], [aside], time_ns=[None, 40], scope="one")
    build.op("change", "any", [hot], [changed], time_ns=[50, 20], scope="one")
    build.op("join", "any", [changed, cold], [joined], time_ns=[30, 20], colocate="first", scope="one")
    used = [build.tensor(120) for _ in range(3)]
    for at, made in enumerate(used):
        build.op(f"use {at}", "any", [aside, joined][at % 2 :], [made], time_ns=[25 + at, 20], scope=f"use.{at}")
    new = build.tensor(600, "weight", alias_of=weight)
    build.op("update", "any", [*used, weight], [new], time_ns=[20, 15], scope="one")
    cluster = wired((1e9, 1e9), lambda one, two: True, lambda one, two: 0)
    links = dict.fromkeys(cluster.links, Link(2e10, 3))
    devices = tuple(replace(device, launch_ns=1) for device in cluster.devices)
    return price(build.build(), replace(cluster, links=links, devices=devices), memory_limit=1_500)


def large() -> Problem:
    return price(layers(4, 40, 16, given=3), wired((1e12,) * 3, lambda one, two: True, lambda one, two: one))


def brisk() -> Problem:
    """Ops of given times, many of them under that of a launch, that may share kernels; memory for half of it."""
    cluster = wired((1e12, 1e12), lambda one, two: True, lambda one, two: one)
    devices = tuple(replace(device, launch_ns=60_000 - 15_000 * at) for at, device in enumerate(cluster.devices))
    graph = layers(2, 3, 25, given=2, training=True, fusable=True)
    return price(graph, replace(cluster, devices=devices), memory_limit=8 << 20)


def fused() -> Problem:
    """Ops that may share a kernel, for long searches."""
    return price(layers(4, 6, 19, fusable=True), wired((3e12, 2e12), lambda one, two: True, lambda one, two: one))


def tiny() -> Problem:
    return price(layers(1, 3, 17), wired((3e12, 2e12), lambda one, two: True, lambda one, two: one))


def crowded() -> Problem:
    """Judged by the peak memory of four unlike devices; no layers, so that devices run ahead of each other."""
    graph = next(generate("erdos-renyi", 1, 21, 40))
    return price(graph, "2xa100-nvlink+2xp100-pcie", objective="peak-memory")


def drawn(seed: int, ops: int = 10) -> Problem:
    """A random problem small enough for exact search, which has, somewhere, all that plans must heed: updates in place,
    groups, waits without reads, devices that cannot run an op, shared wires, little memory."""
    rng, build = np.random.default_rng(seed), GraphBuilder(f"drawn {seed}")
    devices = int(rng.integers(2, 5))
    weights = [build.tensor(int(rng.integers(20, 90)), "weight") for _ in range(3)]
    fixed = [build.tensor(int(rng.integers(20, 90)), "weight"), build.tensor(30, "input")]
    made = list[int]()
    if seed % 4 == 1:  # the first op updates, and nobody else reads what it does
        first = build.tensor(25, "weight")
        build.op("first", "any", [first], [build.tensor(0, "weight", alias_of=first)], time_ns=int(rng.integers(1, 30)))
    for at in range(ops):
        reads = {made[int(one)] for one in rng.integers(max(0, at - 5), at, rng.integers(0, 3))} if at else set()
        reads |= {weights[int(one)] for one in rng.integers(0, 3, 1) if rng.random() < 0.5}
        reads |= {fixed[int(one)] for one in rng.integers(0, 2, 1) if rng.random() < 0.3}
        makes = [build.tensor(int(rng.integers(0, 60)), "output" if rng.random() < 0.1 else "activation")]
        makes += [build.tensor(int(rng.integers(1, 40)))] if rng.random() < 0.2 else []
        times: list[int | None] = [int(rng.integers(0, 50)) for _ in range(devices)]
        if rng.random() < 0.2:
            times[int(rng.integers(devices))] = None
        build.op(
            f"op{at}", "any", sorted(reads), makes, time_ns=times if rng.random() < 0.6 else int(rng.integers(0, 50)),
            after=[f"op{int(rng.integers(at))}"] if at and rng.random() < 0.2 else [],
            colocate=int(rng.integers(2)) if rng.random() < 0.25 and None not in times else None,
            workspace_bytes=int(rng.integers(0, 40)) if rng.random() < 0.3 else 0,
        )  # fmt: skip
        made += makes
    for weight in weights[: int(rng.integers(0, 3))]:
        new = build.tensor(0, "weight", alias_of=weight)
        build.op(f"update {weight}", "any", [weight, made[-1]], [new], time_ns=5, colocate=1 if seed % 3 == 0 else None)
    pairs = [(one, two) for one in range(devices) for two in range(devices) if one != two]
    links = {pair: Link([None, 1e9, 4e9][rng.integers(3)], int(rng.integers(0, 12))) for pair in pairs}
    wires = np.full((devices, devices), -1)
    for one, two in pairs:
        wires[one, two] = (one, one * devices + two, min(one, two) * devices + max(one, two))[seed % 3]
    some = tuple(
        Device(f"d{at}", "toy", 2**30, 1e9, 1e9, launch_ns=3 * (seed % 2), overlap=(seed + at) % 3 > 0)
        for at in range(devices)
    )
    cluster = Cluster(f"drawn {seed}", some, links, dense_channels(wires), contention=seed % 5 != 4)
    return price(build.build(), cluster, memory_limit=int(rng.integers(150, 600)))


def ladder(layers: int, width: int = 1000) -> Graph:
    """Forward ops f0 … fn, then backward ops bn … b0 that each read their forward op's output; weights updated in
    place.

    x -> f0 -> f1 -> … -> fn
         |     |           |
    b0 <- b1 <- … <------- bn
    """
    builder = GraphBuilder("ladder")
    here = builder.tensor(width, "input")
    weights, saved = [], []
    for i in range(layers):
        weights.append(builder.tensor(width * 2, "weight"))
        made = builder.tensor(width * (1 + i % 3))
        builder.op(f"f{i}", "aten.mm.default", [here, weights[i]], [made], flops=10**7, scope=f"layers.{i}")
        saved.append(made)
        here = made
    for i in reversed(range(layers)):
        grad = builder.tensor(width)
        builder.op(
            f"b{i}", "aten.mm.default", [here, saved[i], weights[i]], [grad], flops=2 * 10**7, scope=f"layers.{i}"
        )
        new = builder.tensor(width * 2, "weight", alias_of=weights[i])
        after = [f"f{i}", f"b{i}"]
        builder.op(
            f"u{i}",
            "optim.sgd",
            [weights[i], grad],
            [new],
            flops=width,
            colocate=f"w{i}",
            after=after,
            scope=f"layers.{i}",
        )
        here = grad
    return builder.build()


def problem_of(layers: int = 12, on: str = "2xp100-pcie", objective: str = "step-time") -> Problem:
    return price(ladder(layers), Cluster.preset(on), objective=objective)  # type: ignore[arg-type]


def tangled(count: int, seed: int, cluster: str = "2xp100-pcie") -> Problem:
    """A graph in which fusing everything is not best: long ops whose readers on the other device wait."""
    rng = np.random.default_rng(seed)
    builder, made = GraphBuilder("tangled"), []
    kinds = ("aten.mm.default", "aten.relu.default", "aten.add.Tensor", "aten.sum.dim_IntList")
    for op in range(count):
        reads = sorted({int(rng.choice(made[-5:])) for _ in range(int(rng.integers(1, 3)))}) if made else []
        made.append(builder.tensor(int(rng.integers(1, 40)) * 100_000))
        flops = int(rng.integers(1, 50)) * 10**7
        builder.op(f"op{op}", kinds[int(rng.integers(0, 4))], reads, [made[-1]], flops=flops)
    return price(builder.build(), Cluster.preset(cluster))


def relus(count: int = 6, on: str = "2xp100-pcie", objective: Any = "step-time") -> Problem:
    build = GraphBuilder("relus")
    read = build.tensor(4 * 512, "input", shape=(512,), dtype="float32")
    for op in range(count):
        made = build.tensor(4 * 512, shape=(512,), dtype="float32")
        build.op(f"op{op}", "aten.relu.default", [read], [made], flops=512)
        read = made
    return price(build.build(), on, objective=objective)


ALL: dict[str, Callable[[], Problem]] = {
    problem.__name__: problem
    for problem in (
        *(unlike, tight, halves, small, tasks, odd, held, drawing, hosted),
        *(apart, zero, large, brisk, fused, tiny, crowded),
    )
}
