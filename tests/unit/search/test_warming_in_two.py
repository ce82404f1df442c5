"""A second process compiles beside the first: the same entries come of it, and nothing depends on it."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from loadmaster import catalog
from loadmaster import compiled as door
from loadmaster.compiled import claims
from loadmaster.search import warming

TOY = """\
import os, signal, time
from dataclasses import dataclass
from pathlib import Path
from loadmaster.compiled import cache, compile_for, compiled
HERE = Path(__file__).parent
@compiled
def inner(x):
    return x + 1
@compiled
def early(x):
    return inner(x) * 2
@compiled
def late(x):
    return inner(x) * 3
@dataclass(frozen=True)
class Toy:
    manner: str = "helps"
    def optimize(self, search):
        raise AssertionError
    def compile_late(self, search):
        assert search.problem.num_ops > 1
        (HERE / "began").write_text(str(os.getpid()))
        if self.manner == "killed":
            cache.Cache.save_overload = lambda *_: os.kill(os.getpid(), signal.SIGKILL)
        if self.manner == "sleeps":
            time.sleep(600)
        compile_for(late, 4)
        (HERE / "ended").write_text("")
        time.sleep(600)
"""


@pytest.fixture
def toy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """A method of another package, which both processes find by its name."""
    name = f"toy_{tmp_path.name.replace('-', '_')}"
    (tmp_path / f"{name}.py").write_text(TOY)
    about = tmp_path / f"{name}-1.0.dist-info"
    about.mkdir()
    (about / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n")
    (about / "entry_points.txt").write_text(f"[loadmaster.methods]\n{name} = {name}:Toy\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setenv("LOADMASTER_CACHE", str(tmp_path / "cache"))
    monkeypatch.delenv("LOADMASTER_THREADS", raising=False)
    monkeypatch.setattr(warming, "cores", lambda: 2)
    monkeypatch.setattr(warming, "_usable_cores", lambda: 2)
    catalog._added.cache_clear()
    yield __import__(name)
    sys.modules.pop(name)
    catalog._added.cache_clear()


def wait_for(there: Callable[[], bool]) -> None:
    for _ in range(3000):
        if there():
            return
        time.sleep(0.02)
    raise AssertionError("the other process did nothing")


def begun(folder: Path) -> int:
    """The number of the second process, once it is at work."""
    wait_for(lambda: (folder / "began").exists() and (folder / "began").read_text() != "")
    return int((folder / "began").read_text())


def compiled_here(toy: Any, manner: str, between: Callable[[], None]) -> tuple[list[str], list[str]]:
    """Calls both loops; (how often this process compiled, the entries that are there then)."""
    misses: list[str] = []
    with warming._helped(toy.Toy(manner), "step-time"), door.telling(lambda: misses.append("")):
        assert toy.early(4) == 10
        between()
        assert toy.late(4) == 15
    return misses, sorted(path.name for path in (toy.HERE / "cache" / "compiled").iterdir())


def alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return (
        Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z" if sys.platform == "linux" else True
    )


def test_a_second_process_makes_the_entries_that_this_one_would_make(
    toy: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    misses, entries = compiled_here(toy, "helps", lambda: wait_for((tmp_path / "ended").exists))
    assert len(misses) == 2, "this process compiled the first loop, and found the second"
    assert not alive(begun(tmp_path)), "it is ended when it is no longer needed"
    monkeypatch.setenv("LOADMASTER_CACHE", str(tmp_path / "alone"))
    code = f"import {toy.__name__} as toy; print(toy.early(4), toy.late(4))"
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    done = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=True)
    assert done.stdout == "10 15\n"
    assert sorted(path.name for path in (tmp_path / "alone" / "compiled").iterdir()) == entries


def test_one_that_is_killed_before_it_writes_is_not_waited_for(toy: Any, tmp_path: Path) -> None:
    def until_dead() -> None:
        worker = begun(tmp_path)
        wait_for(lambda: not alive(worker))

    misses, entries = compiled_here(toy, "killed", until_dead)
    assert len(misses) == 3 and len(entries) == 3


def test_where_there_is_one_core_or_no_place_for_a_cache_there_is_one_process(
    toy: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def never(*_: str) -> None:
        raise AssertionError("a second process was started")

    monkeypatch.setattr(warming, "_start", never)
    with monkeypatch.context() as one:
        one.setattr(warming, "_usable_cores", lambda: 1)
        assert len(compiled_here(toy, "helps", lambda: None)[0]) == 3
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("LOADMASTER_CACHE", str(tmp_path / "file"))
    monkeypatch.setattr("loadmaster.compiled.entries._TOLD", {"told"})
    with warming._helped(toy.Toy(), "step-time"):
        assert toy.early(4.0) == 10


def test_it_ends_with_the_process_that_started_it(toy: Any, tmp_path: Path) -> None:
    code = f"import sys; sys.path[:] = {sys.path!r}\nimport time\nfrom loadmaster.search.warming import _start\n"
    code += f"_start('{toy.__name__}:manner=sleeps', 'step-time'); time.sleep(600)"
    parent = subprocess.Popen([sys.executable, "-c", code])
    try:
        worker = begun(tmp_path)
        assert alive(worker)
    finally:
        parent.send_signal(signal.SIGKILL)
        parent.wait()
    wait_for(lambda: not alive(worker))


def test_a_claim_is_waited_for_but_not_for_ever(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder, name = tmp_path / "compiled", "module.loop-00ff00ff00ff00ff"
    code = f"import sys; sys.path[:] = {sys.path!r}\nimport time\nfrom pathlib import Path\n"
    code += "from loadmaster.compiled.claims import claim\n"
    code += f"assert claim(Path({str(folder)!r}), {name!r}) is not None\nprint('claimed', flush=True)\ntime.sleep(600)"
    with subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE) as other:
        try:
            assert other.stdout is not None and other.stdout.readline() == b"claimed\n"
            monkeypatch.setattr(claims, "LONGEST_S", 0.1)
            assert claims.claim(folder, name) is None
            place = claims.claim(folder, "module.loop-10ff00ff00ff00fe")
            assert place is not None
            claims.give_up(folder, place)
        finally:
            other.kill()
    monkeypatch.setattr(claims, "LONGEST_S", 60.0)
    assert claims.claim(folder, name) is not None
