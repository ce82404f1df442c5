"""place: each module's weights and forward where a plan has them; autograd, optimizers and batch sizes as ever.

A module runs on the device of its ops: what it is given is moved there before it is called. Where the code of a module
that only calls others joins tensors of several devices, they are brought to its own. Each tensor goes to a device once
in a forward pass. The backward pass follows by itself: the gradient of a copy is copied back.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode
from torch.utils import _pytree as pytree

from loadmaster.errors import InvalidPlan, InvalidSetting
from loadmaster.runtime.devices import moved

if TYPE_CHECKING:
    from loadmaster.runtime.apply import Planned

_SHOWN = 4  # modules that an error names
_ATTRIBUTE = "loadmaster_placement"


@dataclass
class ModulePlacement:
    """Where the modules of one model run; `module.loadmaster_placement` holds it.

    Attributes:
        devices: by module path; modules that the plan does not have follow the one around them.
        before: of parameters and buffers, where each was.
        handles: of the hooks that move what modules are given.
    """

    devices: Mapping[str, torch.device]
    before: Mapping[str, torch.device]
    handles: list[Any] = field(default_factory=list)

    def remove(self, module: nn.Module) -> None:
        """Everything as it was before it was placed, with the weights of now."""
        for handle in self.handles:
            handle.remove()
        _move(module, self.before)
        delattr(module, _ATTRIBUTE)


def place(module: nn.Module, plan: Planned, *, devices: Sequence[str | torch.device] | None = None) -> nn.Module:
    """Puts parameters, buffers and the forward of every submodule where the plan has them; returns the module.

    The module is used and trained as before, with any batch size and any optimizer; autograd follows by itself.
    `module.loadmaster_placement.remove(module)` takes it back, and placing again replaces what was. Unlike `apply` it
    keeps to no order and fuses nothing: it is for those who want a plan's places and nothing else changed.

    >>> import loadmaster as lm, torch
    >>> module, x = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.ReLU()), torch.randn(2, 4)
    >>> result = lm.plan(module, inputs=(x,), on="2xcpu", budget=lm.Budget(None, 1), method="one-device")
    >>> lm.place(module, result, devices=["cpu", "cpu"])(x).shape
    torch.Size([2, 4])

    Args:
        module: of which the plan was made.
        plan: a Result, or a plan's file. It must keep modules whole (`--granularity module` or `block`).
        devices: a torch device for each device of the plan; by default those that suit the plan's cluster.

    Raises:
        InvalidPlan: the plan is of another model, splits modules (the first few are named), says nothing of modules, or
            has one shared tensor on two devices: plan with --granularity module or block.
        InvalidSetting: a Plan alone, which knows no modules, or too few devices.
    """
    scopes, numbers, places = _ops_of(plan, devices)
    wanted = {path: places[number] for path, number in _whole(module, scopes, numbers).items()}
    unknown = sorted(set(wanted) - {name for name, _ in module.named_modules()})
    if unknown:
        what = f"the plan is of another model: it has a module '{unknown[0]}'"
        raise InvalidPlan(what, "place", "give the plan of this module")
    if hasattr(module, _ATTRIBUTE):
        getattr(module, _ATTRIBUTE).remove(module)
    found = _inherited(module, wanted)
    tensors = _tensor_devices(module, found)
    before = {name: value.device for name, value in _tensors(module)}
    placement = ModulePlacement(found, before)
    _move(module, tensors)
    _hook(module, placement)
    setattr(module, _ATTRIBUTE, placement)
    return module


def module_devices(
    plan: Planned, devices: Sequence[str | torch.device] | None = None
) -> tuple[dict[str, int], Sequence[torch.device]]:
    """The device of each module path, and a torch device for each device of the plan, where no module is known but by
    its path; refuses a plan that splits one."""
    scopes, numbers, places = _ops_of(plan, devices)
    seen = _counted(scopes, numbers)
    around = _around(seen)
    _refuse_split([path for path, of in seen.items() if len(of) > 1 and path not in around])
    return {path: of.most_common(1)[0][0] for path, of in seen.items()}, places


def _around(paths: Iterable[str]) -> set[str]:
    """The modules that have others in them."""
    return {path[:at] for path in paths for at, letter in enumerate(path) if letter == "."} | {""}


def _refuse_split(split: Sequence[str]) -> None:
    if split:
        shown = ", ".join(split[:_SHOWN]) + (f" and {len(split) - _SHOWN} more" if len(split) > _SHOWN else "")
        what = f"the plan splits {len(split)} modules: {shown}"
        raise InvalidPlan(what, "place", "plan with --granularity module or block, or run this plan with lm.apply")


def _counted(scopes: Sequence[str], numbers: Sequence[int]) -> dict[str, Counter[int]]:
    seen: dict[str, Counter[int]] = defaultdict(Counter)
    for scope, number in zip(scopes, numbers, strict=True):
        seen[scope][number] += 1
    return seen


def _ops_of(
    plan: Planned, devices: Sequence[str | torch.device] | None
) -> tuple[Sequence[str], Sequence[int], Sequence[torch.device]]:
    """Module path and device of every op, and a torch device for each device."""
    from loadmaster.plans import Plan
    from loadmaster.runtime.apply import is_result, plan_file
    from loadmaster.runtime.devices import devices_here

    if isinstance(plan, Plan):
        raise InvalidSetting("a plan alone does not know modules", "place", "give the result, or the plan's file")
    file = plan_file(plan)
    assert file.cluster is not None or not is_result(plan)
    scopes = plan.problem.graph.scope if is_result(plan) else file.modules
    numbers = file.plan.device.tolist()[: len(scopes)]
    if not any(scopes):
        what = "the plan does not say which module an op belongs to"
        raise InvalidPlan(what, "place", "plan again from the torch module, with --granularity block")
    count = max(numbers) + 1
    if file.cluster is not None:
        return scopes, numbers, devices_here(file.cluster, devices)
    if devices is None or len(devices) < count:
        raise InvalidSetting(f"the plan is on {count} devices", "devices", "give a torch device for each")
    return scopes, numbers, [torch.device(name) for name in devices]


def _whole(module: nn.Module, scopes: Sequence[str], numbers: Sequence[int]) -> dict[str, int]:
    """The device of each module; refuses a plan that splits one. A module with others in it may have ops of its own on
    several devices (masks, sums of all layers): it counts as on the one that has most."""
    seen = _counted(scopes, numbers)
    weighty = {name for name, part in module.named_modules() if any(True for _ in part.parameters(recurse=False))}
    around = _around(seen)
    _refuse_split([path for path, of in seen.items() if len(of) > 1 and (path in weighty or path not in around)])
    return {path: of.most_common(1)[0][0] for path, of in seen.items()}


def _inherited(module: nn.Module, wanted: Mapping[str, torch.device]) -> dict[str, torch.device]:
    """For every module: the plan's, else that of the first inside it that has one, else that of the one around it."""
    found: dict[str, torch.device] = {}
    first = next(iter(wanted.values()))
    for path, _ in module.named_modules():
        inner = next((device for other, device in wanted.items() if not path or other.startswith(f"{path}.")), None)
        around = found.get(path.rpartition(".")[0], first)
        found[path] = wanted.get(path) or inner or around
    return found


