"""A few of the kills of `make kills`; workers end with their parent; what a full disk says."""

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
import time
from loadmaster.search import workers
list(workers.in_order(abs, [1, 2], processes=2))
print(*workers._POOLS[2]._processes, flush=True)
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


def test_who_gives_up_does_not_wait_for_workers() -> None:
    from loadmaster.search import workers

    sleeping = workers.in_order(time.sleep, [0, 30, 30], processes=2)
    next(sleeping)
    begun = list(workers._POOLS[2]._processes)
    sleeping.close()
    late = time.monotonic() + 20
    while any(_lives(worker) for worker in begun) and time.monotonic() < late:
        time.sleep(0.05)
    assert begun and not any(_lives(worker) for worker in begun)


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
