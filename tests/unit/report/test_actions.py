"""What to do next: every command was tried, keeps all that was asked, saves to a new file and is not what was run."""

from __future__ import annotations

import json
import shlex
from dataclasses import replace
from pathlib import Path

import pytest
from typer.testing import CliRunner

import loadmaster as lm
from loadmaster.cli.verbs import app
from loadmaster.cost import price
from loadmaster.files import save_graph
from loadmaster.graph import GraphBuilder
from loadmaster.plans import Plan
from loadmaster.report.actions import LONGER, WORTH, try_actions, uses
from loadmaster.report.explain import basis_of, explain, replayed
from loadmaster.search import Invocation, Result
from tests.graphs import GRAPHS, pair
from tests.unit.report.subjects import training_like

MODEL = "model.json"


def planned(folder: Path, *options: str, ops: int = 200) -> Result:
    """As `loadmaster plan` gives it, with its invocation."""
    save_graph(training_like(ops), folder / MODEL)
    given = dict(zip(options[::2], options[1::2], strict=True))
    asked = Invocation(str(folder / MODEL), tuple({"--simulations": "3", **given}.items()))
    problem = price(training_like(ops), given["--on"], memory_limit=given.get("--memory-limit"))
    found = lm.solve(problem, given.get("--method", "auto"), lm.Budget(None, int(given.get("--simulations", "3"))))
    return replace(found, asked=asked)


def options_of(command: str) -> dict[str, str]:
    words = shlex.split(command)
    assert words[:2] == ["loadmaster", "plan"]
    return dict(zip(words[3::2], words[4::2], strict=True))


def test_the_default_search_is_offered_where_a_named_method_loses(tmp_path: Path) -> None:
    result = planned(tmp_path, "--on", "2xp100-pcie", "--method", "random", "--simulations", "400")
    actions, better = try_actions(result, 2.0, tmp_path)
    first = next(action for action in actions if action.kind == "auto")
    assert "--method" not in options_of(first.command)
    assert first.gain > WORTH and first.after < first.before == result.value
    assert better is not None and better.value == first.after


