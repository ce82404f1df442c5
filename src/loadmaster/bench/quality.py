"""Whether searches keep their word, in one go: more is never worse, small problems are closed, `placement` is the best
of its parts and `auto` of all, and where links do not contend `placement` leads. On graphs that everybody has: the
zoo's and generated ones.

Each check says what it saw, not only whether it held.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise
from typing import Any

from loadmaster.bench.methods import method
from loadmaster.bench.rows import Source, go_rows, synthetic_rows
from loadmaster.bench.run import Outcome
from loadmaster.bench.table import Column, Table
from loadmaster.cluster import Cluster
from loadmaster.cost import price
from loadmaster.errors import MissingExtra
from loadmaster.problem import Problem
from loadmaster.report.standing import standing
from loadmaster.search import Budget, Result, solve
from loadmaster.zoo.shelf import index
from loadmaster.zoo.synthetic import KINDS, generate

UNLIKE = "2xa100-nvlink+2xp100-pcie"
LADDER = (100, 300, 1_000, 3_000)  # simulations
SEARCHES = ("auto", "placement", "anneal", "local-search", "joint")
AUTO, PLACEMENT = "auto", "placement"  # the second fuses nothing, as its rivals do
SHOTS = ("heft", "etf", "cpop", "expert", "pipeline")
RIVALS = (*SHOTS, "local-search", "anneal", "brkga")
FUSING = ("separate", "greedy-fusion:inner=placement", "greedy-fusion:inner=[anneal:start=expert]")
LISTS = ("heft", "etf", "cpop", "sct", "saga-heft", "saga-etf", "saga-cpop")  # the last where SAGA is installed
SEEDS = 5
NEAR = 1.005  # times the best of the others: as good
LED = 0.95  # times the best list scheduler, in the mean, without contention
SMALL, MEDIUM = (8, 14), (20, 40)  # ops of generated graphs
MOST_OPS = 2_000  # of a graph, so that all rows take hours, not days; docs/scale.md has larger ones


Value = tuple[float, float]  # bytes over, and what is to be small


@dataclass(frozen=True)
class QualitySettings:
    """How much is tried.

    Attributes:
        graphs: of each check.
        simulations: the top of the ladder.
        seconds: for each search that the clock ends.
    """

    graphs: int = 6
    simulations: int = LADDER[-1]
    seconds: float = 2.0
    say: Callable[[str], None] = lambda text: None

    @property
    def ladder(self) -> tuple[int, ...]:
        return (*(step for step in LADDER if step < self.simulations), self.simulations)


@dataclass(frozen=True)
class Check:
    """One promise: what was seen, and whether it held.

    Attributes:
        table: what was seen.
        holds: whether the promise was kept.
        verdict: in a sentence.
    """

    table: Table
    holds: bool
    verdict: str


@dataclass(frozen=True)
class Quality:
    """What came of all checks; written and printed as a suite's report is."""

    checks: Sequence[Check]
    outcome: Outcome = field(default_factory=Outcome)

    def text(self) -> str:
        verdicts = (f"{'yes' if check.holds else 'NO'}: {check.verdict}" for check in self.checks)
        return "\n".join([*(check.table.text() for check in self.checks), *verdicts])

    def as_data(self) -> dict[str, Any]:
        checks = [{"holds": c.holds, "verdict": c.verdict, "table": c.table.as_data()} for c in self.checks]
        return {"suite": "quality", "holds": all(check.holds for check in self.checks), "checks": checks}


def quality(settings: QualitySettings) -> Quality:
    """All checks, one after the other."""
    every = (
        *(never_worse, closed, best_of_its_parts, best_over_seeds),
        *(best_of_all, best_of_all_over_seeds, without_contention),
    )
    checks = [check(settings) for check in every]
    return Quality(checks, Outcome(failed=[check.verdict for check in checks if not check.holds]))


def _rows(settings: QualitySettings) -> Iterator[tuple[str, Problem]]:
    """GO's smaller workloads and generated graphs, in turn."""
    known = index()
    published = (row for row in go_rows(Source()) if known[row.name].planned_ops <= MOST_OPS)
    generated = synthetic_rows(Source(limit=settings.graphs), UNLIKE, "step-time")
    for number in range(settings.graphs):
        row = next(published if number % 2 == 0 else generated, None)
        if row is not None:
            yield row.name, price(row.graph(), row.cluster)


