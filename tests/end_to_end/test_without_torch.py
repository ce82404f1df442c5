"""Planning a JSON or ONNX graph, or a shipped one, with classical methods where no optional package is installed."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any, NamedTuple

from tests.end_to_end.conftest import write_model, write_onnx

TORCH = ("torch", "torch_geometric", "transformers", "safetensors", "jax", "ray")
OTHERS = ("ortools", "pymetis", "kahip", "mtkahypar", "pyscotch", "matplotlib", "perfetto", "playwright")

# Stands in for an environment without the packages: whoever imports one is told that it is not there. The commands run
# one after another; prints [exit code, standard output, standard error] of each as JSON.
HIDE = """
import io, json, sys
from contextlib import redirect_stderr, redirect_stdout
hidden = {hidden!r}
class Hide:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in hidden:
            raise ModuleNotFoundError("No module named " + repr(name), name=name)
sys.meta_path.insert(0, Hide())
from loadmaster.cli.verbs import app
done = []
for words in {commands!r}:
    out, err = io.StringIO(), io.StringIO()
    with redirect_stdout(out), redirect_stderr(err):
        try:
            app(words, prog_name="loadmaster")
        except SystemExit as end:
            done.append((end.code or 0, out.getvalue(), err.getvalue()))
    assert not hidden & {{name.partition(".")[0] for name in sys.modules}}, "a hidden package was imported"
print(json.dumps(done))
"""


class Ended(NamedTuple):
    returncode: int
    stdout: str
    stderr: str


def run(*commands: tuple[str, ...], hidden: tuple[str, ...]) -> list[Ended]:
    code = HIDE.format(hidden=set(hidden), commands=[list(words) for words in commands])
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stderr
    ended = [Ended(*each) for each in json.loads(done.stdout)]
    assert len(ended) == len(commands)
    return ended


def planned(model: str, *options: tuple[str, ...], hidden: tuple[str, ...]) -> Any:
    """The last of some plans of a model."""
    for done in run(*(("plan", model, "--simulations", "20", "--json", *words) for words in options), hidden=hidden):
        assert done.returncode == 0, done.stderr
        found = json.loads(done.stdout)
        assert found["fits"]
    return found


def test_json_graph_needs_only_the_core(folder: Path) -> None:
    write_model(folder / "model.json")
    hidden = (*TORCH, *OTHERS, "onnx", "onnxruntime")
    methods = [("--method", name) for name in ("one-device", "expert", "heft", "etf", "best-of")]
    planned("model.json", *methods, ("--fusion", "greedy", "--method", "heft"), hidden=hidden)


def test_onnx_graph_needs_onnx_alone(folder: Path) -> None:
    write_onnx(folder / "model.onnx")
    assert planned("model.onnx", ("--method", "heft"), hidden=(*TORCH, *OTHERS))["graph"]["ops"] > 60


def test_zoo_graph_needs_only_the_core() -> None:
    planned("zoo:transformer-xl-2", ("--method", "heft"), hidden=(*TORCH, *OTHERS, "onnx"))


def test_lists_and_the_zoo_need_only_the_core() -> None:
    for done in run(
        ("tools", "list", "methods"), ("tools", "list", "clusters"), ("zoo",), hidden=(*TORCH, *OTHERS, "onnx")
    ):
        assert done.returncode == 0 and done.stdout, done.stderr


def test_what_needs_a_package_says_how_to_get_it(folder: Path) -> None:
    write_onnx(folder / "model.onnx")
    (folder / "graphs.jsonl").write_text("{}")
    (folder / "mine.py").write_text("def build():\n    import torch\n    return torch.nn.Linear(2, 2), ()\n")
    train = ("lab", "train", "regal", "--corpus", "graphs.jsonl", "--out", "here")
    lacking = {
        ("plan", "model.onnx"): "loadmaster[onnx]",
        ("zoo", "capture", "gpt2", "--out", "."): "loadmaster[zoo]",
        train: "loadmaster[torch]",
    }
    *told, own = run(*lacking, ("plan", "mine:build"), hidden=("onnx", "torch", "safetensors"))
    for done, extra in zip(told, lacking.values(), strict=True):
        assert done.returncode == 1
        assert "needs the package" in done.stderr and "pip install" in done.stderr and extra in done.stderr, done.stderr
        assert "Traceback" not in done.stderr
    assert own.returncode == 1
    assert "torch" in own.stderr and "Traceback" not in own.stderr
