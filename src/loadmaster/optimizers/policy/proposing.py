"""Proposing: the policy's scores as the distribution that moves of annealing are drawn from."""

from __future__ import annotations

import numpy as np

from loadmaster.optimizers.annealing.proposals import Policy as Proposals
from loadmaster.optimizers.annealing.proposals import make_log
from loadmaster.optimizers.annealing.state import LEVELS
from loadmaster.optimizers.policy.decoding import Net, decode, former_of
from loadmaster.optimizers.policy.views import View
from loadmaster.plans import Plan
from loadmaster.problem import Problem

UNIFORM = 0.1  # chance of a move that asks nobody
NO_LOG = make_log(0, 1)  # of a chain that writes nothing down


def proposals(problem: Problem, view: View, net: Net, plan: Plan) -> Proposals:
    """What the network says of a plan that stands: for each op, what every device is worth."""
    former = former_of(problem, plan)
    scores = decode(problem, view, net, former.order, former, forced=True).scores
    return scored(problem, np.where(problem.able, scores, scores.min()))


def scored(problem: Problem, scores: np.ndarray) -> Proposals:
    """Scores of a decoding as proposals of annealing: every op a group of its own."""
    ops, nothing = problem.num_ops, np.zeros((0, LEVELS))
    level = np.zeros((ops, LEVELS))
    return Proposals(np.arange(ops), np.ascontiguousarray(scores, np.float64), level, nothing, nothing, UNIFORM)
