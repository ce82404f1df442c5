"""Running a suite: every method on every problem under every seed, once; finished runs are not repeated.

Rows can run on a Ray cluster, one row a worker. Ctrl-C ends cleanly: a search that was cut short is not kept, for its
result is not that of its budget.
"""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from types import FrameType

import numpy as np

from loadmaster import __version__
from loadmaster.bench.methods import is_known, method, seeds_of
from loadmaster.bench.records import RunLedger, RunRecord, Sheet, cluster_key
from loadmaster.bench.rows import Source, SuiteRow
from loadmaster.bench.suite import Allowance, Suite
from loadmaster.cost import price
from loadmaster.errors import InvalidSetting, MissingExtra
from loadmaster.problem import Problem
from loadmaster.problem.bounds import lower_bound
from loadmaster.search import Budget, Result, Search, solve
from loadmaster.search.warming import warm_up
from loadmaster.search.workers import in_order

MOST_MOMENTS = 64  # improvements kept in a record

Listener = Callable[[Search], None]
# Around every run, with a label; gives what listens to its search.
Watch = Callable[[str], AbstractContextManager[Listener | None]]


@dataclass(frozen=True)
class Order:
    """What is wanted of a run.

    Attributes:
        suite: what is run.
        specs: methods.
        seeds: of each method that depends on one.
        allowance: of each search.
        source: of the graphs.
        again: run finished ones once more.
        ray: address of a Ray cluster that runs rows, or auto.
        absent: methods that the suite would run if they were there.
    """

    suite: Suite
    specs: tuple[str, ...]
    seeds: int = 3
    allowance: Allowance = field(default_factory=lambda: Allowance(simulations=5_000))
    source: Source = field(default_factory=Source)
    again: bool = False
    ray: str = ""
    absent: tuple[str, ...] = ()

    @staticmethod
    def of(suite: Suite, specs: Sequence[str] | None, allowance: Allowance | None, **others: object) -> Order:
        """With what the suite says where nothing was asked for. Names that were asked for must exist."""
        if specs is not None:
            for spec in specs:
                method(spec)
        chosen = tuple(specs) if specs is not None else tuple(spec for spec in suite.specs if is_known(spec))
        absent = () if specs is not None else tuple(spec for spec in suite.specs if not is_known(spec))
        if not chosen:
            raise InvalidSetting("no method was named", "--method", "give one or more, joined with commas")
        return Order(suite, chosen, allowance=allowance or suite.allowance, absent=absent, **others)  # type: ignore[arg-type]

    def columns(self) -> list[tuple[str, Allowance]]:
        """The baseline first: the time of others may depend on it."""
        rest = [(spec, self.allowance) for spec in self.specs if spec != self.suite.baseline]
        return [(self.suite.baseline, self.suite.baseline_allowance), *rest]


@dataclass
class Outcome:
    """What a run did.

    Attributes:
        done: runs that were finished now.
        kept: were finished before.
        skipped: method -> why it could not be run.
        failed: runs that were not, and why.
        stopped: by Ctrl-C.
    """

    done: int = 0
    kept: int = 0
    skipped: dict[str, str] = field(default_factory=dict)
    failed: list[str] = field(default_factory=list)
    stopped: bool = False

    def add(self, other: Outcome) -> None:
        self.done, self.kept = self.done + other.done, self.kept + other.kept
        self.skipped |= other.skipped
        self.failed += other.failed


class _Stop:
    """Ctrl-C ends a search early with what it has; such a result is not that of its budget and must not be kept."""

    def __init__(self) -> None:
        self.asked = False

    def __call__(self, number: int, frame: FrameType | None) -> None:
        self.asked = True
        raise KeyboardInterrupt


@contextmanager
def _interruptible() -> Iterator[_Stop]:
    stop = _Stop()
    if threading.current_thread() is not threading.main_thread():
        yield stop
        return
    before = signal.signal(signal.SIGINT, stop)
    try:
        yield stop
    finally:
        signal.signal(signal.SIGINT, before)


def run(
    order: Order,
    ledger: RunLedger,
    tell: Callable[[str], None] = lambda text: None,
    watch: Watch | None = None,
    landed: Callable[[RunRecord], None] = lambda record: None,
) -> Outcome:
    """Runs what is not finished. `tell` gets a line per problem, `watch` shows a search, `landed` gets each record."""
    outcome = Outcome(skipped={spec: "not in this version" for spec in order.absent})
    rows = list(order.suite.rows(order.source))
    bench = _Bench(order, ledger, outcome, watch, landed)
    if order.ray:
        _on_ray(bench, rows, tell)
        return outcome
    with _interruptible() as stop:
        for number in range(len(rows)):
            try:
                tell(bench.row(rows[number], f"{number + 1}/{len(rows)}", stop))
            except KeyboardInterrupt:
                outcome.stopped = True
                break
            rows[number] = None  # type: ignore[call-overload]  # its graph is not needed any more
    return outcome


def _on_ray(bench: _Bench, rows: Sequence[SuiteRow], tell: Callable[[str], None]) -> None:
    """Rows at once on a cluster. Their records land here, in the order of the rows, each when its row is done."""
    jobs = [(row, f"{number}/{len(rows)}", bench.known(row)) for number, row in enumerate(rows, 1)]
    for found, part, line in in_order(_row_job, jobs, bench.order.ray, (bench.order,)):
        for record in found:
            bench.ledger.add(record)
            bench.landed(record)
        bench.outcome.add(part)
        tell(line)


