"""Which small mistakes the tests catch: one change to the source at a time, then the tests that run what was changed.

    python benchmarks/mutants.py [--count 60] [--seed 0] [--workers 2] [--minutes 60] [PATH ...]
    python benchmarks/mutants.py --named
    python benchmarks/mutants.py --only survivors.txt

A mutant swaps a comparison, an arithmetic operator, min and max, and and or, drops a `not`, or adds one to a whole
number. The places are drawn at random from the files under PATH (default: plans, problem, search, simulator, passes,
optimizers, learn). `--named` makes those of mutants_named.py instead, mistakes that once went unseen; `--only` those
that a file has lines of, as an earlier run printed them. Those of mutants_equivalent.py, which behave as the source
does, are not made.

First the golden tests, the unit tests and the promises are watched, each twice, as they are and without compiled code
(NUMBA_DISABLE_JIT), so that it is known which functions each runs and how long it takes (384 s with 16 workers, an hour
with two); `--map FILE` keeps that, or takes it from there and watches those of `--tests` alone. A mutant is then given
the quickest tests that run its function: as they are, or without compiled code where the function is compiled, since it
would have to be compiled anew with all that calls it. One that survives is given those that were too slow for that,
compiled, and then the unit tests beside its file, each for --seconds; a test that fails there without the mistake as
well does not count. A mutant under which a test, by itself, takes more than twenty times as long as without it is an
endless loop, which is seen; one that only runs out of time is counted apart, neither killed nor not. Tests of the map
that are no longer there are left out. Survivors are printed with their line.
"""

from __future__ import annotations

import argparse
import importlib.util
import re
import tempfile
import time
from collections import Counter, defaultdict
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor, as_completed
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from mutants_made import HOME, Mutant, drawn, named, picked
from mutants_tests import Copies, Seen, known_tests, run_tests, seen, tests_beside

ROOMS = ("plans", "problem", "search", "simulator", "passes", "optimizers", "learn")
WATCHED = ["tests/golden", "tests/unit", "tests/promises"]
KILLED, SURVIVED, OUT_OF_TIME, ENDLESS = "killed", "SURVIVED", "out of time", "killed, does not end"
MOST_TESTS = 150  # of one mutant, the quickest
LIKELY_S = 15.0  # of tests that are likely to see it, before any others
PLANS, FEW_METHODS = "tests/golden/test_plans.py::test_the_plan_is_the_kept_one[", 4
LATE_S = 20.0  # that a mutant begun before the end may take beyond it
NEEDS = {
    "optimizers/exact.py": "ortools",
    "optimizers/exact_model.py": "ortools",
    "optimizers/memory/exact_again.py": "ortools",
    "optimizers/partition/partitioners.py": "pymetis",
    "search/workers.py": "ray",
}


class Change:
    """A mistake in a file, while it lasts."""

    def __init__(self, target: Path, text: str) -> None:
        self.target, self.text, self.source = target, text, target.read_text()

    def __enter__(self) -> None:
        self.target.write_text(self.text)

    def __exit__(self, *_: object) -> None:
        self.target.write_text(self.source)

    @contextmanager
    def without(self) -> Iterator[None]:
        self.target.write_text(self.source)
        try:
            yield
        finally:
            self.target.write_text(self.text)


