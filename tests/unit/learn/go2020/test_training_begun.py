"""How GO's training is begun and taken up again: what is kept apart, what is asked for, and in which order."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

pytest.importorskip("torch")

from loadmaster.errors import InvalidSetting
from loadmaster.learn.go2020 import training
from loadmaster.learn.go2020.examples import GoKey
from loadmaster.learn.go2020.settings import GoSettings, GoState
from loadmaster.learn.go2020.training import GoRun


class Run:
    """A run that writes down what is asked of it."""

    def __init__(self, rows: int = 0, found: Any = ("an example",), **state: Any) -> None:
        self.did, self.rows, self.state = list[Any](), [{}] * rows, GoState(**state)
        self.found, self.weights, self.valid, self.cards = list(found), Path("weights"), None, dict[str, Any]()

    def __call__(self, settings: Any, pools: Any, keys: Any, begun: float) -> Run:
        self.keys = keys
        return self

    def gather(self) -> Any:
        return self.found

    def card(self, **facts: Any) -> None:
        self.cards = facts

    def say(self, text: str) -> None: ...

    def __getattr__(self, name: str) -> Any:
        return lambda *given: self.did.append((name, *given))


def begun(run: Run, monkeypatch: pytest.MonkeyPatch, lines: int = 40, **settings: Any) -> Any:
    """What training is asked to do with a corpus of so many graphs, and another of three to choose by."""
    corpora = {"corpus": (list(range(lines)), "all of it"), "apart": ([100, 101, 102], "the rest")}
    asked = SimpleNamespace(keys=[], first=[], valid=[], controls=[])
    monkeypatch.setattr(training.examples, "read_graphs", lambda path: corpora[path])
    monkeypatch.setattr(training.examples, "example_keys", lambda *given: asked.keys.append(given) or "keys")
    monkeypatch.setattr(training.examples, "find_elite", lambda key, simulations: asked.first.append(key))
    monkeypatch.setattr(training, "example_job", lambda job: asked.first.append(job[0]))
    monkeypatch.setattr(training, "Pools", lambda stack, count, ray: None)
    monkeypatch.setattr(training, "GoRun", run)
    monkeypatch.setattr(training, "valid_examples", lambda run, lines: asked.valid.append(lines) or ["valid"])
    monkeypatch.setattr(training, "controls", lambda valid, some: asked.controls.append((valid, some)) or ({}, {}))
    assert training.train(GoSettings("corpus", "out", **settings)) == Path("weights")
    return asked


def test_every_sixteenth_graph_is_kept_apart(monkeypatch: pytest.MonkeyPatch) -> None:
    run = Run()
    asked = begun(run, monkeypatch, warm=30, cold=10, seed=4)
    apart = [0, 16, 32]
    assert asked.valid == [apart] and asked.keys == [([n for n in range(40) if n not in apart], 30, 4)]
    assert run.keys == "keys" and run.valid == ["valid"] and asked.controls == [(["valid"], ["an example"])]
    assert asked.first[0] == asked.first[1] and asked.first[0].line == training.examples.DRAWN
    assert (run.cards["corpus_digest"], run.cards["valid_digest"], run.cards["examples"]) == (
        "all of it",
        "all of it",
        1,
    )


def test_another_corpus_to_choose_by_leaves_all_to_learn_from(monkeypatch: pytest.MonkeyPatch) -> None:
    run = Run(found=[])
    asked = begun(run, monkeypatch, valid="apart", warm=30, cold=16)
    assert asked.valid == [[100, 101, 102]] and asked.keys == [(list(range(40)), 32, 0)]
    assert run.cards["valid_digest"] == "the rest" and asked.controls == [(["valid"], ["valid"])]


def test_a_corpus_of_one_graph_is_too_small(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(InvalidSetting, match="too few graphs"):
        begun(Run(), monkeypatch, lines=1)
    begun(Run(), monkeypatch, lines=2)


@pytest.mark.parametrize(("rows", "warm", "phase"), [(0, 5, "fit"), (1, 5, "fit"), (0, 0, "fit"), (2, 0, "reinforce")])
def test_a_run_fits_then_reinforces_or_goes_on(
    rows: int, warm: int, phase: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = Run(rows, phase=phase, step=7)
    begun(run, monkeypatch, warm=warm, cold=3)
    first = [("resume",), *([] if rows else [("validate",)]), *([("fit", run.found)] if warm else [])]
    assert run.did == [*first, ("reinforce", run.found), ("validate",), ("save",)]
    assert (run.state.phase, run.state.step) == ((phase, 7) if warm or phase == "reinforce" else ("reinforce", 0))


def test_a_run_that_had_one_elite_goes_on_with_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run: Any = GoRun.__new__(GoRun)
    run.settings, run.state, run.out = GoSettings("corpus", str(tmp_path), warm=4), GoState(elites=1), tmp_path
    run.keys, asked = [GoKey(0, seed) for seed in range(9)], list[Any]()
    run.pools = SimpleNamespace(in_order=lambda job, jobs: [(key, asked.append(key)) for key, _, _ in jobs])
    run._found, run._keep, run.late = lambda pairs: [], lambda fresh, count: None, lambda share: False
    run.gather()
    assert asked == [GoKey(0, 0)] and run.state.elites == 1


def test_graphs_kept_apart_are_tried_three_times_each() -> None:
    asked = list[Any]()
    run: Any = SimpleNamespace(settings=GoSettings("corpus", "out"), _found=lambda pairs: [])
    run.pools = SimpleNamespace(in_order=lambda job, jobs: [(asked.append(each), None) for each in jobs])
    assert training.valid_examples(run, [3, 4]) == []
    assert sorted(key for key, _, _ in asked) == [GoKey(line, 1_000 + turn) for line in (3, 4) for turn in range(3)]


def test_ratios_are_geometric_means_and_nothing_is_divided_by_nothing() -> None:
    assert training._ratio(np.array([2.0, 8.0]), np.array([1, 1])) == pytest.approx(4)
    assert training._ratio(np.array([3.0]), np.array([0])) == pytest.approx(3)
