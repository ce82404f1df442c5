"""Warming up runs an optimizer under both kinds of budget, and hides nothing but the troubles of a small graph."""

from __future__ import annotations

from dataclasses import dataclass, field

import pytest

from loadmaster.cluster import Cluster
from loadmaster.errors import MissingExtra
from loadmaster.optimizers.simple import OneDevice
from loadmaster.plans import Plan
from loadmaster.search import Search, warm_up


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


def test_a_failure_is_left_to_the_real_problem_but_a_missing_package_is_said() -> None:
    warm_up(Watching(ValueError("too small")), Cluster.preset("placeto-2"), "step-time")
    with pytest.raises(MissingExtra):
        warm_up(Watching(MissingExtra.of("torch", "torch", "a policy")), Cluster.preset("placeto-2"), "step-time")
