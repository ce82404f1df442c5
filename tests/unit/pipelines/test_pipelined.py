"""What a graph remembers of its pipeline: whole, or refused."""

from __future__ import annotations

from typing import Any

import pytest

from loadmaster.errors import InvalidPlan
from loadmaster.pipelines.pipelined import PIPELINE, Pipelined, pipelined_of

WHOLE = Pipelined(4, "abc", (0, 1, 1), True, False)


def test_what_is_remembered_is_read_again() -> None:
    assert pipelined_of({PIPELINE: WHOLE.to_json()}) == WHOLE
    assert pipelined_of({}) is None
    assert pipelined_of({PIPELINE: WHOLE.to_json() | {"stage": [0, 2**31 - 1]}}) is not None


@pytest.mark.parametrize(
    "odd",
    [
        [1, 2],
        "text",
        {},
        {key: value for key, value in WHOLE.to_json().items() if key != "graph"},
        WHOLE.to_json() | {"more": 1},
        *(WHOLE.to_json() | part for part in ({"stage": [0, -1]}, {"stage": [2**31]}, {"stage": [0.5]})),
        *(WHOLE.to_json() | part for part in ({"microbatches": "4"}, {"weights_apart": 1}, {"graph": None})),
    ],
)
def test_what_is_not_whole_is_refused(odd: Any) -> None:
    with pytest.raises(InvalidPlan, match="not whole"):
        pipelined_of({PIPELINE: odd})
