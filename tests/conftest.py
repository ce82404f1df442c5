"""Hypothesis: the same examples on every machine, and nothing written beside the tests. Workers: what one has compiled
the other need not."""

from __future__ import annotations

import contextlib
import importlib
import os
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

settings.register_profile("ci", deadline=None, derandomize=True, database=None, suppress_health_check=list(HealthCheck))
settings.register_profile("hunt", settings.get_profile("ci"), derandomize=False)
settings.load_profile(os.environ.get("LOADMASTER_HYPOTHESIS", "ci"))

# Plans of one test are no starts for another, and none of them is kept among the user's own.
os.environ["LOADMASTER_PLANS"] = "off"


def pytest_configure(config: pytest.Config) -> None:
    """Every second worker imports its test files from the last one on. All of them import all of it, and in a fresh
    checkout most of that is compiling to bytecode: so two meet in the middle, instead of doing all of it twice."""
    if int(os.environ.get("PYTEST_XDIST_WORKER", "gw0").removeprefix("gw")) % 2:
        root = Path(__file__).parents[1]
        found = sorted(path for name in config.args for path in Path(name).resolve().rglob("test_*.py"))
        for path in reversed(found):
            if path.is_relative_to(root):
                with contextlib.suppress(Exception, pytest.skip.Exception):  # collecting it tells
                    importlib.import_module(".".join(path.relative_to(root).with_suffix("").parts))
