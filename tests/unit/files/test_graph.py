"""Graphs on disk: what is written comes back, what is wrong is named, and no file makes anything but our errors."""

from __future__ import annotations

import dataclasses
import gzip
import json
import lzma
import os
from collections.abc import Callable
from itertools import islice
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings

from loadmaster.errors import InvalidGraph, LoadmasterError, UnreadableFile, UnwritableFile
from loadmaster.files import (
    graph_from_json,
    graph_to_json,
    load_cluster,
    load_graph,
    load_graphs,
    load_plan,
    load_records,
    save_graph,
)
from loadmaster.graph import Graph
from tests.strategies import graphs
from tests.unit.files.samples import ENDINGS, GRAPH, Data, changed, op, same, tensor, without

SHARED = Path(os.environ.get("LOADMASTER_SHARED", Path(__file__).parents[3].parent / "shared"))


def test_graph_is_read_as_written_by_hand() -> None:
    graph = graph_from_json(GRAPH)
    # Program order as far as data and `after` allow: mul and view come first because others wait for them.
    assert graph.op_name == ("mul", "step", "view", "add")
    assert graph.flops.tolist() == [2000, 10, 0, 100]
    assert graph.kind == ("mul", "sgd", "view", "add")
    assert graph.scope[0] == "layer.0" and graph.source[0] == "model.py:3"
    assert [graph.op_name[op] for op in graph.after_of(1)] == ["mul"]
    assert graph.tensor_name == ("0", "w", "b", "h", "2", "y", "w2")
    assert [ROLE[r] for r in graph.role] == [
        "input",
        "weight",
        "weight",
        "activation",
        "activation",
        "output",
        "weight",
    ]
    assert graph.alias_of.tolist() == [-1, -1, -1, -1, 3, -1, 1]
    assert graph.shape[0] == (10, 10) and graph.shape[1] is None and graph.shape[4] == ()
    assert graph.is_view.tolist() == [False, False, True, False]
    assert graph.workspace_bytes.tolist() == [64, 0, 0, 0]


ROLE = ("activation", "weight", "input", "output", "state")


def test_graph_defaults() -> None:
    graph = graph_from_json(GRAPH)
    # mul reads x (400, twice but once counted) and w (800), writes h (400); step reads and writes w; the view's 100,000
    # bytes lie in 400 of its owner; add says 7 itself.
    assert graph.bytes_moved.tolist() == [1600, 1600, 800, 7]
    assert graph.reads_of(0).tolist() == [0, 1]
    # An op without a dtype has that of the first tensor with one that it makes, or reads.
    assert graph.dtype == ("float16", "float32", "float32", "float64")
    # One time for all devices, a list with null where it cannot run, and none at all.
    assert graph.time_ns.tolist() == [[9, 9], [-1, -1], [-1, -1], [5, -2]]
    assert graph.colocate[0] == graph.colocate[1] >= 0 and graph.colocate[2] == graph.colocate[3] == -1


@pytest.mark.parametrize("ending", ENDINGS)
def test_graph_round_trip(tmp_path: Path, ending: str) -> None:
    graph = graph_from_json(GRAPH)
    save_graph(graph, tmp_path / f"g{ending}")
    again = load_graph(tmp_path / f"g{ending}")
    assert again.digest == graph.digest and same(graph, again)


@settings(max_examples=60)
@given(graph=graphs(devices=2))
def test_any_graph_round_trips(graph: Graph) -> None:
    text = json.dumps(graph_to_json(graph))
    again = graph_from_json(json.loads(text))
    assert again.digest == graph.digest and same(graph, again)


def test_tensors_of_one_name_are_written_by_number() -> None:
    graph = dataclasses.replace(graph_from_json(GRAPH), tensor_name=("t",) * 7)
    again = graph_from_json(graph_to_json(graph))
    assert again.digest == graph.digest and again.tensor_name[3] == "3"


