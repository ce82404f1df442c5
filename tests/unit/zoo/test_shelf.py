"""The shipped graphs: all there, small, as the index says, and what a capture makes today."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterable
from importlib import resources
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from loadmaster.cost import price
from loadmaster.errors import UnknownName
from loadmaster.files import load_graph
from loadmaster.graph import ROLES, Graph
from loadmaster.zoo import ENTRIES, shelf
from loadmaster.zoo.shelf import capture, facts_of, index, load_zoo, on_shelf, shelf_rows, spot
from tests.graphs.tiny import diamond

FOLDER = Path(str(resources.files("loadmaster.zoo"))) / "graphs"
QUICK = ("rnnlm-2/infer", "transformer-xl-2/train", "vit-base/infer")  # the others are for `make test-all`
EVERY = [f"{name}/{mode}" for name in ENTRIES for mode in ("train", "infer")]
RECAPTURED = ("rnnlm-2/train", "wavenet-2x18/train", "transformer-xl-2/train", "transformer-xl-2/infer", "gpt2/infer")


def quick_or_full(names: Iterable[str]) -> list[Any]:
    return [pytest.param(name, marks=[] if name in QUICK else pytest.mark.full) for name in names]


def test_every_model_is_shipped_in_both_modes_and_all_are_small() -> None:
    assert [place.name for place in on_shelf()] == [f"{name}/{mode}" for name in ENTRIES for mode in ("train", "infer")]
    files = {place.file for place in on_shelf()} | {"index.json"}
    assert {path.name for path in FOLDER.iterdir()} == files
    assert sum(path.stat().st_size for path in FOLDER.iterdir()) < 25_000_000


@pytest.mark.parametrize("name", quick_or_full(EVERY))
def test_the_index_says_what_is_in_the_file(name: str) -> None:
    graph, facts = load_zoo(name), index()[name]
    assert graph.name == name
    own = [
        (ROLES[role], size)
        for role, size, alias in zip(graph.role.tolist(), graph.nbytes.tolist(), graph.alias_of.tolist(), strict=True)
        if alias < 0
    ]
    assert facts.digest == graph.digest
    assert (facts.ops, facts.tensors) == (graph.num_ops, graph.num_tensors)
    assert facts.weight_bytes == sum(size for role, size in own if role == "weight")
    assert facts.activation_bytes == sum(size for role, size in own if role == "activation")
    assert facts.flops == sum(graph.flops.tolist())
    assert 1 <= facts.parallelism <= facts.planned_ops <= facts.ops


@pytest.mark.parametrize("name", ["transformer-xl-2/train", "inception-v3/infer"])
def test_work_and_critical_path_by_plain_recursion(name: str) -> None:
    graph = load_zoo(name)
    problem = price(graph, "1xp100-pcie")
    ends: list[int] = []
    for op in range(problem.num_ops):
        makers = [int(problem.graph.producer[t]) for t in problem.graph.reads_of(op)]
        before = [maker for maker in makers if maker >= 0] + problem.graph.after_of(op).tolist()
        ends.append(int(problem.op_ns[op, 0]) + max((ends[earlier] for earlier in before), default=0))
    facts = index()[name]
    assert (facts.critical_path_ns, facts.work_ns) == (max(ends), int(problem.op_ns.sum()))
    assert facts == facts_of(graph)


def test_the_largest_graph_is_large_and_every_op_knows_its_module() -> None:
    graph = load_zoo("gnmt-8/train")
    assert graph.num_ops >= 50_000
    assert np.mean([bool(scope) for scope in graph.scope]) > 0.99


def weights(graph: Graph) -> dict[str, int]:
    return {graph.tensor_name[t]: int(graph.nbytes[t]) for t in np.flatnonzero(graph.role == ROLES.index("weight"))}


@pytest.mark.parametrize("name", ["rnnlm-4", "wavenet-2x18", "vit-base"])
def test_training_and_inference_have_the_same_weights(name: str) -> None:
    train, infer = weights(load_zoo(f"{name}/train")), weights(load_zoo(f"{name}/infer"))
    assert {key: train[key] for key in infer} == infer
    written = {name for name in train if name not in infer}
    assert all(name.endswith(".new") for name in written)


@pytest.mark.parametrize("name", quick_or_full(RECAPTURED))
def test_a_new_capture_has_the_digest_that_is_shipped(name: str, tmp_path: Path) -> None:
    pytest.importorskip("torch")
    if name.startswith("gpt2"):
        pytest.importorskip("transformers")
    before = (FOLDER / "index.json").read_bytes()
    path = capture(name, tmp_path)
    assert path == tmp_path / spot(name).file
    assert load_graph(path).digest == index()[name].digest
    assert (FOLDER / "index.json").read_bytes() == before


def test_a_member_of_a_family_is_captured_when_asked_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("torch")
    monkeypatch.setenv("LOADMASTER_CACHE", str(tmp_path))
    graph = load_zoo("rnnlm-family/0/infer")
    assert graph.name == "rnnlm-family/0/infer"
    entry = spot("rnnlm-family/0").entry
    products = [op for op, kind in enumerate(graph.kind) if kind in ("aten.mm.default", "aten.addmm.default")]
    # Two products for each cell, of the input and of the hidden state; one for the softmax.
    assert len(products) == 2 * entry.settings["layers"] * entry.settings["steps"] + 1


@pytest.fixture
def captures(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Names of what was captured since, into an empty cache; each time a small graph is given instead."""
    pytest.importorskip("torch")
    made: list[str] = []

    def note(place: shelf.Spot) -> Graph:
        made.append(place.name)
        return diamond()

    monkeypatch.setenv("LOADMASTER_CACHE", str(tmp_path))
    monkeypatch.setattr(shelf, "capture_graph", note)
    shelf._made_from.cache_clear()
    return made


