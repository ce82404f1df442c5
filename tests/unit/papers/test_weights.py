"""Weights from anywhere: whatever is wrong with a file is an error of ours, soon and in little memory."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from safetensors import safe_open  # noqa: E402
from safetensors.torch import save_file  # noqa: E402

from loadmaster.errors import UnreadableFile  # noqa: E402
from loadmaster.papers.go2020 import read_network as load_go  # noqa: E402
from loadmaster.papers.methods import Placeto  # noqa: E402
from loadmaster.papers.placeto2019 import load_network  # noqa: E402
from loadmaster.papers.regal2020 import read_network as load_regal  # noqa: E402

PACKAGE = Path(__file__).parents[3] / "src" / "loadmaster"
LOADERS = {
    "go": (load_go, "go"),
    "regal": (load_regal, "regal"),
    "placeto": (lambda path: load_network(Placeto(checkpoint=path), 2, 0), None),
}


def sound(name: str) -> tuple[dict[str, Any], dict[str, Any]]:
    """A shipped file of weights as (header, tensors); something like one where none is shipped."""
    shipped = LOADERS[name][1]
    path = PACKAGE / "papers" / "weights" / f"{shipped}.safetensors"
    if not path.is_file():
        return {"policy": name, "network": {}}, {"network.a": torch.zeros(3), "network.b": torch.zeros(30)}
    with safe_open(str(path), "pt") as file:
        return json.loads(file.metadata()["policy"]), {n: file.get_tensor(n) for n in file.keys()}  # noqa: SIM118


def changed(known: dict[str, Any], tensors: dict[str, Any], kind: str) -> tuple[Any, dict[str, Any]]:
    first = sorted(tensors)[0]
    odd = {
        "no header": ({}, tensors),
        "header is a list": ([1], tensors),
        "no tensors": (known, {}),
        "a tensor more": (known, {**tensors, "network.more": torch.zeros(2)}),
        "a tensor less": (known, {name: t for name, t in tensors.items() if name != first}),
        "another shape": (known, {**tensors, first: torch.zeros(7, 7)}),
        "not finite": (known, {**tensors, first: torch.full_like(tensors[first].float(), float("nan"))}),
        "huge": ({**known, **{k: _huge(v) for k, v in known.items()}}, tensors),
        "null": ({**known, **{k: None for k in known}}, tensors),
        "text": ({**known, **{k: "x" for k in known if k != "policy"}}, tensors),
    }
    return odd[kind]


def _huge(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _huge(inner) for key, inner in value.items()}
    return 10**7 if type(value) is int else value


KINDS = ["no header", "header is a list", "no tensors", "a tensor more", "a tensor less", "another shape", "not finite"]


@pytest.mark.parametrize("name", LOADERS)
@pytest.mark.parametrize("kind", [*KINDS, "huge", "null", "text"])
def test_altered_weights_are_refused(name: str, kind: str, tmp_path: Path) -> None:
    if name == "rnn" and kind not in ("no header", "header is a list", "not finite", "null"):
        pytest.skip("what follows is compared when the network is there")
    known, tensors = changed(*sound(name), kind)
    path = tmp_path / "w.safetensors"
    save_file(tensors, str(path), {"policy": json.dumps(known)})
    with pytest.raises(UnreadableFile):
        LOADERS[name][0](str(path))


def test_the_tensor_that_does_not_fit_is_named(tmp_path: Path) -> None:
    known, tensors = changed(*sound("go"), "another shape")
    save_file(tensors, str(tmp_path / "w.safetensors"), {"policy": json.dumps(known)})
    odd = sorted(tensors)[0].partition(".")[2]
    with pytest.raises(UnreadableFile, match=re.escape(f"{odd}' has the shape (7, 7), not ")):
        load_go(str(tmp_path / "w.safetensors"))


@pytest.mark.parametrize("name", LOADERS)
def test_damaged_files_are_refused(name: str, tmp_path: Path) -> None:
    path = tmp_path / "w.safetensors"
    known, tensors = sound(name)
    save_file({n: tensors[n] for n in sorted(tensors)[:2]}, str(path), {"policy": json.dumps(known)})
    data, rng = path.read_bytes(), np.random.default_rng(0)
    cases = [b"", b"\x00", b"{}", b"\xff" * 64, data[:7], data[: len(data) // 2], data[8:]]
    for _ in range(20):
        spoiled = bytearray(data)
        spoiled[rng.integers(0, 200)] ^= int(rng.integers(1, 255))
        cases.append(bytes(spoiled))
    for case in cases:
        path.write_bytes(case)
        try:
            LOADERS[name][0](str(path))
        except UnreadableFile:
            continue
        assert name == "rnn", "two tensors are no network"
