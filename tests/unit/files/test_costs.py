"""Measured costs on disk: read back as written, of older versions too, and what is wrong is named by its row."""

from __future__ import annotations

import copy
from typing import Any

import pytest

from loadmaster.cost import Learned, Measured, OpTime
from loadmaster.errors import InvalidSetting
from loadmaster.files.costs import costs_from_json, costs_to_json

TIME = OpTime("aten.mm", "float32", 10, 20, 5, 4, 6, 7, 1, 2, True, 9)
COSTS = Measured({"gpu": {"one": TIME}}, {"gpu": Learned({"product": 1.5})})


def test_rows_of_an_older_version_have_no_reference() -> None:
    data = copy.deepcopy(costs_to_json(COSTS))
    assert costs_from_json(data, "costs") == COSTS
    data["devices"]["gpu"]["ops"][0].pop()
    assert costs_from_json(data, "costs").times["gpu"]["one"] == TIME._replace(reference_ns=0)


@pytest.mark.parametrize("column", range(13))
@pytest.mark.parametrize("odd", [None, "", -1, 1e300, [], {}, 2**70])
def test_a_field_of_another_kind_is_named(column: int, odd: Any) -> None:
    if (column < 3) == (odd == ""):
        return  # a text is what belongs there
    data = copy.deepcopy(costs_to_json(COSTS))
    data["devices"]["gpu"]["ops"][0][column] = odd
    with pytest.raises(InvalidSetting, match=r"ops\[0\]"):
        costs_from_json(data, "costs")


@pytest.mark.parametrize("odd", [{"product": 0.0}, {"product": 1e300}, {"product": "1"}, {"cake": 1.0}, [1.0], 7])
def test_scales_are_factors_by_group(odd: Any) -> None:
    data = copy.deepcopy(costs_to_json(COSTS))
    data["devices"]["gpu"]["scale"] = odd
    with pytest.raises(InvalidSetting, match="scale"):
        costs_from_json(data, "costs")
