"""Small things of GO that need no network: settings, files of elites, the rules that candidates come from."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from loadmaster.cost import price  # noqa: E402
from loadmaster.graph.columns import ints  # noqa: E402
from loadmaster.learn.features import features_of  # noqa: E402
from loadmaster.learn.go2020 import candidates  # noqa: E402
from loadmaster.learn.go2020.examples import BASELINES, GoElite, GoKey, load_elites, save_elites  # noqa: E402
from loadmaster.learn.go2020.optimizer import Go  # noqa: E402
from loadmaster.learn.go2020.settings import GoSettings  # noqa: E402
from loadmaster.search import Budget, Search  # noqa: E402
from tests.graphs.tiny import diamond  # noqa: E402
from tests.problems import layers  # noqa: E402


def test_as_many_processes_as_asked_for_or_cores() -> None:
    assert GoSettings("graphs", "out", workers=1).processes == 1
    assert GoSettings("graphs", "out", workers=3).processes == 3
    assert GoSettings("graphs", "out", workers=0).processes == os.cpu_count()
    assert [GoSettings("graphs", "out", workers=count).window for count in (1, 5)] == [3, 15]


def elite(candidates: int, labels: int, ops: int, seed: int) -> GoElite:
    rng = np.random.default_rng(seed)
    slot, value = ints(rng.permutation(40)[:candidates]), ints(rng.integers(1, 10**12, candidates))
    turn = ints(np.stack([rng.permutation(ops) for _ in range(labels)]).reshape(labels, ops))
    plain, candidate = ints(rng.integers(1, 99, len(BASELINES))), ints(rng.integers(0, candidates, labels))
    device, reached = ints(rng.integers(0, 4, (labels, ops))), ints(rng.integers(1, 10**12, labels))
    return GoElite(slot, value, plain, candidate, device, turn, reached)


def test_elites_of_many_sizes_come_back_from_a_file(tmp_path: Path) -> None:
    keys = [GoKey(line, 7) for line in range(4)]
    elites = [elite(5, 2, 9, 0), None, elite(3, 1, 300, 1), elite(8, 4, 2, 2)]
    save_elites(tmp_path / "elites.npz", keys, elites)
    back = load_elites(tmp_path / "elites.npz")
    assert list(back) == keys and back[keys[1]] is None
    for key, one in zip(keys, elites, strict=True):
        other = back[key]
        if one is None or other is None:
            continue
        for name, column in vars(one).items():
            np.testing.assert_array_equal(getattr(other, name), column, name)
        assert other.value == min(one.reached.min(), one.candidate_value.min())


def test_which_rules_give_candidates() -> None:
    problem = price(layers(2, 3, 0), "2xp100-pcie")
    names = [name for name, _ in candidates._placements(problem, features_of(problem))]
    assert set(names) <= set(candidates.SLOTS) and len(set(names)) == len(names)
    heads = {name.rpartition(" ")[0] for name in names if name.startswith("split ")}
    assert heads == {f"split {fold} {goal}" for fold in candidates.FOLDS for goal in candidates.GOALS}
    assert {"one-device", "stacks by time", "stacks by count", *candidates.LISTS, *candidates.READY_LISTS} < set(names)
    of_many = [name for name, _ in candidates._splits(problem, False)]
    assert of_many and not any("program" in name or "total" in name for name in of_many)


@pytest.mark.parametrize(
    ("cluster", "tasks", "asks"),
    [
        ("1xp100-pcie", "placement", False),
        ("2xp100-pcie", "placement", True),
        ("1xp100-pcie", "schedule", True),
        ("1xp100-pcie", "placement,schedule", True),
    ],
)
def test_where_there_is_but_one_device_to_choose_nobody_is_asked(
    cluster: str, tasks: str, asks: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = list[Any]()

    class Agent:
        def __init__(self, settings: Any, search: Any) -> None:
            self.propose = lambda: asked.append("proposes")
            self.learn = asked.append
            self.first_plan = lambda: "first"

    monkeypatch.setattr("loadmaster.learn.go2020.agent.Agent", Agent)
    problem = price(diamond(), cluster)
    for how, does in (({}, "proposes"), ({"scratch": True}, None), ({"finetune": 7}, 7)):
        asked.clear()
        plan = Go(tasks=tasks, **how).optimize(Search(problem, Budget(None, 9)))  # type: ignore[arg-type]
        assert asked == ([does] if asks else []) and (plan == "first") == asks
