"""Pricing: roofline and transfer times counted by hand."""

from __future__ import annotations

from dataclasses import replace
from fractions import Fraction
from math import ceil
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from loadmaster.cluster import Cluster, Device, Link
from loadmaster.cost import Roofline, price, send_time_ns
from loadmaster.errors import InvalidGraph, InvalidSetting
from loadmaster.graph import Graph, GraphBuilder
from loadmaster.graph.columns import ints
from loadmaster.passes import coarsen
from loadmaster.problem import CANNOT
from tests.graphs import pair
from tests.graphs.tiny import chain, views
from tests.strategies import clusters, graphs


def one_op(**settings: Any) -> Graph:
    g = GraphBuilder()
    x = g.tensor(30, "input")
    g.op("op", "any", [x], [g.tensor(20)], **settings)
    return g.build()


def cluster_of(*devices: Device) -> Cluster:
    count = len(devices)
    links = {(src, dst): Link(1e9) for src in range(count) for dst in range(count) if src != dst}
    channel = np.where(np.eye(count), -1, np.arange(count)[:, None])
    return Cluster("made", devices, links, ints(channel))


SLOW = Device("slow", "toy", 1000, 1e9, 1e9, 3)  # 1 flop and 1 byte per ns
FAST = Device("fast", "toy", 1000, {"default": 4e9, "float16": 8e9}, 20e9, 7)


