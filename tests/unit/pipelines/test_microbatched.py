"""Pipelines of microbatches: times and memory by the textbook, by a slow simulator and by unrolling."""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from typer.testing import CliRunner

from loadmaster.cli.verbs import app
from loadmaster.cluster import Link
from loadmaster.cost import price
from loadmaster.errors import InvalidSetting
from loadmaster.files import save_graph
from loadmaster.graph import Graph, GraphBuilder
from loadmaster.pipelines import schedules
from loadmaster.pipelines.edges import balanced_edges
from loadmaster.pipelines.judging import Pipeline
from loadmaster.pipelines.microbatched import _Planner, plan_pipeline
from loadmaster.pipelines.microbatches import Action, parse_action
from loadmaster.pipelines.stages import BACKWARD, FORWARD, UPDATE, WEIGHT, in_stages, phases_of, settle_stages
from loadmaster.plans import Plan
from loadmaster.report.pipeline import picture, schedule_csv
from loadmaster.search import Budget
from loadmaster.simulator import simulate
from tests.unit.pipelines.lines import devices, line, problem


def judged(schedule: str, count: int, stages: int = 4, most: Sequence[int] = (), **settings: int) -> Pipeline:
    planner = _Planner(problem(stages, stages, **settings), count, Budget(None, 10), 0)
    cut = next(cut for cut in planner.cuts(stages) if cut.name == "balanced")
    return planner.judge(schedule, cut, tuple(most))


def interleaved(devices_: int, chunks: int, count: int, **settings: int) -> Pipeline:
    planner = _Planner(problem(devices_ * chunks, devices_, **settings), count, Budget(None, 10), 0)
    cut = next(cut for cut in planner.cuts(devices_ * chunks) if cut.name == "balanced")
    return planner.judge("interleaved", cut)


@pytest.mark.parametrize(("stages", "count"), [(2, 2), (4, 8), (4, 4), (3, 7)])
def test_steps_are_those_of_the_papers(stages: int, count: int) -> None:
    """Of equal stages and free links; a backward pass takes 200, half of it for weights."""
    for schedule in ("gpipe", "1f1b"):
        assert judged(schedule, count, stages).score.value == (count + stages - 1) * 300
    # Qi et al. (2023), table 1: bubbles of (p - 1)(F + B - W) with H1.
    assert judged("zb-h1", count, stages).score.value == count * 300 + (stages - 1) * 100
    if count % stages == 0:  # Narayanan et al. (2021): 1/v of the bubbles
        assert interleaved(stages, 2, count).score.value == count * 600 + (stages - 1) * 300


def test_memory_is_what_a_stage_holds_in_flight() -> None:
    """Two tensors of 1,000 bytes a microbatch; the weights of a stage and their gradients are empty."""
    assert judged("gpipe", 8).peak_bytes.tolist() == [16_000] * 4
    assert judged("1f1b", 8).peak_bytes.tolist() == [8_000, 6_000, 4_000, 2_000]
    # Gradients of weights are put off: a stage holds what the first one does, but what it needs for the rest is gone.
    held = judged("zb-h1", 8).peak_bytes
    assert held.max() <= 8_000 and held[0] == 8_000
    assert (held >= judged("1f1b", 8).peak_bytes).all()


def test_weights_and_gradients_are_there_once() -> None:
    one, eight = judged("1f1b", 1, 2, weights=500, saved=0), judged("1f1b", 8, 2, weights=500, saved=0)
    assert one.peak_bytes.tolist() == eight.peak_bytes.tolist() == [1000, 1000]


def test_adding_gradients_up_takes_the_traffic_of_three() -> None:
    """3 x 500 bytes at a byte a ns for every microbatch but the first."""
    plain, heavy = judged("gpipe", 4, 1, weights=0), judged("gpipe", 4, 1, weights=500)
    assert heavy.score.value - plain.score.value == 3 * 1500


SCHEDULES = ["gpipe", "1f1b", "zb-h1", "eager"]