def test_graph_file_is_the_same_bytes_each_time(tmp_path: Path) -> None:
    graph = graph_from_json(GRAPH)
    for ending in ENDINGS:
        one, other = tmp_path / f"one{ending}", tmp_path / f"other{ending}"
        save_graph(graph, one)
        save_graph(graph, other)
        assert one.read_bytes() == other.read_bytes()
    packed = (tmp_path / "one.json.gz").read_bytes()
    assert packed[3:8] == bytes(5)  # RFC 1952: no flags, so no file name, and no time
    assert gzip.decompress(packed) == (tmp_path / "one.json").read_bytes()


def test_graph_file_has_a_row_a_line(tmp_path: Path) -> None:
    save_graph(graph_from_json(GRAPH), tmp_path / "g.json")
    lines = (tmp_path / "g.json").read_text().splitlines()
    assert sum('"kind"' in line for line in lines) == 4 and sum('"role"' in line for line in lines) == 7


def test_defaults_are_left_out() -> None:
    rows = {row["name"]: row for row in graph_to_json(graph_from_json(GRAPH))["ops"]}
    assert [name for name, row in rows.items() if "bytes_moved" in row] == ["add"]
    assert rows["view"].keys() == {"name", "kind", "flops", "inputs", "outputs", "dtype"}


def test_numbers_and_texts_as_ids_are_different_tensors() -> None:
    data = changed(GRAPH, lambda g: g["tensors"].append({"id": "0", "bytes": 1, "role": "input"}))
    assert graph_from_json(data).num_tensors == 8


