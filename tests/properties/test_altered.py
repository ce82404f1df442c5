"""Files that somebody has altered: comparisons to plot, what a plan's file says of its result, checkpoints of training.

Every value of a sound document in turn becomes each of a few odd ones. What reads it answers, or refuses in words of
ours.
"""

from __future__ import annotations

import copy
import json
import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from unittest.mock import MagicMock

import pytest

from loadmaster import Budget, price, solve
from loadmaster.cli import reports
from loadmaster.errors import LoadmasterError
from loadmaster.report import plot
from loadmaster.report.summary import compare_summary
from loadmaster.zoo.synthetic import generate
from tests.fuzz import ODD, spoiled


def altered(document: Any) -> Iterator[Any]:
    """The document with one value replaced, or left out, at a time."""
    for path in _paths(document):
        for odd in (*ODD[:6], *ODD[9:16], *ODD[20:], ...):
            other = copy.deepcopy(document)
            here = other
            for key in path[:-1]:
                here = here[key]
            if odd is ...:
                del here[path[-1]]
            else:
                here[path[-1]] = copy.deepcopy(odd)
            yield other


def _paths(document: Any, before: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    items = (
        document.items() if isinstance(document, dict) else enumerate(document) if isinstance(document, list) else ()
    )
    for key, value in items:
        yield (*before, key)
        yield from _paths(value, (*before, key))


def answered(function: Any, *given: Any) -> bool:
    """True for an answer, False for a refusal of ours; anything else is raised."""
    try:
        function(*given)
    except LoadmasterError:
        return False
    return True


def test_altered_comparisons_are_plotted_or_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    problem = price(next(generate("layered", 1, seed=0, ops=10)), "2xp100-pcie")
    results = [solve(problem, name, Budget(None, 1)) for name in ("one-device", "heft")]
    document = json.loads(json.dumps(compare_summary(results)))
    monkeypatch.setattr(plot, "blank_figure", lambda *given: MagicMock())  # drawing takes long
    monkeypatch.setattr(plot, "save_figure", lambda *given: None)
    assert answered(plot.plot_methods, tmp_path / "a.png", [document])
    outcomes = [answered(plot.plot_methods, tmp_path / "a.png", [one]) for one in altered(document)]
    assert len(outcomes) > 300 and 0 < sum(outcomes) < len(outcomes)


def test_plans_with_an_odd_result_are_read_or_refused(tmp_path: Path) -> None:
    problem = price(next(generate("layered", 1, seed=0, ops=10)), "2xp100-pcie")
    result = solve(problem, "heft", Budget(None, 1))
    path = tmp_path / "plan.json"
    result.save(path)
    document = json.loads(path.read_text())
    outcomes = []
    for facts in altered({"result": document["result"]}):
        path.write_text(json.dumps({**document, **facts}))
        outcomes.append(answered(lambda: repr(reports._as_result(problem, result.plan, path))))
    assert 0 < sum(outcomes) < len(outcomes)


def test_spoiled_checkpoints_are_refused(tmp_path: Path) -> None:
    """Bytes flipped, cut and doubled, and headers with odd values: a run goes on, or says that it cannot."""
    torch = pytest.importorskip("torch")
    from torch import nn

    from loadmaster.papers.training import TrainingRun, TrainingSettings, write_tensors

    settings = TrainingSettings("", str(tmp_path), policy="regal", device="cpu")

    def fresh() -> Any:
        return TrainingRun(settings, nn.Linear(2, 1), {}, 0.0)

    run = fresh()
    run.descend(run.network(torch.ones(1, 2)).sum())
    run.save()
    sound = run.checkpoint.read_bytes()
    assert answered(fresh().resume)
    rng = random.Random(0)
    for _ in range(150):
        run.checkpoint.write_bytes(spoiled(sound, rng))
        answered(fresh().resume)
    tensors = {f"network.{name}": value for name, value in run.network.state_dict().items()}
    for known in altered({"state": {"step": 3, "best": 0.5}, "rows": [{"step": 1, "seconds": 2.0}]}):
        write_tensors(run.checkpoint, tensors, {"run": known})
        answered(fresh().resume)
