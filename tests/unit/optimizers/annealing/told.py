"""Compiled loops as plain Python, with draws that are told."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest


def plain(function: Any) -> Callable[..., Any]:
    """The function as it is written, compiled or not."""
    return getattr(function, "py_func", function)  # type: ignore[no-any-return]


class Draws:
    """What `below` and `length` give, in turn, each of which must be in its range; what they were asked for."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, module: Any, *draws: int) -> None:
        self.left: Iterator[int] = iter(draws)
        self.asked = list[tuple[str, int]]()
        monkeypatch.setattr(module, "below", lambda state, count: self._next("below", int(count), 0))
        if hasattr(module, "length"):
            monkeypatch.setattr(module, "length", lambda state, most: self._next("length", int(most), 1))
        if hasattr(module, "copy"):
            monkeypatch.setattr(module, "copy", copied)

    def _next(self, name: str, most: int, least: int) -> int:
        self.asked.append((name, most))
        drawn = next(self.left)
        assert least <= drawn < most + least
        return drawn

    @property
    def unused(self) -> list[int]:
        return list(self.left)


def copied(source: Any, low: int, high: int, target: Any) -> None:
    target[: high - low] = np.array(source[low:high])
