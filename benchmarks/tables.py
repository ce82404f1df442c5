"""The tables of docs/benchmarks, several processes at once: what `loadmaster bench SUITE` does, row by row.

    python benchmarks/tables.py FOLDER [--suites go joint zoo] [--workers 8] [--without placement] [--stop 400]
    loadmaster bench docs --out FOLDER

FOLDER gets the records of each suite, to which the same command adds what is missing, and a line about the call. Each
process has one thread. Searches by the clock want cores of their own.
"""

from __future__ import annotations

import argparse
import os
import time
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import replace
from itertools import zip_longest
from multiprocessing import get_context
from pathlib import Path

from loadmaster.bench.pages import ledger_path, note_call
from loadmaster.bench.records import Ledger
from loadmaster.bench.rows import Source
from loadmaster.bench.run import Order, Outcome, run
from loadmaster.bench.suite import SUITES, Allowance

CHOSEN = {  # which rows, and how many jobs they make
    "go": (Source(), 14),
    "joint": (Source(), 14),
    "go-fusion": (Source(), 8),
    "placeto": (Source(), 6),
    "zoo": (Source(limit=18), 9),
    "regal": (Source(part=(1, 8)), 8),
    "regal-unlike": (Source(part=(1, 8)), 8),
    "regal-time": (Source(part=(1, 8)), 8),
    "synthetic-regal": (Source(limit=30), 4),
    "synthetic-unlike": (Source(limit=30), 4),
    "synthetic-time": (Source(limit=30), 4),
    "mirhoseini": (Source(), 6),
    "families": (Source(limit=24), 6),
}


def main() -> None:
    given = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    given.add_argument("folder", type=Path)
    given.add_argument("--suites", nargs="+", default=list(CHOSEN))
    given.add_argument("--workers", type=int, default=2)
    given.add_argument("--seconds", type=float, help="of each search, on suites that go by the clock")
    given.add_argument("--without", nargs="+", default=[], help="methods that are left out")
    given.add_argument("--stop", type=float, default=1e9, help="no job begins so many seconds from now")
    words = given.parse_args()
    until = time.time() + words.stop
    orders = [order_of(name, words.without, words.seconds) for name in words.suites]
    each = [jobs_of(order) for order in orders]
    jobs = [job for turn in zip_longest(*each) for job in turn if job is not None]  # a cut leaves some of every suite
    late = 0
    with ProcessPoolExecutor(words.workers, get_context("spawn"), begin) as pool:
        waiting = [pool.submit(work, plain(job), words.folder, until) for job in jobs]
        for count, ready in enumerate(as_completed(waiting), 1):
            said = ready.result()
            late += said is None
            if said:
                print(f"{count}/{len(jobs)} {said}", flush=True)
    for order in orders:
        note_call(words.folder, order, Outcome())
    if late:
        print(f"{late} of {len(jobs)} jobs were not begun; the same command goes on from here", flush=True)


def order_of(name: str, without: list[str], seconds: float | None) -> Order:
    suite = SUITES[name]
    timed = suite.allowance.seconds is not None and seconds is not None
    order = Order.of(suite, None, Allowance(seconds=seconds) if timed else None, seeds=1, source=CHOSEN[name][0])
    return replace(order, specs=tuple(spec for spec in order.specs if spec not in without))


def jobs_of(order: Order) -> list[Order]:
    """Some rows each; where the clock counts, and methods take long, also one method each."""
    (part, of), parts = order.source.part, CHOSEN[order.suite.name][1]
    some = [replace(order, source=replace(order.source, part=(part + of * turn, of * parts))) for turn in range(parts)]
    if order.allowance.seconds is None:
        return some
    return [replace(job, specs=(spec,)) for spec in reversed(order.specs) for job in some]


Plain = tuple[str, tuple[str, ...], Allowance, Source]  # an order as processes hand it on


def plain(order: Order) -> Plain:
    return order.suite.name, order.specs, order.allowance, order.source


def begin() -> None:
    os.environ["LOADMASTER_THREADS"] = os.environ["OMP_NUM_THREADS"] = "1"


def work(job: Plain, folder: Path, until: float) -> str | None:
    if time.time() > until:
        return None
    name, specs, allowance, source = job
    order = Order(SUITES[name], specs, 1, allowance, source)
    clock = time.monotonic()
    outcome = run(order, Ledger(ledger_path(folder, order.suite.name)))
    failed = "".join(f"\n  failed: {line}" for line in outcome.failed)
    skipped = "".join(f"\n  skipped: {spec}: {why}" for spec, why in outcome.skipped.items())
    what = f"{order.suite.name} {order.source.part} {','.join(order.specs)[:60]}"
    return f"{what}: {outcome.done} runs, {time.monotonic() - clock:.0f} s{failed}{skipped}"


if __name__ == "__main__":
    main()