def _tensors(module: nn.Module) -> Iterable[tuple[str, Tensor]]:
    yield from module.named_parameters()
    yield from module.named_buffers()


def _tensor_devices(module: nn.Module, devices: Mapping[str, torch.device]) -> dict[str, torch.device]:
    """Of each parameter and buffer; refuses one that modules on two devices share."""
    holders: dict[int, tuple[str, str]] = {}
    found = {}
    every = [*module.named_parameters(remove_duplicate=False), *module.named_buffers(remove_duplicate=False)]
    for name, value in every:
        owner = name.rpartition(".")[0]
        first, held = holders.setdefault(id(value), (name, owner))
        if devices[held] != devices[owner]:
            what = f"'{first}' and '{name}' are one tensor, and the plan has them on two devices"
            raise InvalidPlan(what, "place", "plan with --granularity module or block, which keeps them together")
        found[first] = devices[held]
    return found


def _move(module: nn.Module, devices: Mapping[str, torch.device]) -> None:
    """In place, so that optimizers and modules that share a tensor still have it."""
    with torch.no_grad():
        for name, value in _tensors(module):
            if value.device != devices[name]:
                _replace(value, value.detach().to(devices[name]))
            gradient = value.grad if value.is_leaf else None
            if gradient is not None and gradient.device != devices[name]:
                value.grad = gradient.to(devices[name])


