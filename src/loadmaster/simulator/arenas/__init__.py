"""Static addresses: an offset for every tensor of a plan in one arena per device; offsets within a given capacity."""

from loadmaster.simulator.arenas.capacity import Fit, fit_in
from loadmaster.simulator.arenas.layout import Arenas, assign_addresses

__all__ = ["Arenas", "Fit", "assign_addresses", "fit_in"]
