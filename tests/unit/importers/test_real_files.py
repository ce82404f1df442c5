"""A small part of benchmarks/real_files.py: models of PyTorch in onnx's wheel, judged by onnx's own evaluator."""

from __future__ import annotations

import sys
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

onnx = pytest.importorskip("onnx")

BENCHMARKS = Path(__file__).parents[3] / "benchmarks"
DATA = Path(onnx.__file__).parent / "backend/test/data/pytorch-converted"


@pytest.fixture(scope="module")
def real_files() -> Any:
    sys.path.insert(0, str(BENCHMARKS))
    try:
        import real_files
    finally:
        sys.path.remove(str(BENCHMARKS))
    return real_files


def test_nothing_is_read_wrong_in_silence(real_files: Any) -> None:
    rows = [real_files.judged(path, write_back=False) for path in real_files.files_in(DATA)]
    wrong = [row.line() for row in rows if row.verdict == "WRONG"]
    assert wrong == []
    assert Counter(row.verdict for row in rows)["equal"] > 50 and sum(row.shapes for row in rows) > 50


def test_what_is_wrong_is_told(real_files: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """A judge that saw other shapes and half of the weights makes a row wrong."""
    path = next(path for path in real_files.files_in(DATA) if "Conv2d" in str(path))
    judge, kinds = real_files.JUDGES[".onnx"]

    def lying(path: Path) -> Any:
        facts = judge(path)
        facts.shapes = {op: (*shape, 2) for op, shape in facts.shapes.items()}
        return facts

    monkeypatch.setitem(real_files.JUDGES, ".onnx", (lying, kinds))
    row = real_files.judged(path, write_back=False)
    assert row.verdict == "WRONG" and row.unlike > 0
