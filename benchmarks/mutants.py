"""Which small mistakes the tests catch: one change to the source at a time, then the tests that run what was changed.

    python benchmarks/mutants.py [--count 60] [--seed 0] [--workers 2] [--minutes 60] [PATH ...]
    python benchmarks/mutants.py --named
    python benchmarks/mutants.py --only survivors.txt

A mutant swaps a comparison, an arithmetic operator, min and max, and and or, drops a `not`, or adds one to a whole
number. The places are drawn at random from the files under PATH (default: plans, problem, search, simulator, passes,
optimizers, learn). `--named` makes those of mutants_named.py instead, mistakes that once went unseen; `--only` those
that a file has lines of, as an earlier run printed them. Those of mutants_equivalent.py, which behave as the source
does, are not made.

First the tests are watched, each once, without compiled code (NUMBA_DISABLE_JIT), so that it is known which functions
each runs and how long it takes; `--map FILE` keeps that, or takes it from there and watches those of `--tests` alone.
A mutant is then given the quickest tests that run its function, without compiled code, which would have to be compiled
anew for most mutants. One that survives them is given those that were too slow for that, compiled, for --seconds; a
test that fails there without the mistake as well does not count. A mutant under which a test, by itself, takes more
than twenty times as long as without it is an endless loop, which is seen; one that only runs out of time is counted
apart, neither killed nor not. Tests of the map that are no longer there are left out. Survivors are printed with their
line.
"""

from __future__ import annotations

import argparse
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
from collections import Counter, defaultdict
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor, as_completed
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from mutants_made import HOME, Mutant, drawn, named, picked
from mutants_warm import Warm

ROOT = Path(__file__).resolve().parents[1]
EXTRA = [str(Path(part).resolve()) for part in os.environ.get("PYTHONPATH", "").split(os.pathsep) if part]
ROOMS = ("plans", "problem", "search", "simulator", "passes", "optimizers", "learn")
AGAIN = 9  # exit status of a process that mutants_watch ended after a slow test
KILLED, SURVIVED, OUT_OF_TIME, ENDLESS = "killed", "SURVIVED", "out of time", "killed, does not end"
MOST_TESTS = 150  # of one mutant, the quickest
LIKELY_S = 15.0  # of tests that are likely to see it, before any others
LATE_S = 20.0  # that a mutant begun before the end may take beyond it
FILE_S = 150.0  # that the tests of one file may take to be watched
SHARD_BYTES = 8_000  # of a file of tests that one process watches
NEEDS = {
    "optimizers/exact.py": "ortools",
    "optimizers/exact_model.py": "ortools",
    "optimizers/memory/exact_again.py": "ortools",
    "optimizers/partition/partitioners.py": "pymetis",
    "search/workers.py": "ray",
}
MANY = 8  # times as many shards of a file whose tests are made for every optimizer


@dataclass(frozen=True)
class Seen:
    """A test, as it went without compiled code and without a mistake."""

    name: str
    outcome: str
    seconds: float
    functions: frozenset[str]


# What the tests run


