"""Epochs of which one half changes kernels, with halves that are told beforehand; and starts that join late."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest

from loadmaster import Budget, GraphBuilder, price
from loadmaster.graph.columns import ints
from loadmaster.optimizers import joint, racing
from loadmaster.optimizers.annealing.chains import Reheating
from loadmaster.optimizers.joint import FusingRunner, Joint, JointEpochs, JointRace, Later
from loadmaster.optimizers.starts import Scored
from loadmaster.plans import Plan
from loadmaster.problem import Problem
from loadmaster.search import Score, Search


class Told:
    """What either half is asked for, and finds: (score, simulations that it takes)."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, fused: tuple[Score, int], moved: tuple[Score, int]) -> None:
        self.asked = list[tuple[str, int]]()
        self.hot, self.refused = -1.0, 0
        self.search: Any = SimpleNamespace(
            spent=False, simulations=500, in_turn=500, counts_simulations=True, seconds=0.0
        )
        epochs: Any = JointEpochs.__new__(JointEpochs)
        epochs.settings, epochs.search, epochs.fuses = Joint(temperature=0.01), self.search, True

        def half(name: str, simulations: int, found: tuple[Score, int]) -> Scored:
            self.asked.append((name, simulations))
            self.search.simulations += found[1]
            self.search.in_turn += found[1]
            return Scored(found[0], name)  # type: ignore[arg-type]

        def fuse(start: Scored, simulations: int, hot: float) -> Scored:
            self.hot = hot
            return half("fused", simulations, fused)

        def refuse(search: Any, found: Scored) -> Scored:
            self.refused += 1
            return found

        epochs._fused, epochs._moved = fuse, lambda runner, start, simulations: half("moved", simulations, moved)
        monkeypatch.setattr(joint, "refused", refuse)
        self.epochs: JointEpochs = epochs


def runner(turn: int, *, length: int = 100, share: float = 0.3, ops: int = 4000) -> FusingRunner:
    marks = [(10 * at, Score(0, 1_000)) for at in range(1, turn + 1)]
    plan: Any = "begun"
    return FusingRunner(Score(0, 1_000), plan, Reheating(ops, length), used=60, marks=marks, share=share)


def test_kernels_change_from_the_seventeenth_epoch_on_for_their_share_of_it(monkeypatch: pytest.MonkeyPatch) -> None:
    told = Told(monkeypatch, (Score(0, 980), 10), (Score(0, 931), 30))
    some = runner(16)
    told.epochs.go_on(some)
    assert told.asked == [("fused", 30), ("moved", 70)]
    # A fiftieth in 10 simulations, then a twentieth in 30: six to five.
    assert some.share == pytest.approx(0.5) and told.refused == 0
    assert (some.score, some.plan, some.gain, some.used) == (Score(0, 931), "moved", 69, 100)
    assert some.marks[16:] == [(100, Score(0, 931))] and some.pace.length > 100


def test_what_a_half_gained_is_counted_for_the_simulations_that_it_took(monkeypatch: pytest.MonkeyPatch) -> None:
    told = Told(monkeypatch, (Score(0, 980), 20), (Score(0, 931), 20))
    told.epochs.go_on(some := runner(16))
    assert some.share == pytest.approx(2 / 7)


def test_before_that_and_where_nothing_can_be_fused_all_of_it_goes_into_moves(monkeypatch: pytest.MonkeyPatch) -> None:
    told = Told(monkeypatch, (Score(0, 980), 10), (Score(0, 931), 30))
    told.epochs.go_on(some := runner(15))
    told.epochs.fuses = False
    told.epochs.go_on(runner(16))
    assert told.asked == [("moved", 100), ("moved", 100)] and some.share == 0.3


def test_the_first_epoch_is_of_one_length_and_sets_no_pace(monkeypatch: pytest.MonkeyPatch) -> None:
    told = Told(monkeypatch, (Score(0, 980), 10), (Score(0, 1_000), 30))
    lengths = []
    for turn in (0, 1):
        told.epochs.go_on(some := runner(turn, length=700))
        lengths.append(some.pace.length)
        assert some.gain == 0 and some.marks[turn:] == [(90, Score(0, 1_000))]
    assert lengths[0] == 700 < lengths[1]
    assert told.asked[0][1] < told.asked[1][1] == 700


