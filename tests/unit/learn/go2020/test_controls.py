"""Candidates in a fixed order, at random and by their bound, of examples that are made up."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

pytest.importorskip("torch")

from loadmaster.errors import InvalidSetting
from loadmaster.learn.go2020 import controls
from loadmaster.learn.go2020.candidates import BOUND, OVER, SLOTS, SUMMARY_WIDTH
from loadmaster.learn.go2020.examples import BASELINES
from loadmaster.learn.mirhoseini2017 import optimizer as rnn


def example(seed: int, count: int = 12) -> Any:
    rng = np.random.default_rng(seed)
    slot = np.sort(rng.choice(len(SLOTS), count, replace=False))
    summary = rng.random((count, SUMMARY_WIDTH))
    made = SimpleNamespace(slot=slot, summary=summary)
    value = rng.integers(50, 200, count)
    plain = rng.integers(100, 300, len(BASELINES))
    return SimpleNamespace(
        one=SimpleNamespace(candidates=made), candidate_value=value, value=int(value.min()) - 5, plain=plain
    )


def by_hand(known: list[Any]) -> list[int]:
    """Each next rule lowers the mean of the logarithms of the best so far most; one that an example does not have is
    as bad as its worst."""
    order: list[int] = []
    rows = [dict(zip(each.one.candidates.slot.tolist(), np.log(each.candidate_value), strict=True)) for each in known]
    while len(order) < len(SLOTS):
        totals = {}
        for slot in range(len(SLOTS)):
            if slot not in order:
                totals[slot] = np.mean([min(row.get(s, max(row.values())) for s in (*order, slot)) for row in rows])
        order.append(min(totals, key=lambda slot: (round(float(totals[slot]), 12), slot)))
    return order


def test_the_order_that_adds_most_at_each_step() -> None:
    known = [example(seed) for seed in range(5)]
    order = controls.fixed_order(known)
    assert order == by_hand(known) and sorted(order) == list(range(len(SLOTS)))


def test_values_and_ratios() -> None:
    valid, train = [example(seed) for seed in (7, 8, 9)], [example(seed) for seed in range(4)]
    order = by_hand(train)
    found, ratios = controls.controls(valid, train)
    rank = {slot: at for at, slot in enumerate(order)}

    def best(each: Any, most: int, key: list[float]) -> float:
        return float(min(each.candidate_value[at] for at in np.argsort(key, kind="stable")[:most]))

    def places(each: Any) -> list[float]:
        return [rank[slot] for slot in each.one.candidates.slot.tolist()]

    fixed = [best(each, 8, places(each)) for each in valid]
    assert found["fixed"].tolist() == fixed and found["long"].tolist() == [each.value for each in valid]
    assert [found[name].tolist() for name in BASELINES] == np.stack([each.plain for each in valid]).T.tolist()
    alone = [best(each, 1, places(each)) for each in valid]
    bound = [
        best(each, 8, (4 * each.one.candidates.summary[:, BOUND] + 8 * each.one.candidates.summary[:, OVER]).tolist())
        for each in valid
    ]
    every = [float(each.candidate_value.min()) for each in valid]
    for name, values in ((f"{SLOTS[order[0]]} alone", alone), ("by bound", bound), ("all candidates", every)):
        assert ratios[name] == pytest.approx(np.exp(np.mean(np.log(np.array(values) / fixed))))
    rng = np.random.default_rng(6)
    drawn = [float(each.candidate_value[rng.permutation(12)[:8]].min()) for each in valid]
    assert ratios["random"] == pytest.approx(np.exp(np.mean(np.log(np.array(drawn) / fixed))))
    assert len(ratios) == 4 and controls.controls([], train) == ({}, {})


def test_without_examples_to_learn_from_the_order_is_of_those_that_are_judged() -> None:
    valid = [example(seed) for seed in (7, 8)]
    none = SimpleNamespace(candidate_value=np.zeros(0))
    found, _ = controls.controls(valid, [none])  # type: ignore[list-item]
    order = by_hand(valid)
    assert found["fixed"].tolist() == [controls.best_in_order(each, order) for each in valid]


@pytest.mark.parametrize(("groups", "refused"), [(1, False), (2_000, False), (2_001, True)])
def test_more_groups_than_can_be_placed_one_by_one_are_refused(
    groups: int, refused: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(rnn, "group_ops", lambda *_: np.arange(groups))
    problem: Any = SimpleNamespace(graph=SimpleNamespace(name="many"))
    if not refused:
        assert len(rnn.Rnn(by="op").label_of(problem)) == groups
        return
    with pytest.raises(InvalidSetting, match=r"by=op makes 2001 groups of 'many'"):
        rnn.Rnn(by="op").label_of(problem)


@pytest.mark.parametrize(("over", "kept"), [(0.49, True), (0.51, False)])
def test_bytes_over_count_twice_as_much_as_a_bound(over: float, kept: bool) -> None:
    """Of nine candidates eight are looked at: the best is left out where it is the last by its bound."""
    each = example(3, 9)
    each.one.candidates.summary[:, [BOUND, OVER]] = [[1.0, 0.0]] * 8 + [[0.0, over]]
    each.candidate_value[:], each.candidate_value[8] = 9, 2
    assert controls._by_bound(each) == (2 if kept else 9)
