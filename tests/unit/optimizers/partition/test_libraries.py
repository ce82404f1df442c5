"""What libraries are asked, and what is made of their answers: each is stood in for by one that writes that down."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from loadmaster.graph.columns import ints
from loadmaster.optimizers.partition import partitioners
from loadmaster.optimizers.partition.parts import Parts
from loadmaster.optimizers.partition.parts import _scaled as scaled
from loadmaster.search import Score


def parts(units: int, share: list[float], distance: list[list[int]] | None = None) -> Parts:
    """Units in a row, each of which sends to the next."""
    devices = len(share)
    pins = np.stack([np.arange(units - 1), np.arange(1, units)], axis=1).reshape(-1)
    away = 1 - np.eye(devices, dtype=np.int64) if distance is None else np.array(distance)
    cost = ints(np.arange(1, units))
    net = ints(2 * np.arange(units))
    return Parts(ints(np.arange(units)), ints(np.full(units, 3)), net, ints(pins), cost, np.array(share), ints(away))


class Asked(list[Any]):
    """A library in which every function writes down what it is given."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, **functions: Any) -> None:
        super().__init__()
        library = SimpleNamespace(**{name: self._told(name, function) for name, function in functions.items()})
        monkeypatch.setattr(partitioners, "_library", lambda _: library)

    def _told(self, name: str, function: Any) -> Any:
        def told(*given: Any, **named: Any) -> Any:
            self.append((name, given, named))
            return function(*given, **named)

        return told

    def of(self, name: str) -> list[tuple[Any, Any]]:
        return [(given, named) for called, given, named in self if called == name]


