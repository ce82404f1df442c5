"""Runs: each once, whatever happens in between."""

from __future__ import annotations

import signal
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from loadmaster.baselines.simple import OneDevice
from loadmaster.bench import run as running
from loadmaster.bench.methods import seeds_of
from loadmaster.bench.records import RunLedger, RunRecord, read_records
from loadmaster.bench.run import Order, run
from loadmaster.bench.suite import Allowance
from loadmaster.errors import InvalidSetting, MissingExtra, UnknownName
from loadmaster.plans import Plan
from loadmaster.search import Search
from tests.unit.bench.made import tiny_rows, tiny_suite

ROOT = Path(__file__).parents[3]


def order(**others: Any) -> Order:
    suite = tiny_suite(**others)
    return Order.of(suite, ["heft", "random"], None, seeds=2)


def ledger(folder: Path) -> RunLedger:
    return RunLedger(folder / "tiny.jsonl")


def without_times(records: list[RunRecord]) -> dict[tuple[str, ...], int]:
    return {record.key: record.value for record in records}


def test_every_method_runs_on_every_row_under_every_seed_it_needs(tmp_path: Path) -> None:
    outcome = run(order(), ledger(tmp_path))
    records = ledger(tmp_path).records
    assert outcome.done == len(records) == 3 * (1 + 1 + 2)  # one-device, heft; random under two seeds
    assert {(r.spec, r.seed) for r in records} == {("one-device", 0), ("heft", 0), ("random", 0), ("random", 1)}
    assert all(r.value == r.step_ns >= r.bound > 0 and r.fits and r.date and r.version for r in records)
    diamond = next(r for r in records if r.row == "diamond" and r.spec == "one-device")
    assert (diamond.value, diamond.peak_bytes) == (70, 190)  # 10 + 20 + 30 + 10 ns; A, B and C
    assert diamond.budget == "10 simulations"


def test_finished_runs_are_not_run_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run(order(), ledger(tmp_path))
    text = (tmp_path / "tiny.jsonl").read_text()
    monkeypatch.setattr(running, "solve", None)  # calling it would fail
    outcome = run(order(), ledger(tmp_path))
    assert (outcome.done, outcome.kept, outcome.failed) == (0, 12, [])
    assert (tmp_path / "tiny.jsonl").read_text() == text


def test_a_further_method_seed_or_budget_runs_only_what_is_new(tmp_path: Path) -> None:
    run(order(), ledger(tmp_path))
    more = Order.of(tiny_suite(), ["heft", "random", "etf"], None, seeds=3)
    assert run(more, ledger(tmp_path)).done == 3 * (1 + 1)  # etf, and the third seed of random
    other = Order.of(tiny_suite(), ["heft"], Allowance(simulations=21), seeds=1)
    assert run(other, ledger(tmp_path)).done == 3
    assert run(Order.of(tiny_suite(), ["heft"], None, seeds=1, again=True), ledger(tmp_path)).done == 6


def test_another_memory_limit_is_another_problem(tmp_path: Path) -> None:
    run(order(), ledger(tmp_path))
    small = tiny_suite(rows=lambda source: tiny_rows(source, memory_bytes=145))
    outcome = run(Order.of(small, ["heft"], None, seeds=1), ledger(tmp_path))
    assert outcome.kept == 0 and outcome.done == 6
    over = {r.row: r.over_bytes for r in ledger(tmp_path).records if r.spec == "one-device" and not r.fits}
    assert over == {"diamond": 190 - 145, "chain": 158 - 145}  # A, B and C; x, A and B


KILLED = """
import os, signal, sys
from pathlib import Path
from loadmaster.bench.records import RunLedger
from loadmaster.bench.run import Order, run
from tests.unit.bench.made import tiny_suite

left = [5]

def landed(record):
    left[0] -= 1
    if not left[0]:
        os.kill(os.getpid(), signal.SIGKILL)

run(Order.of(tiny_suite(), ["heft", "random"], None, seeds=2), RunLedger(Path(sys.argv[1])), landed=landed)
"""


def test_killed_after_five_runs_it_goes_on_with_the_sixth(tmp_path: Path) -> None:
    file = tmp_path / "tiny.jsonl"
    dead = subprocess.run([sys.executable, "-c", KILLED, str(file)], cwd=ROOT, check=False, timeout=120)
    assert dead.returncode == -signal.SIGKILL
    first = file.read_text()
    assert len(list(read_records(file))) == 5
    file.write_text(first + first.splitlines()[0][:40])  # as if the kill had come in the middle of a write
    outcome = run(order(), RunLedger(file))
    assert (outcome.kept, outcome.done) == (5, 7)
    assert file.read_text().startswith(first)
    run(order(), RunLedger(tmp_path / "whole.jsonl"))
    assert without_times(RunLedger(file).records) == without_times(RunLedger(tmp_path / "whole.jsonl").records)


