"""The one door to numba: `compiled`, a decorator for loops, with a cache on disk that cannot lie.

numba's own cache looks at the file of a function alone: edit a loop that others inline, and they go on running the old
one. Here the name of an entry is a digest of all that the machine code was made from: the bytecode of the function, of
every compiled function it calls, the constants they freeze, the types of the arguments, the processor, the versions of
Python and numba. What is not found under that name is compiled. An entry that is torn is compiled again.

Entries lie in `$LOADMASTER_CACHE`, or where the platform keeps caches, never beside the package. Without a place that
can be written everything works, slower, and says so once.

Names here are imported when they are first used: where compiled code is kept can be asked without numba.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from loadmaster.deferred import deferred

if TYPE_CHECKING:
    from loadmaster.compiled.clock import seconds_compiling as seconds_compiling
    from loadmaster.compiled.clock import telling as telling
    from loadmaster.compiled.entries import cache_folder as cache_folder
    from loadmaster.compiled.loops import compiled as compiled
    from loadmaster.compiled.structs import Struct as Struct

_HOMES = {
    "Struct": "structs",
    "cache_folder": "entries",
    "compiled": "loops",
    "seconds_compiling": "clock",
    "telling": "clock",
}

__all__ = ["Struct", "cache_folder", "compiled", "seconds_compiling", "telling"]

__getattr__ = deferred(__name__, _HOMES)
