"""`plan --split auto` from a file to a file."""

from __future__ import annotations

import json
from pathlib import Path

from typer.testing import CliRunner

from loadmaster.cli.verbs import app
from loadmaster.files import save_graph
from loadmaster.graph import Graph, GraphBuilder
from tests.unit.passes.splitting.test_parts import product_problem


def test_a_split_plan_is_told_saved_and_simulated_again(tmp_path: Path) -> None:
    """Three devices have no equal shares of 4,096 rows: two of them have a part each."""
    model, plan = tmp_path / "model.json", tmp_path / "plan.json"
    save_graph(product_problem(4096).source, model)
    words = [
        "plan",
        str(model),
        "--on",
        "3xa100-nvlink",
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
        app,
        [
            "tools",
            "simulate",
            str(tmp_path / "plan.graph.json"),
            "--on",
            "3xa100-nvlink",
            "--plan",
            str(plan),
            "--json",
        ],
    )
    assert json.loads(again.stdout)["step_ns"] == told["step_ns"]
    # The plan's file remembers what is split, so that the model itself will do.
    again = CliRunner().invoke(
        app, ["tools", "simulate", str(model), "--on", "3xa100-nvlink", "--plan", str(plan), "--json"]
    )
    assert json.loads(again.stdout)["step_ns"] == told["step_ns"]
    for words_of_model in ([], ["--model", str(model)]):
        drawn = ["tools", "plot", str(plan), "--out", str(tmp_path / "plan.svg"), *words_of_model]
        assert CliRunner().invoke(app, drawn).exit_code == 0
    shown = CliRunner().invoke(app, [*words, "--verbose"], env={"COLUMNS": "140"}).stdout
    assert "'mm'" in shown and "2 parts" in shown and "whole ops" in shown


def test_where_no_split_helps_it_says_so(tmp_path: Path) -> None:
    model = tmp_path / "model.json"
    save_graph(product_problem(8).source, model)
    words = ["plan", str(model), "--on", "2xa100-nvlink", "--split", "auto", "--simulations", "50"]
    assert "No op was split" in CliRunner().invoke(app, words).stdout


def layers_model() -> Graph:
    """Two layers of Megatron's form: a product by columns, an activation, a product along the inner dimension; four
    devices have no equal shares of its rows."""
    g, rows, width = GraphBuilder("layers"), 2046, 2048
    x = g.tensor(4 * rows * width, "input", shape=(rows, width))
    for layer in range(2):
        scope, small = f"layers.{layer}", (width, width)
        first, second = (g.tensor(4 * width * width, "weight", shape=small, name=f"w{layer}{n}") for n in "ab")
        up, mid, down = (g.tensor(4 * rows * width, shape=(rows, width)) for _ in range(3))
        g.op(f"up{layer}", "aten.mm.default", [x, first], [up], flops=2 * rows * width**2, scope=scope)
        g.op(f"relu{layer}", "aten.relu.default", [up], [mid], flops=rows * width, scope=scope)
        g.op(f"down{layer}", "aten.mm.default", [mid, second], [down], flops=2 * rows * width**2, scope=scope)
        x = down
    last = g.tensor(4 * rows * width, "output", shape=(rows, width))
    g.op("last", "aten.relu.default", [x], [last], flops=rows * width, scope="head")
    return g.build()


def test_a_plan_on_shares_is_told_saved_and_simulated_again(tmp_path: Path) -> None:
    model, plan = tmp_path / "model.json", tmp_path / "plan.json"
    save_graph(layers_model(), model)
    words = ["plan", str(model), "--on", "4xa100-nvlink", "--split", "auto", "--simulations", "60", "--save", str(plan)]
    told = json.loads(CliRunner().invoke(app, [*words, "--json"]).stdout)
    assert told["shares"] == "features" and not told["splits"] and told["step_ns"] < told["whole_ops_value"] / 2
    assert told["lower_bound"] == told["step_ns"] and "of these parts" in told["bound"]["words"], (
        "of these shares alone"
    )
    for given in (str(model), str(tmp_path / "plan.graph.json")):
        again = CliRunner().invoke(
            app, ["tools", "simulate", given, "--on", "4xa100-nvlink", "--plan", str(plan), "--json"]
        )
        assert json.loads(again.stdout)["step_ns"] == told["step_ns"]
    assert "on every device" in CliRunner().invoke(app, words).stdout
    drawn = ["tools", "plot", str(plan), "--out", str(tmp_path / "plan.svg"), "--model", str(model)]
    assert CliRunner().invoke(app, drawn).exit_code == 0


def test_what_is_split_is_not_exported(tmp_path: Path) -> None:
    """Other runtimes take whole modules: the error names those that are not, and says how to plan for them."""
    model, plan = tmp_path / "model.json", tmp_path / "plan.json"
    save_graph(layers_model(), model)
    words = ["plan", str(model), "--on", "4xa100-nvlink", "--split", "auto", "--simulations", "60", "--save", str(plan)]
    assert CliRunner().invoke(app, words).exit_code == 0
    for given in ([], ["--model", str(model)]):
        found = CliRunner().invoke(app, ["export", str(plan), "--to", "device-map", *given])
        assert found.exit_code and "modules are split over devices: 'layers.0'" in found.stderr.replace("\n", " ")
        assert "--for device-map" in found.stderr.replace("\n", " ")
