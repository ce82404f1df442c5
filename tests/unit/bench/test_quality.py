"""The verdict on searches: what it says follows from what the runs gave, and a broken promise is called so."""

from __future__ import annotations

import pytest

from loadmaster.bench.rows import LEAST_BYTES, TIGHT, Source, tight_rows
from loadmaster.cost import price
from loadmaster.problem.bounds.peak import peak_bound


def test_tight_rows_have_so_many_times_the_least_memory() -> None:
    rows = list(tight_rows(Source()))
    assert len(rows) == len(LEAST_BYTES) * len(TIGHT) == 24
    for row in rows:
        name, _, times = row.name.partition(" x ")
        devices, least = LEAST_BYTES[name]
        limits = [device.memory_bytes for device in row.cluster.devices]
        assert len(limits) == devices
        assert all(0 <= limit - float(times) * least < 1 for limit in limits)


@pytest.mark.parametrize("name", ["transformer-xl-4", "vit-base"])
def test_the_least_is_no_less_than_what_is_possible(name: str) -> None:
    row = next(row for row in tight_rows(Source()) if row.name == f"{name} x 1.1")
    problem = price(row.graph(), row.cluster)
    assert peak_bound(problem) <= LEAST_BYTES[name][1] < int(problem.memory_bytes[0])
