"""What no plan can beat: of the step time and of the peak memory."""

from loadmaster.problem.bounds.bounds import Storages, cut_order, lower_bound, peak_bound, step_bound
from loadmaster.problem.bounds.kernels import Sharing

__all__ = ["Sharing", "Storages", "cut_order", "lower_bound", "peak_bound", "step_bound"]