def test_every_command_runs_keeps_what_was_asked_and_overwrites_nothing(tmp_path: Path, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    asked = ("--on", "2xp100-pcie", "--method", "round-robin", "--memory-limit", "64MiB", "--simulations", "60")
    result = planned(tmp_path, *asked, ops=80)
    (tmp_path / "plan-auto.json").write_text("mine")
    actions, _ = try_actions(result, 3.0)
    assert actions
    for action in actions:
        typed, found = options_of(action.command), dict(zip(asked[::2], asked[1::2], strict=True))
        changed = {name for name in {*typed, *found} if typed.get(name) != found.get(name)} - {"--save"}
        assert changed and changed <= {"--method", "--fusion", "--on", "--split", "--microbatches", "--simulations"}
        assert typed["--memory-limit"] == "64MiB" and not (tmp_path / typed["--save"]).exists()
        ran = CliRunner().invoke(app, [*shlex.split(action.command)[1:], "--json"])
        assert ran.exit_code == 0, ran.output
        answer = json.loads(ran.stdout)
        assert answer["fits"] and all(row["memory_bytes"] <= 64 << 20 for row in answer["devices"])
        assert (tmp_path / typed["--save"]).exists()
    assert (tmp_path / "plan-auto.json").read_text() == "mine"


def test_a_result_without_an_invocation_names_no_command() -> None:
    problem = price(training_like(100), "2xp100-pcie")
    result = replayed(problem, Plan.of(problem, [0] * problem.num_ops))
    actions, better = try_actions(result, 1.0)
    assert actions == () and better is not None and better.value < result.value
    found = explain(result, seconds=0.3)
    assert found.actions == () and found.uses == ()
    assert "loadmaster plan" not in found.text()


def test_nothing_is_tried_where_no_plan_can_be_better(tmp_path: Path) -> None:
    g = GraphBuilder("one")
    g.op("only", "any", [], [g.tensor(8, "output")], time_ns=1_000_000)
    problem = price(g.build(), "1xp100-pcie")
    best = replace(lm.solve(problem, "auto", lm.Budget(None, 5)), asked=Invocation("one.json", (("--seconds", "5"),)))
    assert best.optimal
    assert not [action for action in try_actions(best, 0.5, tmp_path)[0] if action.kind == "longer"]


def test_longer_means_longer(tmp_path: Path) -> None:
    result = planned(tmp_path, "--on", "4xp100-pcie", "--simulations", "4000", ops=400)
    worse = replayed(result.problem, Plan.of(result.problem, [0] * result.problem.num_ops))
    actions, _ = try_actions(replace(worse, asked=result.asked), 1.0, tmp_path)
    longer = next(action for action in actions if action.kind == "longer")
    assert options_of(longer.command)["--simulations"] == str(LONGER * 4000)


def test_where_modules_stay_whole_no_search_that_splits_them_is_tried(tmp_path: Path) -> None:
    result = planned(tmp_path, "--on", "2xp100-pcie", "--simulations", "400", "--for", "device-map")
    alone = replayed(result.problem, Plan.of(result.problem, [0] * result.problem.num_ops))
    assert try_actions(replace(alone, asked=result.asked), 1.0, tmp_path) == ((), None)


def test_fewer_devices_are_offered_where_one_does_nothing(tmp_path: Path) -> None:
    g = GraphBuilder("chain")
    last = g.tensor(1 << 20, "input")
    for number in range(30):
        out = g.tensor(1 << 20)
        g.op(f"op{number}", "any", [last], [out], time_ns=50_000)
        last = out
    problem = price(g.build(), "4xp100-pcie")
    asked = Invocation("chain.json", (("--on", "4xp100-pcie"), ("--simulations", "20")))
    result = replace(replayed(problem, Plan.of(problem, [0] * 30)), asked=asked)
    fewer = next(action for action in try_actions(result, 2.0, tmp_path)[0] if action.kind == "fewer")
    assert options_of(fewer.command)["--on"] == "1xp100-pcie" and abs(fewer.gain) < WORTH


@pytest.mark.parametrize(
    ("model", "said"),
    [
        ("package.module:build", "loadmaster run package.module:build --plan p.json"),
        ("model.onnx", "loadmaster run model.onnx --plan p.json --out ordered.onnx"),
        ("zoo:gnmt-4", "loadmaster explain p.json --report page.html"),
    ],
)
def test_how_to_use_a_plan_fits_the_model(model: str, said: str) -> None:
    problem = price(GRAPHS["diamond"](), pair())
    result = replace(replayed(problem, Plan.of(problem, [0] * 4)), asked=Invocation(model, (("--on", "x"),)))
    assert list(uses(result, "p.json")) == [said]
    assert "--save" in uses(result, None)[0]


def mixed(given: bool, modelled: bool) -> Result:
    graph = GraphBuilder("mixed")
    if given:
        graph.op("a", "any", [], [graph.tensor(8)], time_ns=5_000)
    if modelled:
        graph.op("b", "any", [], [graph.tensor(1 << 20)], flops=10**9)
    problem = price(graph.build(), "2xp100-pcie")
    return replayed(problem, Plan.of(problem, [0] * problem.num_ops))


@pytest.mark.parametrize(
    ("given", "modelled", "said"),
    [
        (True, False, "are those given with the graph"),
        (False, True, "Times come from a roofline model of '2xp100-pcie'"),
        (True, True, "Times of 1 of 2 ops are given with the graph; the rest come from a roofline"),
    ],
)
def test_what_it_rests_on(given: bool, modelled: bool, said: str) -> None:
    assert said in basis_of(mixed(given, modelled).problem)


def test_clusters_with_one_time_for_all_ops_say_so() -> None:
    assert "Every op takes" in basis_of(price(GRAPHS["diamond"](), replace(pair(), op_ns=7)))


def test_what_was_refused_is_allowed_again_where_nothing_fits_without_it(tmp_path: Path) -> None:
    from loadmaster.importers import load

    asked = Invocation("zoo:resnet50", (("--on", "1xv100-nvlink"), ("--seconds", "5"), ("--recompute", "none")))
    problem = price(load("zoo:resnet50"), "1xv100-nvlink", memory_limit="2GiB")
    result = replace(lm.solve(problem, "auto:recompute=no", lm.Budget(None, 5)), asked=asked)
    assert not result.fits and uses(result, "p.json") == ()
    action = next(action for action in try_actions(result, 3.0, tmp_path)[0] if action.kind == "allowed")
    assert "--recompute" not in options_of(action.command)
    assert "it fits then" in action.text(str)


def test_another_batch_is_offered_of_a_module_that_can_be_captured_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    torch = pytest.importorskip("torch")
    made = "import torch\n\n\ndef build():\n    return torch.nn.Linear(64, 64), (torch.zeros(16, 64),)\n"
    (tmp_path / "tiny_model.py").write_text(made)
    monkeypatch.syspath_prepend(str(tmp_path))
    assert torch.nn.Linear is not None
    found = lm.plan("tiny_model:build", on="1xp100-pcie", budget=lm.Budget(None, 5))
    asked = Invocation("tiny_model:build", (("--on", "1xp100-pcie"), ("--seconds", "5")))
    action = next(one for one in try_actions(replace(found, asked=asked), 3.0, tmp_path)[0] if one.kind == "batch")
    assert options_of(action.command)["--batch"] == "32" and action.after < action.before
