"""What every plan shows on a terminal, or in what is piped: progress, notes on the model, the answers.

Tables are in `terminal`, so that what shows little imports little.
"""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from rich.console import Console, ConsoleOptions, RenderHook
from rich.progress import BarColumn, Progress, SpinnerColumn, TextColumn, TimeElapsedColumn
from rich.segment import Segment
from rich.text import Text

from loadmaster.errors import printable
from loadmaster.graph import Graph
from loadmaster.graph.assumptions import assumptions_of
from loadmaster.report.units import size_text, value_text
from loadmaster.search import WORST, Score, Search

PIPED_WIDTH = 160  # wide enough that no cell is cut when nobody looks at a window


class _Printable(RenderHook):
    """Spells out control characters in all that is shown, before colours are added."""

    def process_renderables(self, renderables: list[Any]) -> list[Any]:
        return [_Spelled(renderable) for renderable in renderables]


class _Spelled:
    def __init__(self, inner: Any) -> None:
        self.inner = inner

    def __rich_console__(self, screen: Console, options: ConsoleOptions) -> Iterator[Segment]:
        for segment in screen.render(self.inner, options):
            yield segment if segment.control else Segment(printable(segment.text), segment.style)


def console(*, stderr: bool = False) -> Console:
    """Coloured on a terminal unless NO_COLOR is set, plain elsewhere."""
    # Square brackets are never markup: specs have them.
    plain: dict[str, Any] = {"stderr": stderr, "highlight": False, "markup": False, "emoji": False}
    screen = Console(**plain)
    if not screen.is_terminal and "COLUMNS" not in os.environ:
        screen = Console(**plain, width=PIPED_WIDTH)
    screen.push_render_hook(_Printable())
    return screen


def model_notes(source: Graph) -> list[str]:
    """What a reader must know of a model before its plan: what is assumed of it, and how it was captured."""
    notes = [str(guessed)] if (guessed := assumptions_of(source)) else []
    if "mode" in source.captured:
        notes.append(f"captured: {capture_text(source.captured)}")
    return notes


def capture_text(captured: Mapping[str, Any]) -> str:
    """How a torch model was captured, in words: what nobody said was assumed."""
    step = f"training with {captured['optimizer']}" if captured["mode"] == "train" else "inference"
    inputs = ", ".join(f"{i['name']} {i['dtype']}{i['shape']}" for i in captured["inputs"])
    kernels = ", as a GPU runs it" if captured.get("gpu") else ""
    return f"{step}, {inputs or 'no inputs'}, torch {captured['torch']}{kernels}"


def report_text(text: str) -> Text:
    """A report with its answers set off."""
    shown = Text(text.rstrip("\n"))
    shown.highlight_regex(r"(?m)^(Plan|Limit|Memory|Next) ", "bold")
    shown.highlight_words(["it fits"], "green")
    shown.highlight_words(["does not fit"], "red")
    return shown


@contextmanager
def solving(label: str, later_s: float = 0.0) -> Iterator[Callable[[Search], None] | None]:
    """Shows how a search goes, on stderr. Gives the listener for `solve`, none when that is no terminal. `later_s`:
    what comes after it takes about that long."""
    screen = console(stderr=True)
    if not screen.is_terminal:
        yield None
        return
    columns = (
        SpinnerColumn(),
        TextColumn("{task.description}"),
        BarColumn(bar_width=24),
        TextColumn("{task.fields[state]}"),
        TimeElapsedColumn(),
    )
    with Progress(*columns, console=screen, transient=True) as progress:
        task = progress.add_task(label, total=1.0, state="starting")
        best = WORST

        def listen(search: Search) -> None:
            nonlocal best
            best = min(best, search.best_score)  # searches within a search begin anew; the best is what there is
            progress.update(task, completed=search.progress, state=_state(search, best, later_s))

        yield listen


def _state(search: Search, best: Score, later_s: float) -> str:
    parts = [f"{search.simulations:,} simulations"]
    if best != WORST:
        shown = value_text(search.problem.objective)(best.value)
        parts.insert(0, f"best {shown}" if not best.over_bytes else f"best is {size_text(best.over_bytes)} over")
    if math.isfinite(search.seconds_left):
        parts.append(f"about {search.seconds_left + later_s:.0f} s left")
    return ", ".join([*parts, search.note] if search.note else parts)
