"""Random graphs: the same digests everywhere, and each kind has the shape that its model promises."""

from __future__ import annotations

import gzip
import json
from collections import Counter
from pathlib import Path

import numpy as np
import pytest

from loadmaster.errors import InvalidSetting, UnknownName, UnreadableFile, UnwritableFile
from loadmaster.files import load_graphs, save_graphs
from loadmaster.graph import ACTIVATION, OUTPUT, Graph
from loadmaster.zoo.synthetic import COST_UNIT_NS, KINDS, SIZE_UNIT_BYTES, IntegerStream, generate

every_kind = pytest.mark.parametrize("kind", KINDS)

GOLDEN = {  # graphs 0 and 9 of seed 0, graph 2 of seed 12345
    "layered": ("8e798aafc991d0d0", "a9f19ce3a493cb79", "0d991f18a120936e"),
    "erdos-renyi": ("f43fe1281ebca5c2", "85d68b446fa451bc", "476b153b6217435b"),
    "barabasi-albert": ("ddb96e5264568fc1", "63bd6ea2fd188656", "ebc11bdbb4df3245"),
    "watts-strogatz": ("bdfeaf4201b14b69", "485974d1b8de2dcb", "07aed5e3f15ce076"),
    "stochastic-block-model": ("d326d5b5b18d74ed", "2d5958d55b723bd5", "aad815164c5fc57e"),
}


@pytest.fixture(scope="module")
def hundred() -> dict[str, list[Graph]]:
    return {kind: list(generate(kind, 100, seed=0)) for kind in KINDS}


def edges_of(graph: Graph) -> list[tuple[int, int]]:
    return [(int(graph.producer[t]), op) for op in range(graph.num_ops) for t in graph.reads_of(op).tolist()]


@every_kind
def test_the_same_seed_gives_the_same_digests_everywhere(kind: str) -> None:
    ten, other = list(generate(kind, 10, seed=0)), list(generate(kind, 3, seed=12345))
    assert (ten[0].digest, ten[9].digest, other[2].digest) == GOLDEN[kind]


@every_kind
def test_a_graph_depends_on_its_number_and_not_on_the_count(kind: str) -> None:
    few, many = generate(kind, 2, seed=3), generate(kind, 5, seed=3)
    assert [g.digest for g in few] == [g.digest for g in many][:2]
    assert len({g.digest for g in generate(kind, 20, seed=3)}) == 20


@every_kind
def test_no_path_comes_back(kind: str, hundred: dict[str, list[Graph]]) -> None:
    """By removing ops without predecessors until none is left; GraphBuilder orders them its own way."""
    for graph in hundred[kind][:20]:
        edges = edges_of(graph)
        left = set(range(graph.num_ops))
        while left:
            waiting = {high for low, high in edges if low in left and high in left}
            assert waiting < left
            left &= waiting


@every_kind
def test_every_op_makes_one_tensor_and_the_unread_ones_are_outputs(kind: str, hundred: dict[str, list[Graph]]) -> None:
    for graph in hundred[kind]:
        assert np.diff(graph.make_start).tolist() == [1] * graph.num_ops
        read = set(graph.reads.tolist())
        assert [role == ACTIVATION for role in graph.role] == [t in read for t in range(graph.num_tensors)]
        assert set(graph.role.tolist()) <= {ACTIVATION, OUTPUT}


@every_kind
def test_sizes_and_costs_are_normal(kind: str, hundred: dict[str, list[Graph]]) -> None:
    sizes = np.concatenate([graph.nbytes for graph in hundred[kind]]) / SIZE_UNIT_BYTES
    costs = np.concatenate([graph.time_ns[:, 0] for graph in hundred[kind]]) / COST_UNIT_NS
    for drawn in (sizes, costs):
        assert len(drawn) > 10_000
        assert abs(drawn.mean() - 50) < 0.4  # four deviations of the mean of 10,000
        assert abs(drawn.std() - 10) < 0.3
        assert abs((abs(drawn - 50) <= 10.5).mean() - 0.7063) < 0.02  # of N(50, 10) rounded to whole units
        assert (drawn == drawn.round()).all() and drawn.min() >= 1
    assert abs(np.corrcoef(sizes, costs)[0, 1]) < 0.04


@every_kind
def test_the_number_of_ops_is_uniform_in_its_range(kind: str, hundred: dict[str, list[Graph]]) -> None:
    counts = np.array([graph.num_ops for graph in hundred[kind]])
    assert counts.min() >= 50 and counts.max() <= 200
    assert abs(counts.mean() - 125) < 4 * 43.6 / 10
    assert {graph.num_ops for graph in generate(kind, 3, ops=64)} == {64}
    assert all(graph.num_ops in (8, 9) for graph in generate(kind, 10, ops=(8, 9)))


