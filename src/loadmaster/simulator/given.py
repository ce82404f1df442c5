"""What callers give to many runs at once, looked at before the compiled loops trust it: these take indices as they are,
so that an entry off the cluster or a row too short would read and write outside their arrays."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from loadmaster.errors import InvalidPlan, InvalidSetting
from loadmaster.graph.columns import given_ints
from loadmaster.problem import Problem


def check_places(problem: Problem, device: NDArray[np.integer]) -> None:
    """Refuses placements of another number of ops, or off the cluster."""
    if device.shape[-1:] != (problem.num_ops,) or (
        device.size and not 0 <= device.min() <= device.max() < problem.num_devices
    ):
        what = f"a placement of {device.shape[-1]} ops on devices {device.min()} to {device.max()}"
        fix = f"place {problem.num_ops} ops on devices 0 to {problem.num_devices - 1}; `check` says which is wrong"
        raise InvalidPlan(what, f"'{problem.graph.name}' on '{problem.cluster.name}'", fix)


def given_places(problem: Problem, device: Any, where: str) -> NDArray[np.integer]:
    """[candidates, ops] of a caller."""
    table = device if isinstance(device, np.ndarray) else given_ints(device, where)
    if table.ndim != 2 or table.dtype.kind not in "iu":
        raise InvalidSetting(f"placements of shape {table.shape}", where, "give [candidates, ops] devices")
    check_places(problem, table)
    return table


def given_rows(problem: Problem, rows: Any, candidates: int, what: str, where: str) -> NDArray[np.integer]:
    """[candidates or 1, ops] of a caller: a row for each candidate, or one for all; of an empty one, [1, 0]."""
    table = np.atleast_2d(rows if isinstance(rows, np.ndarray) else given_ints(rows, where))
    shapes = ((1, 0), (1, problem.num_ops), (candidates, problem.num_ops))
    if table.shape not in shapes or table.dtype.kind not in "iu":
        fix = f"give [{problem.num_ops}], or [{candidates}, {problem.num_ops}] whole numbers"
        raise InvalidSetting(f"{what} of shape {np.shape(rows)}", where, fix)
    return table
