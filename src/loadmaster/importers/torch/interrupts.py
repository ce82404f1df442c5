"""Ctrl-C while a step is traced.

Torch puts its modes away and back around every op. A KeyboardInterrupt in between leaves it with one mode too many, and
its C++ ends the process. So an interrupt waits for the next layer, or for the end of the trace; a second one does not.
"""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any

_waiting: list[tuple[int, FrameType | None]] = []
_handlers: list[Any] = []


@contextmanager
def waiting_interrupts() -> Iterator[None]:
    """While it is entered, an interrupt waits for `interrupt_if_asked`, or for the end."""
    handler = signal.getsignal(signal.SIGINT)
    if _handlers or not callable(handler) or threading.current_thread() is not threading.main_thread():
        yield
        return
    _handlers.append(handler)
    signal.signal(signal.SIGINT, _wait)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, _handlers.pop())
        asked, _waiting[:] = _waiting[:], []
        if asked:
            handler(*asked[0])


def _wait(number: int, frame: FrameType | None) -> None:
    if _waiting:
        _handlers[-1](number, frame)
    _waiting.append((number, frame))


def interrupt_if_asked() -> None:
    """Between two ops."""
    if _waiting and _handlers:
        asked, _waiting[:] = _waiting[:], []
        _handlers[-1](*asked[0])
