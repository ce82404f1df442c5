"""Measuring on the machine at hand: what comes out is a cluster, times are kept, live storages are counted."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

torch = pytest.importorskip("torch")

from loadmaster.cost import Measured, price  # noqa: E402
from loadmaster.files import cluster_from_json, cluster_to_json  # noqa: E402
from loadmaster.importers.torch.export import capture  # noqa: E402
from loadmaster.importers.torch.signature import call_of  # noqa: E402
from loadmaster.importers.torch.step import Target  # noqa: E402
from loadmaster.runtime import kept, machine, measure, quiet  # noqa: E402
from loadmaster.runtime.storages import LiveStorages  # noqa: E402


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(kept, "cache_folder", lambda: tmp_path / "compiled")  # compiled loops stay where they are
    monkeypatch.setattr(machine, "SIZES", {"cpu": (16, 32), "cuda": (16, 32)})
    monkeypatch.setattr(machine, "LENGTHS", {"cpu": (64, 1024), "cuda": (64, 1024)})
    monkeypatch.setattr(quiet, "ALONE", float("inf"))  # this machine counts as quiet; test_quiet has the rest
    monkeypatch.setattr(quiet, "BUSY", float("inf"))


def module() -> torch.nn.Module:
    return torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.ReLU(), torch.nn.Linear(8, 8), torch.nn.ReLU())


@pytest.mark.usefixtures("small")
def test_this_machine_is_an_ordinary_cluster() -> None:
    found = measure.here()
    assert found.devices[-1].kind == "cpu" and found.basis == "measured"
    assert cluster_from_json(cluster_to_json(found)).digest == found.digest
    assert measure.here().digest == found.digest  # from the cache: measuring twice never gives the same rates


@pytest.mark.usefixtures("small")
def test_equal_ops_are_timed_once_and_kept() -> None:
    cluster = measure.here()
    graph = capture(module(), (torch.randn(4, 8),), training=False)
    told: list[str] = []
    numbers = torch.get_rng_state()
    costs = measure.measure_ops(graph, cluster, say=told.append)
    assert torch.equal(torch.get_rng_state(), numbers)
    times = costs.times["cpu"]
    assert len(times) < len(graph.signature)  # two linears and two relus are alike
    assert all(time.low_ns <= time.hot_ns <= time.high_ns for time in times.values())
    problem = price(graph, cluster, cost=costs)
    assert problem.basis == "measured"
    assert problem.op_ns[:, -1].tolist() == [times[graph.signature[name]].time_ns for name in problem.graph.op_name]
    told.clear()
    assert measure.measure_ops(graph, cluster, say=told.append).times == costs.times
    assert not told  # nothing was left to time
    assert isinstance(measure.known_costs(), Measured)


def test_a_signature_is_the_call() -> None:
    graph = capture(module(), (torch.randn(4, 8),), training=True)
    for name, signature in graph.signature.items():
        result = call_of(signature, "cpu")()
        made = [t for t in graph.makes_of(graph.op_name.index(name)).tolist() if graph.alias_of[t] < 0]
        if isinstance(result, torch.Tensor) and made:
            assert tuple(result.shape) == graph.shape[made[0]]


def test_attention_of_a_gpu_keeps_no_scores() -> None:
    class Attention(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = torch.nn.Linear(16, 16)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            q = self.inner(x).view(2, 32, 2, 8).transpose(1, 2)
            return torch.nn.functional.scaled_dot_product_attention(q, q, q, dropout_p=0.1)

    inputs = (torch.randn(2, 32, 16),)
    here, there = (capture(Attention(), inputs, training=True, target=Target(gpu=gpu)) for gpu in (False, True))
    scores = 2 * 2 * 32 * 32 * 4
    assert (here.nbytes == scores).any() and not (there.nbytes == scores).any()
    assert any("efficient_attention_backward" in kind for kind in there.kind)


def test_results_that_the_caller_keeps_live_to_the_end() -> None:
    class Two(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = torch.nn.Linear(8, 100)

        def forward(self, x: torch.Tensor) -> dict[str, torch.Tensor]:
            logits = self.inner(x)
            return {"loss": logits.exp().mean(), "logits": logits}

    inputs = (torch.randn(4, 8),)
    plain, kept = (capture(Two(), inputs, training=True, target=Target(keep=keep)) for keep in (False, True))
    outputs = [[size for size, role in zip(g.nbytes, g.role, strict=True) if role == 3] for g in (plain, kept)]
    assert 1600 not in outputs[0] and 1600 in outputs[1]


def test_live_storages() -> None:
    x = torch.ones(1000)
    with LiveStorages() as seen:
        y = x + 1  # 4000 + 4000
        z = y * 2  # and 4000
        del y
        w = z.view(10, 100) + 1  # y is gone
    assert seen.peak_bytes == 12_000 and w.shape == (10, 100)


@pytest.mark.parametrize(("share", "leaves"), [(0.04, False), (0.5, True)])
def test_a_plan_that_sends_must_promise_more_than_one_device(share: float, leaves: bool) -> None:
    """One op makes what two read, one of which takes that share of the other's time."""
    from loadmaster.graph import GraphBuilder
    from loadmaster.runtime.race import worth_leaving
    from loadmaster.search import Budget, solve

    build, most = GraphBuilder("fork"), 10**11
    first = build.tensor(4)
    build.op("first", "aten.mm.default", [], [first], flops=most // 100)
    for name, flops in (("long", most), ("short", int(share * most))):
        build.op(name, "aten.mm.default", [first], [build.tensor(4, "output")], flops=flops)
    problem = price(build.build(), "2xp100-pcie")
    alone, found = (solve(problem, name, Budget(None, 5), 0) for name in ("one-device", "heft"))
    said: list[str] = []
    assert found.timeline.num_sends == 1
    assert worth_leaving(alone, found, said.append) is (found if leaves else alone) and bool(said) != leaves
    assert worth_leaving(alone, alone) is alone


def test_the_host_is_as_fast_as_it_is_now() -> None:
    """A bare call takes half as long as when the machine was measured: so do a plan's calls, and Python even less."""
    from loadmaster.cluster import Cluster
    from loadmaster.runtime.machine import at_this_moment

    plain = Cluster.preset("1xh200")
    then = replace(plain, mode="planned", dispatch_ns={"eager": 30_000, "planned": 10_000, "graphs": 0})
    assert at_this_moment(then, 5_000).dispatch_ns == {"eager": 12_968, "planned": 5_000, "graphs": 0}  # 0.5 ** 1.21
    assert at_this_moment(plain, 5_000) is plain


@pytest.mark.usefixtures("small")
def test_a_race_recalibrates_and_says_who_won() -> None:
    from loadmaster.runtime.race import ALONE, OURS, run_race
    from loadmaster.search import Budget

    made = module(), (torch.randn(4, 8),)
    before = [weight.detach().clone() for weight in made[0].parameters()]
    found = run_race(made, measure.here(), "heft", Budget(None, 5), 0, compiled=False)
    assert {row.name for row in found.rows} == {ALONE, OURS}
    assert found.won == (found._ours.high_ns < found._rival.low_ns) and "our plan" in found.verdict
    assert all(map(torch.equal, before, made[0].parameters()))
    again = found.recalibrated
    assert again is not None and again.after_ns > 0 and "recalibrated" in str(again)
    graph = capture(made[0], made[1], training=True)
    kept = price(graph, measure.here(), cost=measure.known_costs())
    from loadmaster.search import solve

    assert solve(kept, "one-device", Budget(None, 1)).timeline.step_ns == again.after_ns


def test_ops_in_the_course_of_a_step() -> None:
    from loadmaster.cost import OpTime
    from loadmaster.importers.torch.export import capture_step
    from loadmaster.runtime.recalibrate import ROUNDS, recalibrated, times_in_course

    given = (torch.randn(4, 8),)
    captured = capture_step(module(), given, training=True)
    found = times_in_course(module(), captured, given, "cpu")
    updates = {s for s in captured.graph.signature.values() if s.startswith('["optim.')}
    assert found.keys() == set(captured.graph.signature.values()) - updates
    assert all(len(times) % ROUNDS == 0 and min(times) > 0 for times in found.values())
    old = OpTime("aten.mm", "float32", 1, 1, 5, 4, 6, 7, 0, 8, True)
    signature = next(iter(found))
    costs = recalibrated(
        Measured({"cpu": {signature: old, "other": old}}), "cpu", {signature: [10, 20, 30], "new": [1, 2]}
    )
    assert costs.times["cpu"]["other"] == old and costs.times["cpu"][signature].time_ns == 20
    assert "new" not in costs.times["cpu"]


def test_a_race_models_eager_and_compiled_steps_in_their_own_modes() -> None:
    """Small ops wait for the host: the step is what it takes to ask for all of them, and the last one."""
    from loadmaster.cluster import Cluster
    from loadmaster.importers.torch.export import capture_step
    from loadmaster.runtime import race

    module = torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.ReLU(), torch.nn.Linear(8, 4)).eval()
    chain = torch.nn.Sequential(torch.nn.Linear(8, 8), *(torch.nn.Tanh() for _ in range(30)))
    inputs = (torch.randn(2, 8),)
    cluster = replace(Cluster.preset("1xh200"), mode="planned", dispatch_ns={"eager": 50_000, "compiled": 40_000})
    captured = capture_step(chain, inputs, training=True)
    found = {mode: race._as_torch_runs(captured, cluster, Measured({}), mode) for mode in ("eager", "compiled")}
    eager = price(captured.graph, cluster.with_mode("eager"))
    assert found["eager"][0] == eager.dispatch_ns.sum() + eager.op_ns[-1, 0]
    assert found["compiled"][0] < 0.8 * found["eager"][0] and found["compiled"][1] <= found["eager"][1]
    batch = (torch.randn(4096, 8),)
    inference = capture_step(module, batch, training=False)
    _, peak = race._eager(inference, (module, batch), cluster, Measured({}), False)
    assert peak == 4 * (8 * 8 + 8 + 8 * 4 + 4 + 3 * 4096 * 8)  # weights; the batch, and the ReLU's input and result
