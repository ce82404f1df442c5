"""Suites: which problems are run, which methods on each, and under what budget.

A suite is data; `loadmaster lab bench NAME` runs it; the pages of docs/benchmarks have its tables.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Literal

from loadmaster.bench.rows import (
    Source,
    SuiteRow,
    corpus_rows,
    family_rows,
    go_rows,
    model_rows,
    peer_zoo_rows,
    synthetic_rows,
    tight_rows,
    zoo_rows,
)
from loadmaster.errors import InvalidSetting, UnknownName
from loadmaster.search import Budget

UNLIKE = "2xa100-nvlink+2xp100-pcie"

Shape = Literal["improvement", "speed-up", "peers"]  # what the tables of a suite show


@dataclass(frozen=True)
class Allowance:
    """What each search may use.

    Attributes:
        simulations, seconds: the limits of its Budget; None: no limit of that kind.
        times: so many times the seconds that the baseline took on that problem, where that is more.
    """

    simulations: int | None = None
    seconds: float | None = None
    times: float | None = None

    def __post_init__(self) -> None:
        if self.times is not None and self.seconds is None:
            fix = "say how many seconds it gets at least: --seconds 2"
            raise InvalidSetting("time in proportion to the baseline's needs a least time", "--times-baseline", fix)
        self.budget(0.0)

    def budget(self, baseline_seconds: float) -> Budget:
        seconds = self.seconds
        if seconds is not None and self.times is not None:
            seconds = max(seconds, self.times * baseline_seconds)
        return Budget(seconds, self.simulations)

    @property
    def text(self) -> str:
        parts = [] if self.simulations is None else [f"{self.simulations:,} simulations"]
        if self.seconds is not None:
            parts.append(f"{self.seconds:g} s")
        shown = ", ".join(parts)
        return shown if self.times is None else f"{shown} or {self.times:g}x baseline"

    @property
    def words(self) -> str:
        """As on the command line."""
        given = (("simulations", self.simulations), ("seconds", self.seconds), ("times-baseline", self.times))
        return " ".join(f"--{name} {value:g}" for name, value in given if value is not None)


@dataclass(frozen=True)
class Suite:
    """Problems, methods and a budget that one table is made from.

    Attributes:
        name: as typed.
        title: of its page.
        shape: of its tables.
        rows: makes the problems of a source.
        baseline: the method that others are shown against.
        specs: those not in the catalog yet are left out, and said so.
        allowance, baseline_allowance: of each search, unless another is asked for.
        focus: the method that is compared with every other.
    """

    name: str
    title: str
    shape: Shape
    rows: Callable[[Source], Iterator[SuiteRow]]
    baseline: str
    specs: tuple[str, ...]
    allowance: Allowance = Allowance(simulations=5_000)
    baseline_allowance: Allowance = Allowance(simulations=5_000)
    focus: str = "placement"


_REGAL = (
    "gp-dfs",
    "local-search",
    "anneal",
    "tuned-brkga",
    "regal:actions=random",
    "regal:checkpoint=none",
    "regal:population=5000",
    "gas",
    "regal",
    "placement",
)
_GO = (
    "one-device",
    "expert-best-order",
    "metis",
    "heft",
    "etf",
    "rnn:rate=0",
    "rnn",
    "hdp:rate=0",
    "hdp",
    "anneal",
    "random:samples=8",
    "go:checkpoint=none",
    "go",
    "go:finetune=50,rate=0",
    "go:finetune=50",
    "go-one:rate=0",
    "go-one",
    "placement",
)
_PLACETO = (
    "one-device",
    "scotch",
    "rnn:rate=0",
    "rnn",
    "placeto:rate=0",
    "placeto",
    "placement",
)
_TIGHT = ("expert", "m-etf", "m-heft", "m-sct", "local-search", "anneal", "placement")
_FAMILIES = (
    "one-device",
    "placeto:tune=no",
    "placeto:rate=0",
    "placeto",
    "placement",
)
_FUSION = (
    "greedy-fusion:inner=expert",
    "random-fusion:inner=expert",
    "anneal-fusion:inner=expert",
    "go-one:tasks=fusion,rate=0",
    "go-one:tasks=fusion",
)
_JOINT = (
    "separate:tasks=[placement]",
    "separate:tasks=[schedule]",
    "separate:tasks=[fusion]",
    "separate",
    "go-one:tasks=[fusion,placement,schedule],rate=0",
    "go-one:tasks=[fusion,placement,schedule]",
    "joint",
    "auto",
)
_ORDERS = ("inductor-lpmf", "inductor-bfs", "inductor-dfs", "inductor", "memory-order", "anneal-order", "placement")
# The workloads for which GO's paper has figures of fusion alone.
_FUSED_BY_GO = (
    "rnnlm-4",
    "rnnlm-8",
    "gnmt-2",
    "gnmt-4",
    "gnmt-8",
    "transformer-xl-2",
    "transformer-xl-4",
    "transformer-xl-8",
)
_ONCE = Allowance(simulations=100)  # for one-shot baselines
_SHORT = Allowance(seconds=10.0)


def _like_regal(
    name: str,
    title: str,
    rows: Callable[[Source, str, str], Iterator[SuiteRow]],
    cluster: str,
    objective: str,
) -> Suite:
    return Suite(
        name,
        title,
        "improvement",
        lambda source: rows(source, cluster, objective),
        "brkga-5k",
        _REGAL,
    )


_TWO: tuple[str, str] = ("regal", "peak-memory")
_FOUR: tuple[str, str] = (UNLIKE, "peak-memory")
_TIME: tuple[str, str] = (UNLIKE, "step-time")

SUITES: Mapping[str, Suite] = {
    suite.name: suite
    for suite in (
        _like_regal("regal", "Peak memory on two equal devices", corpus_rows, *_TWO),
        _like_regal("regal-unlike", "Peak memory on four unlike devices", corpus_rows, *_FOUR),
        _like_regal("regal-time", "Step time on four unlike devices", corpus_rows, *_TIME),
        _like_regal("zoo", "Peak memory of the zoo on two equal devices", zoo_rows, *_TWO),
        _like_regal("synthetic-regal", "Generated graphs: peak memory, two devices", synthetic_rows, *_TWO),
        _like_regal("synthetic-unlike", "Generated graphs: peak memory, unlike", synthetic_rows, *_FOUR),
        _like_regal("synthetic-time", "Generated graphs: step time, unlike", synthetic_rows, *_TIME),
        Suite(
            "go",
            "Step time of GO's workloads on P100",
            "speed-up",
            go_rows,
            "expert",
            _GO,
            _SHORT,
            _ONCE,
        ),
        Suite(
            "tight",
            "Step time with little more memory than the least",
            "speed-up",
            tight_rows,
            "pipeline",
            _TIGHT,
            Allowance(simulations=2_000),
            _ONCE,
        ),
        Suite(
            "placeto",
            "Step time of Placeto's models on its clusters",
            "speed-up",
            partial(model_rows, models=("inception-v3", "nasnet", "nmt"), clusters=("placeto-2", "placeto-4")),
            "expert",
            _PLACETO,
            Allowance(simulations=2_000),
            _ONCE,
            focus="placeto",
        ),
        Suite(
            "families",
            "Step time of members that no policy was trained on",
            "speed-up",
            partial(family_rows, clusters=("placeto-2", "placeto-4")),
            "expert",
            _FAMILIES,
            Allowance(simulations=2_000),
            _ONCE,
            focus="placeto:tune=no",
        ),
        Suite(
            "mirhoseini",
            "Step time of Mirhoseini's models on K80 and a CPU",
            "speed-up",
            partial(model_rows, models=("rnnlm", "nmt", "inception-v3"), clusters=("2xk80+1xcpu", "4xk80+1xcpu")),
            "expert",
            ("one-device:on=cpu", "one-device", "metis", "scotch", "rnn:rate=0", "rnn", "placement"),
            Allowance(simulations=2_000),
            _ONCE,
            focus="rnn",
        ),
        Suite(
            "go-fusion",
            "Fusion under the expert's placement",
            "speed-up",
            partial(go_rows, only=_FUSED_BY_GO),
            "expert",
            _FUSION,
            _SHORT,
            _ONCE,
            focus="anneal-fusion:inner=expert",
        ),
        Suite(
            "joint",
            "Joint against separate decisions on P100",
            "speed-up",
            go_rows,
            "greedy-fusion:inner=[metis:order=fifo]",
            _JOINT,
            _SHORT,
            _ONCE,
            focus="auto",
        ),
        Suite(
            "peers-zoo",
            "Peak memory of one device against other tools, the zoo",
            "peers",
            peer_zoo_rows,
            "given-order",
            _ORDERS,
            _SHORT,
            _ONCE,
        ),
    )
}

# A name for several suites, in the order in which they are run.
GROUPS: Mapping[str, tuple[str, ...]] = {
    "synthetic": ("synthetic-regal", "synthetic-unlike", "synthetic-time", "zoo"),
}


def suites_of(name: str) -> list[Suite]:
    """One suite, or all of a group."""
    if name in GROUPS:
        return [SUITES[each] for each in GROUPS[name]]
    if name not in SUITES:
        raise UnknownName.among("suite", name, [*SUITES, *GROUPS], "loadmaster lab bench")
    return [SUITES[name]]
