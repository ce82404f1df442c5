"""A plugin of pytest for `mutants.py`: of each test, the functions of loadmaster that it ran, its seconds and its end.

    MUTANTS_MAP=map.jsonl MUTANTS_SOURCE=src/loadmaster python -m pytest -p mutants_watch tests/unit/search

A line of JSON a test, written when it ends, so that a killed run has told of all before. A test that takes longer than
MUTANTS_LIMIT seconds is ended, and the process with it, since what was cut off may be left in pieces; run again, it
goes on after the tests that the map has. A test that fails for want of a package is "missing". What a file's fixtures
and imports run counts for each of its tests.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from types import CodeType, FrameType
from typing import Any

import pytest

SOURCE = str(Path(os.environ["MUTANTS_SOURCE"]).resolve()) + os.sep
LIMIT_S = float(os.environ.get("MUTANTS_LIMIT", "20"))
AGAIN = 9  # exit status: a test was cut off, there are more
SHARD, SHARDS = (int(part) for part in os.environ.get("MUTANTS_SHARD", "0/1").split("/"))


class TookTooLong(BaseException):
    """Nothing that a test catches."""


class Watch:
    """Functions that have begun since the last look."""

    def __init__(self) -> None:
        self.codes: set[CodeType] = set()
        if sys.version_info >= (3, 12):
            self.monitoring = sys.monitoring
            self.monitoring.use_tool_id(self.monitoring.PROFILER_ID, "mutants")
            self.monitoring.register_callback(
                self.monitoring.PROFILER_ID, self.monitoring.events.PY_START, self._started
            )
            self.monitoring.set_events(self.monitoring.PROFILER_ID, self.monitoring.events.PY_START)
        else:
            threading.setprofile(self._profiled)
            sys.setprofile(self._profiled)

    def _started(self, code: CodeType, _: int) -> Any:
        if code.co_filename.startswith(SOURCE):
            self.codes.add(code)
        return self.monitoring.DISABLE  # until the next look

    def _profiled(self, frame: FrameType, event: str, _: Any) -> None:
        if event == "call" and SOURCE and frame.f_code.co_filename.startswith(SOURCE):
            self.codes.add(frame.f_code)

    def take(self) -> set[str]:
        """Their names, "search/search.py:Search.score"; what is within a function counts as that function."""
        found = {
            f"{code.co_filename.removeprefix(SOURCE)}:{code.co_qualname.partition('.<locals>')[0]}"
            for code in self.codes
        }
        self.codes.clear()
        if sys.version_info >= (3, 12):
            self.monitoring.restart_events()
        return found


WATCH = Watch()
OF_FILE: dict[str, set[str]] = {}
OUTCOMES: dict[str, str] = {}
BEGUN: dict[str, float] = {}


def _limited() -> Iterator[None]:
    def end(*_: object) -> None:
        raise TookTooLong(f"longer than {LIMIT_S} s")

    signal.signal(signal.SIGALRM, end)
    signal.setitimer(signal.ITIMER_REAL, LIMIT_S, 5.0)  # again where it was raised in something that hides it
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    with open(os.environ["MUTANTS_MAP"], "a+", encoding="utf-8") as kept:
        kept.seek(0)
        told = {json.loads(line)["test"] for line in kept}
    items[:] = [item for item in items[SHARD::SHARDS] if item.nodeid not in told]
    everywhere = WATCH.take()
    for item in items:
        OF_FILE.setdefault(item.nodeid.partition("::")[0], set()).update(everywhere)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_setup(item: pytest.Item) -> Iterator[None]:
    BEGUN[item.nodeid] = time.perf_counter()
    WATCH.take()
    yield from _limited()
    OF_FILE.setdefault(item.nodeid.partition("::")[0], set()).update(WATCH.take())


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call() -> Iterator[None]:
    yield from _limited()


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    if report.failed and "TookTooLong" in str(report.longrepr):
        OUTCOMES[report.nodeid] = "slow"
    elif report.failed:
        needs = any(word in str(report.longrepr) for word in ("MissingExtra", "ModuleNotFoundError", "MissingPackage"))
        OUTCOMES[report.nodeid] = "missing" if needs else "failed"
    else:
        OUTCOMES.setdefault(report.nodeid, report.outcome)
    if report.when == "teardown":
        ran = WATCH.take() | OF_FILE.get(report.nodeid.partition("::")[0], set())
        row = {
            "test": report.nodeid,
            "outcome": OUTCOMES[report.nodeid],
            "seconds": round(time.perf_counter() - BEGUN.get(report.nodeid, time.perf_counter()), 3),
            "functions": sorted(ran),
        }
        with open(os.environ["MUTANTS_MAP"], "a", encoding="utf-8") as out:
            out.write(json.dumps(row) + "\n")
        if OUTCOMES[report.nodeid] == "slow":
            os._exit(AGAIN)
