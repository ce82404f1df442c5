"""What was typed: it comes back from plan files as it was, and gives a line that can be typed again."""

from __future__ import annotations

import json
import shlex
from pathlib import Path

import pytest
from typer.testing import CliRunner

import loadmaster as lm
from loadmaster.cli.verbs import app
from loadmaster.files import graph_to_json
from loadmaster.search import Invocation
from tests.unit.report.subjects import training_like


def test_every_option_of_a_run_lies_in_its_plan_file(tmp_path: Path) -> None:
    model, saved = tmp_path / "my model.json", tmp_path / "plan.json"
    model.write_text(json.dumps(graph_to_json(training_like(60))))
    typed = [str(model), "--on", "2xp100-pcie", "--memory-limit", "4 GiB", "--simulations", "3", "--seed", "7"]
    typed += ["--fusion", "none", "--recompute", "none", "--no-experience"]
    assert CliRunner().invoke(app, ["plan", *typed, "--save", str(saved)]).exit_code == 0
    asked = Invocation.from_json(json.loads(saved.read_text())["asked"])
    assert asked is not None
    again = shlex.split(asked.command())
    assert again[:3] == ["loadmaster", "plan", str(model)] and "--save" not in again
    assert sorted(again[3:]) == sorted(typed[1:])


def test_a_call_from_python_is_the_line_that_does_the_same() -> None:
    result = lm.plan("zoo:gnmt-4", on="2xp100-pcie", method="heft", budget=lm.Budget(None, 1), memory_limit="9GiB")
    assert result.asked is not None
    assert result.asked["--memory-limit"] == "9GiB" and result.asked["--simulations"] == "1"
    assert lm.solve(result.problem, "heft", lm.Budget(None, 1)).asked is None


@pytest.mark.parametrize(
    "data",
    [
        None,
        {"model": "m"},
        {"model": 1, "options": {}},
        {"model": "m", "options": {"x": "y"}},
        {"model": "m", "options": {"--save": "/etc/passwd"}},
        {"model": "m\n", "options": {}},
    ],
)
def test_a_file_that_says_nothing_sound_gives_no_invocation(data: object) -> None:
    assert Invocation.from_json(data) is None
