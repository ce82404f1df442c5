"""The steps of Placeto's training, with parts in their place that write down what they were asked."""

from __future__ import annotations

import math
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from loadmaster import price  # noqa: E402
from loadmaster.graph.columns import ints  # noqa: E402
from loadmaster.learn.placeto2019 import training  # noqa: E402
from loadmaster.learn.placeto2019.training import EpisodeJob, PlacetoRun, PlacetoSettings, PlacetoState, VariantKey  # noqa: E402
from loadmaster.plans import Plan  # noqa: E402
from loadmaster.simulator import simulate  # noqa: E402
from tests.problems import layers  # noqa: E402


def run_of(tmp_path: Path, **settings: Any) -> Any:
    """A run that writes down instead of doing."""
    run: Any = PlacetoRun.__new__(PlacetoRun)
    run.settings = run.options = PlacetoSettings(corpus="corpus", out=str(tmp_path), **settings)
    run.state, run.begun, run.pool, run.rows, run.tensors = PlacetoState(), 0.0, None, [], {}
    run.did, run.rates, run.notes = [], [], []
    run.network = torch.nn.Linear(2, 1)
    run.late = lambda share: False
    run.set_rate, run.say = run.rates.append, lambda text: run.did.append(text)
    run.note = lambda **row: run.notes.append((run.state.step, row))
    run.save_now_and_then = lambda: None
    return run