@pytest.mark.parametrize("schedule", SCHEDULES)
@pytest.mark.parametrize("count", [1, 2, 5])
def test_every_action_happens_once_and_in_order(schedule: str, count: int) -> None:
    found = judged(schedule, count, most=[2] * 4)
    seen = [action for order in found.orders for action in order]
    phases = {FORWARD, BACKWARD, WEIGHT} if schedule in ("zb-h1", "eager") else {FORWARD, BACKWARD}
    wanted = {Action(p, s, m) for p in phases for s in range(4) for m in range(count)}
    if WEIGHT in phases:  # the first stage has no gradient to pass on
        wanted -= {Action(BACKWARD, 0, m) for m in range(count)}
    assert len(seen) == len(set(seen)) and set(seen) == wanted


@pytest.mark.parametrize("schedule", SCHEDULES)
def test_a_slow_simulator_of_pipelines_agrees(schedule: str) -> None:
    """Start of each action: when the one before it on its device and all that it needs have ended."""
    found = judged(schedule, 6, most=[3, 3, 2, 1], forward=70, backward=110, weight=40)
    split = schedule in ("zb-h1", "eager")
    length = {FORWARD: 70, BACKWARD: 110 if split else 150, WEIGHT: 40}
    end: dict[Action, int] = {}
    left = [list(order) for order in found.orders]
    while any(left):
        for order in left:
            while order and all(need in end for need in needs(order[0], split)):
                action = order.pop(0)
                before = max((end[a] for a in end if a.stage == action.stage), default=0)
                ns = 150 if action.phase == WEIGHT and action.stage == 0 else length[action.phase]
                end[action] = max([before, *(end[need] for need in needs(action, split))]) + ns
    assert found.score.value == max(end.values())
    timeline = simulate(found.problem, found.plan)
    ends = dict(zip(found.problem.graph.op_name, timeline.end_ns.tolist(), strict=True))
    assert {action: ends[action.name] for action in end} == end


def needs(action: Action, split: bool) -> list[Action]:
    phase, stage, m = action
    if phase == FORWARD:
        return [Action(FORWARD, stage - 1, m)] if stage else []
    if phase == WEIGHT and stage:
        return [Action(BACKWARD, stage, m)]
    return [Action(BACKWARD, stage + 1, m)] if stage < 3 else [Action(FORWARD, stage, m)]


def unrolled(layers: int, count: int, **settings: int) -> Graph:
    """The step `count` times over, op by op, with the gradients added in place and one update."""
    one = line(layers, **settings)
    g = GraphBuilder("unrolled")
    new: dict[tuple[int, int], int] = {}
    for t in range(one.num_tensors):
        shared = one.producer[t] < 0 and one.tensor_name[t] != "x"
        update = one.producer[t] >= 0 and one.kind[one.producer[t]].startswith("optim")
        for m in range(count):
            if (shared or update) and m:
                new[t, m] = new[t, 0]
                continue
            alias = new[int(one.alias_of[t]), 0] if one.alias_of[t] >= 0 else None
            role = ("activation", "weight", "input", "output", "state")[one.role[t]]
            new[t, m] = g.tensor(int(one.nbytes[t]), role, name=f"{one.tensor_name[t]}.{m}", alias_of=alias)
    for op in range(one.num_ops):
        is_update = one.kind[op].startswith("optim")
        for m in range(1 if is_update else count):
            reads = [new[int(t), m] for t in one.reads_of(op)]
            if is_update:  # of all microbatches
                reads += [new[int(t), k] for t in one.reads_of(op) if one.producer[t] >= 0 for k in range(1, count)]
            after = [f"{one.op_name[a]}.{k}" for a in one.after_of(op) for k in range(count)] if is_update else []
            makes = [new[int(t), m] for t in one.makes_of(op)]
            g.op(f"{one.op_name[op]}.{m}", one.kind[op], reads, makes, after=after, time_ns=int(one.time_ns[op, 0]))
    return g.build()


