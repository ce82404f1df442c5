"""Where the problems come from."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from loadmaster.bench.rows import Source, corpus_rows, go_rows, synthetic_rows, zoo_rows
from loadmaster.bench.suite import GROUPS, SUITES, suites_of
from loadmaster.catalog.specs import make_method
from loadmaster.cost import price
from loadmaster.errors import UnknownName, UnreadableFile
from loadmaster.files import graph_to_json
from loadmaster.papers.methods import GO_TASKS
from tests.graphs.tiny import chain, diamond, fork


@pytest.fixture
def corpus(tmp_path: Path) -> Path:
    """chain and fork in training, diamond in inference; a fourth line says nothing of its mode."""
    modes = [(chain, "training"), (diamond, "inference"), (fork, "training")]
    lines = [{**graph_to_json(make()), "mode": mode} for make, mode in modes]
    lines.append(graph_to_json(diamond()))
    path = tmp_path / "few.jsonl"
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return path


def names(path: Path, **source: object) -> list[str]:
    rows = corpus_rows(Source(path, **source), "regal", "peak-memory")  # type: ignore[arg-type]
    return [row.name for row in rows]


def test_training_graphs_are_taken_unless_told_otherwise(corpus: Path) -> None:
    assert names(corpus) == ["chain", "fork", "diamond"]
    assert names(corpus, mode="inference") == ["diamond", "diamond"]
    assert names(corpus, mode="all") == ["chain", "diamond", "fork", "diamond"]


def test_limits_count_what_is_taken_and_parts_split_it(corpus: Path) -> None:
    assert names(corpus, limit=2) == ["chain", "fork"]
    assert names(corpus, part=(1, 2)) == ["chain", "diamond"]
    assert names(corpus, part=(2, 2)) == ["fork"]
    assert names(corpus, limit=2, part=(2, 2)) == ["fork"]


def test_a_row_has_its_graph_and_digest(corpus: Path) -> None:
    (row,) = corpus_rows(Source(corpus, limit=1), "regal", "peak-memory")
    assert row.graph().digest == row.digest == chain().digest
    assert price(row.graph(), row.cluster, objective=row.objective).num_devices == 2


def test_without_a_corpus_the_way_out_is_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LOADMASTER_SHARED", str(tmp_path))
    with pytest.raises(UnreadableFile) as caught:
        list(SUITES["regal"].rows(Source()))
    assert "synthetic" in caught.value.fix


def test_go_has_its_fourteen_workloads_on_their_devices() -> None:
    rows = list(go_rows(Source()))
    assert len(rows) == 14 and all(row.name.endswith("/train") for row in rows)
    # The last number of a name is its devices, except for Inception (2) and WaveNet (its stacks).
    devices = {row.name: row.cluster.num_devices for row in rows}
    assert devices["rnnlm-8/train"] == devices["gnmt-8/train"] == 8
    assert devices["inception-v3-b64/train"] == devices["wavenet-2x18/train"] == 2
    assert {row.name for row in SUITES["go-fusion"].rows(Source())} < {row.name for row in rows}


def test_generated_rows_are_all_kinds_in_turn_and_need_no_files() -> None:
    rows = list(synthetic_rows(Source(limit=7), "regal", "peak-memory"))
    kinds = [row.name.partition("/")[0] for row in rows]
    assert len(rows) == 7 and len(set(kinds[:5])) == 5 and kinds[5] == kinds[0]
    assert len({row.digest for row in rows}) == 7
    again = list(synthetic_rows(Source(limit=7), "regal", "peak-memory"))
    assert [row.digest for row in again] == [row.digest for row in rows]


def test_the_zoo_has_room_for_every_model_and_reads_none_to_be_listed() -> None:
    rows = list(zoo_rows(Source(), "regal", "peak-memory"))
    assert all(row.name.endswith("/train") for row in rows)
    assert all(int(row.cluster.memory_bytes.min()) == 2**40 for row in rows)
    small = rows[0]
    assert small.graph().digest == small.digest


def test_joint_and_fusion_suites_name_methods_that_can_be_made() -> None:
    for suite in (SUITES["joint"], SUITES["go-fusion"]):
        made = [make_method(spec) for spec in (suite.baseline, *suite.specs)]
        assert len({repr(method) for method in made}) == len(made)
        assert suite.focus in suite.specs
    assert [row.name for row in SUITES["joint"].rows(Source())] == [row.name for row in go_rows(Source())]
    alone = [spec for spec in SUITES["joint"].specs if spec.startswith("separate:")]
    assert [make_method(spec).tasks for spec in alone] == [("placement",), ("schedule",), ("fusion",)]
    assert all(make_method(spec).start == make_method(SUITES["joint"].baseline) for spec in alone)
    both = {"go-one:tasks=fusion": ("fusion",), "go-one:tasks=[fusion,placement,schedule]": GO_TASKS}
    assert {spec: make_method(spec).wanted for spec in both} == both


def test_names_of_suites_and_groups() -> None:
    assert [suite.name for suite in suites_of("synthetic")] == list(GROUPS["synthetic"])
    assert all(name in SUITES for group in GROUPS.values() for name in group)
    with pytest.raises(UnknownName, match="regall"):
        suites_of("regall")
