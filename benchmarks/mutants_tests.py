"""Tests for `mutants.py`: what each of them runs, copies of the repository to run them in, and running them."""

from __future__ import annotations

import importlib.util
import json
import os
import queue
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from mutants_warm import Warm

ROOT = Path(__file__).resolve().parents[1]
EXTRA = [str(Path(part).resolve()) for part in os.environ.get("PYTHONPATH", "").split(os.pathsep) if part]
AGAIN = 9  # exit status of a process that mutants_watch ended after a slow test
PART_S = 1_500.0  # that the tests of one process may take to be watched
MOSTLY = 0.7  # of the time, for watching at most; it took 384 s with 16 workers
PART_BYTES = 60_000  # of files of tests that one process watches
# Of files whose tests would take an hour without compiled code, those that do not.
QUICK = {
    "tests/golden/test_plans.py": "odd or small or tiny or zero",
    "tests/golden/test_learned.py": "examples or pace or climbing or learned-list",
    "tests/golden/test_efforts.py": "direct or plans_only or nothing",
}
LONG = {*QUICK, "tests/golden/test_steps.py"}  # watched in several processes, as promises are
PLAIN = {"NUMBA_DISABLE_JIT": "1"}
ALONE = ["-o", "addopts=", "-p", "no:cacheprovider"]  # options of pytest that do not depend on the project's


@dataclass(frozen=True)
class Seen:
    """A test, as it went without a mistake."""

    name: str
    outcome: str
    seconds: float
    functions: frozenset[str]
    compiled: bool = False  # whether compiled code was called, of which no function is seen

    @staticmethod
    def of(row: dict[str, Any]) -> Seen:
        functions = frozenset(row["functions"])
        return Seen(row["test"], row["outcome"], row["seconds"], functions, bool(row.get("compiled", False)))

    def to_json(self) -> dict[str, Any]:
        return vars(self) | {"test": self.name, "functions": sorted(self.functions)}


def watched(copies: Copies, folders: list[str], limit_s: float, until: float) -> list[Seen]:
    """Every test of the folders, watched once; parts of them side by side."""
    files: set[Path] = set()
    for folder in folders:
        files.update((ROOT / folder).rglob("test_*.py") if (ROOT / folder).is_dir() else [ROOT / folder])
    jobs = [(*part, compiled) for part in _parts(sorted(files), copies.count) for compiled in (True, False)]
    with ThreadPoolExecutor(copies.count) as pool:
        pool.submit(_compile_ahead, copies, until)
        told = list(pool.map(lambda job: _watch(copies, *job, limit_s, until), jobs))
    tests = [row for rows in told for row in rows]
    unseen = {str(file.relative_to(ROOT)) for file in files} - {test.name.partition("::")[0] for test in tests}
    if unseen:
        print(f"nothing seen of {', '.join(sorted(unseen))}: it could not be collected here, or no time was left")
    return tests


def _parts(files: list[Path], most: int) -> Iterator[tuple[list[str], str]]:
    """(files, which share of their tests), each for one process."""
    some: list[Path] = []
    for file in files:
        name = str(file.relative_to(ROOT))
        if file.parent.name in ("promises", "golden"):
            count = most if name in LONG or file.parent.name == "promises" else 1
            yield from (([name], f"{shard}/{count}") for shard in range(count))
            continue
        if some and sum(each.stat().st_size for each in (*some, file)) > PART_BYTES:
            yield [str(each.relative_to(ROOT)) for each in some], "0/1"
            some = []
        some.append(file)
    if some:
        yield [str(each.relative_to(ROOT)) for each in some], "0/1"


def _compile_ahead(copies: Copies, until: float) -> None:
    """What most tests need compiled is compiled once, not by every worker at the same time."""
    with copies.one() as copy:
        what = ["tests/unit/simulator", "tests/unit/optimizers/annealing", "tests/unit/optimizers/lists"]
        run_tests(copy, what, until - time.monotonic(), plain=False)


