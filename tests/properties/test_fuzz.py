"""Five hundred of the cases of `make fuzz`."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.fuzz import Cases

# Those whose loops other tests compile anyway; `make fuzz` has all.
METHODS = ("one-device", "expert", "heft", "etf", "cpop", "sct", "m-etf", "pipeline", "separate", "anneal")


@pytest.mark.full
def test_hostile_input_is_answered_or_refused(tmp_path: Path) -> None:
    assert Cases(tmp_path, 7, METHODS).run(500) == []
