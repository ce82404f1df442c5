"""How plans are made to fit, try after try, with passes that say what they are told to."""

from __future__ import annotations

from math import inf
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from loadmaster.graph.columns import ints
from loadmaster.optimizers.memory import recompute
from loadmaster.optimizers.memory.recompute import COMING, PARTED, REFUSED, TRIES, Fitted, Recompute
from loadmaster.search import WORST, Score

MEMORY = 1_000


def draft(lodged: Any = (), members: int = 1, jobs: int = 1) -> Any:
    return SimpleNamespace(
        lodged={*lodged}, members=[members, 1, 1], heads=np.array([7, 8, 9]), jobs=range(jobs), follows=None, lead=None
    )


class Fitting:
    """Drafts and passes by a script: (draft, stuck at, bytes over the limit afterwards), the last one for ever."""

    def __init__(self, monkeypatch: Any, *script: tuple[Any, int, int], spent_after: int = 10**6) -> None:
        self.script, self.at, self.spent_after = script, -1, spent_after
        self.asked, self.parted, self.scored = list[Any](), list[Any](), list[Any]()
        self.problem = SimpleNamespace(memory_bytes=np.array([MEMORY, 2 * MEMORY]))
        self.rng = "rng"
        monkeypatch.setattr(Recompute, "_drafted", staticmethod(self.drafted))
        monkeypatch.setattr(recompute, "Dropping", self.dropping)
        monkeypatch.setattr(recompute, "plan_of", lambda draft: f"made {self.at}")
        monkeypatch.setattr(recompute, "apart", self.apart)
        monkeypatch.setattr(Recompute, "_brought_home", staticmethod(self.home))
        self.brought = list[Any]()

    @property
    def spent(self) -> bool:
        return self.at >= self.spent_after

    def drafted(self, search: Any, plan: Any, first: Any, kept: Any) -> Any:
        self.at += 1
        self.now, self.stuck_at, self.over = self.script[min(self.at, len(self.script) - 1)]
        self.plan = plan
        return self.now

    def dropping(self, settings: Any, draft: Any, limits: Any, kept: Any, rng: Any, noise: float, is_up: Any) -> Any:
        self.asked.append((limits.tolist(), draft.follows, draft.lead, rng, is_up()))
        return SimpleNamespace(run=lambda: {self.at}, stuck=self.stuck_at >= 0, stuck_at=self.stuck_at)

    def apart(self, problem: Any, plan: Any, head: int) -> str:
        self.parted.append(head)
        return f"{plan} apart"

    def score(self, made: Any) -> Score:
        self.scored.append(made)
        return Score(self.over, 50)

    def home(self, search: Any, draft: Any, best: Fitted) -> Fitted:
        self.brought.append(best.plan)
        return best._replace(score=Score(0, 40), plan="home")

    def run(self, noise: float = 0.0, less: int = 0) -> Fitted:
        return Recompute()._fitted(self, "plan", set(), noise, "nothing", less)  # type: ignore[arg-type]


def test_a_plan_that_fits_is_the_first_and_last_try(monkeypatch: pytest.MonkeyPatch) -> None:
    fitting = Fitting(monkeypatch, (draft(), -1, 0))
    assert fitting.run(less=30) == Fitted(Score(0, 50), "made 0", {0}, "plan")
    assert fitting.asked == [([MEMORY - 30, 2 * MEMORY - 30], False, inf, None, False)] and not fitting.brought
    fitting.run(noise=0.1)
    assert fitting.asked[-1][3] == "rng"


def test_limits_are_lowered_by_what_is_still_over_them(monkeypatch: pytest.MonkeyPatch) -> None:
    """The best of all is kept, of equals the first."""
    fitting = Fitting(monkeypatch, (draft(), -1, 7), (draft(), -1, 5), (draft(), -1, 5), (draft(), -1, 9))
    found = fitting.run()
    assert [limits[0] for limits, *_ in fitting.asked] == [MEMORY - less for less in (0, 7, 12, 17, 26)][:TRIES]
    assert len(fitting.asked) == TRIES and found.plan == "made 1" and found.dropped == {1}


