"""Plans op by op in the words of runtimes: whole modules are told, split ones named, and accelerate takes the map."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from loadmaster import Budget, Cluster, GraphBuilder, InvalidPlan, Plan, Problem, price, solve
from loadmaster.serving.exports import TARGETS, target_of
from loadmaster.serving.plans import modules_of


def stack(layers: int = 4) -> Problem:
    """embed -> layers.i.(a, b) with a sum of each layer's own -> head; the model adds a parameter of its own."""
    g = GraphBuilder("stack")
    x, table, bias = (
        g.tensor(n, role, name=name)
        for n, role, name in ((400, "input", "x"), (4000, "weight", "net.embed.weight"), (40, "weight", "net.bias"))
    )
    last = g.tensor(400)
    g.op("embed", "embedding", [x, table], [last], flops=10**9, scope="net.embed")
    added = g.tensor(400)
    g.op("shift", "add", [last, bias], [added], flops=100, scope="net")
    last = added
    for layer in range(layers):
        for part in "ab":
            weight, out = g.tensor(4000, "weight", name=f"net.layers.{layer}.{part}.weight"), g.tensor(400)
            g.op(f"{part}{layer}", "mm", [last, weight], [out], flops=10**10, scope=f"net.layers.{layer}.{part}")
            last = out
    g.op("head", "mm", [last, g.tensor(4000, "weight", name="head.weight")], [g.tensor(400, "output")], scope="head")
    return price(g.build(), Cluster.preset("1xp100-pcie+1xv100-nvlink"))


def placed(problem: Problem, on_one: set[str]) -> Plan:
    return Plan.of(problem, np.array([int(name in on_one) for name in problem.graph.op_name]))


def test_layers_and_what_is_beside_them_get_a_row_each() -> None:
    problem = stack()
    plan = modules_of(problem, placed(problem, {"a2", "b2", "a3", "b3", "head"}))
    found = json.loads(target_of("device-map").write(plan))
    layers = {f"net.layers.{i}": int(i > 1) for i in range(4)}
    assert found == {"net.bias": 0, "net.embed": 0, **layers, "head": 1}
    assert {row.module: row.weight_bytes for row in plan.rows}["net.layers.2"] == 8000
    times = {row.module: row.time_ns for row in plan.rows}
    at = [problem.graph.op_name.index(name) for name in ("a2", "b2")]
    assert times["net.layers.2"] == int(problem.op_ns[at, 1].sum())


def test_a_split_layer_is_told_by_its_parts_and_a_split_module_is_refused() -> None:
    problem = stack()
    found = {row.module: row.device for row in modules_of(problem, placed(problem, {"b1"})).rows}
    assert found["net.layers.1.a"] == "p100-pcie:0" and found["net.layers.1.b"] == "v100-nvlink:0"
    g = GraphBuilder("one")
    first, second, third = (g.tensor(8, role) for role in ("input", "activation", "output"))
    g.op("a", "mm", [first], [second], scope="m")
    g.op("b", "mm", [second], [third], scope="m")
    split = price(g.build(), Cluster.preset("2xp100-pcie"))
    with pytest.raises(InvalidPlan, match=r"'m' on p100-pcie:0, p100-pcie:1") as caught:
        modules_of(split, Plan.of(split, [0, 1]), "vllm")
    assert "--for vllm" in caught.value.fix


@pytest.mark.parametrize("target", [name for name, target in TARGETS.items() if target.contiguous])
def test_plans_in_stages_can_be_said(target: str) -> None:
    problem = stack(7)
    result = solve(problem, "whole-modules:stages=yes", Budget(None, 200), 0)
    assert target_of(target).write(modules_of(problem, result.plan))


def test_stages_are_the_best_of_all_cuts() -> None:
    """Two devices, seven layers: every cut by hand."""
    problem = stack(7)
    names = [f"{part}{layer}" for layer in range(7) for part in "ab"]
    best = solve(problem, "whole-modules:stages=yes", Budget(None, 500), 0).timeline.step_ns
    steps = []
    for cut in range(8):
        away = set(names[2 * cut :]) | ({"head"} if cut < 7 else set()) | ({"embed", "shift"} if cut == 0 else set())
        steps.append(solve(problem, Fixed(placed(problem, away)), Budget(None, 1), 0).timeline.step_ns)
    assert best == min(steps)


class Fixed:
    def __init__(self, plan: Plan) -> None:
        self.plan = plan

    def optimize(self, search: Any) -> Plan:
        return self.plan


def test_accelerate_takes_the_map_of_a_plan_op_by_op(tmp_path: Path) -> None:
    """A model of torch's own with bare parameters, planned for device-map and dispatched: same result as before."""
    torch = pytest.importorskip("torch")
    accelerate = pytest.importorskip("accelerate")
    from loadmaster.importers.torch.export import capture

    class Net(torch.nn.Module):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            self.scale = torch.nn.Parameter(torch.ones(8))
            self.layers = torch.nn.ModuleList([torch.nn.Linear(8, 8) for _ in range(4)])
            self.head = torch.nn.Linear(8, 2)

        def forward(self, x: Any) -> Any:
            x = x * self.scale
            for layer in self.layers:
                x = torch.relu(layer(x))
            return self.head(x)

    net, x = Net().eval(), torch.ones(3, 8)
    problem = price(capture(net, x, training=False), Cluster.preset("2xp100-pcie"))
    rng = np.random.default_rng(0)
    units = {path: int(rng.integers(2)) for path in ("layers.0", "layers.1", "layers.2", "layers.3", "head", "")}
    scopes = problem.graph.scope
    plan = modules_of(problem, Plan.of(problem, [units[scope] for scope in scopes]))
    found = json.loads(target_of("device-map").write(plan))
    assert set(found) == {"scale", "layers.0", "layers.1", "layers.2", "layers.3", "head"}
    accelerate.utils.modeling.check_device_map(net, found)
    before = net(x)
    places = {name: "disk" if place == 1 else "cpu" for name, place in found.items()}
    moved = accelerate.dispatch_model(net, places, offload_dir=str(tmp_path), force_hooks=True)
    assert torch.equal(moved(x), before)
