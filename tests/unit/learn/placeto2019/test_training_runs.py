"""Training Placeto at a tiny scale: resume, determinism, files."""

from __future__ import annotations

import csv
import json
from pathlib import Path

import numpy as np
import pytest

from loadmaster import Budget, price, solve
from loadmaster.errors import InvalidSetting
from loadmaster.files import save_graphs
from loadmaster.learn.placeto2019.method import Placeto
from loadmaster.learn.placeto2019.training import PlacetoSettings, draw_cluster, read_graphs, train
from loadmaster.zoo.synthetic import generate

TINY = {"steps": 4, "graphs": 2, "episodes": 3, "variants": 3, "groups": 12, "valid_every": 2, "workers": 2}


@pytest.fixture(scope="module")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> str:
    path = tmp_path_factory.mktemp("corpus") / "graphs.jsonl"
    save_graphs(generate("layered", 7, 0, (30, 40)), path)
    return str(path)


def settings(corpus: str, out: Path, **given: object) -> PlacetoSettings:
    return PlacetoSettings(**{"corpus": corpus, "out": str(out), "device": "cpu", **TINY, **given})  # type: ignore[arg-type]


def test_a_run_leaves_weights_that_the_method_reads_curves_and_a_card(corpus: str, tmp_path: Path) -> None:
    path = train(settings(corpus, tmp_path, steps=2, aggregator="simple"))
    card = json.loads((tmp_path / "card.json").read_text())
    assert card["steps"] == 2 and card["corpus_digest"] and card["settings"]["aggregator"] == "simple"
    with (tmp_path / "curves.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert any(row["reward"] for row in rows) and any(row["valid"] for row in rows)
    problem = price(next(iter(generate("layered", 1, 5, (30, 40)))), "placeto-2")
    assert solve(problem, Placeto(checkpoint=str(path), tune=False, samples=2), Budget(None, 20)).simulations <= 4


def test_graphs_to_validate_by_are_not_learned_from(corpus: str, tmp_path: Path) -> None:
    learn, apart, _ = read_graphs(settings(corpus, tmp_path))
    assert apart == [5] and sorted(learn + apart) == list(range(7))


def test_drawn_clusters_have_two_to_five_devices_and_some_are_unlike() -> None:
    drawn = [draw_cluster(np.random.default_rng(seed)) for seed in range(40)]
    assert {cluster.num_devices for cluster in drawn} == {2, 3, 4, 5}
    assert any(len({str(device.flops_per_s) for device in cluster.devices}) > 1 for cluster in drawn)


def test_what_cannot_be_trained_is_said(tmp_path: Path) -> None:
    with pytest.raises(InvalidSetting, match="nothing to learn from"):
        PlacetoSettings(out=str(tmp_path))
    with pytest.raises(InvalidSetting, match="aggregator"):
        PlacetoSettings(corpus="x", out=str(tmp_path), aggregator="sum")
    with pytest.raises(InvalidSetting, match="nowhere to write"):
        PlacetoSettings(corpus="x")
    assert PlacetoSettings(family="nas-cells", out=str(tmp_path)).corpus == "", "a family alone is enough"
    assert PlacetoSettings(corpus="x", out=str(tmp_path), episodes=2).family == ""