def halves(count: int, units: int) -> list[int]:
    return [at * count // units for at in range(units)]


@pytest.mark.parametrize(("units", "ways"), [(39, [False]), (40, [True, False])])
@pytest.mark.parametrize("share", [[0.5, 0.5], [0.7, 0.3]])
def test_metis(units: int, ways: list[bool], share: list[float], monkeypatch: pytest.MonkeyPatch) -> None:
    def part_graph(count: int, *_: Any, recursive: bool, **__: Any) -> Any:
        found = halves(count, units)
        return SimpleNamespace(edge_cuts=5 if recursive else 4, vertex_part=found[::-1] if recursive else found)

    asked = Asked(monkeypatch, Options=dict, CSRAdjacency=lambda *given: given, part_graph=part_graph)
    some = parts(units, share)
    found = partitioners.metis_parts(some, 0.03, 2**31 + 5)
    assert [named["recursive"] for _, named in asked.of("part_graph")] == ways
    assert found.tolist() == halves(2, units)  # the one that cuts least
    for _, named in asked.of("part_graph"):
        assert named["options"] == {"seed": 5, "ufactor": 30, "ncuts": 4}
        assert named["tpwgts"] == (None if share[0] == 0.5 else share)
        assert named["vweights"] is some.weight and named["eweights"] is some.edges[2]
    partitioners.metis_parts(some, 0.0001, 2**31 - 1)
    assert asked.of("Options")[-1][1] == {"seed": 2**31 - 1, "ufactor": 1, "ncuts": 4}


@pytest.mark.parametrize("share", [[1 / 3] * 3, [0.4, 0.4, 0.2]])
def test_metis_parts_of_equal_share_change_places(share: list[float], monkeypatch: pytest.MonkeyPatch) -> None:
    """Devices 0 and 1 are far from each other, and the unit in the middle sends to both others: it goes to device 2 if
    that has as much as the others."""
    answer = SimpleNamespace(edge_cuts=1, vertex_part=[2, 1, 0])
    Asked(monkeypatch, Options=dict, CSRAdjacency=lambda *given: given, part_graph=lambda *_, **__: answer)
    found = partitioners.metis_parts(parts(3, share, [[0, 90, 1], [90, 0, 1], [1, 1, 0]]), 0.03, 0).tolist()
    assert sorted(found) == [0, 1, 2] and found[1 if share[2] == share[0] else 0] == 2


def test_kahip(monkeypatch: pytest.MonkeyPatch) -> None:
    """Unlike devices have several small parts; the one that sends least to the others goes to the smaller device."""
    some = parts(12, [0.75, 0.25])
    cut = [3, 3, 1, 1, 2, 2, 0, 0, 0, 0, 0, 0]
    asked = Asked(monkeypatch, kaffpa=lambda *_: (0, cut))
    partitioners._library("kahip").ECO = "eco"
    monkeypatch.setattr(partitioners, "_seats", lambda _: ints([0, 0, 0, 1]))
    assert partitioners._kahip_parts(some, 0.05, 2**31 + 9).tolist() == [1] * 2 + [0] * 10
    ((given, _),) = asked.of("kaffpa")
    assert given[4:] == (4, 0.05, True, 9, "eco") and given[0] == [3] * 12
    assert given[1] == some.edges[0].tolist() and given[2] == some.edges[2].tolist()


@pytest.mark.parametrize(
    ("share", "units", "most", "seats"),
    [
        ([0.5, 0.5], 100, 48, [0, 1]),
        ([0.75, 0.25], 100, 48, [0] * 9 + [1] * 3),  # six for each device
        ([0.75, 0.25], 8, 48, [0] * 6 + [1] * 2),  # no more than there are units
        ([0.75, 0.25], 100, 4, [0] * 3 + [1]),
        ([0.99, 0.01], 100, 48, [0] * 12 + [1]),  # each has one
        ([*[0.1] * 9, 0.06, 0.04], 1_000, 48, [at for at in range(9) for _ in range(5)] + [9] * 3 + [10] * 2),
    ],
)
def test_seats(share: list[float], units: int, most: int, seats: list[int]) -> None:
    some = parts(units, share)
    assert partitioners._seats(some, most).tolist() == seats
    if most == 48:
        assert partitioners._seats(some).tolist() == seats


def test_mt_kahypar(monkeypatch: pytest.MonkeyPatch) -> None:
    share, distance = [0.75, 0.25], [[0, 7], [7, 0]]
    made: dict[str, Any] = {}

    class Context:
        def set_mapping_parameters(self, *given: Any) -> None:
            made["mapping"] = given

    def hypergraph(_: Any, *given: Any) -> Any:
        made["graph"] = given
        answer = SimpleNamespace(get_partition=lambda: [at % made["mapping"][0] for at in range(given[0])])
        return SimpleNamespace(map_onto_graph=lambda *_: answer)

    def target(_: Any, *given: Any) -> None:
        made["target"] = given

    session = SimpleNamespace(
        context_from_preset=lambda preset: Context(), create_hypergraph=hypergraph, create_target_graph=target
    )
    asked = Asked(monkeypatch, set_seed=lambda _: None)
    partitioners._library("mtkahypar").PresetType = SimpleNamespace(DETERMINISTIC_QUALITY=1)
    monkeypatch.setattr(partitioners, "_mtkahypar_session", lambda: session)
    few = parts(35, share, distance)
    assert partitioners._mtkahypar_parts(few, 0.03, 1).tolist() == partitioners._in_shares(few).tolist()
    assert not asked
    some = parts(36, share, distance)
    found = partitioners._mtkahypar_parts(some, 0.03, 2**31 + 3)
    seats = [0] * 9 + [1] * 3
    assert found.tolist() == [seats[at % 12] for at in range(36)]
    assert asked == [("set_seed", (3,), {})] and made["mapping"] == (12, 0.03)
    count, pairs, lengths = made["target"][0], made["target"][2], made["target"][3]
    assert (count, made["target"][1], len(set(pairs))) == (12, 66, 66) and all(one > other for one, other in pairs)
    wanted = [max(1, distance[seats[one]][seats[other]]) for one, other in pairs]
    assert lengths == wanted and set(wanted) == {1, 7}
    units, nets, pins, weight, cost = made["graph"]
    assert (units, nets, pins) == (36, 35, [[at, at + 1] for at in range(35)])
    assert weight == [3] * 36 and cost == list(range(1, 36))


@pytest.mark.parametrize(("units", "cuts"), [(5, False), (6, True), (7, True)])
def test_few_units_are_cut_in_shares_of_the_program(units: int, cuts: bool) -> None:
    some, asked = parts(units, [0.5, 0.5]), []
    problem = SimpleNamespace(able=np.ones((units, 2), bool), leader=np.arange(units), num_ops=units)

    def cut(given: Parts, seed: int) -> Any:
        asked.append((given, seed))
        return ints(np.arange(units) % 2)

    search: Any = SimpleNamespace(problem=problem, seed=4)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(partitioners, "legal", lambda _, device: device)
        found = partitioners._place(search, some, cut)
    assert asked == ([(some, 4)] if cuts else [])
    assert found.tolist() == (
        [at % 2 for at in range(units)] if cuts else [int(at >= units / 2) for at in range(units)]
    )


@pytest.mark.parametrize(("left", "asked"), [(99, 12), (12, 12), (11, 11), (1, 1), (0, 0)])
def test_units_are_moved_a_dozen_times_at_most(left: int, asked: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where one device stays over its memory; the best of the plans on the way is returned."""
    values = iter([9, 8, 7, 3, *[5] * 20])
    problem: Any = SimpleNamespace(memory_bytes=ints([10, 50]))
    search: Any = SimpleNamespace(problem=problem, simulations_left=left, offered=[])

    def timeline(plan: Any) -> Any:
        search.simulations_left -= 1
        return SimpleNamespace(peak_bytes=ints([14, 20]), value=next(values))

    search.timeline = timeline
    search.offer = lambda plan, score: search.offered.append((plan.name, score.value))
    monkeypatch.setattr(partitioners, "op_bytes", lambda _: np.ones(6))
    monkeypatch.setattr(Score, "of", lambda _, line: Score(4, line.value))
    monkeypatch.setattr(partitioners, "legal", lambda _, device: device)
    names = iter(range(1, 99))
    monkeypatch.setattr(partitioners, "ordered", lambda *_: SimpleNamespace(name=next(names), device=ints([0] * 6)))
    moved = []

    def move_off(_: Any, device: Any, full: int, to: int, excess: int, nbytes: Any) -> Any:
        moved.append((full, to, excess))
        return device

    monkeypatch.setattr(partitioners, "_move_off", move_off)
    first: Any = SimpleNamespace(name=0, device=ints([0] * 6))
    best: Any = partitioners._relieve(search, parts(6, [0.5, 0.5]), first, "best")
    assert len(search.offered) == asked and set(moved) <= {(0, 1, 4)}
    wanted = min(((value, name) for name, value in search.offered), default=(0, 0))
    assert best.name == wanted[1]


@pytest.mark.parametrize(("memory", "full"), [(60, True), (61, False)])
def test_a_device_may_be_full_where_all_of_it_and_the_largest_workspace_are_more(
    memory: int, full: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(partitioners, "op_bytes", lambda _: np.array([20.0, 30.0]))
    graph = SimpleNamespace(workspace_bytes=ints([11, 3]))
    search: Any = SimpleNamespace(problem=SimpleNamespace(graph=graph, memory_bytes=ints([memory, 900])))
    assert partitioners._may_be_full(search) is full


def test_the_tree_of_devices() -> None:
    """Two and two are near each other: they share a branch; the numbers are those of a binary heap."""
    away = ints([[0, 9, 1, 9, 9], [9, 0, 9, 1, 9], [1, 9, 0, 9, 9], [9, 1, 9, 0, 9], [9, 9, 9, 9, 0]])
    tree = partitioners._terminals(ints(away[:4, :4]), np.arange(4))
    assert tree == {0: 4, 2: 5, 1: 6, 3: 7}
    assert partitioners._terminals(away, np.arange(5)) == {0: 8, 2: 9, 1: 5, 3: 6, 4: 7}
    assert partitioners._terminals(ints([[0]]), np.arange(1)) == {0: 1}


@pytest.mark.parametrize(
    ("excess", "moved"), [(1, [4]), (9, [4]), (10, [4, 3]), (18, [4, 3]), (19, [4, 3, 5]), (99, [4, 3, 5])]
)
def test_those_go_first_that_send_most_to_where_they_go(excess: int, moved: list[int]) -> None:
    """Units 3, 4 and 5 of a row are on the full device, and 5, 6, 7 of it cost most; a tenth more than the excess goes.
    Unit 2 has no bytes and stays."""
    some = parts(8, [0.5, 0.5])
    there = ints([1, 1, 0, 0, 0, 0, 1, 1])
    nbytes = np.array([10.0, 10, 0, 10, 10, 10, 10, 10])
    pull = {3: -3 - 4, 4: -4 - 5, 5: 6 - 5}
    order = sorted(pull, key=lambda unit: -pull[unit])
    found = partitioners._move_off(some, there, 0, 1, excess, nbytes)
    count = len(moved)
    assert np.flatnonzero(found != there).tolist() == sorted(order[:count])


def test_weights_are_whole_numbers_of_at_least_one_in_their_proportions() -> None:
    assert scaled(np.array([0.0, 1e-9, 3.0, 1.0])).tolist() == [1, 1, 75_000_000, 25_000_000]
    assert scaled(np.zeros(3)).tolist() == [1, 1, 1]
