"""Clusters on disk: what is written comes back, and what is wrong is named."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings

from loadmaster.cluster import Cluster, preset_names
from loadmaster.errors import InvalidCluster
from loadmaster.files import cluster_from_json, cluster_to_json, load_cluster, save_cluster
from tests.strategies import clusters
from tests.unit.files.samples import CLUSTER, Data, changed, same, without


def test_cluster_is_read_as_written_by_hand() -> None:
    cluster = cluster_from_json(CLUSTER)
    assert cluster.name == "three" and cluster.device_names == ("a", "b", "c") and cluster.op_ns is None
    assert cluster.memory_bytes.tolist() == [1000, 2000, 3000]
    assert [device.rate("float16") for device in cluster.devices] == [1e9, 2e9, 10.0]
    assert [device.launch_ns for device in cluster.devices] == [3, 0, 0]
    assert cluster.links[0, 1].bytes_per_s == 1e9 and cluster.links[0, 1].latency_ns == 5
    assert cluster.links[1, 0].bytes_per_s is None
    assert cluster.links[2, 0].bytes_per_s == 1e6 and cluster.links[2, 0].latency_ns == 50


def wires(cluster: Cluster) -> list[set[tuple[int, int]]]:
    """Pairs that share a channel."""
    numbers = {int(number) for number in cluster.channel[cluster.channel >= 0]}
    assert numbers == set(range(len(numbers))) and (np.diag(cluster.channel) == -1).all()
    return [set(map(tuple, np.argwhere(cluster.channel == number).tolist())) for number in sorted(numbers)]


@pytest.mark.parametrize(
    ("kind", "shared"),
    [
        (None, [{(0, 2)}, {(1, 2)}, {(2, 0)}, {(2, 1)}]),
        ("pair", [{(0, 2)}, {(1, 2)}, {(2, 0)}, {(2, 1)}]),
        ("out", [{(0, 2)}, {(1, 2)}, {(2, 0), (2, 1)}]),
        ("bus", [{(0, 2), (1, 2), (2, 0), (2, 1)}]),
    ],
)
def test_default_link_fills_the_other_pairs(kind: str | None, shared: list[set[tuple[int, int]]]) -> None:
    data = changed(CLUSTER, lambda c: c["default_link"].update(channel=kind) if kind else None)
    assert sorted(map(sorted, wires(cluster_from_json(data)))) == sorted(map(sorted, [{(0, 1)}, {(1, 0)}, *shared]))


def test_links_with_one_channel_share_a_wire() -> None:
    def share(data: Data) -> None:
        data["links"] = [
            {"from": a, "to": b, "bytes_per_s": 1, "latency_ns": 0, "channel": channel}
            for a, b, channel in [("a", "b", 3), ("b", "a", 3), ("a", "c", "3"), ("c", "a", "3"), ("b", "c", 0)]
        ] + [{"from": "c", "to": "b", "bytes_per_s": 1, "latency_ns": 0}]

    assert wires(cluster_from_json(changed(CLUSTER, share))) == [
        {(1, 2)},
        {(0, 1), (1, 0)},
        {(0, 2), (2, 0)},
        {(2, 1)},
    ]


PRESETS = [name.replace("Nx", "3x") for name in preset_names()]


@pytest.mark.parametrize("name", [*PRESETS, "2xh100-nvswitch+1xcpu", "2xa100-nvlink+2xp100-pcie", "1xcpu+3xv100+1xk80"])
def test_preset_round_trip(tmp_path: Path, name: str) -> None:
    cluster = Cluster.preset(name)
    save_cluster(cluster, tmp_path / "c.json")
    again = Cluster.load(tmp_path / "c.json")
    assert again.digest == cluster.digest and same(cluster, again)


@settings(max_examples=60)
@given(cluster=clusters())
def test_any_cluster_round_trips(cluster: Cluster) -> None:
    again = cluster_from_json(json.loads(json.dumps(cluster_to_json(cluster))))
    assert again.digest == cluster.digest and same(cluster, again)


def test_whole_and_fractional_rates_are_one() -> None:
    data = changed(CLUSTER, device(0, flops_per_s=1_000_000_000, bytes_per_s=1_000_000_000))
    assert cluster_from_json(data).digest == cluster_from_json(CLUSTER).digest


def test_cluster_is_named_after_its_file(tmp_path: Path) -> None:
    path = tmp_path / "lab.v2.json"
    path.write_text(json.dumps(changed(CLUSTER, lambda c: c.pop("name"))))
    assert load_cluster(path).name == "lab"


def device(number: int, **fields: Any) -> Callable[[Data], object]:
    return lambda cluster: cluster["devices"][number].update(fields)


def link(number: int, **fields: Any) -> Callable[[Data], object]:
    return lambda cluster: cluster["links"][number].update(fields)


BROKEN_CLUSTERS: dict[str, tuple[Callable[[Data], object], list[str]]] = {
    "unknown device": (link(0, to="z"), ["links[0]", "'z'", "a, b, c"]),
    "device by number": (link(0, to=1), ["links[0]", "to", "1"]),
    "link to itself": (link(0, to="a"), ["links[0]", "'a'"]),
    "link twice": (link(1, **{"from": "a", "to": "b"}), ["links[1]", "'a'", "'b'"]),
    "negative memory": (device(1, memory_bytes=-1), ["'b'", "memory_bytes", "-1"]),
    "fractional memory": (device(1, memory_bytes=0.5), ["'b'", "memory_bytes", "0.5"]),
    "absurd memory": (device(1, memory_bytes=2**63), ["'b'", "memory_bytes"]),
    "memory as text": (device(1, memory_bytes="16GiB"), ["'b'", "memory_bytes", "16GiB"]),
    "no speed": (device(1, flops_per_s=0), ["'b'", "flops_per_s", "0"]),
    "negative speed": (device(1, flops_per_s=-3.0), ["'b'", "flops_per_s", "-3.0"]),
    "not a number": (device(1, flops_per_s=float("nan")), ["'b'", "flops_per_s", "nan"]),
    "infinite": (device(1, bytes_per_s=float("inf")), ["'b'", "bytes_per_s", "inf"]),
    "huge": (device(1, bytes_per_s=10**400), ["'b'", "bytes_per_s"]),
    "truth": (device(1, bytes_per_s=True), ["'b'", "bytes_per_s", "true"]),
    "no default rate": (device(1, flops_per_s={"float16": 1}), ["'b'", "default"]),
    "rate as text": (device(1, flops_per_s={"default": "fast"}), ["'b'", "flops_per_s", "default", "fast"]),
    "rates as list": (device(1, flops_per_s=[1]), ["'b'", "flops_per_s"]),
    "negative launch": (device(1, launch_ns=-1), ["'b'", "launch_ns"]),
    "name twice": (device(1, name="a"), ["'a'"]),
    "name as number": (device(1, name=1), ["devices[1]", "name"]),
    "no name": (without("devices", 1, "name"), ["devices[1]", "name"]),
    "no kind": (without("devices", 1, "kind"), ["'b'", "kind"]),
    "no memory": (without("devices", 1, "memory_bytes"), ["'b'", "memory_bytes"]),
    "misspelt": (device(1, memory=1), ["'memory'", "memory_bytes"]),
    "negative latency": (link(0, latency_ns=-1), ["links[0]", "latency_ns"]),
    "no latency": (without("links", 0, "latency_ns"), ["links[0]", "latency_ns"]),
    "no rate": (without("links", 0, "bytes_per_s"), ["links[0]", "bytes_per_s"]),
    "channel as list": (link(0, channel=[1]), ["links[0]", "channel"]),
    "negative channel": (link(0, channel=-1), ["links[0]", "channel"]),
    "fractional channel": (link(0, channel=1.5), ["links[0]", "channel"]),
    "no way": (lambda c: c.pop("default_link"), ["'a'", "'c'", "default_link"]),
    "unknown wiring": (lambda c: c["default_link"].update(channel="ring"), ["default_link", "ring", "bus"]),
    "default as number": (lambda c: c.update(default_link=3), ["default_link", "3"]),
    "no devices": (lambda c: c.update(devices=[]), ["no devices"]),
    "devices missing": (lambda c: c.pop("devices"), ["devices", "missing"]),
    "links as object": (lambda c: c.update(links={}), ["links", "an object"]),
    "link as null": (lambda c: c["links"].__setitem__(0, None), ["links[0]", "null"]),
    "negative op_ns": (lambda c: c.update(op_ns=-1), ["op_ns", "-1"]),
    "op_ns as text": (lambda c: c.update(op_ns="1"), ["op_ns", "'1'"]),
    "unknown key": (lambda c: c.update(memory=3), ["'memory'"]),
}  # fmt: skip


@pytest.mark.parametrize("case", BROKEN_CLUSTERS)
def test_broken_cluster_names_the_culprit(case: str) -> None:
    change, words = BROKEN_CLUSTERS[case]
    with pytest.raises(InvalidCluster) as caught:
        cluster_from_json(changed(CLUSTER, change), "lab.json")
    assert caught.value.fix
    for word in words:
        assert word in str(caught.value)


def test_one_device_needs_no_links() -> None:
    alone = {"schema": "loadmaster.cluster/1", "devices": CLUSTER["devices"][:1], "op_ns": 4}
    assert cluster_from_json(alone).op_ns == 4


def test_prices_and_watts_are_read_and_written_back(tmp_path: Path) -> None:
    device = {"name": "a", "kind": "k", "memory_bytes": 10, "flops_per_s": 1e9, "bytes_per_s": 1e9}
    device |= {"price_per_hour": 2.5, "watts": 300}
    path = tmp_path / "c.json"
    path.write_text(json.dumps({"schema": "loadmaster.cluster/1", "devices": [device]}))
    cluster = load_cluster(path)
    assert (cluster.devices[0].price_per_hour, cluster.devices[0].watts, cluster.devices[0].launch_ns) == (2.5, 300, 0)
    save_cluster(cluster, path)
    assert load_cluster(path).devices == cluster.devices


def test_a_default_wire_that_is_null_is_one_that_is_not_given() -> None:
    given = changed(CLUSTER, lambda c: c["default_link"].update(channel=None))
    plain = changed(CLUSTER, lambda c: c["default_link"].pop("channel", None))
    assert cluster_from_json(given).digest == cluster_from_json(plain).digest
