"""Shares of work on several threads."""

from __future__ import annotations

import pytest

from loadmaster.errors import InvalidSetting
from loadmaster.simulator import threads
from loadmaster.simulator.threads import spread


@pytest.mark.parametrize(("count", "workers", "shares"), [(10, 2, 2), (10, 3, 3), (2, 5, 2), (7, 1, 1), (1, 4, 1)])
def test_every_worker_has_a_share_and_each_is_done_once(count: int, workers: int, shares: int) -> None:
    seen: list[tuple[int, int]] = []
    spread(lambda low, high: seen.append((low, high)), count, workers)
    assert len(seen) == shares and max(high - low for low, high in seen) <= -(-count // shares)
    assert [at for low, high in sorted(seen) for at in range(low, high)] == list(range(count))


@pytest.mark.parametrize(
    ("given", "there", "used"), [("", 6, 6), ("", None, 1), (" 3 ", 6, 3), ("1", 6, 1), ("4096", 2, 4096)]
)
def test_as_many_threads_as_are_asked_for_or_there_are_cores(
    given: str, there: int | None, used: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LOADMASTER_THREADS", given)
    monkeypatch.setattr(threads.os, "cpu_count", lambda: there)
    assert threads.cores() == used


@pytest.mark.parametrize("given", ["0", "-1", "4097", "two", "1.5", "99999999999", "²"])
def test_other_words_for_threads_are_refused(given: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LOADMASTER_THREADS", given)
    with pytest.raises(InvalidSetting, match="LOADMASTER_THREADS"):
        threads.cores()
