"""Graphs and clusters to learn from, with random numbers that are told."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from loadmaster.graph import ACTIVATION
from loadmaster.learn.go2020 import drawing
from tests.golden.plans import layers


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
