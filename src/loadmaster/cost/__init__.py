"""Cost: what an op takes on a device, from data sheets, calibrated or measured; price makes a Problem of it.

`pricing` joins a Graph and a Cluster, and asks a `CostModel` (`roofline`) what ops take: `Roofline` from peak rates
alone, `Calibrated` with the share of the peak that ops of a kind and size reach, or `Measured` with times of real calls
and a calibrated model for the rest. `hosting` says what the host does to ask for each kernel. Floats end here: a
Problem has whole nanoseconds and bytes.
"""

from loadmaster.cost.calibrated import Calibrated, Efficiency
from loadmaster.cost.measured import Measured, OpTime, fit
from loadmaster.cost.pricing import price, send_time_ns
from loadmaster.cost.roofline import CostModel, Roofline

__all__ = ["Calibrated", "CostModel", "Efficiency", "Measured", "OpTime", "Roofline", "fit", "price", "send_time_ns"]
