"""How Placeto plays and tunes, with parts in their place that write down what they were asked."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from loadmaster import Budget, price  # noqa: E402
from loadmaster.graph.columns import ints  # noqa: E402
from loadmaster.learn.placeto2019 import optimizer  # noqa: E402
from loadmaster.learn.placeto2019.optimizer import Placeto, _Player  # noqa: E402
from loadmaster.search import Search  # noqa: E402
from tests.graphs.tiny import diamond  # noqa: E402


def player(**parts: Any) -> Any:
    made: Any = _Player.__new__(_Player)
    made.best, made.start, made.best_start = np.inf, ints([0]), ints([0])
    vars(made).update(parts)
    return made


@pytest.mark.parametrize(
    ("samples", "left", "spent_after", "wanted"),
    [
        (70, 99, 99, [1, 32, 32, 6]),
        (33, 99, 99, [1, 32, 1]),
        (32, 99, 99, [1, 32]),
        (31, 5, 99, [1, 5]),
        (3, 0, 99, [1, 1]),
        (70, 99, 2, [1, 32]),
        (0, 9, 9, [1]),
    ],
)
def test_the_likeliest_episode_comes_first_then_drawn_ones_up_to_32_at_once(
    samples: int, left: int, spent_after: int, wanted: list[int]
) -> None:
    search, tried = SimpleNamespace(spent=False, note="", rng="rng"), list[Any]()

    def attempt(count: int, rng: Any) -> None:
        tried.append((count, rng))
        search.spent = len(tried) >= spent_after

    for tune in (True, False):
        tried.clear()
        search.spent, tuned = False, list[str]()
        made = player(
            search=search,
            settings=SimpleNamespace(samples=samples, tune=tune),
            environment=SimpleNamespace(measurements_left=left),
            _try=attempt,
            _tune=lambda tuned=tuned: tuned.append("tuned"),
        )
        made.run()
        assert tried == [(1, None), *((count, "rng") for count in wanted[1:])] and bool(tuned) == tune


def test_the_first_of_the_best_placements_is_where_later_episodes_start() -> None:
    made = player()
    made._keep(ints([[1], [2], [3]]), np.array([np.nan, 4.0, 5.0]))
    assert (made.best, made.best_start.tolist()) == (4.0, [2])
    made._keep(ints([[8], [9]]), np.array([4.0, np.nan]))
    assert made.best_start.tolist() == [2]
    made._keep(ints([[8]]), np.array([3.0]))
    assert (made.best, made.best_start.tolist()) == (3.0, [8])
    made._keep(ints([[5]]), np.array([np.nan]))
    assert made.best_start.tolist() == [8]


@pytest.mark.parametrize(("again", "starts"), [(0.5, "bdbd"), (0.0, "bbbb"), (1.0, "dddd"), (0.25, "bbbd")])
def test_tuning_starts_from_the_best_now_and_then_and_cools(
    again: float, starts: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    search, cooled, asked = SimpleNamespace(spent=False, note="", rng="rng"), iter([0.0, 0.25, 0.5, 1.0]), list[Any]()
    network = torch.nn.Linear(1, 1)
    rates: list[float] = []

    class Cooling:
        def __init__(self, _: Any) -> None: ...

        @property
        def share(self) -> float:
            return next(cooled)

    def costs(environment: Any, played: Any, every: int) -> Any:
        asked.append(played)
        assert every == 3
        return None if len(asked) > 4 else np.array([[9.0, 2.0], [9.0, 3.0 - len(asked)]])

    def reinforce(network: Any, tensors: Any, played: Any, advantage: Any, once: str, entropy: float) -> None:
        asked[-1] = (asked[-1], entropy)

    adam = SimpleNamespace(zero_grad=lambda: None, step=lambda: rates.append(adam.rate))
    monkeypatch.setattr("loadmaster.learn.adam.Adam", lambda parameters, rate: adam)
    monkeypatch.setattr(optimizer, "Cooling", Cooling)
    monkeypatch.setattr("loadmaster.learn.placeto2019.episodes.costs", costs)
    monkeypatch.setattr("loadmaster.learn.placeto2019.episodes.advantages", lambda cost: cost)
    monkeypatch.setattr("loadmaster.learn.placeto2019.episodes.reinforce", reinforce)
    kept: list[Any] = []
    made = player(
        start="b",
        best_start="d",
        search=search,
        environment=None,
        network=network,
        board_tensors=None,
        settings=SimpleNamespace(
            rate=0.5, last_rate=0.1, again=again, episodes=6, every=3, once="episode", entropy=0.4
        ),
        _play=lambda start, count, rng: SimpleNamespace(start=start, count=count, last="last"),
        _keep=lambda last, cost: kept.append(cost.tolist()),
    )
    made._tune()
    played = [each[0] for each in asked[:4]]
    assert "".join(each.start for each in played) == starts and {each.count for each in played} == {6}
    left = [1.0, 0.75, 0.5, 0.0]
    assert rates == pytest.approx([0.1 + 0.4 * each for each in left])
    assert [each[1] for each in asked[:4]] == pytest.approx([0.4 * each for each in left])
    assert kept == [[2.0, 3.0 - turn] for turn in range(1, 5)] and len(asked) == 5


def test_on_one_device_and_without_simulations_nobody_plays(monkeypatch: pytest.MonkeyPatch) -> None:
    played: list[str] = []

    class Player:
        def __init__(self, *_: Any) -> None:
            played.append("made")

        def run(self) -> None:
            played.append("run")

    monkeypatch.setattr(optimizer, "_Player", Player)
    for devices, simulations, plays in (("1xp100-pcie", 9, False), ("2xp100-pcie", 9, True), ("2xp100-pcie", 1, False)):
        played.clear()
        search = Search(price(diamond(), devices), Budget(None, simulations))
        plan = Placeto().optimize(search)
        assert bool(played) == plays and search.simulations == 1 and plan is search.best


@pytest.mark.parametrize(("traversal", "backwards"), [("reverse", True), ("forward", False)])
def test_episodes_go_backwards_where_the_order_is_reversed(
    traversal: str, backwards: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = list[Any]()
    monkeypatch.setattr(optimizer, "visits", lambda board, traversal, rng: (board, traversal, rng))
    monkeypatch.setattr("loadmaster.learn.placeto2019.episodes.play", lambda *given: asked.append(given))
    settings = SimpleNamespace(traversal=traversal, once="step")
    made = player(
        search=SimpleNamespace(rng="rng"), settings=settings, network="net", board="board", board_tensors="tensors"
    )
    made._play("start", 3, None)
    order = ("board", traversal, "rng")
    assert asked == [("net", "board", "tensors", "start", order, "step", 3, None, backwards)]