def test_steps_choose_graphs_and_validate_now_and_then(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run, asked = run_of(tmp_path, steps=5, graphs=2, valid_every=2), []
    monkeypatch.setattr(training, "in_order", lambda pool, job, jobs, window: [(window, *each) for each in jobs])
    run._job = lambda key, seed: (key, seed)
    run._step = lambda chosen, played: asked.append((chosen, played))
    run.validate = lambda valid: run.did.append((run.state.step, valid))
    keys = [VariantKey(line, 0) for line in range(4)]
    run.learn(keys, ["valid"])
    assert run.did == [(2, ["valid"]), (4, ["valid"])] and run.state.step == 5
    for step, (chosen, played) in enumerate(asked):
        drawn = np.random.default_rng([0, 1, step]).choice(4, 2, replace=False)
        assert chosen == [keys[i] for i in drawn]
        assert played == [(2, key, (2, step, at)) for at, key in enumerate(chosen)]
    few = run_of(tmp_path, steps=1, graphs=9)
    few._job, few._step = run._job, lambda chosen, played: few.did.append(len(chosen))
    few.learn(keys, [])
    assert few.did == [4]
    late = run_of(tmp_path)
    late.late = lambda share: share == 0.95
    late.learn(keys, [])
    assert late.state.step == 0


@pytest.mark.parametrize("share", [0.0, 0.5, 1.0])
def test_a_step_is_the_mean_over_graphs_with_rates_that_fall(
    share: float, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run, asked = run_of(tmp_path, rate=0.04, last_rate=0.01, entropy=0.2, discount=0.9), []
    run._share = lambda: share
    run.tensors = {"a": "A", "b": "B"}

    def reinforce(network: Any, tensors: Any, episodes: Any, advantage: Any, once: str, entropy: float) -> Any:
        asked.append((tensors, episodes, advantage, once, entropy))
        (network.weight.sum() * (3.0 if tensors == "A" else 1.0)).backward()
        return (1.0, 5.0) if tensors == "A" else (2.0, 7.0)

    monkeypatch.setattr(training, "reinforce", reinforce)
    monkeypatch.setattr(training, "advantages", lambda cost, discount: (cost[0, 0], discount))
    grads = []
    parameters = run.network.parameters
    run.adam = SimpleNamespace(
        zero_grad=run.network.zero_grad, step=lambda: grads.append(next(parameters()).grad.tolist())
    )
    run.network.weight.grad = torch.full((1, 2), 100.0)
    monkeypatch.setattr(training, "CLIP", 1e9)
    cost = np.array([[4.0, 3.0, 1.0], [4.0, 9.0, 2.0]])
    run._step(["a", "b"], [("one", cost), ("two", cost * 2)])
    assert grads == [[[2.0, 2.0]]], "the mean of 3 and 1"
    rate = 0.04 * 0.25**share
    assert run.rates == [pytest.approx(rate)]
    assert [each[:4] for each in asked] == [("A", "one", (4.0, 0.9), "episode"), ("B", "two", (8.0, 0.9), "episode")]
    assert [each[4] for each in asked] == [pytest.approx(0.2 * 0.01**share)] * 2
    gain = (math.log(4.0) + math.log(2.0)) / 2
    wanted = {"loss": 1.5, "reward": pytest.approx(gain), "entropy": 6.0, "rate": pytest.approx(rate)}
    assert run.notes == [(0, wanted)]


@pytest.mark.parametrize(
    ("minutes", "now", "step", "share"),
    [(None, 500.0, 25, 0.25), (10.0, 60.0, 25, 0.25), (10.0, 300.0, 25, 0.5), (10.0, 900.0, 25, 1.0)],
)
def test_how_much_is_done_by_steps_or_by_time(
    minutes: float | None, now: float, step: int, share: float, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = run_of(tmp_path, steps=100, minutes=minutes)
    run.begun, run.state.step = 7.0, step
    monkeypatch.setattr("time.monotonic", lambda: 7.0 + now)
    assert run._share() == pytest.approx(share)


def test_some_episodes_start_elsewhere_and_validation_never_does(tmp_path: Path) -> None:
    run = run_of(tmp_path, elsewhere=0.5, seed=3)
    run._other_start = lambda key, rng: float(rng.random())
    for step in range(12):
        job = run._job(VariantKey(1, 0), (2, step, 4))
        there = np.random.default_rng([3, 3, step, 4]).random() < 0.5
        assert job.start == (float(np.random.default_rng([3, 4, step, 4]).random()) if there else None)
        assert job.seed == (3, 2, step, 4) and set(job.weights) == {"weight", "bias"}
        assert run._job(VariantKey(1, 0), (5, step)).start is None


def test_another_start_is_runs_along_the_order_on_devices_that_can(tmp_path: Path) -> None:
    run, key = run_of(tmp_path), VariantKey(0, 0)
    able = np.ones((40, 3), bool)
    able[5] = [False, False, True]
    run.tensors = {key: SimpleNamespace(able=torch.from_numpy(able))}
    runs = []
    for seed in range(60):
        device = run._other_start(key, np.random.default_rng(seed))
        assert device[5] == 2 and device.min() >= 0 and device.max() <= 2
        others = np.delete(device, 5)
        runs.append(1 + int((np.diff(others) != 0).sum()))
    assert min(runs) == 1 and 4 <= max(runs) <= 6, "up to five cuts, some of which change nothing"
    rng = np.random.default_rng(11)
    cuts = np.sort(rng.integers(0, 40, int(rng.integers(1, 6))))
    devices = rng.integers(0, 3, len(cuts) + 1)
    by_hand = [int(devices[sum(cut <= group for cut in cuts)]) for group in range(40)]
    by_hand[5] = 2
    assert run._other_start(key, np.random.default_rng(11)).tolist() == by_hand


def test_validation_keeps_the_best_by_the_mean_of_both_ratios(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run = run_of(tmp_path)
    run.rows = [{"entropy": 0.5, "reward": 0.25}, {"valid": 1.0}]
    run.export = lambda known: run.did.append(known)
    run._job = lambda key, seed: (key, seed)
    asked: list[Any] = []
    found = [(0.5, 0.25), (2.0, 0.25)]
    monkeypatch.setattr(training, "in_order", lambda pool, job, jobs, window: asked.extend(jobs) or found)
    run.state.step, run.state.best = 7, 0.6
    run.validate(["a", "b"])
    assert asked == [("a", (5, 0)), ("b", (5, 1))]
    assert run.notes == [(7, {"valid": pytest.approx(1.0), "valid_best": pytest.approx(0.25)})]
    assert run.state.best == pytest.approx(0.5) and run.state.results["at_step"] == 7
    told = "step 7: step time over one device's 1.0000, best of 16 0.2500; entropy 0.500, reward +0.250"
    assert run.did == [told, {"aggregator": "messages", "embedding": "graph"}]
    run.validate(["a", "b"])
    assert len(run.did) == 3, "no better than before"


@pytest.mark.parametrize("keep", [True, False])
def test_every_sixth_graph_is_kept_apart(keep: bool) -> None:
    training._lines[:] = [b"there"]
    learn, apart = [7], [8]
    training._split([b"x"] * 13, keep, learn, apart)
    assert apart == ([8, 6, 12] if keep else [8])
    assert learn == [7, *(n for n in range(1, 14) if not keep or n not in (6, 12))] and len(training._lines) == 14
    training._lines.clear()


def test_three_members_of_four_are_learned_from(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("loadmaster.zoo.capture.capture_entry", lambda entry, training: (entry, training))
    monkeypatch.setattr(training, "member", lambda family, index: index)
    family = next(iter(training.FAMILIES))
    found = list(training._captured(family))
    assert found == [(index, True) for index in range(training.MEMBERS) if index not in range(3, 99, 4)]  # type: ignore[comparison-overlap]


def test_a_tight_memory_is_about_what_one_device_would_need() -> None:
    problem = price(layers(2, 3, 1), "2xp100-pcie")
    peak = int(simulate(problem, Plan.of(problem, ints(np.zeros(problem.num_ops)))).peak_bytes.max())
    for seed in range(5):
        share = np.random.default_rng(seed).uniform(0.5, 1.1)
        tight = training._tight(problem, np.random.default_rng(seed))
        assert tight.memory_bytes.tolist() == [int(peak * share)] * 2


def test_validation_is_the_likeliest_episode_and_the_best_of_sixteen(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = []

    def play(job: Any, board: Any, start: Any, rng: Any, count: int) -> Any:
        asked.append((rng is None, count))
        return SimpleNamespace(last=np.full((count, 2), 1 if rng is None else 2))

    class Environment:
        def __init__(self, search: Any, label: Any) -> None: ...

        def measure(self, places: Any) -> Any:
            assert places[:, 0].tolist() == [0, 1, *[2] * 15]
            return SimpleNamespace(step_ns=np.array([10.0, 8.0, *range(20, 6, -1), 5.0]))

    monkeypatch.setattr(training, "make_board", lambda key, groups: ("board", "label", np.zeros(2, int)))
    monkeypatch.setattr(training, "make_problem", lambda key: None)
    monkeypatch.setattr(training, "Search", lambda problem, budget: None)
    monkeypatch.setattr(training, "Simulated", Environment)
    monkeypatch.setattr(training, "_play", play)
    job: Any = EpisodeJob(VariantKey(0, 0), {}, SimpleNamespace(groups=4), (1, 2), None)  # type: ignore[arg-type]
    assert training.valid_job(job) == (0.8, 0.5) and asked == [(True, 1), (False, 15)]


def test_episodes_start_from_what_is_given_or_from_one_device(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[Any] = []
    settings = SimpleNamespace(groups=4, episodes=3, every=5)
    monkeypatch.setattr(training, "make_board", lambda key, groups: ("board", "label", "one device"))
    monkeypatch.setattr(training, "make_problem", lambda key: None)
    monkeypatch.setattr(training, "Search", lambda problem, budget: budget.simulations)
    monkeypatch.setattr(training, "Simulated", lambda search, label: (search, label))
    monkeypatch.setattr(
        training, "_play", lambda job, board, start, rng, count: asked.append((start, count)) or "played"
    )
    monkeypatch.setattr(training, "costs", lambda environment, played, every: (environment, played, every))
    for start, begins in ((None, "one device"), ("there", "there")):
        job: Any = EpisodeJob(VariantKey(0, 0), {}, settings, (1, 2), start)  # type: ignore[arg-type]
        assert training.episodes_job(job) == ("played", ((2**31, "label"), "played", 5))
        assert asked.pop() == (begins, 3)


@pytest.mark.parametrize(("variant", "cluster"), [(0, "placeto-2"), (1, "placeto-4"), (2, "drawn"), (3, "drawn")])
def test_the_first_variants_are_the_named_clusters(variant: int, cluster: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(training, "price", lambda graph, where: where)
    monkeypatch.setattr(training, "draw_cluster", lambda rng: "drawn")
    monkeypatch.setattr(training, "_tight", lambda problem, rng: "tight")
    training._lines[:] = [layers(1, 1, 4)]
    make = training.make_problem.__wrapped__
    rng = np.random.default_rng([0, variant])
    wanted = cluster if cluster != "drawn" else "tight" if rng.random() < 0.25 else "drawn"
    assert make(VariantKey(0, variant)) == wanted  # type: ignore[comparison-overlap]
    training._lines.clear()


@pytest.mark.parametrize(("traversal", "backwards"), [("reverse", True), ("forward", False)])
def test_processes_play_with_the_weights_they_are_given(
    traversal: str, backwards: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = list[Any]()
    monkeypatch.setattr(training, "PlacetoNetwork", lambda aggregator, embedding: torch.nn.Linear(1, 1))
    monkeypatch.setattr(training, "visits", lambda board, traversal, rng: (traversal, float(rng.random())))
    monkeypatch.setattr(training, "tensors_of", lambda board: "tensors")
    monkeypatch.setattr(training, "play", lambda network, *given: asked.append((network.weight.item(), *given)))
    settings: Any = SimpleNamespace(aggregator="mean", embedding="graph", traversal=traversal, once="step")
    weights = {"weight": np.full((1, 1), 7.0, np.float32), "bias": np.zeros(1, np.float32)}
    for rng in (None, np.random.default_rng(5)):
        first = float(np.random.default_rng(0 if rng is None else 5).random())
        training._play(EpisodeJob(VariantKey(0, 0), weights, settings, (1,), None), "board", "start", rng, 4)  # type: ignore[arg-type]
        order = (traversal, first)
        assert asked.pop() == (7.0, "board", "tensors", "start", order, "step", 4, rng, backwards)


def test_before_any_step_validation_tells_of_no_reward(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run = run_of(tmp_path)
    run.export, run._job = (lambda known: None), lambda key, seed: (key, seed)
    monkeypatch.setattr(training, "in_order", lambda *_: [(1.0, 1.0)])
    run.validate(["a"])
    assert run.did[0].endswith("entropy 0.000, reward +0.000")


def test_a_drawn_cluster_by_hand() -> None:
    told = {"uniform": [np.array([-1.0, 0.0, 0.0]), 1.0, 0.0, 2.0], "integers": [3, 4_000, 7_000]}
    asked = list[Any]()

    def answer(kind: str) -> Any:
        return lambda *bounds: (asked.append(bounds), told[kind].pop(0))[1]  # type: ignore[attr-defined]

    rng: Any = SimpleNamespace(uniform=answer("uniform"), integers=answer("integers"), random=lambda: 0.69)
    cluster = training.draw_cluster(rng)
    assert asked == [(2, 6), (-2, 0, 3), (-1, 1), (-1, 1), (2_000, 8_000), (-1, 4), (2_000, 30_000)]
    for device, speed in zip(cluster.devices, (0.5, 1.0, 1.0), strict=True):
        assert (device.flops_per_s, device.bytes_per_s, device.launch_ns) == (2e13 * speed, 7e11 * speed, 4_000)
        assert device.memory_bytes == 2**34
    assert {(link.bytes_per_s, link.latency_ns) for link in cluster.links.values()} == {(7.6e9 * 4, 7_000)}
    assert cluster.channel.tolist() == [[-1, 0, 0], [1, -1, 1], [2, 2, -1]]
