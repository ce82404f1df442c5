"""The screen of a terminal, or what is piped; apart from `terminal`, so that what shows little imports little."""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import Any

from rich.console import Console, ConsoleOptions, RenderHook
from rich.segment import Segment

from loadmaster.errors import printable

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
