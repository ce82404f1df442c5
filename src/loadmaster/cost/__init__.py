"""Cost: what an op takes on a device, from data sheets, calibrated or measured; price makes a Problem of it.

`pricing` joins a Graph and a Cluster, and asks a `CostModel` (`roofline`) what ops take: `Roofline` from peak rates
alone, `Calibrated` with the share of the peak that ops of a kind and size reach, or `Measured` with times of real calls
and a calibrated model for the rest. `hosting` says what the host does to ask for each kernel. Floats end here: a
Problem has whole nanoseconds and bytes.

Names here are imported when they are first used.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from loadmaster.deferred import deferred

if TYPE_CHECKING:
    from loadmaster.cost.calibrated import Calibrated as Calibrated
    from loadmaster.cost.calibrated import Efficiency as Efficiency
    from loadmaster.cost.measured import Measured as Measured
    from loadmaster.cost.measured import OpTime as OpTime
    from loadmaster.cost.measured import fit as fit
    from loadmaster.cost.pricing import price as price
    from loadmaster.cost.pricing import send_time_ns as send_time_ns
    from loadmaster.cost.roofline import CostModel as CostModel
    from loadmaster.cost.roofline import Roofline as Roofline

_HOMES = {
    "Calibrated": "calibrated",
    "CostModel": "roofline",
    "Efficiency": "calibrated",
    "Measured": "measured",
    "OpTime": "measured",
    "Roofline": "roofline",
    "fit": "measured",
    "price": "pricing",
    "send_time_ns": "pricing",
}

__all__ = ["Calibrated", "CostModel", "Efficiency", "Measured", "OpTime", "Roofline", "fit", "price", "send_time_ns"]

__getattr__ = deferred(__name__, _HOMES)
