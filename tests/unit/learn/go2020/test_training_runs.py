"""Training of GO at a tiny scale: a run that is taken up again ends as one that was not stopped; and it learns."""

from __future__ import annotations

import csv
import json
from collections.abc import Iterable, Iterator
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors import safe_open

from loadmaster.errors import InvalidSetting
from loadmaster.files import graph_to_json
from loadmaster.graph.columns import ints
from loadmaster.learn.go2020 import examples
from loadmaster.learn.go2020.agent import load_go
from loadmaster.learn.go2020.examples import DRAWN, GoKey
from loadmaster.learn.go2020.rollouts import Pools, example_job, like_devices, look, look_job
from loadmaster.learn.go2020.training import GoRun, GoSettings, train
from loadmaster.learn.go2020.zero import candidate_decided
from loadmaster.papers.features import device_class
from loadmaster.zoo.synthetic import generate

TINY = {"warm": 5, "elite_simulations": 40, "fit_steps": 4, "steps": 3, "graphs": 2, "samples": 3, "groups": 24}
TINY |= {"valid_graphs": 1, "valid_every": 2, "fit_valid_every": 3, "workers": 1, "device": "cpu", "hidden": 16}


@pytest.fixture(scope="module")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> str:
    path = tmp_path_factory.mktemp("corpus") / "graphs.jsonl"
    rows = [graph_to_json(graph) for graph in generate("layered", 4, 0, (65, 75))]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return str(path)


def tensors(path: Path) -> dict[str, np.ndarray]:
    with safe_open(str(path), "np") as file:
        return {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118


def test_stopped_and_taken_up_again_is_the_same_as_never_stopped(corpus: str, tmp_path: Path) -> None:
    whole = GoSettings(corpus, str(tmp_path / "whole"), valid=corpus, **TINY)  # type: ignore[arg-type]
    train(whole)
    parts = replace(whole, out=str(tmp_path / "parts"), steps=0)
    train(parts)
    weights = train(replace(parts, steps=3))
    one, two = (tensors(Path(out) / "checkpoint.safetensors") for out in (whole.out, parts.out))
    assert one.keys() == two.keys()
    for name in one:
        if not name.startswith("adam."):
            np.testing.assert_array_equal(one[name], two[name], name)
    assert load_go(str(weights)).shape.hidden == 16
    card = json.loads((tmp_path / "whole" / "card.json").read_text())
    assert "rnn" in card["held_out"]
    assert card["examples"] > 0
    rows = list(csv.DictReader((tmp_path / "whole" / "curves.csv").open()))
    assert {row["phase"] for row in rows} == {"fit", "reinforce"}
    assert any(row["over_heft"] for row in rows)


def test_without_a_warm_start_no_elites_are_sought(corpus: str, tmp_path: Path) -> None:
    settings = GoSettings(corpus, str(tmp_path), valid=corpus, **{**TINY, "warm": 0, "cold": 6, "steps": 2})  # type: ignore[arg-type]
    train(settings)
    assert not (tmp_path / "elites").exists()
    rows = list(csv.DictReader((tmp_path / "curves.csv").open()))
    assert [row["phase"] for row in rows if row["loss"]] == ["reinforce"] * 2


def test_candidates_are_simulated_once_however_often_validation_asks(corpus: str, tmp_path: Path) -> None:
    key = next(key for seed in range(50) if examples.suits(key := GoKey(DRAWN, seed)))
    example = example_job((key, examples.find_elite(key, 40), 24, False))
    assert example is not None
    jobs: list[int] = []

    class Counted(Pools):
        def in_order(self, function: Any, wanted: Iterable[tuple[Any, ...]]) -> Iterator[Any]:
            known = list(wanted)
            jobs.append(sum(len(job[2]) for job in known) if function is look_job else 0)
            return super().in_order(function, known)

    with ExitStack() as stack:
        run = GoRun(GoSettings(corpus, str(tmp_path), **TINY), Counted(stack, 1), [], 0.0)  # type: ignore[arg-type]
        first = run.zero_shot([example])
        assert sum(jobs) == 8
        candidates = [look(examples.make_problem(key), example.one.label, o.decided).score for o in run.looked.values()]
        assert sorted(candidates) == sorted(outcome.score for outcome in run.looked.values())
        jobs.clear()
        assert run.zero_shot([example]) == first
        assert sum(jobs) == 0 and len(run.looked) == 8


def test_equal_devices_are_renamed_to_agree_with_the_first_decisions() -> None:
    key = next(key for seed in range(50) if _equal(key := GoKey(DRAWN, seed)))
    problem = examples.make_problem(key)
    one = examples.make_input(key, 64)
    candidate = next(
        one.candidate_shares(row) for row in range(len(one.candidates)) if one.candidate_groups[row].max() > 0
    )
    turned = np.roll(candidate, 1, axis=1)
    np.testing.assert_array_equal(like_devices(turned, candidate, one, device_class(problem)), candidate)
    unlike = ints(np.arange(problem.num_devices))
    np.testing.assert_array_equal(like_devices(turned, candidate, one, unlike), turned)


def test_a_start_leads_to_what_a_search_made_of_it() -> None:
    """Taking all that is to be changed gives the plan of the search; on the way, part of that is done already."""
    key = next(key for seed in range(50) if examples.suits(key := GoKey(DRAWN, seed)))
    elite = examples.find_elite(key, 200)
    example = example_job((key, elite, 0, False))
    assert elite is not None
    assert example is not None
    problem, one, firsts = examples.make_problem(key), example.one, {}
    for start in example.starts:
        outcome = look(problem, one.label, start.outcome.decided)
        assert outcome.score == start.outcome.score
        left = int((start.device != start.outcome.decided.device).sum())
        base = start.outcome.decided.base.tobytes()
        assert left < firsts.setdefault(base, left + 1)
    assert any((start.device != start.outcome.decided.device).any() for start in example.starts)
    candidate = int(elite.candidate[0])
    decided = replace(candidate_decided(one, candidate), device=example.starts[0].device)
    reached = look(problem, one.label, decided).score
    assert reached.value <= elite.candidate_value[candidate]


def _equal(key: GoKey) -> bool:
    problem = examples.make_problem(key)
    return problem.num_devices > 2 and problem.cluster.name.endswith("xp100-pcie") and examples.suits(key)


def test_refuses_tasks_it_does_not_know(tmp_path: Path) -> None:
    with pytest.raises(InvalidSetting, match="tasks"):
        GoSettings("a", str(tmp_path), tasks="placing")
    with pytest.raises(InvalidSetting, match="samples"):
        GoSettings("a", str(tmp_path), samples=1)


@pytest.mark.parametrize("given", [{"pooling": "mean"}, {"choice": "head"}])
def test_refuses_a_switch_that_it_does_not_have(given: dict[str, str], tmp_path: Path) -> None:
    [name] = given
    with pytest.raises(InvalidSetting, match=name):
        GoSettings("a", str(tmp_path), **given)  # type: ignore[arg-type]
