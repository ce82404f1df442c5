"""The classical picture of a pipeline: a row for each device, a box for each action with the number of its microbatch,
coloured by phase, and bubbles where nothing is done. As SVG for the page, and for figures of papers."""

from __future__ import annotations

from dataclasses import dataclass
from html import escape
from pathlib import Path
from typing import Any

import numpy as np

from loadmaster.errors import InvalidSetting
from loadmaster.pipelines.microbatches import Action, parse_action
from loadmaster.pipelines.stages import BACKWARD, FORWARD, LETTERS, REDUCE, UPDATE, WEIGHT
from loadmaster.report.plot import WIDTH_IN, blank_figure, save_figure
from loadmaster.report.schedule import Schedule
from loadmaster.report.units import time_text

NAMES = {
    FORWARD: "forward pass",
    BACKWARD: "backward pass",
    WEIGHT: "gradients of weights",
    REDUCE: "sum over replicas",
    UPDATE: "update",
}
PAPER = {FORWARD: "#56b4e9", BACKWARD: "#e69f00", WEIGHT: "#009e73", REDUCE: "#cc79a7", UPDATE: "#999999"}
_INK = {FORWARD: "#00314f", BACKWARD: "#4a3200", WEIGHT: "#00281c", REDUCE: "#3d1529", UPDATE: "#222222"}
WIDTH, LEFT, RIGHT, ROW, GAP = 1296.0, 150.0, 60.0, 30.0, 6.0  # of the page's picture, in its own units
_DIGIT = 7.0  # wide in that picture


@dataclass(frozen=True)
class Box:
    """An action on its device.

    Attributes:
        action: phase, stage and microbatch.
        device: its number.
        start_ns, end_ns: in the step.
    """

    action: Action
    device: int
    start_ns: int
    end_ns: int

    @property
    def label(self) -> str:
        return str(self.action.microbatch) if self.action.phase in (FORWARD, BACKWARD, WEIGHT) else ""

    @property
    def told(self) -> str:
        number = f", microbatch {self.action.microbatch}" if self.label else ""
        took = time_text(self.end_ns - self.start_ns)
        return (
            f"{NAMES[self.action.phase]} of stage {self.action.stage}{number}: {took} from {time_text(self.start_ns)}"
        )


def is_pipeline(schedule: Schedule) -> bool:
    """Whether the plan is one of microbatches in stages."""
    return bool(schedule.problem.num_ops) and all(kind.startswith("stage.") for kind in schedule.problem.graph.kind)


def boxes(schedule: Schedule) -> list[Box]:
    """Of a pipeline, by device and time."""
    names = schedule.problem.graph.op_name
    columns = zip(schedule.device.tolist(), schedule.start_ns.tolist(), schedule.end_ns.tolist(), strict=True)
    found = [Box(parse_action(name), *where) for name, where in zip(names, columns, strict=True)]
    return sorted(found, key=lambda box: (box.device, box.start_ns, box.end_ns))


def bubble_shares(schedule: Schedule) -> list[float]:
    """[devices] of the step in which the device does nothing."""
    busy = np.zeros(schedule.num_devices)
    np.add.at(busy, schedule.device, schedule.end_ns - schedule.start_ns)
    return [float(1 - ns / max(1, schedule.step_ns)) for ns in busy]


# On the page


def section(schedule: Schedule) -> str:
    """The part of the page with the picture; nothing for a plan that is no pipeline."""
    if not is_pipeline(schedule):
        return ""
    phases = sorted({box.action.phase for box in boxes(schedule)}, key=list(NAMES).index)
    keys = "".join(f"<span><b class=p{LETTERS[phase]}></b><i>{NAMES[phase]}</i></span>" for phase in phases)
    mean = sum(bubble_shares(schedule)) / schedule.num_devices
    several = " Later stages of a device are paler." if any(v < 1 for v in _paleness(boxes(schedule)).values()) else ""
    said = f"Bubbles are {100 * mean:.0f} % of the devices' time; on the right, of each device's."
    return (
        "<section id=pipeline aria-labelledby=pipeline-title><h2 id=pipeline-title>Pipeline</h2>"
        f"<div class=legend>{keys}</div><div class='canvas pipeline'>{_svg(schedule)}</div>"
        f"<p class=hint>Numbers are microbatches.{several} {said}</p></section>"
    )


