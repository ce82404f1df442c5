"""Jobs for processes; each of them imports this file, so it imports little."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path

import numpy as np


def dies_once(folder: Path, job: int) -> tuple[int, int, str]:
    """Kills its process the first time it is odd."""
    mark = folder / f"died-{job}"
    if job % 2 and not mark.exists():
        mark.touch()
        os.kill(os.getpid(), signal.SIGKILL)
    return 10 * job, os.getpid(), os.environ["LOADMASTER_THREADS"]


def dies(job: int) -> None:
    os._exit(1)


def sleeps(folder: Path, job: int) -> int:
    (folder / f"pid-{os.getpid()}").touch()
    time.sleep(600 if job else 0)
    return job


def writable(column: np.ndarray, job: int) -> bool:
    return bool(column.flags.writeable)
