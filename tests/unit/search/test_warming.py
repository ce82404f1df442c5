"""Warming up runs a method under both kinds of budget, and hides nothing but the troubles of a small graph."""

from __future__ import annotations

from dataclasses import dataclass, field

import pytest

from loadmaster.baselines.simple import OneDevice
from loadmaster.cluster import Cluster
from loadmaster.errors import MissingExtra
from loadmaster.plans import Plan
from loadmaster.search import Search
from loadmaster.search.warming import warm_up


@dataclass
class Watching:
    """Notes what kind of budget it ran under."""

    error: Exception | None = None
    seen: list[bool] = field(default_factory=list)

    def optimize(self, search: Search) -> Plan:
        self.seen.append(search.counts_simulations)
        if self.error is not None:
            raise self.error
        return OneDevice().optimize(search)


def test_both_kinds_of_budget_are_warm() -> None:
    watching = Watching()
    warm_up(watching, Cluster.preset("placeto-2"), "step-time")
    assert watching.seen == [True, False]


def test_the_clock_of_a_search_stands_still_while_code_is_compiled(monkeypatch: pytest.MonkeyPatch) -> None:
    from loadmaster import compiled
    from loadmaster.compiled.clock import CLOCK
    from loadmaster.search import search

    now, compiling = [100.0], [0.0]
    monkeypatch.setattr(search.time, "perf_counter", lambda: now[0])
    monkeypatch.setattr(search, "seconds_compiling", lambda: compiling[0])
    ledger = search._Ledger()
    now[0], compiling[0] = 130.0, 28.0
    assert ledger.seconds == pytest.approx(2.0)
    monkeypatch.undo()
    before = compiled.seconds_compiling()
    with CLOCK, CLOCK:
        assert compiled.seconds_compiling() >= before
    assert CLOCK.depth == 0


def test_a_failure_is_left_to_the_real_problem_but_a_missing_package_is_said() -> None:
    warm_up(Watching(ValueError("too small")), Cluster.preset("placeto-2"), "step-time")
    with pytest.raises(MissingExtra):
        warm_up(Watching(MissingExtra.of("torch", "torch", "a policy")), Cluster.preset("placeto-2"), "step-time")
