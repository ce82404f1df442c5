"""Proof that an applied step computes what the module does: both run from the same weights, batch and random state.

There are two references. The module itself, run by torch as ever: what users care about. And the captured step run by
torch in its traced order on one device: the same kernels as the plan's, so that on CPUs every bit must agree. Where
only the second agrees to the bit, the difference to the first is one of kernels (a recurrent layer that torch runs in
one piece and the capture unrolls, another device), and a stated tolerance applies.

On a GPU the module moves by itself when its kernels are chosen otherwise: many add in TF32, or in the order in which
blocks come to an end. So it is run once more, with kernels that are exact and deterministic where there are such; a
tensor may differ from the module by twice what the module then differs from itself, where that is more.
"""

from __future__ import annotations

import copy
import random
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor, fx, nn

from loadmaster.errors import CannotRun
from loadmaster.importers.torch.arguments import as_arguments, seen_inside, split
from loadmaster.importers.torch.export import switched
from loadmaster.importers.torch.step import Given, loss_of, tensors_of
from loadmaster.runtime.attention import ON_CPU
from loadmaster.runtime.copies import part_of
from loadmaster.runtime.differences import TensorDifference, Values, differences, equal, follows
from loadmaster.runtime.execute import tensors_by_name
from loadmaster.runtime.python_state import tensors_within
from loadmaster.runtime.substitutes import VIEW

if TYPE_CHECKING:
    from loadmaster.runtime.execute import AppliedStep


@dataclass(frozen=True)
class Verification:
    """What came of running a step both ways.

    Attributes:
        compared: tensors.
        equals_module: to the bit.
        equals_capture: to the bit: the captured step in its traced order.
        must_equal_capture: whether every bit must agree with it: all on the host, and no kernel compiled.
        worst: from the module, the nearest to what is allowed or the furthest past it.
        first_unequal: to the captured step.
        reference: what stands for it.
    """

    compared: int
    equals_module: bool
    equals_capture: bool
    must_equal_capture: bool
    worst: TensorDifference
    first_unequal: str
    reference: str = "the module"

    @property
    def ok(self) -> bool:
        """The worst difference is allowed, and where bits must agree with the captured step, they do."""
        if self.must_equal_capture and not self.equals_capture:
            return False
        return self.worst.largest <= self.worst.allowed

    def require(self) -> None:
        """Refuses a step that does not compute what the module does."""
        if not self.ok:
            fix = "report it: a legal plan never changes what is computed"
            if self.equals_capture:
                fix = "look for what the module reads or draws besides its tensors: a step runs the ops of its capture"
            raise CannotRun(f"the applied step differs from the module: {self}", self.worst.name, fix)

    def __str__(self) -> str:
        if self.equals_module:
            return f"equal to {self.reference} in every bit of {self.compared} tensors"
        name, largest, allowed = self.worst.name, self.worst.largest, self.worst.allowed
        same = "equal to the captured step in every bit" if self.equals_capture else ""
        if not same and self.must_equal_capture:
            same = f"not equal to the captured step in '{self.first_unequal}'"
        module = f"largest difference from {self.reference} {largest:.2g} in {name}, {allowed:.2g} allowed"
        return ", ".join(part for part in (same, module) if part)


Reference = Callable[["AppliedStep", Any], Values]


def verify_step(
    step: AppliedStep, inputs: Any, reference: Reference | None = None, called: str = "the module"
) -> Verification:
    """Runs one step both ways and compares outputs, gradients, updated weights and buffers. Nothing is changed.

    Args:
        step: as it was applied.
        inputs: a batch, as the step is called with.
        reference: what the module would do, where the module as it is cannot tell; by default the module itself.
        called: what errors and reports call the reference.
    """
    arguments = as_arguments(inputs, step.captured.graph.name)
    on_host = all(device.type == "cpu" for device in step.devices)
    with unchanged(step):
        given = partial(_copied, step, arguments)
        module, home = (reference(step, given()), None) if reference else _of_module_at_home(step, given())
        exact = {} if on_host or reference is not None else _of_module_exactly(step, given(), home)
        capture = of_capture(step, given())
        planned = _of_plan(step, given())
    module, exact, capture = (_with_copies(step, values) for values in (module, exact, capture))
    planned = {name: value for name, value in planned.items() if name in module and not follows(name, planned, module)}
    found = differences(planned, module, exact, _rate(step))
    worst = max(found, key=lambda d: d.largest / d.allowed if d.allowed else float(d.largest > 0))
    unequal = [name for name in capture if name in planned and not equal(planned[name], capture[name])]
    return Verification(
        compared=len(planned),
        equals_module=all(equal(planned[name], module[name]) for name in planned),
        equals_capture=bool(capture) and not unequal,
        must_equal_capture=bool(capture) and on_host and not step.kernels.compiled,
        worst=worst,
        first_unequal=unequal[0] if unequal else "",
        reference=called,
    )