@dataclass
class Judge:
    """Gives mutants to tests."""

    copies: Copies
    tests: list[Seen]
    seconds: float
    until: float
    broken: set[str] = field(default_factory=set)  # tests that fail without a mistake, compiled

    def tests_of(self, mutant: Mutant) -> tuple[list[Seen], list[Seen]]:
        """(those that run the function, those that are too slow for it)."""
        if mutant.function:
            key = f"{mutant.file}:{mutant.function}"
            found = [test for test in self.tests if key in test.functions]
        else:
            inside = re.compile(rf"{re.escape(mutant.file)}:[^<]")
            found = [test for test in self.tests if any(inside.match(name) for name in test.functions)]
        # Not those for which a package is missing.
        quick = [test for test in found if test.outcome == "passed" and test.compiled != mutant.compiled]
        known = {test.name for test in quick}
        slow = [test for test in found if test.outcome in ("slow", "failed") and test.name not in known]
        slow = list({test.name: test for test in slow}.values())
        return self._in_turn(mutant, quick), self._in_turn(mutant, slow)

    def _in_turn(self, mutant: Mutant, tests: list[Seen]) -> list[Seen]:
        """Likely ones first; the quickest of every file, then the second of every file, and so on: those of one file
        are much alike."""
        turn, place = Counter[str](), dict[str, int]()
        for test in sorted(tests, key=lambda test: test.seconds):
            file = test.name.partition("::")[0]
            place[test.name], turn[file] = turn[file], turn[file] + 1
        return sorted(tests, key=lambda test: (not self._likely(mutant, test), place[test.name], test.seconds))

    def verdict(self, mutant: Mutant) -> str:
        quick, slow = self.tests_of(mutant)
        with self.copies.one() as copy:
            change = Change(copy / "src" / "loadmaster" / mutant.file, mutant.text)
            with change:
                verdict = self._quick(copy, mutant, quick)
                if verdict == SURVIVED and (more := [*(test.name for test in slow), *self._beside(mutant, quick)]):
                    verdict = self._others(copy, more[:MOST_TESTS], change, plain=False)
                if verdict == SURVIVED:
                    beside = [test for test in tests_beside(mutant.file) if (copy / test).exists()]  # not those since
                    verdict = self._others(copy, beside, change, plain=mutant.compiled)
                return verdict

    def _beside(self, mutant: Mutant, quick: list[Seen]) -> list[str]:
        """Of compiled code, kept plans of a few methods that run it, for problems that take too long otherwise."""
        near = [test for test in self.tests if any(name.startswith(f"{mutant.file}:") for name in test.functions)]
        plans = dict.fromkeys(test.name.rpartition("-")[0] for test in quick or near if test.name.startswith(PLANS))
        some = list(plans)[:: max(1, len(plans) // FEW_METHODS)][:FEW_METHODS] if mutant.compiled else []
        known = {test.name for test in quick}
        return [
            test.name
            for test in self.tests
            if test.compiled
            and test.name.rpartition("-")[0] in some
            and test.name not in known
            and test.outcome == "passed"
        ]

    @staticmethod
    def _likely(mutant: Mutant, test: Seen) -> bool:
        """Those of the file itself, and kept plans and numbers, which most mistakes change."""
        return f"test_{Path(mutant.file).stem}.py::" in test.name or test.name.startswith("tests/golden/")

    def _quick(self, copy: Path, mutant: Mutant, tests: list[Seen]) -> str:
        """Some of the likely ones first, by themselves: most mutants are killed before anything else is imported."""
        first = _within([test for test in tests if self._likely(mutant, test)], LIKELY_S)
        others = _within([test for test in tests if test not in first], self.seconds)
        for some in (first, others):
            verdict = self._some(copy, some)
            if verdict != SURVIVED:
                return verdict
        return SURVIVED

    def _some(self, copy: Path, tests: list[Seen]) -> str:
        if not tests:
            return SURVIVED
        names, plain = [test.name for test in tests], not tests[0].compiled
        left = self._left(30 + 4 * min(sum(test.seconds for test in tests), 2 * self.seconds))
        status, failed = run_tests(copy, ["-x", *names], left, plain=plain)
        if status is None:
            return ENDLESS if self._endless(copy, [test for test in tests if test.name == failed]) else OUT_OF_TIME
        return KILLED if seen(status, failed) else SURVIVED

    def _endless(self, copy: Path, tests: list[Seen]) -> bool:
        """Whether a test that time ran out in does not end in twenty times as long as it takes either, by itself."""
        for test in tests:
            enough = max(40.0, 20 * test.seconds)
            if self._left(enough) >= enough:
                return run_tests(copy, [test.name], enough, plain=not test.compiled)[0] is None
        return False

    def _others(self, copy: Path, tests: list[str], change: Change, *, plain: bool) -> str:
        """The verdict of tests, or files of them, that fail with the mistake and do not without it."""
        end = time.monotonic() + self._left(self.seconds)
        while tests:
            known = [part for name in sorted(self.broken) for part in ("--deselect", name)]
            status, failed = run_tests(copy, ["-x", *known, *tests], end - time.monotonic(), plain=plain)
            if not seen(status, failed):
                return SURVIVED + (", out of time" if status is None else "")
            with change.without():
                alone = run_tests(copy, ["-x", failed], self.seconds, plain=plain)[0] if failed else 0
            if alone == 0:
                return KILLED
            self.broken.add(failed)
        return SURVIVED

    def _left(self, seconds: float) -> float:
        return min(seconds, max(5.0, self.until + LATE_S - time.monotonic()))


def _within(tests: list[Seen], seconds: float) -> list[Seen]:
    """As many, in their order, as take no longer together; at least one, at most so many."""
    chosen, total = list[Seen](), 0.0
    for test in tests[:MOST_TESTS]:
        if not chosen or total + test.seconds <= seconds:
            chosen.append(test)
            total += test.seconds
    return chosen


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
    parser.add_argument("--tests", action="append", default=[], help="a folder or file to watch, not all")
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
        tests = known_tests(copies, given.tests, WATCHED, given.map, given.limit, until)
        report(Judge(copies, tests, given.seconds, until), mutants, places)
        copies.close()


def _can_run(mutant: Mutant) -> bool:
    """Whether the package is there that all of the file needs."""
    return mutant.file not in NEEDS or importlib.util.find_spec(NEEDS[mutant.file]) is not None


def report(judge: Judge, mutants: list[Mutant], places: int) -> None:
    """Prints each verdict as it comes, then the share in all, by room, and of what is within functions: numbers outside
    of them are mostly tuned ones, such as how many moves to try."""
    seen: Counter[str] = Counter()
    inside: Counter[str] = Counter()
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
            inside[kind] += mutant.function != ""
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
    print(f"within functions {inside[KILLED]} of {inside[KILLED] + inside[SURVIVED]} killed")
    for line in sorted(survivors):
        print(f"  {line}")


if __name__ == "__main__":
    main()
