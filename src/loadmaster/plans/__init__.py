"""Plans: decisions only. `plan` holds them and names the first rule a plan breaks, `additions` says which ops run again
and which tensors are offloaded, `expansion` makes them ops of the graph, before any other rule looks.

A plan has no times: those are consequences, and `simulator` works them out.
"""

from loadmaster.plans.plan import (
    MOST_RANK,
    Plan,
    check,
    check_belongs,
    check_kernel_numbers,
    check_kinds,
    kernel_order,
    without_additions,
)

__all__ = [
    "MOST_RANK",
    "Plan",
    "check",
    "check_belongs",
    "check_kernel_numbers",
    "check_kinds",
    "kernel_order",
    "without_additions",
]
