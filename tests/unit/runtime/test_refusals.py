"""What a step refuses, and that the module is as it was afterwards."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from torch import Tensor, nn  # noqa: E402

import loadmaster as lm  # noqa: E402
from loadmaster.files import load_plan_file  # noqa: E402
from loadmaster.runtime.apply import apply  # noqa: E402
from loadmaster.runtime.memory import measured_peaks  # noqa: E402
from tests.unit.importers.torch.models import IMAGES, WORDS, ConvNet, Mlp, Transformer  # noqa: E402
from tests.unit.runtime.test_execute import planned  # noqa: E402


def kept(module: nn.Module) -> dict[str, Tensor]:
    return {name: value.clone() for name, value in module.state_dict().items()}


def unchanged(module: nn.Module, before: dict[str, Tensor]) -> bool:
    return all(torch.equal(value, before[name]) for name, value in module.state_dict().items())


def test_a_plan_of_another_model() -> None:
    result = planned(Mlp(), (torch.ones(8, 16),), "random")
    module = Transformer()
    before = kept(module)
    with pytest.raises(lm.InvalidPlan, match="another model"):
        apply(module, (WORDS,), result)
    assert unchanged(module, before)


def test_a_plan_for_other_inputs_says_which(tmp_path: Path) -> None:
    result = planned(Mlp(), (torch.ones(8, 16),), "random")
    result.save(tmp_path / "plan.json")
    with pytest.raises(lm.InvalidPlan, match=r"float32\[8, 16\]"):
        apply(Mlp(), (torch.ones(4, 16),), tmp_path / "plan.json")


@pytest.mark.parametrize(
    ("batch", "says"),
    [
        ((torch.ones(9, 16),), r"float32\[9, 16\].*captured with float32\[8, 16\]"),
        ((torch.ones(8, 16, dtype=torch.float64),), "float64"),
        ((torch.ones(8, 16), torch.ones(1)), "form"),
        ((3.0,), "captured with"),
    ],
)
def test_inputs_of_another_shape(batch: Any, says: str) -> None:
    module, inputs = Mlp(), (torch.ones(8, 16),)
    step = apply(module, inputs, planned(module, inputs, "random"))
    before = kept(module)
    with pytest.raises(lm.InvalidSetting, match=says):
        step(*batch)
    assert unchanged(module, before)
    step(*inputs)


class Failing(nn.Module):
    """Out of memory in the last op that its step makes, after weights were updated."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(4, 4), nn.Linear(4, 4)

    def forward(self, x: Tensor) -> Tensor:
        return self.second(torch.tanh(self.first(x))).sum()


