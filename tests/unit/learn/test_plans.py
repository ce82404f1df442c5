"""Libraries of plans from long searches: which graphs, what is kept, and that a run goes on where it stopped."""

from __future__ import annotations

from concurrent.futures import Future
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
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


class Pool:
    """Searches that end as soon as they are waited for."""

    def __init__(self) -> None:
        self.most = self.asked = 0

    def submit(self, function: Any, job: Any) -> Any:
        self.asked += 1
        ended: Future[bytes] = Future()
        ended.set_result(f"plan {job}".encode())
        return ended


@pytest.mark.parametrize(
    ("minutes", "seconds", "done", "late"), [(None, 60.0, 25, False), (10.0, 60.0, 25, False), (1.0, 50.0, 0, True)]
)
def test_searches_are_begun_while_there_is_time_for_them(
    minutes: float | None, seconds: float, done: int, late: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    """With two workers, of whose two searches one ends at a time; every one takes two seconds."""
    clock, pool = [100.0], Pool()

    @contextmanager
    def crew(workers: int | None) -> Any:
        assert workers == 2
        yield pool

    def wait(running: dict[Any, Any], return_when: Any) -> Any:
        pool.most = max(pool.most, len(running))
        clock[0] += 2.0
        return SimpleNamespace(done=[next(iter(running))])

    monkeypatch.setattr(examples, "crew", crew)
    monkeypatch.setattr(plans, "wait", wait)
    monkeypatch.setattr(plans, "time", SimpleNamespace(monotonic=lambda: clock[0]))
    monkeypatch.setattr(plans, "_name", lambda job: f"{job:04d}")
    given: Any = SimpleNamespace(minutes=minutes, seconds=seconds, workers=2)
    jobs: Any = list(range(26))
    (tmp_path / "0003.plan").write_bytes(b"known")
    assert plans._search_all(jobs, given, tmp_path, 100.0) == (done, late)
    assert pool.asked == done and pool.most == (2 if done else 0)
    assert (tmp_path / "0003.plan").read_bytes() == b"known"
    told = [f"[  {2.0 * turn:4.1f} s] {turn} searches" for turn in (10, 20)] if done else []
    assert capsys.readouterr().out.splitlines() == told


@pytest.mark.parametrize(("left", "begins"), [(0.1, True), (0.0, False)])
def test_a_search_is_begun_a_fifth_of_its_time_and_more_before_the_end(
    left: float, begins: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pool, now = Pool(), 100.0 + 600.0 - 1.2 * 50.0 - left

    @contextmanager
    def crew(workers: int | None) -> Any:
        yield pool

    monkeypatch.setattr(examples, "crew", crew)
    monkeypatch.setattr(plans, "wait", lambda running, return_when: SimpleNamespace(done=list(running)))
    monkeypatch.setattr(plans, "time", SimpleNamespace(monotonic=lambda: now))
    monkeypatch.setattr(plans, "_name", str)
    given: Any = SimpleNamespace(minutes=10.0, seconds=50.0, workers=1)
    jobs: Any = [7]
    assert plans._search_all(jobs, given, tmp_path, 100.0) == (int(begins), not begins)


@pytest.mark.parametrize(
    ("ops", "value", "fits", "kept"),
    [
        (4, 98, True, True),
        (4, 99, True, False),
        (9, 90, True, True),
        (3, 90, True, False),
        (10, 90, True, False),
        (5, 90, False, False),
    ],
)
def test_a_plan_is_kept_where_it_fits_and_gains_enough(
    ops: int, value: int, fits: bool, kept: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[Any] = []

    def solve(problem: Any, method: str, budget: Any, seed: int) -> Any:
        asked.append((method, budget.simulations, budget.seconds, seed))
        return SimpleNamespace(value=100 if len(asked) % 2 else value, fits=fits)

    monkeypatch.setattr(examples, "graph_of", lambda line: line)
    monkeypatch.setattr(plans, "problem_of", lambda *_: SimpleNamespace(num_ops=ops))
    monkeypatch.setattr(plans, "solve", solve)
    monkeypatch.setattr(plans, "packed", lambda found, scopes: b"packed")
    given = {"fewest": 4, "most": 9, "gain": 0.02, "seed": 5, "scopes": True, "seconds": 8.0}
    for simulations in (0, 70):
        asked.clear()
        job: Any = (1, None, SimpleNamespace(simulations=simulations, **given))
        assert plans.search_one(job) == (b"packed" if kept else b"")
        long = ("placement", 70, None, 5) if simulations else ("placement", None, 8.0, 5)
        assert asked == ([("placement", plans.FEW, None, 5), long] if 4 <= ops <= 9 else [])


def test_the_card_says_how_long_it_took(corpus: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    clock = iter([50.0, 93.4])
    monkeypatch.setattr(plans.time, "monotonic", lambda: next(clock))
    monkeypatch.setattr(plans, "_search_all", lambda *_: (0, True))
    library = Library(plans.train(settings(corpus)))
    card = (corpus.parent / "run" / "card.json").read_text()
    assert library.card["seconds"] == 43 and library.card["complete"] is False
    assert card.startswith('{\n "what"') and card.endswith("}\n")


def test_searches_are_named_by_sixteen_digits(corpus: Path) -> None:
    line, cluster = _line(corpus), lm.Cluster.of("2xp100-pcie")
    names = {plans._name((line, cluster, settings(corpus, **given))) for given in ({}, {"batch": 2.0}, {"seed": 1})}
    assert len(names) == 3 and {len(name) for name in names} == {16}
