"""Static addresses: an offset for every tensor of a plan in one arena per device; offsets within a given capacity.

`layout` takes lives from a timeline and packs each device's blocks, as near to the peak as it can; `capacity` asks the
other question, whether blocks fit a given size, and may prove that they do not. `arena` shares out the effort,
`rounding` brings an arena near its peak; `packing`, `ejection` and `fitting` are the compiled loops. What comes out is
what `files.arenas` writes and `loadmaster lab pack` prints.

Names here are imported when they are first used: `capacity` needs nothing but numpy and compiled loops.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from loadmaster.deferred import deferred

if TYPE_CHECKING:
    from loadmaster.simulator.arenas.capacity import Fit as Fit
    from loadmaster.simulator.arenas.capacity import fit_in as fit_in
    from loadmaster.simulator.arenas.layout import Arenas as Arenas
    from loadmaster.simulator.arenas.layout import assign_addresses as assign_addresses

_HOMES = {
    "Arenas": "layout",
    "Fit": "capacity",
    "assign_addresses": "layout",
    "fit_in": "capacity",
}

__all__ = [
    "Arenas",
    "Fit",
    "assign_addresses",
    "fit_in",
]

__getattr__ = deferred(__name__, _HOMES)
