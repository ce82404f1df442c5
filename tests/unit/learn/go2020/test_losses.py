"""Losses of GO, added up decision by decision in plain Python."""

from __future__ import annotations

import math
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from loadmaster.graph.columns import ints  # noqa: E402
from loadmaster.learn.go2020 import losses  # noqa: E402
from loadmaster.learn.go2020.chains import Sample  # noqa: E402
from loadmaster.learn.go2020.network import LEVELS, MIDDLE, GoOutputs, LastDecisions  # noqa: E402
from loadmaster.learn.go2020.policy import OFF, DrawnPart, Draws  # noqa: E402


def softmax_log(row: list[float]) -> list[float]:
    total = math.log(sum(math.exp(each) for each in row))
    return [each - total for each in row]


def part(made: list[list[int]], unit: list[list[int]], chance: list[list[float]]) -> DrawnPart:
    return DrawnPart(ints(made), ints(unit), [np.array(each) for each in chance])


def nothing(samples: int) -> DrawnPart:
    return DrawnPart(ints(np.zeros((samples, 0))), ints(np.zeros((samples, 0))), [np.zeros(0)] * samples)


def outputs(place: Any, level: Any = None, fusion: Any = None) -> GoOutputs:
    graphs, groups, _ = place.shape
    return GoOutputs(
        place,
        torch.zeros(graphs, groups, 2) if level is None else level,
        torch.zeros(0, 2) if fusion is None else fusion,
    )


# Two graphs of three groups on two devices; in the first draw of the second, two groups are one unit.
PLACE = [[[0.5, 1.0], [2.0, 0.0], [0.0, 0.3]], [[1.0, 0.0], [0.0, 3.0], [0.2, 0.1]]]


def test_ratios_are_of_the_mean_score_of_a_unit_and_are_bounded() -> None:
    first = part([[1, 0, 0]], [[0, OFF, 1]], [[-0.5, -9.0]])
    second = part([[1, 1, 0], [0, 1, 1]], [[0, 0, 1], [OFF, 0, OFF]], [[-1.0, -0.1], [15.0]])
    scores = torch.tensor(PLACE, dtype=torch.float64).reshape(6, 2)
    gain = [np.array([0.5]), np.array([2.0, -1.0])]
    ratio, weight = losses._ratios(scores, [first, second], ints([0, 3]), gain)
    now = [
        softmax_log([0.5, 1.0])[1],
        softmax_log([0.0, 0.3])[0],
        softmax_log([0.5, 1.5])[1],  # the mean of groups 0 and 1 of the second graph
        softmax_log([0.2, 0.1])[0],
        softmax_log([0.0, 3.0])[1],
    ]
    before = [-0.5, -9.0, -1.0, -0.1, 15.0]
    wanted = [math.exp(min(5.0, max(-10.0, n - b))) for n, b in zip(now, before, strict=True)]
    assert wanted[1] == math.exp(5) and wanted[4] == math.exp(-10)
    np.testing.assert_allclose(ratio, wanted, rtol=1e-5)
    assert weight.tolist() == [0.5, 0.5, 2.0, 2.0, -1.0]


@pytest.mark.parametrize("clip", [0.2, 0.5])
def test_each_kind_of_decision_counts_alike_and_gains_are_clipped(clip: float) -> None:
    """Devices of two graphs with ratios 1, e^0.5 and e^-0.5; levels of one; ops of the second graph are fused."""
    place = torch.zeros(2, 1, 2)
    log_half = math.log(0.5)
    devices = [
        part([[0], [1]], [[0], [0]], [[log_half], [log_half - 0.5]]),
        part([[1]], [[0]], [[log_half + 0.5]]),
    ]
    levels = [part([[0], [0]], [[OFF], [OFF]], [[], []]), part([[1]], [[0]], [[log_half]])]
    fusion = [nothing(2), part([[1, 0]], [[OFF, 0]], [[log_half - 0.1]])]
    scores = torch.tensor([[9.0, 9.0], [0.0, 0.0]])
    draws: list[Any] = [
        Draws(d, lev, f, np.ones(len(d.made), bool), ints([]))
        for d, lev, f in zip(devices, levels, fusion, strict=True)
    ]
    batch: Any = SimpleNamespace(num_ops=(0, 2))
    gain = [np.array([1.0, 2.0]), np.array([-3.0])]
    found = losses.policy_loss(outputs(place, fusion=scores), batch, draws, gain, clip)

    def clipped(ratio: float, worth: float) -> float:
        return min(ratio * worth, min(1 + clip, max(1 - clip, ratio)) * worth)

    wanted = -(clipped(1, 1) + clipped(math.exp(0.5), 2) + clipped(math.exp(-0.5), -3)) / 3
    wanted -= clipped(1, -3) + clipped(math.exp(0.1), -3)
    assert float(found) == pytest.approx(wanted, rel=1e-5)


