"""Other hardware: the same model planned for clusters you need not own, side by side.

The graph is priced anew for each and planned by the same method and budget, so that steps, peaks, money and energy can
be compared.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from loadmaster.cluster import Cluster
from loadmaster.cost import price
from loadmaster.errors import InvalidSetting
from loadmaster.report.expense import expense
from loadmaster.report.occupancy import device_times
from loadmaster.report.schedule import Schedule
from loadmaster.search import Budget, Result, solve


@dataclass(frozen=True)
class Hardware:
    """What a step of the model takes on one cluster.

    Attributes:
        cluster, devices: its name, and how many devices it has.
        method: that planned for it.
        step_ns: of the plan.
        peak_bytes: largest of any device.
        fits, over_bytes: whether it does, and by how much it does not.
        lower_bound: what no plan there of the class that was searched can beat.
        money, energy_j: of a step; None where the cluster does not say prices or watts.
    """

    cluster: str
    devices: int
    method: str
    step_ns: int
    peak_bytes: int
    fits: bool
    over_bytes: int
    lower_bound: int
    money: float | None
    energy_j: float | None


def hardware_of(result: Result) -> Hardware:
    """What a result is as a row of the table over clusters."""
    line, problem = result.timeline, result.problem
    times = device_times(Schedule.of(problem, result.plan, line))
    cost = expense(problem.cluster, times, line.step_ns)
    return Hardware(
        problem.cluster.name,
        problem.num_devices,
        result.method,
        line.step_ns,
        int(line.peak_bytes.max()),
        result.fits,
        line.over_bytes,
        result.lower_bound,
        cost.money,
        cost.energy_j,
    )


def on_other_hardware(
    result: Result,
    clusters: Sequence[Cluster],
    method: str = "best-of",
    budget: Budget | None = None,
) -> tuple[Hardware, ...]:
    """The plan first, then a plan for each cluster by the given method."""
    if isinstance(clusters, str) or not isinstance(clusters, Sequence):
        raise InvalidSetting.instead_of("list of clusters", clusters, "explain", "give [Cluster, …], or names")
    rows = [hardware_of(result)]
    for cluster in clusters:
        problem = price(result.problem.source, cluster, objective=result.problem.objective)
        rows.append(hardware_of(solve(problem, method, budget or Budget(5.0), result.seed)))
    return tuple(rows)