def _tiny(settings: QualitySettings, ops: tuple[int, int], cluster: Cluster) -> Iterator[tuple[str, Problem]]:
    kinds = list(KINDS)
    for number in range(settings.graphs):
        kind = kinds[number % len(kinds)]
        *_, graph = generate(kind, number // len(kinds) + 1, 0, ops)
        yield graph.name, price(graph, cluster)


def _ladder(problem: Problem, spec: str, settings: QualitySettings) -> list[Result]:
    return [solve(problem, spec, Budget(None, step)) for step in settings.ladder]


def never_worse(settings: QualitySettings) -> Check:
    """More simulations never give a worse plan."""
    rows, worse = list[tuple[Any, ...]](), 0
    for name, problem in _rows(settings):
        settings.say(f"more is never worse: {name}")
        for spec in SEARCHES:
            values = [result.score for result in _ladder(problem, spec, settings)]
            fell = all(later <= earlier for earlier, later in pairwise(values))
            worse += not fell
            rows.append((name, spec, *(score.value for score in values), "" if fell else "worse"))
    heads = [Column(f"{step:,} simulations", "ms") for step in settings.ladder]
    table = Table("More is never worse: step, ms", (Column("graph"), Column("method"), *heads, Column("")), rows)
    return Check(table, worse == 0, f"more simulations were never worse ({len(rows) - worse} of {len(rows)} runs)")


def closed(settings: QualitySettings) -> Check:
    """Tiny problems are solved to the proof."""
    rows, done = list[tuple[Any, ...]](), 0
    for name, problem in _tiny(settings, SMALL, Cluster.preset(UNLIKE)):
        settings.say(f"small problems are closed: {name}")
        result = solve(problem, PLACEMENT, Budget(settings.seconds))
        done += result.optimal
        known = standing(result) if result.optimal else "open"
        rows.append((name, problem.num_ops, result.value, result.lower_bound, known))
    heads = (Column("graph"), Column("ops", "count"), Column("step, ms", "ms"), Column("bound, ms", "ms"), Column(""))
    what = f"{done} of {len(rows)} small problems were closed by {PLACEMENT} in {settings.seconds:g} s"
    return Check(Table("Small problems are closed", heads, rows), done == len(rows), what)


def best_of_its_parts(settings: QualitySettings) -> Check:
    """`placement` is as good as the best other method that fuses nothing at every budget, problem by problem."""
    return _beside(settings, PLACEMENT, RIVALS)


def best_of_all(settings: QualitySettings) -> Check:
    """The same of the default, `auto`, beside all methods, those that fuse among them."""
    return _beside(settings, AUTO, (PLACEMENT, *RIVALS, *FUSING))


def best_over_seeds(settings: QualitySettings) -> Check:
    """`placement` in the mean of some seeds, against the method that is best in the mean: whoever plans cannot know
    which seed is lucky."""
    return _beside(settings, PLACEMENT, RIVALS, SEEDS)


def best_of_all_over_seeds(settings: QualitySettings) -> Check:
    """The same of `auto`."""
    return _beside(settings, AUTO, (PLACEMENT, *RIVALS, *FUSING), SEEDS)


def _beside(settings: QualitySettings, focus: str, rivals: Sequence[str], seeds: int = 1) -> Check:
    """A method against the best of others on each row, at every budget."""
    rows, ratios = list[tuple[Any, ...]](), list[float]()
    over = f", means of {seeds} seeds" if seeds > 1 else ""
    for name, problem in _rows(settings):
        settings.say(f"{focus} beside all others{over}: {name}")
        for step in settings.ladder:
            mine = _over_seeds(problem, focus, step, seeds)
            others = {spec: _over_seeds(problem, spec, step, seeds) for spec in rivals}
            first = min(others, key=lambda spec: others[spec])
            ratios.append(_ratio(mine, others[first]))
            rows.append((name, step, round(mine[1]), first, round(others[first][1]), ratios[-1] - 1))
    heads = (Column("graph"), Column("simulations", "count"), Column(f"{focus}, ms", "ms"), Column("best other"))
    title = f"{'Placement and order' if focus == PLACEMENT else 'All three decisions'} beside all others{over}"
    table = Table(title, (*heads, Column("its step, ms", "ms"), Column(focus, "percent")), rows)
    mean, worst = _mean(ratios), max(ratios)
    what = f"{focus} is at {mean:.3f} of the best other method in the mean and {worst:.3f} at worst"
    return Check(table, mean <= 1 and worst <= NEAR, f"over {seeds} seeds {what}" if seeds > 1 else what)


def _over_seeds(problem: Problem, spec: str, simulations: int, seeds: int) -> Value:
    """(bytes over, geometric mean of the values); one-shot methods give the same for every seed."""
    drawn = range(1 if spec in SHOTS else seeds)
    scores = [solve(problem, spec, Budget(None, simulations), seed).score for seed in drawn]
    return sum(score.over_bytes for score in scores) / len(scores), _mean([max(1, score.value) for score in scores])


def without_contention(settings: QualitySettings) -> Check:
    """Where links carry any number of transfers, as the literature has it, `placement` beats list
    schedulers."""
    rows, ratios = list[tuple[Any, ...]](), list[float]()
    for name, problem in _tiny(settings, MEDIUM, replace(Cluster.preset(UNLIKE), contention=False)):
        settings.say(f"links without contention: {name}")
        mine, others = solve(problem, PLACEMENT, Budget(settings.seconds)), _lists(problem)
        first = min(others, key=lambda spec: others[spec].score)
        ratios.append(_ratio(mine.score, others[first].score))
        rows.append((name, problem.num_ops, mine.value, first, others[first].value, ratios[-1] - 1))
    heads = (Column("graph"), Column("ops", "count"), Column(f"{PLACEMENT}, ms", "ms"), Column("best list scheduler"))
    table = Table("Without contention", (*heads, Column("its step, ms", "ms"), Column(PLACEMENT, "percent")), rows)
    shares = f"{_mean(ratios):.3f} of the best list scheduler, {max(ratios):.3f} at worst"
    what = f"without contention {PLACEMENT} is at {shares}"
    return Check(table, _mean(ratios) <= LED and max(ratios) <= 1, what)


def _lists(problem: Problem) -> dict[str, Result]:
    found = {}
    for spec in LISTS:
        try:
            found[spec] = solve(problem, method(spec), Budget(None, 1))
        except MissingExtra:
            continue
    return found


def _ratio(mine: Value, other: Value) -> float:
    """Of values; where one does not fit as well as the other, that alone counts."""
    if mine[0] != other[0]:
        return 0.5 if mine < other else 2.0
    return mine[1] / other[1] if other[1] else 1.0


def _mean(ratios: Sequence[float]) -> float:
    return math.exp(sum(math.log(ratio) for ratio in ratios) / max(1, len(ratios)))
