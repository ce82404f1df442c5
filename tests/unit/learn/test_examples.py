"""Problems to learn from, at the borders of what is drawn and kept: worked out by hand."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from loadmaster.cluster import Device, Link
from loadmaster.errors import LoadmasterError
from loadmaster.files import graph_to_json
from loadmaster.graph.columns import ints
from loadmaster.learn import examples
from loadmaster.learn.examples import Elite, Key
from tests.graphs import GRAPHS


@pytest.fixture(autouse=True)
def _nothing_read() -> Any:
    examples.forget_corpora()
    yield
    examples.forget_corpora()


def test_half_of_the_drawn_ones_are_seen_without_scopes(monkeypatch: pytest.MonkeyPatch) -> None:
    seen = SimpleNamespace(without_scopes=lambda: "without")
    monkeypatch.setattr(examples, "make_problem", lambda key: key)
    monkeypatch.setattr(examples, "features_of", lambda problem: seen)
    make = examples.make_features.__wrapped__
    keys = [Key(line, seed) for line in range(4) for seed in range(6)]
    drops = [np.random.default_rng([key.line, key.seed, 1]).random() < 0.5 for key in keys]
    assert [make(key) == "without" for key in keys] == drops and 5 < sum(drops) < 19
    assert all(make(Key(line, seed, "regal")) is seen for line, seed, _ in keys)


@pytest.mark.parametrize(("ops", "suits"), [(39, False), (40, True), (41, True), (1_600, True), (1_601, False)])
def test_examples_of_so_many_ops_suit(ops: int, suits: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(examples, "make_problem", lambda key: SimpleNamespace(num_ops=ops))
    assert examples.suits(Key(0, 0)) is suits
    if not suits:
        assert examples.find_elite(Key(0, 0), 5) is None


class Drawn:
    """A generator whose next numbers are told."""

    def __init__(self, *numbers: float) -> None:
        self.numbers = list(numbers)

    def random(self) -> float:
        return self.numbers.pop(0)

    def integers(self, low: int, high: int) -> int:
        assert (low, high) == (2, 5)
        return 3


@pytest.mark.parametrize(
    ("numbers", "wanted"),
    [
        ((0.59,), "regal"),
        ((0.61, 0.49), (3, True, True, "peak-memory")),
        ((0.74, 0.51), (3, False, True, "peak-memory")),
        ((0.76, 0.59), (3, True, False, "step-time")),
        ((0.91, 0.61), (3, False, False, "step-time")),
        ((0.93, 0.59), (3, True, False, "peak-memory")),
    ],
)
def test_settings_by_what_is_drawn(numbers: tuple[float, ...], wanted: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(examples, "_drawn_cluster", lambda rng, count, unlike, free: (count, unlike, free))
    rng: Any = Drawn(*numbers)
    cluster, objective = examples.draw_setting(rng)
    if wanted == "regal":
        assert (len(cluster.devices), objective) == (2, "peak-memory")
    else:
        assert (*cluster, objective) == wanted  # type: ignore[misc]
    assert not rng.numbers


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize(("unlike", "free"), [(True, True), (True, False), (False, True), (False, False)])
def test_drawn_clusters_are_within_their_bounds(seed: int, unlike: bool, free: bool) -> None:
    cluster = examples._drawn_cluster(np.random.default_rng(seed), 3, unlike, free)
    rates = [device.flops_per_s for device in cluster.devices]
    assert all(1.25e12 <= rate <= 4e13 for rate in rates) and (len(set(rates)) == 1) != unlike  # type: ignore[operator]
    assert all(2**34 <= device.memory_bytes <= 2**36 for device in cluster.devices)
    if not unlike:
        assert {device.memory_bytes for device in cluster.devices} == {2**35}
    assert {cluster.links[pair].latency_ns == 0 for pair in cluster.links} == {free}
    assert cluster.op_ns == (1_000 if free and not unlike else None)


@pytest.mark.parametrize(
    ("bus", "channel"), [(True, [[-1, 0, 0], [1, -1, 1], [2, 2, -1]]), (False, [[-1, 0, 1], [2, -1, 3], [4, 5, -1]])]
)
def test_all_devices_are_linked_over_one_wire_each_or_over_their_own(bus: bool, channel: list[list[int]]) -> None:
    devices = tuple(Device(f"d{i}", "any", 8, 1e9, 1e9, 0) for i in range(3))
    made = examples.all_linked(devices, Link(1e9, 5), bus, 7)
    assert made.channel.tolist() == channel and made.op_ns == 7
    assert sorted(made.links) == [(0, 1), (0, 2), (1, 0), (1, 2), (2, 0), (2, 1)]


def test_equal_devices_are_numbered_as_the_mirrored_program_comes_to_them(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of devices 0, 1 and 3, which are equal, the ops of 3 lie first in the mean, then those of 0; 1 has none."""
    monkeypatch.setattr(examples, "device_class", lambda problem: np.array([0, 0, 1, 0]))
    seen: Any = SimpleNamespace(weight=np.array([1.0, 3.0, 1.0, 2.0]), mirror=np.array([0.0, 2.0, 1.0, 1.0]))
    problem: Any = SimpleNamespace(num_devices=4, num_ops=4)
    # device 0: (0 * 1 + 2 * 3) / 4 = 1.5; device 3: 1; device 2 by itself.
    assert examples.canonical(problem, seen, ints([0, 0, 2, 3])).tolist() == [1, 1, 2, 0]
    seen.mirror = np.array([5.0, 5.0, 5.0, 5.0])  # behind all ops: a device without any comes first
    assert examples.canonical(problem, seen, ints([0, 0, 2, 3])).tolist() == [1, 1, 2, 3]


