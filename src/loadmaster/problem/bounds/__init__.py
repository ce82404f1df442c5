"""What no plan can beat: of the step time and of the peak memory."""

from loadmaster.problem.bounds.bounds import lower_bound
from loadmaster.problem.bounds.holding import Storages
from loadmaster.problem.bounds.kernels import Sharing
from loadmaster.problem.bounds.peak import cut_order, peak_bound
from loadmaster.problem.bounds.step import step_bound

__all__ = ["Sharing", "Storages", "cut_order", "lower_bound", "peak_bound", "step_bound"]