@pytest.mark.parametrize(("turn", "part"), [(18, 0.3), (19, 0.6), (20, 1.0), (21, 0.3)])
def test_epochs_are_warmer_in_turn_and_hotter_where_the_last_gained_nothing(
    turn: int, part: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    told = Told(monkeypatch, (Score(0, 1_000), 10), (Score(0, 1_000), 30))
    told.epochs.go_on(some := runner(turn, ops=25))  # settled: as long again, and hotter
    assert told.hot == pytest.approx(part * 0.01) and some.pace.times == pytest.approx(3.0)
    told.epochs.go_on(some)
    assert told.hot == pytest.approx(3 * 0.01)


@pytest.mark.parametrize(("length", "times"), [(399, 0), (400, 1)])
def test_after_a_long_epoch_the_placement_is_fused_anew(
    length: int, times: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    for fuses in (True, False):
        told = Told(monkeypatch, (Score(0, 1_000), 10), (Score(0, 1_000), 30))
        told.epochs.fuses = fuses
        told.epochs.go_on(runner(3, length=length))
        assert told.refused == times * fuses


def test_a_gain_of_time_is_one_where_as_many_bytes_are_short(monkeypatch: pytest.MonkeyPatch) -> None:
    for over, gain in ((0, 100), (1, 0)):
        told = Told(monkeypatch, (Score(0, 900), 10), (Score(0, 900), 30))
        some = runner(3)
        some.score = Score(over, 1_000)
        told.epochs.go_on(some)
        assert (some.score, some.gain) == (Score(0, 900), gain)
    worse = Told(monkeypatch, (Score(0, 1_000), 10), (Score(0, 1_000), 30))
    worse.epochs.go_on(some := runner(3))
    assert some.gain == 0


def test_an_epoch_of_a_search_that_has_ended_does_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    told = Told(monkeypatch, (Score(0, 900), 10), (Score(0, 900), 30))
    told.search.spent = True
    told.epochs.go_on(some := runner(3))
    assert told.asked == [] and len(some.marks) == 3


def test_where_the_clock_counts_gains_are_for_seconds(monkeypatch: pytest.MonkeyPatch) -> None:
    told = Told(monkeypatch, (Score(0, 980), 10), (Score(0, 931), 30))
    told.search.counts_simulations = False
    ticks = iter([1.0, 3.0, 5.0])
    told.epochs._spent = lambda: next(ticks)  # type: ignore[method-assign]
    told.epochs.go_on(some := runner(16))
    assert some.share == pytest.approx(2 / 7)
    told.search.seconds, told.search.simulations = 12.5, 40
    assert JointEpochs._spent(told.epochs) == 12.5
    told.search.counts_simulations = True
    assert JointEpochs._spent(told.epochs) == 40


# On kernels


def relus(count: int = 6, on: str = "2xp100-pcie", objective: Any = "step-time") -> Problem:
    build = GraphBuilder("relus")
    read = build.tensor(4 * 512, "input", shape=(512,), dtype="float32")
    for op in range(count):
        made = build.tensor(4 * 512, shape=(512,), dtype="float32")
        build.op(f"op{op}", "aten.relu.default", [read], [made], flops=512)
        read = made
    return price(build.build(), on, objective=objective)


def test_what_a_walk_needs_is_kept_for_the_kernels_asked_for_last() -> None:
    problem = relus()
    epochs = JointEpochs(Joint(), Search(problem, Budget(None, 100)))
    kernels = [np.arange(6) for _ in range(5)]
    for at, kernel in enumerate(kernels):
        kernel[at + 1] = at
    for kernel in kernels[:4]:
        epochs._on(ints(kernel))
    first = epochs._on(ints(kernels[0]))
    assert first[0].problem.num_ops == 5 and first[1].problem is first[0].problem
    epochs._on(ints(kernels[4]))  # the second is let go
    assert epochs._on(ints(kernels[0])) is first
    assert ints(kernels[1]).tobytes() not in epochs.known and len(epochs.known) == joint.KEPT


def test_kernels_can_change_where_two_ops_may_share_one() -> None:
    fuses = [JointEpochs(Joint(), Search(relus(ops), Budget(None, 9))).fuses for ops in (1, 2)]
    assert fuses == [False, True]


class Walk:
    """Chains that find what they are told."""

    def __init__(self, found: Scored) -> None:
        self.found, self.asked = (found.score, found.plan), list[Any]()

    def restart(self, start: Any) -> None:
        self.asked.append(start.score)

    def enlist(self, simulations: int, several: bool) -> int:
        self.asked.append((simulations, several))
        return 3 * simulations

    def cool(self, *given: Any) -> None:
        self.asked.append(given)


@pytest.mark.parametrize(
    ("simulations", "seconds", "several"), [(23, None, False), (24, None, True), (23, 600.0, True)]
)
def test_one_chain_changes_kernels_until_there_are_many_simulations_for_each_op(
    simulations: int, seconds: float | None, several: bool
) -> None:
    problem = relus()
    epochs = JointEpochs(Joint(cold=0.5), Search(problem, Budget(seconds, 1_000)))
    start, better = (Scored(Score(0, value), Plan.of(problem, [device] * 6)) for value, device in ((9, 0), (8, 1)))
    walk: Any = Walk(better)
    epochs.together = walk
    assert epochs._fused(start, simulations, 0.7) is not start
    assert walk.asked == [Score(0, 9), (simulations, several), (3 * simulations, 0.7, 0.5)]
    walk.found = (Score(0, 9), better.plan)
    assert epochs._fused(start, simulations, 0.7) is start, "it is no better"


def moving(problem: Problem, found: Score) -> tuple[JointEpochs, list[Any]]:
    """Epochs whose walks on kernels come to that score, and the runners that were walked with."""
    epochs, walked = JointEpochs(Joint(), Search(problem, Budget(None, 1_000))), list[Any]()
    on = epochs._on

    def go_on(runner: racing.Runner) -> None:
        walked.append((runner, runner.score, runner.used, list(runner.marks), runner.pace.length))
        runner.score = found
        runner.marks.append((0, found))

    def known(kernel: Any) -> Any:
        return *on(kernel)[:2], SimpleNamespace(go_on=go_on)

    epochs._on = known  # type: ignore[method-assign]
    return epochs, walked


def test_moves_go_on_from_where_they_were_on_the_same_kernels_and_begin_anew_on_others() -> None:
    problem = relus()
    epochs, walked = moving(problem, Score(0, 80))
    one, other = ints([0, 0, 2, 3, 4, 5]), ints([0, 1, 1, 3, 4, 5])
    some = runner(16)
    found = epochs._moved(some, Scored(Score(0, 90), Plan.of(problem, [0] * 6, None, one)), 37)
    assert found.score == Score(0, 80) and found.plan.kernel.tolist() == one.tolist()
    assert walked[0][1:] == (Score(0, 90), 60, [], 37.0)
    same = Scored(Score(0, 80), Plan.of(problem, [0] * 6, None, one))
    some.moved.joined = same.plan  # type: ignore[union-attr]
    assert epochs._moved(some, same, 40) is same, "it is no better"
    assert walked[1][0] is walked[0][0] and some.moved.joined is same.plan  # type: ignore[union-attr]
    better = Scored(Score(0, 79), same.plan)
    assert epochs._moved(some, better, 40) is better
    assert walked[2][0] is walked[0][0] and walked[2][1] == Score(0, 79)
    assert some.moved.joined is None  # type: ignore[union-attr]
    epochs._moved(some, Scored(Score(0, 85), Plan.of(problem, [0] * 6, None, other)), 40)
    assert walked[3][0] is not walked[0][0] and walked[3][3] == [(0, Score(0, 80))] * 3


# Starts op by op


def test_there_are_none_where_kernels_first_is_as_good(monkeypatch: pytest.MonkeyPatch) -> None:
    build = GraphBuilder("products")
    read = build.tensor(8, "input")
    for op in range(3):
        made = build.tensor(8)
        build.op(f"op{op}", "aten.mm.default", [read], [made], flops=10**6)
        read = made
    alone = price(build.build(), "2xp100-pcie")
    monkeypatch.setattr(racing, "starts", lambda search: ["some"])
    for problem, left in (
        (relus(), ["some"]),
        (relus(on="1xa100-nvlink"), []),
        (relus(objective="peak-memory"), []),
        (alone, []),
    ):
        assert Later(Search(problem, Budget(None, 10))).left == left


@pytest.mark.parametrize(("took_s", "counts", "asked"), [(2.0, False, True), (2.1, False, False), (2.1, True, True)])
def test_starts_op_by_op_have_a_tenth_of_the_time_and_those_of_kernels_come_first(
    took_s: float, counts: bool, asked: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    race: Any = JointRace.__new__(JointRace)
    race.search = SimpleNamespace(seconds=20.0, counts_simulations=counts, problem=SimpleNamespace(num_ops=40))
    race.took_s, race.others, race.best_start = took_s, [], Score(0, 100)
    race.waiting, plan = "waiting", cast(Any, "plan")
    race.fused = SimpleNamespace(more=lambda: [Scored(Score(0, 125), plan), Scored(Score(0, 126), plan)])

    def placed_first(search: Any, waiting: Any, fused: Any) -> list[Scored]:
        assert (waiting, fused) == ("waiting", race.fused)
        race.search.seconds += 1.5
        return [Scored(Score(0, 120), plan)]

    monkeypatch.setattr(joint, "placed_first", placed_first)
    race._take_in()
    found = [other.score.value for other in race.others]
    assert found == [125, *[120] * asked], "not what is too far from the best start"
    assert race.took_s == pytest.approx(took_s + 1.5 * asked)
    assert isinstance(race.others[0], FusingRunner)


def test_where_there_are_no_given_kernels_nothing_is_taken_in() -> None:
    race: Any = JointRace.__new__(JointRace)
    race.others, race.fused = [], None
    race._take_in()
    assert race.others == []