def _watch(copies: Copies, files: list[str], shard: str, compiled: bool, limit_s: float, until: float) -> list[Seen]:
    begun = time.monotonic()
    with copies.one() as copy, tempfile.NamedTemporaryFile(suffix=".jsonl") as out:
        given = {"MUTANTS_MAP": out.name, "MUTANTS_SOURCE": str(copy / "src" / "loadmaster")}
        given |= {"MUTANTS_SHARD": shard, "MUTANTS_LIMIT": str(limit_s)} | ({} if compiled else PLAIN)
        what = ["-p", "mutants_watch", "--continue-on-collection-errors", *files]
        what += ["-k", QUICK[files[0]]] if not compiled and files[0] in QUICK else []
        code: int | None = AGAIN
        while code == AGAIN and (left := min(begun + PART_S, until) - time.monotonic()) > 0:
            code = _run(copy, what, left, given)[0]
        if code in (None, AGAIN):
            print(f"{' '.join(files)}, part {shard}: not watched to its end", flush=True)
        rows = [json.loads(line) for line in Path(out.name).read_text().splitlines()]
    how = "compiled" if compiled else "plain"
    print(f"{time.monotonic() - begun:.0f} s {how} {len(rows)} tests of {' '.join(files)} {shard}", flush=True)
    return [Seen.of(row | {"compiled": compiled}) for row in rows]


def known_tests(
    copies: Copies, asked: list[str], folders: list[str], kept: Path | None, limit_s: float, until: float
) -> list[Seen]:
    """Those of the map, if there is one, and those watched now: `asked`, without a map all of the folders."""
    known = []
    if kept is not None and kept.exists():
        rows = [json.loads(line) for line in kept.read_text().splitlines()]
        known = [Seen.of(row) for row in rows]
        known = [test for test in known if not any(test.name.startswith(name) for name in asked)]
        known = _still_there(known)
        if not asked:
            return known
    begun = time.monotonic()
    tests = watched(copies, asked or folders, limit_s, begun + MOSTLY * (until - begun))
    counts = Counter(test.outcome + (", compiled" if test.compiled else "") for test in tests)
    took = f"{time.monotonic() - begun:.0f} s"
    print(f"{len(tests):,} tests watched in {took}: {dict(counts)}", flush=True)
    tests += known
    if kept is not None:
        kept.write_text("".join(json.dumps(test.to_json()) + "\n" for test in tests))
    return tests


def _still_there(known: list[Seen]) -> list[Seen]:
    """Those that pytest can find: one name of the map that is gone would keep all that is asked for with it from
    running."""
    files = sorted({file for test in known if (ROOT / (file := test.name.partition("::")[0])).exists()})
    command = [sys.executable, "-W", "ignore", "-m", "pytest", *ALONE, "-q", "--collect-only", *files]
    said = subprocess.run(command, cwd=ROOT, env=_settings() | PLAIN, capture_output=True, text=True, check=False)
    there = set(said.stdout.splitlines())
    print(f"{sum(test.name not in there for test in known)} of {len(known):,} tests of the map are gone", flush=True)
    return [test for test in known if test.name in there]


# Running them


class Copies:
    """Copies of the repository, one for each worker."""

    def __init__(self, folder: Path, count: int) -> None:
        self.count, self._free = count, queue.SimpleQueue[Path]()
        for number in range(count):
            copy = folder / str(number)
            for part in ("src", "tests", "docs", "benchmarks"):
                shutil.copytree(ROOT / part, copy / part, ignore=shutil.ignore_patterns("__pycache__"))
            for file in ("pyproject.toml", "README.md", "CONTRIBUTING.md", "ARCHITECTURE.md"):
                shutil.copy(ROOT / file, copy / file)
            if importlib.util.find_spec("hypothesis") is None:  # its tests cannot be collected; the others can
                (copy / "tests" / "conftest.py").write_text('import os\n\nos.environ["LOADMASTER_PLANS"] = "off"\n')
            self._free.put(copy)

    def close(self) -> None:
        for warm in ALL_WARM:
            warm.close()

    @contextmanager
    def one(self) -> Iterator[Path]:
        copy = self._free.get()
        try:
            yield copy
        finally:
            self._free.put(copy)


