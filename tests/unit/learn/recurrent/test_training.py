"""loadmaster train rnn and hdp: stopped and taken up again, weights that the optimizers can use, curves and a card."""

from __future__ import annotations

import csv
import json
from pathlib import Path
from typing import Any

import pytest

from loadmaster.cost import price
from loadmaster.errors import InvalidSetting, LoadmasterError, UnknownName, UnreadableFile
from loadmaster.files import load_graph, load_plan, save_graph
from loadmaster.learn.hdp2018.optimizer import Hdp
from loadmaster.learn.mirhoseini2017.optimizer import Rnn
from loadmaster.learn.recurrent.training import RecurrentSettings, train
from loadmaster.learn.training import make_settings
from loadmaster.search import Budget, Search, solve
from loadmaster.simulator import simulate
from loadmaster.zoo.synthetic import generate

TINY: dict[str, Any] = {"steps": 6, "samples": 4, "hidden": 16, "groups": 12, "device": "cpu", "by": "window"}


@pytest.fixture(scope="module")
def graph(tmp_path_factory: pytest.TempPathFactory) -> str:
    path = tmp_path_factory.mktemp("graph") / "graph.json"
    save_graph(next(iter(generate("layered", 1, 3, (50, 50)))), path)
    return str(path)


@pytest.mark.parametrize("policy", ["rnn", "hdp"])
def test_a_run_leaves_weights_that_the_optimizer_goes_on_from(policy: str, graph: str, tmp_path: Path) -> None:
    path = train(RecurrentSettings(graph, str(tmp_path), policy=policy, **{**TINY, "steps": 30, "rate": 1e-2}))
    problem = price(load_graph(graph), "2xp100-pcie")
    card = json.loads((tmp_path / "card.json").read_text())
    plan = load_plan(tmp_path / "plan.json")
    assert simulate(problem, plan).step_ns == card["best_step_ns"]
    assert card["steps"] == 30 and card["simulations"] == 30 * 4 + 3  # a look at the likeliest every eighth step
    with (tmp_path / "curves.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert len(rows) == 30 and int(rows[-1]["best_value"]) == card["best_step_ns"]
    kind = {"rnn": Rnn, "hdp": Hdp}[policy]
    search = Search(problem, Budget(None, 2))  # one device, then the likeliest placement
    kind(checkpoint=str(path)).optimize(search)
    likeliest = -((search.best_score.value / problem.best_ns.sum()) ** 0.5)
    assert likeliest > float(rows[0]["reward"]), "the trained policy starts above where training began"
    assert solve(problem, kind(checkpoint=str(path), samples=4), Budget(None, 9)).simulations == 9


def test_checkpoints_that_do_not_fit_are_told(graph: str, tmp_path: Path) -> None:
    path = train(RecurrentSettings(graph, str(tmp_path), **{**TINY, "steps": 1}))
    loaded = load_graph(graph)
    two, three = (price(loaded, f"{count}xp100-pcie") for count in (2, 3))
    (tmp_path / "torn.safetensors").write_bytes(b"no tensors")
    for problem, optimizer, says in (
        (three, Rnn(checkpoint=str(path)), "2 devices"),
        (two, Hdp(checkpoint=str(path)), "no policy of 'hdp'"),
        (two, Rnn(checkpoint=str(tmp_path / "none.safetensors")), "no file"),
        (two, Rnn(checkpoint=str(tmp_path / "torn.safetensors")), "no safetensors"),
    ):
        with pytest.raises(UnreadableFile, match=says):
            solve(problem, optimizer, Budget(None, 4))


def test_settings_from_words(graph: str, tmp_path: Path) -> None:
    given = {"corpus": graph, "out": str(tmp_path), "cluster": "4xk80", "root": "no", "warm": "scope", "samples": "8"}
    made = make_settings("hdp", given)
    assert isinstance(made, RecurrentSettings)
    assert made.optimizer == Hdp(root=False, warm="scope", samples=8)
    assert RecurrentSettings(graph, "").optimizer == Rnn()
    for name, value, error in (
        ("by", "colour", UnknownName),
        ("steps", "0", InvalidSetting),
        ("objective", "speed", UnknownName),
    ):
        with pytest.raises(error):
            make_settings("rnn", {**given, name: value})
    with pytest.raises(LoadmasterError, match="one device"):
        train(RecurrentSettings(graph, str(tmp_path), cluster="1xp100-pcie"))


@pytest.mark.parametrize(("device", "used"), [("auto", "cpu"), ("cpu", "cpu"), ("meta", "meta")])
def test_a_gpu_is_used_only_where_it_is_asked_for(device: str, used: str) -> None:
    assert RecurrentSettings("corpus", "out", policy="rnn", device=device).torch_device.type == used
