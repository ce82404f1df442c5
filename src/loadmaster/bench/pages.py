"""What a benchmark leaves behind: tables in files, a line for each call, and the page of the documentation.

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
from loadmaster.bench.best import BestKnown, load_best
from loadmaster.bench.figures import BudgetedMethod
from loadmaster.bench.picture import draw
from loadmaster.bench.records import RunLedger, append, read_lines
from loadmaster.bench.run import Order, Outcome
from loadmaster.bench.suite import SUITES, Suite
from loadmaster.bench.table import Table
from loadmaster.bench.views import tables_of
from loadmaster.errors import MissingExtra
from loadmaster.files.writing import write_text

CALLS = "calls.jsonl"
SHOWN_ROWS = 60  # longer tables are in the CSV files only


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


def methods_of(order: Order) -> list[BudgetedMethod]:
    return [BudgetedMethod(spec, allowance.text) for spec, allowance in order.columns()]


def write_tables(
    suite: Suite, ledger: RunLedger, best: BestKnown, methods: Sequence[BudgetedMethod] | None = None
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
    """The pages of a folder of results: a summary, which is returned, and beside it, in a folder of its name, a page
    for each suite and a CSV file for each of its long tables. They are written when `page` says where the summary goes.
    """
    known = load_best() if best is None else best
    calls = read_lines(results_dir / CALLS)
    rows: list[str] = []
    pages: dict[str, str] = {}
    for suite in SUITES.values():
        ledger = ledger_path(results_dir, suite.name)
        if ledger.exists():
            tables = tables_of(suite, RunLedger(ledger).records, known.values)
            mine = [call for call in calls if call.get("suite") == suite.name]
            pages |= _suite_pages(suite, tables, mine)
            rows.append(summary_row(suite.name, suite.title, [(one.title, one.shown()) for one in tables]))
    text = summary_page(rows)
    if page is not None:
        page.parent.mkdir(parents=True, exist_ok=True)
        write_text(page, text)
        for name, content in pages.items():
            (page.parent / page.stem).mkdir(exist_ok=True)
            write_text(page.parent / page.stem / name, content)
    return text


_HEAD = """# Benchmarks

Every table is made by the commands on its page, with one simulator for all methods. Papers are re-implemented here
and run on public graphs; figures that others published are marked so, and are on other graphs. Steps are simulated.
A page names the date and the version of its table; methods that changed since were not measured again.
Over another method means other ÷ method - 1 for times, and (other - method) ÷ other for improvements.
Two pages are made otherwise: [quality](benchmarks/quality.md), what searches promise, and
[saga](benchmarks/saga.md), SAGA's schedulers beside ours.
"""


def summary_page(rows: Sequence[str]) -> str:
    """One table: a line for each suite, with its best methods."""
    if not rows:
        return f"{_HEAD}\nNo results yet: run `loadmaster lab bench synthetic --out results`.\n"
    head = ["| suite | what is measured | best methods |", "|---|---|---|"]
    return "\n".join([_HEAD, *head, *rows]) + "\n"


def summary_row(name: str, title: str, tables: Sequence[tuple[str, Sequence[Sequence[str]]]]) -> str:
    """`tables`: title, and lines of cells with the head first."""
    told = next((said for table in tables if (said := headline(*table))), "see its page")
    return f"| [{name}](benchmarks/{name}.md) | {title} | {told} |"


def headline(title: str, lines: Sequence[Sequence[str]], most: int = 3) -> str:
    """The best methods of a table of methods, or of the line of means of a table of workloads; empty for others."""
    head, *body = lines
    over = next((at for at, name in enumerate(head) if name.startswith("over ")), None)
    if head[0] == "method" and over is not None:
        graphs = head.index("graphs") if "graphs" in head else None
        found = [(line[0], line[over], "" if graphs is None else f" on {line[graphs]}") for line in body]
        against = head[over]
    elif "percent over " in title and (means := next((line for line in body if line[0] == "geometric mean"), None)):
        found = [(name, value, "") for name, value in zip(head[1:], means[1:], strict=True)]
        against = title.partition("percent ")[2]
    else:
        return ""
    known = [(name, value, where) for name, value, where in found if _percent(value) is not None]
    best = sorted(known, key=lambda row: -(_percent(row[1]) or 0.0))[:most]
    return ", ".join(f"{name} {value}{where}" for name, value, where in best) + f" ({against})" if best else ""


def _percent(cell: str) -> float | None:
    match = re.fullmatch(r"([+-][\d.,]+) %", cell)
    return float(match[1].replace(",", "")) if match else None


def _suite_pages(suite: Suite, tables: Sequence[Table], calls: list[dict[str, Any]]) -> dict[str, str]:
    """File name -> text: the page of a suite, and its long tables as CSV."""
    lines, files = [f"# {suite.name}\n"], {}
    commands = list(dict.fromkeys(call["command"] for call in calls))
    if commands:
        lines += ["```sh", *commands, "```\n", _circumstances(calls)]
    for number, table in enumerate(tables, 1):
        if table.title.endswith("graph by graph") or len(table.rows) > SHOWN_ROWS:
            name = f"{suite.name}-{number}.csv"
            files[name] = table.csv()
            lines.append(f"## {table.title}\n\n{len(table.rows)} rows, in [{name}]({name}).\n")
        else:
            lines.append(table.markdown(2))
    return {f"{suite.name}.md": "\n".join(lines), **files}


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
