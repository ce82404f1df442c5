"""The simplest plans: one device, round robin, random, one that is known, and the best of several methods.

Baselines, and pieces that others are made of: `Ready` stands for a plan where a method is asked for, `a_little` lends a
method a small part of a search, and `legal` repairs a placement so that colocated ops are together and no op is where
it cannot run. Any rule for placement may end with `legal`.
"""

from __future__ import annotations

from contextlib import AbstractContextManager
from dataclasses import dataclass, field

import numpy as np

from loadmaster.catalog.specs import make_method
from loadmaster.errors import UnknownName
from loadmaster.graph.columns import Ints, ints
from loadmaster.plans import Plan
from loadmaster.problem import CANNOT, Problem
from loadmaster.search import Method, Search

A_FIFTH = 0.2  # of the time at most, for the same
A_FEW = 400  # simulations for a plan that another method goes on from
DEFAULTS = ("one-device", "expert", "heft", "etf")


@dataclass(frozen=True)
class OneDevice:
    """Everything on the device where it takes the least time, or on the first one of the name or kind given, in program
    order; what cannot run there goes where it can.

    Attributes:
        on: name or kind of the device; empty: the fastest.
    """

    on: str = ""

    def optimize(self, search: Search) -> Plan:
        problem = search.problem
        device = self._named(problem) if self.on else self._fastest(problem)
        return Plan.of(problem, legal(problem, np.full(problem.num_ops, device)))

    def _named(self, problem: Problem) -> int:
        devices = problem.cluster.devices
        for number, device in enumerate(devices):
            if self.on in (device.name, device.kind):
                return number
        raise UnknownName.among("device", self.on, [device.name for device in devices])

    def _fastest(self, problem: Problem) -> int:
        total = np.where(problem.op_ns == CANNOT, problem.best_ns[:, None], problem.op_ns).sum(axis=0)
        able = (problem.op_ns != CANNOT).sum(axis=0)
        return int(np.lexsort((np.arange(problem.num_devices), total, -able))[0])


@dataclass(frozen=True)
class RoundRobin:
    """Ops dealt out to the devices one by one, in program order."""

    def optimize(self, search: Search) -> Plan:
        problem = search.problem
        return Plan.of(problem, legal(problem, np.arange(problem.num_ops) % problem.num_devices))


@dataclass(frozen=True)
class Random:
    """The best of plans with random devices and ranks, until the budget is spent; `samples` at most.

    Attributes:
        samples: plans that are drawn, at most.
    """

    samples: int = 64

    def optimize(self, search: Search) -> Plan:
        problem, left = search.problem, self.samples
        while left and not search.spent:
            count = min(left, 16)  # not less near the end of the budget: what is drawn must not depend on it
            device = search.rng.integers(0, problem.num_devices, (count, problem.num_ops))
            rank = np.argsort(search.rng.random((count, problem.num_ops)), axis=1)
            search.score_many(np.stack([legal(problem, row) for row in device]), rank)
            left -= count
        return search.best or OneDevice().optimize(search)


@dataclass(frozen=True)
class BestOf:
    """Runs several methods, each with an equal share of what is left, and keeps the best plan.

    Attributes:
        of: in the order in which they run; what one leaves of its share the others have.
    """

    of: tuple[Method, ...] = field(default_factory=lambda: tuple(map(make_method, DEFAULTS)))

    def optimize(self, search: Search) -> Plan:
        for index, method in enumerate(self.of):
            if index and search.spent:
                break
            part = search.part(1 / (len(self.of) - index))
            plan = method.optimize(part)
            search.score(plan if part.best is None else part.best)
        assert search.best is not None
        return search.best


@dataclass(frozen=True, eq=False)
class Ready:
    """The method that has its plan already: where one is asked for as a start."""

    plan: Plan

    def optimize(self, search: Search) -> Plan:
        return self.plan


def a_little(search: Search) -> AbstractContextManager[Search]:
    """A part for another method whose plan a search goes on from: as many simulations whatever the budget is, so that
    more of them never give a worse plan, and at most a fifth of the time."""
    return search.keeping(1.0 if search.counts_simulations else A_FIFTH, simulations=A_FEW)


def legal(problem: Problem, device: Ints) -> Ints:
    """The placement with colocation groups brought together and ops moved off devices that cannot run them."""
    device, able = np.array(device, np.int64)[problem.leader], problem.able
    bad = ~able[np.arange(problem.num_ops), device]
    device[bad] = able[bad].argmax(axis=1)
    return ints(device)


def one_computes(problem: Problem) -> bool:
    """Whether there is one device, hosts apart."""
    return sum(device.kind != "cpu" for device in problem.cluster.devices) == 1
