"""What functions give back while a block runs: of those of each file how often, and a checksum of all that they gave.

Two runs may come to one plan by different ways; what functions give back on the way tells them apart. Of compiled
functions nothing is seen but what those make of it that call them.
"""

from __future__ import annotations

import importlib
import os
import pkgutil
import sys
import zlib
from collections import Counter, defaultdict
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import fields, is_dataclass
from functools import _lru_cache_wrapper, cache
from inspect import CO_GENERATOR, CO_NEWLOCALS
from itertools import count
from pathlib import Path
from types import CodeType, FrameType, SimpleNamespace
from typing import Any
from unittest import mock

import numpy as np

import loadmaster
from loadmaster.compiled import Struct
from loadmaster.optimizers.annealing import chains
from loadmaster.optimizers.lists import rolling
from loadmaster.optimizers.multilevel import multilevel
from loadmaster.problem.bounds import allowed
from loadmaster.search import search

HOME = str(Path(loadmaster.__file__).parent) + "/"
ROOMS = ("optimizers", "passes", "plans", "problem", "simulator")
# Networks, which add up fractions; what depends on packages, threads or the order of sets; what loops work on.
APART = ("optimizers/policy/", "optimizers/exact", "simulator/threads.py", "optimizers/experience/likeness.py")
APART += ("simulator/arenas/scratch.py", "optimizers/fusion/merging.py")
# What every run goes through: a check more there is no other way to a plan, and would change all scenes.
APART += ("plans/plan.py", "problem/problem.py", "simulator/given.py", "simulator/rules.py")
WORKED_ON = ("Scratch", "State", "Tree", "Log", "Columns")  # what loops work on, begun with whatever lay there
FEW = 60  # calls of a function in a block of which all is told; of others, how many there were
DEEP, LONG = 3, 40  # how far what is given back is looked into, and how many of a row

Told = dict[str, list[float]]


class Noted:
    """A checksum of whole numbers and words, and a sum of fractions, whose last digits are the machine's."""

    def __init__(self) -> None:
        self.check, self.sum = 0, 0.0

    def add(self, value: Any, depth: int = DEEP) -> None:
        if value is None or isinstance(value, (bool, int, str, np.integer, np.bool_)):
            self.check = zlib.crc32(str(value).encode(), self.check)
        elif isinstance(value, (float, np.floating)):
            self._fractions(np.array([value]))
        elif isinstance(value, np.ndarray) and value.dtype.kind in "iub":
            self.check = zlib.crc32(np.ascontiguousarray(value).data, self.check)
        elif isinstance(value, np.ndarray) and value.dtype.kind == "f":
            self._fractions(value)
        elif isinstance(value, Struct) or type(value).__name__.endswith(WORKED_ON):
            return
        elif depth and isinstance(value, (tuple, list, dict, set, frozenset)):
            self.check = zlib.crc32(b"%d" % len(value), self.check)
            row = (
                value.items()
                if isinstance(value, dict)
                else sorted(value, key=str)
                if isinstance(value, (set, frozenset))
                else value
            )
            for each in [*row][:LONG]:
                self.add(each, depth - 1)
        elif depth and is_dataclass(value):
            for part in fields(value):
                self.add(getattr(value, part.name, None), depth - 1)

    def _fractions(self, values: np.ndarray) -> None:
        self.sum += float(values[np.abs(values) < 1e18].sum())

    def add_state(self, owner: Any) -> None:
        """What a method left of its object."""
        if not is_dataclass(owner) and not isinstance(owner, tuple):
            for name, value in getattr(owner, "__dict__", {}).items():
                if not name.startswith("_") and not isinstance(value, tuple):
                    self.add(value, 1)


@cache
def _import_all() -> None:
    """What modules do when they are imported is no part of a run."""
    for room in ROOMS:
        package = importlib.import_module(f"loadmaster.{room}")
        for module in pkgutil.walk_packages(package.__path__, f"{package.__name__}."):
            importlib.import_module(module.name)


def _forget() -> None:
    """What functions remember, so that nothing depends on what ran before."""
    for name, module in [*sys.modules.items()]:
        if name.startswith(("loadmaster.", "tests.golden.")):
            for each in [*vars(module).values()]:
                if type(each) is _lru_cache_wrapper and each is not _import_all:
                    each.cache_clear()


@contextmanager
def _own_clock() -> Iterator[None]:
    """One that goes on by a millisecond whenever it is asked; on one thread."""
    ticks = count()
    clock = SimpleNamespace(perf_counter=lambda: next(ticks) / 1000)
    with ExitStack() as stack:
        stack.enter_context(mock.patch.dict(os.environ, {"LOADMASTER_THREADS": "1"}))
        for module in (chains, rolling, multilevel, search, allowed):
            stack.enter_context(mock.patch.object(module, "time", clock))
        for module in (search, allowed):
            stack.enter_context(mock.patch.object(module, "seconds_compiling", lambda: 0.0))
        yield


def _file(code: CodeType) -> str:
    """That of a function of the rooms; "" of others."""
    file = code.co_filename.removeprefix(HOME)
    function = (
        "<" not in code.co_name and code.co_flags & CO_NEWLOCALS
    )  # no class, and nothing that may be made a part of another
    return file if function and file.startswith(ROOMS) and not file.startswith(APART) else ""


@contextmanager
def watched() -> Iterator[Told]:
    """What functions gave back within the block, and what methods left of their objects, by file."""
    _import_all()
    _forget()
    files: dict[CodeType, str] = {}
    calls, noted, told = Counter[CodeType](), defaultdict[str, Noted](Noted), Told()

    def look(frame: FrameType, event: str, given: Any) -> None:
        code = frame.f_code
        if event != "return" or (given is None and code.co_flags & CO_GENERATOR):  # whenever one is cleared away
            return
        file = files.get(code)
        if file is None:
            file = files[code] = _file(code)
        if file:
            calls[code] += 1
            if calls[code] <= FEW:
                noted[file].add(given)
                if code.co_varnames[:1] == ("self",):
                    noted[file].add_state(frame.f_locals["self"])

    before = sys.getprofile()
    with _own_clock():
        sys.setprofile(look)
        try:
            yield told
        finally:
            sys.setprofile(before)
    for file, note in sorted(noted.items()):
        many = sum(count for code, count in calls.items() if files[code] == file)
        told[file] = [float(many), float(note.check), note.sum]
