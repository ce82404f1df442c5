"""What a step cannot carry, told by name before it runs: an applied step is equal to the ordinary loop, or refused.

A step is the ops of forward, backward and update, in plan order. Hooks, a `step` of the user's own, tensors of other
classes and weights that share memory act outside of those ops. `refuse_module` and `refuse_optimizer` look for them;
what forward does to Python's own state is found by `watching`, what changes later by `guard`.
"""

from __future__ import annotations

import inspect
import sys
from collections.abc import Iterable, Iterator, Mapping
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensor
from torch.nn.modules import module as torch_modules
from torch.optim import optimizer as torch_optimizers

from loadmaster.errors import CannotRun
from loadmaster.runtime.python_state import derived

# Of a module, besides state dicts, which no step reads: attribute -> what registers it.
MODULE_HOOKS: Mapping[str, str] = {
    "_forward_hooks": "register_forward_hook",
    "_forward_pre_hooks": "register_forward_pre_hook",
    "_backward_hooks": "register_full_backward_hook",
    "_backward_pre_hooks": "register_full_backward_pre_hook",
}
GLOBAL_HOOKS: tuple[tuple[str, Mapping[int, Any]], ...] = (
    ("register_module_forward_hook", torch_modules._global_forward_hooks),
    ("register_module_forward_pre_hook", torch_modules._global_forward_pre_hooks),
    ("register_module_full_backward_hook", torch_modules._global_backward_hooks),
    ("register_module_full_backward_pre_hook", torch_modules._global_backward_pre_hooks),
    ("register_optimizer_step_pre_hook", torch_optimizers._global_optimizer_pre_hooks),
    ("register_optimizer_step_post_hook", torch_optimizers._global_optimizer_post_hooks),
)
# Of a tensor, for gradients.
TENSOR_HOOKS: Mapping[str, str] = {
    "_backward_hooks": "register_hook",
    "_post_accumulate_grad_hooks": "register_post_accumulate_grad_hook",
}
OPTIMIZER_HOOKS: Mapping[str, str] = {
    "_optimizer_step_pre_hooks": "register_step_pre_hook",
    "_optimizer_step_post_hooks": "register_step_post_hook",
}
OPTIMIZERS = (torch.optim.Adam, torch.optim.AdamW, torch.optim.SGD)
_PLAIN = (Tensor, nn.Parameter, nn.Buffer, FakeTensor)
_TRACED = ("torch.", "transformers.")  # their forward hooks only compute: spectral norm, pruning, collected outputs
_WRAPPERS = (nn.DataParallel, nn.parallel.DistributedDataParallel)


def refuse_module(module: nn.Module) -> None:
    """CannotRun for the first thing of the module that a step would leave out."""
    refuse_global_hooks()
    for name, part in module.named_modules():
        where = f"module '{name}' ({type(part).__name__})" if name else type(part).__name__
        if isinstance(part, _WRAPPERS):
            raise CannotRun(f"{where} sends gradients in hooks of its own", where, "give the module inside: .module")
        _refuse_hooks(part, where)
        if "forward" in vars(part):
            fix = "write it as the forward of a class"
            raise CannotRun(f"the forward of {where} was replaced on the instance", where, fix)
    named = [*module.named_parameters(), *module.named_buffers()]
    derived_from = _weights_of_derived(module)
    for name, tensor in named:
        refuse_tensor_hooks(name, tensor)
        if id(tensor) not in derived_from:
            _refuse_held_accumulator(name, tensor)
        _refuse_subclass(f"'{name}'", tensor)
    _refuse_shared_memory(named)


def refuse_global_hooks() -> None:
    for registers, hooks in GLOBAL_HOOKS:
        if hooks:
            what = f"a hook on every module or optimizer ({_called(hooks)}) would not run in a step"
            raise CannotRun(what, f"torch's {registers}", "remove it while the step is applied")


def _refuse_hooks(part: nn.Module, where: str) -> None:
    for attribute, registers in MODULE_HOOKS.items():
        hooks = getattr(part, attribute)
        own = {number: hook for number, hook in hooks.items() if not _is_traced(hook, attribute)}
        if own:
            what = f"a hook of {where} ({_called(own)}) would not run in a step"
            raise CannotRun(what, f"{where}.{registers}", "do in forward what it does, or remove it before apply")


def _is_traced(hook: Any, attribute: str) -> bool:
    kind = hook if inspect.isfunction(hook) or inspect.ismethod(hook) else type(hook)
    return attribute.startswith("_forward") and str(getattr(kind, "__module__", "")).startswith(_TRACED)


def refuse_tensor_hooks(name: str, tensor: Tensor) -> None:
    for attribute, registers in TENSOR_HOOKS.items():
        hooks = getattr(tensor, attribute)
        if hooks:
            what = f"a hook of the weight '{name}' ({_called(hooks)}) would not run in a step"
            fix = "remove it before apply, or do what it does in forward by a torch.autograd.Function"
            raise CannotRun(what, f"'{name}'.{registers}", fix)


