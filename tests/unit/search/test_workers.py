"""Jobs on a real Ray cluster: the same answers as here, also when workers and machines are lost on the way."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from loadmaster import Budget, InvalidSetting, price, solve
from loadmaster.baselines.lists.schedulers import Heft
from loadmaster.bench.records import RunLedger
from loadmaster.bench.rows import SuiteRow
from loadmaster.bench.run import Order, run
from loadmaster.bench.suite import Allowance, Suite
from loadmaster.cluster import Cluster
from loadmaster.methods.islands import Islands
from loadmaster.search.workers import connect, in_order
from loadmaster.zoo.synthetic import generate

ray = pytest.importorskip("ray")


@pytest.fixture(scope="module")
def cluster() -> Iterator[Any]:
    """A head that runs no jobs and two machines that do."""
    from ray.cluster_utils import Cluster as RayCluster

    made = RayCluster(initialize_head=True, head_node_args={"num_cpus": 0, "include_dashboard": False})
    made.add_node(num_cpus=2)
    yield made
    ray.shutdown()
    made.shutdown()


def problem() -> Any:
    return price(next(generate("layered", 1, seed=3, ops=60)), "4xp100-pcie")


def slowly(folder: Path, job: int) -> tuple[int, int]:
    """Its square; leaves a line for each time it was begun."""
    with (folder / str(job)).open("a") as file:
        file.write(f"{os.getpid()}\n")
    time.sleep(0.4)
    return job, job * job


def dies_once(folder: Path, job: int) -> int:
    """Kills its worker the first time."""
    mark = folder / f"died-{job}"
    if job % 2 and not mark.exists():
        mark.touch()
        os.kill(os.getpid(), signal.SIGKILL)
    return 10 * job


def test_islands_find_on_a_cluster_what_they_find_here(cluster: Any) -> None:
    given, budget = problem(), Budget(None, 300)
    here = solve(given, Islands(inner=Heft(), islands=3, rounds=3), budget, seed=5)
    there = solve(given, Islands(inner=Heft(), islands=3, rounds=3, ray=cluster.address), budget, seed=5)
    np.testing.assert_array_equal(here.plan.device, there.plan.device)
    np.testing.assert_array_equal(here.plan.rank, there.plan.rank)
    assert here.simulations == there.simulations <= 300
    assert here.value < solve(given, "heft", budget).value


@pytest.mark.full  # kills
def test_jobs_whose_workers_are_killed_are_run_again_and_come_back_once(cluster: Any, tmp_path: Path) -> None:
    assert list(in_order(dies_once, range(6), cluster.address, (tmp_path,))) == [0, 10, 20, 30, 40, 50]
    assert len(list(tmp_path.glob("died-*"))) == 3


@pytest.mark.full
def test_jobs_of_a_machine_that_is_lost_go_to_another(cluster: Any, tmp_path: Path) -> None:
    connect(cluster.address)
    lost = cluster.add_node(num_cpus=2)
    threading.Timer(1.5, cluster.remove_node, (lost,)).start()
    assert list(in_order(slowly, range(10), cluster.address, (tmp_path,))) == [(job, job**2) for job in range(10)]


def test_rows_of_a_benchmark_on_a_cluster_are_kept_once(cluster: Any, tmp_path: Path) -> None:
    graphs = list(generate("layered", 3, seed=1, ops=20))
    place = Cluster.preset("2xp100-pcie")
    rows = [SuiteRow(graph.name, graph.digest, _Same(graph), place, "step-time") for graph in graphs]
    suite = Suite("few", "few", "improvement", lambda source: iter(rows), "one-device", ("heft", "anneal"))
    kept = {}
    for name, address in (("here", ""), ("there", cluster.address)):
        order = Order(suite, ("heft", "anneal"), seeds=2, allowance=Allowance(simulations=50), ray=address)
        ledger = RunLedger(tmp_path / name)
        first, second = (run(order, ledger) for _ in range(2))
        assert (first.done, first.kept, second.done, second.kept) == (first.done, 0, 0, first.done)
        kept[name] = [(record.key, record.value, record.simulations) for record in RunLedger(tmp_path / name).records]
    assert kept["here"] == kept["there"]
    assert len((tmp_path / "there").read_text().splitlines()) == len(kept["there"]) > 0


class _Same:
    """A graph that is there already."""

    def __init__(self, graph: Any) -> None:
        self.graph = graph

    def __call__(self) -> Any:
        return self.graph


def test_an_address_where_nobody_answers_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ray, "is_initialized", lambda: False)

    def nobody(**settings: Any) -> None:
        raise ConnectionError

    monkeypatch.setattr(ray, "init", nobody)
    with pytest.raises(InvalidSetting, match=r"no Ray cluster answers at '10\.9\.9\.9:6379'"):
        connect("10.9.9.9:6379")
