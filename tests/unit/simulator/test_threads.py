"""Shares of work on several threads."""

from __future__ import annotations

import pytest

from loadmaster.simulator.threads import spread


@pytest.mark.parametrize(("count", "workers", "shares"), [(10, 2, 2), (10, 3, 3), (2, 5, 2), (7, 1, 1), (1, 4, 1)])
def test_every_worker_has_a_share_and_each_is_done_once(count: int, workers: int, shares: int) -> None:
    seen: list[tuple[int, int]] = []
    spread(lambda low, high: seen.append((low, high)), count, workers)
    assert len(seen) == shares and max(high - low for low, high in seen) <= -(-count // shares)
    assert [at for low, high in sorted(seen) for at in range(low, high)] == list(range(count))