def test_where_nothing_was_drawn_there_is_no_loss() -> None:
    place = torch.ones(1, 2, 2, requires_grad=True)
    nobody = part([[0, 0]], [[OFF, OFF]], [[]])
    batch: Any = SimpleNamespace(num_ops=(0,))
    empty = Draws(nobody, nobody, nothing(1), np.zeros(1, bool), ints([]))
    found = losses.policy_loss(outputs(place), batch, [empty], [np.array([1.0])])
    found.backward()
    assert float(found.detach()) == 0 and float(place.grad.abs().max()) == 0
    none = Sample(ints([]), np.zeros((0, 2)), ints([]), np.zeros(0), np.zeros(0))
    assert float(losses.sample_loss([place.detach()], none)) == 0


def test_chains_draw_without_the_lead_of_staying() -> None:
    level = torch.zeros(1, 2, LEVELS)
    place, stay = torch.ones(1, 2, 2), torch.tensor(2.0)
    last = LastDecisions(torch.tensor([[[1.0, 0.0], [0.25, 0.75]]]), torch.zeros(1, 2))
    freed_place, freed_level = losses.freed(GoOutputs(place, level, torch.zeros(0, LEVELS)), last, stay)
    assert freed_place.tolist() == [[[-1.0, 1.0], [0.5, -0.5]]]
    wanted = [0.0] * LEVELS
    wanted[MIDDLE] = -5.0
    assert freed_level.tolist() == [[wanted, wanted]]


def test_what_chains_drew_is_worth_what_it_gained_over_the_mean() -> None:
    """Two kinds of decisions; one gain stands out by more than three deviations, two ratios leave their bounds."""
    said = [
        torch.tensor([[[1.0, 0.0], [0.0, 2.0]]], dtype=torch.float64),
        torch.tensor([[[0.5, 0.0, 1.0]]], dtype=torch.float64),
    ]
    kind = [0, 1, 0, 0, *[1] * 16]
    share = np.zeros((20, 2))
    share[0], share[2], share[3] = (1.0, 0.0), (0.5, 0.5), (0.0, 1.0)
    share[:, 0][np.array(kind) == 1] = 1.0
    pick = ints([0, 2, 1, 1, *[0] * 16])
    chance = np.array([-0.4, -1.0, -8.0, 14.0, *[-1.2] * 16])
    gain = np.array([0.01, 0.0, 5.0, 0.02, *[0.0] * 16])
    found = losses.sample_loss(said, Sample(ints(kind), share, pick, chance, gain))
    scaled = [min(3.0, max(-3.0, (g - gain.mean()) / (gain.std() + 1e-4))) for g in gain]
    assert scaled[2] == 3.0
    total = 0.0
    for number in (0, 1):
        terms = []
        for row in range(20):
            if kind[row] == number:
                scores = said[number][0].numpy()
                mean = [
                    float(sum(share[row, g] * scores[g, c] for g in range(len(scores)))) for c in range(scores.shape[1])
                ]
                ratio = math.exp(min(5.0, max(-10.0, softmax_log(mean)[pick[row]] - chance[row])))
                terms.append(min(ratio * scaled[row], min(1.2, max(0.8, ratio)) * scaled[row]))
        total -= sum(terms) / len(terms)
    assert float(found) == pytest.approx(total, rel=1e-6)


