"""`loadmaster train list`: weights, curves and a card; a run that was stopped goes on."""

from __future__ import annotations

import csv
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import loadmaster as lm
from loadmaster.errors import UnreadableFile
from loadmaster.files import save_graphs
from loadmaster.learn import examples
from loadmaster.learn.go2020.drawing import branching_step
from loadmaster.learn.scheduling import command
from loadmaster.optimizers.policy.weights import read_weights
from loadmaster.papers.training import make_settings


@pytest.fixture
def corpus(tmp_path: Path) -> Path:
    examples.forget_corpora()
    save_graphs((branching_step(np.random.default_rng(seed), 100) for seed in range(7)), tmp_path / "graphs.jsonl")
    return tmp_path / "graphs.jsonl"


def settings(corpus: Path, **given: Any) -> Any:
    words = {"generated": 2, "kept": 2, "draws": 1, "workers": 1, "steps": 2, "simulations": 4, **given}
    known = {name: str(value) for name, value in words.items()}
    return make_settings("list", {**known, "corpus": str(corpus), "out": str(corpus.parent / "run")})


def test_a_run_leaves_weights_that_plan_and_a_card(corpus: Path) -> None:
    path = command.train(settings(corpus))
    assert path.name == "list.safetensors"
    assert np.isfinite(read_weights(path)).all()
    problem = lm.price(branching_step(np.random.default_rng(9), 80), "2xp100-pcie")
    assert lm.solve(problem, f"learned-list:weights={path}", lm.Budget(None, 4)).value > 0
    card = json.loads((path.parent / "card.json").read_text())
    assert card["policy"] == "list"
    assert card["settings"]["generated"] == 2
    assert "out" not in card["settings"]
    rows = list(csv.DictReader((path.parent / "curves.csv").open()))
    assert [(row["phase"], row["turn"]) for row in rows] == [("plans", "2"), ("search", "2")]


def test_a_run_goes_on_where_it_stopped(corpus: Path) -> None:
    first = command.Run.begun(settings(corpus))
    assert (first.phase, first.ascent.turn, first.rows) == ("plans", 0, [])
    first.ascent.step(np.ones(len(first.ascent.weights)), 0.1)
    first.phase, first.rows = "search", [{"phase": "plans", "turn": 1, "gain": 0.5}]
    first._save()
    again = command.Run.begun(settings(corpus))
    assert (again.phase, again.ascent.turn, again.rows) == ("search", 1, first.rows)
    assert (again.ascent.weights == first.ascent.weights).all()
    assert again.used >= again.seconds


def test_a_checkpoint_of_something_else_is_refused(corpus: Path) -> None:
    folder = corpus.parent / "run"
    folder.mkdir()
    (folder / command.CHECKPOINT).write_bytes(b"no archive")
    with pytest.raises(UnreadableFile, match="no checkpoint"):
        command.Run.begun(settings(corpus))
