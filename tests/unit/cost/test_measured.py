"""Known times: what was measured is what an op takes, and what they differ from the roofline by stays when fused."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from loadmaster.cluster import Cluster, Device
from loadmaster.cost import Learned, Measured, OpTime, hosting, price
from loadmaster.errors import InvalidSetting
from loadmaster.files.costs import load_costs, save_costs
from loadmaster.files.profile import costs_from_profile
from loadmaster.graph import Graph, GraphBuilder
from loadmaster.graph.columns import ints
from loadmaster.passes import fuse
from loadmaster.plans import Plan
from loadmaster.report.certainty import interval, not_told_apart
from loadmaster.search import Budget, solve
from loadmaster.simulator import simulate, simulate_fused
from loadmaster.zoo.synthetic import generate

TOY = Device("d0", "toy", 10**6, 1e9, 1e9, 3)  # 1 flop and 1 byte a ns, launch 3 ns


def alone(device: Device = TOY) -> Cluster:
    return Cluster("alone", (device,), {}, ints([[-1]]))


def chain(signatures: tuple[str, ...] = ("one", "two")) -> Graph:
    """x (100 B) -> a -> A (50 B) -> b -> B (20 B)."""
    g = GraphBuilder("chain")
    x, a, b = g.tensor(100, "input"), g.tensor(50), g.tensor(20, "output")
    g.op("a", "aten.relu.default", [x], [a], flops=10, signature=signatures[0])
    g.op("b", "aten.relu.default", [a], [b], flops=10, signature=signatures[1])
    return g.build()


def time(hot: int, low: int | None = None, high: int | None = None, workspace: int = 0) -> OpTime:
    spread = hot if low is None else low, hot if high is None else high
    return OpTime("aten.relu.default", "float32", 10, 150, hot, *spread, hot, 0, workspace, True)


def test_a_measured_op_takes_what_it_took() -> None:
    problem = price(chain(), alone(), cost=Measured({"toy": {"one": time(500)}}))
    # b moves 70 bytes at 1 byte a ns, and is launched in 3.
    assert problem.op_ns.tolist() == [[500], [73]]
    assert problem.basis == "50% measured, else data sheet"
    assert price(chain(), alone(), cost=Measured({"other": {"one": time(500)}})).basis == "data sheet"


def test_fused_ops_keep_what_they_differ_from_the_roofline_by() -> None:
    problem = price(chain(), alone(), cost=Measured({"toy": {"one": time(500), "two": time(60)}}))
    # Together: one launch, 120 bytes without the inner tensor, a took 347 longer than 3 + 150, b 13 less than 3 + 70.
    assert fuse(problem, ints([0, 0])).op_ns.tolist() == [[3 + 120 + 347 - 13]]


def test_an_op_takes_no_more_off_a_kernel_than_it_adds_to_it() -> None:
    """b took 2 beside its launch, 68 less than its traffic would; fused it moves 20 bytes, and takes no more off."""
    problem = price(chain(), alone(), cost=Measured({"toy": {"one": time(500), "two": time(5)}}))
    assert problem.op_ns.tolist() == [[500], [5]]
    for kernel in ([0, 0], [0, 1]):
        line = simulate(problem, Plan.of(problem, [0, 0], kernel=ints(kernel)))
        scores = simulate_fused(problem, np.zeros((1, 2)), np.arange(2)[None], np.array([kernel]))
        assert line.step_ns == int(scores.step_ns[0]) == (500 - 50 if kernel == [0, 0] else 505)


def test_workspace_is_what_was_allocated() -> None:
    problem = price(chain(), alone(), cost=Measured({"toy": {"two": time(60, workspace=4096)}}))
    assert problem.graph.workspace_bytes.tolist() == [0, 4096]


def test_a_step_has_an_interval_from_the_spread() -> None:
    cost = Measured({"toy": {"one": time(500, 490, 530), "two": time(60, 55, 70)}})
    result = solve(price(chain(), alone(), cost=cost), "one-device", Budget(None, 1), 0)
    assert result.timeline.step_ns == 560
    assert interval(result) == (545, 600)
    assert interval(solve(price(chain(), alone()), "one-device", Budget(None, 1), 0)) is None


def test_the_interval_of_a_fused_kernel_and_what_cannot_be_told_apart() -> None:
    """Fused: 3 + 120 + 347 - 13 = 457, give or take what both ops are given or take; apart 560."""
    names = ("one-device", "auto")
    wide = Measured({"toy": {"one": time(500, 490, 530), "two": time(60, 55, 140)}})
    found = {name: solve(price(chain(), alone(), cost=wide), name, Budget(None, 50), 0) for name in names}
    assert found["auto"].plan.fuses and found["auto"].timeline.step_ns == 457
    assert interval(found["auto"]) == (457 - 15, 457 + 110)
    assert interval(found["one-device"]) == (545, 670)
    assert not_told_apart(found["auto"], list(found.items())) == ["one-device"]
    tight = Measured({"toy": {"one": time(500, 490, 530), "two": time(60, 55, 70)}})
    found = {name: solve(price(chain(), alone(), cost=tight), name, Budget(None, 50), 0) for name in names}
    assert interval(found["auto"]) == (442, 497) and not not_told_apart(found["auto"], list(found.items()))


def with_host(mode: str, ns: int) -> Cluster:
    cluster = alone()
    return Cluster(mode, cluster.devices, {}, cluster.channel, mode=mode, dispatch_ns={mode: ns})


def test_a_host_asks_for_one_kernel_after_another() -> None:
    cost = Measured({"toy": {"one": time(500), "two": time(60)}})
    problem = price(chain(), with_host("planned", 550), cost=cost)
    assert problem.dispatch_ns.tolist() == [550, 550]
    result = solve(problem, "one-device", Budget(None, 1), 0)
    # a is asked for at 550 and runs to 1050, b at 1100 and runs to 1160.
    assert result.timeline.start_ns.tolist() == [550, 1100]
    assert result.timeline.step_ns == 1160
    assert with_host("planned", 550).digest != alone().digest


def trained() -> Graph:
    """A product, a view, an activation; two backward ops, one a half of a convolution's; updates of two weights."""
    g = GraphBuilder("trained")
    x, w, v = g.tensor(8, "input"), g.tensor(8, "weight"), g.tensor(8, "weight")
    a, c, d, e = (g.tensor(8) for _ in range(4))
    b = g.tensor(8, alias_of=a)
    g.op("product", "aten.mm.default", [x, w], [a], flops=1)
    g.op("view", "aten.view.default", [a], [b])
    g.op("act", "aten.relu.default", [b], [c], flops=1)
    g.op("back", "aten.threshold_backward.default", [c], [d], flops=1)
    g.op("half", "aten.convolution_backward.default", [d], [e], flops=1)
    for name, weight in (("w", w), ("v", v)):
        g.op(f"adam:{name}", "optim.adam", [weight, e], [g.tensor(8, "weight", alias_of=weight)], flops=1)
    return g.build()


