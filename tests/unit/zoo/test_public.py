"""The public corpus: families keep to one side, graphs are kept, and a run that was stopped goes on."""

from __future__ import annotations

from collections import defaultdict
from pathlib import Path

import pytest

from loadmaster.files import load_records
from loadmaster.zoo import ENTRIES
from loadmaster.zoo.public import is_valid, make_corpus, public_models


@pytest.mark.parametrize("seed", [0, 1, 7])
def test_a_family_of_architectures_is_on_one_side_and_tests_are_never_learned_from(seed: int) -> None:
    sides: dict[str, set[bool]] = defaultdict(set)
    for model in public_models():
        assert not ENTRIES.get(model.kind) or not ENTRIES[model.kind].devices, "the papers' tables are made on these"
        if model.is_member:
            assert is_valid(model, seed) == (int(model.kind.split("/")[1]) % 4 == 3)
        else:
            sides[model.family].add(is_valid(model, seed))
    assert all(len(side) == 1 for side in sides.values())
    share = sum(True in side for side in sides.values()) / len(sides)
    assert 0.15 < share < 0.35
    names = [model.name for model in public_models()]
    assert len(set(names)) == len(names)


def test_graphs_are_read_back_with_where_they_are_from_and_not_captured_twice(tmp_path: Path) -> None:
    pytest.importorskip("torch")
    pytest.importorskip("transformers")
    said: list[str] = []
    counts = make_corpus(tmp_path, limit=2, say=said.append)
    assert sum(counts.values()) == 2 and len(said) == 2
    found = [row for side, many in counts.items() if many for row in load_records(tmp_path / f"{side}.jsonl.xz")]
    assert len(found) == 2
    assert {origin["mode"] for _, origin in found} <= {"training", "inference"}
    for graph, origin in found:
        (line,) = (row for row in (tmp_path / "index.csv").read_text().splitlines() if f",{graph.name}," in row)
        assert line.split(",")[2:] == [origin["family"], origin["mode"], str(graph.num_ops)]
    before = {path: path.stat().st_mtime_ns for path in (tmp_path / "graphs").iterdir()}
    assert make_corpus(tmp_path, limit=2, say=said.append) == counts
    assert {path: path.stat().st_mtime_ns for path in (tmp_path / "graphs").iterdir()} == before
