"""What GO's agent asks of its network, its chains and the search, with parts in their place that write down what they
were asked."""

from __future__ import annotations

from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from loadmaster.errors import UnreadableFile  # noqa: E402
from loadmaster.graph.columns import ints  # noqa: E402
from loadmaster.learn.go2020 import agent as agents  # noqa: E402
from loadmaster.learn.go2020.agent import Agent  # noqa: E402
from loadmaster.learn.go2020.policy import Decided  # noqa: E402
from loadmaster.learn.go2020.zero import Judged  # noqa: E402
from loadmaster.search import WORST, Score  # noqa: E402


class Asked(list[Any]):
    """What was asked, in order."""

    def note(self, name: str, gives: Any = None) -> Any:
        def called(*given: Any, **more: Any) -> Any:
            self.append((name, *given, *more.values()))
            return gives(*given, **more) if callable(gives) else gives

        return called

    @property
    def names(self) -> list[str]:
        return [each[0] for each in self]


def made(**parts: Any) -> Any:
    agent: Any = Agent.__new__(Agent)
    parts.setdefault("pool", [])
    parts.setdefault("unit", 1.0)
    vars(agent).update(parts)
    return agent


def decided(*device: int, fusion: tuple[int, ...] = ()) -> Decided:
    return Decided(ints(device), ints([10] * len(device)), ints(fusion))


def judged(over: int, value: int, *device: int) -> Judged:
    return Judged(Score(over, value), decided(*(device or (value,))))


