"""What `loadmaster lab bench` does: run suites, or look for best-known values."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from loadmaster.bench.best import BestKnown, KnownValue, load_best, long_specs, shipped_path
from loadmaster.bench.methods import is_known
from loadmaster.bench.pages import ledger_path, methods_of, note_call, write_tables
from loadmaster.bench.records import RunLedger, RunRecord
from loadmaster.bench.rows import Source
from loadmaster.bench.run import Order, Outcome, Watch, run
from loadmaster.bench.suite import Allowance, Suite, suites_of
from loadmaster.bench.table import Table
from loadmaster.errors import InvalidSetting


@dataclass(frozen=True)
class BenchSettings:
    """The options of the verb.

    Attributes:
        best: another file of best-known values.
        ray: address of a Ray cluster that runs rows, or auto.
    """

    specs: Sequence[str] | None = None
    seeds: int | None = None
    allowance: Allowance | None = None
    source: Source = field(default_factory=Source)
    out: Path = Path("results")
    best: Path | None = None
    again: bool = False
    watch: Watch | None = None
    say: Callable[[str], None] = lambda text: print(text, file=sys.stderr)
    ray: str = ""


@dataclass(frozen=True)
class SuiteReport:
    """What came of one suite."""

    suite: Suite
    tables: list[Table]
    outcome: Outcome
    notes: list[str] = field(default_factory=list)

    def as_data(self) -> dict[str, Any]:
        return {
            "suite": self.suite.name,
            "runs": self.outcome.done,
            "finished_before": self.outcome.kept,
            "skipped": self.outcome.skipped,
            "failed": self.outcome.failed,
            "stopped": self.outcome.stopped,
            "tables": [table.as_data() for table in self.tables],
        }

    def text(self) -> str:
        counts = f"{self.outcome.done} runs, {self.outcome.kept} were finished before"
        lines = [f"skipped: {spec}: {why}" for spec, why in self.outcome.skipped.items()]
        lines += [f"failed: {line}" for line in self.outcome.failed] + self.notes
        if self.outcome.stopped:
            lines.append("stopped; the same command goes on from here")
        return "\n".join([*(table.text() for table in self.tables), counts, *lines])


def parse_part(text: str | None) -> tuple[int, int]:
    """(2, 3) of "2/3"."""
    if text is None:
        return 1, 1
    part, _, of = text.partition("/")
    if not (part.isdecimal() and of.isdecimal() and 1 <= int(part) <= int(of)):
        raise InvalidSetting(f"'{text}' is no part", "--part", "write 2/3 for the second of three parts")
    return int(part), int(of)


def bench(name: str, settings: BenchSettings) -> list[SuiteReport]:
    """Runs a suite or a group of them."""
    reports = []
    for suite in suites_of(name):
        order = _order(suite, settings, settings.specs, settings.allowance)
        reports.append(_run(order, settings, load_best(settings.best), lambda record: None))
        if reports[-1].outcome.stopped:
            break
    return reports


def bench_best(name: str, settings: BenchSettings) -> list[SuiteReport]:
    """Long runs of every method, each better value written at once; results already at hand count too.

    Their records are kept apart from the suite's, so that its tables do not show them.
    """
    if settings.allowance is None or settings.allowance.simulations is None:
        raise InvalidSetting("best-known values rest on a number of simulations", "", "give --simulations 200000")
    path = settings.best or shipped_path()
    specs = settings.specs or [spec for spec in long_specs(settings.allowance.simulations) if is_known(spec)]
    reports = []
    for suite in suites_of(name):
        best = load_best(path)
        found = best.offer_records(RunLedger(ledger_path(settings.out, suite.name)).records)
        improve = _Improve(best, path, found)
        order = _order(suite, settings, specs, settings.allowance, seeds=1)
        report = _run(order, settings, best, improve, f"best-{suite.name}")
        best.save(path)
        report.notes.append(f"{improve.count} values are better than before; {len(best)} are known, in {path.name}")
        reports.append(report)
        if report.outcome.stopped:
            break
    return reports


def call(words: Sequence[str], settings: BenchSettings) -> list[SuiteReport]:
    """What the words after `bench` ask for: a suite, or "best" and a suite."""
    match list(words):
        case ["best", name]:
            return bench_best(name, settings)
        case [name]:
            return bench(name, settings)
    what = f"'{' '.join(words)}' is not one suite"
    raise InvalidSetting(what, "loadmaster lab bench", "write SUITE or 'best SUITE'")


@dataclass
class _Improve:
    """Offers each record as it lands, and writes the file when it was better."""

    best: BestKnown
    path: Path
    count: int = 0

    def __call__(self, record: RunRecord) -> None:
        usable = not record.error and record.fits and not record.fuses
        if usable and self.best.offer(KnownValue.of(record)):
            self.count += 1
            self.best.save(self.path)


def _order(
    suite: Suite,
    settings: BenchSettings,
    specs: Sequence[str] | None,
    allowance: Allowance | None,
    seeds: int = 3,
) -> Order:
    count = settings.seeds if settings.seeds is not None else seeds
    return Order.of(
        suite, specs, allowance, seeds=count, source=settings.source, again=settings.again, ray=settings.ray
    )


def _run(
    order: Order, settings: BenchSettings, best: BestKnown, landed: Callable[[RunRecord], None], stem: str = ""
) -> SuiteReport:
    ledger = RunLedger(ledger_path(settings.out, stem or order.suite.name))
    outcome = run(order, ledger, settings.say, settings.watch, landed)
    if not stem:
        note_call(settings.out, order, outcome)
    return SuiteReport(order.suite, write_tables(order.suite, ledger, best, methods_of(order)), outcome)