def test_the_host_does_more_for_products_in_the_forward_pass_and_for_each_weight() -> None:
    """In bare calls, by hand."""
    eager = price(trained(), with_host("eager", round(1e6 * hosting.plain_calls("eager")))).dispatch_ns / 1e6
    forward, backward = hosting.FORWARD, hosting.BACKWARD
    conv = 0.5 * (backward.call * hosting.CALLS["convolution"] + backward.op)
    expected = [
        forward.call * hosting.CALLS["product"] + forward.op + hosting.ENTERED["eager"],
        forward.call + forward.op + forward.view,
        backward.call + backward.op,
        conv,
        *[hosting.UPDATED["eager"]] * 2,
    ]
    assert eager == pytest.approx(expected, abs=1e-5)
    compiled = price(trained(), with_host("compiled", round(1e6 * hosting.plain_calls("compiled")))).dispatch_ns / 1e6
    assert compiled[1] == pytest.approx(hosting.COMPILED.call + hosting.COMPILED.op) and compiled[2] == compiled[1]
    assert compiled[4:].tolist() == pytest.approx([hosting.UPDATED["compiled"]] * 2, abs=1e-5)
    planned = price(trained(), with_host("planned", 1000)).dispatch_ns.tolist()
    assert planned == [1000, 1280, 1000, 1000, 0, 0]  # views are calls too, and all updates are one