BROKEN_GRAPHS: dict[str, tuple[Callable[[Data], object], list[str]]] = {
    "cycle": (op(3, inputs=["y"]), ["'mul'", "'add'", "wait for each other"]),
    "cycle by after": (op(3, after=["add"]), ["'mul'", "'add'", "wait for each other"]),
    "waits for itself": (op(3, after=["mul"]), ["'mul'"]),
    "unknown input": (op(1, inputs=[2, "nil"]), ["'add'", "'nil'", "inputs"]),
    "unknown output": (op(1, outputs=[99]), ["'add'", "99", "outputs"]),
    "true is not 1": (lambda g: (tensor(0, id=1)(g), op(3, inputs=[True])(g)), ["'mul'", "true"]),
    "1.0 is not 1": (lambda g: (tensor(0, id=1)(g), op(3, inputs=[1.0])(g)), ["'mul'", "1.0"]),
    "list as id": (op(1, inputs=[[2]]), ["'add'", "a list"]),
    "two producers": (op(0, outputs=["y"]), ["'y'", "'step'", "'add'"]),
    "made twice by one": (op(1, outputs=["y", "y"]), ["'y'", "'add'"]),
    "negative bytes": (tensor(1, bytes=-1), ["'w'", "-1"]),
    "fractional bytes": (tensor(1, bytes=1.5), ["'w'", "1.5"]),
    "absurd bytes": (tensor(1, bytes=10**30), ["'w'", "1000"]),
    "infinite bytes": (tensor(1, bytes=float("inf")), ["'w'", "inf"]),
    "bytes as text": (tensor(1, bytes="8"), ["'w'", "bytes", "'8'"]),
    "bytes as truth": (tensor(1, bytes=True), ["'w'", "bytes", "true"]),
    "bytes as null": (tensor(1, bytes=None), ["'w'", "bytes", "null"]),
    "negative flops": (op(1, flops=-5), ["'add'", "flops", "-5"]),
    "absurd flops": (op(1, flops=10**25), ["'add'", "flops"]),
    "negative workspace": (op(1, workspace_bytes=-5), ["'add'", "workspace_bytes"]),
    "fractional traffic": (op(1, bytes_moved=0.5), ["'add'", "bytes_moved"]),
    "negative time": (op(1, time_ns=-1), ["'add'", "time_ns"]),
    "negative time of one": (op(1, time_ns=[1, -1]), ["'add'", "time_ns"]),
    "no times": (op(1, time_ns=[]), ["'add'", "time_ns"]),
    "time as text": (op(1, time_ns=["1"]), ["'add'", "time_ns"]),
    "times of two lengths": (op(3, time_ns=[1, 2, 3]), ["time_ns", "2", "3"]),
    "duplicate op": (op(1, name="mul"), ["'mul'"]),
    "duplicate tensor": (tensor(2, id="w"), ["'w'", "tensors[1]", "tensors[2]"]),
    "alias loop": (tensor(3, alias_of=2), ["circle", "h"]),
    "alias of itself": (tensor(3, alias_of="h"), ["circle", "h"]),
    "alias of nothing": (tensor(4, alias_of=77), ["77", "tensor 2"]),
    "alias of a truth": (tensor(4, alias_of=False), ["false", "tensor 2"]),
    "unknown role": (tensor(1, role="wieght"), ["'w'", "wieght", "activation, weight, input, output, state"]),
    "no role": (without("tensors", 1, "role"), ["'w'", "role"]),
    "no bytes": (without("tensors", 1, "bytes"), ["'w'", "bytes"]),
    "no id": (without("tensors", 1, "id"), ["tensors[1]", "id"]),
    "id as list": (tensor(1, id=[]), ["tensors[1]", "id"]),
    "no name": (without("ops", 1, "name"), ["ops[1]", "name"]),
    "no flops": (without("ops", 1, "flops"), ["'add'", "flops"]),
    "no inputs": (without("ops", 1, "inputs"), ["'add'", "inputs"]),
    "inputs as number": (op(1, inputs=3), ["'add'", "inputs"]),
    "name as number": (op(1, name=3), ["ops[1]", "name"]),
    "misspelt key": (op(1, flop=3), ["'add'", "'flop'", "flops"]),
    "misspelt tensor key": (tensor(1, byte=3), ["'w'", "'byte'", "bytes"]),
    "after as text": (op(1, after="mul"), ["'add'", "after"]),
    "after of numbers": (op(1, after=[1]), ["'add'", "after"]),
    "after nothing": (op(1, after=["mull"]), ["'add'", "'mull'"]),
    "negative shape": (tensor(0, shape=[-1]), ["tensor 0", "shape"]),
    "shape as number": (tensor(0, shape=3), ["tensor 0", "shape"]),
    "dtype as number": (tensor(0, dtype=3), ["tensor 0", "dtype"]),
    "group as list": (op(1, colocate=[1]), ["'add'", "colocate"]),
    "op as list": (lambda g: g["ops"].__setitem__(1, []), ["ops[1]", "a list"]),
    "tensor as null": (lambda g: g["tensors"].__setitem__(1, None), ["tensors[1]", "null"]),
    "ops as object": (lambda g: g.update(ops={}), ["ops", "an object"]),
    "no tensors": (lambda g: g.pop("tensors"), ["tensors", "missing"]),
    "no ops": (lambda g: g.update(ops=[]), ["no ops"]),
    "no graph name": (lambda g: g.pop("name"), ["name", "missing"]),
    "activation from nowhere": (lambda g: g["ops"].pop(3), ["'h'"]),
    "input that is made": (tensor(3, role="input"), ["'h'", "'mul'"]),
}  # fmt: skip


@pytest.mark.parametrize("case", BROKEN_GRAPHS)
def test_broken_graph_names_the_culprit(case: str) -> None:
    change, words = BROKEN_GRAPHS[case]
    with pytest.raises(InvalidGraph) as caught:
        graph_from_json(changed(GRAPH, change), "net.json")
    assert "net.json" in caught.value.where and caught.value.fix
    for word in words:
        assert word in str(caught.value)


@pytest.mark.parametrize(
    ("given_schema", "words"),
    [
        (None, ["missing", '"schema": "loadmaster.graph/1"']),
        ("loadmaster.graph/9", ["loadmaster.graph/9", "loadmaster.graph/1"]),
        ("loadmaster.cluster/1", ["loadmaster.cluster/1", "not a graph"]),
        ([1], ["a list", "loadmaster.graph/1"]),
    ],
)
def test_schema_is_asked_for(tmp_path: Path, given_schema: Any, words: list[str]) -> None:
    path = tmp_path / "g.json"
    path.write_text(
        json.dumps({key: value for key, value in {**GRAPH, "schema": given_schema}.items() if value is not None})
    )
    with pytest.raises(InvalidGraph) as caught:
        load_graph(path)
    assert all(word in str(caught.value) for word in words)


