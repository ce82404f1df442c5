"""Pipelines of microbatches: times and memory by the textbook, by a slow simulator and by unrolling."""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner

from loadmaster.cli.verbs import app
from loadmaster.cluster import Link
from loadmaster.cost import price
from loadmaster.errors import InvalidSetting
from loadmaster.files import save_graph
from loadmaster.graph import GraphBuilder
from loadmaster.optimizers.pipeline import schedules
from loadmaster.optimizers.pipeline.edges import balanced_edges
from loadmaster.optimizers.pipeline.microbatched import plan_pipeline
from loadmaster.passes.microbatches import Action, parse_action
from loadmaster.passes.stages import BACKWARD, FORWARD, UPDATE, WEIGHT, in_stages, phases_of, settle_stages
from loadmaster.report.pipeline import picture, schedule_csv
from loadmaster.search import Budget
from tests.unit.optimizers.pipeline.lines import devices, line, problem


def test_stages_follow_the_line_whatever_was_wanted() -> None:
    base = problem(6, 3)
    phase = phases_of(base)
    assert [int((phase == p).sum()) for p in (FORWARD, BACKWARD, UPDATE)] == [7, 13, 6]
    wanted = np.random.default_rng(0).integers(0, 3, base.num_ops)
    stage = settle_stages(base, wanted, phase)
    start, before = base.graph.dependencies
    for op in range(base.num_ops):
        for earlier in before[start[op] : start[op + 1]]:
            if phase[op] == phase[earlier] == FORWARD:
                assert stage[earlier] <= stage[op]
            if phase[op] == phase[earlier] == BACKWARD:
                assert stage[earlier] >= stage[op]
    staged = in_stages(base, stage, phase, split_backward=True)
    assert staged.problem.op_ns.sum() == base.op_ns.sum()


def test_balanced_edges_are_the_best_of_all() -> None:
    rng = np.random.default_rng(1)
    for _ in range(20):
        work = rng.integers(1, 50, (7, 2))
        work[:, 1] *= 2
        for order in ((0, 1, 0), (1, 0, 0)):
            edges = balanced_edges(work, order)
            every = [(a, b) for a in range(1, 6) for b in range(a + 1, 7)]
            assert longest(work, edges, order) == min(longest(work, cut, order) for cut in every)


def longest(work: np.ndarray, edges: Sequence[int], order: Sequence[int]) -> int:
    ends = [0, *edges, len(work)]
    return max(int(work[a:b, d].sum()) for a, b, d in zip(ends, ends[1:], order, strict=False))


def test_the_answer_is_no_worse_than_any_hand_made_one_and_repeats() -> None:
    base = price(line(10, forward=90, backward=110, weight=70, sent=40), devices(3, Link(1e9, 50)))
    found = plan_pipeline(base, 6, Budget(None, 60))
    assert all(found.best.score <= other.score for other in found.others)
    assert {other.schedule for other in found.others} == {"gpipe", "1f1b", "zb-h1", "interleaved"}
    assert {other.cut.name for other in found.others} == {"equal", "balanced"}
    assert found.result.lower_bound <= found.result.value == found.best.score.value
    again = plan_pipeline(base, 6, Budget(None, 60))
    assert again.best.score == found.best.score and again.best.cut.edges == found.best.cut.edges


def test_holding_fewer_microbatches_fits_where_gpipe_does_not() -> None:
    base = price(line(4), devices(4, memory=9_000))
    found = plan_pipeline(base, 8, Budget(None, 40))
    assert found.result.fits
    assert any(other.schedule == "gpipe" and other.score.over_bytes for other in found.others)


def test_a_slow_device_gets_less() -> None:
    cluster = devices(4)
    graph = line(16)
    times = [[100, 100, 100, 200] if graph.time_ns[op, 0] else [0] * 4 for op in range(graph.num_ops)]
    from dataclasses import replace

    from loadmaster.graph.columns import ints

    base = price(replace(graph, time_ns=ints(times)), cluster)
    found = plan_pipeline(base, 8, Budget(None, 60))
    equal = min(other.score.value for other in found.others if other.cut.name == "equal")
    assert equal > 1.3 * found.best.score.value


def test_inference_has_forward_passes_alone() -> None:
    g = GraphBuilder("forward")
    x = g.tensor(8, "input")
    for i in range(4):
        y = g.tensor(8, "output" if i == 3 else "activation")
        g.op(f"f{i}", "layer", [x], [y], scope=f"layer{i}", time_ns=100)
        x = y
    found = plan_pipeline(price(g.build(), devices(2)), 5, Budget(None, 20))
    # One layer waits for the first, 2 x 100 ns of work are then left for each microbatch on each device: 1,050 ns in
    # halves of a layer, and there are none. Stages of two layers would take (5 + 1) x 200.
    assert found.result.value == 1_100


