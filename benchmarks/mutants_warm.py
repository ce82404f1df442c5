"""A process for `mutants.py` that has imported the packages tests need, and forks for each run of tests.

Torch alone takes longer to import than most mutants take to be seen. Nothing of loadmaster or of its tests is imported
before the fork. Lines of JSON come in, {folder, path, arguments, told}; out go the child's process, then its exit
status. The child is the first of a group of its own, so that all that its tests started can be ended with it.
"""

from __future__ import annotations

import importlib
import importlib.util
import json
import os
import signal
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

PACKAGES = (
    *("numpy", "scipy.sparse.csgraph", "scipy.optimize", "numba", "hypothesis", "pytest"),
    *("torch", "torch.nn", "torch.optim", "safetensors.torch", "onnx", "ortools.sat.python.cp_model"),
)


class Warm:
    """The process, seen from the one that asks."""

    def __init__(self, settings: dict[str, str]) -> None:
        command = [sys.executable, "-W", "ignore", __file__]
        self.process = subprocess.Popen(
            command, env=settings, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, start_new_session=True
        )

    def run(self, folder: Path, path: list[str], arguments: list[str], told: Path, seconds: float) -> int | None:
        """The exit status of pytest, None where the time ran out."""
        assert self.process.stdin is not None and self.process.stdout is not None
        job = {"folder": str(folder), "path": path, "arguments": arguments, "told": str(told)}
        self.process.stdin.write(json.dumps(job) + "\n")
        self.process.stdin.flush()
        child = int(self.process.stdout.readline())
        late = threading.Event()

        def end() -> None:
            late.set()
            os.killpg(child, signal.SIGKILL)

        timer = threading.Timer(max(1.0, seconds), end)
        timer.start()
        status = int(self.process.stdout.readline())
        timer.cancel()
        return None if late.is_set() else status

    def close(self) -> None:
        assert self.process.stdin is not None
        self.process.stdin.close()
        self.process.wait()


def tested(job: dict[str, Any]) -> int:
    """In the child: the tests."""
    out = os.open(job["told"], os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
    os.dup2(out, 1)
    os.dup2(out, 2)
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    os.chdir(job["folder"])
    sys.path[:0] = [*job["path"], job["folder"]]
    os.environ["PYTHONPATH"] = os.pathsep.join(job["path"])
    import pytest

    return int(pytest.main(job["arguments"]))


def main() -> None:
    for name in PACKAGES:
        if importlib.util.find_spec(name.partition(".")[0]) is not None:
            importlib.import_module(name)
    for line in sys.stdin:
        child = os.fork()
        if child == 0:
            os.setsid()
            status = 3
            try:
                status = tested(json.loads(line))
            finally:
                sys.stdout.flush()
                os._exit(status)
        print(child, flush=True)
        print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), flush=True)


if __name__ == "__main__":
    main()
