"""What if: the same plan with one thing of the hardware changed, simulated.

Decisions and order stay as they are, so that a difference is due to the change alone. What planning anew would gain is
for `actions` to try.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np

from loadmaster.cluster import Link
from loadmaster.cost import send_time_ns
from loadmaster.graph.columns import ints
from loadmaster.problem import CANNOT, Problem
from loadmaster.report.schedule import Schedule
from loadmaster.report.trials import Trials


@dataclass(frozen=True)
class WhatIf:
    """The plan under study on changed hardware.

    Attributes:
        change: of the hardware, in words.
        step_ns: of the same plan there.
        value: of the objective there.
        gain: of the objective against the plan as it is; positive is better.
    """

    change: str
    step_ns: int
    value: int
    gain: int


def what_ifs(schedule: Schedule) -> tuple[WhatIf, ...]:
    """Faster links, free links, faster devices, free launches: one at a time, where the hardware has it."""
    problem = schedule.problem
    changes: list[tuple[str, Callable[[Problem], Problem]]] = [("devices twice as fast", _faster)]
    if len(schedule.send_tensor):
        changes.append(("links twice as fast", lambda base: with_links(base, 2.0)))
        changes.append(("links that take no time", lambda base: with_links(base, None)))
    if int(problem.launch_ns.max(initial=0)):
        changes.append(("launches that take no time", _unlaunched))
    trials, base = Trials.of(schedule), problem.value(schedule.timeline)
    rows = []
    for name, change in changes:
        scores = replace(trials, problem=change(problem)).score(schedule.device, [[]])
        value = int(scores.objective(problem)[0])
        rows.append(WhatIf(name, int(scores.step_ns[0]), value, base - value))
    return tuple(rows)


def with_links(problem: Problem, faster: float | None) -> Problem:
    """Every link `faster` times as fast; None: links that take no time."""
    links = {pair: _sped_up(link, faster) for pair, link in problem.cluster.links.items()}
    cluster = replace(problem.cluster, links=links)
    kinds = sorted(set(links.values()), key=lambda link: (link.bytes_per_s or 0, link.latency_ns))
    send_class = np.zeros((cluster.num_devices, cluster.num_devices), np.int64)
    for pair, link in links.items():
        send_class[pair] = kinds.index(link)
    sizes, where = np.unique(problem.graph.nbytes, return_inverse=True)
    table = np.array([[send_time_ns(link, int(size)) for link in kinds] for size in sizes], np.int64)
    send_ns = ints(table.reshape(len(sizes), len(kinds))[where])
    return replace(problem, cluster=cluster, send_class=ints(send_class), send_ns=send_ns)


def _sped_up(link: Link, faster: float | None) -> Link:
    if faster is None:
        return Link(None, 0)
    return Link(None if link.bytes_per_s is None else link.bytes_per_s * faster, link.latency_ns)


def _faster(problem: Problem) -> Problem:
    launches = np.minimum(problem.launches, problem.op_ns)
    return replace(problem, op_ns=ints(np.where(_runs(problem), launches + (problem.op_ns - launches) // 2, CANNOT)))


def _unlaunched(problem: Problem) -> Problem:
    left = np.maximum(problem.op_ns - problem.launches, 0)
    return replace(problem, op_ns=ints(np.where(_runs(problem), left, CANNOT)))


def _runs(problem: Problem) -> np.ndarray[tuple[int, ...], np.dtype[np.bool_]]:
    return np.asarray(problem.op_ns != CANNOT)
