"""A part of `make enumerate`: tiny problems, their plans, and what bounds and "optimal" say of them."""

from __future__ import annotations

from tests.enumeration import run

CASES = 200


def test_no_bound_is_above_a_plan_of_its_class_and_nothing_optimal_is_beaten() -> None:
    wrong, count = run(iter(range(CASES)))
    assert not wrong
    assert count["plans"] > 300 * CASES and count["bounds"] > 10 * CASES and count["proved"] > CASES // 8
    assert count["optimal"] > CASES // 2, "results that call themselves optimal were looked at"


def test_an_op_that_waits_on_the_second_device_is_not_taken_for_one_that_ended() -> None:
    """Branch and bound remembered the two moments as one, and called 23 ns the best where 20 are possible."""
    assert run(iter([720_336]))[0] == []


def test_copies_and_stays_wait_for_nothing_that_waits_for_them() -> None:
    """A copy joined the kernel of an op that waits for another reader of it, or was told to come after one: `auto`
    gave up."""
    assert run(iter([926, 2_721, 2_820]))[0] == []
