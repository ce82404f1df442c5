"""What no plan of a class can beat: of the step time and of the peak memory.

A bound says how far a plan is from the best of its class, and ends a search that has met it. `bound_of` is told whether
plans may fuse, must fit, or may add ops, and names that class with the number (`among`). `step` bounds
the time (`levels` and `crowds` by paths and work, `turns`, `together` and `sharing` by what must share a device),
`peak` the memory (`holding` by what must be held, `cuts` by minimum cuts), `held_up` the load of devices that send and
receive themselves; `kernels` says what fusing can save at most, `kinds` which devices are alike. `Work` counts what
a bound may take.
"""

from loadmaster.problem.bounds.among import Among, Bound
from loadmaster.problem.bounds.bounds import bound_of, lower_bound
from loadmaster.problem.bounds.kernels import Sharing

__all__ = ["Among", "Bound", "Sharing", "bound_of", "lower_bound"]
