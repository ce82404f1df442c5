"""Figures from a busy machine are marked, and measured again when it is quiet: with given references, and real load."""

from __future__ import annotations

import os
import statistics
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

torch = pytest.importorskip("torch")

from loadmaster.cost import Measured  # noqa: E402
from loadmaster.importers.torch.export import capture  # noqa: E402
from loadmaster.runtime import kept, machine, measure, quiet  # noqa: E402
from loadmaster.runtime.kept import Kept  # noqa: E402
from loadmaster.runtime.quiet import Reference, was_busy  # noqa: E402

SPIN = "print(flush=True)\nwhile True: pass"
AGES_NS = 10**15  # a reference that no machine is as slow as now


@contextmanager
def load(count: int) -> Iterator[None]:
    """Processes that never rest on the one core that this thread may use meanwhile."""
    cores = os.sched_getaffinity(0)
    core = {min(cores)}
    spinning = [subprocess.Popen([sys.executable, "-SEc", SPIN], stdout=subprocess.PIPE) for _ in range(count)]
    try:
        for process in spinning:
            os.sched_setaffinity(process.pid, core)
            assert process.stdout is not None and process.stdout.readline()
        os.sched_setaffinity(0, core)
        yield
    finally:
        os.sched_setaffinity(0, cores)
        for process in spinning:
            process.kill()
            process.communicate()


@pytest.fixture
def cache(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(kept, "cache_folder", lambda: tmp_path / "compiled")  # compiled loops stay where they are
    monkeypatch.setattr(machine, "SIZES", {"cpu": (16, 32), "cuda": (16, 32)})
    monkeypatch.setattr(machine, "LENGTHS", {"cpu": (64, 1024), "cuda": (64, 1024)})
    monkeypatch.setattr(measure, "PATIENCE_S", 0.0)


@pytest.fixture
def tolerant(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever this machine does besides counts as quiet; only a millionfold reference is busy."""
    monkeypatch.setattr(quiet, "ALONE", float("inf"))
    monkeypatch.setattr(quiet, "BUSY", 1e6)


def graph() -> object:
    return capture(torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.ReLU()), (torch.randn(4, 8),), training=False)


@pytest.mark.parametrize(
    ("reference_ns", "quietest_ns", "busy"),
    [
        (100, 100, False),
        (120, 100, False),  # clocks change
        (200, 100, True),  # a core shared by two
        (100, 60, True),  # quiet when it was taken, as far as was known then
        (100, 0, True),  # no quiet moment was ever seen
        (0, 100, False),  # of a file that keeps no references
    ],
)
def test_a_figure_is_judged_by_the_reference_beside_it(reference_ns: int, quietest_ns: int, busy: bool) -> None:
    assert was_busy(reference_ns, quietest_ns) is busy


@pytest.mark.skipif(not hasattr(os, "sched_setaffinity"), reason="load needs a core of its own")
def test_two_busy_processes_on_the_core_are_seen() -> None:
    reference = Reference("cpu")
    with load(2):
        looks = [reference.look() for _ in range(5)]
    assert was_busy(round(statistics.median(looks)), reference.quietest_ns)


@pytest.mark.skipif(not hasattr(os, "sched_setaffinity"), reason="load needs a core of its own")
@pytest.mark.usefixtures("cache")
def test_what_is_measured_under_load_is_marked() -> None:
    told: list[str] = []
    with load(2):
        cluster = measure.here(say=told.append)
        costs = measure.measure_ops(graph(), cluster, say=told.append)
    assert cluster.basis == measure.BUSY_BASIS
    assert measure.busy_ops(costs.times["cpu"], "cpu")
    assert any("others use this machine" in text for text in told)


@pytest.mark.usefixtures("cache", "tolerant")
def test_marked_ops_are_timed_again_when_it_is_quiet_and_no_others() -> None:
    model, cluster = graph(), measure.here()
    times = measure.measure_ops(model, cluster).times["cpu"]
    assert len(times) > 1 and not measure.busy_ops(times, "cpu")
    marked, *others = sorted(times)
    was = {**times, marked: times[marked]._replace(hot_ns=1, reference_ns=AGES_NS)}
    measure.keep_costs(Measured({"cpu": was}, measure.known_costs().fallback))
    now = measure.measure_ops(model, cluster).times["cpu"]
    assert now[marked].hot_ns > 1 and now[marked].reference_ns < AGES_NS
    assert [now[other] for other in others] == [times[other] for other in others]


@pytest.mark.usefixtures("cache", "tolerant")
def test_a_machine_measured_under_load_is_measured_again_when_it_is_quiet() -> None:
    found, files, told = measure.here(), Kept.here(), list[str]()
    assert found.basis == "measured"
    files.keep_machine(found, {}, {"cpu": AGES_NS})
    assert measure.here(say=told.append).basis == "measured" and "measuring cpu" in told
    told.clear()
    assert measure.here(say=told.append).basis == "measured" and not told


@pytest.mark.usefixtures("cache")
def test_a_race_under_load_says_so_and_keeps_no_times(monkeypatch: pytest.MonkeyPatch) -> None:
    from loadmaster.runtime import race
    from loadmaster.search import Budget

    monkeypatch.setattr(race, "PATIENCE_S", 0.0)
    made = torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.ReLU()), (torch.randn(4, 8),)
    cluster = measure.here()
    Kept.here().keep_quietest({"cpu": 1})  # ten thousand times as fast as now
    told: list[str] = []
    found = race.run_race(made, cluster, "heft", Budget(None, 5), 0, training=False, compiled=False, say=told.append)
    assert found.load is not None and "others used this machine" in str(found.load)
    assert found.recalibrated is None and race.NOT_QUIET in told
    assert found.as_data()["load"]["quietest_ns"] == 1


@pytest.mark.usefixtures("tolerant")
def test_measurements_that_cannot_be_kept_are_remembered(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    monkeypatch.setattr(kept, "cache_folder", lambda: tmp_path / "file" / "compiled")
    with pytest.warns(UserWarning, match="cannot be kept") as seen:
        Kept.here().keep_costs(Measured({}))
        Kept.here().keep_quietest({"cpu": 7})
    assert len(seen) == 1 and Kept.here().quietest_ns() == {"cpu": 7}