def test_ops_that_couple_samples_are_told() -> None:
    g = GraphBuilder("norm")
    x, y, z = g.tensor(8, "input"), g.tensor(8), g.tensor(8, "output")
    g.op("norm", "aten.native_batch_norm.default", [x], [y], scope="a", time_ns=10)
    g.op("relu", "aten.relu.default", [y], [z], scope="b", time_ns=10)
    assert plan_pipeline(price(g.build(), devices(2)), 2, Budget(None, 5)).coupled == ("norm",)


def test_the_picture_and_the_schedule_file() -> None:
    found = plan_pipeline(problem(4, 2), 4, Budget(None, 20))
    *rows, legend = picture(found, 60)
    assert len(rows) == 2 and "update" in legend
    assert all(row[4:].strip(".") for row in rows)
    listed = schedule_csv(found).splitlines()
    assert len(listed) == 2
    counts: dict[str, int] = defaultdict(int)
    for row in listed:
        for action in row.split(","):
            counts[action.lstrip("0123456789")[0]] += 1
    assert counts["F"] >= 8 and counts["B"] + counts["W"] >= 8


def test_torch_reads_the_schedule() -> None:
    pytest.importorskip("torch")
    from torch.distributed.pipelining.schedules import _Action

    found = plan_pipeline(problem(4, 2), 4, Budget(None, 20))
    for row, order in zip(schedule_csv(found).splitlines(), found.best.orders, strict=True):
        read = [_Action.from_str(text) for text in row.split(",")]
        assert [(a.stage_index, a.microbatch_index) for a in read] == [(a.stage, a.microbatch) for a in order]


def test_names_of_actions_go_there_and_back() -> None:
    for action in (Action(FORWARD, 12, 3), Action(WEIGHT, 0, 10)):
        assert parse_action(action.name) == action
    assert parse_action("U3") == Action(UPDATE, 3, 0)


def test_interleaved_rounds_are_those_of_the_paper() -> None:
    """Narayanan et al. (2021), figure 4: four devices, two chunks, eight microbatches."""
    first = schedules.interleaved(4, 2, 8)[0]
    assert [a.microbatch for a in first[:8]] == [0, 1, 2, 3, 0, 1, 2, 3]
    assert [a.stage for a in first[:8]] == [0] * 4 + [4] * 4


def test_with_one_microbatch_only_gradients_of_weights_overlap() -> None:
    given = problem(4, 2)
    found, total = plan_pipeline(given, 1, Budget(None, 5)), int(given.op_ns.min(axis=1).sum())
    assert found.microbatches == 1 and total / 2 < found.result.value <= total


def test_what_cannot_be_planned_is_refused(tmp_path: Path) -> None:
    for count in (0, -1, 10**6):
        with pytest.raises(InvalidSetting, match="microbatches"):
            plan_pipeline(problem(2, 2), count, Budget(None, 5))
    with pytest.raises(InvalidSetting, match="places to cut"):
        plan_pipeline(price(line(1), devices(30)), 2, Budget(None, 5))


def test_the_command_line(tmp_path: Path) -> None:
    model, plan, schedule = tmp_path / "line.json", tmp_path / "plan.json", tmp_path / "order.csv"
    save_graph(line(8, sent=1000), model)
    words = ["plan", str(model), "--on", "2xa100-nvlink", "--microbatches", "4", "--simulations", "20"]
    files = ["--save", str(plan), "--schedule", str(schedule)]
    told = json.loads(CliRunner().invoke(app, [*words, *files, "--json"]).stdout)
    assert told["microbatches"] == 4 and told["fits"] and len(told["stages"]) >= 2
    assert told["step_ns"] <= min(other["step_ns"] for other in told["others"])
    again = ["simulate", str(tmp_path / "plan.graph.json"), "--on", "2xa100-nvlink", "--plan", str(plan), "--json"]
    assert json.loads(CliRunner().invoke(app, again).stdout)["step_ns"] == told["step_ns"]
    assert len(schedule.read_text().splitlines()) == 2
    shown = CliRunner().invoke(app, words).stdout
    assert "1f1b" in shown and "stage 0 on" in shown and "forward pass" in shown
    refused = CliRunner().invoke(app, [*words, "--split", "auto"])
    assert refused.exit_code == 1
