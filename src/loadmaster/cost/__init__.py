"""Cost: what an op takes on a device, from data sheets, calibrated or measured; price makes a Problem of it."""

from loadmaster.cost.calibrated import Calibrated, Efficiency
from loadmaster.cost.measured import Measured, OpTime, fit
from loadmaster.cost.pricing import price, send_time_ns
from loadmaster.cost.roofline import CostModel, Roofline

__all__ = ["Calibrated", "CostModel", "Efficiency", "Measured", "OpTime", "Roofline", "fit", "price", "send_time_ns"]
