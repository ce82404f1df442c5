"""Steps in which ops run again and tensors stay elsewhere: the same results to the bit, the peak that was modelled."""

from __future__ import annotations

import copy
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from torch.utils._python_dispatch import TorchDispatchMode  # noqa: E402

import loadmaster as lm  # noqa: E402
from loadmaster.graph.columns import ints  # noqa: E402
from loadmaster.importers.torch.export import capture_step  # noqa: E402
from loadmaster.plans import Plan, check  # noqa: E402
from loadmaster.plans.additions import Additions, may_live_elsewhere, may_stay, repeatable, updated_by  # noqa: E402
from loadmaster.plans.expansion import expand  # noqa: E402
from loadmaster.problem import Problem  # noqa: E402
from loadmaster.runtime.apply import apply  # noqa: E402
from loadmaster.runtime.memory import measured_peaks  # noqa: E402
from loadmaster.runtime.verify import verify_step  # noqa: E402
from loadmaster.search import Result  # noqa: E402
from loadmaster.simulator import settle, simulate  # noqa: E402
from tests.unit.importers.torch.models import IMAGES, WORDS, ConvNet, Transformer  # noqa: E402

MODELS = {"transformer": (Transformer, (WORDS,)), "conv": (ConvNet, (IMAGES,))}


def far_readers(problem: Problem) -> list[tuple[int, list[int]]]:
    """(tensor, its readers long after it was made): what is worth dropping meanwhile."""
    found = []
    for tensor in np.flatnonzero(may_stay(problem.graph)).tolist():
        made = int(problem.graph.producer[tensor])
        late = [int(op) for op in problem.graph.readers_of(tensor) if op > made + 4]
        if late:
            found.append((tensor, late))
    return found


def added_to(problem: Problem, again: bool, stays: bool) -> Additions:
    """Every other far read from a copy: made again, or come back from the other device."""
    able, rows, reads = repeatable(problem.graph), [], []
    for number, (tensor, late) in enumerate(far_readers(problem)):
        op = int(problem.graph.producer[tensor])
        if again and able[op] and (number % 2 or not stays):
            rows.append((op, -1, -1))
        elif stays:
            rows.append((-1, tensor, late[0] - 3))
        else:
            continue
        reads += [(reader, tensor, len(rows) - 1) for reader in late]
    return Additions(*(ints(column) for column in (*zip(*rows, strict=True), *zip(*reads, strict=True))))


def planned(base: Problem, added: Additions) -> Result:
    """Ops on the first device, stays on the second, in program order."""
    problem = expand(base, added)
    device = [int(kind == "stay") for kind in problem.graph.kind]
    plan = Plan.of(problem, device)
    plan = settle(base, plan, simulate(base, plan))
    check(plan, base)
    return Result(problem, plan, simulate(base, plan), "by hand", 0, (), 0, 1, 0.0)


@pytest.mark.parametrize("optimizer", ["adam", "none"])
@pytest.mark.parametrize(("again", "stays"), [(True, False), (False, True), (True, True)])
@pytest.mark.parametrize("name", MODELS)
def test_the_same_results_and_the_modelled_peak(name: str, again: bool, stays: bool, optimizer: str) -> None:
    make, inputs = MODELS[name]
    module = make().train()
    base = lm.price(capture_step(module, inputs, training=True, optimizer=optimizer).graph, "2xp100-pcie")
    result = planned(base, added_to(base, again, stays))
    assert result.plan.added is not None and len(result.plan.added) >= 2
    step = apply(copy.deepcopy(module), inputs, result, devices=["cpu", "cpu"])
    found = verify_step(step, inputs)
    assert found.equals_capture and found.ok, str(found)
    peaks = measured_peaks(step, inputs)
    workspace = int(base.graph.workspace_bytes.max())
    modelled = result.timeline.peak_bytes.tolist()
    if not stays:
        assert 0 <= modelled[0] - peaks[0] <= workspace, (peaks, modelled)
    # One thread does sends one by one, at once: less is on its way at a time than the model has.
    assert all(0.8 * most - workspace <= held <= most for held, most in zip(peaks, modelled, strict=True))
    assert all(peaks) == stays


