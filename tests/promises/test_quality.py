"""What the default method finds does not get worse unawares: 14 rows of the suites go and placeto, times by the data
sheet (`--costs roofline`), counted simulations, so that every machine finds the same.

`python -m tests.promises.test_quality` prints the figure to record, and that of each row.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest

from loadmaster import Budget, price, solve
from loadmaster.bench.rows import Source, SuiteRow
from loadmaster.bench.suite import SUITES
from loadmaster.cost.roofline import Roofline

GO = ("rnnlm-2", "rnnlm-4", "gnmt-2", "transformer-xl-2", "transformer-xl-4", "transformer-xl-8")
GO += ("inception-v3-b32", "wavenet-2x18")
SIMULATIONS, SEEDS = 400, 2
RECORDED_MS = 178.402  # the geometric mean


def rows() -> Iterator[SuiteRow]:
    yield from (row for row in SUITES["go"].rows(Source()) if row.name.removesuffix("/train") in GO)
    yield from SUITES["placeto"].rows(Source())


def found_ms(row: SuiteRow) -> float:
    """The geometric mean over seeds."""
    problem = price(row.graph(), row.cluster, cost=Roofline())
    values = [solve(problem, "auto", Budget(None, SIMULATIONS), seed=seed).value for seed in range(SEEDS)]
    return float(np.exp(np.log(values).mean()) / 1e6)


def geometric_mean(each: dict[str, float]) -> float:
    return float(np.exp(np.log(list(each.values())).mean()))


@pytest.mark.full
def test_the_mean_of_14_rows_is_the_recorded_one_within_a_hundredth() -> None:
    each = {row.name: found_ms(row) for row in rows()}
    assert len(each) == 14
    assert geometric_mean(each) == pytest.approx(RECORDED_MS, rel=0.01), f"record it where it is better: {each}"


def main() -> None:
    each = {row.name: found_ms(row) for row in rows()}
    for name, ms in each.items():
        print(f"{ms:10.3f} {name}")
    print(f"RECORDED_MS = {geometric_mean(each):.3f}")


if __name__ == "__main__":
    main()
