"""The verdict on searches: what it says follows from what the runs gave, and a broken promise is called so."""

from __future__ import annotations

import json
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import pytest
from typer.testing import CliRunner

from loadmaster import Budget, Plan, solve
from loadmaster.bench import quality as room
from loadmaster.bench.quality import (
    QualitySettings,
    best_of_all,
    best_of_all_over_seeds,
    best_of_its_parts,
    best_over_seeds,
    closed,
    never_worse,
    quality,
    without_contention,
)
from loadmaster.bench.rows import LEAST_BYTES, TIGHT, Source, tight_rows
from loadmaster.cli.verbs import app
from loadmaster.cost import price
from loadmaster.problem.bounds import peak_bound
from loadmaster.search import Score, Search

LITTLE = QualitySettings(graphs=1, simulations=40, seconds=0.3)


def test_all_checks_run_and_give_a_line_each(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(room, "SEARCHES", ("local-search",))
    monkeypatch.setattr(room, "RIVALS", ("heft", "local-search"))
    monkeypatch.setattr(room, "FUSING", ("greedy-fusion",))
    monkeypatch.setattr(room, "SEEDS", 2)
    found = quality(LITTLE)
    text = found.text()
    assert [line.partition(":")[0] in ("yes", "NO") for line in text.splitlines()[-7:]] == [True] * 7
    assert len(found.outcome.failed) == sum(not check.holds for check in found.checks)
    assert found.as_data()["holds"] == (not found.outcome.failed)


@dataclass(frozen=True)
class Forgetful:
    """Good with little, bad with much."""

    def optimize(self, search: Search) -> Plan:
        problem = search.problem
        if search.simulations_left <= 20:
            return solve(problem, "heft", Budget(None, 1)).plan
        return Plan.of(problem, [0] * problem.num_ops)


def test_a_method_that_gets_worse_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(room, "SEARCHES", (Forgetful(),))
    monkeypatch.setattr(room, "LADDER", (20,))
    check = never_worse(QualitySettings(graphs=2, simulations=40))
    assert not check.holds
    assert any(row[-1] == "worse" for row in check.table.rows)


def test_placement_behind_another_method_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    def fake(problem: Any, spec: Any, budget: Any, seed: int = 0) -> Any:
        return solve(problem, "one-device" if spec == "placement" else "heft", Budget(None, 1))

    monkeypatch.setattr(room, "solve", fake)
    monkeypatch.setattr(room, "RIVALS", ("heft",))
    assert not best_of_its_parts(QualitySettings(graphs=2, simulations=40)).holds
    assert not best_over_seeds(QualitySettings(graphs=2, simulations=40)).holds
    assert not without_contention(QualitySettings(graphs=2)).holds
    assert not closed(QualitySettings(graphs=2)).holds


@pytest.mark.parametrize(("rival", "holds"), [("placement", True), ("separate", False)])
def test_the_default_is_compared_with_what_fuses(monkeypatch: pytest.MonkeyPatch, rival: str, holds: bool) -> None:
    """It is level with one of its rivals and behind, or ahead of, the other."""
    values = {"auto": 1000, "placement": 1000, "separate": 1004 if holds else 994}

    def fake(problem: Any, spec: str, budget: Any, seed: int = 0) -> Any:
        return SimpleNamespace(score=Score(0, values[spec]))

    monkeypatch.setattr(room, "solve", fake)
    monkeypatch.setattr(room, "RIVALS", ())
    monkeypatch.setattr(room, "FUSING", ("separate",))
    for check in (best_of_all, best_of_all_over_seeds):
        found = check(QualitySettings(graphs=1, simulations=40))
        assert found.holds is holds and [row[3] for row in found.table.rows] == [rival]


def test_the_default_is_compared_with_what_fuses_nothing_too(monkeypatch: pytest.MonkeyPatch) -> None:
    values = {"auto": 1000, "placement": 1000, "heft": 994, "separate": 1001}

    def fake(problem: Any, spec: str, budget: Any, seed: int = 0) -> Any:
        return SimpleNamespace(score=Score(0, values[spec]))

    monkeypatch.setattr(room, "solve", fake)
    monkeypatch.setattr(room, "RIVALS", ("heft",))
    monkeypatch.setattr(room, "FUSING", ("separate",))
    for check in (best_of_all, best_of_all_over_seeds):
        found = check(QualitySettings(graphs=1, simulations=40))
        assert not found.holds and [row[3] for row in found.table.rows] == ["heft"]


def test_means_are_over_the_values_of_all_seeds(monkeypatch: pytest.MonkeyPatch) -> None:
    """The method that is best with its luckiest seed need not be best in the mean."""
    values = {"placement": (10, 10), "local-search": (8, 16), "heft": (11, 11)}

    def fake(problem: Any, spec: str, budget: Any, seed: int = 0) -> Any:
        return SimpleNamespace(score=Score(0, values[spec][seed % 2] * 1000))

    monkeypatch.setattr(room, "solve", fake)
    monkeypatch.setattr(room, "RIVALS", ("heft", "local-search"))
    monkeypatch.setattr(room, "SEEDS", 2)
    check = best_over_seeds(QualitySettings(graphs=1, simulations=40))
    assert check.holds and [row[3] for row in check.table.rows] == ["heft"]
    values["heft"] = (9, 9)
    assert not best_over_seeds(QualitySettings(graphs=1, simulations=40)).holds


def test_from_the_command_line(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(room, "SEARCHES", ("local-search",))
    monkeypatch.setattr(room, "RIVALS", ("heft",))
    monkeypatch.setattr(room, "FUSING", ("greedy-fusion",))
    monkeypatch.setattr(room, "SEEDS", 2)
    words = ["bench", "quality", "--limit", "1", "--simulations", "30", "--seconds", "0.2", "--json"]
    done = CliRunner().invoke(app, words)
    data = json.loads(done.stdout)["suites"][0]
    assert done.exit_code == (0 if data["holds"] else 1)
    assert len(data["checks"]) == 7


def test_tight_rows_have_so_many_times_the_least_memory() -> None:
    rows = list(tight_rows(Source()))
    assert len(rows) == len(LEAST_BYTES) * len(TIGHT) == 24
    for row in rows:
        name, _, times = row.name.partition(" x ")
        devices, least = LEAST_BYTES[name]
        limits = [device.memory_bytes for device in row.cluster.devices]
        assert len(limits) == devices
        assert all(0 <= limit - float(times) * least < 1 for limit in limits)


@pytest.mark.parametrize("name", ["transformer-xl-4", "vit-base"])
def test_the_least_is_no_less_than_what_is_possible(name: str) -> None:
    row = next(row for row in tight_rows(Source()) if row.name == f"{name} x 1.1")
    problem = price(row.graph(), row.cluster)
    assert peak_bound(problem) <= LEAST_BYTES[name][1] < int(problem.memory_bytes[0])