def run_tests(copy: Path, what: list[str], seconds: float, *, plain: bool) -> tuple[int | None, str]:
    """(exit status, the first test that failed): None where the time ran out, and the test that it ran out in.
    `plain`: without compiled code."""
    told = copy / "told.txt"
    status = _warm(plain).run(copy, _path(copy), [*_options(), *what], told, seconds)
    return status, (_running if status is None else _failed)(told.read_text(errors="replace"))


def tests_beside(file: str) -> list[str]:
    """Files of unit tests for a file of the source: those named after it, then others of the folder that mirrors its
    own, or the room's; then those of properties that import the room."""
    place = ROOT / "tests" / "unit" / Path(file).parent
    while not place.exists() and place.parent.name != "tests":
        place = place.parent
    stem = Path(file).stem
    named = [found for found in place.rglob("test_*.py") if stem in found.stem]
    named.sort(key=lambda found: (found.stem != f"test_{stem}", found.name))
    others = [*place.glob("test_*.py")] or [*place.rglob("test_*.py")]
    room = f"loadmaster.{Path(file).parts[0]}"
    properties = [each for each in (ROOT / "tests" / "properties").glob("test_*.py") if room in each.read_text()]
    others.sort(key=lambda each: each.stat().st_size)
    return list(dict.fromkeys(str(each.relative_to(ROOT)) for each in (*named, *others, *sorted(properties))))


def _path(copy: Path) -> list[str]:
    return [str(copy / "src"), str(copy / "benchmarks"), *EXTRA]


def _options() -> list[str]:
    beside = ["-p", "no:xdist"] if importlib.util.find_spec("xdist") else []
    return [*ALONE, "-v", "-rfE", "--tb=no", *beside]


def _run(copy: Path, what: list[str], seconds: float, given: dict[str, str]) -> tuple[int | None, str]:
    """In a process of its own."""
    settings = _settings() | {"PYTHONPATH": os.pathsep.join(_path(copy))} | given
    done = subprocess.Popen(
        [sys.executable, "-W", "ignore", "-m", "pytest", *_options(), *what], cwd=copy, env=settings,
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, start_new_session=True,
    )  # fmt: skip
    try:
        said = done.communicate(timeout=max(1.0, seconds))[0]
    except subprocess.TimeoutExpired:
        os.killpg(done.pid, signal.SIGKILL)  # with what the tests started
        done.communicate()
        return None, ""
    return done.returncode, _failed(said)


def _settings() -> dict[str, str]:
    return os.environ | {"OMP_NUM_THREADS": "1", "PYTHONDONTWRITEBYTECODE": "1", "LOADMASTER_THREADS": "1"}


def _failed(said: str) -> str:
    """The first test that failed, or the file that could not be imported."""
    found = re.search(r"^(?:FAILED|ERROR) (\S.*?)(?: - .*)?$", said, re.MULTILINE)
    return found[1] if found else ""


def _running(said: str) -> str:
    found = re.search(r"^(tests/\S+::.*?) $", said[said.rfind("\n") + 1 :])
    return found[1] if found else ""


def seen(status: int | None, failed: str) -> bool:
    """Whether tests saw a mistake: they failed, they or the process broke off, or a file could not be imported. A test
    that is not there is nothing seen."""
    return status is not None and (status in (1, 2) or status < 0 or (status != 0 and failed != ""))


WARM = threading.local()
ALL_WARM: list[Warm] = []


def _warm(plain: bool) -> Warm:
    """The warm process of this thread, with or without compiled code."""
    name = "plain" if plain else "compiled"
    if not hasattr(WARM, name):
        setattr(WARM, name, Warm(_settings() | (PLAIN if plain else {})))
        ALL_WARM.append(getattr(WARM, name))
    return getattr(WARM, name)  # type: ignore[no-any-return]
