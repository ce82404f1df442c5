"""Networks run on one thread, so that sums are added up in one order."""

from __future__ import annotations

import sys

import pytest


@pytest.fixture(autouse=True)
def _one_thread() -> None:
    if "torch" in sys.modules:  # what needs none is tested without it, too
        sys.modules["torch"].set_num_threads(1)
