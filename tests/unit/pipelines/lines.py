"""Small training steps in a line, on devices with free links or slow ones, to make pipelines of."""

from __future__ import annotations

from itertools import product

import numpy as np

from loadmaster.cluster import Cluster, Device, Link
from loadmaster.cost import price
from loadmaster.graph import Graph, GraphBuilder
from loadmaster.problem import Problem

FREE = Link(None, 0)


def devices(count: int, link: Link = FREE, memory: int = 2**40) -> Cluster:
    every = tuple(Device(f"d{i}", "device", memory, 1e12, 10**9, 0) for i in range(count))
    pairs = [pair for pair in product(range(count), repeat=2) if pair[0] != pair[1]]
    channel = np.full((count, count), -1, np.int64)
    for number, pair in enumerate(pairs):
        channel[pair] = number
    return Cluster("devices", every, dict.fromkeys(pairs, link), channel)


def line(
    layers: int,
    forward: int = 100,
    backward: int = 100,
    weight: int = 100,
    *,
    saved: int = 1000,
    sent: int = 0,
    weights: int = 0,
) -> Graph:
    """`layers` modules, one after another, and a loss that takes no time. Each layer saves `saved` bytes for its
    backward op and `saved` for the gradient of its weight, and is updated in no time."""
    g = GraphBuilder("line")
    x = g.tensor(sent, "input", name="x")
    kept, params = [], []
    for i in range(layers):
        w = g.tensor(weights, "weight", name=f"w{i}")
        y = g.tensor(sent, name=f"y{i}")
        for_backward, for_weight = g.tensor(saved, name=f"sb{i}"), g.tensor(saved, name=f"sw{i}")
        g.op(f"f{i}", "layer", [x, w], [y, for_backward, for_weight], scope=f"layer{i}", time_ns=forward)
        kept.append((for_backward, for_weight))
        params.append(w)
        x = y
    loss, grad = g.tensor(0, "output", name="loss"), g.tensor(sent, name="grad")
    g.op("loss", "loss", [x], [loss], scope=f"layer{layers - 1}", time_ns=0)
    g.op("start", "start", [loss], [grad], scope=f"layer{layers - 1}", time_ns=0)
    for i in reversed(range(layers)):
        passed, own = g.tensor(sent, name=f"g{i}"), g.tensor(weights, name=f"dw{i}")
        mid = g.tensor(0, name=f"m{i}")
        g.op(f"b{i}", "layer.back", [grad, kept[i][0], params[i]], [passed, mid], scope=f"layer{i}", time_ns=backward)
        g.op(f"w{i}", "layer.weight", [mid, kept[i][1]], [own], scope=f"layer{i}", time_ns=weight)
        new = g.tensor(weights, "weight", name=f"new{i}", alias_of=params[i])
        after = [f"f{i}", f"b{i}"]
        g.op(f"u{i}", "optim.sgd", [params[i], own], [new], scope=f"layer{i}", after=after, time_ns=0)
        grad = passed
    return g.build()


def problem(layers: int, count: int, link: Link = FREE, **settings: int) -> Problem:
    return price(line(layers, **settings), devices(count, link))