@dataclass(frozen=True)
class Interrupted:
    """Scores a plan, then the user presses Ctrl-C."""

    def optimize(self, search: Search) -> Plan:
        plan = OneDevice().optimize(search)
        if search.problem.graph.name == "diamond":
            search.score(plan)
            signal.raise_signal(signal.SIGINT)
        return plan


def test_a_search_that_was_interrupted_leaves_no_record(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    plain = running.method
    monkeypatch.setattr(running, "method", lambda spec: Interrupted() if spec == "heft" else plain(spec))
    outcome = run(order(), ledger(tmp_path))
    assert outcome.stopped
    found = ledger(tmp_path).records
    assert ("diamond", "heft") not in {(r.row, r.spec) for r in found}
    assert ("diamond", "one-device") in {(r.row, r.spec) for r in found}
    monkeypatch.undo()
    assert run(order(), ledger(tmp_path)).kept == len(found)
    assert len(ledger(tmp_path).records) == 12


@dataclass(frozen=True)
class Broken:
    error: Exception

    def optimize(self, search: Search) -> Plan:
        raise self.error


def test_a_failure_is_kept_shown_and_tried_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    plain = running.method
    broken = Broken(ValueError("out of luck"))
    monkeypatch.setattr(running, "method", lambda spec: broken if spec == "heft" else plain(spec))
    outcome = run(order(), ledger(tmp_path))
    assert len(outcome.failed) == 3 and "out of luck" in outcome.failed[0]
    assert outcome.done == 9
    monkeypatch.undo()
    assert run(order(), ledger(tmp_path)).done == 3
    assert not any(r.error for r in ledger(tmp_path).records)


def test_a_missing_package_skips_the_method_and_says_why(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    plain = running.method
    absent = Broken(MissingExtra.of("pymetis", "partition", "partitioning"))
    monkeypatch.setattr(running, "method", lambda spec: absent if spec == "heft" else plain(spec))
    outcome = run(order(), ledger(tmp_path))
    assert "pymetis" in outcome.skipped["heft"] and "pip install" in outcome.skipped["heft"]
    assert outcome.done == 9 and not outcome.failed


def test_methods_of_a_suite_that_are_not_there_yet_are_named() -> None:
    suite = tiny_suite(specs=("heft", "not-there-yet"))
    assert Order.of(suite, None, None).specs == ("heft",)
    assert Order.of(suite, None, None).absent == ("not-there-yet",)
    with pytest.raises(UnknownName, match="not-there-yet"):
        Order.of(suite, ["not-there-yet"], None)


def test_one_shot_methods_need_one_seed_and_nested_ones_all() -> None:
    assert list(seeds_of("heft", 3)) == [0]
    assert list(seeds_of("heft:contention=no", 3)) == [0]
    assert list(seeds_of("greedy-fusion:inner=[anneal]", 3)) == [0, 1, 2]
    assert list(seeds_of("anneal", 3)) == [0, 1, 2]


def test_time_in_proportion_to_the_baseline() -> None:
    allowance = Allowance(seconds=2.0, times=3.0)
    assert allowance.budget(0.5).seconds == 2.0
    assert allowance.budget(1.5).seconds == 4.5
    assert allowance.text == "2 s or 3x baseline"
    assert Allowance(simulations=5_000).words == "--simulations 5000"
    with pytest.raises(InvalidSetting, match="least time"):
        Allowance(times=2.0)
    with pytest.raises(InvalidSetting):
        Allowance()


def test_the_time_of_a_baseline_on_its_row_is_what_counts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    given: list[Any] = []
    plain = running.solve

    def watched(problem: Any, method: Any, budget: Any, seed: int = 0, **others: Any) -> Any:
        given.append((problem.graph.num_ops, budget.seconds))
        return plain(problem, method, budget, seed, **others)

    first = Order.of(tiny_suite(), ["one-device"], Allowance(seconds=0.01, times=2.0), seeds=1)
    book = ledger(tmp_path)
    run(first, book)
    slow = {record.key: RunRecord(**{**record.__dict__, "seconds": 0.2}) for record in book.records}
    book._records.update(slow)
    monkeypatch.setattr(running, "solve", watched)
    run(Order.of(tiny_suite(), ["heft"], Allowance(seconds=0.01, times=2.0), seeds=1), book)
    assert [seconds for _, seconds in given if seconds is not None] == [pytest.approx(0.4)] * 3
