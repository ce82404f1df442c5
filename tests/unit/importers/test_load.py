"""load: every way to give a model, and what is said to whoever gives something else."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import loadmaster
from loadmaster.catalog import IMPORTERS
from loadmaster.errors import ImportFailed, InvalidSetting, LoadmasterError, UnknownName, UnreadableFile
from loadmaster.files import graph_from_json, save_graph
from loadmaster.graph import Graph
from loadmaster.importers import load
from tests.unit.files.samples import GRAPH

SMALL = graph_from_json(GRAPH)


def refused(model: Any, kind: type[LoadmasterError], *words: str, **settings: Any) -> None:
    with pytest.raises(kind) as caught:
        load(model, **settings)
    assert type(caught.value) is kind and caught.value.fix
    for word in words:
        assert word in str(caught.value)


def test_load_is_public() -> None:
    assert loadmaster.load is load


@pytest.mark.parametrize("ending", [ending for ending in IMPORTERS if ".json" in ending])
def test_graph_files(tmp_path: Path, ending: str) -> None:
    path = tmp_path / f"net.v1{ending}"
    save_graph(SMALL, path)
    assert load(path).digest == load(str(path)).digest == SMALL.digest


def test_a_graph_is_a_graph() -> None:
    assert load(SMALL) is SMALL


def test_file_whose_name_has_a_hash(tmp_path: Path) -> None:
    path = tmp_path / "net#2.json"
    save_graph(SMALL, path)
    assert load(path).digest == SMALL.digest


def test_one_graph_of_many(tmp_path: Path) -> None:
    path = tmp_path / "many.jsonl"
    path.write_text("".join(json.dumps({**GRAPH, "name": name}) + "\n" for name in ("first", "second")))
    assert load(f"{path}#1").name == "first" and load(f"{path}#2").name == "second"
    refused(path, UnreadableFile, "many graphs", "#1")
    refused(f"{path}#3", UnreadableFile, "fewer than 3")
    for part in ("0", "x", "-1", "9" * 30):
        refused(f"{path}#{part}", InvalidSetting, part)
    single = tmp_path / "single.jsonl"
    single.write_text(json.dumps(GRAPH))
    assert load(single).digest == SMALL.digest


@pytest.mark.parametrize(
    ("name", "word"),
    [
        ("w.pt", "module:function"),
        ("w.safetensors", "module:function"),
        ("m.h5", "tf2onnx"),
        ("net.py", "package.module:callable"),
    ],
)
def test_other_formats_say_how_to_get_here(name: str, word: str) -> None:
    refused(name, ImportFailed, name, word)


def test_unknown_endings_list_the_known_ones(tmp_path: Path) -> None:
    path = tmp_path / "net.jso"
    path.write_text("{}")
    refused(path, UnknownName, ".jso", "did you mean .json")


@pytest.mark.parametrize("text", ["no/such/folder", "a:b:c", "net.xyz", ":", "x:"])
def test_what_is_no_model_lists_the_ways(text: str) -> None:
    refused(text, UnknownName, ".onnx", "zoo:NAME", "package.module:callable")


@pytest.mark.parametrize(("text", "meant"), [("resnet50", "zoo:resnet50"), ("gnmt4", "zoo:gnmt-4")])
def test_a_near_name_is_suggested(text: str, meant: str) -> None:
    refused(text, UnknownName, f"did you mean {meant}")


@pytest.mark.parametrize("ending", IMPORTERS)
def test_missing_files(ending: str) -> None:
    pytest.importorskip("onnx")
    refused(f"nothing{ending}", UnreadableFile, f"nothing{ending}")


@pytest.mark.parametrize("value", [None, 3, b"x.json", [], object(), {"ops": []}])
def test_objects_that_are_no_model(value: Any) -> None:
    refused(value, ImportFailed, "None" if value is None else type(value).__name__, "torch.nn.Module")


def test_zoo_is_asked_by_name_and_mode(monkeypatch: pytest.MonkeyPatch) -> None:
    from loadmaster.zoo import shelf

    asked: list[str] = []
    monkeypatch.setattr(shelf, "load_zoo", lambda name: asked.append(name) or SMALL)
    load("zoo:gnmt-4")
    load("zoo:gnmt-4", training=False)
    load("zoo:gnmt-4/train", training=False)
    load("zoo:gnmt-4/infer")
    assert asked == ["gnmt-4/train", "gnmt-4/infer", "gnmt-4/train", "gnmt-4/infer"]


def test_unknown_zoo_model() -> None:
    refused("zoo:gnmt-44", UnknownName, "gnmt-44", "gnmt-4")


# Callables


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A current folder whose modules are forgotten afterwards."""
    before, paths = set(sys.modules), list(sys.path)
    monkeypatch.chdir(tmp_path)
    yield tmp_path
    assert sys.path == paths
    for name in set(sys.modules) - before:
        if str(tmp_path) in str(getattr(sys.modules[name], "__file__", "")):
            del sys.modules[name]


