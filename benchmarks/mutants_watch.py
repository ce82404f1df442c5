"""A plugin of pytest for `mutants.py`: of each test, the functions of loadmaster that it ran, its seconds and its end.

    MUTANTS_MAP=map.jsonl MUTANTS_SOURCE=src/loadmaster python -m pytest -p mutants_watch tests/unit/search

A line of JSON a test, written when it ends, so that a killed run has told of all before. A test that takes longer than
MUTANTS_LIMIT seconds is ended, and the process with it, since what was cut off may be left in pieces; run again, it
goes on after the tests that the map has. A test that fails for want of a package is "missing". What a file's fixtures
and imports run counts for each of its tests.
"""

from __future__ import annotations

import ast
import builtins
import json
import os
import signal
import time
from collections.abc import Iterator
from importlib.machinery import SourceFileLoader
from pathlib import Path
from types import CodeType
from typing import Any

import pytest
from mutants_made import is_marked

SOURCE = str(Path(os.environ["MUTANTS_SOURCE"]).resolve()) + os.sep
LIMIT_S = float(os.environ.get("MUTANTS_LIMIT", "20"))
AGAIN = 9  # exit status: a test was cut off, there are more
SHARD, SHARDS = (int(part) for part in os.environ.get("MUTANTS_SHARD", "0/1").split("/"))
PLAIN = os.environ.get("NUMBA_DISABLE_JIT") == "1"
UNTOLD = "compiled" + os.sep  # what makes compiled code is left as it is


class TookTooLong(BaseException):
    """Nothing that a test catches."""


# Which functions ran

RAN: set[str] = set()
builtins.__mutants_ran__ = RAN.add  # type: ignore[attr-defined]


def telling(tree: ast.Module, file: str) -> ast.Module:
    """The source with a first statement in each function, method and class that says its name, "file:Class.method";
    what is within a function counts as that function. Far quicker than a profiler, which is called for every call."""
    for node in tree.body:
        if isinstance(node, ast.FunctionDef) and (PLAIN or not is_marked(node)):
            _tell(node, f"{file}:{node.name}")
        elif isinstance(node, ast.ClassDef):
            _tell(node, f"{file}:{node.name}")
            for each in node.body:
                if isinstance(each, ast.FunctionDef):
                    _tell(each, f"{file}:{node.name}.{each.name}")
    return tree


def _tell(node: ast.FunctionDef | ast.ClassDef, name: str) -> None:
    words = ast.get_docstring(node, clean=False)
    told = ast.parse(f"__mutants_ran__({name!r})").body[0]
    for part in ast.walk(told):
        ast.copy_location(part, node.body[0])
    node.body.insert(0 if words is None else 1, told)


def _to_code(loader: SourceFileLoader, data: Any, path: Any, *, _optimize: int = -1) -> CodeType:
    tree = ast.parse(data)
    inside = str(path).removeprefix(SOURCE)
    if str(path).startswith(SOURCE) and not inside.startswith(UNTOLD):
        tree = telling(tree, inside)
    return compile(tree, path, "exec", dont_inherit=True, optimize=_optimize)


SourceFileLoader.source_to_code = _to_code  # type: ignore[method-assign,assignment]


def take() -> set[str]:
    """Those that have begun since the last look."""
    found = set(RAN)
    RAN.clear()
    return found


# Tests

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
    everywhere = take()
    for item in items:
        OF_FILE.setdefault(item.nodeid.partition("::")[0], set()).update(everywhere)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_setup(item: pytest.Item) -> Iterator[None]:
    BEGUN[item.nodeid] = time.perf_counter()
    take()
    yield from _limited()
    OF_FILE.setdefault(item.nodeid.partition("::")[0], set()).update(take())


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
        ran = take() | OF_FILE.get(report.nodeid.partition("::")[0], set())
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
