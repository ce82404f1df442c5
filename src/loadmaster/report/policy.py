"""What a learned policy says of a problem, in words and as a figure, from the data of `learn.regal2020.summary`."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from loadmaster.report.grids import Grid, Section, section_text
from loadmaster.report.plot import blank_figure, save_figure
from loadmaster.report.units import size_text

MEASURES = {
    "nbytes": "bytes made and workspace",
    "resident_bytes": "weights and inputs read",
    "fan_out": "fan-out",
    "depth": "depth",
    "mirror": "mirrored place",
}
ACTIONS = {"lean": "device", "shift": "order", "variance": "variance", "doubt": "doubt"}
DRAWN = ("nbytes", "fan_out", "depth", "mirror")
TITLES = {
    "nbytes": "bytes made and workspace",
    "fan_out": "fan-out (ops that wait)",
    "depth": "depth (ops before it)",
    "mirror": "mirrored place",
}
_SCALES = {"nbytes": (1024, 32), "fan_out": (1, 2)}  # logarithmic from the first number on; a tick at every so many
MOST_DOUBTS = 8  # the heaviest; more are no help to a reader


def policy_text(said: Mapping[str, Any]) -> str:
    """What a policy says of a problem, for a terminal."""
    section = reasons_section(said) if "reasons" in said else policy_section(said)
    return section_text(section) + "\n"


def reasons_section(said: Mapping[str, Any]) -> Section:
    """Why a policy puts groups of ops where it does, from `papers.explaining`: what moved each decision, and a test."""
    each = ", ".join(f"{name} {count:,}" for name, count in zip(said["devices"], said["ops"], strict=True))
    told = [f"Ops on each device: {each}."]
    if not said["tested"]:
        told.append("It puts all ops alike: no feature of one moves its decision.")
        return Section(f"Why {said['policy']} decides so", tuple(told), ())
    told.append(
        f"Changing what is named moves the decision of {said['held']} of {said['tested']} groups, with features of a "
        "group that was not asked before."
    )
    head = ("group of", "ops", "device", "because of its", "with another's")
    rows = tuple(
        (
            reason["op"],
            f"{reason['ops']:,}",
            reason["device"],
            ", ".join(reason["because"]) or "none of its features",
            reason["instead"] if reason["holds"] else "stays",
        )
        for reason in said["reasons"][:MOST_DOUBTS]
    )
    return Section(
        f"Why {said['policy']} decides so", tuple(told), (Grid("The longest first", head, rows, frozenset((1,))),)
    )


def policy_section(said: Mapping[str, Any]) -> Section:
    """What a policy says, in short: its choices, what its action goes with, where it is unsure."""
    grids = [_choice_grid(said), _relation_grid(said), *([_doubt_grid(said)] if said["unsure"] else [])]
    return Section(f"What the policy {Path(said['policy']).stem} says", tuple(_sentences(said)), tuple(grids))


def _sentences(said: Mapping[str, Any]) -> list[str]:
    likeliest = np.array(said["ops"]["chance"]).argmax(axis=1)
    counts = np.bincount(likeliest, minlength=len(said["devices"])).tolist()
    each = ", ".join(f"{name} {count:,}" for name, count in zip(said["devices"], counts, strict=True))
    total = len(likeliest)
    share = f"{100 * said['unsure_bytes']:.1f} % of their bytes"
    found = [
        f"Ops whose likeliest device it is: {each}.",
        f"It is unsure of the device of {said['unsure_ops']:,} of {total:,} ops, {share}.",
    ]
    if (best := _best_relation(said, "lean")) is not None:
        found.append(f"Its device goes most with {MEASURES[best['measure']]}: {_bins_text(best)}.")
    if (agreed := said["agreement"]) is not None:
        parts = f"{100 * agreed['ops']:.1f} % of the ops, {100 * agreed['nbytes']:.1f} % of the bytes"
        found.append(f"The plan runs where it finds likeliest: {parts}.")
    return found


def _best_relation(said: Mapping[str, Any], action: str) -> Mapping[str, Any] | None:
    rows = [row for row in said["relations"] if row["action"] == action and row["explained"] is not None]
    return max(rows, key=lambda row: float(row["explained"]), default=None)


def _bins_text(row: Mapping[str, Any]) -> str:
    """The means of the bins, from low to high."""
    means = " ".join(f"{part['mean']:.2f}" for part in row["bins"])
    return f"{means} from low to high (0: first device, 1: last)"


def _choice_grid(said: Mapping[str, Any]) -> Grid:
    rows = tuple((row["name"], row["words"], f"{100 * row['chance']:.0f} %") for row in said["choices"])
    return Grid("Chosen for the whole graph", ("choice", "", "sure"), rows, frozenset((2,)))


def _relation_grid(said: Mapping[str, Any]) -> Grid:
    """Rank correlation, and the share of the action's variance between bins of the measure."""
    found = {(row["measure"], row["action"]): row for row in said["relations"]}
    actions = [action for action in ACTIONS if any(found[measure, action]["explained"] for measure in MEASURES)]
    head = ["action against", *(word for action in actions for word in (ACTIONS[action], "explains"))]
    rows = []
    for measure, title in MEASURES.items():
        cells = [title]
        for action in actions:
            row = found[measure, action]
            cells += [_number(row["correlation"], "+.2f", 1), _number(row["explained"], ".0f", 100, " %")]
        rows.append(tuple(cells))
    title = "Rank correlation with each action, and how much of the action it explains"
    return Grid(title, tuple(head), tuple(rows), frozenset(range(1, len(head))))


def _number(value: float | None, form: str, scale: float, unit: str = "") -> str:
    return "-" if value is None else f"{scale * value:{form}}{unit}"


