"""What a benchmark leaves behind: tables in files, and a line for each call.

Every figure stands beside the command that made it and the machine it was made on, without names of hosts or people.
"""

from __future__ import annotations

import json
import os
import platform
import re
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from loadmaster import __version__
from loadmaster.bench.best import BestKnown
from loadmaster.bench.figures import BudgetedMethod
from loadmaster.bench.records import RunLedger, append
from loadmaster.bench.run import Order, Outcome
from loadmaster.bench.suite import Suite
from loadmaster.bench.table import Table
from loadmaster.bench.views import tables_of
from loadmaster.files.writing import write_text

CALLS = "calls.jsonl"


def ledger_path(out: Path, stem: str) -> Path:
    """Where the runs of a suite are written down as they come, a line each."""
    return out / f"{stem}.jsonl"


def command_of(order: Order) -> str:
    """The call that makes the same run, without paths of this machine."""
    source = order.source
    words = ["loadmaster lab bench", order.suite.name, f"--method {','.join(order.specs)}", f"--seeds {order.seeds}"]
    words.append(order.allowance.words)
    if source.corpus is not None:
        words.append(f"--corpus {source.corpus.name}")
    if source.mode != "training":
        words.append(f"--mode {source.mode}")
    if source.limit is not None:
        words.append(f"--limit {source.limit}")
    if source.part != (1, 1):
        words.append(f"--part {source.part[0]}/{source.part[1]}")
    return " ".join(words)


def machine() -> dict[str, Any]:
    """What matters of the machine for a time; no names of hosts or people."""
    try:
        cores = len(os.sched_getaffinity(0))
    except AttributeError:
        cores = os.cpu_count() or 1
    return {"cores": cores, "cpu": _cpu(), "system": platform.system(), "python": platform.python_version()}


def _cpu() -> str:
    file = Path("/proc/cpuinfo")
    found = re.search(r"^model name\s*:\s*(.+)$", file.read_text(), re.MULTILINE) if file.exists() else None
    return found[1].strip() if found else platform.processor() or platform.machine()


def note_call(out: Path, order: Order, outcome: Outcome) -> None:
    """A line about this call: where the figures of a page come from."""
    line = {
        "suite": order.suite.name,
        "command": command_of(order),
        "date": datetime.now(UTC).date().isoformat(),
        "machine": machine(),
        "seeds": order.seeds,
        "budget": order.allowance.text,
        "version": __version__,
        "skipped": outcome.skipped,
        "stopped": outcome.stopped,
    }
    out.mkdir(parents=True, exist_ok=True)
    append(out / CALLS, json.dumps(line, ensure_ascii=False) + "\n")


def methods_of(order: Order) -> list[BudgetedMethod]:
    return [BudgetedMethod(spec, allowance.text) for spec, allowance in order.columns()]


def write_tables(
    suite: Suite, ledger: RunLedger, best: BestKnown, methods: Sequence[BudgetedMethod] | None = None
) -> list[Table]:
    """Writes .md and -N.csv files beside the records; gives the tables."""
    out, stem = ledger.path.parent, ledger.path.stem
    tables = tables_of(suite, ledger.records, best.values, methods)
    out.mkdir(parents=True, exist_ok=True)
    write_text(out / f"{stem}.md", "\n".join(table.markdown() for table in tables))
    for number, table in enumerate(tables, 1):
        write_text(out / f"{stem}-{number}.csv", table.csv())
    return tables
