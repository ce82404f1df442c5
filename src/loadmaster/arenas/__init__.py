"""Static addresses: an offset for every tensor of a plan in one arena per device."""

from loadmaster.arenas.layout import Arenas, assign_addresses

__all__ = ["Arenas", "assign_addresses"]