@pytest.mark.parametrize(
    ("samples", "left", "fixed", "fusing", "checkpoint", "decides", "wanted"),
    [
        (8, 5, False, False, "none", False, [("candidates", 5)]),
        (5, 9, False, False, "", False, [("candidates", 5)]),
        (5, 9, False, True, "", False, [("candidates", 3), ("rules", 2)]),  # half of them, rounded up
        (4, 9, False, True, "", False, [("candidates", 2), ("rules", 2)]),
        (5, 9, False, True, "none", True, [("candidates", 3), ("rules", 2)]),
        (5, 9, False, True, "", True, [("candidates", 3)]),
        (5, 0, False, True, "none", False, []),
        (5, 9, True, False, "", True, [("start",), ("likeliest",)]),
        (5, 9, True, True, "", False, [("start",), ("likeliest",), ("rules", 5)]),
    ],
)
def test_proposals_are_candidates_and_ways_to_fuse_the_best_of_them(
    samples: int,
    left: int,
    fixed: bool,
    fusing: bool,
    checkpoint: str,
    decides: bool,
    wanted: list[Any],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    search, asked = SimpleNamespace(simulations=7, simulations_left=left), Asked()

    def zero_shot(network: Any, many: Any, batch: Any, placed: int, judge: Any) -> None:
        asked.append(("candidates", placed))
        assert judge([["wanted"]]) == [("looked at", ["wanted"])]
        search.simulations += placed

    monkeypatch.setattr(agents, "zero_shot", zero_shot)
    agent = made(
        search=search,
        settings=SimpleNamespace(samples=samples, checkpoint=checkpoint),
        fixed="plan" if fixed else None,
        manner=SimpleNamespace(fusing=fusing),
        network=SimpleNamespace(decides=lambda task: decides and task == "fusion"),
        one=None,
        batch=None,
        _look=lambda wanted: ("looked at", wanted),
        _start=asked.note("start"),
        _likeliest=asked.note("likeliest"),
        _fuse_by_rules=asked.note("rules"),
    )
    agent.propose()
    assert asked == wanted


@pytest.mark.parametrize(
    ("most", "pool", "spent", "fuses"),
    [(1, 1, False, True), (0, 1, False, False), (2, 0, False, False), (2, 1, True, 0)],
)
def test_rules_fuse_the_best_plan_within_what_is_left(
    most: int, pool: int, spent: bool, fuses: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = Asked()

    @contextmanager
    def keeping(simulations: int) -> Any:
        yield f"part of {simulations}"

    monkeypatch.setattr(agents, "simple_fusions", asked.note("fuse"))
    monkeypatch.setattr(agents, "Plan", SimpleNamespace(of=lambda problem, *columns: columns))
    agent = made(
        pool=[judged(0, 5)] * pool,
        search=SimpleNamespace(spent=spent, keeping=keeping),
        problem=None,
        given=SimpleNamespace(fifo="fifo"),
        plan_of=lambda _: SimpleNamespace(device="devices", rank="ranks"),
    )
    agent._fuse_by_rules(most)
    assert asked == ([("fuse", f"part of {most}", ("devices", "ranks"), 1, "fifo")] if fuses else [])


@pytest.mark.parametrize(("pool", "spent", "scores"), [(1, False, True), (0, False, False), (1, True, False)])
def test_on_a_placement_that_stands_the_likeliest_decisions_are_simulated(
    pool: int, spent: bool, scores: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked, best = Asked(), [judged(0, 5)] * pool
    monkeypatch.setattr(agents, "seen_decisions", lambda batch, many: ("seen", *many))
    monkeypatch.setattr(agents, "stand_of", lambda outputs, batch, row, one: SimpleNamespace(decided=(outputs, row)))
    agent = made(
        pool=best,
        search=SimpleNamespace(spent=spent),
        batch=None,
        one=None,
        network=lambda batch, seen: seen,
        score=asked.note("score"),
    )
    agent._likeliest()
    assert asked == ([("score", [(("seen", best[0]), 0)])] if scores else [])


@pytest.mark.parametrize("fifo", [False, True])
def test_as_many_are_looked_at_as_simulations_are_left(fifo: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    asked = Asked()
    monkeypatch.setattr(agents, "outcome_of", lambda problem, label, each, plan, line: (each, plan, line))
    search = SimpleNamespace(
        simulations_left=2,
        first_come=lambda device, kernel: ("first come", device),
        score=asked.note("score"),
        timeline=lambda plan: ("line", plan),
    )
    agent = made(
        search=search,
        problem=None,
        one=SimpleNamespace(label=None),
        given=SimpleNamespace(fifo=fifo),
        plan_of=lambda each: SimpleNamespace(device=each, kernel=None),
        _keep=asked.note("keep"),
    )
    found = agent._look(["a", "b", "c"])
    assert [each for each, _, _ in found] == ["a", "b"] and asked[-1] == ("keep", found)
    assert [isinstance(plan, tuple) for _, plan, _ in found] == [fifo, fifo]
    assert [line for _, _, line in found] == [("line", plan) for _, plan, _ in found]
    assert asked.names == ["score", "score", "keep"]


class Pace:
    """By which a fifth of the way is gone at every step."""

    def __init__(self, search: Any, settings: Any, steps: int | None, hot: float) -> None:
        self.hot = hot

    def __enter__(self) -> None: ...

    def __exit__(self, *_: object) -> None: ...

    def next(self, step: int, draw_s: float) -> tuple[float, int]:
        return draw_s, 100 + step

    def share(self, step: int) -> float:
        return step / 5

    def temperature(self, step: int) -> float:
        return self.hot - step


@pytest.mark.parametrize(
    ("steps", "spent_after", "passes", "learned"),
    [(2, 99, 2, 2), (None, 3, 3, 2), (3, 2, 2, 1), (0, 99, 0, 0), (None, 0, 0, 0)],
)
def test_passes_of_the_network_and_chains_take_turns(
    steps: int | None, spent_after: int, passes: int, learned: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked, search = Asked(), SimpleNamespace(spent=spent_after == 0, note="")

    def walk(policy: Any, temperature: Any, seconds: float, trials: int) -> str:
        asked.append(("walk", policy, temperature(), seconds, trials))
        search.spent = len([each for each in asked if each[0] == "walk"]) >= spent_after
        return f"sample {trials}"

    chains = SimpleNamespace(walk=walk, draw_s=0.25)
    for name, stands in {
        "PolicyChains": lambda search, one, manner, plans: asked.append(("chains", *plans)) or chains,
        "Adam": lambda parameters, rate: ("adam", rate),
        "DrawPace": Pace,
        "seen_decisions": lambda batch, many: ("seen", *many),
        "stand_of": lambda outputs, batch, row, one, base: (outputs, row, base),
    }.items():
        monkeypatch.setattr(agents, name, stands)
    base = judged(0, 3)
    agent = made(
        pool=[judged(0, 3), judged(0, 4)],
        search=search,
        settings=SimpleNamespace(rate=0.5, temperature=8.0),
        manner=SimpleNamespace(warmth=0.5),
        one=None,
        batch="batch",
        network=SimpleNamespace(parameters=list),
        plan_of=lambda each: (each.device.tolist(), each.fusion.tolist()),
        _start=asked.note("start"),
        _base=lambda _: base,
        _draw_whole=lambda stand: (stand, "gain"),  # what stands is row 0 of what the network says
        _policy=lambda outputs, last: "policy",
        _learn_from=asked.note("learn"),
    )
    agent.network = type("Network", (), {"parameters": list, "__call__": lambda *_: "outputs"})()
    agent.learn(steps)
    walks = [each for each in asked if each[0] == "walk"]
    assert [each[2:] for each in walks] == [(4.0 - step, 0.25, 100 + step) for step in range(passes)]
    learns = [each for each in asked if each[0] == "learn"]
    assert [each[5:] for each in learns] == [(f"sample {100 + step}", 1 - step / 5) for step in range(learned)]
    assert all(each[4] == (("outputs", 0, base.decided), "gain") for each in learns)
    assert search.note == (f"go: step {learned}" if learned else "")
    assert asked.names[:2] == (["start"] if spent_after == 0 else ["start", "chains"])
    if spent_after:
        assert asked[1][1:] == (([3], []), ([4], []))


def test_nothing_is_learned_where_nothing_could_be_simulated() -> None:
    asked = Asked()
    made(pool=[], search=SimpleNamespace(spent=False), _start=asked.note("start")).learn(5)
    assert asked.names == ["start"]


def test_whole_draws_gain_against_each_other_and_nothing_where_the_budget_ended(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    draws = SimpleNamespace(whole=np.ones(3, bool), decided=lambda: "decided")
    monkeypatch.setattr(agents, "draw_plans", lambda one, stand, how, rng: draws)
    agent = made(
        one=None,
        how=None,
        search=SimpleNamespace(rng=None),
        score=lambda many: (ints([0, 0, WORST.over_bytes]), ints([100, 400, WORST.value])),
        unit=100.0,
        all_bytes=10.0,
    )
    same, gain = agent._draw_whole("stand")
    assert same is draws and gain[2] == 0 and gain[0] > gain[1] != 0


@pytest.mark.parametrize(
    ("placing", "ordering", "fusion"),
    [(True, False, (1, 0)), (False, True, ()), (False, False, (1, 0)), (True, True, ())],
)
def test_learning_weighs_what_was_drawn_with_the_pull_to_the_best_plan_twice(
    placing: bool, ordering: bool, fusion: tuple[int, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each part of the loss is one parameter: its gradient is the part's weight."""
    weight, left, imitate = torch.zeros(4, requires_grad=True), 0.25, 0.5
    scores = torch.tensor([[1.0, 2.0], [0.0, 0.5]], requires_grad=True)
    outputs, calls, grads = SimpleNamespace(fusion=scores * 1.0), [], []
    said = []

    def policy_loss(now: Any, batch: Any, *drawn: Any) -> Any:
        said.append(now is outputs)
        assert drawn == (["draws"], ["gain"])
        return weight[0] * 0.1

    for name, loss in {
        "policy_loss": policy_loss,
        "entropy_of": lambda now, batch: weight[1] * 20,
        "sample_loss": lambda scores, sample: weight[2] * 0.2,
        "imitation_loss": lambda now, batch, last, device, level: weight[3] * float(device.sum() + level.sum()) / 100,
    }.items():
        monkeypatch.setattr(agents, name, loss)

    def network(batch: Any, last: Any) -> Any:
        calls.append(last)
        return SimpleNamespace(fusion=scores * 1.0)

    def zero_grad() -> None:
        weight.grad = scores.grad = None

    network.parameters = lambda: [weight, scores]  # type: ignore[attr-defined]
    adam = SimpleNamespace(zero_grad=zero_grad, step=lambda: grads.append((weight.grad.clone(), scores.grad)))
    agent = made(
        pool=[Judged(Score(0, 1), decided(1, 3, fusion=fusion))],
        settings=SimpleNamespace(imitate=imitate),
        manner=SimpleNamespace(placing=placing, ordering=ordering),
        network=network,
        batch=None,
        _scores=lambda said, last: None,
    )
    agent._learn_from(adam, outputs, "last", ("draws", "gain"), None, left)
    assert said == [True, False] and calls == ["last"] and len(grads) == 2
    bonus = -0.01 * left * 20 if placing or ordering else 0.0
    for of_weight, of_scores in grads:
        np.testing.assert_allclose(of_weight, [0.1, bonus, 0.2, imitate * 0.24], rtol=1e-5)
        if fusion:
            chance = scores.detach().softmax(dim=1)
            wanted = (chance - torch.tensor([[0.0, 1.0], [1.0, 0.0]])) / 2 * 0.3 * imitate
            np.testing.assert_allclose(of_scores, wanted, rtol=1e-4)
        else:
            assert of_scores is None


@pytest.mark.parametrize(
    ("fixed", "scratch", "wanted"),
    [(False, False, "propose"), (False, True, [[7], [1], [2]]), (True, True, [[3]]), (True, False, [[3]])],
)
def test_learning_starts_from_proposals_or_from_all_candidates(
    fixed: bool, scratch: bool, wanted: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = Asked()
    monkeypatch.setattr(agents, "group_majority", lambda problem, label, device: device)
    monkeypatch.setattr(agents, "candidate_decided", lambda one, number: decided((1, 2, 1)[number]))
    plan = SimpleNamespace(device=ints([3]))
    agent = made(
        fixed=plan if fixed else None,
        settings=SimpleNamespace(scratch=scratch),
        problem=None,
        one=SimpleNamespace(num_groups=1, single=[], label=None, candidates=[None] * 3),
        propose=asked.note("propose"),
        _inner=lambda: SimpleNamespace(device=ints([7])),
        score=asked.note("score"),
    )
    agent._start()
    if wanted == "propose":
        assert asked == [("propose",)]
    else:
        [(name, many)] = asked
        assert name == "score" and [each.device.tolist() for each in many] == wanted
        assert many[0].base.tolist() == many[0].device.tolist()


@pytest.mark.parametrize(
    ("scratch", "left", "seen"), [(False, 2, True), (False, 1, False), (True, 9, False), (False, 0, False)]
)
def test_a_trained_network_sees_the_timeline_of_where_the_better_chain_stands(
    scratch: bool, left: int, seen: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = Asked()
    monkeypatch.setattr(agents, "decided_of", lambda problem, label, plan, fusion: (plan, fusion))
    monkeypatch.setattr(agents, "simulate", lambda problem, plan: "line")
    monkeypatch.setattr(agents, "outcome_of", lambda problem, label, which, plan, line: ("seen", which, line))
    agent = made(
        settings=SimpleNamespace(scratch=scratch),
        search=SimpleNamespace(simulations_left=left, count=asked.note("count")),
        problem=None,
        one=SimpleNamespace(label=None),
        _keep=asked.note("keep"),
    )
    found = agent._base(SimpleNamespace(standing=lambda: ("plan", "fusion", Score(1, 2))))
    assert asked == [*([("count", 1)] if seen else []), ("keep", [found])]
    if seen:
        assert found == ("seen", ("plan", "fusion"), "line")
    else:
        assert found.score == Score(1, 2) and found.decided == ("plan", "fusion")


def test_the_four_best_unlike_scores_are_kept_and_the_first_best_is_the_unit() -> None:
    agent = made()
    agent._keep([])
    assert agent.pool == [] and agent.unit == 1.0
    agent._keep([Judged(WORST, decided(0)), Judged(Score(0, WORST.value), decided(1))])
    assert agent.pool == [] and agent.unit == 1.0
    agent._keep([judged(0, 9), judged(0, 8), judged(0, 9, 1), judged(5, 1)])
    assert [each.score.value for each in agent.pool] == [8, 9, 1] and agent.unit == 8.0
    assert agent.pool[1].decided.device.tolist() == [9], "of two alike the first stays"
    agent._keep([judged(0, 3), judged(0, 4), judged(0, 5)])
    assert [each.score.value for each in agent.pool] == [3, 4, 5, 8] and agent.unit == 8.0
    least = made()
    least._keep([judged(0, 0)])
    assert least.unit == 1.0


def test_the_other_optimizer_has_one_simulation_and_its_plan_stands_first() -> None:
    inner = SimpleNamespace(optimize=lambda search: ("plan", search))
    agent = made(
        settings=SimpleNamespace(inner=inner), search=SimpleNamespace(part=lambda simulations: f"part of {simulations}")
    )
    assert agent._inner() == ("plan", "part of 1")
    assert made(fixed="this").first_plan() == "this"


def test_without_a_plan_that_stands_the_first_candidate_does(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(agents, "legal", lambda problem, device: device)
    monkeypatch.setattr(agents, "Plan", SimpleNamespace(of=lambda problem, device: device.tolist()))
    candidates = SimpleNamespace(device=np.array([[1, 0], [0, 1]]))
    assert made(fixed=None, problem=None, one=SimpleNamespace(candidates=candidates)).first_plan() == [1, 0]


@pytest.mark.parametrize("lacks", ["shape", "choice_prior", ""])
def test_weights_that_say_no_shape_or_hold_no_choice_are_told_of(lacks: str, monkeypatch: pytest.MonkeyPatch) -> None:
    agents._read.cache_clear()
    known = {"shape": 1} if lacks != "shape" else {}
    held = {"network.a": 1, **({"network.choice_prior": 2} if lacks != "choice_prior" else {})}
    monkeypatch.setattr(agents, "read_tensors", lambda *_: (known, held))
    if lacks:
        with pytest.raises(UnreadableFile, match="no policy"):
            agents._read("file", 0)
    else:
        assert agents._read("file", 0) == (known, {"a": 1, "choice_prior": 2})
    agents._read.cache_clear()


@pytest.mark.parametrize("name", ["nothing", "nothing.safetensors"])
def test_weights_that_are_not_there_are_told_of(name: str) -> None:
    with pytest.raises(UnreadableFile, match="no trained weights"):
        agents.load_go(name)


def test_a_file_is_read_where_it_lies_and_a_name_is_looked_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(agents, "_read", lambda path, changed: path)
    mine = tmp_path / "mine.safetensors"
    mine.write_bytes(b"")
    assert agents._file(str(mine)) == str(mine)
    assert Path(str(agents._file("go"))).parts[-2:] == ("weights", "go.safetensors")
