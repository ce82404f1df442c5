"""What a kernel takes, by rule 12 of the simulator: launch + max(sum of compute, remaining traffic ÷ bandwidth) + what
its ops take beyond that of their own.

Each function is written once, for whole columns as for single numbers: numpy prices and fuses problems with them,
compiled loops (`simulator.contraction`) try thousands of fusions with the same text.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from loadmaster.graph.columns import Ints, ints

MOST = 2.0**62  # ns: where a time would leave 64 bits; `price` refuses such ops by name


def moving_ns(moved: Any, rate: Any) -> Any:
    """Bytes ÷ bandwidth, rounded up: exact for every traffic that `price` lets through."""
    ns = np.int64(np.ceil(np.minimum(moved * 1e9 / rate, MOST)))
    # Above 2^53 the product is not exact and may be a nanosecond off. What is left over is small and exact even though
    # the two products wrap around.
    left = moved * 10**9 - ns * rate
    return ns + (left > 0) - (left <= -rate)


def beyond_ns(fixed: Any, compute: Any, moving: Any) -> Any:
    """What a measured op adds to its kernel; what it takes less is taken off, up to what it computes or still moves."""
    return np.maximum(fixed, -np.maximum(compute, moving))


def kernel_ns(launch: Any, compute: Any, moving: Any, beyond: Any) -> Any:
    """The time of a kernel, from sums over its ops and the longest of their launches; never below the launch."""
    return launch + np.maximum(np.maximum(compute, moving) + beyond, 0)


def time_of(compute_ns: Ints, traffic_bytes: Ints, fixed_ns: Ints, bytes_per_s: Ints, launch_ns: Ints) -> Ints:
    """[ops, devices] times of ops or kernels, launch included, that of each or of each device."""
    moving = moving_ns(traffic_bytes[:, None], bytes_per_s[None, :])
    return ints(kernel_ns(launch_ns, compute_ns, moving, fixed_ns))