def test_elites_come_back_from_their_file(tmp_path: Path) -> None:
    keys = [Key(4, 1), Key(0, 9), Key(2, 2), Key(3, 3)]
    elites = [
        Elite(ints([0, 3, 1]), ints([2, 0, 300]), 77),
        None,
        Elite(ints([255]), ints([65_000]), 1 << 40),
        Elite(ints([1, 1]), ints([1, 0]), 5),
    ]
    examples.save_elites(tmp_path / "e.npz", keys, elites)
    back = examples.load_elites(tmp_path / "e.npz")
    assert list(back) == keys
    for key, elite in zip(keys, elites, strict=True):
        found = back[key]
        if elite is None:
            assert found is None
        else:
            assert found is not None and found.value == elite.value
            assert (found.device.tolist(), found.turn.tolist()) == (elite.device.tolist(), elite.turn.tolist())
    examples.save_elites(tmp_path / "none.npz", [], [])
    assert examples.load_elites(tmp_path / "none.npz") == {}


def test_lines_are_numbered_behind_those_that_are_there(tmp_path: Path) -> None:
    rows = [json.dumps({"n": n, **({"mode": "training"} if n % 3 == 0 else {})}) for n in range(9)]
    file = tmp_path / "graphs.jsonl"
    file.write_text("\n".join(rows) + "\n")
    assert examples.add_lines([b"one", b"two"]) == 0
    learn, _ = examples.read_corpus(file, training_share=0.75, seed=3)
    assert len(learn) == 4 and {2, 5, 8} < set(learn), "three training steps leave room for one other"
    rest = np.array([3, 4, 6, 7, 9, 10])
    assert set(learn) - {2, 5, 8} == {int(np.random.default_rng(3).permutation(rest)[0])}
    examples.forget_corpora()
    learn, _ = examples.read_corpus(file, training_share=0.5)
    assert len(learn) == 6 and {0, 3, 6} < set(learn)
    examples.forget_corpora()
    file.write_text("\n".join(row for row in rows if "mode" not in row) + "\n")
    assert examples.read_corpus(file)[0] == list(range(6))  # of nothing to train, all


def test_a_mode_is_looked_for_in_the_first_4096_bytes_of_a_line(tmp_path: Path) -> None:
    def line(before: int) -> str:
        return '{"a":"' + "x" * (before - 8) + '","mode":"training"}'

    assert line(100).index('"mode"') == 100
    file = tmp_path / "graphs.jsonl"
    file.write_text("\n".join([line(4096 - 17), line(4096 - 16), '{"mode": "training"}']) + "\n")
    learn, _ = examples.read_corpus(file, training_share=1.0)
    assert learn == [0, 2]


