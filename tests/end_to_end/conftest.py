"""Files a user might have, in a fresh folder that is the current one."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from loadmaster import Cluster, GraphBuilder
from loadmaster.files import save_cluster, save_graph

ROOT = Path(__file__).parents[2]


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty folder, and the current one."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("COLUMNS", raising=False)
    return tmp_path


@pytest.fixture
def model(folder: Path) -> str:
    """model.json: four layers of three lanes, 16 MiB of weights each layer."""
    write_model(folder / "model.json")
    return "model.json"


def write_model(path: Path) -> None:
    graph = GraphBuilder("lanes")
    lanes = [graph.tensor(4 << 20, "input", name="x")] * 3
    for layer in range(4):
        weight = graph.tensor(16 << 20, "weight", name=f"w{layer}")
        made = [graph.tensor(4 << 20) for _ in lanes]
        for lane, (read, make) in enumerate(zip(lanes, made, strict=True)):
            name = f"layers.{layer}.{lane}"
            graph.op(name, "mm", [read, weight], [make], flops=2 * 10**10, scope=f"layers.{layer}")
        lanes = made
    graph.op("sum", "add", lanes, [graph.tensor(4 << 20, "output")], flops=10**6, scope="head")
    save_graph(graph.build(), path)


def write_cluster(path: Path) -> None:
    save_cluster(Cluster.preset("2xp100-pcie"), path)


def write_onnx(path: Path) -> None:
    onnx = pytest.importorskip("onnx")
    light = Path(onnx.__file__).parent / "backend" / "test" / "data" / "light"
    shutil.copy(next(iter(sorted(light.glob("*squeezenet*.onnx")))), path)


def write_config(path: Path) -> None:
    """A folder with the config.json of a small language model."""
    path.mkdir()
    heads = {"num_attention_heads": 4, "num_key_value_heads": 2}
    sizes = {"hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 4, "vocab_size": 256}
    (path / "config.json").write_text(json.dumps({"model_type": "llama", **heads, **sizes}))


def command(*words: str, **environment: str) -> subprocess.CompletedProcess[str]:
    """Runs loadmaster as a user would, in a process of its own."""
    program = [sys.executable, "-m", "loadmaster.cli.verbs", *words]
    env = {**os.environ, **environment}
    return subprocess.run(program, capture_output=True, text=True, env=env, timeout=300, check=False)


def parsed(text: str) -> Any:
    """Strict JSON: no NaN, no Infinity."""

    def refuse(word: str) -> None:
        raise AssertionError(f"{word} is not JSON")

    return json.loads(text, parse_constant=refuse)
