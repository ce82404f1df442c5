"""Policy: plans by a learned list scheduler, a few of them, of which the best is kept."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

import numpy as np

from loadmaster.graph.columns import ints, positions
from loadmaster.optimizers.cuts import cuts
from loadmaster.optimizers.lists.schedulers import Heft, critical_rank
from loadmaster.optimizers.ordering import best_of
from loadmaster.optimizers.policy.decoding import LATER, OVER, PAIR, Net, decode, hint_of
from loadmaster.optimizers.policy.views import CONTEXT, View, view_of
from loadmaster.optimizers.policy.weights import read_weights
from loadmaster.optimizers.starts import Scored
from loadmaster.plans import Plan
from loadmaster.problem import Problem
from loadmaster.search import WORST, Search

SHIPPED = Path(__file__).with_name("policy.safetensors")
HIDDEN = 16
ROUNDS, NOISE = 4, 0.1  # of decoding, and how much is left to chance where the last one gained nothing; chosen by hand
FULLEST = 4.0  # what a device that would be too full by a tenth counts for before anything is learned; chosen by hand


def size_of(hidden: int = HIDDEN) -> int:
    """Of the vector of all weights."""
    return PAIR + hidden * (PAIR + CONTEXT + 2)


def net_of(weights: np.ndarray) -> Net:
    """The network of a vector of weights. They are what is added to HEFT: with none, the device where an op ends
    first is chosen, among those that are not too full."""
    hidden = (len(weights) - PAIR) // (PAIR + CONTEXT + 2)
    sizes = (PAIR, hidden * PAIR, hidden * CONTEXT, hidden, hidden)
    linear, of_pair, of_op, bias, out = np.split(np.asarray(weights, np.float64), np.cumsum(sizes)[:-1])
    linear = linear.copy()
    linear[LATER] -= 1.0
    linear[OVER] -= FULLEST
    return Net(
        linear, of_pair.reshape(PAIR, hidden).copy(), of_op.reshape(CONTEXT, hidden).copy(), bias.copy(), out.copy()
    )


def first_weights(seed: int, hidden: int = HIDDEN) -> np.ndarray:
    """Hidden units that look at something, and count for nothing yet."""
    rng = np.random.default_rng(seed)
    weights = np.zeros(size_of(hidden))
    inner = slice(PAIR, PAIR + hidden * (PAIR + CONTEXT))
    weights[inner] = rng.standard_normal(hidden * (PAIR + CONTEXT)) * 0.3
    return weights


def decoded(
    problem: Problem, view: View, net: Net, given: Plan | None = None, *, noise: float = 0.0, seed: int = 1
) -> Iterator[Plan]:
    """Plans of the policy, from nothing or from one that is to be improved: decided by upward rank and as that plan
    starts its ops (or as the program has them), and each in the order it has itself and in that of the critical
    path."""
    hint, by_rank = hint_of(problem, given), ints(np.lexsort((np.arange(problem.num_ops), -view.level)))
    for order in (by_rank, hint.order):
        device, begin, _ = decode(problem, view, net, order, hint, noise=noise, seed=seed)
        yield Plan.of(problem, device, positions(np.lexsort((-view.level, begin))))
        yield Plan.of(problem, device, critical_rank(problem, device))


@dataclass(frozen=True)
class Policy:
    """Plans by a list scheduler whose choice of devices was learned: a small network looks at each op and device, at
    what was decided so far, and at a plan by rules that it is to improve; then at the best it has made of it.
    """

    weights: str = ""  # a file; the ones that come with the package by default
    rounds: int = 4

    def optimize(self, search: Search) -> Plan:
        first = by_rules(search)
        improved(search, first, named_net(self.weights), self.rounds)
        return search.best or first


def by_rules(search: Search) -> Plan:
    """A plan that the policy can begin from: contiguous cuts and list schedules, whichever is best."""
    problem = search.problem
    plans = [Plan.of(problem, device, critical_rank(problem, device)) for device in cuts(problem)]
    plans += [heft.optimize(search) for heft in (Heft(memory=True), Heft())]
    return best_of(search, iter(plans))[0]


def improved(search: Search, plan: Plan, net: Net, rounds: int = ROUNDS, share: float = 1.0) -> list[Scored]:
    """What the policy makes of a plan, and of the best that it has made, as far as the budget, and that share of the
    time that is left, goes; where a round has gained nothing, the next one draws."""
    problem, found, view = search.problem, list[Scored](), view_of(search.problem)
    until, best, noise = search.seconds + share * search.seconds_left, WORST, 0.0
    for turn in range(rounds):
        for made in decoded(problem, view, net, plan, noise=noise, seed=search.seed + turn + 1):
            if search.spent:
                return found
            found.append(Scored(search.score(made), made, "learned"))
            if not search.counts_simulations and search.seconds > until:
                return found
        leader = min(found, key=lambda one: one.score)
        noise = 0.0 if leader.score < best else NOISE
        best, plan = leader.score, leader.plan
    return found


@lru_cache(maxsize=4)
def named_net(path: str) -> Net:
    return net_of(read_weights(path or SHIPPED))
