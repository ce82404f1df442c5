"""Steps in which ops are split: what they compute, in one process and in several, from a file too."""

from __future__ import annotations

import copy
import json
import random
from pathlib import Path

import pytest

torch = pytest.importorskip("torch")

import loadmaster as lm  # noqa: E402
from loadmaster.errors import InvalidPlan  # noqa: E402
from loadmaster.importers.torch.export import capture_step  # noqa: E402
from loadmaster.importers.torch.graph import CapturedStep  # noqa: E402
from loadmaster.passes.splitting import Split, axes_of, split_graph, splits_of  # noqa: E402
from loadmaster.plans import Plan  # noqa: E402
from loadmaster.runtime.apply import apply, build, planning_of, stand_in_cluster  # noqa: E402
from loadmaster.runtime.splitting import split_step  # noqa: E402
from loadmaster.runtime.verify import verify_step  # noqa: E402
from loadmaster.search import Result  # noqa: E402
from loadmaster.simulator import settle, simulate  # noqa: E402
from tests.unit.importers.torch.models import WORDS, ConvNet, Transformer  # noqa: E402
from tests.unit.passes.splitting.test_numbers import MODELS  # noqa: E402
from tests.unit.runtime.test_processes import processes  # noqa: E402


def alternating(problem: lm.Problem) -> Plan:
    """Parts of one op on different devices, ops that belong together on one."""
    device = [op % problem.num_devices for op in range(problem.num_ops)]
    first: dict[int, int] = {}
    for op, group in enumerate(problem.graph.colocate.tolist()):
        device[op] = first.setdefault(group, device[op]) if group >= 0 else device[op]
    plan = Plan.of(problem, device)
    return settle(problem, plan, simulate(problem, plan))


def ways(step: CapturedStep, parts: int) -> list[Split]:
    graph = step.graph
    return [
        Split(graph.op_name[op], number, parts, ops)
        for op in range(graph.num_ops)
        for number, axis in enumerate(axes_of(graph, op))
        for ops in (1, 4, 1000)
        if axis.size % parts == 0
    ]


@pytest.mark.parametrize("name", MODELS)
def test_split_steps_compute_what_the_module_does(name: str) -> None:
    """Some ways of all, two after another; the traced parts in one order on one device, to the bit."""
    torch.manual_seed(0)
    kind, make = MODELS[name]
    module, given = kind().double(), make()
    step = capture_step(module, (given,), training=True, optimizer="sgd")
    chosen = random.Random(name).sample(ways(step, 2), 16)
    for first, second in zip(chosen[::2], chosen[1::2], strict=True):
        splits = [split for split in (first, second) if split.op in step.graph.op_name]
        try:
            graph = split_graph(step.graph, splits)
        except lm.errors.InvalidSetting:  # the second is in parts already
            splits, graph = [first], split_graph(step.graph, [first])
        parts = split_step(step, splits)
        assert parts.graph.digest == graph.digest and splits_of(graph.captured) == tuple(splits)
        problem = lm.price(parts.graph, stand_in_cluster(2))
        applied = build(module, parts, planning_of(parts, alternating(problem)))
        found = verify_step(applied, (given,))
        applied.detach()
        assert found.ok and found.equals_capture, (splits, str(found))


def saved(tmp_path: Path) -> tuple[Path, torch.nn.Module, Split]:
    """A plan, in a file, of a model with dropout of which the head is in three parts."""
    torch.manual_seed(0)
    module = Transformer(dropout=0.2).train()
    step = capture_step(module, (WORDS,), training=True)
    head = next(op for op, kind in enumerate(step.graph.kind) if "_log_softmax.default" in kind)
    split = Split(step.graph.op_name[head], 0, 3, 400)
    problem = lm.price(split_graph(step.graph, [split]), "3xp100-pcie")
    plan = alternating(problem)
    Result(problem, plan, simulate(problem, plan), "by hand", 0, (), 0, 1, 0.0).save(tmp_path / "plan.json")
    return tmp_path / "plan.json", module, split


def test_a_file_remembers_what_is_split(tmp_path: Path) -> None:
    path, module, split = saved(tmp_path)
    assert json.loads(path.read_text())["captured"]["splits"] == [vars(split)]
    step = apply(copy.deepcopy(module), (WORDS,), path, devices=["cpu"] * 3, verify=True)
    assert any(name.endswith("/part2") for name in step.problem.graph.op_name)
    losses = [float(step(WORDS)) for _ in range(8)]
    assert losses[-1] < losses[0]
    data = json.loads(path.read_text())
    data["captured"]["splits"][0]["parts"] = "3"
    (tmp_path / "wrong.json").write_text(json.dumps(data))
    with pytest.raises(InvalidPlan, match="splits"):
        apply(module, (WORDS,), tmp_path / "wrong.json")
    with pytest.raises(InvalidPlan, match="another model"):
        apply(ConvNet(), (torch.ones(2, 4, 6, 6),), path)


IN_PROCESSES = """
import sys, torch
from loadmaster.runtime.apply import apply
from loadmaster.runtime.verify import verify_step
from tests.unit.importers.torch.models import WORDS, Transformer
torch.manual_seed(0)
torch.set_num_threads(1)
step = apply(Transformer(dropout=0.2).train(), (WORDS,), sys.argv[1])
found = verify_step(step, (WORDS,))
assert found.ok and found.equals_capture, found
step(WORDS)
step.detach()
print("equal", flush=True)
"""


def test_parts_of_an_op_in_three_processes(tmp_path: Path) -> None:
    for ended in processes(IN_PROCESSES, 3, str(saved(tmp_path)[0])):
        assert ended.returncode == 0 and "equal" in ended.stdout, ended.stderr