def _row_job(order: Order, job: tuple[SuiteRow, str, list[RunRecord]]) -> tuple[list[RunRecord], Outcome, str]:
    row, count, known = job
    sheet, outcome = Sheet(known), Outcome()
    line = _Bench(order, sheet, outcome, None, lambda record: None).row(row, count, _Stop())
    return sheet.added, outcome, line


@dataclass
class _Bench:
    order: Order
    ledger: RunLedger
    outcome: Outcome
    watch: Watch | None
    landed: Callable[[RunRecord], None]
    warm: set[tuple[str, str, str]] = field(default_factory=set)

    def row(self, row: SuiteRow, count: str, stop: _Stop) -> str:
        """Runs what is left of one problem; gives a line about it."""
        left = list(self._left(row))
        before = self.outcome.done
        problem = None
        for spec, allowance, seed in left:
            if spec in self.outcome.skipped:
                continue
            if problem is None:
                problem = price(row.graph(), row.cluster, objective=row.objective)
                lower_bound(problem)  # so that no method's time has it
            record = self._one(row, problem, spec, allowance, seed, f"{count} {row.name}: {spec}, seed {seed}")
            if stop.asked:
                raise KeyboardInterrupt
            if record is not None:
                self.ledger.add(record)
                self.landed(record)
        return f"{count} {row.name}: {self.outcome.done - before} runs"

    def known(self, row: SuiteRow) -> list[RunRecord]:
        """What the ledger has of the row."""
        columns = [(spec, allowance, seeds_of(spec, self.order.seeds)) for spec, allowance in self.order.columns()]
        keys = [self._blank(row, spec, allowance, seed).key for spec, allowance, seeds in columns for seed in seeds]
        return [record for record in map(self.ledger.get, keys) if record is not None]

    def _left(self, row: SuiteRow) -> Iterator[tuple[str, Allowance, int]]:
        for spec, allowance in self.order.columns():
            for seed in seeds_of(spec, self.order.seeds):
                key = self._blank(row, spec, allowance, seed).key
                if self.ledger.finished(key) and not self.order.again:
                    self.outcome.kept += 1
                else:
                    yield spec, allowance, seed

    def _blank(self, row: SuiteRow, spec: str, allowance: Allowance, seed: int) -> RunRecord:
        place = (row.name, row.digest, row.cluster.name, cluster_key(row.cluster), row.objective)
        today = datetime.now(UTC).date().isoformat()
        return RunRecord(*place, spec, allowance.text, seed, date=today, version=__version__)

    def _one(
        self, row: SuiteRow, problem: Problem, spec: str, allowance: Allowance, seed: int, label: str
    ) -> RunRecord | None:
        blank = self._blank(row, spec, allowance, seed)
        try:
            budget = allowance.budget(self._baseline_seconds(row))
            self._warm_up(spec, row)
            result = self._solve(problem, spec, budget, seed, label)
        except MissingExtra as error:
            self.outcome.skipped[spec] = f"{error.what}; {error.fix}"
            return None
        except Exception as error:  # one failure must not end a run of hours; it is shown, and tried again next time
            self.outcome.failed.append(f"{label}: {type(error).__name__}: {error}")
            return _filled(blank, error=f"{type(error).__name__}: {error}")
        self.outcome.done += 1
        return _filled(blank, **facts_of(result))

    def _solve(self, problem: Problem, spec: str, budget: Budget, seed: int, label: str) -> Result:
        if self.watch is None:
            return solve(problem, method(spec), budget, seed)
        with self.watch(label) as listener:
            return solve(problem, method(spec), budget, seed, listener=listener)

    def _baseline_seconds(self, row: SuiteRow) -> float:
        suite, found = self.order.suite, []
        for seed in seeds_of(suite.baseline, self.order.seeds):
            record = self.ledger.get(self._blank(row, suite.baseline, suite.baseline_allowance, seed).key)
            found += [record.seconds] if record is not None and not record.error else []
        return float(np.mean(found)) if found else 0.0

    def _warm_up(self, spec: str, row: SuiteRow) -> None:
        kind = (spec, row.cluster.name, row.objective)
        if kind not in self.warm:
            self.warm.add(kind)
            warm_up(method(spec), row.cluster, row.objective)


def facts_of(result: Result) -> Mapping[str, object]:
    """What a record keeps of a result."""
    problem = result.problem
    moments = [(m.simulations, m.score.value) for m in result.history if m.score.over_bytes == 0]
    if len(moments) > MOST_MOMENTS:
        moments = [moments[round(at)] for at in np.linspace(0, len(moments) - 1, MOST_MOMENTS)]
    return {
        "ops": problem.num_ops,
        "devices": problem.num_devices,
        "value": result.value,
        "over_bytes": result.timeline.over_bytes,
        "bound": result.lower_bound,
        "fuses": result.plan.fuses,
        "step_ns": result.timeline.step_ns,
        "peak_bytes": int(result.timeline.peak_bytes.max()),
        "simulations": result.simulations,
        "seconds": round(result.seconds, 4),
        "history": tuple(moments),
    }


def _filled(record: RunRecord, **facts: object) -> RunRecord:
    return replace(record, **facts)  # type: ignore[arg-type]
