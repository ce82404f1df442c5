"""The whole explanation: golden text, totals, JSON, speed, and what may not be missing."""

from __future__ import annotations

import json
import shlex
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from loadmaster.cluster import Cluster
from loadmaster.cost import price
from loadmaster.graph import GraphBuilder
from loadmaster.plans import Plan
from loadmaster.problem import Problem
from loadmaster.report.expense import expense
from loadmaster.report.explain import explain, replayed
from loadmaster.report.kernels import fusion
from loadmaster.report.occupancy import device_times
from loadmaster.report.schedule import Schedule
from loadmaster.report.units import time_text
from loadmaster.report.whatif import with_links
from loadmaster.search import Budget, Invocation, solve
from loadmaster.simulator import simulate
from tests.graphs import GRAPHS, pair
from tests.reference import judge
from tests.unit.report.subjects import by_blocks, schedule_of, tiny, training_like

GOLDEN = Path(__file__).parents[2] / "golden" / "explanations" / "diamond.txt"


def test_golden_text() -> None:
    """After a wanted change: python -m tests.unit.report.test_explain"""
    assert explain(tiny(), seconds=0.1).text() == GOLDEN.read_text()


@pytest.mark.parametrize("name", GRAPHS)
def test_totals_of_every_tiny_graph(name: str) -> None:
    problem = price(GRAPHS[name](), pair(memory_bytes=150))
    plan = Plan.of(problem, (np.arange(problem.num_ops) + 1) // 2 % 2)
    found, judged = explain(replayed(problem, plan), seconds=0.1), judge(problem, plan)
    assert found.path.length_ns == sum(piece.length_ns for piece in found.path.pieces) == judged.step_ns
    for row in found.devices:
        assert row.compute_ns + row.transfer_wait_ns + row.idle_ns + row.finished_ns == judged.step_ns
    assert [sum(part.nbytes for part in peak.parts) for peak in found.peaks] == judged.peak
    assert found.verdict.over_bytes == judged.over_bytes


def test_json_can_be_read_back_and_says_the_same() -> None:
    found = explain(tiny(), seconds=0.1)
    data = json.loads(json.dumps(found.to_json()))
    assert data["schema"] == "loadmaster.report/1"
    assert data["verdict"]["step_ns"] == 74
    assert sum(piece["end_ns"] - piece["start_ns"] for piece in data["path"]["pieces"]) == 74
    assert data["verdict"]["bounds"]["gap"] == pytest.approx(74 / 55 - 1)
    assert [row["device"] for row in data["devices"]] == ["d0", "d1"]


def test_the_strongest_true_sentence_about_the_best() -> None:
    # 55 ns: a, then c beside b, then d, and one transfer that cannot be avoided; 74 / 55 = 1.345
    words = explain(tiny(), seconds=0.1).verdict.bounds.words(time_text)
    assert words == "At most 35 % from the best unsplit, unfused plan (55 ns or more)."
    problem = price(GRAPHS["chain"](), "1xp100-pcie")
    alone = replayed(problem, Plan.of(problem, [0, 0, 0]))
    assert alone.optimal and alone.among.kernels == "none"
    said = explain(alone, seconds=0.1).verdict.bounds
    assert said.words(time_text).startswith("Optimal" if said.any_plan.value == said.value else "The best unsplit, unf")
    assert said.any_plan.value <= said.choices.value == said.value


def test_what_if_changes_one_thing_of_the_same_plan() -> None:
    found = {row.change: row for row in explain(tiny(), seconds=0.1).what_ifs}
    # without transfers: a 10, then b 20 beside c 30, then d 10
    assert found["links that take no time"].step_ns == 50
    # A takes 5 and 100 / 20, C 5 and 40 / 20: 10 + 10 + 30 + 7 + 10
    assert found["links twice as fast"].step_ns == 67
    # ops halve to 5, 15 and 5, transfers stay 15 and 9
    assert found["devices twice as fast"].step_ns == 49
    assert all(row.gain == 74 - row.step_ns for row in found.values())


def test_faster_links_never_help_more_than_free_ones() -> None:
    problem = price(training_like(300), "3xp100-pcie")
    found = {row.change: row.step_ns for row in explain(replayed(problem, by_blocks(problem)), seconds=0.1).what_ifs}
    assert found["links that take no time"] <= found["links twice as fast"] <= by_step(problem)


def by_step(problem: Problem) -> int:
    return simulate(problem, by_blocks(problem)).step_ns


def test_the_bottleneck_is_what_most_of_the_path_is() -> None:
    g = GraphBuilder("far")
    start, end = g.tensor(10_000), g.tensor(8, "output")
    g.op("a", "any", [], [start], time_ns=[10, None], scope="left")
    g.op("b", "any", [start], [end], time_ns=[None, 10], scope="right")
    problem = price(g.build(), pair())
    found = explain(replayed(problem, Plan.of(problem, [0, 1])), seconds=0.1)
    # 10,000 bytes at 10 a ns after 5 ns: 1,005 of 1,025
    assert found.bottleneck.name == "transfers" and found.bottleneck.share == pytest.approx(1005 / 1025)
    first = found.bottleneck.sentences[0]
    assert first.kind == "send" and first.indexes == (0,) and "98 %" in first.text
    assert {row.verdict for row in found.reasons.rows} == {"nowhere else"}
    computing = explain(replayed(wide(9), Plan.of(wide(9), [0, 1] * 4 + [0])), seconds=0.1)
    assert computing.bottleneck.name == "computing" and computing.bottleneck.share == 1.0
    assert len(computing.bottleneck.sentences[0].indexes) == 5


def wide(width: int = 8) -> Problem:
    g = GraphBuilder("wide")
    for number in range(width):
        g.op(f"op{number}", "any", [], [g.tensor(8, "output")], time_ns=100)
    return price(g.build(), pair())


def test_peak_memory_as_the_goal() -> None:
    problem = price(GRAPHS["ladder"](), pair(), objective="peak-memory")
    found = explain(replayed(problem, Plan.of(problem, [0] * 6)), seconds=0.1)
    assert found.verdict.value == max(judge(problem, Plan.of(problem, [0] * 6)).peak)
    assert found.bottleneck.name == "memory" and "holds most" in found.bottleneck.sentences[0].text


def test_four_answers_in_twelve_lines_of_eighty_columns() -> None:
    problem = price(training_like(400), "4xp100-pcie")
    asked = Invocation("model.json", (("--on", "4xp100-pcie"), ("--simulations", "3"), ("--memory-limit", "3GiB")))
    found = explain(replace(replayed(problem, by_blocks(problem)), asked=asked), seconds=0.5)
    lines = found.text(verbose=False).splitlines()
    assert len(lines) <= 12 and max(map(len, lines)) <= 80
    titles = [line.split()[0] for line in lines if not line.startswith(" ")]
    assert titles == ["Plan", "Limit", "Memory", "Next"]
    at = next(number for number, line in enumerate(lines) if "loadmaster plan" in line)
    command = " ".join(line.strip().rstrip("\\").strip() for line in lines[at:])
    assert shlex.split(command) in [shlex.split(action.command) for action in found.actions] or command in found.uses


def test_changed_hardware_is_simulated_as_it_would_be_priced() -> None:
    problem = price(training_like(300), "3xp100-pcie")
    plan = by_blocks(problem)
    fast, free = with_links(problem, 2.0), with_links(problem, None)
    times = [simulate(one, plan).step_ns for one in (free, fast, problem)]
    assert times == sorted(times)
    assert len(set(times)) == 3
    link, quick = problem.cluster.links[0, 1], fast.cluster.links[0, 1]
    assert (quick.bytes_per_s, quick.latency_ns) == (2 * (link.bytes_per_s or 0), link.latency_ns)


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
    text = explain(replayed(problem, Plan.of(problem, [0, 0, 0], kernel=[0, 0, 0])), seconds=0.1).text()
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
    assert len(found.reasons.rows) <= 200
    assert found.reasons.simulations > 0


def test_one_device_and_one_op() -> None:
    g = GraphBuilder("one")
    g.op("only", "any", [], [g.tensor(8, "output")], time_ns=10)
    problem = price(g.build(), "1xp100-pcie")
    found = explain(replayed(problem, Plan.of(problem, [0])), seconds=0.1)
    assert found.verdict.step_ns == 10 and found.verdict.speed_up is None
    assert "WHY EACH GROUP" not in found.text()
    assert found.reasons.rows[0].verdict == "nowhere else"


def test_schedule_of_a_fused_plan_has_the_times_of_its_heads() -> None:
    problem = price(training_like(120), "2xp100-pcie")
    result = solve(problem, "greedy-fusion", Budget(None, 4))
    schedule = Schedule.of(problem, result.plan, result.timeline)
    assert np.array_equal(schedule.start_ns[schedule.kernel_of], result.timeline.start_ns)
    assert np.array_equal(schedule.end_ns[schedule.kernel_of], result.timeline.end_ns)
    assert explain(result, seconds=0.5).path.length_ns == result.timeline.step_ns


if __name__ == "__main__":
    GOLDEN.write_text(explain(tiny(), seconds=0.1).text())
