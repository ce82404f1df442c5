"""What is made of a problem is made once, for as long as it is among the last few."""

from __future__ import annotations

import gc

from loadmaster.cost import price
from loadmaster.problem.remembering import LastFew
from tests.graphs import tiny


def test_the_last_few_are_made_once_and_the_one_used_longest_ago_is_forgotten() -> None:
    problem, made, kept = price(tiny.chain(), tiny.pair()), [], LastFew[str](2)

    def ask(key: str) -> str:
        return kept.of(problem, key, lambda: made.append(key) or key.upper())

    assert [ask(key) for key in "abaa"] == ["A", "B", "A", "A"] and made == ["a", "b"]
    ask("c")  # b was used longest ago
    ask("a")
    assert made == ["a", "b", "c"]
    ask("b")
    assert made == ["a", "b", "c", "b"]


def test_problems_do_not_share_what_is_made_of_them_and_take_it_with_them() -> None:
    kept = LastFew[str](2)
    problems = [price(tiny.chain(), tiny.pair()) for _ in range(2)]
    assert [kept.of(problem, "a", lambda at=at: f"of {at}") for at, problem in enumerate(problems)] == ["of 0", "of 1"]
    assert kept.of(problems[0], "a", lambda: "again") == "of 0"
    del problems
    gc.collect()
    assert len(kept._known) == 0
