"""A result in a notebook: whole HTML, bars as long as the work, modules where they ran."""

from __future__ import annotations

import re
import xml.etree.ElementTree as xml
from dataclasses import replace

import numpy as np
import pytest

from loadmaster.cost import price
from loadmaster.plans import Plan
from loadmaster.report.drawing import drawing_of, svg
from loadmaster.report.explain import replayed
from loadmaster.report.modules import (
    COLOURS,
    MOST_MODULES,
    ModuleWork,
    coloured,
    module_labels,
    module_table,
    places_text,
)
from loadmaster.report.notebook import result_html
from loadmaster.search import Result
from tests.unit.report.subjects import schedule_of, tiny, training_like


def spread_over(devices: int, ops: int = 400) -> Result:
    problem = price(training_like(ops), f"{devices}xp100-pcie")
    share = np.arange(problem.num_ops) * devices // problem.num_ops
    return replayed(problem, Plan.of(problem, share))


@pytest.mark.parametrize("result", [tiny(), spread_over(2), spread_over(20)], ids=["tiny", "two", "twenty"])
def test_it_is_well_formed_and_needs_nothing_from_outside(result: Result) -> None:
    page = result_html(result)
    xml.fromstring(page)
    assert not re.search(r"<script|https?:|url\((?!#)|javascript", page)
    assert page == result._repr_html_()


def test_names_cannot_leave_their_place() -> None:
    result = tiny()
    evil = "</td><script>alert(1)</script>"
    graph = replace(result.problem.graph, scope=(evil,) * result.problem.num_ops)
    page = result_html(replace(result, problem=replace(result.problem, graph=graph, source=replace(graph, name=evil))))
    assert "<script>" not in page and "&lt;script&gt;" in page


def test_bars_of_a_device_are_as_long_as_it_is_busy() -> None:
    result = spread_over(2)
    picture = xml.fromstring(f"<a>{svg(drawing_of(schedule_of(result), 360))}</a>").find("svg")
    assert picture is not None
    bars = [bar for bar in picture.findall("rect") if bar.get("fill") != "currentColor"]
    left = next(float(text.get("x", "0")) for text in picture.findall("text") if text.text == "0")
    across = 900 - left
    drawn = {0.0: 0.0, 1.0: 0.0}
    for bar in bars:
        full = (float(bar.get("fill-opacity", "0")) - 0.25) / 0.75
        drawn[float(bar.get("y", "0")) // 36] += full * float(bar.get("width", "0")) / across
    schedule = schedule_of(result)
    busy = np.bincount(schedule.device, schedule.end_ns - schedule.start_ns) / schedule.step_ns
    assert list(drawn.values()) == pytest.approx(busy.tolist(), abs=0.01)


def test_the_heaviest_modules_have_a_colour_and_no_op_is_left_over() -> None:
    schedule = schedule_of(spread_over(2))
    length = schedule.end_ns - schedule.start_ns
    labels = module_labels(schedule, MOST_MODULES)
    number, names = coloured(labels, length)
    assert len(COLOURS) < len(names) == len(set(labels)) <= MOST_MODULES
    assert any("…" in name for name in names), "twelve blocks are more than eight colours"
    total = [int(length[number == at].sum()) for at in range(len(names))]
    assert total == sorted(total, reverse=True) and sum(total) == int(length.sum())
    assert all(names[at] == label for label, at in zip(labels, number.tolist(), strict=True))


def test_the_table_of_modules_adds_up() -> None:
    result = spread_over(2)
    schedule = schedule_of(result)
    rows = module_table(schedule, 12)
    assert len(rows) <= 12
    busy = np.bincount(schedule.device, schedule.end_ns - schedule.start_ns, 2)
    assert [sum(row.device_ns[device] for row in rows) for device in (0, 1)] == busy.astype(int).tolist()
    assert sum(row.ops for row in rows) == result.problem.num_ops
    whole = module_table(schedule, 1)
    graph = result.problem.graph
    read = set(graph.reads.tolist())
    assert whole[0].weight_bytes == sum(int(graph.nbytes[t]) for t in read if graph.producer[t] < 0)


def test_where_a_module_runs_in_words() -> None:
    names = ("gpu:0", "gpu:1", "gpu:2")
    assert places_text(ModuleWork("a", 1, (0, 9, 0), 0), names) == "gpu:1"
    assert places_text(ModuleWork("a", 1, (30, 70, 0), 0), names) == "gpu:1 (70 %), gpu:0 (30 %)"
    assert places_text(ModuleWork("a", 1, (1, 1000, 0), 0), names) == "gpu:1"
    assert places_text(ModuleWork("a", 1, (0, 0, 0), 0), names) == "-"
