"""What is remembered of a plan, checked number by number; and older files, which count op by op."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

import loadmaster as lm
from loadmaster.errors import InvalidPlan
from loadmaster.graph.columns import ints
from loadmaster.optimizers.experience import known as remembered
from loadmaster.optimizers.experience.entries import MAGIC, SKETCHED, alike, head_of, known_of
from loadmaster.optimizers.experience.given import _op_by_op
from loadmaster.optimizers.experience.known import Known, speeds
from loadmaster.plans import Plan
from loadmaster.problem import CANNOT
from tests.unit.optimizers.experience.stacks import stack


def some() -> Known:
    problem = lm.price(stack(1), "2xp100-pcie")
    return Known.of(problem, Plan.of(problem, [0, 1, 0, 1]))


def test_what_is_whole_passes() -> None:
    known = some()
    assert known.place.tolist() == [0, 1, 2, 3] and known.device.tolist() == [0, 1, 0, 1]
    remembered._check(known)
    remembered._check(replace(known, work=ints([0, 0, 0, 0])))


@pytest.mark.parametrize(
    ("column", "values"),
    [
        ("device", [0, 1, 0]),
        ("place", [0, 1, 2]),
        ("work", [5, 5, 5, 5, 5]),
        ("device", [0, 1, 0, 2]),
        ("device", [0, -1, 0, 1]),
        ("place", [0, 1, 2, 4]),
        ("place", [0, 1, 2, -1]),
        ("work", [0, -1, 5, 5]),
        ("speed", [1.0, 0.0]),
        ("speed", [1.0, float("inf")]),
        ("speed", [1.0, float("nan")]),
        ("speed", []),
    ],
)
def test_a_number_out_of_range_is_refused(column: str, values: list[Any]) -> None:
    changed = np.array(values, np.float64) if column == "speed" else ints(values)
    with pytest.raises(ValueError, match=r"out of range|differ|no plan|negative"):
        remembered._check(replace(some(), **{column: changed}))


@pytest.mark.parametrize("module", [[0, 0, 0], [0, 0, 0, 99], [0, 0, 0, -1]])
def test_so_is_a_module_that_is_not_there(module: list[int]) -> None:
    known = some()
    with pytest.raises(ValueError, match=r"out of range|differ|no plan|negative"):
        remembered._check(replace(known, sight=replace(known.sight, module=ints(module))))


def test_nothing_is_no_plan() -> None:
    known = some()
    none = np.zeros(0, np.int64)
    sight = replace(known.sight, classes=known.sight.classes[:, :0], module=none)
    with pytest.raises(ValueError, match="no plan"):
        remembered._check(replace(known, sight=sight, device=none, place=none, work=none))


def test_columns_are_as_long_as_they_say() -> None:
    assert remembered._columns(b'{"a": "<i8"}\n' + bytes(4))["a"].tolist() == []
    with pytest.raises(ValueError, match="torn"):
        remembered._columns(b'{"a": "<i8"}\n' + bytes(3))
    data = some().to_bytes()
    assert len(remembered._columns(data)) == 6 + 2 * remembered.LEVELS
    with pytest.raises(ValueError, match="torn"):
        remembered._columns(data[:-20])
    with pytest.raises(ValueError, match="torn"):
        remembered._columns(b'{"a": "|O"}\n' + bytes(4))


def test_an_entry_may_not_unpack_to_more_than_is_allowed(monkeypatch: pytest.MonkeyPatch) -> None:
    data = some().to_bytes()
    size = sum(column.nbytes for column in remembered._columns(data).values())
    monkeypatch.setattr(remembered, "MOST_BYTES", size)
    remembered._columns(data)
    monkeypatch.setattr(remembered, "MOST_BYTES", size - 1)
    with pytest.raises(ValueError, match="more than any plan"):
        remembered._columns(data)


def test_speeds_are_of_ops_that_all_devices_can_run() -> None:
    problem = lm.price(stack(1), "2xp100-pcie")
    times = ints([[10, 20], [30, 60], [5, CANNOT], [0, 0]])
    assert speeds(replace(problem, op_ns=times)).tolist() == [1.0, 0.5]
    nowhere = ints([[CANNOT, 20], [30, CANNOT], [5, CANNOT], [CANNOT, 0]])
    assert speeds(replace(problem, op_ns=nowhere)).tolist() == [1.0, 1.0]
    nothing = ints([[0, 1], [0, 0], [0, 0], [0, 0]])
    assert speeds(replace(problem, op_ns=nothing)).tolist() == [1.0, 1.0], "a nanosecond at least"
    assert speeds(replace(problem, op_ns=ints(nothing * 2))).tolist() == [1.0, 0.5]


@pytest.mark.parametrize(("devices", "fits"), [([0, 1, 0, 1], True), ([0, 1, 0, 2], False), ([0, 1, 0], False)])
def test_an_older_file_is_for_as_many_ops_and_devices(devices: list[int], fits: bool) -> None:
    problem = lm.price(stack(1), "2xp100-pcie")
    count = len(devices)
    plan = Plan("", "", ints(np.arange(count)), ints(devices), ints(np.arange(count)))
    if fits:
        assert _op_by_op(plan, problem, "here").device.tolist() == devices
        return
    with pytest.raises(InvalidPlan, match="another number of ops or devices"):
        _op_by_op(plan, problem, "here")


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
