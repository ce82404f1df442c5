"""How steps are handed out to controllers and their gradients followed, with parts in their place that write down what
they were asked."""

from __future__ import annotations

from concurrent.futures import Future
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from loadmaster.learn.recurrent import controllers  # noqa: E402
from loadmaster.learn.recurrent.controllers import Answer  # noqa: E402
from loadmaster.learn.recurrent.reinforce import Standing  # noqa: E402
from loadmaster.search import Score  # noqa: E402


class Search:
    """Of so many simulations."""

    def __init__(self, most: int) -> None:
        self.most, self.simulations, self.offered = most, 0, list[Any]()

    @property
    def simulations_left(self) -> int:
        return self.most - self.simulations

    @property
    def spent(self) -> bool:
        return self.simulations >= self.most

    def count(self, simulations: int) -> None:
        self.simulations += simulations

    def offer(self, plan: Any, score: Any) -> None:
        self.offered.append((plan, score))


class Crew:
    """Answers in the order in which it was asked."""

    def __init__(self) -> None:
        self.waiting, self.most, self.asked = list[Any](), 0, list[Any]()

    def submit(self, task: Any) -> None:
        self.waiting.append(task)
        self.asked.append((task.number, task.samples, task.share))
        self.most = max(self.most, len(self.waiting))

    def next(self) -> Answer:
        task = self.waiting.pop(0)
        plan = f"plan {task.number}" if task.number != 1 else None
        gradient = np.full(3, float(task.number), np.float32)
        return Answer(task.number, gradient, "outcome", plan, Score(0, task.number), task.samples, task.share)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("count", "samples", "wanted"),
    [(2, 4, [4, 4, 2]), (3, 4, [4, 4, 2]), (1, 10, [10]), (1, 3, [3, 3, 3, 1]), (9, 1, [1] * 10)],
)
def test_no_more_simulations_are_promised_than_are_left(
    count: int, samples: int, wanted: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    search, crew, followed = Search(10), Crew(), list[Any]()
    learner: Any = SimpleNamespace(
        rule=SimpleNamespace(samples=samples), policy=torch.nn.Linear(2, 1), standing=Standing()
    )
    monkeypatch.setattr(controllers, "Cooling", lambda search: SimpleNamespace(share=0.25))
    monkeypatch.setattr(controllers, "_follow", lambda learner, answer: followed.append(answer.number))
    controllers._serve(search, learner, crew, count)  # type: ignore[arg-type]
    assert crew.asked == [(number, some, 0.25) for number, some in enumerate(wanted)]
    assert crew.most == min(count, len(wanted)) and search.simulations == 10
    assert followed == list(range(len(wanted)))
    assert search.offered == [(f"plan {n}", Score(0, n)) for n in range(len(wanted)) if n != 1]


def test_a_gradient_goes_to_the_parameters_in_their_order() -> None:
    policy, done = torch.nn.Linear(2, 2), list[Any]()
    learner: Any = SimpleNamespace(policy=policy, follow=lambda outcome, share: done.append((outcome, share)))
    answer: Any = Answer(0, np.arange(6, dtype=np.float32), "outcome", None, Score(0, 0), 1, 0.5)  # type: ignore[arg-type]
    controllers._follow(learner, answer)
    assert policy.weight.grad.tolist() == [[0.0, 1.0], [2.0, 3.0]] and policy.bias.grad.tolist() == [4.0, 5.0]
    assert done == [("outcome", 0.5)]


def test_of_answers_that_are_there_the_first_that_was_asked_for_is_taken() -> None:
    ended: list[Future[Any]] = []

    def submit(function: Any, task: int) -> Future[Any]:
        future: Future[Any] = Future()
        future.set_result(SimpleNamespace(number=task))
        ended.append(future)
        return future

    processes = controllers._Processes(SimpleNamespace(submit=submit))  # type: ignore[arg-type]
    for number in (4, 2, 3):
        processes.submit(number)  # type: ignore[arg-type]
    assert [processes.next().number for _ in range(3)] == [2, 3, 4] and not processes.waiting


@pytest.mark.parametrize(
    ("over", "count", "alone"), [("processes", 1, True), ("processes", 2, False), ("ray", 1, False)]
)
@pytest.mark.parametrize("trained", [True, False])
def test_one_controller_learns_here_and_several_elsewhere(
    over: Any, count: int, alone: bool, trained: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    did: list[Any] = []

    class Learner:
        def __init__(self, policy: Any, rule: Any) -> None:
            self.rule = rule

        def begin_from(self, environment: Any, rng: Any) -> None:
            did.append(int(rng.integers(1 << 30)))

    class Crews:
        def __enter__(self) -> str:
            return "crew"

        def __exit__(self, *_: object) -> None: ...

    monkeypatch.setattr(controllers, "Learner", Learner)
    monkeypatch.setattr(controllers, "reinforce", lambda learner, environment: did.append("here"))
    monkeypatch.setattr(controllers, "_crew", lambda place, *given: did.append((place.seed, *given)) or Crews())
    monkeypatch.setattr(controllers, "_serve", lambda search, learner, crew, many: did.append((crew, many)))
    environment: Any = SimpleNamespace(
        search=SimpleNamespace(seed=6), problem=None, label=None, order=None, noise=0.0, failures=0.0
    )
    controllers.run(environment, None, None, trained, count, 3, over)  # type: ignore[arg-type]
    first = [int(np.random.default_rng([6, 4]).integers(1 << 30))] if trained else []
    assert did == [*first, *(["here"] if alone else [(6, count, 3, over), ("crew", count)])]


@pytest.mark.parametrize("over", ["ray", "processes"])
def test_controllers_are_processes_or_actors(over: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    class Pool:
        def __init__(self, *given: Any) -> None:
            self.given = given

        def __enter__(self) -> Pool:
            return self

        def __exit__(self, *_: object) -> None: ...

    monkeypatch.setattr(controllers, "_OnRay", lambda *given: given)
    monkeypatch.setattr(controllers, "ProcessPoolExecutor", Pool)
    place: Any = "place"
    with controllers._crew(place, 2, 3, over) as crew:
        if over == "ray":
            assert crew == ("place", 2, 3)  # type: ignore[comparison-overlap]
        else:
            given = crew.pool.given  # type: ignore[attr-defined]
            assert given[0] == 2 and given[3] == ("place", 3)
