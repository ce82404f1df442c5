"""The whole explanation: golden text, totals, JSON, speed, and what may not be missing."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from loadmaster.cluster import Cluster
from loadmaster.cost import price
from loadmaster.graph import GraphBuilder
from loadmaster.graph.columns import ints
from loadmaster.plans import Plan
from loadmaster.problem import Problem
from loadmaster.report.expense import expense
from loadmaster.report.explain import explain, replayed
from loadmaster.report.hardware import with_links, with_memory, with_twin
from loadmaster.report.kernels import fusion
from loadmaster.report.occupancy import device_times
from loadmaster.report.schedule import Schedule
from loadmaster.search import Budget, solve
from loadmaster.simulator import simulate
from tests.graphs import GRAPHS, pair
from tests.reference import judge
from tests.unit.report.subjects import by_blocks, schedule_of, tiny, training_like

GOLDEN = Path(__file__).parents[2] / "golden" / "explanations" / "diamond.txt"


def test_golden_text() -> None:
    """After a wanted change: python -m tests.unit.report.test_explain"""
    assert explain(tiny()).text() == GOLDEN.read_text()


@pytest.mark.parametrize("name", GRAPHS)
def test_totals_of_every_tiny_graph(name: str) -> None:
    problem = price(GRAPHS[name](), pair(memory_bytes=150))
    plan = Plan.of(problem, (np.arange(problem.num_ops) + 1) // 2 % 2)
    found, judged = explain(replayed(problem, plan)), judge(problem, plan)
    assert found.path.length_ns == sum(piece.length_ns for piece in found.path.pieces) == judged.step_ns
    for row in found.devices:
        assert row.compute_ns + row.transfer_wait_ns + row.idle_ns + row.finished_ns == judged.step_ns
    assert [sum(part.nbytes for part in peak.parts) for peak in found.peaks] == judged.peak
    assert found.over_bytes == judged.over_bytes


def test_json_can_be_read_back_and_says_the_same() -> None:
    found = explain(tiny())
    data = json.loads(json.dumps(found.to_json()))
    assert data["schema"] == "loadmaster.explanation/1"
    assert data["step_ns"] == 74
    assert sum(piece["end_ns"] - piece["start_ns"] for piece in data["path"]["pieces"]) == 74
    assert data["gap"] == pytest.approx(74 / 55 - 1)
    assert [row["device"] for row in data["devices"]] == ["d0", "d1"]


def test_bounds_and_what_binds() -> None:
    why = explain(tiny()).why_not_faster
    # 70 ns of work on two devices; a, c, d are the longest chain; A and C take 15 and 9 on wires of their own
    values = {bound.name: bound.value for bound in why.bounds}
    assert values["critical path"] == 50
    assert 34 <= values["work"] <= 35
    assert (values["link"], values["memory"]) == (15, 150)
    assert why.binds == "critical path"
    # without transfers: a 10, then b 20 beside c 30, then d 10
    assert why.without_transfers_ns == 50


def wide(width: int = 8) -> Problem:
    g = GraphBuilder("wide")
    for number in range(width):
        g.op(f"op{number}", "any", [], [g.tensor(8, "output")], time_ns=100)
    return price(g.build(), pair())


def test_one_more_device_helps_where_work_binds() -> None:
    problem = wide(9)
    found = explain(replayed(problem, Plan.of(problem, [0, 1] * 4 + [0])))
    assert found.why_not_faster.binds == "work"
    more = next(row for row in found.why_not_faster.helps if row.change.startswith("one more device"))
    assert (found.step_ns, more.step_ns) == (500, 300)
    assert found.why_not_faster.control.step_ns == 500
    assert "one more device" in found.text()


def test_links_help_where_links_bind() -> None:
    g = GraphBuilder("far")
    start, end = g.tensor(10_000), g.tensor(8, "output")
    g.op("a", "any", [], [start], time_ns=[10, None])
    g.op("b", "any", [start], [end], time_ns=[None, 10])
    problem = price(g.build(), pair())
    found = explain(replayed(problem, Plan.of(problem, [0, 1])))
    # 10,000 bytes at 10 a ns after 5 ns: 1,005; at 20 a ns: 505
    assert found.step_ns == 1025
    assert found.why_not_faster.binds == "link"
    faster = next(row for row in found.why_not_faster.helps if row.change.startswith("links"))
    assert (faster.step_ns, faster.gain) == (525, 500)
    assert {row.verdict for row in found.decisions.rows} == {"nowhere else"}


def test_memory_binds_where_more_of_it_makes_plans_faster() -> None:
    g = GraphBuilder("full")
    for name, time_ns in (("small", 10), ("slow", 100)):
        g.op(name, "any", [g.tensor(500, "weight")], [g.tensor(1, "output")], time_ns=[10, time_ns])
    problem = replace(price(g.build(), pair()), memory_bytes=ints([1000, 1000]))
    # both weights on d0 take 1,002 bytes of 1,000: one of them must go to d1, where slow takes ten times as long
    found = explain(replayed(problem, Plan.of(problem, [0, 1])))
    assert found.step_ns == 100
    assert found.why_not_faster.control.step_ns == 10
    tight = replace(problem, op_ns=ints([[10, 100], [10, 100]]))
    found = explain(replayed(tight, Plan.of(tight, [0, 1])))
    more = found.why_not_faster.helps[2]
    assert (found.step_ns, found.why_not_faster.control.step_ns, more.step_ns) == (100, 100, 20)
    assert found.why_not_faster.binds == "memory"


def test_peak_memory_as_the_goal() -> None:
    problem = price(GRAPHS["ladder"](), pair(), objective="peak-memory")
    found = explain(replayed(problem, Plan.of(problem, [0] * 6)))
    assert found.value == max(judge(problem, Plan.of(problem, [0] * 6)).peak)
    assert found.why_not_faster.binds == "memory"
    assert "The goal is memory" in found.text()


def test_changed_hardware_is_simulated_as_it_would_be_priced() -> None:
    problem = price(training_like(300), "3xp100-pcie")
    same = price(training_like(300), "4xp100-pcie")
    twin = with_twin(problem, 0)
    assert np.array_equal(twin.op_ns, same.op_ns)
    assert np.array_equal(twin.cluster.channel, same.cluster.channel)
    assert simulate(twin, by_blocks(twin)).step_ns == simulate(same, by_blocks(same)).step_ns
    assert twin.cluster.device_names[-1] == "p100-pcie:3"
    plan = by_blocks(problem)
    fast, free = with_links(problem, 2.0), with_links(problem, None)
    times = [simulate(one, plan).step_ns for one in (free, fast, problem)]
    assert times == sorted(times)
    assert len(set(times)) == 3
    link, quick = problem.cluster.links[0, 1], fast.cluster.links[0, 1]
    assert (quick.bytes_per_s, quick.latency_ns) == (2 * (link.bytes_per_s or 0), link.latency_ns)
    assert with_memory(problem, 1.1).memory_bytes[0] == int(problem.memory_bytes[0] * 1.1)


@pytest.mark.parametrize(
    "preset", ["1xp100-pcie", "2xa100-nvlink", "3xv100-nvlink", "2xa100-nvlink+1xcpu", "placeto-2"]
)
def test_a_twin_of_every_device_gives_a_cluster(preset: str) -> None:
    problem = price(GRAPHS["ladder"](), preset)
    for device in range(problem.num_devices):
        twin = with_twin(problem, device)
        assert twin.num_devices == problem.num_devices + 1
        channel = twin.cluster.channel
        assert sorted(np.unique(channel[channel >= 0])) == list(range(channel.max() + 1))
        assert (channel[~np.eye(len(channel), dtype=bool)] >= 0).all()
        assert (
            simulate(twin, Plan.of(twin, [device] * 6)).step_ns
            == simulate(problem, Plan.of(problem, [device] * 6)).step_ns
        )


def test_fusion_counts_bytes_and_launches() -> None:
    g = GraphBuilder("fused")
    x, a, b, out = g.tensor(1000, "input"), g.tensor(400), g.tensor(400), g.tensor(8, "output")
    g.op("a", "mul", [x], [a], flops=10)
    g.op("b", "add", [a], [b], flops=10)
    g.op("c", "sum", [b], [out], flops=10)
    problem = price(g.build(), pair(launch_ns=7))
    saved = fusion(schedule_of(replayed(problem, Plan.of(problem, [0, 0, 0], kernel=[0, 0, 0]))))
    # A and B are written and read once each: 1,600 bytes at 1 byte a ns, and two launches of 7 ns
    assert (saved.kernels, saved.ops, saved.launches_saved) == (1, 3, 2)
    assert (saved.traffic_saved_bytes, saved.memory_saved_bytes) == (1600, 800)
    assert saved.time_saved_ns == 1600 + 14
    assert saved.largest[0].kinds == ("mul", "add", "sum")
    text = explain(replayed(problem, Plan.of(problem, [0, 0, 0], kernel=[0, 0, 0]))).text()
    assert "3 ops are fused into 1 kernel. That saves 2 launches, 1.56 KiB of memory traffic" in text


class Priced:
    """A device of a cluster that gives prices and watts."""

    def __init__(self, price_per_hour: float | None, watts: float | None, idle_watts: float | None = None) -> None:
        self.price_per_hour, self.watts, self.idle_watts = price_per_hour, watts, idle_watts


def test_money_and_energy() -> None:
    times = device_times(schedule_of(tiny()))
    cluster: Any = type("Priced", (), {"devices": (Priced(3.6, 100.0), Priced(7.2, None))})
    cost = expense(cluster, times, 74)
    # 3.6 an hour is 1e-12 a ns; d0 computes 40 of 74 ns, d1 30
    assert cost.money == pytest.approx(74e-12 + 2 * 74e-12)
    assert cost.money_idle == pytest.approx(34e-12 + 2 * 44e-12)
    assert cost.energy_j == pytest.approx(100 * 40e-9)
    nothing = expense(pair(), times, 74)
    assert (nothing.money, nothing.money_idle, nothing.energy_j) == (None, None, None)


def test_other_hardware_is_planned_side_by_side() -> None:
    problem = price(training_like(200), "2xp100-pcie")
    result = solve(problem, "heft", Budget(None, 1))
    found = explain(result, [Cluster.preset("4xh100")], seconds=0.5, method="heft")
    mine, other = found.hardware
    assert (mine.cluster, mine.step_ns) == ("2xp100-pcie", result.timeline.step_ns)
    assert other.devices == 4
    assert other.step_ns == solve(price(problem.source, "4xh100"), "heft", Budget(None, 1)).timeline.step_ns
    assert "4xh100" in found.text()


def test_explanation_of_many_ops_stays_short() -> None:
    problem = price(training_like(5_000), "4xp100-pcie")
    result = replayed(problem, by_blocks(problem))
    found = explain(result)
    assert found.path.length_ns == result.timeline.step_ns
    assert len(found.decisions.rows) <= 200
    assert found.decisions.simulations > 0


def test_one_device_and_one_op() -> None:
    g = GraphBuilder("one")
    g.op("only", "any", [], [g.tensor(8, "output")], time_ns=10)
    problem = price(g.build(), "1xp100-pcie")
    found = explain(replayed(problem, Plan.of(problem, [0])))
    assert found.step_ns == 10
    assert "There is one device" in found.text()
    assert found.decisions.rows[0].verdict == "nowhere else"


def test_schedule_of_a_fused_plan_has_the_times_of_its_heads() -> None:
    problem = price(training_like(120), "2xp100-pcie")
    result = solve(problem, "greedy-fusion", Budget(None, 4))
    schedule = Schedule.of(problem, result.plan, result.timeline)
    assert np.array_equal(schedule.start_ns[schedule.kernel_of], result.timeline.start_ns)
    assert np.array_equal(schedule.end_ns[schedule.kernel_of], result.timeline.end_ns)
    assert explain(result, seconds=0.5).path.length_ns == result.timeline.step_ns


if __name__ == "__main__":
    GOLDEN.write_text(explain(tiny()).text())