def _doubt_grid(said: Mapping[str, Any]) -> Grid:
    head = ("op", "module", "bytes", "depth", "likeliest", "chance")
    rows = tuple(
        (
            row["op"],
            row["scope"],
            size_text(row["nbytes"]),
            f"{row['depth']:,}",
            row["device"],
            f"{100 * row['chance']:.0f} %",
        )
        for row in said["unsure"][:MOST_DOUBTS]
    )
    return Grid("Unsure of, the heaviest first", head, rows, frozenset((2, 3, 5)))


# The figure


def plot_policy(path: str | Path, said: Mapping[str, Any]) -> None:
    """Each op as a dot, the action against bytes, fan-out, depth and mirrored place; colour: how unsure it is."""
    rows = [("lean", _lean_title(said)), ("shift", "learned order: place less\nthat in the program")]
    if np.ptp(said["ops"]["variance"]) > 0:
        rows.append(("variance", "variance of affinities\n(share of the most)"))
    figure = blank_figure(path, (10.0, 0.9 + 2.1 * len(rows)))
    axes = figure.subplots(len(rows), len(DRAWN), squeeze=False, sharex="col", sharey="row")
    for row, (action, title) in zip(axes, rows, strict=True):
        for axis, measure in zip(row, DRAWN, strict=True):
            dots = _draw(axis, said, measure, action)
        row[0].set_ylabel(title, fontsize=8)
    for axis, measure in zip(axes[-1], DRAWN, strict=True):
        axis.set_xlabel(TITLES[measure], fontsize=8)
    bar = figure.colorbar(dots, ax=axes, shrink=0.8, aspect=30, pad=0.01)
    bar.set_label("doubt: entropy of the chances\n0 sure, 1 even", fontsize=8)
    bar.ax.tick_params(labelsize=7)
    where = f"{said['graph']} on cluster {said['cluster']}, objective {said['objective']}"
    figure.suptitle(f"What the policy {Path(said['policy']).stem} does with {where}: a dot for each op", fontsize=9)
    figure.legend(
        *axes[0, 0].get_legend_handles_labels(), frameon=False, fontsize=7, loc="outside lower center", ncols=2
    )
    save_figure(figure, path)


def _lean_title(said: Mapping[str, Any]) -> str:
    names = said["first_to_last"]
    return f"chance of {names[-1]}" if len(names) == 2 else f"device: 0 {names[0]},\n1 {names[-1]}"


def _draw(axis: Any, said: Mapping[str, Any], measure: str, action: str) -> Any:
    columns, row = said["ops"], _relation(said, measure, action)
    across = _spread(columns[measure], measure)
    axis.axhline({"lean": 0.5, "shift": 0.0}.get(action, np.nan), color="#999999", linewidth=0.6, zorder=0)
    dots = axis.scatter(
        across, columns[action], c=columns["doubt"], cmap="viridis", vmin=0, vmax=1, s=7, alpha=0.6, linewidths=0
    )
    middles = _middles(columns[measure], row["bins"])
    axis.plot(
        middles,
        [part["mean"] for part in row["bins"]],
        color="black",
        linewidth=1.4,
        label="mean by bins",
    )
    if action == "lean":
        pull = _bin_means(columns[measure], columns["pull"], row["bins"])
        axis.plot(middles, pull, color="#d55e00", linewidth=1.2, linestyle="--", label="mean affinity given to BRKGA")
        axis.set_ylim(0, 1)
    _note(axis, row)
    if measure in _SCALES:
        least, factor = _SCALES[measure]
        axis.set_xscale("symlog", base=2, linthresh=least, linscale=2)
        ticks = _ticks(max(columns[measure]), least, factor)
        axis.set_xticks(ticks, [_tick_text(tick) for tick in ticks])
    axis.minorticks_off()
    axis.spines[["top", "right"]].set_visible(False)
    axis.tick_params(labelsize=7)
    return dots


def _ticks(most: float, least: int, factor: int) -> list[int]:
    ticks = [0, least]
    while ticks[-1] * factor <= most:
        ticks.append(ticks[-1] * factor)
    return ticks


def _tick_text(tick: int) -> str:
    return re.sub(r"\.0+(?= )", "", size_text(tick)).removesuffix(" B")


def _note(axis: Any, row: Mapping[str, Any]) -> None:
    if row["explained"] is not None:
        rank = "" if row["correlation"] is None else f"rank {row['correlation']:+.2f}, "
        text = f"{rank}explains {100 * row['explained']:.0f} %"
        axis.set_title(text, fontsize=7, loc="right", pad=2)


def _relation(said: Mapping[str, Any], measure: str, action: str) -> Mapping[str, Any]:
    rows: Sequence[Mapping[str, Any]] = said["relations"]
    return next(row for row in rows if (row["measure"], row["action"]) == (measure, action))


def _spread(column: Sequence[float], measure: str) -> Any:
    """Whole small numbers are moved a little, the same way every time, so that dots do not hide each other."""
    values = np.array(column, np.float64)
    if measure != "fan_out":
        return values
    return values + 0.3 * np.maximum(values, 1) * (np.arange(len(values)) * 0.618 % 1 - 0.5)


def _members(column: Sequence[float], bins: Sequence[Mapping[str, Any]]) -> list[Any]:
    values = np.array(column, np.float64)
    return [(values >= part["low"] - 1e-6) & (values <= part["high"] + 1e-6) for part in bins]


def _middles(column: Sequence[float], bins: Sequence[Mapping[str, Any]]) -> list[float]:
    values = np.array(column, np.float64)
    return [float(np.median(values[member])) for member in _members(column, bins)]


def _bin_means(column: Sequence[float], along: Sequence[float], bins: Sequence[Mapping[str, Any]]) -> list[float]:
    values = np.array(along, np.float64)
    return [float(values[member].mean()) for member in _members(column, bins)]