def _svg(schedule: Schedule) -> str:
    scale = (WIDTH - LEFT - RIGHT) / max(1, schedule.step_ns)
    height = GAP + schedule.num_devices * (ROW + GAP)
    parts = [
        f"<svg viewBox='0 0 {WIDTH:.0f} {height:.0f}' width='100%' role=img aria-label='Pipeline of microbatches'>"
    ]
    for device, name in enumerate(schedule.problem.cluster.device_names):
        top = GAP + device * (ROW + GAP)
        share = f"{100 * bubble_shares(schedule)[device]:.0f} %"
        parts.append(f"<text x=8 y={top + ROW / 2 + 4:.1f}>{escape(name[:22])}</text>")
        parts.append(f"<rect class=idle x={LEFT} y={top} width={WIDTH - LEFT - RIGHT:.1f} height={ROW} />")
        parts.append(f"<text class=small x={WIDTH - 8} y={top + ROW / 2 + 4:.1f} text-anchor=end>{share}</text>")
    found = boxes(schedule)
    pale = _paleness(found)
    parts += [_box(box, scale, pale[box.device, box.action.stage]) for box in found]
    return "".join([*parts, "</svg>"])


def _paleness(found: list[Box]) -> dict[tuple[int, int], float]:
    """(device, stage) -> how strongly it is drawn: of several stages of a device, later ones paler."""
    stages: dict[int, list[int]] = {}
    for box in found:
        stages.setdefault(box.device, []).append(box.action.stage)
    numbered = {device: sorted(set(own)) for device, own in stages.items()}
    return {
        (d, stage): 1 - 0.4 * at / max(1, len(own) - 1) for d, own in numbered.items() for at, stage in enumerate(own)
    }


def _box(box: Box, scale: float, strong: float) -> str:
    x, top = LEFT + box.start_ns * scale, GAP + box.device * (ROW + GAP)
    width = max(0.4, (box.end_ns - box.start_ns) * scale)
    size = f"x={x:.2f} y={top} width={width:.2f} height={ROW}"
    drawn = f"<rect class=p{LETTERS[box.action.phase]} {size} fill-opacity={strong:.2f} />"
    if box.label and width > _DIGIT * len(box.label) + 3:
        drawn += f"<text class=number x={x + width / 2:.2f} y={top + ROW / 2 + 4:.1f}>{box.label}</text>"
    return f"<g><title>{escape(box.told)}</title>{drawn}</g>"


# For papers


def plot_pipeline(path: str | Path, schedule: Schedule) -> None:
    """The picture as a figure."""
    if not is_pipeline(schedule):
        raise InvalidSetting("the plan is no pipeline", "--what", "plan with --microbatches, or plot its timeline")
    figure = blank_figure(path, (WIDTH_IN, 0.7 + 0.34 * schedule.num_devices))
    axis = figure.subplots()
    found = boxes(schedule)
    for box in found:
        _draw(axis, box, schedule.step_ns)
    axis.set_xlim(0, schedule.step_ns / 1e6)
    axis.set_ylim(schedule.num_devices - 0.5, -0.5)
    axis.set_yticks(range(schedule.num_devices), schedule.problem.cluster.device_names, fontsize=7)
    axis.tick_params(axis="x", labelsize=7)
    axis.set_xlabel("time (ms)", fontsize=8)
    axis.spines[["top", "right"]].set_visible(False)
    for phase in sorted({box.action.phase for box in found}, key=list(NAMES).index):
        axis.barh([0], [0], color=PAPER[phase], label=NAMES[phase])
    axis.legend(frameon=False, fontsize=7, ncols=5, loc="lower center", bbox_to_anchor=(0.5, 1.0))
    save_figure(figure, path)


def _draw(axis: Any, box: Box, step_ns: int) -> None:
    left, width = box.start_ns / 1e6, (box.end_ns - box.start_ns) / 1e6
    colour = PAPER[box.action.phase]
    axis.barh([box.device], [width], left=left, height=0.82, color=colour, edgecolor="white", linewidth=0.3)
    if box.label and width > 0.012 * len(box.label) * step_ns / 1e6:
        middle = left + width / 2
        axis.text(middle, box.device, box.label, ha="center", va="center", fontsize=5, color=_INK[box.action.phase])