def watched(copies: Copies, folders: list[str], limit_s: float, until: float) -> list[Seen]:
    """Every test of the folders, watched once; shards of files side by side."""
    files: set[Path] = set()
    for folder in folders:
        files.update((ROOT / folder).rglob("test_*.py") if (ROOT / folder).is_dir() else [ROOT / folder])
    jobs = []
    for file in sorted(files, key=lambda file: -file.stat().st_size):
        shards = (1 + file.stat().st_size // SHARD_BYTES) * (MANY if {"promises", "golden"} & {*file.parts} else 1)
        jobs += [(str(file.relative_to(ROOT)), f"{shard}/{shards}") for shard in range(shards)]
    with ThreadPoolExecutor(copies.count) as pool:
        pool.submit(_compile_ahead, copies, until)
        told = list(pool.map(lambda job: _watch(copies, *job, limit_s, until), jobs))
    late = sum(rows == [] for rows in told)
    if late:
        print(f"{late} of {len(jobs)} parts of files told of no test: nothing in them to run here, or no time was left")
    left_out = sorted({job[0] for job, rows in zip(jobs, told, strict=True) if rows is None})
    if left_out:
        print(f"left out, since they could not be collected here: {', '.join(left_out)}")
    return [row for rows in told for row in rows or ()]


def _compile_ahead(copies: Copies, until: float) -> None:
    """What most tests need compiled is compiled once, not by every worker at the same time."""
    with copies.one() as copy:
        what = ["tests/unit/simulator", "tests/unit/optimizers/annealing", "tests/unit/optimizers/lists"]
        run_tests(copy, what, until - time.monotonic(), {})


def _watch(copies: Copies, file: str, shard: str, limit_s: float, until: float) -> list[Seen] | None:
    left = min(FILE_S, until - time.monotonic())
    if left <= 0:
        return []
    with copies.one() as copy, tempfile.NamedTemporaryFile(suffix=".jsonl") as out:
        given = {"MUTANTS_MAP": out.name, "MUTANTS_SOURCE": str(copy / "src" / "loadmaster")}
        given |= {"MUTANTS_SHARD": shard, "MUTANTS_LIMIT": str(limit_s)}
        code: int | None = AGAIN
        while code == AGAIN and left > 0:
            code = run_tests(copy, ["-p", "mutants_watch", file], left, given | PLAIN)[0]
            left = min(FILE_S, until - time.monotonic())
        if code is None:
            print(f"{file}, part {shard}: not watched to its end", flush=True)
        rows = [json.loads(line) for line in Path(out.name).read_text().splitlines()]
    if not rows and code in (2, 3, 4):
        return None
    return [Seen(row["test"], row["outcome"], row["seconds"], frozenset(row["functions"])) for row in rows]


# Judging


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

    @contextmanager
    def one(self) -> Iterator[Path]:
        copy = self._free.get()
        try:
            yield copy
        finally:
            self._free.put(copy)


PLAIN = {"NUMBA_DISABLE_JIT": "1"}
ALONE = ["-o", "addopts=", "-p", "no:cacheprovider"]  # options of pytest that do not depend on the project's


def run_tests(copy: Path, what: list[str], seconds: float, given: dict[str, str]) -> tuple[int | None, str]:
    """(exit status, the first test that failed): None where the time ran out, and the test that it ran out in."""
    path = [str(copy / "src"), str(copy / "benchmarks"), *EXTRA]
    arguments = [
        *ALONE,
        "-v",
        "-rfE",
        "--tb=no",
        *what,
        *(["-p", "no:xdist"] if importlib.util.find_spec("xdist") else []),
    ]
    if given == PLAIN:
        told = copy / "told.txt"
        status = _warm().run(copy, path, arguments, told, seconds)
        return status, (_running if status is None else _failed)(told.read_text(errors="replace"))
    settings = _settings() | {"PYTHONPATH": os.pathsep.join(path)} | given
    done = subprocess.Popen(
        [sys.executable, "-W", "ignore", "-m", "pytest", *arguments], cwd=copy, env=settings,
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
    settings = os.environ | {"OMP_NUM_THREADS": "1", "PYTHONDONTWRITEBYTECODE": "1", "LOADMASTER_THREADS": "1"}
    return settings | {"LOADMASTER_CACHE": str(Path(tempfile.gettempdir()) / "loadmaster-mutants")}


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


def _warm() -> Warm:
    """The warm process of this thread."""
    if not hasattr(WARM, "one"):
        WARM.one = Warm(_settings() | PLAIN)
        ALL_WARM.append(WARM.one)
    return WARM.one  # type: ignore[no-any-return]


@dataclass
class Judge:
    """Gives mutants to tests."""

    copies: Copies
    tests: list[Seen]
    seconds: float
    until: float
    broken: set[str] = field(default_factory=set)  # tests that fail without a mistake, compiled

    def tests_of(self, mutant: Mutant) -> tuple[list[Seen], list[Seen]]:
        """(those that run the function without compiled code, those that are too slow for it), the quickest first."""
        if mutant.function:
            key = f"{mutant.file}:{mutant.function}"
            found = [test for test in self.tests if key in test.functions]
        else:
            inside = re.compile(rf"{re.escape(mutant.file)}:[^<]")
            found = [test for test in self.tests if any(inside.match(name) for name in test.functions)]
        found.sort(key=lambda test: (not self._likely(mutant, test), test.seconds))
        plain = [test for test in found if test.outcome == "passed"]  # not those for which a package is missing
        return plain, [test for test in found if test.outcome in ("slow", "failed")]

    def verdict(self, mutant: Mutant) -> str:
        plain, slow = self.tests_of(mutant)
        with self.copies.one() as copy:
            target = copy / "src" / "loadmaster" / mutant.file
            source = target.read_text()
            target.write_text(mutant.text)
            try:
                first = self._plain(copy, mutant, plain)
                if first != SURVIVED or not slow:
                    return first if plain or slow else "no test"
                return self._compiled(copy, slow, target, source, mutant.text)
            finally:
                target.write_text(source)

    @staticmethod
    def _likely(mutant: Mutant, test: Seen) -> bool:
        """Those of the file itself, and kept plans and numbers, which most mistakes change."""
        return f"test_{Path(mutant.file).stem}.py::" in test.name or test.name.startswith("tests/golden/")

    def _plain(self, copy: Path, mutant: Mutant, tests: list[Seen]) -> str:
        """The likely ones first, by themselves: most mutants are killed before anything else is imported."""
        likely = [test for test in tests if self._likely(mutant, test)]
        others = [test for test in tests if not self._likely(mutant, test)]
        for some, seconds in ((likely, LIKELY_S), (others, self.seconds)):
            verdict = self._some(copy, some, seconds)
            if verdict != SURVIVED:
                return verdict
        return SURVIVED

    def _some(self, copy: Path, tests: list[Seen], seconds: float) -> str:
        chosen, total = [], 0.0
        for test in tests[:MOST_TESTS]:
            total += test.seconds
            if chosen and total > seconds:
                break
            chosen.append(test.name)
        if not chosen:
            return SURVIVED
        status, failed = run_tests(copy, ["-x", *chosen], self._left(30 + 4 * min(total, 2 * seconds)), PLAIN)
        if status is None:
            return ENDLESS if self._endless(copy, next((t for t in tests if t.name == failed), None)) else OUT_OF_TIME
        return KILLED if seen(status, failed) else SURVIVED

    def _endless(self, copy: Path, test: Seen | None) -> bool:
        """Whether a test that time ran out in does not end in twenty times as long as it takes either, by itself."""
        enough = max(40.0, 20 * test.seconds) if test is not None else 0.0
        if test is None or self._left(enough) < enough:
            return False
        return run_tests(copy, [test.name], enough, PLAIN)[0] is None

    def _compiled(self, copy: Path, slow: list[Seen], target: Path, source: str, text: str) -> str:
        """The verdict of tests that fail with the mistake and do not without it."""
        end = time.monotonic() + self._left(self.seconds)
        while True:
            chosen = [test.name for test in slow if test.name not in self.broken][:MOST_TESTS]
            if not chosen:
                return SURVIVED
            target.write_text(text)
            code, failed = run_tests(copy, ["-x", *chosen], end - time.monotonic(), {})
            if not seen(code, failed):
                return SURVIVED + (", out of time" if code is None else "")
            target.write_text(source)
            alone = run_tests(copy, ["-x", failed], self.seconds, {})[0]
            if alone == 0:
                return KILLED
            self.broken.add(failed)

    def _left(self, seconds: float) -> float:
        return min(seconds, max(5.0, self.until + LATE_S - time.monotonic()))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0] if __doc__ else "")
    parser.add_argument("paths", nargs="*", type=Path)
    parser.add_argument("--count", type=int, default=60)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--seconds", type=float, default=90.0, help="for the tests of one mutant, each way")
    parser.add_argument("--limit", type=float, default=15.0, help="seconds of a test without compiled code")
    parser.add_argument("--minutes", type=float, default=600.0, help="after which no further mutant is begun")
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--named", action="store_true")
    parser.add_argument("--only", type=Path, help="a file with lines of an earlier run: those mutants alone")
    parser.add_argument("--tests", action="append", default=[], help="a folder or file to watch, not the rooms' own")
    parser.add_argument("--map", type=Path, help="where what the tests run is kept")
    given = parser.parse_args()
    until = time.monotonic() + 60 * given.minutes
    for name in ("hypothesis", "torch", "onnx", "ortools"):
        if importlib.util.find_spec(name) is None:
            print(f"no {name} here: tests that need it are left out")
    if given.named:
        mutants = named()
        places = len(mutants)
    elif given.only is not None:
        mutants = picked(given.only.read_text())
        places = len(mutants)
    else:
        paths = [path.resolve() for path in given.paths] or [HOME / room for room in ROOMS]
        mutants, places = drawn(paths, given.count, given.seed)
    same = sum(mutant.same != "" for mutant in mutants)
    print(f"{len(mutants)} mutants, of which {same} behave as the source does and are left out")
    lacking = sorted({mutant.file for mutant in mutants if not _can_run(mutant)})
    if lacking:
        print(f"left out, since what they need is not installed here: {', '.join(lacking)}")
    mutants = [mutant for mutant in mutants if not mutant.same and _can_run(mutant)]
    with tempfile.TemporaryDirectory() as folder:
        copies = Copies(Path(folder), given.workers + 1)
        tests = known_tests(copies, given.tests, folders_of(mutants), given.map, given.limit, until)
        report(Judge(copies, tests, given.seconds, until), mutants, places)
        for warm in ALL_WARM:
            warm.close()


