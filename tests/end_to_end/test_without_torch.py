"""Planning a JSON or ONNX graph, or a shipped one, with classical methods where no optional package is installed."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

from tests.end_to_end.conftest import write_model, write_onnx

TORCH = ("torch", "torch_geometric", "transformers", "safetensors", "jax", "ray")
OTHERS = ("ortools", "pymetis", "kahip", "mtkahypar", "pyscotch", "matplotlib", "perfetto", "playwright")

# Stands in for an environment without the packages: whoever imports one is told that it is not there.
HIDE = """
import sys
hidden = {hidden!r}
class Hide:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in hidden:
            raise ModuleNotFoundError("No module named " + repr(name), name=name)
sys.meta_path.insert(0, Hide())
from loadmaster.cli.verbs import app
try:
    app({words!r}, prog_name="loadmaster")
finally:
    assert not hidden & {{name.partition(".")[0] for name in sys.modules}}, "a hidden package was imported"
"""


def run(*words: str, hidden: tuple[str, ...]) -> subprocess.CompletedProcess[str]:
    code = HIDE.format(hidden=set(hidden), words=list(words))
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=300, check=False)


def planned(model: str, *words: str, hidden: tuple[str, ...]) -> Any:
    done = run("plan", model, "--simulations", "20", "--json", *words, hidden=hidden)
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert found["fits"]
    return found


def test_json_graph_needs_only_the_core(folder: Path) -> None:
    write_model(folder / "model.json")
    hidden = (*TORCH, *OTHERS, "onnx", "onnxruntime")
    for optimizer in ("one-device", "expert", "heft", "etf", "best-of"):
        planned("model.json", "--with", optimizer, hidden=hidden)
    planned("model.json", "--fusion", "greedy", "--with", "heft", hidden=hidden)


def test_onnx_graph_needs_onnx_alone(folder: Path) -> None:
    write_onnx(folder / "model.onnx")
    assert planned("model.onnx", "--with", "heft", hidden=(*TORCH, *OTHERS))["graph"]["ops"] > 60


def test_zoo_graph_needs_only_the_core() -> None:
    planned("zoo:transformer-xl-2", "--with", "heft", hidden=(*TORCH, *OTHERS, "onnx"))


def test_lists_and_the_zoo_need_only_the_core() -> None:
    for words in (("list", "optimizers"), ("list", "clusters"), ("zoo",)):
        done = run(*words, hidden=(*TORCH, *OTHERS, "onnx"))
        assert done.returncode == 0, done.stderr


def test_what_needs_a_package_says_how_to_get_it(folder: Path) -> None:
    write_onnx(folder / "model.onnx")
    (folder / "graphs.jsonl").write_text("{}")
    (folder / "mine.py").write_text("def build():\n    import torch\n    return torch.nn.Linear(2, 2), ()\n")
    for words, hidden, extra in (
        (("plan", "model.onnx"), ("onnx",), "loadmaster[onnx]"),
        (("zoo", "capture", "gpt2", "--out", "."), ("torch",), "loadmaster[zoo]"),
        (
            ("train", "regal", "--corpus", "graphs.jsonl", "--out", "here"),
            ("torch", "safetensors"),
            "loadmaster[torch]",
        ),
    ):
        done = run(*words, hidden=hidden)
        assert done.returncode == 1
        assert "MissingExtra" in done.stderr and "pip install" in done.stderr and extra in done.stderr, done.stderr
        assert "Traceback" not in done.stderr
    done = run("plan", "mine:build", hidden=("torch",))
    assert done.returncode == 1
    assert "torch" in done.stderr and "Traceback" not in done.stderr
