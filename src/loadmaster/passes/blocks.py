"""Blocks: a much coarser problem, of stretches of the program that belong to one module."""

from __future__ import annotations

import numpy as np

from loadmaster.graph.columns import Ints, ints
from loadmaster.passes.chaining import chain_small_ops, in_a_row
from loadmaster.passes.coarse import Coarse
from loadmaster.problem import Problem

SHARES = 64  # a block takes at most one part in so many of an equal share of all work


def blocks(problem: Problem, most: int) -> Coarse | None:
    """A problem of at most so many ops, each a block: a stretch of the program within one module, at the deepest level
    of modules that is few enough; without modules, small ops in a row. None where neither gets there.

    A stretch of the program is never waited for by anything that it waits for, so blocks make no cycles.
    """
    if not any(problem.graph.scope):
        rows = chain_small_ops(problem, 1 / SHARES)
        return rows if rows is not None and rows.problem.num_ops <= most else None
    paths = [scope.split(".") if scope else [] for scope in problem.graph.scope]
    for depth in range(max(map(len, paths)), 0, -1):
        label = _stretches(problem, paths, depth)
        if len(np.unique(label)) <= most:
            coarse = in_a_row(problem, label)
            return coarse if coarse.problem.able.any(axis=1).all() else None
    return None


def _stretches(problem: Problem, paths: list[list[str]], depth: int) -> Ints:
    """[ops] the first op of each one's stretch: of one module path cut at the depth, of ops that can run on the same
    devices, and not too long."""
    names: dict[tuple[str, ...], int] = {}
    module = np.array([names.setdefault(tuple(path[:depth]), len(names)) for path in paths])
    _, able = np.unique(problem.able, axis=0, return_inverse=True)
    time = np.cumsum(problem.best_ns)
    share = np.maximum(1, time[-1] // (problem.num_devices * SHARES))
    marks = np.stack([module, able.reshape(-1), time // share])
    fresh = np.concatenate([[True], (marks[:, 1:] != marks[:, :-1]).any(axis=0)])
    return ints(np.maximum.accumulate(np.where(fresh, np.arange(problem.num_ops), 0)))
