"""What is remembered of a plan, checked number by number; and older files, which count op by op."""

from __future__ import annotations

from dataclasses import replace

import pytest

import loadmaster as lm
from loadmaster.errors import InvalidPlan
from loadmaster.graph.columns import ints
from loadmaster.methods.experience.entries import MAGIC, SKETCHED, alike, head_of, known_of
from loadmaster.methods.experience.known import Known, speeds
from loadmaster.plans import Plan
from loadmaster.problem import CANNOT
from tests.unit.methods.experience.stacks import stack


def some() -> Known:
    problem = lm.price(stack(1), "2xp100-pcie")
    return Known.of(problem, Plan.of(problem, [0, 1, 0, 1]))


def test_speeds_are_of_ops_that_all_devices_can_run() -> None:
    problem = lm.price(stack(1), "2xp100-pcie")
    times = ints([[10, 20], [30, 60], [5, CANNOT], [0, 0]])
    assert speeds(replace(problem, op_ns=times)).tolist() == [1.0, 0.5]
    nowhere = ints([[CANNOT, 20], [30, CANNOT], [5, CANNOT], [CANNOT, 0]])
    assert speeds(replace(problem, op_ns=nowhere)).tolist() == [1.0, 1.0]
    nothing = ints([[0, 1], [0, 0], [0, 0], [0, 0]])
    assert speeds(replace(problem, op_ns=nothing)).tolist() == [1.0, 1.0], "a nanosecond at least"
    assert speeds(replace(problem, op_ns=ints(nothing * 2))).tolist() == [1.0, 0.5]


def test_alike_is_what_the_smallest_have_in_common() -> None:
    assert alike((1, 2, 3), (2, 3, 4)) == 0.5 and alike((), ()) == 0.0 and alike((1,), (1,)) == 1.0
    most = tuple(range(SKETCHED))
    assert alike(most, (*most[:-1], 10**6)) == (SKETCHED - 1) / SKETCHED
    assert alike(most, tuple(range(1, SKETCHED + 1))) == (SKETCHED - 1) / SKETCHED


def test_a_head_says_what_it_is_of() -> None:
    text = b'{"model": "m", "cluster": "c", "objective": "o", "value": 5, "ops": 4, "sketch": [1, 2]}'
    head = head_of(MAGIC + text + b"\nrest", "name")
    assert head is not None and (head.devices, head.scopes, head.origin, head.ops) == (None, True, "m on c", 4)
    assert head_of(b"x" + MAGIC + text, "name") is None and head_of(MAGIC + b"{}\n", "name") is None
    known = known_of(MAGIC + text + b"\n" + some().to_bytes(), "name")
    assert known.device.tolist() == [0, 1, 0, 1]
    for data in (MAGIC + text, text + b"\n" + some().to_bytes()):
        with pytest.raises(InvalidPlan, match="no plan that was kept"):
            known_of(data, "name")