def test_what_a_better_plan_changes_counts_for_its_share_and_heavy_groups_for_more() -> None:
    place = torch.tensor([[[3.0, 0.0], [0.0, 1.0], [20.0, 0.0], [0.0, 0.0]]])
    level = torch.zeros(1, 4, LEVELS)
    level[0, 1, MIDDLE + 1], level[0, 0, 0] = 2.0, 30.0
    there = torch.tensor([[True, True, True, False]])
    time = torch.tensor([[[0.1, 0.2], [0.5, 0.4], [9.0, 8.0], [5.0, 5.0]]])
    last = LastDecisions(torch.tensor([[[1.0, 0.0], [1.0, 0.0], [1.0, 0.0], [1.0, 0.0]]]), torch.zeros(1, 4))
    device, levels = torch.tensor([[0, 1, 1, 1]]), torch.tensor([[MIDDLE, MIDDLE + 1, MIDDLE - 1, 0]])
    batch: Any = SimpleNamespace(time=time, there=there)
    found = losses.imitation_loss(GoOutputs(place, level, torch.zeros(0, LEVELS)), batch, last, device, levels)
    weight = [0.5 + 0.1 * 3, 0.5 + 0.4 * 3, 4.0]

    def worth(scores: Any, picks: Any) -> list[float]:
        return [min(12.0, -softmax_log(scores[0, g].tolist())[int(picks[0, g])]) for g in range(3)]

    def balanced(each: list[float], rare: list[bool]) -> float:
        parts = []
        for which in (False, True):
            some = [g for g in range(3) if rare[g] == which]
            parts.append(sum(each[g] * weight[g] for g in some) / sum(weight[g] for g in some))
        return 0.6 * parts[0] + 0.4 * parts[1]

    moved, later = [False, True, True], [False, True, True]
    assert worth(place, device)[2] == 12 and worth(level, levels)[0] == 12
    wanted = balanced(worth(place, device), moved) + 0.3 * balanced(worth(level, levels), later)
    assert float(found) == pytest.approx(wanted, rel=1e-5)


def test_the_better_a_candidate_the_likelier_it_should_be() -> None:
    """Of two graphs with two and three candidates."""
    value, scores = [100.0, 110.0, 50.0, 49.0, 60.0], [0.3, -0.2, 1.0, 0.0, 0.5]
    batch: Any = SimpleNamespace(num_candidates=(2, 3))
    found = losses.choice_loss(torch.tensor(scores), batch, torch.tensor(value))
    total = 0.0
    for some in (slice(0, 2), slice(2, 5)):
        likely = [each ** (-1 / 0.05) for each in value[some]]
        shares = [each / sum(likely) for each in likely]
        total -= sum(share * log for share, log in zip(shares, softmax_log(scores[some]), strict=True))
    assert float(found) == pytest.approx(total / 2, rel=1e-4)


def test_entropy_is_of_the_groups_that_are_there() -> None:
    place, level = torch.tensor([[[1.0, 0.0], [0.0, 0.0]]]), torch.tensor([[[0.0, 2.0, 0.0], [9.0, 0.0, 0.0]]])
    batch: Any = SimpleNamespace(there=torch.tensor([[True, False]]))
    wanted = 0.0
    for row in ([1.0, 0.0], [0.0, 2.0, 0.0]):
        wanted -= sum(math.exp(each) * each for each in softmax_log(row))
    assert float(losses.entropy_of(GoOutputs(place, level, torch.zeros(0, 3)), batch)) == pytest.approx(
        wanted, rel=1e-5
    )


def test_what_lost_most_and_what_was_next_to_impossible_count_up_to_a_bound() -> None:
    """One of forty lost much; one is a hundred times less likely than it was, one a hundred times likelier."""
    said = [torch.zeros(1, 1, 2, dtype=torch.float64)]
    gain = np.zeros(40)
    gain[0] = -5.0
    half = math.log(0.5)
    chance = np.full(40, half)
    chance[0], chance[1] = half - 30.0, half + 30.0
    sample = Sample(ints([0] * 40), np.ones((40, 1)), ints([0] * 40), chance, gain)
    scaled = np.maximum(-3.0, (gain - gain.mean()) / (gain.std() + 1e-4))
    assert scaled[0] == -3.0 and scaled[1] > 0
    terms = [math.exp(5) * -3.0, math.exp(-10) * scaled[1], *scaled[2:]]
    assert float(losses.sample_loss(said, sample)) == pytest.approx(-sum(terms) / 40, rel=1e-9)


def test_groups_of_the_second_graph_lie_behind_those_of_the_first() -> None:
    place = torch.tensor([[[0.0, 0.0], [9.0, 0.0]], [[1.0, 0.0], [0.0, 0.0]]])
    alone = part([[0, 0]], [[OFF, OFF]], [[]])
    second = part([[0, 0]], [[0, OFF]], [[softmax_log([1.0, 0.0])[0]]])
    batch: Any = SimpleNamespace(num_ops=(0, 0))
    draws: list[Any] = [
        Draws(alone, alone, nothing(1), np.zeros(1, bool), ints([])),
        Draws(second, alone, nothing(1), np.zeros(1, bool), ints([])),
    ]
    found = losses.policy_loss(outputs(place), batch, draws, [np.array([7.0]), np.array([2.0])])
    assert float(found) == pytest.approx(-2.0, rel=1e-5)  # a ratio of 1
