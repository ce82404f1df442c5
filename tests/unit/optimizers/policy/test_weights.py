"""How many numbers make a network of the policy, and what a file of them may be."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from loadmaster.errors import UnreadableFile
from loadmaster.optimizers.policy.decoding import PAIR
from loadmaster.optimizers.policy.views import CONTEXT
from loadmaster.optimizers.policy.weights import read_weights, write_weights

UNIT = PAIR + CONTEXT + 2  # numbers of a hidden unit: what it reads of a pair and of an op, where it begins, its say


@pytest.mark.parametrize("units", [0, 1, 3])
def test_a_number_for_each_feature_and_so_many_for_each_hidden_unit(units: int, tmp_path: Path) -> None:
    numbers = np.arange(PAIR + units * UNIT, dtype=np.float64)
    write_weights(tmp_path / "w", numbers, {})
    assert read_weights(tmp_path / "w").tolist() == numbers.tolist()


@pytest.mark.parametrize("count", [PAIR - 1, PAIR + 1, PAIR + UNIT - 1, PAIR + UNIT + 1, 0])
def test_other_numbers_of_them_are_refused(count: int, tmp_path: Path) -> None:
    write_weights(tmp_path / "w", np.zeros(count), {})
    with pytest.raises(UnreadableFile, match="make no network"):
        read_weights(tmp_path / "w")


def test_what_is_no_number_is_refused(tmp_path: Path) -> None:
    for wrong in (np.nan, np.inf):
        write_weights(tmp_path / "w", np.full(PAIR, wrong), {})
        with pytest.raises(UnreadableFile, match="no numbers"):
            read_weights(tmp_path / "w")


def test_a_header_is_padded_and_says_where_numbers_are(tmp_path: Path) -> None:
    for about in ({}, {"a": 1}, {"ab": 1}, {"abcde": 12}):
        write_weights(tmp_path / "w", np.ones(PAIR), about)
        data = (tmp_path / "w").read_bytes()
        length = int.from_bytes(data[:8], "little")
        assert length % 8 == 0 and len(data) == 8 + length + 8 * PAIR
        assert json.loads(data[8 : 8 + length])["weights"]["data_offsets"] == [0, 8 * PAIR]
