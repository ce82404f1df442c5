"""The timeline in the terminal: shares of columns, letters, memory; plain text when piped."""

from __future__ import annotations

import io

import numpy as np
from rich.console import Console

from loadmaster.cost import price
from loadmaster.graph.columns import ints
from loadmaster.report.drawing import cells, held_in_columns, print_timeline, text_lines
from loadmaster.report.explain import replayed
from tests.unit.report.subjects import by_blocks, schedule_of, tiny, training_like


def test_columns_are_filled_by_exact_shares() -> None:
    # 100 ns in 10 columns: op 0 takes 0-25, op 1 takes 25-30, op 2 takes 90-100
    found = cells(ints([0, 0, 0]), ints([0, 25, 90]), ints([25, 30, 100]), ints([0, 1, 2]), 1, 100, 10)
    assert np.allclose(found.busy[0], [1, 1, 1, 0, 0, 0, 0, 0, 0, 1])
    assert found.main[0].tolist()[:2] == [0, 0]
    assert found.main[0].tolist()[3:] == [-1] * 6 + [2]
    narrow = cells(ints([0]), ints([10]), ints([15]), ints([0]), 1, 100, 10)
    assert np.allclose(narrow.busy[0, :3], [0, 0.5, 0])


def test_shares_add_up_to_the_time_spent() -> None:
    problem = price(training_like(300), "4xp100-pcie")
    schedule = schedule_of(replayed(problem, by_blocks(problem)))
    label = ints(np.zeros(schedule.num_kernels))
    found = cells(schedule.device, schedule.start_ns, schedule.end_ns, label, 4, schedule.step_ns, 77)
    spent = np.bincount(schedule.device, schedule.end_ns - schedule.start_ns, 4)
    assert np.allclose(found.busy.mean(axis=1) * schedule.step_ns, spent)


def test_memory_columns_keep_every_spike() -> None:
    # holds 5 from 0, 9 for a moment at 51, then 2 from 52 on
    held = held_in_columns(ints([0, 51, 52]), ints([5, 9, 2]), 100, 10)
    assert held.tolist() == [5, 5, 5, 5, 5, 9, 2, 2, 2, 2]


def test_worked_example() -> None:
    lines = [line.plain for line in text_lines(schedule_of(tiny()), 120)]
    assert lines[0].split() == ["0", "74", "ns"]
    d0, memory, d1 = lines[1], lines[2], lines[3]
    assert d0.startswith("d0")
    assert d0.endswith("54 % busy")
    assert d1.endswith("41 % busy")
    bar = d1[len("d0 > d1") + 2 :].split(" ")[0]
    # c runs from 25 to 55 of 74
    assert abs(bar.index("A") / len(bar) - 25 / 74) < 0.03
    assert abs((bar.rindex("A") + 1) / len(bar) - 55 / 74) < 0.03
    assert "150 B of 1.00 GiB" in memory
    assert any(line.startswith("d0 > d1") and line.endswith("20 % busy") for line in lines)


def test_no_escape_codes_when_piped() -> None:
    sink = io.StringIO()
    print_timeline(Console(file=sink, width=100), schedule_of(tiny()))
    assert "\x1b" not in sink.getvalue()
    assert max(len(line) for line in sink.getvalue().splitlines()) <= 100


def test_plain_bars_are_ascii() -> None:
    for line in text_lines(schedule_of(tiny()), 100, plain=True):
        assert line.plain.isascii()


def test_many_devices_are_cut_short() -> None:
    problem = price(training_like(200), "24xp100-pcie")
    lines = text_lines(schedule_of(replayed(problem, by_blocks(problem))), 100)
    assert any("8 more devices" in line.plain for line in lines)
