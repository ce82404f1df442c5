"""Tables at 80 columns: no cell is wrapped, no number is cut, and a wide screen shows all of it."""

from __future__ import annotations

import io
import re
import shlex
from dataclasses import replace
from typing import Any

import pytest
from rich.console import Console

from loadmaster.cost import price
from loadmaster.importers import load
from loadmaster.report.answers import command_lines
from loadmaster.report.explain import explain
from loadmaster.report.inspection import inspect_problem
from loadmaster.report.listing import cluster_rows, method_rows
from loadmaster.report.terminal import (
    clusters_table,
    inspection_view,
    known_methods_table,
    methods_table,
    plain_table,
    zoo_models_table,
)
from loadmaster.report.units import column_text
from loadmaster.search import Budget, solve
from loadmaster.zoo import ENTRIES


def lines_of(view: Any, width: int = 80) -> list[str]:
    screen = Console(file=io.StringIO(), width=width, color_system=None, markup=False, highlight=False)
    screen.print(view)
    return [line.rstrip() for line in screen.file.getvalue().splitlines()]  # type: ignore[attr-defined]


def zoo_rows() -> list[dict[str, Any]]:
    rows = []
    for name in ENTRIES:
        row = {"name": f"{name}/train", "devices": 4, "sizes": "12 layers, 768 wide, 12 heads, 30,522 word pieces"}
        rows.append({**row, "source": "Devlin et al. 2018, arXiv 1810.04805"})
    return rows


@pytest.mark.parametrize(
    ("view", "rows"),
    [
        (clusters_table(cluster_rows()), len(cluster_rows())),
        (known_methods_table(method_rows()), len(method_rows())),
        (zoo_models_table(zoo_rows()), len(ENTRIES)),
    ],
    ids=["clusters", "methods", "zoo"],
)
def test_a_row_is_a_line(view: Any, rows: int) -> None:
    lines = lines_of(view)
    assert len(lines) == rows + 2 and max(map(len, lines)) <= 80
    assert len(lines_of(view, 900)) == rows + 2 and not any("…" in line for line in lines_of(view, 900))
    assert view.row_count == rows


def test_methods_and_models_of_the_zoo_fit() -> None:
    problem = price(load("zoo:inception-v3"), "8xp100-pcie", memory_limit="12GiB")
    names = ("one-device", "expert", "greedy-fusion:inner=[best-of:of=[heft,etf,expert,one-device]]")
    found = [(name, replace(solve(problem, "heft", Budget(None, 1)), method=name)) for name in names]
    for view in (methods_table(found), *inspection_view(problem, inspect_problem(problem))):
        lines = lines_of(view)
        assert max(map(len, lines)) <= 80
    rows = [line for line in lines_of(methods_table(found)) if re.search(r"\d ms", line)]
    assert len(rows) == 3 and all("yes" in row for row in rows)


def test_numbers_are_never_cut_and_columns_go_from_the_right() -> None:
    table = plain_table("~name", ">size", ">?more", "?last")
    table.add_row("a" * 60, "123,456,789", "987,654,321", "x" * 30)
    (row,) = lines_of(table, 60)[2:]
    assert "123,456,789" in row and "x" not in row
    assert "987,654,321" in row or "…" in row
    (wide,) = lines_of(table, 200)[2:]
    assert "a" * 60 in wide and "x" * 30 in wide


def test_a_column_has_one_unit() -> None:
    assert column_text([1_500_000, 950_000, 12_000_000]) == ["1500 us", "950 us", "12000 us"]
    assert column_text([2**30, 3 * 2**30], sizes=True) == ["1.00 GiB", "3.00 GiB"]


def test_a_long_command_is_one_that_a_shell_takes() -> None:
    command = (
        "loadmaster plan 'my model.json' --on 4xp100-pcie+4xp100-pcie --memory-limit '13.6 GiB' --save plan-a.json"
    )
    lines = command_lines(command, 60)
    assert max(map(len, lines)) <= 60 and len(lines) > 1
    assert shlex.split("\n".join(lines).replace("\\\n", "")) == shlex.split(command)


def test_every_table_of_a_report_is_cut_to_the_screen() -> None:
    problem = price(load("zoo:inception-v3"), "2xp100-pcie")
    found = explain(solve(problem, "heft", Budget(None, 1)), seconds=0.2)
    wide, narrow = found.text().splitlines(), found.text(width=80).splitlines()
    assert max(map(len, wide)) > 80 >= max(map(len, narrow))
    assert [line for line in wide if line.isupper()] == [line for line in narrow if line.isupper()]