# Many graphs in one file


def jsonl(*graphs: Data) -> bytes:
    return b"".join(json.dumps(graph).encode() + b"\n" for graph in graphs)


@pytest.mark.parametrize(
    ("ending", "pack"), [("jsonl", bytes), ("jsonl.gz", gzip.compress), ("jsonl.xz", lzma.compress)]
)
def test_lines_are_graphs(tmp_path: Path, ending: str, pack: Callable[[bytes], bytes]) -> None:
    bare = changed(GRAPH, lambda g: g.pop("schema"))
    known = {**bare, "name": "second", "family": "vision", "mode": "training", "model": 3, "assumed": {"x": 1}}
    path = tmp_path / f"many.{ending}"
    path.write_bytes(pack(jsonl(bare, known) + b"\n  \n" + jsonl(GRAPH)))
    assert [graph.name for graph in load_graphs(path)] == ["small", "second", "small"]
    assert [origin for _, origin in load_records(path)] == [{}, {"family": "vision", "mode": "training"}, {}]


def test_lines_are_read_one_at_a_time(tmp_path: Path) -> None:
    path = tmp_path / "many.jsonl"
    path.write_bytes(jsonl(GRAPH, GRAPH) + b"{broken\n" + jsonl(GRAPH))
    stream = load_graphs(path)
    assert [graph.name for graph in islice(stream, 2)] == ["small", "small"]
    with pytest.raises(UnreadableFile, match="line 3"):
        next(stream)


def test_line_with_a_broken_graph_is_named(tmp_path: Path) -> None:
    path = tmp_path / "many.jsonl"
    path.write_bytes(jsonl(GRAPH, changed(GRAPH, tensor(1, bytes=-1))))
    with pytest.raises(InvalidGraph, match="line 2"):
        list(load_graphs(path))


def test_truncated_lines_give_what_is_whole_and_then_an_error(tmp_path: Path) -> None:
    path = tmp_path / "many.jsonl.xz"
    path.write_bytes(lzma.compress(jsonl(*[GRAPH] * 50))[:-40])
    with pytest.raises(UnreadableFile):
        list(load_graphs(path))


def test_many_graphs_are_not_one(tmp_path: Path) -> None:
    path = tmp_path / "many.jsonl"
    path.write_bytes(jsonl(GRAPH))
    with pytest.raises(UnreadableFile, match="load_graphs"):
        load_graph(path)
    (tmp_path / "none.jsonl").write_bytes(b"")
    with pytest.raises(UnreadableFile, match="empty"):
        list(load_graphs(tmp_path / "none.jsonl"))


@pytest.mark.skipif(not (SHARED / "corpus/valid.jsonl.xz").exists(), reason="LOADMASTER_SHARED has no corpus")
def test_corpus_loads() -> None:
    path = SHARED / "corpus/valid.jsonl.xz"
    with lzma.open(path) as file:
        raw = [json.loads(line) for line in islice(file, 40)]
    for data, (graph, origin) in zip(raw, load_records(path), strict=False):
        assert origin["mode"] in ("inference", "training") and origin["family"] == data["family"]
        assert graph.num_ops == len(data["ops"]) and graph.num_tensors == len(data["tensors"])
        assert graph.flops.sum() == sum(op["flops"] for op in data["ops"])
        assert list(graph.op_name) == [op["name"] for op in data["ops"]]  # already in order
        assert graph_from_json(graph_to_json(graph)).digest == graph.digest


# Files that are not what they should be


