"""Problem: all that a method may know, and what a plan is judged by: `objective`, a small class each.

`cost.price` makes a Problem; methods read it and nothing else, so that what they are compared by is the same for all.
`bounds` has what no plan can beat, `remembering` keeps what was made of a problem with it. Next comes `plans`: the
decisions about a problem.
"""

from loadmaster.problem.kernel_time import time_of
from loadmaster.problem.problem import CANNOT, Cost, Problem, check_problem, launch_of

__all__ = ["CANNOT", "Cost", "Problem", "check_problem", "launch_of", "time_of"]