def _copied(step: AppliedStep, inputs: Any) -> Any:
    """The batch for one run, which may write to it; what is the module's own stays that."""
    own = set(map(id, step.binding.named.values()))
    made: dict[int, Tensor] = {}

    def copied(tensor: Tensor) -> Tensor:
        return tensor if id(tensor) in own else made.setdefault(id(tensor), tensor.detach().clone())

    with seen_inside(inputs):
        return torch.utils._pytree.tree_map_only(Tensor, copied, inputs)


def _rate(step: AppliedStep) -> float:
    if step.optimizer is None or isinstance(step.optimizer, torch.optim.SGD):
        return 0.0
    return max(float(group["lr"]) for group in step.optimizer.param_groups)


@contextmanager
def unchanged(step: AppliedStep) -> Iterator[None]:
    """Weights, buffers, optimizer state and random numbers go back to what they were."""
    given = [value for value in step.binding.tensors.values()]
    values = [*given, *step.updates.state()]
    kept = [value.detach().clone() for value in values]
    gradients = [(weight, weight.grad) for weight in step.binding.weights().values()]
    known = [set(one.state) for one in step.updates.optimizers]
    with same_numbers():
        try:
            yield
        finally:
            with torch.no_grad():
                for value, old in zip(values, kept, strict=True):
                    _own_elements(value, value).copy_(_own_elements(old, value))
            for weight, gradient in gradients:
                weight.grad = gradient
            for one, before in zip(step.updates.optimizers, known, strict=True):
                for new in set(one.state) - before:
                    del one.state[new]
            step.binding.copies.note()
            step.updates.note()


def _own_elements(tensor: Tensor, like: Tensor) -> Tensor:
    """Without the repetitions that `like`, an expanded tensor, has of its memory."""
    for dim, (size, stride) in enumerate(zip(like.shape, like.stride(), strict=True)):
        if size > 1 and stride == 0:
            tensor = tensor.narrow(dim, 0, 1)
    return tensor


@contextmanager
def same_numbers() -> Iterator[None]:
    """Each run draws the random numbers that the one before drew, of torch, Python and NumPy."""
    pythons, numpys = random.getstate(), np.random.get_state()
    try:
        with torch.random.fork_rng():
            yield
    finally:
        random.setstate(pythons)
        np.random.set_state(numpys)


def twin(step: AppliedStep, home: torch.device | None = None) -> tuple[nn.Module, torch.optim.Optimizer | None]:
    """Copies of the module, at `home` or where it was before, and of its optimizer."""
    made = [tensor for tensor in tensors_within(step.binding.module) if not tensor.is_leaf]  # which torch does not copy
    module = copy.deepcopy(step.binding.module, {id(tensor): tensor.detach().clone() for tensor in made})
    module.zero_grad()
    originals = tensors_by_name(step.binding.module)
    before = {id(step.binding.tensors[tensor]): device for tensor, device in step.binding.before.items()}
    copies = tensors_by_name(module)
    for name, value in originals.items():
        twin = copies[name]
        twin.data = twin.data.to(home or before.get(id(value), value.device))
        vars(twin).update(vars(value))  # what people hang on them
    if step.optimizer is None:
        return module, None
    name_of = {id(value): name for name, value in originals.items()}
    groups = [
        {**group, "params": [copies[name_of[id(weight)]] for weight in group["params"]]}
        for group in step.optimizer.param_groups
    ]
    optimizer = type(step.optimizer)(groups, lr=1e-3)  # type: ignore[call-arg]
    optimizer.load_state_dict(copy.deepcopy(step.optimizer.state_dict()))  # it keeps the tensors it is given
    return module, optimizer


