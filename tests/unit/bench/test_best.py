"""Best-known values only ever improve."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from loadmaster.bench.best import SCHEMA, BestKnown, KnownValue, load_best, long_specs, shipped_path
from loadmaster.bench.methods import method
from loadmaster.errors import UnreadableFile
from tests.unit.bench.made import record

PLACE = record("a", "x", 1).place


def known(value: int, spec: str = "x") -> KnownValue:
    return KnownValue.of(record("a", spec, value, 3, date="2026-01-02"))


def test_a_worse_or_equal_value_changes_nothing() -> None:
    best = BestKnown()
    assert best.offer(known(90, "first"))
    assert not best.offer(known(90, "second"))
    assert not best.offer(known(95, "third"))
    assert best.offer(known(80, "fourth"))
    found = best.get(PLACE)
    assert found is not None and (found.value, found.method, found.seed) == (80, "fourth", 3)
    assert (found.date, found.name) == ("2026-01-02", "a")


def test_the_file_only_improves_whoever_writes_it(tmp_path: Path) -> None:
    path = tmp_path / "best.json"
    BestKnown([known(80)]).save(path)
    slow = BestKnown([known(85)])  # began before the other wrote
    slow.save(path)
    assert load_best(path).values == {PLACE: 80}
    BestKnown([known(70)]).save(path)
    assert load_best(path).values == {PLACE: 70}
    assert [file.name for file in tmp_path.iterdir()] == ["best.json"]
    assert json.loads(path.read_text())["schema"] == SCHEMA


def test_runs_that_do_not_fit_fuse_fail_or_break_the_bound_do_not_count() -> None:
    best = BestKnown()
    runs = [
        record("a", "x", 60, over_bytes=1),
        record("a", "x", 60, fuses=True),
        record("a", "x", 0, error="ValueError: no"),
        record("a", "x", 49),  # the bound is 50
    ]
    assert best.offer_records(runs) == 0 and not best.values
    assert best.offer_records([*runs, record("a", "x", 70), record("a", "x", 65), record("a", "x", 66)]) == 2
    assert best.values == {PLACE: 65}


def test_another_objective_or_cluster_is_another_problem() -> None:
    best = BestKnown([known(80)])
    other = KnownValue(*("digest-a", "c", "step-time"), 5, "x", 0, 1, "", "a")
    assert best.offer(other) and best.values == {PLACE: 80, other.place: 5}


def test_the_simulations_are_those_after_which_it_was_found() -> None:
    assert KnownValue.of(record("a", "x", 60, simulations=900, history=((3, 80), (40, 60)))).simulations == 40


def test_what_is_no_such_file_is_refused(tmp_path: Path) -> None:
    for text in ('{"schema": "other"}', f'{{"schema": "{SCHEMA}", "rows": [{{"graph": "a"}}]}}'):
        (tmp_path / "best.json").write_text(text)
        with pytest.raises(UnreadableFile):
            load_best(tmp_path / "best.json")


def test_the_shipped_file_reads_and_every_long_method_exists() -> None:
    assert shipped_path().is_file()
    load_best()
    for spec in long_specs(200_000):
        method(spec)
