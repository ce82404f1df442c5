"""A few of the kills of `make kills`; workers that train end with their parent; what a full disk says."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.kills import run


@pytest.mark.full
def test_nothing_is_lost_in_ten_kills(tmp_path: Path) -> None:
    assert run(10, 1, tmp_path) == []


PARENT = """
import multiprocessing, sys, time
from concurrent.futures import ProcessPoolExecutor
from loadmaster.learn.examples import alone
import os
pool = ProcessPoolExecutor(2, multiprocessing.get_context("fork"), alone)
print(*{pool.submit(os.getpid).result() for _ in range(20)}, flush=True)
time.sleep(60)
"""


@pytest.mark.skipif(sys.platform != "linux", reason="looks at /proc")
def test_workers_end_with_their_parent() -> None:
    parent = subprocess.Popen([sys.executable, "-c", PARENT], stdout=subprocess.PIPE, text=True)
    assert parent.stdout is not None
    workers = [int(word) for word in parent.stdout.readline().split()]
    assert workers
    parent.send_signal(signal.SIGKILL)
    parent.wait()
    late = time.monotonic() + 20
    while any(_lives(worker) for worker in workers) and time.monotonic() < late:
        time.sleep(0.05)
    assert not any(_lives(worker) for worker in workers)


def test_an_interrupt_does_not_wait_for_workers() -> None:
    """What they had begun has no result, and they are gone."""
    from loadmaster.learn.examples import crew

    begun = []
    with pytest.raises(KeyboardInterrupt), crew(2) as pool:
        workers = {pool.submit(os.getpid).result() for _ in range(20)}
        begun = [pool.submit(time.sleep, 30) for _ in range(4)]
        raise KeyboardInterrupt
    assert all(future.cancelled() or future.exception() is not None for future in begun)
    assert not any(_lives(worker) for worker in workers)


def _lives(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] != "Z"
    except OSError:
        return False


LIST = [sys.executable, "-m", "loadmaster.cli.verbs", "tools", "list", "clusters", "--json"]


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="has no /dev/full")
def test_a_full_disk_under_stdout_is_an_error_of_ours() -> None:
    with open("/dev/full", "w") as full:
        done = subprocess.run(LIST, stdout=full, stderr=subprocess.PIPE, text=True)
    assert done.returncode == 1
    assert "No space left on device" in done.stderr
    assert "bug" not in done.stderr and "Traceback" not in done.stderr and "Exception ignored" not in done.stderr


def test_a_closed_stdout_is_nobodys_bug() -> None:
    command = f"{' '.join(LIST)} >&-"
    done = subprocess.run(["bash", "-c", command], stderr=subprocess.PIPE, text=True)
    assert "bug" not in done.stderr and "Traceback" not in done.stderr
