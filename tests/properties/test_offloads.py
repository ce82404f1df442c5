"""A part of what `python -m tests.offloads` judges."""

from __future__ import annotations

from tests.offloads import run


def test_plans_with_a_host_are_the_same_by_two_routes() -> None:
    found = run(50, 7_000)
    assert not found.differ and found.plans == 50
    assert found.kinds["state or weights live there"] > 10 and found.kinds["activations wait there"] > 10
