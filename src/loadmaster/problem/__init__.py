"""Problem: all that an optimizer may know, and what a plan is judged by: `objective`, a small class each."""

from loadmaster.problem.problem import CANNOT, Cost, Problem, check_problem, time_of

__all__ = ["CANNOT", "Cost", "Problem", "check_problem", "time_of"]
