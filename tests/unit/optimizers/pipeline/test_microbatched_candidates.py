"""Which pipelines are tried, with a judge that writes down what it is asked and says what it is told to."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from loadmaster import GraphBuilder, price
from loadmaster.cluster import Link
from loadmaster.errors import InvalidSetting
from loadmaster.graph.columns import ints
from loadmaster.optimizers.pipeline import microbatched
from loadmaster.optimizers.pipeline.cuts import StageLine
from loadmaster.optimizers.pipeline.edges import balanced_edges, crossing_of
from loadmaster.optimizers.pipeline.judging import StageCut
from loadmaster.optimizers.pipeline.microbatched import FAR, KEPT, _Planner, plan_pipeline
from loadmaster.optimizers.pipeline.replicas import Replicated
from loadmaster.optimizers.pipeline.slots import slots_of
from loadmaster.passes.microbatches import Action
from loadmaster.problem import CANNOT
from loadmaster.search import Budget, Score
from tests.unit.optimizers.pipeline.lines import devices, line, problem


class Noted:
    """Judges by a rule, and keeps what it was asked."""

    def __init__(self, rule: Callable[[int], Score] = lambda _: Score(0, 100)) -> None:
        self.rule, self.asked = rule, list[Any]()

    def __call__(self, schedule: str, cut: StageCut, most: tuple[int, ...] = (), given: Any = None) -> Any:
        score = self.rule(len(self.asked))
        made = SimpleNamespace(schedule=schedule, cut=cut, most=most, given=given, score=score, peak_bytes=ints([9, 9]))
        self.asked.append(made)
        return made

    def told(self) -> list[tuple[str, str]]:
        return [(one.schedule, one.cut.name) for one in self.asked]


def planner(layers: int, count: int, microbatches: int, judge: Noted | None = None) -> Any:
    found: Any = _Planner(problem(layers, count), microbatches, Budget(None, 99), 0)
    found.judge = judge or Noted()
    return found


def forward_only(microbatches: int, judge: Noted) -> Any:
    g = GraphBuilder("forward")
    x = g.tensor(8, "input")
    for i in range(4):
        y = g.tensor(8, "output" if i == 3 else "activation")
        g.op(f"f{i}", "layer", [x], [y], time_ns=100)
        x = y
    found: Any = _Planner(price(g.build(), devices(2)), microbatches, Budget(None, 99), 0)
    found.judge = judge
    return found


def bare(**given: Any) -> Any:
    found: Any = _Planner.__new__(_Planner)
    vars(found).update(given)
    return found


EQUAL, BALANCED = "equal", "balanced"
HAND_MADE = ("gpipe", "zb-h1")


def test_hand_made_schedules_on_equal_stages_and_on_near_ones() -> None:
    """The balanced cut of the second layout is just too far from the best, so that only the first is gone on with."""
    values = [100, 100, int(FAR * 100) + 1]
    judge = Noted(lambda at: Score(0, values[at] if at < 3 else 50))
    plans = planner(4, 2, 4, judge)
    assert len(plans.layouts) == 2
    given = list(plans.by_hand())
    asked = [("1f1b", EQUAL), ("1f1b", BALANCED), ("1f1b", BALANCED)]
    asked += [(schedule, name) for name in (EQUAL, BALANCED) for schedule in HAND_MADE]
    assert judge.told() == [*asked, ("interleaved", EQUAL), ("interleaved", BALANCED)]
    assert [one.schedule for one in given] == ["1f1b", *HAND_MADE, "1f1b", *HAND_MADE, "interleaved", "interleaved"]
    assert {one.cut.stages for one in judge.asked[-2:]} == {4} and len(plans.layouts) == 1


def test_equal_stages_are_told_of_however_far_they_are() -> None:
    values = [int(FAR * 100) + 1, int(FAR * 100), 100]
    plans = planner(4, 2, 3, Noted(lambda at: Score(0, values[at] if at < 3 else 50)))
    given = [(one.schedule, one.cut.name) for one in plans.by_hand()]
    assert given == [(schedule, name) for name in (EQUAL, BALANCED, BALANCED) for schedule in ("1f1b", *HAND_MADE)]
    assert len(plans.layouts) == 2, "three microbatches on two devices are not interleaved"


def test_one_device_and_forward_passes_have_fewer_schedules() -> None:
    alone, forward = Noted(), Noted()
    assert len(list(planner(4, 1, 2, alone).by_hand())) == 3 * 3
    assert {schedule for schedule, _ in alone.told()} == {"1f1b", *HAND_MADE}
    list(forward_only(2, forward).by_hand())
    assert {schedule for schedule, _ in forward.told()} == {"1f1b", "gpipe"}


def cut_of(stages: int, slots: int = 8, name: str = "balanced", spread: int = 1) -> StageCut:
    places = tuple(tuple(range(at, at + spread)) for at in range(stages))
    return StageCut(ints(np.arange(slots)), tuple(range(1, stages)), places, name)


def test_eager_schedules_hold_more_and_more_on_the_best_cuts() -> None:
    judge, three = Noted(), cut_of(3)
    plans = bare(judge=judge, count=4, search=SimpleNamespace(spent=False))
    list(plans.eager([SimpleNamespace(cut=three)] * 2))
    assert [one.most for one in judge.asked] == [(3, 2, 1), (4, 3, 2), (4, 4, 2), (4, 4, 4)]
    many = [SimpleNamespace(cut=cut_of(2)) for _ in range(KEPT + 2)]
    list(plans.eager(many))
    assert len(judge.asked) == 4 + 4 * KEPT
    plans.search.spent = True
    assert not list(plans.eager(many))


def test_what_is_near_the_quickest_or_the_best_that_fits() -> None:
    far = int(FAR * 100)
    scores = [Score(0, 100), Score(0, far), Score(0, far + 1), Score(5, 50), Score(5, 65), Score(5, 66)]
    assert far == FAR * 100 and FAR * 50 == 65
    assert microbatched._near(scores) == [True, True, False, True, True, False]


def test_limits_are_tightened_by_what_the_best_is_over_them() -> None:
    base = problem(4, 2)
    planned = _Planner(base, 2, Budget(None, 9), 0)
    slots = slots_of(base, planned.layouts[0], planned.phase)._replace(memory=ints([100, 100]))
    best: Any = SimpleNamespace(score=Score(20, 5), peak_bytes=ints([120, 80, 999]))
    other: Any = SimpleNamespace(score=Score(30, 4), peak_bytes=ints([200, 200, 999]))
    assert microbatched._tighter(slots, [other, best]).memory.tolist() == [80, 100]


def test_lines_of_the_best_pipelines_that_are_cut_from_the_same_slots() -> None:
    slot, stages = ints(np.arange(8)), ((2,), (0,), (1,))
    cut = StageCut(slot, (3, 5), stages, "balanced")
    unlike = replace(cut, slot=ints(np.arange(8)))
    twice = replace(cut, device=((0, 1), (2,), (3,)))
    made: list[Any] = [SimpleNamespace(cut=each, most=()) for each in (unlike, twice, cut)]
    made += [SimpleNamespace(cut=cut, most=(9, 8, 7))] * KEPT
    found = list(microbatched._lines_of(made, slot))
    assert found == [StageLine((3, 5), (2, 0, 1), (3, 2, 1))] + [StageLine((3, 5), (2, 0, 1), (9, 8, 7))] * (KEPT - 1)


def test_equal_cuts_on_the_first_layout_and_balanced_ones_on_each() -> None:
    plans = planner(5, 2, 2)
    first = plans.layouts[0]
    plans.layouts = [first, ints(np.arange(plans.problem.num_ops))]
    assert int(first.max()) == 4
    found = list(plans.cuts(4))
    assert [(cut.name, cut.slot is first) for cut in found] == [(EQUAL, True), (BALANCED, True), (BALANCED, False)]
    assert found[0].edges == (1, 2, 3) and next(plans.cuts(2)).edges == (2,)
    assert all(cut.device == ((0,), (1,), (0,), (1,)) for cut in found)
    assert found[1].edges == balanced_edges(plans._work(first), (0, 1, 0, 1), crossing_of(plans.problem, first))
    assert len(list(plans.cuts(5))) == 3, "a stage has one slot at least"
    assert [(cut.name, cut.slot is first) for cut in plans.cuts(6)] == [(BALANCED, False)]


@pytest.mark.parametrize(
    ("times", "orders", "turned"),
    [
        ([[10, 10, 10]], [(0, 1, 2)], [(0, 1, 2)]),
        ([[2, 1, 4]], [(0, 1, 2), (1, 0, 2), (2, 0, 1)], [(0, 1, 2), (1, 0, 2), (0, 2, 1), (2, 1, 0)]),
        ([[1, 2, 4]], [(0, 1, 2), (2, 1, 0)], [(0, 1, 2), (2, 1, 0), (1, 0, 2), (0, 2, 1)]),
        ([[5, CANNOT, 4], [1, 1, 1]], [(0, 1, 2), (1, 2, 0), (0, 2, 1)], None),  # what it cannot run takes no time
    ],
)
def test_unlike_devices_in_several_orders(times: Any, orders: Any, turned: Any) -> None:
    plans = bare(problem=SimpleNamespace(op_ns=np.array(times), num_devices=3))
    assert plans._orders() == orders
    assert turned is None or plans._turned() == turned


@pytest.mark.parametrize(("layers", "lengths"), [(4, [2, 4, 4]), (6, [2, 4, 4, 6]), (3, [2])])
def test_lines_there_and_back(layers: int, lengths: list[int]) -> None:
    """Each twice: as many microbatches held as there are devices ahead, and all of them."""
    plans = planner(layers, 2, 3)
    slot = plans.layouts[0]
    lines = list(plans._lines(slot))
    assert [len(each.device) for each in lines] == [size for size in lengths for _ in range(2)]
    assert [each.device for each in lines[::2]] == [(0, 1), (0, 1, 0, 1), (0, 1, 1, 0), (0, 1, 1, 0, 0, 1)][
        : len(lengths)
    ]
    assert [each.most for each in lines[::2]] == [(2, 1), (2, 2, 1, 1), (2, 2, 1, 1), (2, 2, 2, 1, 1, 1)][
        : len(lengths)
    ]
    assert all(each.most == (3,) * len(each.device) for each in lines[1::2])
    crossing = crossing_of(plans.problem, slot)
    assert all(each.edges == balanced_edges(plans._work(slot), each.device, crossing) for each in lines)
    assert {each.most for each in planner(layers, 2, 1)._lines(slot)} == {(1,) * size for size in lengths}


def replicating(count: int, **given: Any) -> Any:
    links = {(0, 1): Link(None, 5), (1, 0): Link(2e9), (1, 2): Link(1e9), (2, 1): Link(3e9)}
    whole = SimpleNamespace(num_devices=3, device_kind=np.zeros(3, int), cluster=SimpleNamespace(links=links))
    plans = bare(problem=whole, layouts=[ints([0, 1])], trains=True, count=count, judge=Noted())
    plans.search = SimpleNamespace(spent=False)
    plans._work = lambda slot: ints([[7, 0, 0], [9, 0, 0]])
    vars(plans).update(given)
    return plans


@pytest.mark.parametrize(("count", "most", "held"), [(2, 2, [(2, 1), (2, 2)]), (5, 3, [(2, 1), (4, 2)])])
def test_replicated_stages(count: int, most: int, held: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Work of all microbatches, and the slowest link, of which one without a rate is none."""
    asked = list[Any]()

    def splits(work: Any, gradients: Any, devices: int, most: int, link: Link) -> list[Replicated]:
        asked.append((work.tolist(), gradients, devices, most, link.bytes_per_s))
        return [Replicated(1.0, (1,), (2, 1))]

    monkeypatch.setattr(microbatched, "replicated_splits", splits)
    monkeypatch.setattr(microbatched, "gradients_of", lambda problem, slot: "gradients")
    plans = replicating(count)
    list(plans.replicated())
    assert asked == [([7 * count, 9 * count], "gradients", 3, most, 1e9)]
    assert [(one.schedule, one.cut.device, one.cut.edges, one.cut.name) for one in plans.judge.asked] == [
        ("eager", ((0, 1), (2,)), (1,), "replicated")
    ] * 2
    assert [one.most for one in plans.judge.asked] == held
    unlike = SimpleNamespace(**(vars(plans.problem) | {"device_kind": np.array([0, 0, 1])}))
    for other in (replicating(2, trains=False), replicating(2, problem=unlike)):
        assert not list(other.replicated())
    spent = replicating(2, search=SimpleNamespace(spent=True))
    assert not list(spent.replicated()) and len(asked) == 2


