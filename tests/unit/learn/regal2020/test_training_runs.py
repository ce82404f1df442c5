"""Training at a tiny scale: a run that is taken up again ends as one that was not stopped."""

from __future__ import annotations

import csv
import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from loadmaster.cost import price
from loadmaster.files import graph_to_json
from loadmaster.learn import examples
from loadmaster.learn.examples import Elite, Key
from loadmaster.learn.regal2020.settings import RegalSettings
from loadmaster.learn.regal2020.training import train
from loadmaster.papers.features import features_of
from loadmaster.zoo.synthetic import generate
from tests.unit.learn.stand_in import weights

TINY = {"warm": 5, "elite_simulations": 60, "fit_steps": 6, "steps": 4, "graphs": 3, "samples": 3, "evaluations": 40}
TINY |= {"generated": 2, "valid_graphs": 2, "valid_evaluations": 40, "valid_every": 2, "workers": 2, "device": "cpu"}


@pytest.fixture(scope="module")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> str:
    path = tmp_path_factory.mktemp("corpus") / "graphs.jsonl"
    rows = [{**graph_to_json(graph), "mode": "training"} for graph in generate("layered", 6, 0, (45, 60))]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return str(path)


def test_stopped_and_taken_up_again_is_the_same_as_never_stopped(corpus: str, tmp_path: Path) -> None:
    whole = RegalSettings(corpus, str(tmp_path / "whole"), valid=corpus, **TINY)  # type: ignore[arg-type]
    train(whole)
    parts = replace(whole, out=str(tmp_path / "parts"), fit_steps=6, steps=0)
    train(parts)
    train(replace(parts, steps=3))
    train(replace(parts, steps=4))
    one, two = (weights(Path(out) / "checkpoint.safetensors") for out in (whole.out, parts.out))
    assert one.keys() == two.keys()
    for name in one:
        np.testing.assert_array_equal(one[name], two[name], name)


def test_a_run_leaves_weights_curves_and_a_card(corpus: str, tmp_path: Path) -> None:
    settings = RegalSettings(corpus, str(tmp_path), policy="gas", **{**TINY, "steps": 1})  # type: ignore[arg-type]
    assert train(settings).stat().st_size < 2**20
    card = json.loads((tmp_path / "card.json").read_text())
    assert card["steps"] == 1 and card["corpus_digest"] and card["settings"]["policy"] == "gas"
    with (tmp_path / "curves.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert any(row["reward"] for row in rows) and any(row["regal"] for row in rows)


def test_alike_graphs_are_in_one_fold_and_those_kept_apart_are_not_learned_from(tmp_path: Path) -> None:
    rows = []
    for family in range(8):
        for graph in generate("layered", 2, family, (45, 60)):
            row = {**graph_to_json(graph), "mode": "training"}
            row["ops"] = [{**op, "kind": f"family{family}.{op['kind']}"} for op in row["ops"]]
            rows.append(row)
    path = tmp_path / "graphs.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    examples.forget_corpora()
    lines, _ = examples.read_corpus(path)
    folds = [examples.fold_of(line, 3) for line in lines]
    assert folds[::2] == folds[1::2] and len(set(folds)) > 1
    tiny = {**TINY, "steps": 0, "generated": 0, "warm": 16, "fit_steps": 4, "fit_look": 2, "folds": 3, "fold": folds[0]}
    train(RegalSettings(str(path), str(tmp_path / "out"), **tiny))  # type: ignore[arg-type]
    with (tmp_path / "out" / "curves.csv").open() as file:
        assert sum(bool(row["held"]) for row in csv.DictReader(file)) == 2


def test_the_exported_weights_are_the_average_of_late(corpus: str, tmp_path: Path) -> None:
    settings = RegalSettings(corpus, str(tmp_path), **{**TINY, "steps": 0})  # type: ignore[arg-type]
    held, shipped = weights(train(settings).parent / "checkpoint.safetensors"), weights(tmp_path / "regal.safetensors")
    for name, value in shipped.items():
        np.testing.assert_array_equal(value, held[name.replace("network.", "average.")])


def test_elites_survive_their_file(tmp_path: Path) -> None:
    elite = Elite(np.array([0, 1, 1]), np.array([2, 0, 1]), 77)
    examples.save_elites(tmp_path / "e.npz", [Key(3, 1), Key(4, 1)], [elite, None])
    known = examples.load_elites(tmp_path / "e.npz")
    assert known[Key(4, 1)] is None
    back = known[Key(3, 1)]
    assert back is not None and back.value == 77
    np.testing.assert_array_equal(back.device, elite.device)
    np.testing.assert_array_equal(back.turn, elite.turn)


def test_equal_devices_are_numbered_along_the_mirrored_order_and_unlike_ones_keep_theirs() -> None:
    graph = next(generate("layered", 1, 0, (60, 60)))
    problem = price(graph, "regal")
    features = features_of(problem)
    early = (features.mirror >= 30).astype(np.int64)
    for device in (early, 1 - early):
        np.testing.assert_array_equal(examples.canonical(problem, features, device), early)
    unlike = price(graph, "1xp100-pcie+1xk80")
    np.testing.assert_array_equal(examples.canonical(unlike, features_of(unlike), 1 - early), 1 - early)


def test_the_same_key_makes_the_same_example(corpus: str) -> None:
    examples.forget_corpora()
    lines, first = examples.read_corpus(corpus)
    made = examples.make_problem(Key(lines[2], 7))
    examples.forget_corpora()
    _, second = examples.read_corpus(corpus)
    again = examples.make_problem(Key(lines[2], 7))
    assert first == second and made.source.digest == again.source.digest and made.cluster.digest == again.cluster.digest
    assert made.objective == again.objective
