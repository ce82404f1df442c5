"""Loops that run without numba: the same answers in a process that has none, and never from other sources."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest

from loadmaster.compiled import entries, structs
from loadmaster.compiled.direct import Loop, layout_of, sources_of, words_of

LIMIT = "LIMIT = 7\n"
LOOPS = """\
from loadmaster.compiled import compiled
from toys.limits import LIMIT
@compiled(_nrt=False)
def bounded(x):
    return min(x, LIMIT)
@compiled(_nrt=False, apart=True, no_cpython_wrapper=True)
def total(given):
    sum = 0
    for at in range(len(given.values)):
        sum += bounded(given.values[at]) * (given.inner.scale if given.twice else 1)
        given.values[at] = at
    return sum
"""
RUN = """\
import json, sys
from typing import NamedTuple
import numpy as np
from loadmaster.compiled.direct import Loop
class Inner(NamedTuple):
    scale: int
class Given(NamedTuple):
    values: np.ndarray
    inner: Inner
    twice: bool
values = np.array([1, 5, 9])
answer = Loop("toys.loops", "total")(Given(values, Inner(2), True))
print(json.dumps([answer, values.tolist(), "numba" in sys.modules]))
"""


@pytest.fixture
def toys(tmp_path: Path) -> Path:
    (tmp_path / "toys").mkdir()
    (tmp_path / "toys" / "__init__.py").touch()
    (tmp_path / "toys" / "limits.py").write_text(LIMIT)
    (tmp_path / "toys" / "loops.py").write_text(LOOPS)
    return tmp_path


def run(toys: Path, **more: str) -> Any:
    path = os.pathsep.join([str(toys), *sys.path])
    own = {name: value for name, value in os.environ.items() if not name.startswith("NUMBA_")}
    # An edit in the second of the last one, of the same length, is none to bytecode.
    environment = {
        **own,
        "PYTHONPATH": path,
        "LOADMASTER_CACHE": str(toys / "cache"),
        "PYTHONDONTWRITEBYTECODE": "1",
        **more,
    }
    done = subprocess.run([sys.executable, "-c", RUN], env=environment, capture_output=True, text=True, check=True)
    return json.loads(done.stdout)


def test_the_second_process_needs_no_numba_until_a_source_changes(toys: Path) -> None:
    assert run(toys) == [26, [0, 1, 2], True]
    assert run(toys) == [26, [0, 1, 2], False]
    (toys / "toys" / "limits.py").write_text("LIMIT = 3\n")
    assert run(toys) == [14, [0, 1, 2], True]
    assert run(toys) == [14, [0, 1, 2], False]
    (toys / "toys" / "loops.py").write_text(LOOPS.replace("sum = 0", "sum = 100"))
    assert run(toys) == [114, [0, 1, 2], True]


def test_a_torn_entry_is_made_again_and_none_is_needed(toys: Path) -> None:
    assert run(toys)[0] == 26
    (entry,) = (toys / "cache" / "compiled").glob("*.code")
    entry.write_bytes(entry.read_bytes()[:-1])
    assert run(toys)[0] == 26
    assert entries.read_entry(entry) is not None
    assert run(toys, NUMBA_DISABLE_JIT="1") == [26, [0, 1, 2], True]


class Pair(NamedTuple):
    left: np.ndarray
    right: np.ndarray


class Whole(NamedTuple):
    pair: Pair
    number: int
    truth: bool
    matrix: np.ndarray


def whole() -> Whole:
    return Whole(Pair(np.arange(3), np.arange(5.0)), -4, True, np.zeros((2, 7)))


def test_a_struct_lies_as_numba_is_told() -> None:
    given = whole()
    words, kept = words_of(given)
    _, told, inner = structs._written(given)
    address, *rest = words.tolist()
    assert rest == told.tolist()[1:]
    assert address == kept[0][0].buffer_info()[0]
    assert kept[0][0].tolist() == inner[0].tolist() == [given.pair[0].ctypes.data, 3, given.pair[1].ctypes.data, 5]


def test_what_lies_otherwise_has_another_layout() -> None:
    given = whole()
    others = [
        given._replace(matrix=np.zeros((2, 7), np.int32)),
        given._replace(matrix=np.zeros(7)),
        given._replace(truth=1),
        given._replace(pair=Pair(np.arange(3.0), np.arange(5.0))),
    ]
    layouts = {repr(layout_of(each)) for each in (given, whole(), *others)}
    assert len(layouts) == 1 + len(others)
    for wrong in (given._replace(number=1.5), given._replace(matrix=np.zeros((2, 7)).T)):
        with pytest.raises(TypeError):
            words_of(wrong)


def test_sources_are_all_that_is_imported_on_the_way() -> None:
    found = sources_of("loadmaster.simulator.arenas.fitting")
    arenas = {f"loadmaster.simulator.arenas.{name}" for name in ("fitting", "waiting", "scratch", "sections")}
    assert arenas | {"loadmaster.graph.columns"} <= set(found)
    assert not [name for name in found if name.startswith("loadmaster.compiled")]


def test_code_that_calls_what_is_not_in_it_is_refused() -> None:
    with pytest.raises(LookupError, match="which is not in it"):
        Loop(__name__, "drawn")._compiled(Pair(np.arange(3), np.arange(3)))


if "NUMBA_DISABLE_JIT" not in os.environ:
    from loadmaster.compiled import compiled

    @compiled(_nrt=False, apart=True, no_cpython_wrapper=True)
    def drawn(pair: Any) -> int:
        return int(np.random.random() * len(pair.left))
