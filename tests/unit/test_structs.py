"""Structs: compiled functions see of them what Python sees."""

from __future__ import annotations

import pickle
import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from itertools import count
from types import FrameType
from typing import Any, NamedTuple

import numpy as np
import pytest

from loadmaster.compiled import Struct, compiled, structs


class Inner(Struct):
    numbers: np.ndarray
    times: int = 3


class Pair(NamedTuple):
    first: int
    second: np.ndarray


class Outer(Struct):
    narrow: np.ndarray
    table: np.ndarray
    count: int
    share: float
    wanted: bool
    inner: Inner
    pair: Pair
    nothing: None
    flags: np.ndarray


def outer(**named: Any) -> Outer:
    given = Outer(
        np.array([3, -5, 7], np.int32),
        np.arange(12.0).reshape(3, 4),
        -4,
        0.25,
        True,
        Inner(np.array([100, 200])),
        Pair(-(2**60), np.array([[9]], np.int8)),
        None,
        np.array([True, False, True]),
    )
    return given._replace(**named)


def _look(struct: Any, out: Any) -> Any:
    """Every kind of field once; one of them is written to."""
    for row in range(struct.table.shape[0]):
        for column in range(struct.table.shape[1]):
            out[0] += struct.table[row, column] * (row + 1) + column
    for at in range(len(struct.narrow)):
        if struct.flags[at]:
            out[1] += struct.narrow[at]
    out[2] = struct.count * struct.share if struct.wanted else 0.0
    out[3] = struct.inner.times * struct.inner.numbers[1]
    struct.inner.numbers[0] += 1
    if struct.nothing is None:
        out[4] = len(struct.narrow) + struct.table.size + struct.pair.second[0, 0]
    return struct.pair.first


look, look_counting = compiled(_nrt=False)(_look), compiled(_look)


@pytest.mark.parametrize("function", [look, look_counting])
@pytest.mark.parametrize("wanted", [True, False])
def test_compiled_functions_see_what_python_sees(function: Any, wanted: bool) -> None:
    ours, theirs = outer(wanted=wanted), outer(wanted=wanted)
    out, expected = np.zeros(5), np.zeros(5)
    assert function(ours, out) == _look(theirs, expected) == -(2**60)
    assert out.tolist() == expected.tolist()
    assert ours.inner.numbers.tolist() == theirs.inner.numbers.tolist() == [101, 200]


@compiled(_nrt=False)
def total(inner: Any) -> Any:
    found = np.int64(0)
    for at in range(len(inner.numbers)):
        found += inner.numbers[at]
    return found * inner.times


def test_one_version_serves_all_arrays_of_a_kind() -> None:
    fixed = np.arange(4)
    fixed.flags.writeable = False
    given = [Inner(fixed), Inner(np.arange(4)), Inner(np.zeros(0, np.int64)), Inner(numbers=np.arange(4), times=5)]
    assert [total(inner) for inner in given] == [18, 18, 0, 30]
    assert len(total.overloads) == 1
    assert total(Inner(np.arange(4, dtype=np.int8))) == 18
    assert len(total.overloads) == 2


class Inverse(Struct):
    times: int
    numbers: np.ndarray


def test_fields_are_found_by_name_in_each_struct() -> None:
    assert total(Inverse(2, np.array([5, 6]))) == 22
    assert total(Inner(np.array([5, 6]), 2)) == 22


def test_as_a_named_tuple_in_python() -> None:
    inner = Inner(np.array([1, 2]))
    numbers, times = inner
    assert numbers is inner.numbers and times == 3 and inner[1:] == (3,) and len(inner) == 2
    assert inner._replace(times=7).times == 7 and inner.times == 3
    assert Inner._make(inner).numbers is numbers
    total(inner)
    again = pickle.loads(pickle.dumps(inner))
    assert total(again) == total(inner) == 9 and again.numbers is not numbers


@pytest.mark.parametrize(("values", "named"), [((), {}), ((1, 2, 3), {}), ((1,), {"numbers": 2}), ((1,), {"more": 2})])
def test_fields_that_are_not_there(values: Any, named: Any) -> None:
    with pytest.raises(TypeError, match="Inner has the fields numbers, times"):
        Inner(*values, **named)


def test_what_cannot_be_handed_over_is_refused() -> None:
    with pytest.raises(TypeError, match="row by row"):
        total(Inner(np.arange(8)[::2]))
    with pytest.raises(TypeError, match="cannot be str"):
        total(Inner(np.arange(8), "3"))


def handed_over(struct: Any) -> int:
    """The address that a compiled function gets, once the struct has a type."""
    structs._typeof_struct(struct, None)
    return int(struct._address)


def interrupted(line: int, call: Callable[[], Any], other: Callable[[], Any]) -> None:
    """Makes the call, and the other one just before it runs its line-th line in the module of structs, if any."""
    lines = count(1)

    def look(frame: FrameType, event: str, _: Any) -> Any:
        if frame.f_code.co_filename != structs.__file__:
            return None
        if event == "line" and next(lines) == line:
            other()
        return look

    before = sys.gettrace()
    sys.settrace(look)
    try:
        call()
    finally:
        sys.settrace(before)


def addresses(line: int, pool: ThreadPoolExecutor) -> list[int]:
    """What two threads are handed of a new struct, where the second comes at that line of the first; of one alone where
    there is no such line."""
    struct, found = outer(), list[int]()

    def hand_over() -> None:
        found.append(handed_over(struct))

    interrupted(line, hand_over, lambda: pool.submit(hand_over).result())
    return found


def test_threads_that_bring_a_new_struct_at_once_run_on_the_same_words() -> None:
    """Wherever another thread comes in between: words of its own would be freed while one of the two runs on them."""
    line = 1
    with ThreadPoolExecutor(1) as pool:
        while len(found := addresses(line, pool)) == 2:
            assert found[0] == found[1]
            line += 1
    assert line > 10
