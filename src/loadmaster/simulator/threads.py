"""Threads: calls that release Python's lock, in equal shares on all cores.

Compiled loops do, so candidates of one search are simulated side by side in one process, from one copy of the problem.
LOADMASTER_THREADS says how many threads; a share is a stretch of candidates, so that results do not depend on it.
"""

from __future__ import annotations

import os
from concurrent.futures import ThreadPoolExecutor
from itertools import pairwise

from loadmaster.errors import InvalidSetting

MOST_THREADS = 4096  # more is a slip of the keyboard

_pool: list[ThreadPoolExecutor] = []


def cores() -> int:
    """How many threads to use: LOADMASTER_THREADS where it is set, else as many as there are cores."""
    given = os.environ.get("LOADMASTER_THREADS", "").strip()
    if given and not (given.isascii() and given.isdigit() and 1 <= int(given[:9]) <= MOST_THREADS):
        raise InvalidSetting(
            f"LOADMASTER_THREADS is '{given[:40]}'", "the environment", f"give a whole number from 1 to {MOST_THREADS}"
        )
    return int(given) if given else max(1, os.cpu_count() or 1)


def spread(part: object, count: int, workers: int | None = None, *, little: bool = False) -> None:
    """Calls part(low, high) over 0 … count-1 in equal shares on as many threads; `part` must release the GIL.

    Where there is `little` to do, and nobody asks for workers, the thread that calls does it."""
    assert callable(part)
    if not (workers is None or isinstance(workers, int)):
        raise InvalidSetting.instead_of("number of threads", workers, "workers", "give a whole number, or None")
    threads = min(workers or cores(), count)
    if threads <= 1 or (little and workers is None):
        part(0, count)
        return
    if not _pool:
        _pool.append(ThreadPoolExecutor(cores()))
    *others, own = pairwise([count * i // threads for i in range(threads + 1)])
    jobs = [_pool[0].submit(part, *share) for share in others]
    part(*own)
    for job in jobs:
        job.result()
