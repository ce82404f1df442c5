"""Jobs in processes of this machine: the same answers as here, also when a worker is killed on the way."""

from __future__ import annotations

import os
import time
from pathlib import Path

import numpy as np
import pytest

from loadmaster import Budget, InvalidSetting, price, solve
from loadmaster.baselines.lists.schedulers import Heft
from loadmaster.methods.islands import Islands
from loadmaster.search import workers
from loadmaster.search.workers import in_order
from loadmaster.zoo.synthetic import generate
from tests.unit.search.jobs import dies, dies_once, sleeps, writable


def test_islands_find_in_processes_what_they_find_here() -> None:
    given, budget = price(next(generate("layered", 1, seed=3, ops=60)), "4xp100-pcie"), Budget(None, 300)
    here, there = (
        solve(given, Islands(inner=Heft(), islands=3, rounds=2, processes=processes), budget, seed=5)
        for processes in (1, 2)
    )
    np.testing.assert_array_equal(here.plan.device, there.plan.device)
    np.testing.assert_array_equal(here.plan.rank, there.plan.rank)
    assert here.simulations == there.simulations <= 300


def test_jobs_whose_processes_are_killed_are_run_again_and_come_back_once(tmp_path: Path) -> None:
    found = list(in_order(dies_once, range(3), "", (tmp_path,), 2))
    assert [value for value, _, _ in found] == [0, 10, 20]
    assert os.getpid() not in {pid for _, pid, _ in found} and {threads for *_, threads in found} == {"1"}
    frozen = np.arange(3)
    frozen.flags.writeable = False
    assert list(in_order(writable, range(1), "", (frozen,), 2)) == [False], "or other loops would be compiled"


def test_processes_that_only_die_are_an_error_and_none_is_left_by_a_caller_who_stops(tmp_path: Path) -> None:
    with pytest.raises(InvalidSetting, match="processes end before"):
        list(in_order(dies, range(2), "", (), 2))
    jobs = in_order(sleeps, range(3), "", (tmp_path,), 2)
    assert next(jobs) == 0
    running = [worker.pid for worker in workers._POOLS[2]._processes.values()]
    jobs.close()
    assert 2 not in workers._POOLS
    for pid in running:
        assert pid is not None
        for _ in range(500):
            try:
                if os.waitpid(pid, os.WNOHANG)[0]:
                    break
            except ChildProcessError:
                break
            time.sleep(0.02)
        else:
            raise AssertionError("a process is left")