def test_costs_are_read_back_as_written(tmp_path: Path) -> None:
    costs = Measured({"toy": {"one": time(500, 490, 530)}}, {"toy": Learned({"product": 0.5})})
    save_costs(costs, tmp_path / "costs.json")
    assert load_costs(tmp_path / "costs.json") == costs
    (tmp_path / "other.json").write_text("{}")
    with pytest.raises(InvalidSetting, match="no file of measured costs"):
        load_costs(tmp_path / "other.json")


def test_times_from_a_profile() -> None:
    tensor = {"tensor": "float32", "shape": [4, 8], "stride": [8, 1]}
    graph = chain((json.dumps(["aten.relu.default", [tensor], {}]), ""))
    op = {"cat": "cpu_op", "name": "aten::relu", "ts": 10.0, "dur": 9.0, "tid": 1}
    shapes = {"Input Dims": [[4, 8]], "Input type": ["float"]}
    kernel = {"cat": "kernel", "name": "relu", "ts": 20.0, "dur": 2.5, "args": {"External id": 7}}
    events = [{**op, "args": {**shapes, "External id": 7}}, kernel]
    found = costs_from_profile({"traceEvents": events}, graph, "toy", "trace.json")
    assert [t.hot_ns for t in found.times["toy"].values()] == [2500]
    inner = {**op, "name": "aten::clamp", "ts": 11.0, "dur": 4.0, "args": {}}
    found = costs_from_profile({"traceEvents": [events[0], inner]}, graph, "toy", "trace.json")
    assert [t.hot_ns for t in found.times["toy"].values()] == [5000]
    with pytest.raises(InvalidSetting, match="no op of the trace"):
        costs_from_profile({"traceEvents": []}, graph, "toy", "trace.json")


def test_plans_of_measured_problems_are_plans() -> None:
    problem = price(chain(), alone(), cost=Measured({"toy": {"one": time(500)}}))
    assert Plan.of(problem, np.zeros(2, np.int64)).graph_digest == chain().digest


@pytest.mark.parametrize(
    "event",
    [
        7,
        {"cat": "cpu_op", "ts": 1, "dur": 1, "args": {"Input Dims": [[2]], "Input type": ["float"]}},
        {"cat": "cpu_op", "name": "aten::mm", "ts": 1, "dur": [1], "args": {"Input Dims": [[2]]}},
        {"cat": "cpu_op", "name": "aten::mm", "ts": 1, "dur": 1, "args": {"Input Dims": [2], "Input type": ["float"]}},
        {"cat": "cpu_op", "name": "aten::mm", "ts": 1, "dur": 1, "args": {"Input Dims": [[{}]], "Input type": ["x"]}},
        {
            "cat": "cpu_op",
            "name": "aten::mm",
            "ts": 1,
            "dur": 1,
            "args": {"Input Dims": [[2, [3]]], "Input type": ["x"]},
        },
        {"cat": "kernel", "ts": 1, "args": {"External id": 1}},
        {"cat": "kernel", "ts": 1, "dur": 10**400, "args": {"External id": []}},
    ],
)
def test_damaged_events_of_a_profile_are_passed_over(event: object) -> None:
    with pytest.raises(InvalidSetting, match="no op of the trace"):
        costs_from_profile({"traceEvents": [event]}, next(generate("layered", 1, seed=0, ops=8)), "toy", "trace.json")