@pytest.mark.parametrize(
    ("count", "microbatches", "places", "most"),
    [
        (2, 2, ((0, 1), (1, 0)), (2, 1)),
        (4, 3, ((0, 3), (1, 2), (2, 1), (3, 0)), (3, 3, 2, 1)),
        (2, 1, None, None),  # nothing goes the other way
        (3, 4, None, None),
        (6, 4, None, None),  # fewer layers than devices
    ],
)
def test_stages_in_both_directions(count: int, microbatches: int, places: Any, most: Any) -> None:
    plans = planner(4, count, microbatches)
    plans.layouts = plans.layouts[:1]
    given = list(plans.bidirectional())
    assert [(one.cut.device, one.most, one.cut.name) for one in given] == (
        [] if places is None else [(places, most, "bidirectional")]
    )
    if given:
        edges = balanced_edges(
            plans._work(plans.layouts[0]), tuple(range(count)), crossing_of(plans.problem, plans.layouts[0])
        )
        assert given[0].cut.edges == edges
    plans.trains = False
    assert not list(plans.bidirectional())
    plans.trains, plans.problem = True, SimpleNamespace(num_devices=2, device_kind=np.array([0, 1]))
    assert not list(plans.bidirectional())


@pytest.mark.parametrize(
    ("step", "better", "tried"),
    [
        (1, 9, [(1, 4), (3, 4), (2, 3), (2, 5)]),
        (1, 1, [(1, 4), (3, 4)]),  # the first that is better is taken
        (2, 9, []),  # no stage becomes empty
        (3, 9, []),
    ],
)
def test_edges_move_one_at_a_time(step: int, better: int, tried: Any) -> None:
    judge = Noted(lambda at: Score(0, 49 if at == better else 50))
    plans = bare(judge=judge, search=SimpleNamespace(spent=False))
    cut = StageCut(ints(np.arange(6)), (2, 4), ((0,), (1,), (2,)), "balanced")
    here = SimpleNamespace(cut=cut, schedule="eager", most=(3, 2, 1), score=Score(0, 50))
    found = plans._moved(here, step)
    assert [one.cut.edges for one in judge.asked] == tried
    assert {(one.schedule, one.most, one.cut.name) for one in judge.asked} <= {("eager", (3, 2, 1), "searched")}
    assert found is (judge.asked[better] if better < len(tried) else None)
    plans.search.spent = True
    assert plans._moved(here, 1) is None and len(judge.asked) == len(tried)


