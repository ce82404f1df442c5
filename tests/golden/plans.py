"""Writes the golden plans afresh: python -m tests.golden.plans [METHOD or PROBLEM ...], and any that are new

What every method that counts in whole numbers finds with a seed and so many simulations, on six small problems that
together have what plans must heed: unlike devices, groups that stay together, tensors written in place, shared
channels, a limit on memory, ops that may share a kernel, modules, tasks of given times. A plan that changes is no
mistake in itself; a plan that changes unawares is one. Read the difference before you keep it.
"""

from __future__ import annotations

import hashlib
import json
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from loadmaster import Budget, GraphBuilder, catalog, price, solve
from loadmaster.cluster import Cluster, Device, Link, dense_channels
from loadmaster.cluster.growing import with_host
from loadmaster.graph import Graph
from loadmaster.problem import Problem
from loadmaster.zoo.synthetic import generate

FILE = Path(__file__).parent / "plans.json"
SIMULATIONS = {"unlike": 300, "tight": 200, "halves": 120, "small": 120, "tasks": 120, "odd": 60}
# Networks add up fractions, whose last digits are the machine's; others call packages that may be of another version.
LEFT_OUT = {"cp-sat", "kahip", "metis", "mtkahypar", "scotch"}
LEFT_OUT |= {"gas", "go", "go-fusion", "go-one", "hdp", "learned-list", "placeto", "regal", "rnn"}
MORE = (
    "anneal:start=random",
    "recompute:inner=heft",
    "recompute:inner=one-device,fuse=no",
    "greedy-fusion:inner=etf",
    "whole-modules:stages=yes",
)
METHODS = (*sorted(set(catalog.optimizers()) - LEFT_OUT), *MORE)
# Settings that change what is done, each on the problems that it is for.
VARIANTS = {
    "anneal:chains=3,follow=0.9,temperature=0.05": ("tight", "tasks"),
    "anneal:start=one-device,follow=0": ("halves", "odd"),
    "anneal-fusion:chains=1,inner=etf": ("halves", "odd"),
    "anneal-order:window=4": ("small", "tight"),
    "auto:fusion=none": ("halves", "hosted", "apart"),
    "auto:recompute=no": ("tight", "hosted"),
    "auto:offload=no": ("hosted",),
    "best-of:of=[heft,etf,expert]": ("unlike", "held"),
    "branch-and-bound:start=etf": ("tiny",),
    "brkga:order=given,by=edges,blocks=4,population=20,patience=2": ("unlike", "odd"),
    "brkga:order=memory,by=scope,blocks=3,population=16,elites=0.4,mutants=0.3": ("tight", "small"),
    "brkga:order=given,by=mirror,blocks=5,width=0.6,sends=no,population=15,start=heft": ("tight", "apart"),
    "brkga:population=4,elites=0.2,mutants=0.3": ("unlike", "zero"),
    "brkga:by=program,blocks=4,rho=0.9,population=12": ("tasks", "held"),
    "cpop:contention=no": ("unlike", "odd"),
    "downsets": ("held", "apart"),
    "downsets:order=program,sets=30": ("held", "tasks"),
    "downsets:effort=2000": ("held", "drawing"),
    "etf:contention=no": ("unlike", "odd"),
    "etf:favourite=yes,memory=yes,contention=no": ("tight", "halves"),
    "expert:order=program": ("tight", "tasks", "hosted"),
    "gp-dfs:balance=memory,imbalance=0.2": ("tight", "unlike"),
    "heft:thrift=0.7": ("unlike", "tasks"),
    "heft:memory=yes,contention=no": ("tight", "odd"),
    "inline:inner=etf": ("halves", "tight"),
    "islands:islands=3,rounds=2,inner=joint": ("halves", "held"),
    "joint:inner=heft": ("halves", "tight"),
    "joint:also=etf": ("halves", "unlike"),
    "auto:also=rolling": ("tight", "unlike"),
    "layer-checkpointing:inner=heft": ("tight", "hosted"),
    "local-search:chains=1,start=random": ("unlike", "odd"),
    **{f"memory-order:rule={rule}": ("small", "odd") for rule in ("given", "dfs", "bfs", "lpmf", "rpo", "cut")},
    "min-cut:inner=etf": ("tight", "hosted"),
    "multilevel:inner=anneal": ("unlike", "large"),
    "one-device:on=d1": ("unlike",),
    "pipeline:goal=max-load,order=critical,fold=mirror": ("held", "tight"),
    "pipeline:fold=scope,order=program": ("tight", "unlike"),
    "pipeline:fold=program,order=fifo": ("tasks", "odd"),
    "placement:also=rolling": ("unlike", "apart"),
    "random-fusion:inner=etf,samples=5": ("halves",),
    "recompute:again=no": ("hosted", "tight"),
    "recompute:offload=no,inner=expert": ("tight",),
    "recompute:residents=no": ("hosted",),
    "rolling:ways=3": ("tight", "odd"),
    "separate:tasks=[placement,fusion],start=etf": ("halves", "tight"),
    "separate:tasks=[schedule]": ("unlike", "odd"),
    "sqrt-checkpointing:inner=heft": ("tight", "hosted"),
    "whole-modules:granularity=op,inner=etf": ("tight", "unlike"),
    "whole-modules:granularity=module": ("tight", "small"),
}


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


