"""A budget of simulations is what a method gets: whatever it simulates is counted, also what it only needs to make a
plan. Counted here by the calls of the loop, not by the search."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
# What may be looked at when the budget is spent. Of a plan that does not fit, breeding keeps only how much it is over.
# The start of CP-SAT may have the whole budget: then its plan and the two of the model come after the end.
LATE = {"brkga": 1, "brkga-5k": 1, "tuned-brkga": 1, "regal": 1, "gas": 1, "cp-sat": 3}


@pytest.mark.parametrize("problem", ["zero", pytest.param("halves", marks=pytest.mark.full)])
def test_what_methods_simulate_is_counted(problem: str) -> None:
    command = [sys.executable, "-m", "tests.promises.counting", "40", problem]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    more = {
        method: (calls, counted)
        for method, rows in found.items()
        for calls, counted in rows.values()
        if not calls - LATE.get(method, 0) <= counted <= 40
    }
    assert not more, "(calls, counted)"
    assert found["anneal"][problem] == [40, 40] and found["expert"][problem] == [1, 1], "calls are seen"