def test_what_adding_gradients_up_takes() -> None:
    """Two read and one written, 500 bytes at a byte a ns, for two of three microbatches: no more than 3,000 ns."""
    base = problem(2, 2, weights=500)
    found = microbatched._adding_ns(base, 3)
    updates = [name.startswith("u") for name in base.graph.op_name]
    assert found.shape == (base.num_ops, 2) and not found[~np.array(updates)].any()
    assert set(found[updates].reshape(-1).tolist()) == {2_999}
    assert not microbatched._adding_ns(base, 1).any()


def test_the_bound_is_what_the_busiest_device_must_do() -> None:
    """Four layers of 300 ns on two devices, three times; and what adding gradients up takes, unless replicas share it.
    Nothing can be on a device that cannot run it."""
    assert microbatched.bound_of(problem(4, 2), 3) == 4 * 300 * 3 // 2
    heavy = problem(4, 2, weights=500)
    assert microbatched.bound_of(heavy, 3) == (4 * 300 * 3 + 4 * 2_999) // 2
    assert microbatched.bound_of(heavy, 3, replicate=True) == 4 * 300 * 3 // 2
    graph = line(2)
    times = np.repeat(graph.time_ns[:, :1], 2, axis=1)
    times[graph.op_name.index("f0")] = [CANNOT, 100]
    assert microbatched.bound_of(price(replace(graph, time_ns=ints(times)), devices(2)), 3) == 2 * 300 * 3 // 2


