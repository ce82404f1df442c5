"""What a benchmark leaves behind: tables in files, a line for each call, and the page of the documentation."""

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
from loadmaster.bench.best import BestKnown, load_best
from loadmaster.bench.figures import Method
from loadmaster.bench.picture import draw
from loadmaster.bench.records import Ledger, append, read_lines
from loadmaster.bench.run import Order, Outcome
from loadmaster.bench.suite import SUITES, Suite
from loadmaster.bench.table import Table
from loadmaster.bench.views import tables_of
from loadmaster.errors import MissingExtra
from loadmaster.writing import write_text

CALLS = "calls.jsonl"
SHOWN_ROWS = 60  # longer tables are in the CSV files only


def ledger_path(out: Path, stem: str) -> Path:
    return out / f"{stem}.jsonl"


def command_of(order: Order) -> str:
    """The call that makes the same run, without paths of this machine."""
    source = order.source
    words = ["loadmaster bench", order.suite.name, f"--with {','.join(order.specs)}", f"--seeds {order.seeds}"]
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
    """A line about this call: what the page says of where its figures come from."""
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


def methods_of(order: Order) -> list[Method]:
    return [Method(spec, allowance.text) for spec, allowance in order.columns()]


def write_tables(
    suite: Suite, ledger: Ledger, best: BestKnown, methods: Sequence[Method] | None = None
) -> tuple[list[Table], list[str]]:
    """Writes .md, -N.csv and .png files beside the records; gives the tables, and what could not be written."""
    out, stem = ledger.path.parent, ledger.path.stem
    tables, notes = tables_of(suite, ledger.records, best.values, methods), []
    out.mkdir(parents=True, exist_ok=True)
    write_text(out / f"{stem}.md", "\n".join(table.markdown() for table in tables))
    for number, table in enumerate(tables, 1):
        write_text(out / f"{stem}-{number}.csv", table.csv())
    try:
        draw(suite, ledger.records, best.values, out / f"{stem}.png", methods)
    except MissingExtra as error:
        notes.append(f"no picture: {error.what} ({error.fix})")
    return tables, notes


def write_docs(results_dir: Path, page: Path | None = None, best: BestKnown | None = None) -> str:
    """docs/benchmarks.md from a folder of results; written to `page` when one is given."""
    known = load_best() if best is None else best
    calls = read_lines(results_dir / CALLS)
    parts = [_HEAD]
    for suite in SUITES.values():
        ledger = ledger_path(results_dir, suite.name)
        if ledger.exists():
            parts.append(_section(suite, Ledger(ledger), known, [c for c in calls if c.get("suite") == suite.name]))
    if len(parts) == 1:
        parts.append("No results yet: run `loadmaster bench synthetic --out results`.\n")
    text = "\n".join(parts)
    if page is not None:
        page.parent.mkdir(parents=True, exist_ok=True)
        write_text(page, text)
    return text


_HEAD = """# Benchmarks

Every table is made by the command above it, with one simulator for all methods. Papers are re-implemented here
and run on public graphs; figures that others published are marked so, and are on other graphs. Steps are simulated.
Over another method means other ÷ method - 1 for times, and (other - method) ÷ other for improvements.
"""


def _section(suite: Suite, ledger: Ledger, best: BestKnown, calls: list[dict[str, Any]]) -> str:
    lines = [f"## {suite.name}\n"]
    commands = list(dict.fromkeys(call["command"] for call in calls))
    if commands:
        lines += ["```sh", *commands, "```\n", _circumstances(calls)]
    for table in tables_of(suite, ledger.records, best.values):
        if len(table.rows) > SHOWN_ROWS:
            lines.append(f"### {table.title}\n\n{len(table.rows)} rows, in the CSV file that the command writes.\n")
        else:
            lines.append(table.markdown())
    return "\n".join(lines)


def _circumstances(calls: list[dict[str, Any]]) -> str:
    last = calls[-1]
    dates = sorted({call["date"] for call in calls})
    when = dates[0] if len(dates) == 1 else f"{dates[0]} to {dates[-1]}"
    on = last["machine"]
    text = f"{when}; {on['cores']} cores of {on['cpu']}, {on['system']}, Python {on['python']}; "
    text += f"{last['seeds']} seed{'s' if last['seeds'] != 1 else ''}; loadmaster {last['version']}.\n"
    # A method that an earlier call skipped may have come since.
    for spec, reason in last["skipped"].items():
        text += f"\nSkipped: `{spec}`, {reason}.\n"
    return text