@pytest.mark.parametrize("inplace", [False, True])
def test_a_batch_norm_that_runs_again_leaves_its_running_statistics(inplace: bool) -> None:
    module = ConvNet(inplace).train()
    base = lm.price(capture_step(module, (IMAGES,), training=True).graph, "2xp100-pcie")
    result = planned(base, added_to(base, again=True, stays=False))
    assert any("batch_norm" in name and ".again" in name for name in result.problem.graph.op_name)
    step = apply(copy.deepcopy(module), (IMAGES,), result, devices=["cpu", "cpu"])
    found = verify_step(step, (IMAGES,))  # weights, and what the module keeps beside them
    assert found.equals_capture and found.equals_module, str(found)


def test_a_random_op_draws_the_same_numbers_again() -> None:
    module, inputs = Transformer(dropout=0.5).train(), (WORDS,)
    base = lm.price(capture_step(module, inputs, training=True).graph, "2xp100-pcie")
    added = added_to(base, again=True, stays=False)
    drops = [op for op in added.op.tolist() if "dropout" in base.graph.kind[op] or "bernoulli" in base.graph.kind[op]]
    assert drops
    step = apply(copy.deepcopy(module), inputs, planned(base, added), devices=["cpu", "cpu"])
    found = verify_step(step, inputs)
    assert found.equals_capture and found.equals_module, str(found)


def living_elsewhere(problem: Problem, every: int = 1) -> Additions:
    """Every so-manieth tensor that may live on the other device: it comes for readers that are near each other, and
    goes back where it is updated."""
    graph, updates = problem.graph, updated_by(problem.graph)
    rows, reads, back = [], [], []
    for tensor in np.flatnonzero(may_live_elsewhere(graph)).tolist()[::every]:
        last = -100
        for reader in graph.readers_of(tensor).tolist():
            if reader > last + 20:
                rows.append((-1, tensor, max(reader - 5, -1)))
            reads.append((reader, tensor, len(rows) - 1))
            last = reader
        if updates[tensor] >= 0:
            back.append((-1, int(updates[tensor]), -1))
    return Additions(*(ints(column) for column in (*zip(*[*rows, *back], strict=True), *zip(*reads, strict=True))))


@pytest.mark.parametrize("optimizer", ["adam", "adamw", "sgd", "none"])
@pytest.mark.parametrize("every", [1, 3])
@pytest.mark.parametrize("name", MODELS)
def test_what_lives_elsewhere_comes_is_updated_and_goes_back(name: str, every: int, optimizer: str) -> None:
    make, inputs = MODELS[name]
    module = make().train()
    base = lm.price(capture_step(module, inputs, training=True, optimizer=optimizer).graph, "2xp100-pcie")
    result = planned(base, living_elsewhere(base, every))
    plain = simulate(base, Plan.of(base, np.zeros(base.num_ops, np.int64)))
    assert result.timeline.curve(0)[1][0] < plain.curve(0)[1][0]  # before the step
    step = apply(copy.deepcopy(module), inputs, result, devices=["cpu", "cpu"])
    found = verify_step(step, inputs)
    assert found.equals_capture and found.ok, str(found)
    peaks, modelled = measured_peaks(step, inputs), result.timeline.peak_bytes.tolist()
    workspace = int(base.graph.workspace_bytes.max())
    assert 0.7 * modelled[0] - workspace <= peaks[0] <= modelled[0], (peaks, modelled)
    # What comes home is copied over what lives there: beside that there is nothing, though the model counts a copy.
    assert peaks[1] == result.timeline.curve(1)[1][0] <= modelled[1], (peaks, modelled)


