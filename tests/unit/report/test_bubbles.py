"""The picture of a pipeline: every action once, as long as it takes, and bubbles that add up with them."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from loadmaster.cost import price
from loadmaster.errors import InvalidSetting
from loadmaster.pipelines.microbatched import plan_pipeline
from loadmaster.plans import Plan
from loadmaster.report.bubbles import boxes, bubble_shares, plot_pipeline, section
from loadmaster.report.explain import explain, replayed
from loadmaster.report.html import report_page
from loadmaster.report.schedule import Schedule
from loadmaster.search import Budget
from tests.unit.pipelines.lines import problem as pipeline_problem
from tests.unit.pipelines.test_microbatched import judged
from tests.unit.report.subjects import training_like


def scheduled(schedule: str, count: int = 6) -> Schedule:
    found = judged(schedule, count, most=[3, 3, 2, 1])
    result = replayed(found.problem, found.plan)
    return Schedule.of(result.problem, result.plan, result.timeline)


@pytest.mark.parametrize("schedule", ["gpipe", "zb-h1", "eager"])
def test_every_action_is_drawn_as_long_as_it_takes(schedule: str) -> None:
    shown = scheduled(schedule)
    drawn = section(shown)
    titles = re.findall(r"<title>(.*?)</title>", drawn)
    assert len(titles) == len(set(titles)) == shown.problem.num_ops == len(boxes(shown))
    widths = [float(width) for width in re.findall(r"<rect class=p\w x=\S+ y=\S+ width=(\S+)", drawn)]
    across = float(re.search(r"<rect class=idle x=\S+ y=\S+ width=(\S+)", drawn)[1])
    shares = bubble_shares(shown)
    # What is drawn of the devices' time and the bubbles are all of it, but for actions too short to see.
    assert sum(widths) / across == pytest.approx(sum(1 - share for share in shares), abs=0.02)
    assert drawn.count("forward pass of stage 2, microbatch 5") == 1


def test_a_page_has_the_picture_only_of_a_pipeline(tmp_path: Path) -> None:
    found = judged("1f1b", 4)
    result = replayed(found.problem, found.plan)
    assert "<h2 id=pipeline-title>" in report_page(result, explain(result, seconds=0.1))
    plot_pipeline(tmp_path / "pipeline.svg", Schedule.of(result.problem, result.plan, result.timeline))
    assert (tmp_path / "pipeline.svg").stat().st_size > 1000
    result = plan_pipeline(pipeline_problem(4, 4), 4, Budget(None, 8)).result
    assert "--microbatches 4" in report_page(result, explain(result, seconds=0.1))
    problem = price(training_like(40), "2xp100-pcie")
    other = replayed(problem, Plan.of(problem, [0] * problem.num_ops))
    schedule = Schedule.of(other.problem, other.plan, other.timeline)
    assert section(schedule) == ""
    with pytest.raises(InvalidSetting, match="no pipeline"):
        plot_pipeline(tmp_path / "other.svg", schedule)
