"""Figures as PNG, SVG or PDF, and bars that compare methods. Needs matplotlib."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from loadmaster.errors import InvalidSetting, MissingExtra
from loadmaster.files.writing import writing

SUFFIXES = (".png", ".svg", ".pdf")
# Okabe and Ito (2008): eight colours that stay apart for colour-blind readers, and greys for what is left.
PALETTE = ("#0072b2", "#e69f00", "#009e73", "#cc79a7", "#56b4e9", "#d55e00", "#f0e442", "#999999", "#444444", "#bbbbbb")
WIDTH_IN = 7.0  # of a page


def plot_methods(path: str | Path, documents: Sequence[Mapping[str, Any]]) -> None:
    """Bars of comparisons (what `loadmaster compare --json` prints), a group per model: step over the lower bound."""
    for document in documents:
        _check_comparison(document, str(path))
    models = [str(document["graph"]["name"]) for document in documents]
    methods = list(dict.fromkeys(_method_of(row) for document in documents for row in document["methods"]))
    if not methods:
        raise InvalidSetting(
            "there is nothing to plot", str(path), "give the JSON that 'loadmaster compare --json' prints"
        )
    figure = blank_figure(path, (WIDTH_IN, 2.8))
    axis = figure.subplots()
    width = 0.8 / len(methods)
    for number, method in enumerate(methods):
        heights = [_ratio(document, method) for document in documents]
        where = np.arange(len(models)) + (number - (len(methods) - 1) / 2) * width
        axis.bar(where, heights, width * 0.92, label=method, color=PALETTE[number % len(PALETTE)])
    axis.axhline(1.0, color="black", linewidth=0.8)
    axis.set_xticks(range(len(models)), models)
    axis.set_ylabel("step over the lower bound", fontsize=8)
    axis.legend(frameon=False, fontsize=7, ncols=min(4, len(methods)))
    axis.spines[["top", "right"]].set_visible(False)
    axis.tick_params(labelsize=7)
    save_figure(figure, path)


def _check_comparison(document: Mapping[str, Any], where: str) -> None:
    """Refuses what `compare --json` cannot have printed."""
    fix = "give the JSON that 'loadmaster compare --json' prints, as it was printed"
    graph, rows = document.get("graph"), document.get("methods")
    if not isinstance(graph, dict) or not isinstance(graph.get("name"), str) or not isinstance(rows, list):
        raise InvalidSetting("a comparison has no graph with a name, or no list of methods", where, fix)
    for row in rows:
        sound = isinstance(row, dict) and isinstance(_method_of(row), str)
        if not sound or not all(_is_number(row.get(key)) for key in ("lower_bound", "gap")):
            raise InvalidSetting("a method of a comparison has no name, lower_bound or gap", where, fix)


def _method_of(row: Mapping[str, Any]) -> Any:
    """The name in a row, which once was under "optimizer"."""
    return row.get("method", row.get("optimizer"))


def _is_number(value: Any) -> bool:
    return value is None or (type(value) in (int, float) and abs(value) < 1e300)


def _ratio(document: Mapping[str, Any], method: str) -> float:
    """Not a number for a method that was not run, or whose plan does not fit."""
    for row in document["methods"]:
        if _method_of(row) == method and row.get("fits", True) and row.get("lower_bound"):
            return float("nan") if row.get("gap") is None else float(row["gap"]) + 1
    return float("nan")


def blank_figure(path: str | Path, size: tuple[float, float]) -> Any:
    """An empty figure; refused where the file is of no kind that can be written."""
    if Path(path).suffix.lower() not in SUFFIXES:
        raise InvalidSetting(
            f"'{path}' is not a kind of figure that can be written", "", f"end its name in {', '.join(SUFFIXES)}"
        )
    try:
        from matplotlib.figure import Figure
    except ImportError:
        raise MissingExtra.of("matplotlib", "plot", "plotting") from None
    return Figure(figsize=size, layout="constrained")


def save_figure(figure: Any, path: str | Path) -> None:
    """Writes it in the format that the name asks for; the same plan gives the same bytes."""
    import matplotlib

    # Without dates and random names, the same plan gives the same file.
    with matplotlib.rc_context({"svg.hashsalt": "loadmaster", "svg.fonttype": "none"}):
        is_svg = Path(path).suffix.lower() == ".svg"
        with writing(path) as part:
            figure.savefig(part, dpi=200, metadata={"Date": None} if is_svg else None)
