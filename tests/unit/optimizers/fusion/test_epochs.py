"""How the epochs of `joint` are shared out between all decisions together and placement and order alone."""

from __future__ import annotations

from itertools import islice
from typing import Any

import pytest

from loadmaster import Budget, GraphBuilder, price
from loadmaster.optimizers import joint
from loadmaster.optimizers.annealing.chains import epochs
from loadmaster.search import Score, Search
from tests.golden.plans import halves


@pytest.mark.parametrize(("gains", "share"), [((0, 0), 0.5), ((9, 0), 0.8), ((0, 9), 0.2), ((3, 6), 1 / 3)])
def test_each_part_has_its_share_of_an_epoch_by_what_it_gained(
    monkeypatch: pytest.MonkeyPatch, gains: tuple[int, int], share: float
) -> None:
    seen = list[tuple[str, int]]()

    def spend(kind: str, gain: int) -> Any:
        def part(self: Any, search: Any, *given: Any) -> None:
            seen.append((kind, next(one for one in (search, *given) if type(one) is int)))
            within = search if isinstance(search, Search) else self.search
            within.count(1)
            if len(seen) <= 2:
                within.best_score = Score(0, within.best_score.value - gain)

        return part

    monkeypatch.setattr(joint.Joint, "_fused", spend("fused", gains[0]))
    monkeypatch.setattr(joint.Joint, "_moved", spend("moved", gains[1]))
    monkeypatch.setattr(joint.Moving, "go_on", spend("moved", gains[1]))
    search = Search(halves(), Budget(None, 10**6))
    search.best_score = Score(0, 1000)
    list(islice(joint.Joint()._epochs(search), 2))
    first, second = islice(epochs(joint.FIRST), 2)
    assert seen[:2] == [("fused", first // 2), ("moved", first // 2)]
    assert [kind for kind, _ in seen[2:4]] == ["fused", "moved"]
    assert seen[2][1] == pytest.approx(second * share, abs=8) and seen[2][1] + seen[3][1] in (second, second - 1)


def test_where_nothing_can_be_fused_an_epoch_is_for_the_rest(monkeypatch: pytest.MonkeyPatch) -> None:
    seen = list[int]()

    def moved(self: Any, search: Search, simulations: int, hot: float) -> None:
        seen.append(simulations)
        search.count(1)

    monkeypatch.setattr(joint.Joint, "_moved", moved)
    graph = GraphBuilder("products")
    made = graph.tensor(4096)
    graph.op("one", "aten.mm.default", [graph.tensor(4096, "input")], [made], flops=10**6)
    graph.op("two", "aten.mm.default", [made], [graph.tensor(4096, "output")], flops=10**6)
    search = Search(price(graph.build(), "2xp100-pcie"), Budget(None, 10**6))
    next(joint.Joint()._epochs(search))
    assert seen == [joint.FIRST]
