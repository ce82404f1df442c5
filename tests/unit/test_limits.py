"""Numbers are exact or refused: whatever could leave int64, or has no answer, is found before it is computed."""

from __future__ import annotations

import numpy as np
import pytest

import loadmaster as lm
from loadmaster.cluster import Cluster, Device, Link, dense_channels
from loadmaster.errors import InvalidCluster, InvalidGraph
from loadmaster.graph.columns import ints


def cluster(devices: int = 2, *, bytes_per_s: float = 1e9, link: Link | None = None, memory: int = 2**40) -> Cluster:
    parts = tuple(Device(f"d{i}", "gpu", memory, 1e12, bytes_per_s) for i in range(devices))
    pairs = {(a, b): link or Link(1e9, 0) for a in range(devices) for b in range(devices) if a != b}
    channel = np.arange(devices * devices).reshape(devices, devices)
    np.fill_diagonal(channel, -1)
    return Cluster("mine", parts, pairs, dense_channels(ints(channel)))


def chain(count: int, **op: object) -> lm.Graph:
    build = lm.GraphBuilder("chain")
    last = build.tensor(1, "input", name="x")
    for i in range(count):
        made = build.tensor(1, "output" if i == count - 1 else "activation")
        build.op(f"op{i}", "add", [last], [made], **op)  # type: ignore[arg-type]
        last = made
    return build.build()


def test_traffic_at_a_crawl_is_not_free() -> None:
    build = lm.GraphBuilder("slow")
    build.op("read", "add", [build.tensor(1, "input")], [build.tensor(1, "output")], bytes_moved=20_000_000_000)
    with pytest.raises(InvalidGraph, match="'read' would take"):
        lm.price(build.build(), cluster(bytes_per_s=2))
    problem = lm.price(build.build(), cluster(bytes_per_s=20_000))
    assert problem.op_ns.tolist() == [[10**15, 10**15]]


def test_sends_that_together_pass_all_numbers_are_refused() -> None:
    with pytest.raises(InvalidCluster, match="sends would take"):
        lm.price(chain(9_000), cluster(link=Link(None, 2**50)))
    lm.price(chain(3), cluster(link=Link(None, 2**50)))


@pytest.mark.parametrize("what", ["flops", "workspace_bytes", "bytes_moved"])
def test_totals_of_a_graph_stay_whole(what: str) -> None:
    most = {"flops": 2**60, "workspace_bytes": 2**50, "bytes_moved": 2**50}[what]
    with pytest.raises(InvalidGraph, match=what):
        chain(5_000 if most < 2**60 else 5, **{what: most})


def test_bytes_that_every_device_may_hold_are_counted_for_all_of_them() -> None:
    graph = chain(2_000, workspace_bytes=2**48)
    with pytest.raises(InvalidGraph, match="add up to"):
        lm.price(graph, cluster(16))


def test_ops_that_share_a_device_have_one_in_common() -> None:
    build = lm.GraphBuilder("apart")
    x = build.tensor(1, "input")
    build.op("a", "add", [x], [build.tensor(1, "output")], colocate="g", time_ns=[1, None])
    build.op("b", "add", [x], [build.tensor(1, "output")], colocate="g", time_ns=[None, 1])
    with pytest.raises(InvalidGraph, match="'a', 'b' must share a device"):
        lm.price(build.build(), cluster())


def test_rates_beyond_int64_are_as_good_as_free() -> None:
    problem = lm.price(chain(2, bytes_moved=2**40), cluster(bytes_per_s=1e24))
    assert problem.op_ns.max() <= 1000 and problem.op_ns.min() >= 0


def test_a_cluster_has_limits_too() -> None:
    with pytest.raises(InvalidCluster, match="beyond any device"):
        cluster(memory=2**61)
    with pytest.raises(InvalidCluster, match="devices"):
        lm.Cluster("big", tuple(Device(f"d{i}", "gpu", 1, 1.0, 1.0) for i in range(2000)), {}, ints(np.zeros((0, 0))))


def test_hundreds_of_devices_are_planned() -> None:
    problem = lm.price(chain(3), cluster(300))
    assert lm.solve(problem, "heft", lm.Budget(None, 1)).value > 0


def test_links_that_all_differ_are_refused_before_the_table_is_made() -> None:
    devices = 300
    mine = cluster(devices)
    odd = {pair: Link(1e9 + i, 0) for i, pair in enumerate(mine.links)}
    with pytest.raises(InvalidCluster, match="kinds of links"):
        lm.price(chain(5_000), Cluster("odd", mine.devices, odd, mine.channel))


def test_a_list_of_times_for_more_devices_than_there_can_be() -> None:
    build = lm.GraphBuilder("long")
    build.op("a", "add", [build.tensor(1, "input")], [build.tensor(1, "output")], time_ns=[1] * 100_000)
    with pytest.raises(InvalidGraph, match="100,000 entries"):
        build.build()


def test_long_chains_of_aliases_take_no_time() -> None:
    build = lm.GraphBuilder("aliases")
    first = last = build.tensor(8, "weight")
    for _ in range(20_000):
        last = build.tensor(8, "activation", alias_of=last)
    for i in range(300):
        build.op(f"op{i}", "add", [last, first], [build.tensor(8, "output")])
    assert lm.price(build.build(), cluster()).num_ops == 300


def test_views_that_wait_for_much_take_little_memory() -> None:
    import tracemalloc

    build = lm.GraphBuilder("views")
    x = build.tensor(8, "input")
    shown = x
    for i in range(3_000):
        made, view = build.tensor(8, "output"), build.tensor(8, "activation", alias_of=shown)
        build.op(f"op{i}", "add", [x], [made], flops=1)
        build.op(f"view{i}", "view", [shown], [view], after=[f"op{i}"])
        shown = view
    build.op("last", "add", [shown], [build.tensor(8, "output")], flops=1)
    graph = build.build()
    tracemalloc.start()
    problem = lm.price(graph, cluster())
    most = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert len(problem.graph.after_of(3_000)) == 3_000
    assert most < 50e6


@pytest.mark.parametrize("text", ["abc", "0", "-1", "1e3", "99999999999999999999", "²"])
def test_threads_are_a_whole_number(monkeypatch: pytest.MonkeyPatch, text: str) -> None:
    monkeypatch.setenv("LOADMASTER_THREADS", text)
    problem = lm.price(chain(3), cluster())
    with pytest.raises(lm.InvalidSetting, match="LOADMASTER_THREADS"):
        lm.simulate_many(problem, np.zeros((4, 3), np.int64))


def test_specs_are_not_bottomless() -> None:
    with pytest.raises(lm.InvalidSetting, match="nested too deeply"):
        lm.make_method("best-of:of=[" * 2_000 + "heft" + "]" * 2_000)


def test_sizes_are_not_endless() -> None:
    with pytest.raises(lm.InvalidSetting, match="not a size"):
        lm.price(chain(2), cluster(), memory_limit="9" * 5_000)
