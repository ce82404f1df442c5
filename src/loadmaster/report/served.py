"""What a person reads of plans of whole modules: a page with the tables, and a picture of how splits change."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from html import escape
from importlib import resources
from pathlib import Path
from typing import Any

import numpy as np

from loadmaster import __version__
from loadmaster.files.writing import write_text
from loadmaster.report.grids import Section
from loadmaster.report.html import figure_html, grid_html
from loadmaster.report.modules import colour_of
from loadmaster.report.plot import PALETTE, blank_figure, save_figure

_PAGE = """<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta http-equiv="Content-Security-Policy" content="default-src 'none'; style-src 'unsafe-inline'">
<meta name="color-scheme" content="light dark">
<title>{title}</title>
<style>{style}</style>
</head>
<body>
<header>
  <h1>{title}</h1>
  <p class="subtitle">{subtitle}</p>
  <p class="basis">{basis}</p>
  <dl class="figures">{figures}</dl>
</header>
<main>
{sections}
</main>
<footer><p class="hint">Made with loadmaster {version}.</p></footer>
</body>
</html>
"""
_BAR = 'viewBox="0 0 1000 24" width="100%" height="24" preserveAspectRatio="none"'


@dataclass(frozen=True)
class Strip:
    """A model from its first module to its last, a part for each run of modules with the same fate.

    Attributes:
        parts: (label, device, bytes, whether streamed)
        devices: names, in the order of the cluster.
    """

    parts: tuple[tuple[str, int, int, bool], ...]
    devices: tuple[str, ...]


@dataclass(frozen=True)
class ServedPage:
    """All that the page says.

    Attributes:
        figures: (name, value, note)
    """

    title: str
    subtitle: str
    basis: str
    figures: tuple[tuple[str, str, str], ...]
    strip: Strip
    sections: tuple[Section, ...]


def write_served(path: str | Path, served: ServedPage) -> None:
    """Writes the page: self-contained, without scripts."""
    style = resources.files("loadmaster.report").joinpath("page.css").read_text(encoding="utf-8")
    figures = "".join(figure_html(*figure, over=False) for figure in served.figures)
    parts = [f"<section><h2>Which module runs where</h2>{_strip(served.strip)}</section>"]
    parts += [_section(section) for section in served.sections]
    page = _PAGE.format(
        title=escape(served.title),
        style=style,
        subtitle=escape(served.subtitle),
        basis=escape(served.basis),
        figures=figures,
        sections="\n".join(parts),
        version=__version__,
    )
    write_text(path, page)


def _section(section: Section) -> str:
    words = "".join(f"<p>{escape(sentence)}</p>" for sentence in section.sentences)
    return f"<section><h2>{escape(section.title)}</h2>{words}{''.join(map(grid_html, section.grids))}</section>"


def _strip(strip: Strip) -> str:
    """A bar as wide as the weights, coloured by device, with a legend; streamed parts are paler."""
    total = sum(nbytes for _, _, nbytes, _ in strip.parts) or 1
    at, boxes = 0.0, []
    for label, device, nbytes, streamed in strip.parts:
        width, colour = 1000 * nbytes / total, _colour(device)
        shade = ' fill-opacity="0.45"' if streamed else ""
        title = f"<title>{escape(label)}: {escape(strip.devices[device])}{', streamed' if streamed else ''}</title>"
        boxes.append(f'<rect x="{at:.1f}" y="0" width="{width:.1f}" height="24" fill="{colour}"{shade}>{title}</rect>')
        at += width
    used = sorted({device for _, device, _, _ in strip.parts})
    square = 'width="12" height="12"'
    keys = "".join(
        f'<svg {square}><rect {square} fill="{_colour(d)}"/></svg> {escape(strip.devices[d])} &nbsp; ' for d in used
    )
    return f"<svg {_BAR} role='img' aria-label='Weights by device'>{''.join(boxes)}</svg><p class=hint>{keys}</p>"


def _colour(device: int) -> str:
    return colour_of(device)


@dataclass(frozen=True)
class SplitAtLength:
    """The best split at one length of the context.

    Attributes:
        context: tokens.
        strip: which module is where.
        first_token_ns, per_token_ns: modelled.
        fits: whether it does.
    """

    context: int
    strip: Strip
    first_token_ns: float
    per_token_ns: float
    fits: bool


def plot_sweep(path: str | Path, title: str, columns: Sequence[SplitAtLength]) -> None:
    """Above, the model from its first module (top) to its last at each context, coloured by device and hatched where
    weights are streamed; below, what a token takes. Dashed lines: the split changes."""
    figure = blank_figure(path, (max(5.0, 0.62 * len(columns) + 2.6), 5.0))
    above, below = figure.subplots(2, 1, sharex=True, gridspec_kw={"height_ratios": [2.2, 1]})
    shown: dict[str, Any] = {}
    for at, column in enumerate(columns):
        _draw_column(above, at, column, shown)
    for at in changes(columns):
        for axes in (above, below):
            axes.axvline(at - 0.5, color="black", linewidth=0.9, linestyle="--")
    above.set_ylim(1, 0)
    above.set_ylabel("share of the weights, in model order", fontsize=8)
    above.set_title(title, fontsize=9)
    above.legend(shown.values(), shown.keys(), fontsize=7, frameon=False, loc="upper left", bbox_to_anchor=(1.0, 1.0))
    marks = np.arange(len(columns))
    below.plot(marks, [c.per_token_ns / 1e6 for c in columns], marker="o", color="black", linewidth=1)
    below.set_ylabel("ms a token", fontsize=8)
    below.set_ylim(bottom=0)
    below.set_xticks(marks, [f"{c.context // 1024}k" if c.context % 1024 == 0 else str(c.context) for c in columns])
    below.set_xlabel("prompt (tokens)", fontsize=8)
    for axes in (above, below):
        axes.tick_params(labelsize=8)
    save_figure(figure, path)


def changes(columns: Sequence[SplitAtLength]) -> list[int]:
    """Columns whose split differs from the one before them."""
    return [at for at in range(1, len(columns)) if _fates(columns[at]) != _fates(columns[at - 1])]


def _fates(column: SplitAtLength) -> list[tuple[str, int, bool]]:
    return [(label, device, streamed) for label, device, _, streamed in column.strip.parts]


def _draw_column(axes: Any, at: int, column: SplitAtLength, shown: dict[str, Any]) -> None:
    total, top = sum(nbytes for _, _, nbytes, _ in column.strip.parts) or 1, 0.0
    for _, device, nbytes, streamed in column.strip.parts:
        height, name = nbytes / total, column.strip.devices[device]
        label = f"{name}, streamed" if streamed else name
        bar = axes.bar(
            at,
            height,
            0.86,
            bottom=top,
            color=PALETTE[device % len(PALETTE)],
            alpha=1.0 if column.fits else 0.35,
            hatch="////" if streamed else None,
            edgecolor="white",
            linewidth=0.4,
        )
        shown.setdefault(label, bar)
        top += height
    if not column.fits:
        axes.text(at, 0.5, "does not fit", rotation=90, ha="center", va="center", fontsize=7)
