"""Static addresses: an offset for every tensor of a plan in one arena per device; offsets within a given capacity.

`layout` takes lives from a timeline and packs each device's blocks, as near to the peak as it can; `capacity` asks the
other question, whether blocks fit a given size, and may prove that they do not. `arena` shares out the effort,
`rounding` brings an arena near its peak; `packing`, `ejection` and `fitting` are the compiled loops. What comes out is
what `files.arenas` writes and `loadmaster pack` prints.
"""

from loadmaster.simulator.arenas.capacity import Fit, fit_in
from loadmaster.simulator.arenas.layout import Arenas, assign_addresses

__all__ = ["Arenas", "Fit", "assign_addresses", "fit_in"]