def write(folder: Path, name: str, text: str) -> None:
    (folder / f"{name}.py").write_text(text)


def test_callable_that_returns_a_graph(here: Path) -> None:
    save_graph(SMALL, here / "g.json")
    write(
        here,
        "given_graph",
        "from loadmaster.files import load_graph\nclass Zoo:\n  make = lambda: load_graph('g.json')\n",
    )
    assert load("given_graph:Zoo.make").digest == SMALL.digest


def test_callables_that_cannot_be_used(here: Path) -> None:
    write(
        here,
        "wrong_uses",
        "number = 3\ndef nothing(): pass\ndef needy(x): pass\ndef fails(): raise OSError('no disk')\n",
    )
    write(here, "wrong_import", "import no_such_package\n")
    write(here, "wrong_syntax", "def (:\n")
    refused("no_such_module:f", UnknownName, "no_such_module")
    refused("no_such_module.inner:f", UnknownName, "no_such_module")
    refused("wrong_uses:nothin", UnknownName, "nothin", "nothing")
    refused("wrong_uses:number", ImportFailed, "int", "function")
    refused("wrong_uses:nothing", ImportFailed, "NoneType", "(module, example inputs)")
    refused("wrong_uses:needy", ImportFailed, "TypeError", "without arguments")
    refused("wrong_uses:fails", ImportFailed, "OSError", "no disk")
    refused("wrong_import:f", ImportFailed, "no_such_package")
    refused("wrong_syntax:f", ImportFailed, "SyntaxError")


# torch


def test_torch_module_in_three_lines() -> None:
    torch = pytest.importorskip("torch")
    module, x = torch.nn.Linear(8, 4), torch.zeros(2, 8)
    graph = load(module, inputs=(x,), training=False)
    # one product: 2 rows, 8 in, 4 out
    assert isinstance(graph, Graph) and int(graph.flops.sum()) == 2 * 2 * 8 * 4
    trained = load(module, inputs=(x,), name="mine")
    assert trained.name == "mine" and any("adam" in kind for kind in trained.kind)
    assert any("sgd" in kind for kind in load(module, inputs=(x,), optimizer="sgd").kind)
    refused(module, ImportFailed, "Linear", "inputs=")


def test_torch_callable_is_built_without_memory(here: Path) -> None:
    pytest.importorskip("torch")
    write(
        here,
        "given_torch",
        "import torch\ndef big():\n  return torch.nn.Linear(2**20, 2**20), (torch.zeros(1, 2**20),)\n",
    )
    graph = load("given_torch:big", training=False)  # 4 TiB of weights
    assert graph.name == "big" and int(graph.nbytes.max()) == 4 * 2**40


def test_torch_callable_that_looks_at_its_numbers(here: Path) -> None:
    pytest.importorskip("torch")
    peek = "def peek():\n  assert torch.ones(3).sum().item() == 3\n  return torch.nn.ReLU(), (torch.zeros(5),)\n"
    write(here, "given_peek", f"import torch\n{peek}")
    assert load("given_peek:peek", training=False).num_ops == 1


def test_without_torch_the_extra_is_named(tmp_path: Path) -> None:
    write(tmp_path, "fake", "class Module: pass\nModule.__module__ = 'torch.nn.modules.module'\n")
    code = (
        "import sys; sys.modules['torch'] = None\n"
        "import fake, loadmaster\n"
        "try:\n    loadmaster.load(fake.Module(), inputs=())\n"
        "except loadmaster.MissingExtra as error:\n    print(error)"
    )
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False, cwd=tmp_path)
    assert "loadmaster[torch]" in ran.stdout, ran.stderr


# ONNX


def test_onnx_models_and_files(tmp_path: Path) -> None:
    onnx = pytest.importorskip("onnx")
    from onnx import TensorProto, helper

    def value(name: str) -> Any:
        return helper.make_tensor_value_info(name, TensorProto.FLOAT, ["batch", "length"])

    graph = helper.make_graph([helper.make_node("Relu", ["x"], ["y"])], "tiny", [value("x")], [value("y")])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)])
    dims = {"batch": 2, "length": 3}
    assert load(model, dims=dims).nbytes.tolist() == [24, 24]
    assert load(model, dims=dims).name == "tiny" and load(model, dims=dims, name="other").name == "other"
    onnx.save(model, tmp_path / "tiny.onnx")
    assert load(tmp_path / "tiny.onnx", dims=dims).nbytes.tolist() == [24, 24]
    assert load(f"{tmp_path}/tiny.onnx#batch=4,length=5").nbytes.tolist() == [80, 80]
    assert load(f"{tmp_path}/tiny.onnx#batch=4,length=5", dims={"batch": 1}).nbytes.tolist() == [20, 20]
    for part in ("batch", "batch=", "batch=x", "batch=-1"):
        refused(f"{tmp_path}/tiny.onnx#{part}", InvalidSetting, part)
