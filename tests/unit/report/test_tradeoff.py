"""The trade-off: a front on which no plan is dominated, saved plans that simulate to what was said."""

import json
from pathlib import Path

import pytest

from loadmaster import Budget, GraphBuilder, InvalidSetting, Problem, load_plan, price, simulate
from loadmaster.cli.verbs import app
from loadmaster.report.tradeoff import Point, pareto, plot_tradeoff, smallest_within, tradeoff
from tests.end_to_end.conftest import write_model


def wide() -> Problem:
    """Six branches that are long at first and then short: running all at once is fast and needs much memory."""
    g = GraphBuilder("wide")
    x = g.tensor(1000, "input")
    ends = []
    for branch in range(6):
        big, end = g.tensor(5_000_000), g.tensor(1000)
        g.op(f"grow{branch}", "mm", [x], [big], flops=10**9)
        g.op(f"fold{branch}", "mm", [big], [end], flops=2 * 10**9)
        ends.append(end)
    g.op("sum", "add", ends, [g.tensor(1000, "output")], flops=1000)
    return price(g.build(), "3xp100-pcie")


def test_no_plan_of_the_front_is_dominated() -> None:
    problem = wide()
    front = tradeoff(problem, "anneal", Budget(None, 1000), points=5)
    assert len(front) > 1
    for one in front:
        line = simulate(problem, one.result.plan)
        assert (line.step_ns, int(line.peak_bytes.max())) == (one.step_ns, one.peak_bytes)
        for other in front:
            better = (other.step_ns <= one.step_ns, other.peak_bytes <= one.peak_bytes)
            assert other is one or not all(better)
    assert front == sorted(front, key=lambda point: point.step_ns)


def test_the_smallest_plan_keeps_the_step_limit() -> None:
    problem = wide()
    fastest = tradeoff(problem, "anneal", Budget(None, 200), points=2)[0]
    for slack in (0.0, 0.5, 5.0):
        found = smallest_within(problem, "anneal", Budget(None, 200), slack)
        assert found.step_ns <= fastest.step_ns * (1 + slack)
        assert found.peak_bytes <= fastest.peak_bytes
    with pytest.raises(InvalidSetting):
        smallest_within(problem, "anneal", Budget(None, 10), -0.1)
    with pytest.raises(InvalidSetting, match="at least 2"):
        tradeoff(problem, "anneal", Budget(None, 10), points=1)


def test_pareto_by_hand() -> None:
    pairs = [(3, 3), (1, 9), (2, 5), (2, 4), (4, 3), (5, 1), (9, 9)]
    points = [Point(None, step, peak) for step, peak in pairs]  # type: ignore[arg-type]
    assert [(p.step_ns, p.peak_bytes) for p in pareto(points)] == [(1, 9), (2, 4), (3, 3), (5, 1)]


def test_the_verb_saves_and_draws(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("matplotlib")
    write_model(tmp_path / "model.json")
    words = [
        "tools",
        "tradeoff",
        str(tmp_path / "model.json"),
        "--on",
        "2xp100-pcie",
        "--simulations",
        "60",
        "--points",
        "3",
    ]
    app(
        [*words, "--save", str(tmp_path / "plans"), "--plot", str(tmp_path / "front.png"), "--json"],
        standalone_mode=False,
    )
    told = json.loads(capsys.readouterr().out)
    assert (tmp_path / "front.png").stat().st_size > 1000
    for row in told["plans"]:
        assert load_plan(row["plan"]).device.size
    plot_tradeoff(tmp_path / "empty.svg", [])
