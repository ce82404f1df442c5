"""Clusters: presets by the figures of their sources, wiring, digests, refusals."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from loadmaster.cluster import GIB, Cluster, Device, Link, dense_channels, preset_names
from loadmaster.errors import InvalidCluster, UnknownName
from loadmaster.graph.columns import ints
from tests.graphs import pair


class TestPresets:
    def test_regal(self) -> None:
        cluster = Cluster.preset("regal")
        assert cluster.num_devices == 2 and cluster.op_ns is not None and cluster.op_ns > 0
        assert cluster.memory_bytes.tolist() == [16 * GIB] * 2
        assert set(cluster.links.values()) == {Link(None, 0)}

    @pytest.mark.parametrize("count", [2, 4])
    def test_placeto(self, count: int) -> None:
        cluster = Cluster.preset(f"placeto-{count}")
        assert cluster.num_devices == count
        assert {device.launch_ns for device in cluster.devices} == {5_700}
        # 7,600 bytes per microsecond and 25 microseconds
        assert set(cluster.links.values()) == {Link(7.6e9, 25_000)}
        for src in range(count):  # one outgoing bus per device
            assert len({int(cluster.channel[src, dst]) for dst in range(count) if dst != src}) == 1
        assert len(set(cluster.channel[cluster.channel >= 0].tolist())) == count

    def test_parts_are_joined(self) -> None:
        cluster = Cluster.preset("2xa100-nvlink+1xcpu")
        assert cluster.device_names == ("a100-nvlink:0", "a100-nvlink:1", "cpu:0")
        assert [device.kind for device in cluster.devices] == ["a100-nvlink", "a100-nvlink", "cpu"]
        near, far = cluster.links[0, 1], cluster.links[0, 2]
        assert near.bytes_per_s and far.bytes_per_s and near.bytes_per_s > 10 * far.bytes_per_s
        assert cluster.channel[0, 1] != cluster.channel[0, 2]  # NVLink and PCIe are two wires

    def test_a_wire_per_pair_where_the_links_are_so(self) -> None:
        channel = Cluster.preset("4xv100-nvlink").channel
        assert len(set(channel[channel >= 0].tolist())) == 12

    def test_one_is_the_default_count_and_short_names_work(self) -> None:
        assert Cluster.preset("cpu").num_devices == 1
        assert Cluster.preset("h100").devices[0].kind == "h100-nvswitch"
        assert Cluster.preset("2xp100").digest == Cluster.preset("2xp100-pcie").digest

    def test_free_memory_is_said_with_a_part_or_alone(self) -> None:
        cluster = Cluster.preset("1x4090+2x3090:20GiB+cpu")
        assert [d.memory_bytes // GIB for d in cluster.devices] == [24, 20, 20, 256]
        assert [d.kind for d in cluster.devices] == ["rtx-4090", "rtx-3090", "rtx-3090", "cpu"]
        assert [d.memory_bytes for d in Cluster.preset("2x1.5GB").devices] == [1_500_000_000] * 2
        assert Cluster.preset("a100:8GiB").digest == Cluster.preset("a100").digest  # memory decides no time

    @pytest.mark.parametrize("name", preset_names())
    def test_every_listed_preset_is_one(self, name: str) -> None:
        cluster = Cluster.preset(name.replace("N", "3", 1) if name.startswith("Nx") else name)
        pairs = cluster.num_devices * (cluster.num_devices - 1)
        assert len(cluster.links) == pairs and int((cluster.channel >= 0).sum()) == pairs
        assert all(device.rate("float32") > 0 and device.bytes_per_s > 0 for device in cluster.devices)

    @pytest.mark.parametrize("name", ["p1000", "2xp1000", "", "2x", "regal+cpu", "2xA100", "-1xcpu"])
    def test_unknown_names_list_the_choices(self, name: str) -> None:
        with pytest.raises(UnknownName) as caught:
            Cluster.preset(name)
        assert f"'{name}'" in caught.value.what
        assert "did you mean " in caught.value.fix or "Nxh200" in caught.value.fix

    @pytest.mark.parametrize("name", ["0xcpu", "65xcpu", "60xcpu+5xk80", "999xcpu"])
    def test_counts_out_of_range(self, name: str) -> None:
        with pytest.raises(InvalidCluster, match=name.replace("+", r"\+")):
            Cluster.preset(name)


class TestRates:
    def test_by_dtype_with_a_default(self) -> None:
        device = Device("d", "toy", 1, {"default": 1e12, "float16": 4e12}, 1e9)
        assert (device.rate("float16"), device.rate("int8")) == (4e12, 1e12)

    def test_one_rate_for_all(self) -> None:
        assert Device("d", "toy", 1, 5.0, 1e9).rate("float64") == 5.0

    def test_halves_of_a_p100_are_twice_as_fast(self) -> None:
        # NVIDIA's data sheet: 18.7 TFLOP/s in half precision, 9.3 in single.
        device = Cluster.preset("p100").devices[0]
        assert device.rate("float16") == 18.7e12 and device.rate("float32") == 9.3e12


class TestDigest:
    def test_names_and_memory_are_left_out(self) -> None:
        cluster = pair()
        renamed = tuple(replace(device, name=f"other{i}") for i, device in enumerate(cluster.devices))
        assert cluster.digest == replace(cluster, name="x", devices=renamed).digest == pair(memory_bytes=7).digest

    @pytest.mark.parametrize(
        "change",
        [
            {"op_ns": 5},
            {"channel": ints([[-1, 0], [0, -1]])},
            {"links": {(0, 1): Link(1e10, 5), (1, 0): Link(1e10, 6)}},
            {"links": {(0, 1): Link(1e10, 5), (1, 0): Link(None, 5)}},
        ],
    )
    def test_what_decides_times_is_in_it(self, change: dict[str, Any]) -> None:
        assert replace(pair(), **change).digest != pair().digest

    def test_rates_of_devices_are_in_it(self) -> None:
        assert pair(launch_ns=1).digest != pair().digest

    def test_the_order_of_links_and_rates_does_not_matter(self) -> None:
        cluster = pair()
        assert (
            replace(cluster, links={key: cluster.links[key] for key in sorted(cluster.links, reverse=True)}).digest
            == cluster.digest
        )
        one, other = ({"default": 1.0, "float16": 2.0}, {"float16": 2.0, "default": 1.0})
        faster = [
            replace(cluster, devices=tuple(replace(d, flops_per_s=r) for d in cluster.devices)) for r in (one, other)
        ]
        assert faster[0].digest == faster[1].digest


def test_with_memory_only_takes_away() -> None:
    cluster = replace(pair(), devices=(replace(pair().devices[0], memory_bytes=50), pair().devices[1]))
    assert cluster.with_memory(100).memory_bytes.tolist() == [50, 100]


def test_with_memory_leaves_a_host_beside_others_what_it_has() -> None:
    gpu, other = pair().devices
    host = replace(other, kind="cpu")
    both = replace(pair(), devices=(gpu, host)).with_memory(100).memory_bytes
    assert both.tolist() == [100, host.memory_bytes]
    hosts = replace(pair(), devices=(replace(gpu, kind="cpu"), host)).with_memory(100).memory_bytes
    assert hosts.tolist() == [100, 100]


def test_dense_channels_keep_which_pairs_share() -> None:
    channel = np.array([[-1, 7, 7], [30, -1, 9], [9, 30, -1]])
    assert dense_channels(channel).tolist() == [[-1, 0, 0], [2, -1, 1], [1, 2, -1]]


class TestRefusals:
    def test_no_devices(self) -> None:
        with pytest.raises(InvalidCluster, match="no devices"):
            Cluster("empty", (), {}, ints(np.empty((0, 0))))

    def test_two_devices_of_one_name(self) -> None:
        device = pair().devices[0]
        with pytest.raises(InvalidCluster, match="same name"):
            replace(pair(), devices=(device, device))

    def test_a_pair_without_a_link_is_named(self) -> None:
        with pytest.raises(InvalidCluster, match="from 'd0' to 'd1'"):
            replace(pair(), links={(1, 0): Link(None, 0)})

    @pytest.mark.parametrize("link", [Link(0.0), Link(-1e9), Link(float("nan")), Link(1e9, -1)])
    def test_links_that_cannot_be(self, link: Link) -> None:
        with pytest.raises(InvalidCluster, match="'d0'"):
            pair(link=link)

    @pytest.mark.parametrize("channel", [[[-1]], [[-1, -1], [0, -1]], [[-1, 0], [1, -1], [2, 2]]])
    def test_channels_that_do_not_cover_every_pair(self, channel: list[list[int]]) -> None:
        # The compiled loop trusts these numbers.
        with pytest.raises(InvalidCluster, match="channel"):
            replace(pair(), channel=ints(channel))

    @pytest.mark.parametrize("change", [{"flops_per_s": 0.0}, {"bytes_per_s": 0.0}, {"flops_per_s": {"float16": 1.0}}])
    def test_devices_that_cannot_be(self, change: dict[str, Any]) -> None:
        with pytest.raises(InvalidCluster, match="'d0'"):
            replace(pair(), devices=tuple(replace(device, **change) for device in pair().devices))
