"""The learned model: what must hold of any forecast, whatever the weights are."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from loadmaster import GraphBuilder
from loadmaster.cluster import Cluster
from loadmaster.cost import Learned, Roofline, fit, hosted, price
from loadmaster.cost.features import GROUPS, facts_of
from loadmaster.cost.learned import shipped
from loadmaster.graph import Graph
from loadmaster.report.certainty import interval
from loadmaster.search import Budget, solve

H200 = Cluster.preset("1xh200")


def products(*sides: int, dtype: str = "bfloat16") -> Graph:
    """Square products one after another, each followed by a relu."""
    g = GraphBuilder("products")
    for number, side in enumerate(sides):
        size = 2 * side * side
        x, w = g.tensor(size, "input"), g.tensor(size, "weight")
        y, z = g.tensor(size), g.tensor(size)
        g.op(f"mm{number}", "aten.mm.default", [x, w], [y], flops=2 * side**3, dtype=dtype)
        g.op(f"relu{number}", "aten.relu.default", [y], [z], flops=side**2, dtype=dtype)
    return g.build()


def test_large_products_come_near_the_peak_and_small_ones_do_not() -> None:
    graph = products(64, 256, 1024, 4096, 8192)
    told, floor = (price(graph, H200, cost=cost).op_ns[::2, 0] for cost in (Learned(), Roofline()))
    share = (floor - H200.devices[0].launch_ns) / told
    assert (np.diff(told) > 0).all()
    assert share[0] < 0.1 and 0.5 < share[-1] < 1.05


def test_a_device_of_higher_rates_is_faster_and_a_cpu_keeps_the_roofline() -> None:
    graph = products(4096, 8192)
    one = H200.devices[0]
    slow = replace(one, bytes_per_s=one.bytes_per_s / 4, flops_per_s={"default": 1e13, "bfloat16": 2e14})
    told = [price(graph, replace(H200, devices=(device,)), cost=Learned()).op_ns[:, 0] for device in (one, slow)]
    assert (told[1] > 2 * told[0]).all()
    cpu = Cluster.preset("1xcpu")
    assert price(graph, cpu, cost=Learned()).op_ns.tolist() == price(graph, cpu).op_ns.tolist()


def test_an_untested_device_has_a_wider_interval() -> None:
    graph = products(2048, 4096)
    width = []
    for name in ("1xh200", "1xa100-nvlink"):
        found = solve(price(graph, name, cost=Learned()), "one-device", Budget(None, 1), 0)
        ends = interval(found)
        assert ends is not None and ends[0] < found.timeline.step_ns < ends[1]
        width.append(ends[1] / ends[0])
    assert width[1] > width[0] > 1


def test_measurements_scale_the_groups_they_are_of() -> None:
    """Everything took three times as long: so will what was not measured. Half of them took six times: products do."""
    device, facts = H200.devices[0], facts_of(products(512, 1024, 2048))
    told = Learned().times_ns(device, facts)[0].tolist()
    every = fit([(fact, 3 * ns) for fact, ns in zip(facts, told, strict=True)], device)
    assert set(every.scale) == set(GROUPS)
    assert all(scale == pytest.approx(3, rel=0.01) for scale in every.scale.values())
    some = [(fact, ns * (6 if "mm" in fact.kind else 3)) for fact, ns in zip(facts, told, strict=True)]
    other = fit(some, device).scale
    assert other["product"] > other["update"] > other["elementwise"] > 3


def test_signatures_tell_layouts_apart() -> None:
    def copied(stride: list[int]) -> Any:
        part = {"tensor": "bfloat16", "shape": [4096, 4096], "stride": stride}
        fact = facts_of(products(4096))[1]._replace(kind="aten.clone.default", flops=0)
        return fact._replace(signature=json.dumps(["aten.clone.default", [part], {}]))

    plain, across = Learned().times_ns(H200.devices[0], [copied([4096, 1]), copied([1, 4096])])[0]
    assert across > plain


def test_a_compiler_makes_streams_of_what_it_calls_no_library_for() -> None:
    """A relu moves its bytes at most at the bandwidth and not below half of it; products take what they take anyway."""
    graph = products(4096)
    eager, compiled = (price(graph, hosted(H200, mode), cost=Learned()).op_ns[:, 0] for mode in ("eager", "compiled"))
    assert eager[0] == compiled[0]
    ideal = 2 * 2 * 4096**2 / H200.devices[0].bytes_per_s * 1e9
    assert ideal < compiled[1] < 2 * ideal
    looked_up = replace(graph, kind=("aten.mm.default", "aten.embedding_dense_backward.default"))
    eager, compiled = (
        price(looked_up, hosted(H200, mode), cost=Learned()).op_ns[:, 0] for mode in ("eager", "compiled")
    )
    assert eager[1] == compiled[1]


def test_the_network_is_a_function_of_its_rows() -> None:
    network = shipped()
    rows = np.random.default_rng(0).normal(size=(50, len(network.centre)))
    assert (network(rows) == network(rows[::-1])[::-1]).all()
    low, high = network.limits[0] - 1 / 256, network.limits[1] + 1 / 256
    assert (network(1e6 * rows) >= low).all() and (network(-1e6 * rows) <= high).all()


def test_a_gpu_has_a_usual_host_unless_it_says_its_own() -> None:
    cluster = hosted(H200, None)
    assert cluster.mode == "compiled" and cluster.host_ns > 0
    assert hosted(H200, "graphs").host_ns == 0
    assert hosted(H200, "eager").host_ns > 0
    own = replace(H200, dispatch_ns={"eager": 5}, mode="eager")
    assert hosted(own, None) is own
    assert hosted(Cluster.preset("1xcpu"), None).mode == ""