def _refuse_held_accumulator(name: str, tensor: Tensor) -> None:
    """A hook on the node that adds up a weight's gradient lives as long as somebody holds that node; torch does not
    tell which hooks it has."""
    if tensor.requires_grad and tensor.is_leaf and _holders(tensor) > _holders(torch.empty(1, requires_grad=True)):
        what = f"the node that adds up the gradient of '{name}' is held, so it may have hooks, which would not run"
        raise CannotRun(what, f"'{name}', AccumulateGrad", "drop the node, and what was computed with it, before apply")


def _weights_of_derived(module: nn.Module) -> set[int]:
    """Weights, by id, of which pruning or weight norm has made others already, whose graph holds the node."""
    held = [(part, key) for part in module.modules() for key in vars(part) if derived(part, key)]
    todo, seen = [vars(part)[key].grad_fn for part, key in held], set()
    while todo:
        node = todo.pop()
        if node is not None and node not in seen:
            seen.add(node)
            todo += [before for before, _ in node.next_functions]
    return {id(node.variable) for node in seen if hasattr(node, "variable")}


def _holders(tensor: Tensor) -> int:
    node = torch.autograd.graph.get_gradient_edge(tensor).node
    return sys.getrefcount(node)


def _called(hooks: Mapping[int, Any]) -> str:
    hook = next(iter(hooks.values()))
    return str(getattr(hook, "__qualname__", type(hook).__name__))


def _refuse_subclass(what: str, tensor: Tensor) -> None:
    if type(tensor) not in _PLAIN:
        kind = type(tensor).__name__
        fix = "give a plain torch.Tensor: a subclass runs other ops"
        raise CannotRun(f"{what} is a {kind}, which computes in a way of its own", kind, fix)
    if tensor.layout != torch.strided:
        raise CannotRun(f"{what} is a sparse tensor", str(tensor.layout), "give a dense one")


def refuse_input(tensor: Tensor, training: bool) -> None:
    """CannotRun for an input that computes in its own way, or wants a gradient."""
    _refuse_subclass("an input", tensor)
    if training and tensor.requires_grad and not isinstance(tensor, nn.Parameter):
        what = "an input needs a gradient, and a step has gradients of weights alone"
        raise CannotRun(what, "the inputs of the step", "give it detached, or make it a Parameter of the module")


def _refuse_shared_memory(named: Iterable[tuple[str, Tensor]]) -> None:
    """Two tensors over the same bytes would part when they are moved to their devices."""
    spans = sorted((*span, name) for name, tensor in named for span in _span(tensor))
    for (_, end, first), (begin, _, second) in pairwise(spans):
        if begin < end:
            what = f"'{first}' and '{second}' share memory, and would part when a plan moves one of them"
            fix = "use one Parameter in both places, or give one of them memory of its own: .clone()"
            raise CannotRun(what, f"'{first}', '{second}'", fix)


def _span(tensor: Tensor) -> Iterator[tuple[int, int]]:
    """First and last byte."""
    if isinstance(tensor, FakeTensor) or tensor.device.type == "meta" or not tensor.numel():
        return
    reach = sum((size - 1) * stride for size, stride in zip(tensor.shape, tensor.stride(), strict=True)) + 1
    yield tensor.data_ptr(), tensor.data_ptr() + reach * tensor.element_size()


def refuse_optimizer(optimizer: torch.optim.Optimizer, module: nn.Module) -> None:
    """CannotRun for an optimizer whose step is not torch's own, or over weights that the module does not have."""
    kind, plain = type(optimizer), type(optimizer).step
    if kind not in OPTIMIZERS or not str(inspect.unwrap(plain).__module__).startswith("torch.optim."):
        base = next((one.__name__ for one in OPTIMIZERS if isinstance(optimizer, one)), "")
        what = (
            f"{kind.__name__} is no torch optimizer but a subclass of {base}, and its own code would not run in a step"
        )
        raise CannotRun(what, f"{kind.__name__}.step", f"give a torch.optim.{base}, with its settings as arguments")
    refuse_optimizer_hooks(optimizer)
    known = {id(weight) for weight in module.parameters()}
    for number, group in enumerate(optimizer.param_groups):
        if group.get("differentiable"):
            what = "a differentiable optimizer cannot write to weights that need a gradient, and torch refuses its step"
            raise CannotRun(what, f"optimizer.param_groups[{number}]", "leave differentiable=True out")
        for weight in group["params"]:
            if id(weight) not in known:
                what = f"the optimizer has a weight of shape {list(weight.shape)} that the module does not have"
                fix = "make it a Parameter of the module (layers in a plain list are none: use nn.ModuleList)"
                raise CannotRun(what, f"optimizer.param_groups[{number}]", fix)


def refuse_optimizer_hooks(optimizer: torch.optim.Optimizer) -> None:
    for attribute, registers in OPTIMIZER_HOOKS.items():
        hooks = getattr(optimizer, attribute)
        if hooks:
            what = f"a hook of the optimizer ({_called(hooks)}) would not run in a step"
            fix = "remove it before apply; clip in forward, or train without a plan"
            raise CannotRun(what, f"optimizer.{registers}", fix)
    own = vars(optimizer)
    for name in ("step", "zero_grad"):
        if name in own and not hasattr(own[name], "_wrapped_by_lr_sched"):  # as schedulers of torch wrap it
            what = f"optimizer.{name} was replaced, and the new one would not run in a step"
            raise CannotRun(what, f"optimizer.{name}", f"del optimizer.{name}, or train without a plan")
