"""Libraries of plans from long searches: which graphs, what is kept, and that a run goes on where it stopped."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import loadmaster as lm
from loadmaster.errors import InvalidSetting
from loadmaster.files import save_graphs
from loadmaster.learn import examples, plans
from loadmaster.optimizers.experience import Library, starts_like
from loadmaster.optimizers.experience.entries import known_of
from loadmaster.simulator import simulate
from tests.unit.optimizers.experience.stacks import stack


@pytest.fixture
def corpus(tmp_path: Path) -> Path:
    examples.forget_corpora()
    save_graphs((stack(layers, 512) for layers in (8, 12)), tmp_path / "graphs.jsonl")
    return tmp_path / "graphs.jsonl"


def settings(corpus: Path, **given: Any) -> plans.PlanSettings:
    usual = {"on": "2xp100-pcie, 3xp100-pcie", "simulations": 60, "fewest": 1, "gain": -1.0, "workers": 1}
    return plans.PlanSettings(corpus=str(corpus), out=str(corpus.parent / "run"), policy="plans", **{**usual, **given})


def test_every_graph_is_planned_on_every_cluster(corpus: Path) -> None:
    library = Library(plans.train(settings(corpus)))
    assert library.path.name == "plans.zip"
    found = {(entry.model, entry.cluster) for entry in library.entries()}
    assert found == {(f"stack of {n}", f"{count}xp100-pcie") for n in (8, 12) for count in (2, 3)}
    for entry in library.entries():
        layers, count = int(entry.model.rpartition(" ")[2]), entry.devices
        problem = lm.price(stack(layers, 512), f"{count}xp100-pcie")
        known = known_of(library.read(entry), entry.name)
        assert simulate(problem, lm.Plan.of(problem, known.device, known.place)).step_ns == entry.value
    assert library.card["plans"] == 4
    assert starts_like(lm.price(stack(10, 512), "2xp100-pcie"), [library])


def test_a_run_goes_on_where_it_stopped(corpus: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first = plans.train(settings(corpus)).read_bytes()
    monkeypatch.setattr(plans, "search_one", None)  # nothing is searched again
    examples.forget_corpora()
    again = Library(plans.train(settings(corpus)))
    assert [again.read(entry) for entry in again.entries()]
    (corpus.parent / "first.zip").write_bytes(first)
    old = Library(corpus.parent / "first.zip")
    assert [old.read(entry) for entry in old.entries()] == [again.read(entry) for entry in again.entries()]


def test_what_a_short_search_finds_as_well_is_not_kept(corpus: Path) -> None:
    assert Library(plans.train(settings(corpus, gain=0.99))).entries() == []
    examples.forget_corpora()
    small = settings(corpus, fewest=1_000)
    assert plans.search_one((_line(corpus), lm.Cluster.of("2xp100-pcie"), small)) == b""


def _line(corpus: Path) -> int:
    return examples.read_corpus(corpus)[0][0]


def test_a_larger_batch_scales_activations_and_work_alone(corpus: Path) -> None:
    graph = stack(4)
    larger = plans.problem_of(graph, lm.Cluster.of("2xp100-pcie"), settings(corpus, batch=3.0)).source
    activation = np.array([role == lm.graph.ACTIVATION for role in graph.role])
    assert np.array_equal(larger.nbytes, np.where(activation, 3 * graph.nbytes, graph.nbytes))
    assert np.array_equal(larger.flops, 3 * graph.flops)


def test_without_a_cluster_there_is_nothing_to_plan_for(corpus: Path) -> None:
    with pytest.raises(InvalidSetting, match="no cluster"):
        plans.train(settings(corpus, on=" , "))
