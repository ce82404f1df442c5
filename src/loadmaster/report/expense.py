"""Money and energy of a step, where the cluster gives prices and watts."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from loadmaster.cluster import Cluster
from loadmaster.report.occupancy import DeviceTime

NS_PER_HOUR = 3_600 * 10**9


@dataclass(frozen=True)
class Expense:
    """None where no device says. Every device is paid for all of the step; it draws its watts while it computes, and
    its idle watts for the rest.

    Attributes:
        money: of the step, in the currency of the prices.
        money_idle: the part of it that is for time in which devices do not compute.
        energy_j: joules of the step.
    """

    money: float | None
    money_idle: float | None
    energy_j: float | None


def expense(cluster: Cluster, times: Sequence[DeviceTime], step_ns: int) -> Expense:
    """Money and energy of a step, where the cluster has prices and watts."""
    prices = [device.price_per_hour for device in cluster.devices]
    busy = [row.compute_ns for row in times]
    paid = [(price, ns) for price, ns in zip(prices, busy, strict=True) if price is not None]
    drawn = [
        (device.watts * ns + (device.idle_watts or 0.0) * (step_ns - ns)) / 1e9
        for device, ns in zip(cluster.devices, busy, strict=True)
        if device.watts is not None
    ]
    return Expense(
        sum(price * step_ns / NS_PER_HOUR for price, _ in paid) if paid else None,
        sum(price * (step_ns - ns) / NS_PER_HOUR for price, ns in paid) if paid else None,
        sum(drawn) if drawn else None,
    )