def test_how_many_microbatches_there_may_be(monkeypatch: pytest.MonkeyPatch) -> None:
    """Four actions for each on each device."""

    def planned(*_: Any) -> None:
        raise LookupError

    monkeypatch.setattr(microbatched, "_Planner", planned)
    monkeypatch.setattr(microbatched, "MOST_ACTIONS", 16)
    for count in (1, 2):
        with pytest.raises(LookupError):
            plan_pipeline(problem(2, 2), count, Budget(None, 5))
    for count in (0, 3):
        with pytest.raises(InvalidSetting):
            plan_pipeline(problem(2, 2), count, Budget(None, 5))


@pytest.mark.parametrize(("over", "rounds"), [([0, 9], 1), ([9, 0], 1), ([9, 8, 0, 0], 2), ([9, 8, 7, 6], 2)])
def test_lines_that_do_not_fit_are_rehearsed_again_with_less(
    over: list[int], rounds: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = list[Any]()
    lines = [StageLine((1,), (1, 0), (2, 1)), StageLine((2,), (0, 1), (2, 1))]

    class Rehearsed:
        def __init__(self, slots: Any, count: int, seed: int, spent: Any) -> None:
            self.asked = (slots.memory.tolist(), count, seed, spent())

        def best(self, starts: Any, number: int, kept: int) -> Any:
            asked.append((*self.asked, len(starts), number, kept))
            return lines

        def actions(self, line: StageLine) -> list[Action]:
            return [Action(0, 0, 0), Action(0, 1, 0), Action(1, 0, 0)]

    monkeypatch.setattr(microbatched, "Rehearsals", Rehearsed)
    plans = planner(4, 2, 3, Noted(lambda at: Score(over[at], 100 + at)))
    plans.layouts, memory = plans.layouts[:1], 2**40
    monkeypatch.setattr(Noted, "__call__", _over_memory(Noted.__call__, memory))
    made = list(plans.rehearsed([]))
    starts = len(list(plans._lines(plans.layouts[0])))
    number = plans._rehearsals(SimpleNamespace(memory=range(2)))
    nearest = memory - min(over[:2])
    assert asked == [
        (limit, 3, 0, False, starts, number, microbatched.JUDGED)
        for limit in ([memory] * 2, [nearest, memory])[:rounds]
    ]
    assert len(made) == 2 * rounds and [one.cut.device for one in made[:2]] == [((1,), (0,)), ((0,), (1,))]
    assert made[0].given == [[Action(0, 1, 0)], [Action(0, 0, 0), Action(1, 0, 0)]]
    assert made[1].given == [[Action(0, 0, 0), Action(1, 0, 0)], [Action(0, 1, 0)]]
    assert {(one.schedule, one.most, one.cut.name) for one in made} == {("eager", (2, 1), "searched")}


def _over_memory(judge: Any, memory: int) -> Any:
    """The first device holds as much more than there is as the score says."""

    def judged(self: Noted, *given: Any) -> Any:
        made = judge(self, *given)
        made.peak_bytes = ints([memory + made.score.over_bytes, 5])
        return made

    return judged


@pytest.mark.parametrize(
    ("places", "enough"), [(([0, 1], [0, 0]), True), (([0, 0], [0, 1]), True), (([0], [0]), False)]
)
def test_there_are_as_many_places_to_cut_as_devices(places: Any, enough: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """On one of the layouts."""

    def planned(*_: Any) -> Any:
        layouts = [ints(slot) for slot in places]
        return SimpleNamespace(layouts=layouts, bidirectional=_reached, by_hand=_reached)

    monkeypatch.setattr(microbatched, "_Planner", planned)
    with pytest.raises(LookupError if enough else InvalidSetting):
        plan_pipeline(problem(2, 2), 2, Budget(None, 5))


def _reached() -> None:
    raise LookupError


def test_modules_come_before_places_in_the_forward_pass() -> None:
    """Ops of one module are one slot; without modules there is the other layout alone."""
    plans = planner(3, 2, 2)
    plans.problem = price(replace(plans.problem.graph, scope=("a",) * plans.problem.num_ops), devices(2))
    assert [int(slot.max()) + 1 for slot in plans._layouts()] == [1, 3]
    plans.problem = price(replace(plans.problem.graph, scope=("",) * plans.problem.num_ops), devices(2))
    assert [int(slot.max()) + 1 for slot in plans._layouts()] == [3]
