"""The learned list scheduler: its weights, and plans of it.

Weights are what is added to HEFT's choice: with none it is HEFT, and learning can only find out where to differ. One
decoding takes about as long as a list schedule; each plan of its own is then shown to it to be improved, as long as
that helps and the budget lasts.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

import numpy as np

from loadmaster.graph.columns import ints, positions
from loadmaster.optimizers.lists.schedulers import critical_rank
from loadmaster.optimizers.ordering import best_of
from loadmaster.optimizers.policy.decoding import LATER, OVER, PAIR, Net, decode, former_of
from loadmaster.optimizers.policy.views import CONTEXT, View, view_of
from loadmaster.optimizers.policy.weights import read_weights
from loadmaster.plans import Plan
from loadmaster.problem import Problem
from loadmaster.search import WORST, Optimizer, Search

SHIPPED = Path(__file__).with_name("list.safetensors")
HIDDEN = 16  # units beside the linear part, of all weights shipped (docs/methods/policy.md)
FULLEST = 4.0  # for a device that would be too full by a tenth, before anything is learned


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
    problem: Problem,
    view: View,
    net: Net,
    given: Plan | None = None,
    *,
    noise: float = 0.0,
    seed: int = 1,
    search: Search | None = None,
) -> Iterator[Plan]:
    """Plans of the policy, from nothing or from one that is to be improved: decided by upward rank and as that plan
    starts its ops (or as the program has them), and each in the order it has itself and in that of the critical
    path."""
    former, by_rank = former_of(problem, given, search), ints(np.lexsort((np.arange(problem.num_ops), -view.level)))
    for order in (by_rank, former.order):
        device, begin, _ = decode(problem, view, net, order, former, noise=noise, seed=seed)
        yield Plan.of(problem, device, positions(np.lexsort((-view.level, begin))))
        yield Plan.of(problem, device, critical_rank(problem, device))


@dataclass(frozen=True)
class LearnedList:
    """A list schedule in which a small network says what each device is worth to the next op: it looks at when the op
    would end there, what is sent, memory, load, where the op's forward op, its readers and the ops before it are, and
    at a plan that is to be improved: that of `start`, then the best of its own.

    Trained by evolution strategies on generated steps and a corpus; before anything is learned it is HEFT (Topcuoglu,
    Hariri and Wu, 2002) that keeps clear of devices that are full.

    Attributes:
        start: whose plan it improves; by default it begins from nothing.
        weights: a file of `loadmaster train list`; by default the one that comes with the package.
        rounds: times that its own best plan is shown to it, while that helps.
    """

    start: Optimizer | None = None
    weights: str = ""
    rounds: int = 2

    def optimize(self, search: Search) -> Plan:
        problem, net, view = search.problem, named_net(self.weights), view_of(search.problem)
        plan = None if self.start is None else self.start.optimize(search)
        best = WORST if plan is None or search.spent else search.score(plan)
        for _ in range(max(1, self.rounds)):
            found, score = best_of(search, decoded(problem, view, net, plan, search=search))
            if plan is not None and score >= best:
                break
            plan, best = found, score
            if search.spent:
                break
        assert plan is not None
        return search.best or plan


@lru_cache(maxsize=4)
def named_net(path: str) -> Net:
    """The network of a file, or the one that comes with the package."""
    return net_of(read_weights(path or SHIPPED))