def _of_module_at_home(step: AppliedStep, inputs: Any) -> tuple[Values, torch.device | None]:
    """What the module computes, and the GPU that it was taken to for it, if any.

    A module that was on the CPU and is planned for GPUs runs on the first of these: they draw other random numbers than
    the CPU and round otherwise. A step that is too large for it is compared with the CPU's.
    """
    gpus = [device for device in step.devices if device.type != "cpu"]
    if gpus and all(device.type == "cpu" for device in step.binding.before.values()):
        with suppress(torch.OutOfMemoryError):
            return _of_module(step, inputs, gpus[0]), gpus[0]
    return _of_module(step, inputs), None


def _of_module(step: AppliedStep, inputs: Any, home: torch.device | None = None) -> Values:
    module, optimizer = twin(step, home)
    args, kwargs = split(inputs)
    device = home or next(iter(step.binding.before.values()), torch.device("cpu"))
    args, kwargs = torch.utils._pytree.tree_map_only(Tensor, lambda tensor: tensor.to(device), (args, kwargs))
    with same_numbers(), switched(module, step.captured.training):
        if not step.captured.training:
            with torch.no_grad():
                outputs = tensors_of(module(*args, **kwargs))
            return {**_numbered(outputs), **_state(module), **_random_numbers(step)}
        with torch.enable_grad():
            loss = loss_of(module(*args, **kwargs), type(module).__name__)
            loss.backward()  # type: ignore[no-untyped-call]
        drawn = _random_numbers(step)
    weights = dict(module.named_parameters())
    _refuse_other_gradients(weights, step.captured.learned)
    gradients = {name: weights[name].grad for name in step.captured.learned}
    return {**after_update(module, optimizer, [loss.detach()], gradients), **drawn}


def _refuse_other_gradients(weights: Mapping[str, nn.Parameter], learned: Collection[str]) -> None:
    """Of weights that have none in the captured step."""
    for name, weight in weights.items():
        if name not in learned and weight.grad is not None and bool(weight.grad.any()):
            what = f"the weight '{name}' gets a gradient that does not come from the loss that the module returns"
            raise CannotRun(what, f"'{name}'.grad", "return one loss, and leave backward() to the step")


def _of_module_exactly(step: AppliedStep, inputs: Any, home: torch.device | None) -> Values:
    """The same with other kernels of the GPU's libraries: no TF32, no sums in halves, nothing left to chance."""
    matmul, cudnn = torch.backends.cuda.matmul, torch.backends.cudnn
    halves = ("allow_bf16_reduced_precision_reduction", "allow_fp16_reduced_precision_reduction")
    switches = [(matmul, "allow_tf32", False), (cudnn, "allow_tf32", False), (cudnn, "deterministic", True)]
    switches += [(matmul, name, False) for name in halves]
    before = [(where, name, getattr(where, name)) for where, name, _ in switches]
    try:
        for where, name, value in switches:
            setattr(where, name, value)
        return _of_module(step, inputs, home)
    finally:
        for where, name, value in before:
            setattr(where, name, value)


def of_capture(step: AppliedStep, inputs: Any) -> Values:
    """The traced step as torch itself runs it, on the device where the module was."""
    module, optimizer = twin(step)
    named = tensors_by_name(module)
    trace = step.captured.trace
    batch = step.given_tensors(inputs)
    if any(device.type != "cpu" for device in (*step.devices, *step.binding.before.values())):
        return {}  # it was traced for the CPU, and its constants go where the plan needs them
    values = [
        batch[number].cpu() if given.role == "input" else _given(given, named)
        for number, given in enumerate(trace.given)
    ]
    try:
        with same_numbers(), torch.no_grad():
            results = list(_CpuInterpreter(trace.module).run(*values))
    except (
        NotImplementedError
    ):  # captured for a GPU, with kernels that the CPU has not: the module alone is the measure
        return {}
    count = len(trace.outputs)
    if not step.captured.training:
        return {**_numbered(results), **_state(module)}
    weights = dict(module.named_parameters())
    every = dict(zip(step.captured.gradients, results[count:], strict=True))
    gradients = {name: every.get(name, torch.zeros_like(weights[name])) for name in step.captured.learned}
    for name, cut in ((name, cut) for name, cut in step.captured.cuts.items() if name in every):
        cut.put(every[name], gradients[step.captured.copies[name]])
    for name, gradient in gradients.items():
        weights[name].grad = torch.empty_like(weights[name]).copy_(
            gradient
        )  # in its memory order, as backward() has it
    return after_update(module, optimizer, results[:count], gradients)


