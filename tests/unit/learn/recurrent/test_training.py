"""loadmaster train rnn and hdp: stopped and taken up again, weights that the optimizers can use, curves and a card."""

from __future__ import annotations

import csv
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch")


from loadmaster.cost import price  # noqa: E402
from loadmaster.errors import InvalidSetting, LoadmasterError, UnknownName, UnreadableFile  # noqa: E402
from loadmaster.files import load_graph, load_plan, save_graph  # noqa: E402
from loadmaster.learn.hdp2018.optimizer import Hdp  # noqa: E402
from loadmaster.learn.mirhoseini2017.optimizer import Rnn  # noqa: E402
from loadmaster.learn.recurrent import training  # noqa: E402
from loadmaster.learn.recurrent.training import RecurrentSettings, train  # noqa: E402
from loadmaster.learn.training import make_settings  # noqa: E402
from loadmaster.search import Budget, Search, solve  # noqa: E402
from loadmaster.simulator import simulate  # noqa: E402
from loadmaster.zoo.synthetic import generate  # noqa: E402
from tests.unit.learn.stand_in import weights  # noqa: E402

TINY: dict[str, Any] = {"steps": 6, "samples": 4, "hidden": 16, "groups": 12, "device": "cpu", "by": "window"}


@pytest.fixture(scope="module")
def graph(tmp_path_factory: pytest.TempPathFactory) -> str:
    path = tmp_path_factory.mktemp("graph") / "graph.json"
    save_graph(next(iter(generate("layered", 1, 3, (50, 50)))), path)
    return str(path)


class Stop(Exception):
    pass


def stopped_at(step: int, settings: RecurrentSettings, monkeypatch: pytest.MonkeyPatch) -> None:
    """Trains until that step is saved, then breaks off."""

    def save_and_stop(self: training.RecurrentRun) -> None:
        self.save()
        if self.state.step == step:
            raise Stop

    with monkeypatch.context() as patch, pytest.raises(Stop):
        patch.setattr(training.RecurrentRun, "save_now_and_then", save_and_stop)
        train(settings)


@pytest.mark.parametrize("policy", ["rnn", "hdp"])
def test_stopped_and_taken_up_again_is_the_same_as_never_stopped(
    policy: str, graph: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = RecurrentSettings(graph, str(tmp_path / "whole"), policy=policy, noise=0.1, failures=0.1, **TINY)
    train(whole)
    parts = replace(whole, out=str(tmp_path / "parts"))
    stopped_at(2, parts, monkeypatch)
    stopped_at(5, parts, monkeypatch)
    train(parts)
    one, two = (weights(Path(out) / "checkpoint.safetensors") for out in (whole.out, parts.out))
    assert one.keys() == two.keys()
    for name in one:
        np.testing.assert_array_equal(one[name], two[name], name)
    cards = [json.loads((Path(out) / "card.json").read_text()) for out in (whole.out, parts.out)]
    for name in ("simulations", "best_step_ns", "steps"):
        assert cards[0][name] == cards[1][name]


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


@pytest.mark.parametrize(("minutes", "now", "share"), [(None, 600.0, 0.3), (10.0, 60.0, 0.3), (10.0, 300.0, 0.5)])
def test_how_much_is_done_by_steps_or_by_time(
    minutes: float | None, now: float, share: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    run: Any = training.RecurrentRun.__new__(training.RecurrentRun)
    run.settings = RecurrentSettings("corpus", "out", policy="rnn", steps=10, minutes=minutes)
    run.state, run.begun = training.RecurrentState(step=3), 7.0
    monkeypatch.setattr(training.time, "monotonic", lambda: 7.0 + now)
    assert run._share() == pytest.approx(share)
