"""What several verbs do on the way: load and price, run methods with progress, save or explain.

Functions here print or write; what they decide is decided in the rooms below.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import count
from pathlib import Path
from typing import TYPE_CHECKING, Any

from loadmaster.cli import words
from loadmaster.errors import LoadmasterError

if TYPE_CHECKING:
    from loadmaster.problem import Problem
    from loadmaster.report.answers import ShortReport
    from loadmaster.report.explain import Report
    from loadmaster.search import Budget, Result, Start
    from loadmaster.simulator.arenas import Arenas

LOOPS = 170  # that a first `plan` compiles, some 15 s of one core
TRYING = "trying what would help, a fifth as long as the search"
# The loops that take longest to compile, of all methods that anneal.
WALKING = ("simulator.loop.run", "simulator.loop.step_time", "methods.annealing.engine.walk")
BASELINES = ("one-device", "expert")


def problem_for(
    model: str,
    on: str | None,
    objective: str,
    memory_limit: int | None,
    costs: str | None = None,
    how: Mapping[str, Any] | None = None,
    mode: str | None = None,
    assume: bool = True,
) -> tuple[Problem, str]:
    """As `words.problem_of`, with a line that says what is being loaded."""
    with status(f"loading {model}"):
        return words.problem_of(model, on, objective, memory_limit, costs, how, mode, assume)


def compile_beside() -> None:
    """On a first run, where another core is free, it compiles loops while this one loads the model."""
    from loadmaster.compiled.entries import make_beside
    from loadmaster.simulator.threads import cores

    if cores() > 1:
        make_beside("loadmaster.search.warming", WALKING)


def run_method(
    problem: Problem,
    spec: str,
    budget: Budget,
    seed: int,
    starts: Sequence[Start] = (),
    place: tuple[int, int] = (1, 1),
) -> Result:
    """`solve` with its progress on the terminal, and code compiled before the clock runs. `place`: its number of how
    many searches."""
    from loadmaster.catalog.specs import make_method
    from loadmaster.report.screen import solving
    from loadmaster.search import solve

    if budget.seconds is not None:
        from loadmaster.search.warming import warm_up

        with status("getting ready"):
            warm_up(make_method(spec), problem.cluster, problem.objective)
    number, of = place
    label = f"{number} of {of}: {spec}" if of > 1 else spec
    with solving(label, (of - number) * (budget.seconds or 0.0)) as listener:
        return solve(problem, spec, budget, seed, listener=listener, starts=starts)


def fit(result: Result, budget: Budget, seed: int, recompute: str, offload: str) -> Result:
    """The result, or where it does not fit, one with less to hold at a time."""
    if result.fits or (recompute, offload) == ("none", "none"):
        return result
    from loadmaster.planning import fitted
    from loadmaster.report.screen import solving

    with solving("recompute") as listener:
        allowed = {"recompute": recompute == "auto", "offload": offload == "auto"}
        return fitted(result, budget, seed, listener=listener, **allowed)


def run_all(problem: Problem, specs: Sequence[str], budget: Budget, seed: int) -> list[tuple[str, Result]]:
    """Each of them in turn. Ctrl-C ends the run and keeps what is there, the method under way with its best so far."""
    rows: list[tuple[str, Result]] = []
    for number, spec in enumerate(specs, 1):
        try:
            rows.append((spec, run_method(problem, spec, budget, seed, place=(number, len(specs)))))
        except KeyboardInterrupt:
            if not rows:
                raise
            break
        if rows[-1][1].interrupted:
            break
    return rows


def run_baselines(problem: Problem, budget: Budget, seed: int) -> dict[str, Result]:
    """What the plan is shown beside, with the lower bound for which the plan had time."""
    from loadmaster.search import Budget, solve

    with status("running the baselines"):
        return {name: solve(problem, name, Budget(budget.seconds, 1), seed) for name in BASELINES}


def save_or_explain(
    result: Result, memory_limit: int | None, save: Path | None, others: Mapping[str, Result] | None = None
) -> LoadmasterError | None:
    """Saves a plan that fits; gives the error for one that does not, which is never saved."""
    if not result.fits:
        from loadmaster.report.fit import does_not_fit

        return does_not_fit(result, memory_limit, others)
    if save is not None:
        result.save(save)
    return None


def lay_out(result: Result, path: Path) -> Arenas:
    """Writes an offset for all that the step keeps in memory."""
    from loadmaster.files import save_addresses
    from loadmaster.simulator import settle, simulate
    from loadmaster.simulator.arenas import assign_addresses

    problem = result.problem
    settled = settle(problem, result.plan, result.timeline)
    with status("laying out memory"):
        arenas = assign_addresses(problem, settled, simulate(problem, settled))
    save_addresses(arenas, settled, problem, path)
    return arenas


def show_methods(problem: Problem, choice: str, rows: list[tuple[str, Result]], saved: Path | None) -> None:
    """The table of methods, the best of several, and where it was saved."""
    from loadmaster.report.terminal import console, methods_table, problem_line, verdict

    screen = console()
    screen.print(problem_line(problem, choice), "", methods_table(rows), "", sep="\n")
    if len(rows) > 1:
        screen.print(verdict(rows), soft_wrap=True)
    if saved is not None:
        screen.print(f"plan written to {saved}", soft_wrap=True)


# What a result is, in words and files


def report_of(result: Result, saved: Path | None) -> Report:
    """The report of a result that is `saved` there, if anywhere."""
    from loadmaster.report.explain import explain

    with status(TRYING):
        return explain(result, saved=None if saved is None else str(saved))


def answers_of(result: Result, saved: Path | None) -> ShortReport:
    """The four answers of a result alone."""
    from loadmaster.report.answers import short_report

    with status(TRYING):
        return short_report(result, saved=None if saved is None else str(saved))


def check_targets(*targets: Path | None) -> None:
    """Refuses files that could not be written before anything is searched for."""
    for target in targets:
        if target is not None:
            words.check_writable(target)


def write_files(
    result: Result,
    compared: Sequence[Result],
    report: Path | None,
    trace: Path | None,
    found: Report | None = None,
) -> None:
    """The page and the trace of a result, where they are asked for."""
    from loadmaster.report.schedule import Schedule

    if report is not None:
        from loadmaster.report.html import write_report

        write_report(report, result, found or report_of(result, None), compared)
    if trace is not None:
        from loadmaster.report.chrome_trace import write_trace

        write_trace(trace, Schedule.of(result.problem, result.plan, result.timeline))


def tell_files(report: Path | None, trace: Path | None) -> None:
    """Says which files were written."""
    for kind, target in (("report", report), ("trace", trace)):
        if target is not None:
            print(f"{kind} written to {target}")


def tell_answers(said: ShortReport) -> None:
    """In words."""
    from loadmaster.report.screen import console, report_text

    console().print(report_text(said.short()), soft_wrap=True)


def tell_report(said: Report, result: Result) -> None:
    """The timeline, the four answers and all tables."""
    from loadmaster.report.drawing import print_timeline
    from loadmaster.report.schedule import Schedule
    from loadmaster.report.screen import console, report_text

    screen = console()
    print_timeline(screen, Schedule.of(result.problem, result.plan, result.timeline))
    width = screen.width if screen.is_terminal else None
    screen.print(report_text(said.text(width=width)), soft_wrap=True)


# What is going on


@contextmanager
def counting(doing: str, each_s: float | None) -> Iterator[Callable[[int, int], None]]:
    """Says which of how many pieces of work is going on, and how long they all take; gives what to call with them."""
    from loadmaster.report.screen import console

    screen = console(stderr=True)
    if not screen.is_terminal:
        yield lambda number, of: None
        return
    with screen.status(doing) as shown:

        def tell(number: int, of: int) -> None:
            left = "" if each_s is None else f", about {(of - number + 1) * each_s:.0f} s left"
            shown.update(f"{doing} {number} of {of}{left}")

        yield tell


@contextmanager
def status(text: str) -> Iterator[None]:
    """Says what is going on, and when it is compiling, which only a first run does."""
    if not sys.stderr.isatty():  # nobody looks: what draws it takes a while to import
        yield
        return
    from loadmaster.compiled import telling
    from loadmaster.report.screen import console

    screen = console(stderr=True)
    if not screen.is_terminal:
        yield
        return
    compiled = count(1)

    def tell() -> None:
        shown.update(f"compiling, on a first run only: loop {next(compiled)} of about {LOOPS}")

    with screen.status(text) as shown, telling(tell):
        yield
