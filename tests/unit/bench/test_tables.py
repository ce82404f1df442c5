"""Tables: what stands in them where a plan does not fit or fuses, and how cells are written."""

from __future__ import annotations

import csv
import io
import tempfile
from dataclasses import replace
from pathlib import Path

import pytest

from loadmaster.bench.records import RunLedger, RunRecord
from loadmaster.bench.run import Order, run
from loadmaster.bench.suite import Suite
from loadmaster.bench.table import Column, Table
from loadmaster.bench.views import tables_of
from tests.unit.bench.made import record, tiny_rows, tiny_suite


def records_of(suite: Suite) -> list[RunRecord]:
    """One-shot methods, whose plans are the same everywhere; times on the clock are not, so they are left out."""
    with tempfile.TemporaryDirectory() as folder:
        book = RunLedger(Path(folder) / "tiny.jsonl")
        run(Order.of(suite, ["expert", "heft", "etf"], None, seeds=1), book)
    return [replace(record, seconds=0.25) for record in book.records]


def test_a_plan_that_does_not_fit_is_said_so_and_left_out_of_the_mean() -> None:
    suite = tiny_suite(shape="speed-up", rows=lambda source: tiny_rows(source, memory_bytes=145))
    # 145 bytes: the diamond needs 150 at once on the device of its first op and one more, the chain as well.
    _, over, *_ = tables_of(suite, records_of(suite), {})
    rows = {row[0]: row[1:] for row in over.rows}
    assert all("OOM" in str(cell) for cell in rows["diamond"])
    assert set(rows["over workloads"]) == {"1 of 3"}
    assert "OOM" in over.text() and "OOM" in over.markdown() and "OOM" in over.csv()


def test_fused_plans_are_no_best_known_values_and_bring_their_own_bound() -> None:
    suite = tiny_suite(shape="speed-up", baseline_allowance=replace(tiny_suite().allowance, simulations=100))
    runs = [record("a", "one-device", 90, bound=80), record("a", "greedy-fusion", 70, bound=60, fuses=True)]
    steps, over = tables_of(suite, runs, {})
    assert steps.rows == [("a", 4, 90.0, 70.0, None, 60)]
    assert over.rows[0] == ("a", pytest.approx(90 / 70 - 1))


def test_without_the_baseline_there_is_no_table_yet() -> None:
    found = [record("a", "heft", 3)]
    (table,) = tables_of(tiny_suite(), found, {})
    assert "no run of one-device yet" in table.text()


SAMPLE = Table(
    "A sample",
    (Column("name"), Column("gain", "percent"), Column("size, MB", "MB"), Column("n", "count")),
    [("plain", 0.1234, 10_485_760, 1234), ("a|b", None, "OOM", 0), ("nan", float("nan"), 1.0, 5)],
    ("what it says",),
)


def test_text_is_aligned_and_numbers_end_together() -> None:
    lines = SAMPLE.text().splitlines()
    assert lines[2] == "name       gain  size, MB      n"
    assert lines[4] == "plain  +12.34 %     10.49  1,234"
    assert lines[5] == "a|b           -       OOM      0"
    assert lines[-1] == "what it says"


def test_markdown_keeps_bars_out_of_cells() -> None:
    assert "| a\\|b | - | OOM | 0 |" in SAMPLE.markdown()
    assert "|---|--:|--:|--:|" in SAMPLE.markdown()
    assert SAMPLE.markdown().rstrip().endswith("What it says.")


def test_csv_has_the_values_unrounded() -> None:
    rows = list(csv.reader(io.StringIO(SAMPLE.csv())))
    assert rows[1] == ["plain", "0.1234", "10485760", "1234"]
    assert rows[2] == ["a|b", "", "OOM", "0"]


def test_a_row_of_another_width_is_refused() -> None:
    with pytest.raises(AssertionError):
        Table("t", (Column("a"),), [(1, 2)])


def test_peers_are_told_optimal_from_below() -> None:
    suite = tiny_suite(shape="peers", baseline="given-order", focus="auto")
    base = replace(suite, baseline_allowance=replace(suite.allowance, simulations=100))
    runs = [
        *(
            record("a", spec, value, bound=80)
            for spec, value in (("given-order", 200), ("inductor", 100), ("auto", 90))
        ),
        *(record("b", spec, value, bound=80) for spec, value in (("given-order", 90), ("inductor", 80), ("auto", 80))),
        *(record("c", spec, value, bound=80) for spec, value in (("given-order", 90), ("inductor", 90), ("auto", 99))),
        *(record("d", spec, value, bound=80) for spec, value in (("given-order", 90), ("auto", 99))),
    ]
    table, *_ = tables_of(base, runs, {})
    said = {row[0]: row[-1] for row in table.rows}
    assert said["a"] == "10.0 % below the best peer"
    assert said["b"] == "optimal unfused: it meets the bound, 0.0 % below the best peer"
    assert said["c"] == "10.0 % above the best peer"
    assert said["d"] == "not compared: no peer was run"
