"""Ctrl-C in a comparison: it ends, and what is there is kept and said to be interrupted. What baselines may take."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from loadmaster.cli import stages
from loadmaster.cli.verbs import app
from loadmaster.files import load_plan, save_graph
from loadmaster.search import Budget
from tests.graphs import GRAPHS

SPECS = ("one-device", "etf", "heft")


def interrupt_at(which: str, monkeypatch: pytest.MonkeyPatch, *, scored: bool) -> None:
    """The user presses Ctrl-C while that method runs, before or after it scored a plan."""
    from loadmaster.baselines.lists.schedulers import Etf
    from loadmaster.catalog.specs import make_method

    assert type(make_method("etf")) is Etf
    real = Etf.optimize

    def pressed(self: Any, search: Any) -> Any:
        if len(search.problem.graph.op_name) == 4 and which == "etf":
            if scored:
                search.score(real(self, search))
            raise KeyboardInterrupt
        return real(self, search)

    monkeypatch.setattr(Etf, "optimize", pressed)


@pytest.fixture
def model(tmp_path: Path) -> Path:
    save_graph(GRAPHS["diamond"](), tmp_path / "model.json")
    return tmp_path / "model.json"


def typed(model: Path, *more: str) -> Any:
    words = ["compare", str(model), "--on", "2xk80", "--method", ",".join(SPECS), "--simulations", "5", *more]
    return CliRunner().invoke(app, words)


@pytest.mark.parametrize(("scored", "kept"), [(True, ["one-device", "etf"]), (False, ["one-device"])])
def test_what_is_there_is_kept(scored: bool, kept: list[str], model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    interrupt_at("etf", monkeypatch, scored=scored)
    done = typed(model, "--save", str(model.parent / "plan.json"))
    assert done.exit_code == 0, done.output
    left = SPECS[len(kept) :]
    assert f"interrupted; not run: {', '.join(left)}" in done.output
    load_plan(model.parent / "plan.json")
    data = json.loads(typed(model, "--json").output)
    assert [row["method"] for row in data["methods"]] == kept
    assert (data["interrupted"], data["not_run"]) == (True, list(left))
    assert [row.get("interrupted", False) for row in data["methods"]] == [False, True][: len(kept)]


def test_nothing_there_is_an_interrupt(model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    interrupt_at("etf", monkeypatch, scored=False)
    monkeypatch.setattr("tests.unit.cli.test_stages.SPECS", ("etf", "heft"))
    assert typed(model).exit_code == 1


def test_an_undisturbed_comparison_says_nothing_of_it(model: Path) -> None:
    data = json.loads(typed(model, "--json").output)
    assert "interrupted" not in data and "not_run" not in data
    assert [row["method"] for row in data["methods"]] == list(SPECS)


def test_run_all_runs_all() -> None:
    from loadmaster.cost import price

    problem = price(GRAPHS["diamond"](), "2xk80")
    assert [spec for spec, _ in stages.run_all(problem, SPECS, Budget(None, 2), 0)] == list(SPECS)
