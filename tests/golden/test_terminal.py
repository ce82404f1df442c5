"""What the terminal shows, at a fixed width and without colour.

`python -m tests.golden.test_terminal` writes the texts afresh; read the difference before you keep it.
"""

from __future__ import annotations

import io
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from loadmaster import Plan, Result, lower_bound, price, simulate
from loadmaster.problem.bounds import Among
from loadmaster.report import terminal
from loadmaster.report.fit import does_not_fit
from loadmaster.report.inspection import inspect_problem
from loadmaster.report.listing import cluster_rows
from tests.graphs.tiny import diamond, pair

FOLDER = Path(__file__).parent / "terminal"
WIDTH = 100


def rendered(*parts: Any) -> str:
    screen = Console(
        file=io.StringIO(), width=WIDTH, color_system=None, markup=False, highlight=False, legacy_windows=False
    )
    for part in parts:
        screen.print(part)
    text: str = screen.file.getvalue()  # type: ignore[attr-defined]
    return "\n".join(line.rstrip() for line in text.splitlines()) + "\n"


def rows(memory_bytes: int = 2**30, objective: Any = "step-time") -> list[tuple[str, Result]]:
    """The diamond on one device, and as in the worked example of the rules: c on d1, the rest on d0."""
    problem = price(diamond(), pair(memory_bytes), objective=objective)
    named = {"one-device": [0, 0, 0, 0], "best-of:of=[heft,etf]": [0, 0, 1, 0]}
    found = []
    for name, device in named.items():
        plan = Plan.of(problem, device)
        line, bound = simulate(problem, plan), lower_bound(problem)
        found.append(
            (name, Result(problem, plan, line, name, 0, (), bound, simulations=12, seconds=0.25, among=Among("none")))
        )
    return found


def methods() -> str:
    found = rows()
    head = terminal.problem_line(found[0][1].problem, " (the default; choose with --on)")
    return rendered(head, terminal.methods_table(found), terminal.verdict(found))


def methods_too_big() -> str:
    found = rows(memory_bytes=145)
    return rendered(terminal.methods_table(found), terminal.verdict(found), str(does_not_fit(found[1][1])))


def methods_for_memory() -> str:
    found = rows(objective="peak-memory")
    return rendered(terminal.methods_table(found), terminal.verdict(found))


def inspection() -> str:
    problem = price(diamond(), pair())
    return rendered(*terminal.inspection_view(problem, inspect_problem(problem)))


def clusters() -> str:
    return rendered(terminal.clusters_table(cluster_rows()))


def known_methods() -> str:
    some = {"name": "anneal", "settings": {"start": "heft", "heat": "0.1"}, "summary": "Takes [bold] moves."}
    return rendered(
        terminal.known_methods_table([some, {"name": "heft", "settings": {}, "summary": "Earliest finish."}])
    )


def zoo() -> str:
    sizes = {"ops": 17_392, "planned_ops": 10_296, "weight_bytes": 2**29, "activation_bytes": 3 * 2**30}
    facts = {**sizes, "flops": 4_855_000_000_000, "work_over_critical_path": 2.5}
    row = {"name": "gnmt-4/train", **facts, "devices": 4, "sizes": "4 + 4 layers", "source": "Wu et al. 2016"}
    shown = [row, {**row, "name": "gnmt-4/infer"}, {**row, "name": "gpt2/train", "devices": None}]
    return rendered(terminal.zoo_table(shown), "", terminal.zoo_models_table(shown))


VIEWS: dict[str, Callable[[], str]] = {
    view.__name__: view
    for view in (methods, methods_too_big, methods_for_memory, inspection, clusters, known_methods, zoo)
}


@pytest.mark.parametrize("name", VIEWS)
def test_the_terminal_shows_the_kept_text(name: str) -> None:
    assert VIEWS[name]() == (FOLDER / f"{name}.txt").read_text()


@pytest.mark.parametrize("name", VIEWS)
def test_nothing_is_wider_than_the_window_or_coloured(name: str) -> None:
    text = VIEWS[name]()
    assert "\x1b" not in text
    assert max(map(len, text.splitlines())) <= WIDTH


def test_the_worked_example_is_shown_with_the_numbers_of_the_rules() -> None:
    line = next(line for line in methods().splitlines() if line.startswith("best-of"))
    # The rules give 74 ns and peaks of 150 and 140 bytes; one device takes 10 + 20 + 30 + 10 = 70 ns; 70 / 74 = 0.95.
    for cell in ("best-of:of=[heft,etf]", " 74 ns ", " 0.95x ", " 150 140 B ", " yes "):
        assert cell in line
    over = methods_too_big()
    assert "no, 5 B over" in over  # 150 - 145
    assert "'d0' is over by 5 B" in over


def test_every_text_has_a_view() -> None:
    assert {path.stem for path in FOLDER.iterdir()} == set(VIEWS)


if __name__ == "__main__":
    FOLDER.mkdir(exist_ok=True)
    for name, view in VIEWS.items():
        (FOLDER / f"{name}.txt").write_text(view())