GOOD = json.dumps(GRAPH).encode()
UNREADABLE = {
    "empty.json": b"",
    "blank.json": b" \n\t ",
    "cut.json": GOOD[: len(GOOD) // 2],
    "binary.json": bytes(range(256)) * 4,
    "latin.json": GOOD.replace(b"small", b"sm\xe4ll"),
    "surrogate.json": GOOD.replace(b"small", b"\\ud800"),
    "nan.json": GOOD.replace(b"2000", b"NaN"),
    "infinity.json": GOOD.replace(b"2000", b"-Infinity"),
    "digits.json": GOOD.replace(b"2000", b"9" * 10_000),
    "two.json": GOOD + GOOD,
    "plain.json.gz": GOOD,
    "plain.json.xz": GOOD,
    "cut.json.gz": gzip.compress(GOOD)[:-20],
    "cut.json.xz": lzma.compress(GOOD)[:-20],
    "flipped.json.gz": gzip.compress(GOOD)[:60] + b"\xff\xff\xff" + gzip.compress(GOOD)[63:],
    "empty.json.gz": b"",
    "empty.json.xz": b"",
}


@pytest.mark.parametrize("name", UNREADABLE)
@pytest.mark.parametrize("read", [load_graph, load_cluster, load_plan])
def test_unreadable_files(tmp_path: Path, name: str, read: Callable[[Path], object]) -> None:
    path = tmp_path / name
    path.write_bytes(UNREADABLE[name])
    with pytest.raises(UnreadableFile) as caught:
        read(path)
    assert name in str(caught.value) and len(str(caught.value)) < 2000


def test_pairs_of_surrogates_are_text(tmp_path: Path) -> None:
    path = tmp_path / "g.json"
    path.write_bytes(GOOD.replace(b"small", b"\\ud83d\\ude00"))
    assert load_graph(path).name == "\N{GRINNING FACE}"


def test_missing_files_and_folders(tmp_path: Path) -> None:
    for read in (load_graph, load_graphs, load_cluster, load_plan):
        with pytest.raises(UnreadableFile, match="no file"):
            read(tmp_path / "nothing.json")
        with pytest.raises(UnreadableFile, match="directory"):
            read(tmp_path)
        with pytest.raises(UnreadableFile):
            read("x" * 5000)
        with pytest.raises(UnreadableFile):
            read("nul\0.json")


def test_cannot_write(tmp_path: Path) -> None:
    with pytest.raises(UnwritableFile, match="cannot be written"):
        save_graph(graph_from_json(GRAPH), tmp_path / "no folder" / "g.json")


# Speed


def large(ops: int, reads: Callable[[int], list[int]]) -> Data:
    """Op i makes tensor i; tensors from `ops` on are weights, one per op."""
    return {
        "name": "large",
        "ops": [
            {
                "name": f"op{i}",
                "kind": "any",
                "flops": 1,
                "inputs": [*reads(i), ops + i],
                "outputs": [i],
                "scope": "a.b",
            }
            for i in range(ops)
        ],
        "tensors": [
            {"id": i, "bytes": 4, "role": "activation" if i < ops else "weight", "shape": [1], "dtype": "float32"}
            for i in range(2 * ops)
        ],
    }


@pytest.mark.parametrize(
    "reads",
    [lambda i: [i - 1] if i else [], lambda i: [0] if i else [], lambda i: list(range(i)) if i == 19_999 else []],
    ids=["chain", "star", "funnel"],
)
def test_large_graphs_of_any_form(reads: Callable[[int], list[int]]) -> None:
    data = large(20_000, reads)
    data["ops"].reverse()
    graph = graph_from_json(data)
    again = graph_from_json(graph_to_json(graph))
    assert again.digest == graph.digest and graph.num_ops == 20_000


def test_long_chains_of_aliases() -> None:
    count = 20_000
    data = large(count, lambda i: [i - 1] if i else [])
    for i in range(1, count):
        data["tensors"][i]["alias_of"] = i - 1
    graph = graph_from_json(data)
    assert (graph.owner[:count] == 0).all()


def test_values_are_shown_short() -> None:
    with pytest.raises(LoadmasterError) as caught:
        graph_from_json(changed(GRAPH, tensor(0, dtype=10**4000)))
    assert len(str(caught.value)) < 300
