"""The examples of docs/formats.md that are in the formats of others load."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from loadmaster.catalog import IMPORTERS
from loadmaster.graph import GraphBuilder
from loadmaster.importers import load
from loadmaster.importers.benchmarks.trace import with_times

DOC = Path(__file__).parents[3] / "docs/formats.md"
NAMES = {
    "hlo": "a.hlo", "mlir": "a.mlir", "pbtxt": "a.pbtxt", "costs": "a.pbtxt", "stg": "a.stg", "doppler": "a.txt",
    "workflow": "a.json",
}  # fmt: skip
EXAMPLES = dict(re.findall(r"^```(\w+)\n(.*?)^```$", DOC.read_text(), re.MULTILINE | re.DOTALL))


@pytest.mark.parametrize("mark", NAMES)
@pytest.mark.filterwarnings("ignore:.*assumed")
def test_examples_load(mark: str, tmp_path: Path) -> None:
    path = tmp_path / NAMES[mark]
    path.write_text(EXAMPLES[mark])
    assert load(path).num_ops > 0


def test_the_trace_gives_its_time(tmp_path: Path) -> None:
    builder = GraphBuilder()
    builder.op("a", "aten.addmm.default", [builder.tensor(8, "input")], [builder.tensor(8, "output")])
    (tmp_path / "trace.json").write_text(EXAMPLES["trace"])
    assert int(with_times(builder.build(), tmp_path / "trace.json").time_ns[0, 0]) == 12_000


def test_every_suffix_is_in_the_table() -> None:
    text = DOC.read_text()
    for suffix in IMPORTERS:
        assert f"`{suffix.removesuffix('.gz').removesuffix('.xz')}`" in text or ".json" in suffix