def test_generated_graphs_are_of_the_kinds_in_turn(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = []

    def generate(kind: str, count: int, seed: int, ops: tuple[int, int]) -> list[Any]:
        asked.append((kind, count, seed, ops))
        return [f"{kind} {number}" for number in range(count)]

    monkeypatch.setattr(examples, "KINDS", ("one", "two", "three"))
    monkeypatch.setattr(examples, "generate", generate)
    monkeypatch.setattr(examples, "graph_to_json", lambda graph: graph)
    examples.add_lines([b"there"])
    assert examples.add_generated(4) == [1, 2, 3, 4]
    assert asked == [(kind, 2, 1_000, (60, 500)) for kind in ("one", "two", "three")]
    assert [json.loads(examples.line_of(line)) for line in range(1, 5)] == ["one 0", "two 0", "three 0", "one 1"]
    asked.clear()
    assert examples.add_generated(3) == [5, 6, 7] and {count for _, count, _, _ in asked} == {1}
    asked.clear()
    assert examples.add_generated(0) == [] and asked == []


def test_a_line_that_is_no_graph_is_told_by_its_number() -> None:
    examples.add_lines([json.dumps(graph_to_json(GRAPHS[next(iter(GRAPHS))]())).encode(), b"{"])
    assert examples.graph_of(0).num_ops > 0
    with pytest.raises(LoadmasterError) as told:
        examples.graph_of(1)
    assert "line 2 of the corpus" in str(told.value)


def test_a_worker_takes_a_corpus_once() -> None:
    examples._taken.clear()
    examples._take_lines(("a", [b"1", b"2"]))
    examples.add_lines([b"3"])
    examples._take_lines(("a", [b"1", b"2"]))
    assert [examples.line_of(line) for line in range(3)] == [b"1", b"2", b"3"]
    examples._take_lines(("b", [b"9"]))
    assert [examples.line_of(0), len(examples._lines)] == [b"9", 1]
    examples._taken.clear()


@pytest.mark.parametrize("begin", [None, print])
def test_processes_of_a_crew_keep_to_one_core_unless_told_what_to_begin_with(
    begin: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = list[Any]()

    class Pool:
        def __init__(self, processes: int, context: Any, first: Any) -> None:
            asked.append((processes, context.get_start_method(), first))

        def __enter__(self) -> Any:
            return self

        def __exit__(self, *_: object) -> None: ...

    monkeypatch.setattr(examples, "ProcessPoolExecutor", Pool)
    with examples.crew(3, begin=begin) as pool:
        assert isinstance(pool, Pool)
    assert asked == [(3, "fork", begin or examples.alone)]


class Numbers:
    """A generator that answers from a list; between which numbers it was asked is kept."""

    def __init__(self, uniform: list[Any], integers: list[int], random: float) -> None:
        self.given, self.whole, self.random, self.asked = uniform, integers, lambda: random, list[Any]()

    def uniform(self, *bounds: float) -> Any:
        self.asked.append(bounds)
        return self.given.pop(0)

    def integers(self, *bounds: int) -> int:
        self.asked.append(bounds)
        return self.whole.pop(0)


@pytest.mark.parametrize(("unlike", "free"), [(True, True), (True, False), (False, False)])
def test_a_drawn_cluster_by_hand(unlike: bool, free: bool) -> None:
    uniform = [*([np.array([-1.0, 0.0])] if unlike else []), 1.0, 2.0, *([0.0, 2.0] if unlike else []), 3.0]
    rng: Any = Numbers(uniform, [5_000, 9_000], 0.4)
    cluster = examples._drawn_cluster(rng, 2, unlike, free)
    speeds, memories = [(-2, 0, 2)] if unlike else [], [(0, 2)] * 2 if unlike else []
    links = [] if free else [(-2, 4), (2_000, 25_000)]
    assert rng.asked == [*speeds, (-1, 2), (-1, 2), (1_000, 6_000), *memories, *links]
    for device, speed in zip(cluster.devices, (0.5, 1.0) if unlike else (1.0, 1.0), strict=True):
        assert (device.flops_per_s, device.bytes_per_s, device.launch_ns) == (2e13 * speed, 2.8e12 * speed, 5_000)
    assert [device.memory_bytes for device in cluster.devices] == ([2**34, 2**36] if unlike else [2**35] * 2)
    link = cluster.links[1, 0]
    assert (link.bytes_per_s, link.latency_ns) == ((None, 0) if free else (8e10, 9_000))