@pytest.mark.parametrize("schedule", ["gpipe", "1f1b", "zb-h1"])
@pytest.mark.parametrize("link", [Link(None, 0), Link(1e9, 7)])
def test_unrolled_into_ops_it_takes_as_long(schedule: str, link: Link) -> None:
    """Two layers a stage; ops of an action are ranked where the action is. Unrolled, a gradient is passed on before
    those of the weights are there, and a device takes what is ready out of turn: never later, and not much sooner."""
    planner = _Planner(problem(6, 3, link, sent=50), 4, Budget(None, 10), 0)
    cut = next(cut for cut in planner.cuts(3) if cut.name == "balanced")
    found = planner.judge(schedule, cut)
    turn = {action: i for order in found.orders for i, action in enumerate(order)}
    whole = price(unrolled(6, 4, sent=50), devices(3, link))
    device, rank = [], []
    for name in whole.graph.op_name:
        base, _, m = name.rpartition(".")
        layer = 5 if base in ("loss", "start") else int(base[1:])
        stage = layer // 2
        phase = {"f": FORWARD, "l": FORWARD, "b": BACKWARD, "s": BACKWARD, "w": WEIGHT, "u": UPDATE}[base[0]]
        if phase == WEIGHT and schedule != "zb-h1":
            phase = BACKWARD
        if phase == BACKWARD and stage == 0 and schedule == "zb-h1":
            phase = WEIGHT
        device.append(stage)
        rank.append(
            10**6
            if phase == UPDATE
            else turn[Action(phase, stage, int(m))] * 100 + whole.graph.op_name.index(name) // 4
        )
    step = simulate(whole, Plan.of(whole, device, rank)).step_ns
    assert 0.85 * found.score.value < step <= found.score.value
    if schedule == "zb-h1" and link.bytes_per_s is None:
        assert step == found.score.value


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
    again = [
        "tools",
        "simulate",
        str(tmp_path / "plan.graph.json"),
        "--on",
        "2xa100-nvlink",
        "--plan",
        str(plan),
        "--json",
    ]
    assert json.loads(CliRunner().invoke(app, again).stdout)["step_ns"] == told["step_ns"]
    assert len(schedule.read_text().splitlines()) == 2
    short = CliRunner().invoke(app, words).stdout
    assert "stage 0 on" in short and "1f1b" not in short
    shown = CliRunner().invoke(app, [*words, "--verbose"]).stdout
    assert "1f1b" in shown and "stage 0 on" in shown and "forward pass" in shown
    refused = CliRunner().invoke(app, [*words, "--split", "auto"])
    assert refused.exit_code == 1


@pytest.mark.parametrize(
    ("simulations", "slots", "rehearsals"),
    [(60, 2_000, 40_000_000 // 48_000), (120, 2_000, 80_000_000 // 48_000), (10, 5, 10_000), (500, 5, 100_000)],
)
def test_rehearsals_are_as_many_as_there_is_time_for(simulations: int, slots: int, rehearsals: int) -> None:
    """Six actions for each slot and microbatch: forward, backward and weights, and what is sent between."""
    planner = _Planner(problem(2, 2), 4, Budget(None, simulations), 0)
    assert planner._rehearsals(SimpleNamespace(memory=range(slots))) == rehearsals  # type: ignore[arg-type]
    unlimited = _Planner(problem(2, 2), 4, Budget(5.0), 0)
    assert unlimited._rehearsals(SimpleNamespace(memory=range(20_000))) == 4 * 40_000_000 // 480_000  # type: ignore[arg-type]


@pytest.mark.parametrize(("slots", "steps"), [(200, [12, 6, 3, 1]), (31, [1]), (10, [1])])
def test_edges_are_moved_by_large_steps_first(slots: int, steps: list[int], monkeypatch: pytest.MonkeyPatch) -> None:
    """A sixteenth of the line, then half of that while nothing helps; what helps is gone on from with the same step."""
    planner = _Planner(problem(4, 2), 2, Budget(None, 99), 0)
    seen, helps = list[int](), [True]

    def moved(here: Any, step: int) -> Any:
        seen.append(step)
        return SimpleNamespace(cut=here.cut, score=here.score - 1) if helps and helps.pop() else None

    monkeypatch.setattr(planner, "_moved", moved)
    start: Any = SimpleNamespace(cut=SimpleNamespace(slot=np.arange(slots + 1)), score=10)
    other: Any = SimpleNamespace(cut=SimpleNamespace(slot=np.arange(2)), score=11)
    assert planner.improve([start, other]).score == 9
    assert seen == [steps[0], *steps, 1]
