"""`plan --split auto` from a file to a file."""

from __future__ import annotations

import json
from pathlib import Path

from typer.testing import CliRunner

from loadmaster.cli.verbs import app
from loadmaster.files import save_graph
from tests.unit.passes.splitting.test_parts import product_problem


def test_a_split_plan_is_told_saved_and_simulated_again(tmp_path: Path) -> None:
    model, plan = tmp_path / "model.json", tmp_path / "plan.json"
    save_graph(product_problem(4096).source, model)
    words = [
        "plan",
        str(model),
        "--on",
        "2xa100-nvlink",
        "--split",
        "auto",
        "--simulations",
        "200",
        "--save",
        str(plan),
    ]
    told = json.loads(CliRunner().invoke(app, [*words, "--json"]).stdout)
    assert told["splits"][0]["op"] == "mm" and told["splits"][0]["parts"] == 2
    assert told["step_ns"] < told["whole_ops_value"]
    again = CliRunner().invoke(
        app, ["simulate", str(tmp_path / "plan.graph.json"), "--on", "2xa100-nvlink", "--plan", str(plan), "--json"]
    )
    assert json.loads(again.stdout)["step_ns"] == told["step_ns"]
    # The plan's file remembers what is split, so that the model itself will do.
    again = CliRunner().invoke(app, ["simulate", str(model), "--on", "2xa100-nvlink", "--plan", str(plan), "--json"])
    assert json.loads(again.stdout)["step_ns"] == told["step_ns"]
    for words_of_model in ([], ["--model", str(model)]):
        drawn = ["plot", str(plan), "--out", str(tmp_path / "plan.svg"), *words_of_model]
        assert CliRunner().invoke(app, drawn).exit_code == 0
    shown = CliRunner().invoke(app, words).stdout
    assert "'mm'" in shown and "2 parts" in shown and "whole ops" in shown


def test_where_no_split_helps_it_says_so(tmp_path: Path) -> None:
    model = tmp_path / "model.json"
    save_graph(product_problem(8).source, model)
    words = ["plan", str(model), "--on", "2xa100-nvlink", "--split", "auto", "--simulations", "50"]
    assert "No op was split" in CliRunner().invoke(app, words).stdout