PROBLEMS: dict[str, Callable[[], Problem]] = {
    problem.__name__: problem for problem in (unlike, tight, halves, small, tasks, odd)
}


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


OTHERS = (held, drawing, hosted, apart, zero, brisk, large, fused, tiny, crowded)
ALL = PROBLEMS | {problem.__name__: problem for problem in OTHERS}
SIMULATIONS |= {"held": 80, "drawing": 80, "hosted": 40, "apart": 80, "zero": 30, "large": 60, "tiny": 60}
SIMULATIONS |= {"brisk": 60, "fused": 1_500, "crowded": 250}
EVERYWHERE = ("auto", "placement", "joint", "recompute", "islands", "anneal", "tuned-brkga", "pipeline")
EVERYWHERE += ("separate", "rolling", "expert", "multilevel", "memory-order", "anneal-fusion")
SHARING = ("auto", "joint", "recompute", "recompute:inner=heft", "recompute:inner=one-device,fuse=no", "min-cut")
SHARING += ("sqrt-checkpointing", "inline", "greedy-fusion", "anneal-fusion", "random-fusion")
LONG = ("auto", "placement", "joint", "anneal-fusion", "islands", "separate")
PAIRS = [
    *((method, name) for method in METHODS for name in (*PROBLEMS, "zero")),
    *((method, name) for method in EVERYWHERE for name in ("held", "drawing", "hosted", "apart")),
    *((method, "brisk") for method in SHARING),
    *((method, "fused") for method in LONG),
    *((method, "crowded") for method in ("auto", "placement", "islands", "anneal")),
    *((method, name) for method, names in VARIANTS.items() for name in names),
]


def found(method: str, name: str) -> dict[str, Any]:
    """What the method makes of the problem: its plan as a digest."""
    result = solve(ALL[name](), method, Budget(None, SIMULATIONS[name]), seed=3)
    plan, columns = result.plan, []
    for column in (plan.device, plan.rank, plan.kernel, plan.send_rank):
        columns.append(b"" if column is None else np.ascontiguousarray(column, np.int64).tobytes())
    digest = hashlib.sha256(b"|".join([*columns, repr(plan.added).encode()])).hexdigest()[:12]
    return {
        "value": result.value,
        "over_bytes": result.timeline.over_bytes,
        "simulations": result.simulations,
        "plan": digest,
    }


def main() -> None:
    asked = sys.argv[1:]
    kept = json.loads(FILE.read_text()) if asked else {}
    for method, name in PAIRS:
        if not asked or method in asked or name in asked or name not in kept.get(method, {}):
            kept.setdefault(method, {})[name] = found(method, name)
    rows = [
        f'"{method}": {{\n' + ",\n".join(f'  "{name}": {json.dumps(row)}' for name, row in kept[method].items()) + "\n}"
        for method in dict.fromkeys(method for method, _ in PAIRS)
        if method in kept
    ]
    FILE.write_text("{\n" + ",\n".join(rows) + "\n}\n")


if __name__ == "__main__":
    main()