def kept_in(folder: Path) -> list[str]:
    return sorted(path.name.partition("-family")[2] for path in (folder / "captured").iterdir())


def test_a_member_is_captured_once_and_a_damaged_file_is_no_capture(captures: list[str], tmp_path: Path) -> None:
    for _ in range(2):
        assert load_zoo("nmt-family/1").digest == diamond().digest
    assert captures == ["nmt-family/1/train"]
    for name in ("nmt-family/1/infer", "nmt-family/10"):
        load_zoo(name)
    assert captures[1:] == ["nmt-family/1/infer", "nmt-family/10/train"]
    [path] = (tmp_path / "captured").glob("nmt-family.1.train-*")
    path.write_bytes(path.read_bytes()[:-20])
    for _ in range(2):
        assert load_zoo("nmt-family/1").digest == diamond().digest
    assert captures[3:] == ["nmt-family/1/train"]


@pytest.mark.parametrize("changed", ["version of torch", "source"])
def test_what_other_code_captured_is_captured_again(
    captures: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, changed: str
) -> None:
    for name in ("nmt-family/1", "nmt-family/10"):
        load_zoo(name)
    before = kept_in(tmp_path)
    if changed == "source":
        plain = Path.read_bytes
        new = FOLDER.parent / "rnn.py"
        monkeypatch.setattr(Path, "read_bytes", lambda path: plain(path) + (b"#" if path == new else b""))
    else:
        monkeypatch.setattr(shelf, "version", lambda name: f"{name} 9")
    shelf._made_from.cache_clear()
    load_zoo("nmt-family/1")
    assert captures == ["nmt-family/1/train", "nmt-family/10/train", "nmt-family/1/train"]
    after = kept_in(tmp_path)
    assert len(after) == len(before) == 2 and len(set(before) & set(after)) == 1
    shelf._made_from.cache_clear()


def test_without_a_place_to_keep_them_members_are_captured_each_time(
    captures: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LOADMASTER_CACHE", str(tmp_path / "file"))
    (tmp_path / "file").write_text("")
    load_zoo("nmt-family/1")
    monkeypatch.setattr(shelf, "cache_folder", lambda: None)
    load_zoo("nmt-family/1")
    assert captures == ["nmt-family/1/train"] * 2


def test_names_that_are_not_there() -> None:
    with pytest.raises(UnknownName, match="gnmt-4"):
        load_zoo("gnmt-5")
    with pytest.raises(UnknownName):
        load_zoo("nas-cells/99")


def test_listing_reads_no_graph_and_imports_nothing_heavy() -> None:
    code = (
        "import sys, loadmaster.zoo.shelf as s; s.load_graph = None; rows = s.shelf_rows(); "
        "print(len(rows), sorted({'torch', 'numba', 'scipy'} & set(sys.modules)))"
    )
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    assert out.strip() == f"{2 * len(ENTRIES)} []"


def test_rows_have_what_the_listing_shows() -> None:
    row = next(row for row in shelf_rows() if row["name"] == "gnmt-8/train")
    assert row["devices"] == 8 and row["source"] == ENTRIES["gnmt-8"].source
    assert row["work_over_critical_path"] == round(row["work_ns"] / row["critical_path_ns"], 2)
    assert {"ops", "weight_bytes", "activation_bytes", "flops", "digest", "sizes"} <= row.keys()