class TestRoofline:
    def test_longer_of_arithmetic_and_traffic_and_a_launch(self) -> None:
        cluster = cluster_of(SLOW, FAST)
        # 50 bytes moved. Slow: max(100, 50) + 3. Fast: max(25, 2.5) + 7.
        assert price(one_op(flops=100), cluster).op_ns.tolist() == [[103, 32]]
        # Slow: max(10, 50) + 3. Fast: max(2.5, 2.5) rounded up to 3, + 7.
        assert price(one_op(flops=10), cluster).op_ns.tolist() == [[53, 10]]
        assert price(one_op(flops=0, bytes_moved=0), cluster).op_ns.tolist() == [[3, 7]]

    def test_rate_of_the_dtype(self) -> None:
        problem = price(one_op(flops=800, dtype="float16"), cluster_of(SLOW, FAST))
        assert problem.compute_ns.tolist() == [[800, 100]]

    def test_efficiency(self) -> None:
        problem = price(one_op(flops=100), cluster_of(SLOW), cost=Roofline(efficiency=0.5))
        assert problem.op_ns.tolist() == [[203]]

    def test_a_matrix_product_on_a_p100(self) -> None:
        # 1024 cubed, single precision: 2^31 flops at 9.3 TFLOP/s are 230,912.2 ns, 12 MiB at 732 GB/s only 17,190.
        nbytes = 4 * 1024**2
        g = GraphBuilder()
        a, b, c = g.tensor(nbytes, "input"), g.tensor(nbytes, "weight"), g.tensor(nbytes)
        g.op("mm", "mm", [a, b], [c], flops=2 * 1024**3)
        problem = price(g.build(), "p100")
        assert problem.compute_ns.tolist() == [[230_913]]
        assert problem.traffic_bytes.tolist() == [3 * nbytes]
        assert problem.op_ns.tolist() == [[230_913 + 5_000]]

    @settings(max_examples=60)
    @given(st.integers(1, 2**36), st.sampled_from([732 * 10**9, 10**9, 2039 * 10**9, 12 * 10**10]))
    def test_traffic_is_rounded_up_to_the_exact_nanosecond(self, nbytes: int, rate: int) -> None:
        problem = price(one_op(bytes_moved=nbytes), cluster_of(replace(SLOW, bytes_per_s=float(rate), launch_ns=0)))
        assert problem.op_ns[0, 0] == -(-nbytes * 10**9 // rate)


class TestGivenTimes:
    def test_one_time_is_for_every_device_launch_included(self) -> None:
        problem = price(one_op(time_ns=42, flops=10**6), cluster_of(SLOW, FAST))
        assert problem.op_ns.tolist() == [[42, 42]]
        assert problem.compute_ns.tolist() == [[0, 0]] and problem.traffic_bytes.tolist() == [0]
        assert problem.fixed_ns.tolist() == [[39, 35]]

    def test_one_time_per_device_and_none_where_it_cannot_run(self) -> None:
        problem = price(one_op(time_ns=[None, 0]), cluster_of(SLOW, FAST))
        assert problem.op_ns.tolist() == [[CANNOT, 0]]
        assert problem.best_ns.tolist() == [0]

    def test_a_cluster_with_one_op_time_overrides_all(self) -> None:
        g = GraphBuilder()
        g.op("a", "any", time_ns=[None, 5])
        g.op("b", "any", flops=1000)
        problem = price(g.build(), replace(cluster_of(SLOW, FAST), op_ns=11))
        assert problem.op_ns.tolist() == [[11, 11], [11, 11]]

    def test_wrong_number_of_times(self) -> None:
        with pytest.raises(InvalidGraph, match="3 times each, but 'made' has 2 devices"):
            price(one_op(time_ns=[1, 2, 3]), cluster_of(SLOW, FAST))

    def test_an_op_that_can_run_nowhere_is_named(self) -> None:
        with pytest.raises(InvalidGraph, match="'op' cannot run on any device"):
            price(one_op(time_ns=[None, None]), cluster_of(SLOW, FAST))


class TestPrice:
    def test_only_views(self) -> None:
        g = GraphBuilder("hollow")
        x = g.tensor(8, "input")
        g.op("view", "view", [x], [g.tensor(8, alias_of=x)])
        with pytest.raises(InvalidGraph, match="every op is a view"):
            price(g.build(), pair())

    def test_unknown_objective(self) -> None:
        with pytest.raises(InvalidSetting, match="'speed'") as caught:
            price(chain(), pair(), objective="speed")  # type: ignore[arg-type]
        assert "step-time" in caught.value.fix and "peak-memory" in caught.value.fix

    def test_memory_limit(self) -> None:
        assert price(chain(), pair(memory_bytes=100), memory_limit=40).memory_bytes.tolist() == [40, 40]
        assert price(chain(), pair(memory_bytes=100), memory_limit=400).memory_bytes.tolist() == [100, 100]

    def test_source_ops_lead_back(self) -> None:
        problem = price(views(), pair())
        assert [problem.source.op_name[op] for op in problem.source_ops] == list(problem.graph.op_name)

    def test_a_preset_by_name(self) -> None:
        assert price(chain(), "regal").cluster.name == "regal"

    @settings(max_examples=60)
    @given(st.data())
    def test_every_op_by_the_roofline_rule(self, data: st.DataObject) -> None:
        cluster = replace(data.draw(clusters()), op_ns=None)
        graph = data.draw(graphs(plain=True))
        problem = price(graph, cluster)
        for op, source in enumerate(problem.source_ops.tolist()):
            for place, device in enumerate(cluster.devices):
                if graph.time_ns.shape[1] and graph.time_ns[source, 0] >= 0:
                    expected = int(graph.time_ns[source, 0])
                else:
                    rate = Fraction(device.rate(graph.dtype[source]))
                    arithmetic = ceil(int(graph.flops[source]) * 10**9 / rate)
                    traffic = ceil(int(graph.bytes_moved[source]) * 10**9 / Fraction(device.bytes_per_s))
                    expected = device.launch_ns + max(arithmetic, traffic)
                assert problem.op_ns[op, place] == expected


class TestSends:
    @pytest.mark.parametrize(
        ("link", "nbytes", "takes"),
        [
            (Link(1e10, 5), 100, 15),
            (Link(1e10, 5), 40, 9),
            (Link(1e10, 5), 41, 10),
            (Link(None, 5), 10**12, 5),
            (Link(1e9, 0), 0, 0),
            (Link(7.6e9, 25_000), 7_600, 26_000),
            (Link(12e9, 10_000), 2**30, 89_478_486 + 10_000),  # 89,478,485.33 ns
        ],
    )
    def test_by_hand(self, link: Link, nbytes: int, takes: int) -> None:
        assert send_time_ns(link, nbytes) == takes

    @settings(max_examples=60)
    @given(st.data())
    def test_table_holds_every_tensor_on_every_link(self, data: st.DataObject) -> None:
        cluster = data.draw(clusters())
        problem = price(data.draw(graphs()), cluster)
        for (src, dst), link in cluster.links.items():
            for tensor, nbytes in enumerate(problem.graph.nbytes.tolist()):
                exact = 0 if link.bytes_per_s is None else nbytes * 10**9 / Fraction(link.bytes_per_s)
                assert problem.send_ns[tensor, problem.send_class[src, dst]] == link.latency_ns + ceil(exact)


class Known(Roofline):
    """Every op at half the bandwidth of its device, and 5 ns for nothing."""

    def known_ns(self, graph: Graph, cluster: Cluster) -> Any:
        taken = [
            [device.launch_ns + 5 + 2 * moved for device in cluster.devices] for moved in graph.bytes_moved.tolist()
        ]
        return ints(np.array([taken] * 3))


def test_what_a_fused_kernel_need_not_move_is_saved_at_the_rate_that_ops_reach() -> None:
    """Two ops in a row: alone they take what is known, together what is left to move at that rate, and their 5 ns."""
    g, size = GraphBuilder(), 2**20
    tensors = [g.tensor(size, "input"), g.tensor(size), g.tensor(size, "output")]
    for number in range(2):
        g.op(f"op {number}", "aten.neg.default", [tensors[number]], [tensors[number + 1]])
    problem = price(g.build(), cluster_of(replace(SLOW, memory_bytes=2**30)), cost=Known())
    assert problem.op_ns[:, 0].tolist() == [3 + 5 + 4 * size] * 2
    fused = coarsen(problem, ints([0, 0])).problem
    assert abs(int(fused.op_ns[0, 0]) - (3 + 10 + 4 * size)) <= 10  # rates are whole bytes a second
    plain = price(g.build(), cluster_of(replace(SLOW, memory_bytes=2**30)))
    assert plain.bytes_per_s.tolist() == [10**9] and problem.bytes_per_s[0] == pytest.approx(5e8, rel=1e-4)
