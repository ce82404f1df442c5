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
from loadmaster.learn.scheduling import command, training
from loadmaster.learn.training import make_settings
from loadmaster.optimizers.policy.weights import read_weights


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


def test_graphs_to_choose_by_are_not_learned_from(corpus: Path) -> None:
    keys, held, _ = command._keys(settings(corpus))
    assert not {key.line for key in keys if key.line >= 0} & {key.line for key in held if key.line >= 0}
    assert len([key for key in held if key.line >= 0]) == 1
    given = settings(corpus)
    drawn = {key.seed for key in held if key.line < 0}
    assert drawn == set(range(command.HELD_OUT, command.HELD_OUT + given.kept)), "no seed that is learned from"
    assert {key.seed for key in keys if key.line < 0} == set(range(given.generated))


class Clocked:
    """A run whose ascents are written down."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now, self.asked = 100.0, list[Any]()
        monkeypatch.setattr(command.time, "monotonic", lambda: self.now)
        monkeypatch.setattr(command, "ascend", self.ascend)

    def ascend(self, crew: Any, ascent: Any, how: Any, left: float, steps: int, tell: Any) -> None:
        self.asked.append((left, steps, how, ascent.turn))
        ascent.step(np.ones(len(ascent.weights)), 1.0)
        ascent.keep(5.0)
        self.now += 30.0


@pytest.mark.parametrize("minutes", [None, 2.5])
def test_each_phase_goes_on_to_the_end_of_its_share(
    minutes: float | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = Clocked(monkeypatch)
    given = settings(
        tmp_path / "graphs.jsonl",
        steps=9,
        rate=0.5,
        step=0.25,
        simulations=7,
        **({} if minutes is None else {"minutes": minutes}),
    )
    run = command.Run(given, training.Ascent.of(np.zeros(3)), seconds=11.0, clock=100.0)
    run.climb(None)  # type: ignore[arg-type]
    first, second = command.PHASES.values()
    ends = [float("inf")] * 2 if minutes is None else [first * 150.0 - 11.0, second * 150.0 - 41.0]
    assert [each[:2] for each in clock.asked] == [(pytest.approx(ends[0]), 9), (pytest.approx(ends[1]), 9)]
    assert [each[3] for each in clock.asked] == [0, 0], "the second phase begins anew, from the best weights"
    assert clock.asked[0][2] == training.Settings(0.25, 0.5)
    assert clock.asked[1][2] == training.Settings(0.25, 0.25, each=8, simulations=7)
    assert run.used == pytest.approx(71.0) and (run.ascent.weights > 1.9).all()
    clock.asked.clear()
    later = command.Run(given, training.Ascent.of(np.zeros(3)), phase="search")
    later.climb(None)  # type: ignore[arg-type]
    assert len(clock.asked) == 1


def test_a_row_is_told_in_percent_and_kept_to_five_digits(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    Clocked(monkeypatch)
    run = command.Run(settings(tmp_path / "graphs.jsonl"), training.Ascent.of(np.zeros(3)), seconds=2.0, clock=100.0)
    run._note({"turn": 20, "gain": 0.123456789}, run.ascent)
    assert run.rows == [{"phase": "plans", "turn": 20, "gain": 0.12346}]
    assert capsys.readouterr().out == "[   2.0 s] plans: generation 20, +12.3 % on those held out\n"


def test_the_card_has_the_best_gain_of_the_last_phase(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    Clocked(monkeypatch)
    rows = [{"phase": "plans", "gain": 9.0}, {"phase": "search", "gain": 1.0}, {"phase": "search", "gain": 3.0}]
    (tmp_path / "run").mkdir()
    weights = command.first_weights(1)
    path = command.Run(
        settings(tmp_path / "graphs.jsonl"), training.Ascent.of(weights), "search", rows, 41.6, 100.0
    ).export("corpus")
    text = path.with_name("card.json").read_text()
    card = json.loads(text)
    assert (card["gain"], card["seconds"]) == (3.0, 42) and text.startswith('{\n "policy"')
    np.testing.assert_allclose(read_weights(path), weights, rtol=1e-6)


@pytest.mark.parametrize(("graphs", "kept"), [(5, 0), (6, 1), (11, 1), (12, 2), (48, 8)])
def test_one_graph_in_six_is_to_choose_by(graphs: int, kept: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(examples, "read_corpus", lambda path, seed: (list(range(graphs)), "digest"))
    given = make_settings("list", {"corpus": "a", "out": "b", "generated": "2", "kept": "1", "draws": "3", "seed": "4"})
    keys, held, corpus = command._keys(given)  # type: ignore[arg-type]
    mixed = np.random.default_rng(4).permutation(graphs).tolist()
    assert held == [(-1, 10**6), *((line, 0) for line in mixed[:kept])] and corpus == "digest"
    assert keys == [(-1, 0), (-1, 1), *((line, draw) for draw in range(3) for line in mixed[kept:])]


@pytest.mark.parametrize(("workers", "cores", "asked"), [(3, 9, 3), (0, 9, 9), (0, None, 1)])
def test_as_many_work_as_are_asked_for_or_as_there_are_cores(
    workers: int, cores: int | None, asked: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    closed: list[int] = []

    class Crew:
        def __init__(self, keys: Any, held: Any, count: int) -> None:
            closed.append(count)

        def close(self) -> None:
            closed.append(0)

    monkeypatch.setattr(command, "_keys", lambda settings: ([], [], "corpus"))
    monkeypatch.setattr(command, "ForkedCrew", Crew)
    monkeypatch.setattr(command.os, "cpu_count", lambda: cores)
    monkeypatch.setattr(command.Run, "climb", lambda self, crew: None)
    monkeypatch.setattr(command.Run, "export", lambda self, corpus: Path("there"))
    assert command.train(settings(tmp_path / "graphs.jsonl", workers=workers)) == Path("there") and closed == [asked, 0]