@pytest.mark.parametrize(
    ("error", "expected"),
    [
        (torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2 GiB"), lm.DoesNotFit),
        (RuntimeError("[enforce fail] DefaultCPUAllocator: can't allocate memory"), lm.DoesNotFit),
        (NotImplementedError("Could not run 'aten::mm' with arguments from the 'X' backend"), lm.CannotRun),
    ],
)
def test_a_failure_says_where_and_the_module_is_as_it_was(error: Exception, expected: Any) -> None:
    module, inputs = Failing(), (torch.ones(2, 4),)
    step = apply(module, inputs, planned(module, inputs, "expert"))
    before = kept(module)
    listing = step.program.listing
    broken = [line for line in step.program.lines.values() if line.makes and line.op >= 0][-1]
    function = broken.text.partition(" = ")[2].partition("(")[0]

    def fail(*args: Any, **kwargs: Any) -> None:
        raise error

    step.program.run.__globals__[function] = fail
    assert function in listing.constants
    with pytest.raises(expected) as caught:
        step(*inputs)
    assert "as it was" in caught.value.fix and "op '" in caught.value.where and "on '" in caught.value.where
    assert unchanged(module, before)


def test_an_optimizer_of_another_kind() -> None:
    module, inputs = Mlp(), (torch.ones(8, 16),)
    result = planned(module, inputs, "random", optimizer="sgd")
    with pytest.raises(lm.InvalidSetting, match="RMSprop was given"):
        apply(module, inputs, result, optimizer=torch.optim.RMSprop(module.parameters()))
    with pytest.raises(lm.InvalidSetting, match="captured with the optimizer 'sgd'"):
        apply(module, inputs, result, training=True, optimizer=torch.optim.Adam(module.parameters()))


def test_too_few_torch_devices() -> None:
    module, inputs = Mlp(), (torch.ones(8, 16),)
    with pytest.raises(lm.InvalidSetting, match="1 torch devices"):
        apply(module, inputs, planned(module, inputs, "random"), devices=["cpu"])
    with pytest.raises(lm.InvalidSetting, match="no device here"):
        apply(module, inputs, planned(module, inputs, "random"), devices=["cuda:0"] * 3)


def test_a_module_without_values() -> None:
    with torch.device("meta"):
        module = Mlp()
    inputs = (torch.ones(8, 16),)
    with pytest.raises(lm.CannotRun, match="has no values"):
        apply(module, inputs, planned(Mlp(), inputs, "random"))


def test_plan_files_remember_the_capture_and_old_ones_load(tmp_path: Path) -> None:
    module, inputs = Transformer(), (WORDS,)
    result = planned(module, inputs, "random", optimizer="adamw")
    result.save(tmp_path / "plan.json")
    file = load_plan_file(tmp_path / "plan.json")
    assert file.captured["mode"] == "train" and file.captured["optimizer"] == "adamw"
    assert file.captured["inputs"] == [{"name": "input[0]", "shape": [2, 6], "dtype": "int64"}]
    assert file.cluster is not None and file.cluster.digest == result.problem.cluster.digest
    text = (tmp_path / "plan.json").read_text()
    assert '"weights": ["blocks.0.inner.weight"' in text and '"module": "blocks.0.inner"' in text
    step = apply(module, inputs, tmp_path / "plan.json", verify=True)
    assert step.captured.optimizer == "adamw"
    import json

    data = json.loads(text)
    del data["captured"], data["on"]
    (tmp_path / "old.json").write_text(json.dumps(data))
    old = load_plan_file(tmp_path / "old.json")
    assert not old.captured and old.cluster is None
    apply(module, inputs, tmp_path / "old.json", verify=True)


@pytest.mark.parametrize("spec", ["random", "expert", "one-device"])
@pytest.mark.parametrize(
    ("make", "inputs"), [(Transformer, (WORDS,)), (ConvNet, (IMAGES,)), (Mlp, (torch.ones(8, 16),))]
)
def test_detach_gives_everything_back(make: Any, inputs: Any, spec: str) -> None:
    module = make()
    step = apply(module, inputs, planned(module, inputs, spec))
    step(*inputs)
    before = kept(module)
    assert step.detach() is module
    assert unchanged(module, before) and all(p.device.type == "cpu" for p in module.parameters())


def test_one_device_holds_what_was_modelled() -> None:
    """Storages alive after every call of a real step, against the simulator."""
    for make, inputs in ((Transformer, (WORDS,)), (ConvNet, (IMAGES,)), (Mlp, (torch.ones(8, 16),))):
        module = make()
        result = planned(module, inputs, "one-device")
        step = apply(module, inputs, result)
        assert measured_peaks(step, inputs) == result.timeline.peak_bytes.tolist()


class Settling(nn.Module):
    """Its first call makes a table, or counts on with each."""

    def __init__(self, counts: bool) -> None:
        super().__init__()
        self.layer, self.table, self.counts = nn.Linear(4, 4), {}, counts

    def forward(self, x: Tensor) -> Tensor:
        if self.counts or len(x) not in self.table:
            self.table[len(x)] = self.table.get(len(x), 0) + 1
        result: Tensor = self.layer(x) * self.table[len(x)]
        return result


def test_state_that_the_first_call_sets_is_refused_until_that_call() -> None:
    module, inputs = Settling(counts=False), (torch.ones(3, 4),)
    plan = planned(module, inputs, "random")
    with pytest.raises(lm.CannotRun, match="only the first call does: call the module once"):
        apply(module, inputs, plan)
    assert not module.table
    module(*inputs)
    assert apply(module, inputs, planned(module, inputs, "random")).verified.startswith("equal to the module")


def test_a_counter_is_not_said_to_settle() -> None:
    module, inputs = Settling(counts=True), (torch.ones(3, 4),)
    with pytest.raises(lm.CannotRun, match="keep it in a buffer"):
        apply(module, inputs, planned(module, inputs, "random"))


class Masked(nn.Module):
    """Takes the rows of its hidden layer that a mask has."""

    def __init__(self, mask: Any) -> None:
        super().__init__()
        self.layer, self.mask = nn.Linear(4, 4), mask

    def forward(self, x: Tensor) -> Tensor:
        hidden = self.layer(x)
        chosen: Tensor = hidden[self.mask(x, hidden)]
        return chosen.square().mean()


def test_the_mask_alone_decides_how_many_rows_are_taken() -> None:
    """Not the weights behind the rows, which every step changes."""
    batch = torch.tensor([[1.0] * 4, [-1.0] * 4, [1.0] * 4])
    for mask in (lambda x, hidden: torch.arange(len(x)) % 2 == 0, lambda x, hidden: x[:, 0] > 0):
        module = Masked(mask)
        step = apply(module, (batch,), planned(module, (batch,), "random", training=True))
        assert step.verified.startswith("equal to the module")
        step(batch)
        step(2 * batch.flip(0))
    with pytest.raises(lm.CannotRun, match="would run other ops"):
        step(-batch)


def test_a_mask_of_what_was_computed_is_refused() -> None:
    module, batch = Masked(lambda x, hidden: hidden[:, 0] > 0), torch.randn(8, 4)
    with pytest.raises(lm.CannotRun, match="depends on values of its tensors"):
        apply(module, (batch,), planned(module, (batch,), "random", training=True))


class Clamped(nn.Module):
    """Clamps what is too large, as models do that fear for half precision."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 4)

    def forward(self, x: Tensor) -> Tensor:
        hidden = self.layer(x)
        if (hidden.abs() > 100).any():
            hidden = hidden.clamp(-100, 100)
        result: Tensor = hidden.square().mean()
        return result


def test_a_step_whose_activations_take_another_branch_is_undone_and_refused() -> None:
    torch.manual_seed(1)
    module, batch = Clamped(), torch.randn(8, 4)
    twin = copy.deepcopy(module)
    optimizer, other = (torch.optim.Adam(one.parameters(), 0.1) for one in (module, twin))
    step = apply(module, (batch,), planned(module, (batch,), "random"), optimizer=optimizer)
    assert step.verified.startswith("equal to the module")
    for factor in (1, 2, 1e6, 3):
        if factor == 1e6:
            before = kept(module)
            with pytest.raises(lm.CannotRun, match="it was False at capture and is True now"):
                step(factor * batch)
            assert unchanged(module, before)
            continue
        loss = step(factor * batch)
        other.zero_grad()
        expected = twin(factor * batch)
        expected.backward()
        other.step()
        assert torch.equal(loss, expected)
    assert all(map(torch.equal, module.state_dict().values(), twin.state_dict().values()))
