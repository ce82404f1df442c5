"""The clock of compiling: how long it has taken so far, and who wants to know when it begins.

Budgets of seconds leave that time out (`search.search`), and a terminal says that code is being compiled when it is.
"""

from __future__ import annotations

import gc
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager


class Clock:
    """Seconds in which some thread compiled or loaded, and who wants to know when compiling begins.

    Meanwhile no garbage is collected: compilers make millions of small objects that live until they are done, and
    looking through them again and again takes a tenth of the time."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.depth, self.since, self.total = 0, 0.0, 0.0
        self.collects = False
        self.listeners: list[Callable[[], None]] = []

    def __enter__(self) -> None:
        with self.lock:
            if self.depth == 0:
                self.since, self.collects = time.perf_counter(), gc.isenabled()
                gc.disable()
            self.depth += 1

    def __exit__(self, *_: object) -> None:
        with self.lock:
            self.depth -= 1
            if self.depth == 0:
                self.total += time.perf_counter() - self.since
                if self.collects:
                    gc.enable()

    @property
    def seconds(self) -> float:
        with self.lock:
            return self.total + (time.perf_counter() - self.since if self.depth else 0.0)


CLOCK = Clock()


def seconds_compiling() -> float:
    """How long this process has been making or loading compiled code so far."""
    return CLOCK.seconds


@contextmanager
def telling(listener: Callable[[], None]) -> Iterator[None]:
    """Within the block the listener is called whenever something is not in the cache and has to be compiled."""
    CLOCK.listeners.append(listener)
    try:
        yield
    finally:
        CLOCK.listeners.remove(listener)