def _can_run(mutant: Mutant) -> bool:
    """Whether the package is there that all of the file needs."""
    return mutant.file not in NEEDS or importlib.util.find_spec(NEEDS[mutant.file]) is not None


def folders_of(mutants: list[Mutant]) -> list[str]:
    rooms = {mutant.file.partition("/")[0].removesuffix(".py") for mutant in mutants}
    return sorted({f"tests/unit/{room}" for room in rooms} | {"tests/properties", "tests/promises", "tests/golden"})


def known_tests(
    copies: Copies, asked: list[str], folders: list[str], kept: Path | None, limit_s: float, until: float
) -> list[Seen]:
    """Those of the map, if there is one, and those watched now: `asked`, without a map all of the folders."""
    known = []
    if kept is not None and kept.exists():
        rows = [json.loads(line) for line in kept.read_text().splitlines()]
        known = [Seen(row["test"], row["outcome"], row["seconds"], frozenset(row["functions"])) for row in rows]
        known = [test for test in known if not any(test.name.startswith(name) for name in asked)]
        known = _still_there(known)
        if not asked:
            return known
    begun = time.monotonic()
    tests = watched(copies, asked or folders, limit_s, begun + (until - begun) / 2)
    counts = Counter(test.outcome for test in tests)
    took = f"{time.monotonic() - begun:.0f} s"
    print(f"{len(tests):,} tests watched in {took} without compiled code: {dict(counts)}", flush=True)
    tests += known
    if kept is not None:
        told = [vars(test) | {"test": test.name, "functions": sorted(test.functions)} for test in tests]
        kept.write_text("".join(json.dumps(row) + "\n" for row in told))
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


