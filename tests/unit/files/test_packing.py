"""Files that unpack to more than their size explains cost little memory; names that are none are refused."""

from __future__ import annotations

import gzip
import lzma
import tracemalloc
import zipfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import loadmaster as lm
from loadmaster.errors import LoadmasterError, UnreadableFile
from loadmaster.files import packing, save_graph
from loadmaster.files.text import read_json, read_json_lines
from loadmaster.zoo.synthetic import generate

UNPACKED = 64 * 2**20
PACKERS: dict[str, Callable[[bytes], bytes]] = {".gz": gzip.compress, ".xz": lambda data: lzma.compress(data, preset=0)}


@pytest.fixture
def bomb(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], Path]:
    monkeypatch.setattr(packing, "ALWAYS_BYTES", 2 * 2**20)

    def write(name: str) -> Path:
        path = tmp_path / name
        if path.suffix in PACKERS:
            path.write_bytes(PACKERS[path.suffix](b" " * UNPACKED))
        else:
            with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
                archive.writestr("model/data/weights/w", bytes(UNPACKED))
        return path

    return write


@pytest.fixture
def peak() -> Iterator[Callable[[], int]]:
    yield lambda: tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()


@pytest.mark.parametrize("name", ["g.json.gz", "g.json.xz", "g.jsonl.gz", "g.jsonl.xz", "g.hlo.xz", "g.pb.gz"])
def test_a_small_file_cannot_fill_the_memory(name: str, bomb: Callable[[str], Path], peak: Callable[[], int]) -> None:
    path = bomb(name)
    tracemalloc.start()
    with pytest.raises(UnreadableFile, match="unpacks to more than") as raised:
        list(read_json_lines(path)) if ".jsonl" in name else lm.load(str(path))
    assert peak() < UNPACKED // 2 and "unpack it" in raised.value.fix


def test_a_program_is_refused_by_what_its_archive_promises(bomb: Callable[[str], Path]) -> None:
    pytest.importorskip("torch")
    with pytest.raises(UnreadableFile, match="unpacks to 64 MiB"):
        lm.load(str(bomb("m.pt2")))


@pytest.mark.parametrize("suffix", PACKERS)
def test_what_packs_well_is_read(suffix: str, tmp_path: Path) -> None:
    """Blanks pack far better than any graph: up to ALWAYS_BYTES nobody asks; two streams in a row are one file."""
    path = tmp_path / f"g.json{suffix}"
    path.write_bytes(PACKERS[suffix](b'{"a":' + b" " * 2**20) + PACKERS[suffix](b"1}"))
    assert read_json(path) == {"a": 1}


@pytest.mark.parametrize(
    "name", ["x" * 300, "a/" * 3000 + "g.json", "nul\0.json", "half\ud800.json", "x" * 300 + ".onnx"]
)
def test_names_that_no_file_can_have(name: str, tmp_path: Path) -> None:
    graph = next(generate("layered", 1, seed=0, ops=8))
    problem = lm.price(graph, "2xp100-pcie")
    plan = lm.solve(problem, "heft", lm.Budget(None, 1)).plan
    calls: list[Callable[[], Any]] = [
        lambda: lm.load(name),
        lambda: lm.load(str(tmp_path / name)),
        lambda: lm.load_plan(tmp_path / name),
        lambda: lm.save_plan(plan, problem, tmp_path / name),
        lambda: save_graph(graph, tmp_path / name),
        lambda: lm.price(graph, str(tmp_path / name)),
    ]
    for call in calls:
        with pytest.raises(LoadmasterError):
            call()