@pytest.mark.parametrize("script", [(draft(), 1, 7), (draft(jobs=0), -1, 7)])
def test_a_pass_that_is_stuck_or_adds_nothing_is_not_tried_again(script: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    fitting = Fitting(monkeypatch, script)
    assert fitting.run().score == Score(7, 50) and len(fitting.asked) == 1


def test_what_lives_on_a_host_comes_in_other_ways_where_a_pass_is_stuck(monkeypatch: pytest.MonkeyPatch) -> None:
    fitting = Fitting(monkeypatch, (draft(lodged={0}), 1, 7))
    fitting.run()
    assert [(follows, lead) for _, follows, lead, *_ in fitting.asked] == list(COMING) and len(fitting.scored) == 1


def test_what_lives_on_a_host_follows_the_links_before_limits_are_lowered(monkeypatch: pytest.MonkeyPatch) -> None:
    fitting = Fitting(monkeypatch, (draft(lodged={0}), -1, 7), (draft(lodged={0}), -1, 6), (draft(lodged={0}), -1, 0))
    assert fitting.run().plan == "home"
    assert [(limits[0], follows) for limits, follows, *_ in fitting.asked] == [
        (MEMORY, False), (MEMORY, True), (MEMORY - 6, True),
    ]  # fmt: skip
    assert fitting.brought == ["made 2"]


def test_a_kernel_that_needs_too_much_is_taken_apart_a_few_times(monkeypatch: pytest.MonkeyPatch) -> None:
    """The one at position 0, whose lowest op is 7."""
    fitting = Fitting(monkeypatch, (draft(members=2), 0, 7))
    found = fitting.run()
    assert fitting.parted == [7] * PARTED and found.base == "plan" + " apart" * PARTED
    single = Fitting(monkeypatch, (draft(members=1), 0, 7))
    single.run()
    assert not single.parted


def test_when_the_budget_is_spent_the_best_so_far_is_given(monkeypatch: pytest.MonkeyPatch) -> None:
    first = Fitting(monkeypatch, (draft(), -1, 7), spent_after=0).run()
    assert first == Fitted(WORST, "made 0", {0}, "plan")
    later = Fitting(monkeypatch, (draft(), -1, 7), (draft(), -1, 3), spent_after=1).run()
    assert later.score == Score(7, 50) and later.plan == "made 0"


def test_what_there_is_room_for_is_brought_home(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of tensors of 30, 20, 15 and 9 bytes the last lives on device 1, where 10 are left; on device 0 there are 50."""
    sizes, homes = [30, 20, 15, 9], [0, 0, 0, 1]
    brought = list[int]()
    monkeypatch.setattr(recompute, "heaviest", lambda _: [0, 1, 2, 3])
    monkeypatch.setattr(recompute, "bring_home", lambda _, tensor: brought.append(tensor))
    monkeypatch.setattr(recompute, "plan_of", lambda _: "made")
    row: Any = SimpleNamespace(nbytes=sizes, home_of=lambda tensor: homes[tensor])
    search: Any = SimpleNamespace(
        problem=SimpleNamespace(memory_bytes=ints([100, 50])), spent=False, score=lambda plan: Score(0, 3),
        timeline=lambda plan: SimpleNamespace(peak_bytes=ints([50, 40])),
    )  # fmt: skip
    found = Fitted(Score(0, 5), "plan", {4}, "base")  # type: ignore[arg-type]
    assert Recompute._brought_home(search, row, found) == Fitted(Score(0, 3), "made", {4}, "base")  # type: ignore[arg-type]
    assert brought == [0, 1, 3]
    search.spent = True
    assert Recompute._brought_home(search, row, found) is found
    search.spent, sizes[:] = False, [60] * 4
    assert Recompute._brought_home(search, row, found) is found, "nothing fits"


class Refusing:
    """A search in which plans fused anew have such scores."""

    def __init__(self, monkeypatch: Any, *scores: list[Score], best: int = 100) -> None:
        self.scores, self.best_score, self.spent = list(scores), Score(0, best), False
        self.fitted = list[Any]()
        monkeypatch.setattr(Recompute, "_refused", staticmethod(lambda search, plan: self.scores.pop(0)))
        monkeypatch.setattr(Recompute, "_fitted", self.fit)

    def fit(self, _: Any, base: Any, kept: Any, noise: float, first: Any, less: int) -> Fitted:
        self.fitted.append((base, first, less))
        return Fitted(Score(0, 90), "plan", set(), base)  # type: ignore[arg-type]


FOUND: Any = Fitted(Score(0, 100), "plan", set(), "base")  # type: ignore[arg-type]


def test_what_a_faster_fusion_is_over_the_limits_is_made_again_too(monkeypatch: pytest.MonkeyPatch) -> None:
    scores = [[Score(9, 80), Score(0, 95)], [Score(4, 70)], [Score(2, 60)], [Score(1, 1)]]
    search: Any = Refusing(monkeypatch, *scores)
    Recompute()._refuse(search, FOUND, "cut")
    assert search.fitted == [("base", "cut", less) for less in (9, 13, 15)][:REFUSED] and REFUSED == 3
    search = Refusing(monkeypatch, *scores)
    Recompute(fuse=False)._refuse(search, FOUND, "cut")
    assert not search.fitted


@pytest.mark.parametrize(
    ("scores", "spent"),
    [([Score(0, 80)], False), ([Score(9, 100)], False), ([Score(9, 80)], True), ([], False)],
)
def test_a_fusion_that_fits_or_is_no_faster_ends_it(scores: Any, spent: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    search: Any = Refusing(monkeypatch, scores)
    search.spent = spent
    Recompute()._refuse(search, FOUND, "cut")
    assert not search.fitted
    closer: Any = Refusing(monkeypatch, [Score(9, 99)], [Score(0, 1)])
    Recompute()._refuse(closer, FOUND, "cut")
    assert len(closer.fitted) == 1


class Varying:
    """A search that finds something better in each of a few rounds."""

    def __init__(self, monkeypatch: Any, better: int, rounds: int) -> None:
        self.rng, self.rounds = SimpleNamespace(uniform=lambda low, high: high, random=self.draw), rounds
        self.simulations, self.best_score, self.better = 0, Score(0, 100), better
        self.numbers = iter([0.1, 0.25, 0.2] * 99)
        self.asked, self.refused = list[Any](), 0
        monkeypatch.setattr(Recompute, "_fitted", self.fit)
        monkeypatch.setattr(Recompute, "_refuse", self.refuse)

    def draw(self) -> float:
        return next(self.numbers)

    @property
    def spent(self) -> bool:
        return self.simulations >= self.rounds

    def fit(self, _: Any, base: Any, kept: Any, noise: float, first: Any) -> Fitted:
        self.asked.append((base, kept, noise, first))
        self.simulations += 1
        if self.simulations <= self.better:
            self.best_score = Score(0, 100 - self.simulations)
        return Fitted(Score(0, 1), "plan", {7}, base)  # type: ignore[arg-type]

    def refuse(self, search: Any, found: Any, first: Any) -> None:
        self.refused += 1


def test_some_of_what_is_dropped_is_kept_and_the_rest_chosen_anew(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each with the chance that was drawn, a quarter at most; then what the better plan drops."""
    search: Any = Varying(monkeypatch, better=1, rounds=3)
    start = FOUND._replace(dropped={3, 5})
    Recompute()._vary(search, start, "cut")
    assert search.asked[0] == ("base", {3}, pytest.approx(recompute.NOISE * 0.2), "cut")
    assert [kept for _, kept, *_ in search.asked[1:]] == [{7}, {7}] and search.refused == 1
    nothing: Any = Varying(monkeypatch, better=0, rounds=9)
    Recompute()._vary(nothing, FOUND, "cut")
    assert not nothing.asked, "nothing is dropped"


def test_where_no_plan_is_simulated_no_other_choice_is_looked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    search: Any = Varying(monkeypatch, better=0, rounds=9)
    asked = list[Any]()
    monkeypatch.setattr(Recompute, "_fitted", lambda *given: asked.append(given) or FOUND)
    Recompute()._vary(search, FOUND._replace(dropped={3}), "cut")
    assert len(asked) == 1


@pytest.mark.parametrize("best", [None, "best"])
def test_a_search_that_is_spent_gives_its_best_plan_or_the_first(best: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Recompute, "_starts", lambda *_: ["first", "second"])
    search: Any = SimpleNamespace(spent=True, best=best, adding=False)
    assert Recompute().optimize(search) == (best or "first") and search.adding


def test_ways_to_fit_are_tried_while_there_is_budget(monkeypatch: pytest.MonkeyPatch) -> None:
    """The first in any case; the best of them is fused anew and varied."""
    seen = list[Any]()
    ways = [("a", "nothing"), ("a", "cut"), ("b", "nothing")]
    scores = {"a nothing": 5, "a cut": 3, "b nothing": 4}
    search: Any = SimpleNamespace(
        spent=False,
        best="best",
        best_score=Score(1, 9),
        problem=SimpleNamespace(objective=SimpleNamespace(of_memory=False)),
    )

    def fitted(_: Any, search: Any, plan: Any, kept: Any, noise: float, first: Any) -> Fitted:
        seen.append(f"{plan} {first}")
        return Fitted(Score(0, scores[f"{plan} {first}"]), plan, set(), plan)

    monkeypatch.setattr(Recompute, "_starts", lambda *_: ["a", "b"])
    monkeypatch.setattr(Recompute, "_exactly", lambda *_: None)
    monkeypatch.setattr(Recompute, "_ways", lambda *_: ways)
    monkeypatch.setattr(Recompute, "_fitted", fitted)
    monkeypatch.setattr(Recompute, "_refuse", lambda _, search, best, first: seen.append(("refused", best.plan, first)))
    monkeypatch.setattr(Recompute, "_vary", lambda _, search, best, first: seen.append(("varied", best.plan, first)))
    assert Recompute().optimize(search) == "best"
    assert seen == ["a nothing", "a cut", "b nothing", ("refused", "a", "cut"), ("varied", "a", "cut")]
    seen.clear()
    search.best_score = Score(0, 9)
    Recompute().optimize(search)
    assert not seen, "all fits"


def test_starts_are_tried_as_they_are_and_then_with_results_that_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    plans: Any = [SimpleNamespace(name="a", fuses=True), SimpleNamespace(name="b", fuses=False)]
    late: Any = SimpleNamespace(name="late", fuses=False)
    monkeypatch.setattr(recompute, "delayed", lambda _, plan: late if plan.name == "b" else plan)
    found = [(plan.name, first) for plan, first in Recompute()._ways("search", plans)]  # type: ignore[arg-type]
    assert found == [
        ("a", "nothing"), ("a", "inline"), ("a", "cut"), ("b", "nothing"), ("b", "cut"),
        ("late", "nothing"), ("late", "cut"),
    ]  # fmt: skip