def _given(given: Given, named: Mapping[str, Tensor]) -> Tensor:
    value = named[given.copy_of or given.name].detach()
    return value if given.cut is None else given.cut.of(value)


class _CpuInterpreter(fx.Interpreter):
    """A traced step on a CPU, whichever kind of device it was captured for."""

    def call_function(self, target: Any, args: Any, kwargs: Any) -> Any:
        plain = torch.ops.aten.reshape.default if str(target) == VIEW else target
        return super().call_function(ON_CPU.get(str(target), plain), args, kwargs)


def _of_plan(step: AppliedStep, inputs: Any) -> Values:
    args, kwargs = split(inputs)
    step.updates.gradients = found = {}
    try:
        with same_numbers():
            result = step.compute(args, kwargs)
            drawn = _random_numbers(step)
    finally:
        step.updates.gradients = None
        step.steps = 0
    if not step.captured.training:
        return {**_numbered(tensors_of(result)), **_kept_here(step), **drawn}
    if step.captured.optimizer == "none":
        found = {name: weight.grad for name, weight in step.binding.weights().items() if weight.grad is not None}
    gradients = {f"gradient of {name}": found[name].cpu() for name in step.captured.gradients if name in found}
    state = {} if step.post is not None or step.captured.copies else _state_of(step.binding.module, step.optimizer)
    return {**_numbered([result]), **gradients, **_kept_here(step), **state, **drawn}


def _random_numbers(step: AppliedStep) -> Values:
    """The state of the CPU's stream after a run, where all draw from it."""
    on_host = all(device.type == "cpu" for device in (*step.devices, *step.binding.before.values()))
    return {"random numbers": torch.get_rng_state()} if on_host else {}


def _state_of(module: nn.Module, optimizer: torch.optim.Optimizer | None) -> Values:
    """What the optimizer remembers of each weight."""
    entries = {} if optimizer is None else optimizer.state
    return {
        f"{key} of {name}": value.detach().cpu().clone()
        for name, weight in module.named_parameters()
        for key, value in entries.get(weight, {}).items()
        if isinstance(value, Tensor)
    }


def _kept_here(step: AppliedStep) -> Values:
    """What is this process's to keep of the module: all of it in a run of one."""
    local = step.local
    step.binding.copies.give_back()
    copies = {f"weight {name}": value.detach().cpu().clone() for name, value in step.binding.copies.weights.items()}
    everything = {**_state(step.binding.module), **copies}
    return {name: v for name, v in everything.items() if local is None or name.partition(" ")[2] in local}


def _with_copies(step: AppliedStep, values: Values) -> Values:
    """Copies of weights must be what the module's own are."""
    found = dict(values)
    for name, of in step.captured.copies.items() if values else ():
        for kind in ("weight", "gradient of"):
            if f"{kind} {of}" in values:
                found[f"{kind} {name}"] = part_of(values[f"{kind} {of}"], step.captured.cuts.get(name))
    return found


def after_update(
    module: nn.Module,
    optimizer: torch.optim.Optimizer | None,
    outputs: list[Tensor],
    gradients: Mapping[str, Tensor | None],
) -> Values:
    """Outputs, gradients and, after one step of the optimizer, weights: what two runs are compared by."""
    kept = {f"gradient of {name}": g.detach().cpu().clone() for name, g in gradients.items() if g is not None}
    if optimizer is not None:
        optimizer.step()
    return {**_numbered(outputs), **kept, **_state(module), **_state_of(module, optimizer)}


def _numbered(outputs: list[Tensor]) -> Values:
    return {f"output {number}": value.detach().cpu() for number, value in enumerate(outputs)}


def _state(module: nn.Module) -> Values:
    weights = {f"weight {name}": value.detach().cpu().clone() for name, value in module.named_parameters()}
    return {**weights, **{f"buffer {name}": value.detach().cpu().clone() for name, value in module.named_buffers()}}
