"""What the machine did is told as that: a process with too little memory has met no bug."""

from __future__ import annotations

import subprocess
import sys

import pytest

from loadmaster.cli.guarding import _of_ours


@pytest.mark.skipif(sys.platform != "linux", reason="ulimit -v binds on Linux alone")
@pytest.mark.parametrize("most_kib", [250_000, 400_000])
def test_a_limit_of_memory_is_no_bug(most_kib: int) -> None:
    plan = f"{sys.executable} -m loadmaster plan zoo:nmt --on 2xp100-pcie --simulations 2"
    done = subprocess.run(["sh", "-c", f"ulimit -v {most_kib}; {plan}"], capture_output=True, text=True, timeout=120)
    assert done.returncode == 1 and "not enough memory" in done.stderr and "ulimit -v" in done.stderr


def test_other_errors_stay_bugs() -> None:
    try:
        try:
            raise OSError("lib.so: failed to map segment from shared object")
        except OSError:
            raise OSError("could not find lib.so")  # noqa: B904
    except OSError as error:
        assert "memory" in _of_ours(error).what
    assert "bug" in _of_ours(OSError("could not find lib.so")).fix
    assert "bug" in _of_ours(ValueError("odd")).fix
