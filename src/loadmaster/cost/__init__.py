"""Cost: what an op takes on a device, by data sheet, learned or measured; price makes a Problem of it.

`pricing` joins a Graph and a Cluster, and asks a `CostModel` (`roofline`) what ops take: `Roofline` from peak rates
alone, `Learned` with the share of the roofline that a network predicts, or `Measured` with times of real calls and the
network for the rest. `hosting` says what the host does to ask for each kernel. Floats end here: a
Problem has whole nanoseconds and bytes.

Names here are imported when they are first used.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from loadmaster.deferred import deferred

if TYPE_CHECKING:
    from loadmaster.cost.hosting import hosted as hosted
    from loadmaster.cost.learned import Learned as Learned
    from loadmaster.cost.learned import fit as fit
    from loadmaster.cost.measured import Measured as Measured
    from loadmaster.cost.measured import OpTime as OpTime
    from loadmaster.cost.pricing import price as price
    from loadmaster.cost.pricing import send_time_ns as send_time_ns
    from loadmaster.cost.roofline import CostModel as CostModel
    from loadmaster.cost.roofline import Roofline as Roofline

_HOMES = {
    "CostModel": "roofline",
    "Learned": "learned",
    "Measured": "measured",
    "OpTime": "measured",
    "Roofline": "roofline",
    "fit": "learned",
    "hosted": "hosting",
    "price": "pricing",
    "send_time_ns": "pricing",
}

__all__ = ["CostModel", "Learned", "Measured", "OpTime", "Roofline", "fit", "hosted", "price", "send_time_ns"]

__getattr__ = deferred(__name__, _HOMES)
