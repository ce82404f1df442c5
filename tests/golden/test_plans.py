"""The kept plans: what a method finds with a seed and a number of simulations stays what it was."""

from __future__ import annotations

import json

import pytest

from tests.golden.plans import FILE, PAIRS, found

KEPT = json.loads(FILE.read_text())


@pytest.mark.parametrize(("method", "problem"), PAIRS)
def test_the_plan_is_the_kept_one(method: str, problem: str) -> None:
    assert found(method, problem) == KEPT[method][problem], (
        f"python -m tests.golden.plans {method}, if it should change"
    )


def test_no_plan_is_kept_for_nothing() -> None:
    assert {(method, name) for method, rows in KEPT.items() for name in rows} == set(PAIRS)
