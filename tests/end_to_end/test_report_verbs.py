"""explain, diff, plot, --report and --trace as they are typed."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from loadmaster.cli.verbs import app
from loadmaster.cluster import Cluster
from loadmaster.cost import price
from loadmaster.files import load_plan, save_cluster, save_graph, save_plan
from loadmaster.graph import GraphBuilder
from loadmaster.plans import Plan, check
from loadmaster.simulator import simulate
from tests.unit.report.subjects import training_like


def typed(*words: str | Path) -> Any:
    return CliRunner().invoke(app, [str(word) for word in words])


@pytest.fixture(scope="module")
def folder(tmp_path_factory: Any) -> Path:
    """A model, and two plans of it for two P100."""
    here: Path = tmp_path_factory.mktemp("verbs")
    save_graph(training_like(150), here / "model.json")
    for name, method in (("a", "expert"), ("b", "heft")):
        done = typed(
            *("plan", here / "model.json", "--on", "2xp100-pcie", "--method", method, "--save", here / f"{name}.json"),
            *("--report", here / f"{name}.html", "--trace", here / f"{name}.trace"),
        )
        assert done.exit_code == 0, done.output
        assert f"report written to {here / name}.html" in done.output
    return here


def test_plan_writes_page_and_trace(folder: Path) -> None:
    page = (folder / "a.html").read_text()
    assert page.startswith("<!doctype html>")
    assert "one-device" in page
    events = json.loads((folder / "a.trace").read_text())["traceEvents"]
    assert sum(1 for event in events if event["ph"] == "X" and event["cat"] == "op") == 150


def test_explain_prints_words_and_json(folder: Path) -> None:
    asked = ("explain", folder / "a.json", "--model", folder / "model.json", "--seconds", "0.2")
    text, data = typed(*asked, "--verbose"), typed(*asked, "--json")
    assert (text.exit_code, data.exit_code) == (0, 0), text.output
    for title in (
        "Plan ",
        "Limit ",
        "Memory ",
        "Next ",
        "WHERE THE STEP GOES",
        "WHERE THE MEMORY GOES",
        "WHY EACH GROUP",
    ):
        assert title in text.output
    short = typed(*asked).output
    assert "WHERE THE STEP GOES" not in short and len(short.splitlines()) <= 12
    problem = price(training_like(150), "2xp100-pcie")
    step_ns = simulate(problem, load_plan(folder / "a.json")).step_ns
    found = json.loads(data.output)
    assert found["verdict"]["step_ns"] == step_ns
    assert sum(piece["end_ns"] - piece["start_ns"] for piece in found["path"]["pieces"]) == step_ns


def test_explain_plans_for_other_hardware(folder: Path) -> None:
    asked = ("explain", folder / "a.json", "--model", folder / "model.json", "--seconds", "0.2", "--json")
    alone, both = (typed(*asked, "--on", "4xh100", *more) for more in ((), ("--on", "2xp100-pcie")))
    for done in (alone, both):
        names = [row["cluster"] for row in json.loads(done.output)["hardware"]]
        assert names == ["2xp100-pcie", "4xh100"]


def test_explain_finds_the_cluster_by_its_digest(folder: Path, tmp_path: Path) -> None:
    save_cluster(Cluster.preset("2xp100-pcie"), tmp_path / "mine.json")
    done = typed(
        *("explain", folder / "a.json", "--model", folder / "model.json", "--on", tmp_path / "mine.json"),
        *("--seconds", "0.2", "--json"),
    )
    assert json.loads(done.output)["hardware"] == []


def test_explain_says_what_it_needs(folder: Path) -> None:
    nameless = typed("explain", folder / "a.json")
    assert nameless.exit_code == 1
    assert "give it with --model" in nameless.output
    wrong = typed("explain", folder / "a.json", "--model", "zoo:rnnlm/infer")
    assert wrong.exit_code == 1
    assert "another graph" in wrong.output


def test_diff_adds_up(folder: Path) -> None:
    asked = ("tools", "diff", folder / "a.json", folder / "b.json", "--model", folder / "model.json")
    found = json.loads(typed(*asked, "--json").output)
    problem = price(training_like(150), "2xp100-pcie")
    steps = [simulate(problem, load_plan(folder / f"{name}.json")).step_ns for name in "ab"]
    assert sum(change["worth"] for change in found["changes"]) == steps[1] - steps[0]
    lines = typed(*asked).output.splitlines()
    assert lines[0].startswith("A step goes from ") and len(lines) == 1 + len(found["changes"]) <= 7
    page = typed(*asked, "--report", folder / "diff.html")
    assert page.exit_code == 0 and "panel-compare" in (folder / "diff.html").read_text()


def test_plot_draws_plans_and_comparisons(folder: Path) -> None:
    pytest.importorskip("matplotlib")
    compared = typed("compare", folder / "model.json", "--on", "2xp100-pcie", "--method", "heft,expert", "--json")
    (folder / "compared.json").write_text(compared.output)
    for name, words in {
        "timeline.svg": (folder / "a.json", "--model", folder / "model.json"),
        "memory.png": (folder / "a.json", "--model", folder / "model.json", "--what", "memory"),
        "methods.pdf": (folder / "compared.json",),
    }.items():
        done = typed("tools", "plot", *words, "--out", folder / name)
        assert done.exit_code == 0, done.output
        assert (folder / name).stat().st_size > 1000
    refused = typed("tools", "plot", folder / "a.json", "--model", folder / "model.json", "--out", folder / "a.gif")
    assert refused.exit_code == 1
    assert ".svg" in refused.output


def test_explain_saves_the_better_plan_that_its_trials_find(folder: Path) -> None:
    problem = price(training_like(150), "2xp100-pcie")
    alone = Plan.of(problem, [0] * problem.num_ops)
    save_plan(alone, problem, folder / "alone.json")
    asked = ("explain", folder / "alone.json", "--model", folder / "model.json", "--seconds", "0.5")
    done = typed(*asked, "--save", folder / "better.json")
    assert f"better plan written to {folder / 'better.json'}" in done.output
    better = load_plan(folder / "better.json")
    check(better, problem)
    assert simulate(problem, better).step_ns < simulate(problem, alone).step_ns
    told = json.loads(typed(*asked, "--save", folder / "again.json", "--json").output)
    assert told["better"] == told["saved"]
    assert told["saved"] == simulate(problem, load_plan(folder / "again.json")).step_ns


def test_explain_saves_nothing_where_there_is_nothing_better(tmp_path: Path) -> None:
    graph = GraphBuilder("one")
    graph.op("only", "any", [], [graph.tensor(8, "output")], time_ns=10)
    save_graph(graph.build(), tmp_path / "one.json")
    assert typed("plan", tmp_path / "one.json", "--on", "1xp100-pcie", "--save", tmp_path / "p.json").exit_code == 0
    asked = ("explain", tmp_path / "p.json", "--model", tmp_path / "one.json", "--seconds", "0.2")
    done = typed(*asked, "--save", tmp_path / "better.json")
    assert "no better plan was found" in done.output
    assert not (tmp_path / "better.json").exists()


def test_a_plan_in_which_ops_run_again_is_explained_drawn_and_compared(folder: Path) -> None:
    """On one device, with nine tenths of the memory that the step takes as it is."""
    model, one = folder / "model.json", ("--on", "1xp100-pcie", "--simulations", "20", "--method", "memory-order")
    assert typed("plan", model, *one, "--save", folder / "whole.json").exit_code == 0
    problem = price(training_like(150), "1xp100-pcie")
    peak = int(simulate(problem, load_plan(folder / "whole.json")).peak_bytes.max())
    limit = ("--memory-limit", f"{peak * 9 // 10}B")
    done = typed("plan", model, *one, *limit, "--save", folder / "again.json")
    assert done.exit_code == 0, done.output
    added = load_plan(folder / "again.json").added
    assert added is not None and added.num_again
    told = typed("explain", folder / "again.json", "--model", model, *limit, "--seconds", "0.2", "--verbose")
    assert told.exit_code == 0 and "RUN AGAIN" in told.output.upper(), told.output
    drawn = typed("tools", "plot", folder / "again.json", "--model", model, "--out", folder / "again.png")
    assert drawn.exit_code == 0 and (folder / "again.png").stat().st_size, drawn.output
    compared = typed("tools", "diff", folder / "whole.json", folder / "again.json", "--model", model)
    assert compared.exit_code == 0 and "A step goes from" in compared.output, compared.output


def test_explain_keeps_the_limit_and_the_costs_of_the_plan(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    asked = ("--on", "2xv100-nvlink", "--simulations", "20", "--memory-limit", "2GiB", "--costs", "learned")
    planned = json.loads(typed("plan", "zoo:resnet50/infer", *asked, "--save", "p.json", "--json").output)
    found = json.loads(typed("explain", "p.json", "--seconds", "0.2", "--json").output)
    assert found["verdict"]["step_ns"] == planned["step_ns"]
    assert [peak["limit_bytes"] for peak in found["peaks"]] == [2 << 30, 2 << 30]
    assert "learned" in found["verdict"]["basis"]


def test_a_pipeline_is_told_from_the_best_of_its_stages_and_compares_by_pass(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    on = ("--on", "2xp100-pcie", "--simulations", "20")
    typed("plan", "zoo:resnet50", *on, "--microbatches", "3", "--save", "pipe.json")
    typed("plan", "zoo:resnet50", *on, "--save", "whole.json")
    told = typed("explain", "pipe.json", "--seconds", "0.2").output
    assert "schedule of these stages" in " ".join(told.split()) and "ptimal" not in told
    lines = typed("tools", "diff", "whole.json", "pipe.json").output.splitlines()
    assert lines[0].startswith("A microbatch goes from ") and 1 < len(lines) <= 7
    assert all("pass: " in line or "update: " in line or "(no module): " in line for line in lines[1:])
