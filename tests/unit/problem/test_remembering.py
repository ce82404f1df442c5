"""What is made of a problem is made once, for as long as it is among the last few."""

from __future__ import annotations

import gc
import pickle
import weakref

from loadmaster.cost import price
from loadmaster.graph.columns import ints
from loadmaster.plans.additions import Additions
from loadmaster.plans.expansion import expand
from loadmaster.problem.problem import LastFew
from tests.graphs import tiny


def test_the_last_few_are_made_once_and_the_one_used_longest_ago_is_forgotten() -> None:
    problem, made, kept = price(tiny.chain(), tiny.pair()), [], LastFew[str]("letters", 2)

    def ask(key: str) -> str:
        return kept.of(problem, key, lambda: made.append(key) or key.upper())

    assert [ask(key) for key in "abaa"] == ["A", "B", "A", "A"] and made == ["a", "b"]
    ask("c")  # b was used longest ago
    ask("a")
    assert made == ["a", "b", "c"]
    ask("b")
    assert made == ["a", "b", "c", "b"]


def test_problems_do_not_share_what_is_made_of_them() -> None:
    kept = LastFew[str]("letters", 2)
    problems = [price(tiny.chain(), tiny.pair()) for _ in range(2)]
    assert [kept.of(problem, "a", lambda at=at: f"of {at}") for at, problem in enumerate(problems)] == ["of 0", "of 1"]
    assert kept.of(problems[0], "a", lambda: "again") == "of 0"


def test_what_holds_its_problem_goes_with_it() -> None:
    problem = price(tiny.diamond(), tiny.pair())
    again = Additions(*(ints([value]) for value in (0, -1, -1, 2, 0, 0)))  # op 0 once more, for op 2
    assert expand(problem, again) is expand(problem, again)
    assert expand(problem, again).expansion.base is problem
    alive = weakref.ref(problem)
    del problem
    gc.collect()
    assert alive() is None


def test_it_stays_behind_where_a_problem_is_sent() -> None:
    problem, kept, made = price(tiny.chain(), tiny.pair()), LastFew[bytes]("long", 2), []
    before = len(pickle.dumps(problem))
    kept.of(problem, "a", lambda: b"a" * 10_000)
    sent = pickle.dumps(problem)
    assert len(sent) < before + 200
    kept.of(pickle.loads(sent), "a", lambda: made.append("anew") or b"")
    assert made == ["anew"]