def report(judge: Judge, mutants: list[Mutant], places: int) -> None:
    """Prints each verdict as it comes, then the share in all and by room."""
    seen: Counter[str] = Counter()
    by_room: defaultdict[str, Counter[str]] = defaultdict(Counter)
    survivors = []

    def judged(mutant: Mutant) -> str | None:
        return judge.verdict(mutant) if time.monotonic() < judge.until else None

    with ThreadPoolExecutor(judge.copies.count - 1) as pool:
        futures = {pool.submit(judged, mutant): mutant for mutant in mutants}
        for future in as_completed(futures):
            mutant, verdict = futures[future], future.result()
            if verdict is None:
                continue
            kind = KILLED if verdict in (KILLED, ENDLESS) else OUT_OF_TIME if verdict == OUT_OF_TIME else SURVIVED
            seen[kind] += 1
            by_room[mutant.file.partition("/")[0]][kind] += 1
            seen["late"] += verdict == SURVIVED + ", out of time"
            if kind == SURVIVED:
                survivors.append(f"{mutant.words} ({verdict})")
            print(f"{seen.total() - seen['late']}/{len(mutants)} {verdict:11} {mutant.words}", flush=True)
    for room, counts in sorted(by_room.items()):
        print(f"{room:12} {counts[KILLED]:4} of {counts.total() - counts[OUT_OF_TIME]:4} killed")
    late = seen.pop("late", 0)
    share = f"{100 * seen[KILLED] / max(1, seen.total() - seen[OUT_OF_TIME]):.0f} %"
    ended = f"{seen[KILLED]} killed and {seen[SURVIVED]} not ({share}), {seen[OUT_OF_TIME]} out of time"
    print(f"{seen.total()} of {places:,} places: {ended}; of those not killed {late} had no time for compiled tests")
    for line in sorted(survivors):
        print(f"  {line}")


if __name__ == "__main__":
    main()
