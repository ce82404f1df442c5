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


@pytest.mark.parametrize(
    ("method", "problem"),
    [("brkga", "unlike"), ("random-fusion", "halves"), ("random", "tasks"), ("multilevel:inner=anneal", "large")],
)
def test_the_plan_is_the_same_on_several_threads(method: str, problem: str, monkeypatch: pytest.MonkeyPatch) -> None:
    for threads in ("1", "3"):
        monkeypatch.setenv("LOADMASTER_THREADS", threads)
        assert found(method, problem) == KEPT[method][problem]


def test_no_plan_is_kept_for_nothing() -> None:
    assert {(method, name) for method, rows in KEPT.items() for name in rows} == set(PAIRS)