def test_layered_ops_read_the_layer_before(hundred: dict[str, list[Graph]]) -> None:
    for graph in hundred["layered"]:
        edges = edges_of(graph)
        readers = {high for _, high in edges}
        first = graph.num_ops - len(readers)
        assert 1 <= first <= 8 and readers == set(range(first, graph.num_ops))
        longest = dict.fromkeys(range(graph.num_ops), 0)
        for low, high in sorted(edges, key=lambda edge: edge[1]):
            longest[high] = max(longest[high], longest[low] + 1)
        assert max(Counter(longest.values()).values()) <= 8
        assert max(Counter(high for _, high in edges).values()) <= 4


def test_erdos_renyi_has_four_edges_to_an_op(hundred: dict[str, list[Graph]]) -> None:
    expected = sum(2 * graph.num_ops for graph in hundred["erdos-renyi"])
    edges = sum(len(graph.reads) for graph in hundred["erdos-renyi"])
    assert abs(edges - expected) < 4 * expected**0.5


def test_barabasi_albert_joins_two_and_favours_the_well_joined(hundred: dict[str, list[Graph]]) -> None:
    for graph in hundred["barabasi-albert"]:
        assert np.diff(graph.read_start)[3:].tolist() == [2] * (graph.num_ops - 3)
    degrees = np.concatenate([np.bincount(np.ravel(edges_of(g))) for g in hundred["barabasi-albert"]])
    # A power law of exponent 3: with m = 2 the share of degree k is 2m(m + 1) ÷ (k(k + 1)(k + 2)).
    for k in (2, 3, 4):
        assert abs((degrees == k).mean() - 12 / (k * (k + 1) * (k + 2))) < 0.04
    assert degrees.max() > 25


def test_watts_strogatz_keeps_its_edges_and_rewires_some(hundred: dict[str, list[Graph]]) -> None:
    kept = total = 0
    for graph in hundred["watts-strogatz"]:
        ops, edges = graph.num_ops, edges_of(graph)
        assert len(edges) == len(set(edges)) == 2 * ops
        kept += sum(min(high - low, ops - high + low) <= 2 for low, high in edges)
        total += len(edges)
    # Three in ten are drawn anew; about one in 30 of those meets an edge that is there and stays.
    assert 0.69 < kept / total < 0.74


def test_blocks_are_denser_inside(hundred: dict[str, list[Graph]]) -> None:
    inside = outside = 0
    for graph in hundred["stochastic-block-model"]:
        size = -(-graph.num_ops // 4)
        same = [low // size == high // size for low, high in edges_of(graph)]
        inside, outside = inside + sum(same), outside + len(same) - sum(same)
    ops = sum(graph.num_ops for graph in hundred["stochastic-block-model"])
    assert abs(2 * inside / ops - 4) < 0.2
    assert abs(2 * outside / ops - 1) < 0.1


def test_draws_are_the_documented_stream() -> None:
    """PCG64 of a seed sequence, read raw: what NumPy promises never to change."""
    raw = np.random.PCG64(np.random.SeedSequence((5, 6))).random_raw(7 + 2)
    draw = IntegerStream(5, 6)
    assert [draw.below(10**6), draw.below(3)] == [int(raw[0]) % 10**6, int(raw[1]) % 3]
    heads = sum(bin(int(word)).count("1") for word in raw[2:8]) + bin(int(raw[8]) & 0xFFFF).count("1")
    # 400 coins are six words and two bytes of the seventh, the lowest first.
    assert draw.gaussian(1)[0] == heads - 150


def test_what_is_written_is_read_back_and_the_bytes_are_the_same(tmp_path: Path) -> None:
    graphs = list(generate("layered", 3, seed=1))
    assert save_graphs(graphs, tmp_path / "a.jsonl.gz") == 3
    assert [g.digest for g in load_graphs(tmp_path / "a.jsonl.gz")] == [g.digest for g in graphs]
    save_graphs(generate("layered", 3, seed=1), tmp_path / "b.jsonl.gz")
    save_graphs(graphs, tmp_path / "c.jsonl")
    packed = (tmp_path / "a.jsonl.gz").read_bytes()
    assert packed == (tmp_path / "b.jsonl.gz").read_bytes()
    assert gzip.decompress(packed) == (tmp_path / "c.jsonl").read_bytes()
    assert json.loads((tmp_path / "c.jsonl").read_text().splitlines()[2])["name"] == "layered/1/2"


def test_many_graphs_need_a_name_for_many_and_a_folder(tmp_path: Path) -> None:
    for name in ("one.json", "one.json.gz", "one.jsonl.zip.gz"):
        with pytest.raises(UnreadableFile, match="jsonl"):
            save_graphs(generate("layered", 1), tmp_path / name)
    with pytest.raises(UnwritableFile, match="cannot be written"):
        save_graphs(generate("layered", 1), tmp_path / "nowhere" / "a.jsonl")
    assert not list(tmp_path.iterdir())


def test_wrong_settings_are_named() -> None:
    with pytest.raises(UnknownName, match="erdos-renyi"):
        generate("erdos", 1)
    for settings in ({"ops": 3}, {"ops": (20, 10)}, {"count": 0}, {"seed": -1}):
        with pytest.raises(InvalidSetting):
            generate("layered", **{"count": 1, **settings})