@pytest.mark.parametrize("optimizer", ["adam", "sgd"])
def test_what_is_updated_elsewhere_is_copied_once_on_its_way_home(optimizer: str) -> None:
    module, inputs = Transformer().train(), (WORDS,)
    base = lm.price(capture_step(module, inputs, training=True, optimizer=optimizer).graph, "2xp100-pcie")
    result = planned(base, living_elsewhere(base))
    assert result.plan.added is not None
    back = [int(tensor) for tensor in result.plan.added.tensor if base.graph.producer[tensor] >= 0]
    home = {int(base.graph.owner[tensor]) for tensor in back}
    step = apply(module, inputs, result, devices=["cpu", "cpu"], verify=False)  # which copies, too
    memory = {tensor.data_ptr(): [0] for tensor in [*module.parameters(), *step.updates.state()]}
    step.bind(inputs)
    lived = [value for (_, device), value in zip(step.program.residents, step.residents(), strict=True) if device == 1]
    assert len(lived) >= len(home) > 10 and sum(value.data_ptr() in memory for value in lived) >= len(home)
    with CountingCopies() as counted:
        step(*inputs)
    landed = [counted.into.get(value.data_ptr(), 0) for value in lived]
    assert sum(landed) == len(home) and max(landed) == 1
    sent = [send for send in result.timeline.send_tensor.tolist() if send >= 0]
    assert counted.clones + sum(landed) == len(sent), "each send is one copy"


class CountingCopies(TorchDispatchMode):
    """How often memory is copied into, by its address, and how many copies are made afresh."""

    def __init__(self) -> None:
        super().__init__()
        self.into, self.clones = dict[int, int](), 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is torch.ops.aten.copy_.default:
            self.into[args[0].data_ptr()] = self.into.get(args[0].data_ptr(), 0) + 1
        self.clones += func is torch.ops.aten.clone.default
        return func(*args, **(kwargs or {}))


@pytest.mark.parametrize("fused", [False, True])
def test_several_steps_from_elsewhere_are_those_of_a_plain_plan(fused: bool) -> None:
    torch.manual_seed(0)
    module, inputs = Transformer().train(), (WORDS,)
    base = lm.price(capture_step(module, inputs, training=True, optimizer="adam").graph, "2xp100-pcie")
    result = planned(base, living_elsewhere(base))
    steps = []
    for plan in (result, planned_plainly(base)):
        torch.manual_seed(0)
        mine = copy.deepcopy(module)
        optimizer = torch.optim.Adam(mine.parameters(), lr=1e-3, fused=fused)
        step = apply(mine, inputs, plan, devices=["cpu", "cpu"], optimizer=optimizer)
        losses = [float(step(*inputs)) for _ in range(4)]
        step.detach()
        state = [value for entry in optimizer.state.values() for value in entry.values()]
        steps.append((losses, [*mine.parameters(), *state]))
    assert steps[0][0] == steps[1][0] and steps[0][0][-1] < steps[0][0][0]
    assert all(torch.equal(one, other) for one, other in zip(steps[0][1], steps[1][1], strict=True))


def planned_plainly(base: Problem) -> Result:
    plan = Plan.of(base, np.zeros(base.num_ops, np.int64))
    line = simulate(base, plan)
    return Result(base, settle(base, plan, line), line, "by hand", 0, (), 0, 1, 0.0)


def test_weights_of_an_inference_come_from_elsewhere() -> None:
    module, inputs = Transformer().eval(), (WORDS,)
    base = lm.price(capture_step(module, inputs, training=False).graph, "2xp100-pcie")
    result = planned(base, living_elsewhere(base))
    step = apply(module, inputs, result, devices=["cpu", "cpu"])
    assert result.timeline.peak_bytes[0] < simulate(base, planned_plainly(base).plan).peak_bytes[0]
    with torch.no_grad():
        assert torch.equal(step(*inputs), module(*inputs))
    assert result.timeline.curve(0)[1][0] == 0