def _replace(value: Tensor, new: Tensor) -> None:
    if torch._has_compatible_shallow_copy_type(value.data, new):
        value.data = new
        return
    kept: Tensor = nn.Parameter(new, value.requires_grad) if isinstance(value, nn.Parameter) else new
    torch.utils.swap_tensors(value, kept)  # type: ignore[no-untyped-call]


class _Forward(TorchFunctionMode):
    """One forward pass of a placed model: which module is running, and what has been copied where."""

    def __init__(self, root: torch.device) -> None:
        super().__init__()
        self.running = [root]
        self.copies: dict[tuple[int, torch.device], tuple[Tensor, Tensor]] = {}  # with the original, which keeps its id

    def there(self, value: Any, device: torch.device) -> Any:
        return pytree.tree_map_only(Tensor, lambda tensor: self._copy(tensor, device), value)

    def _copy(self, tensor: Tensor, device: torch.device) -> Tensor:
        if tensor.device == device:
            return tensor
        key = (id(tensor), device)
        if key not in self.copies or self.copies[key][0]._version != tensor._version:
            self.copies[key] = tensor, moved(tensor, device)
        return self.copies[key][1]

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if _mixed(args, kwargs) and func not in _MOVERS:
            args, kwargs = self.there((args, kwargs), self.running[-1])
        return func(*args, **kwargs)


def _mixed(args: Sequence[Any], kwargs: Mapping[str, Any]) -> bool:
    """Whether tensors of several devices meet; a number on the host goes with all. It is asked for every call, so it
    looks no deeper than torch's own functions nest."""
    first: torch.device | None = None
    for value in (*args, *kwargs.values()):
        for one in value if type(value) in (list, tuple) else (value,):
            if isinstance(one, Tensor) and (one.dim() or one.device.type != "cpu"):
                if first is None:
                    first = one.device
                elif one.device != first:
                    return True
    return False


_MOVERS = frozenset([Tensor.copy_, Tensor.to, torch.result_type])


def _computes(part: nn.Module) -> bool:
    """Whether it does more than call others: of one that only does, no more is moved than its own code needs."""
    tensors = (*part._parameters.values(), *part._buffers.values())
    return any(value is not None for value in tensors) or not part._modules


def _hook(module: nn.Module, placement: ModulePlacement) -> None:
    """Before a module is called its inputs go to its device; around the whole model, a mode sees to the rest."""
    passes: list[_Forward] = []

    def before(device: torch.device) -> Any:
        def enter(part: nn.Module, args: Any, kwargs: Any) -> Any:
            if part is module:
                passes.append(_Forward(device))
                passes[-1].__enter__()  # type: ignore[no-untyped-call]
            if not passes and _computes(part):  # called by itself
                return pytree.tree_map_only(Tensor, lambda tensor: moved(tensor, device), (args, kwargs))
            if not passes:
                return None
            passes[-1].running.append(device)
            return passes[-1].there((args, kwargs), device) if _computes(part) else None

        return enter

    def leave(part: nn.Module, args: Any, result: Any) -> None:
        if passes:
            passes[-1].running.pop()
        if part is module and passes:
            passes.pop().__exit__(None, None, None)  # type: ignore[no-untyped-call]

    for path, part in module.named_modules():
        enter = before(placement.devices[path])
        placement.handles.append(part.register_forward_pre_hook(enter, with_kwargs=True))
        placement.handles.append(part.register_forward_hook(leave, always_call=True))
