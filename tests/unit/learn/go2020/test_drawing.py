"""Graphs and clusters to learn from, with random numbers that are told."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from loadmaster.graph import ACTIVATION
from loadmaster.learn.go2020 import drawing
from tests.problems import layers
from tests.unit.learn.told import Told


class Drawn:
    """A generator whose next numbers are told; what it chooses from is written down."""

    def __init__(self, *numbers: float, pick: int = 0, noise: float = 0.0) -> None:
        self.numbers, self.pick, self.noise, self.asked = list(numbers), pick, noise, list[Any]()

    def random(self) -> float:
        return self.numbers.pop(0)

    def choice(self, some: Any) -> Any:
        self.asked.append(list(some))
        return some[self.pick]

    def integers(self, *bounds: int) -> int:
        self.asked.append(bounds)
        return bounds[0] if len(bounds) > 1 else 0

    def standard_normal(self, count: int) -> Any:
        return np.full(count, self.noise)


@pytest.mark.parametrize(
    ("pick", "noise", "batch", "factor"), [(0, 9.0, 1, 1.0), (1, 2.0, 4, np.exp(0.2)), (2, 9.0, 8, np.exp(2.7))]
)
def test_a_larger_batch_and_noise_are_at_most_128_times_as_much(
    pick: int, noise: float, batch: int, factor: float
) -> None:
    rng: Any = Drawn(pick=pick, noise=noise)
    graph = layers(2, 2, 1)
    varied = drawing.vary(graph, rng)
    assert rng.asked == [[0.0, 0.1, 0.3], [1, 4, 8, 16, 32, 64]]
    larger = np.where(graph.role == ACTIVATION, min(128.0, batch * factor), factor)
    np.testing.assert_allclose(varied.nbytes, np.ceil(graph.nbytes * larger), atol=1)
    more = min(128.0, batch * factor)
    np.testing.assert_allclose(varied.flops, np.ceil(graph.flops * more), atol=1)
    np.testing.assert_allclose(varied.bytes_moved, np.ceil(graph.bytes_moved * more), atol=1)


@pytest.mark.parametrize(
    ("number", "devices"),
    [(0.29, ["p100-pcie"] * 3), (0.31, ["p100-pcie", "k80", "k80"]), (0.39, ["p100-pcie", "k80", "k80"])],
)
def test_some_clusters_are_presets(number: float, devices: list[str]) -> None:
    rng: Any = Drawn(number, pick=3)
    cluster = drawing.draw_cluster(rng)
    assert [device.kind for device in cluster.devices] == devices
    assert rng.asked[0] == [2, 2, 2, 3, 4, 4, 4, 5, 6, 8, 8] and rng.asked[1:] == ([(1, 3)] if number > 0.3 else [])


@pytest.mark.parametrize(
    ("numbers", "unlike", "free"), [((0.41, 0.49, 0.14), True, True), ((0.9, 0.51, 0.16), False, False)]
)
def test_the_others_are_drawn(
    numbers: tuple[float, ...], unlike: bool, free: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(drawing, "_drawn_cluster", lambda rng, count, unlike, free: (count, unlike, free))
    rng: Any = Drawn(*numbers, pick=7)
    assert drawing.draw_cluster(rng) == (5, unlike, free)  # type: ignore[comparison-overlap]


@pytest.mark.parametrize(("number", "branches"), [(0.19, False), (0.21, True)])
def test_a_fifth_of_the_graphs_are_of_the_kinds_of_the_zoo(
    number: float, branches: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    rng: Any = Drawn(number)
    kinds = sorted(drawing.synthetic.KINDS)
    monkeypatch.setattr(drawing.synthetic, "generate", lambda *given: [given])
    monkeypatch.setattr(drawing, "branching_step", lambda rng: "branching")
    assert drawing.draw_graph(rng) == ("branching" if branches else (kinds[0], 1, 0, (80, 400)))  # type: ignore[comparison-overlap]
    assert rng.asked == ([] if branches else [(len(kinds),), (2**31,)])


def test_a_step_of_two_lanes_that_join_by_hand() -> None:
    """f0 is heavy, in lane 0; f1 is not, in lane 1, and reads lane 0 too; f2, heavy and tiny, would join its own."""
    lanes, count = 2, 3
    rng: Any = Told(
        integers=[lanes, count, 0, 1, 0, 0, 0],
        uniform=[1.0, 10.0, 20.0, 1.0, 0.0],
        random=[0.5, 0.39, 0.19, 0.41, 0.1, 0.1],
        normal=[0.0, 0.0, 0.0, np.log(3.0), -50.0, np.log(2.0)],
    )
    graph = drawing.branching_step(rng)
    assert rng.asked[:5] == [(2, 9), (60, 500), (0.2, 1.0), (17, 24), (26, 33)]
    assert rng.asked[5:] == [(2,), (-6, 2), (2,), (2,), (2,), (2,), (-6, 2)]
    assert not any(rng.lists.values())
    #                input    f0    w0    f1    f2    w2  loss
    sizes = [1024, 1024, 2048, 1024, 1, 1024, 4, 1024, 1024, 1024, 1024, 2048, 2048]
    assert graph.nbytes.tolist() == sizes
    made = {
        name: (graph.kind[op], graph.reads_of(op).tolist(), graph.makes_of(op).tolist(), int(graph.flops[op]))
        for op, name in enumerate(graph.op_name)
    }
    heavy = 2**20
    assert made == {
        "f0": ("mm", [0, 2], [1], heavy),
        "f1": ("add", [0, 1], [3], 3 * 1024),
        "f2": ("mm", [1, 5], [4], 2 * heavy),
        "loss": ("sum", [3, 4], [6], 1_000),
        "b2 1": ("mm", [6, 1], [7], 2 * heavy),
        "w2": ("mm", [6, 1], [8], 2 * heavy),
        "u2": ("add", [8, 5], [9], 256),
        "b1 1": ("add", [6, 0, 1], [10], 3 * 1024),
        "w0": ("mm", [7, 10, 0], [11], heavy),
        "u0": ("add", [11, 2], [12], 512),
    }
    assert {made: old for made, old in enumerate(graph.alias_of.tolist()) if old >= 0} == {9: 5, 12: 2}


def test_steps_of_fewer_ops_at_most_have_fewer_at_least() -> None:
    rng: Any = Told([2, 0], [1.0, 1.0, 1.0], [], [])
    assert drawing.branching_step(rng, most=250).op_name == ("loss",)
    assert rng.asked[1] == (30, 250)


@pytest.mark.parametrize(("free", "unlike", "bus"), [(True, True, 0.4), (False, True, 0.6), (False, False, 0.4)])
def test_devices_are_as_much_slower_in_all_and_hold_less(free: bool, unlike: bool, bus: float) -> None:
    speeds = [[-1.0, 0.0, 0.0]] if unlike else []
    rng: Any = Told([4_000, 7_000], [*map(np.array, speeds), 1.0, 2.0, 3.0], [bus], [])
    cluster = drawing._drawn_cluster(rng, 3, unlike, free)
    wire = [] if free else [(-1, 5), (2_000, 25_000)]
    assert rng.asked == [*([(-2, 0, 3)] if unlike else []), (-1, 2), (-1, 2), (1_000, 10_000), *wire]
    speed = [0.5, 1.0, 1.0] if unlike else [1.0] * 3
    for device, s in zip(cluster.devices, speed, strict=True):
        assert (device.flops_per_s, device.bytes_per_s, device.launch_ns) == (2e13 * s, 2.8e12 * s, 4_000)
        assert device.memory_bytes == 2**36 + 2**37 * s
    link = cluster.links[0, 1]
    assert (link.bytes_per_s, link.latency_ns) == ((None, 0) if free else (8e10, 7_000))
    assert (cluster.channel[0, 1] == cluster.channel[0, 2]) == (bus < 0.5)  # all that a device sends, over one wire
