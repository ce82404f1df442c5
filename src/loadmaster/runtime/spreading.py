"""Ops of a graph on the devices of their modules, as a plan has them: `torch.compile(…, options={"plan": …})`.

Torch captures as ever, with its graph breaks; each op then runs where the plan has its module, eagerly, and tensors are
copied to whoever needs them, once a device.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, fx

from loadmaster.runtime.devices import moved

Places = tuple[Mapping[str, int], Sequence[torch.device]]


def run_spread(module: fx.GraphModule, inputs: Sequence[Any], places: Places) -> Callable[..., Any]:
    """What torch calls instead of the graph."""
    from torch._dynamo.backends.common import aot_autograd

    def compiler(graph: fx.GraphModule, given: Sequence[Any]) -> Callable[..., Any]:
        spread(graph, *places)
        return _boxed(graph)

    compiled: Callable[..., Any] = aot_autograd(fw_compiler=compiler, bw_compiler=compiler)(module, inputs)
    return compiled


def _boxed(module: fx.GraphModule) -> Callable[..., Any]:
    """Takes its inputs in a list and empties it, so that each can be freed at its last use."""
    generator: Any = getattr(fx.graph, "_BoxedCodeGen", None)  # since torch 2.10
    if generator is None:
        from torch._functorch._aot_autograd.utils import make_boxed_func

        return make_boxed_func(module.forward)
    module.graph.set_codegen(generator())
    module.recompile()
    run: Any = module.forward

    def boxed(given: list[Any]) -> Any:
        return run(given)

    boxed._boxed_call = True  # type: ignore[attr-defined]
    return boxed


def spread(module: fx.GraphModule, device_of: Mapping[str, int], devices: Sequence[torch.device]) -> None:
    """Lets each op run where its module is: what it reads is brought there, each tensor once."""
    graph, copies = module.graph, dict[tuple[fx.Node, int], fx.Node]()
    for node in list(graph.nodes):
        if node.op != "call_function":
            continue
        number = _device(node, device_of)
        device = devices[number]

        def there(read: fx.Node, number: int = number, device: torch.device = device, node: fx.Node = node) -> fx.Node:
            if not isinstance(read.meta.get("val"), Tensor):
                return read
            if (read, number) not in copies:
                with graph.inserting_before(node):
                    copies[read, number] = graph.call_function(moved, (read, device))
            return copies[read, number]

        node.args, node.kwargs = fx.map_arg((node.args, node.kwargs), there)
        if isinstance(node.kwargs.get("device"), torch.device):
            node.update_kwarg("device", device)
    _give_back(graph)
    graph.lint()
    module.recompile()


def _give_back(graph: fx.Graph) -> None:
    """What the caller gets, results or gradients, is where it would have been; what is kept for the backward pass stays
    where it is."""
    context = torch._guards.TracingContext.try_get()
    known = getattr(context, "fw_metadata", None)
    backward = any("tangents" in node.name for node in graph.find_nodes(op="placeholder"))
    output = graph.output_node()
    (results,) = output.args
    assert isinstance(results, (list, tuple))
    count = len(results) if known is None or backward else known.num_forward_returns
    given = []
    for number, node in enumerate(results):
        value = node.meta.get("val") if isinstance(node, fx.Node) else None
        if number < count and isinstance(value, Tensor):
            with graph.inserting_before(output):
                node = graph.call_function(moved, (node, value.device))
        given.append(node)
    output.args = (tuple(given),)


def _device(node: fx.Node, device_of: Mapping[str, int]) -> int:
    """By the innermost module that it comes from and the plan knows; backward ops know that of their forward op."""
    stack = node.meta.get("nn_module_stack") or node.meta.get("fwd_nn_module_stack") or {}
    for path, _ in reversed(list(stack.values())):
        if (known := _plain(path)) in device_of:
            return device_of[known]
    return device_of.get("", 0)


def _plain(path: str) -> str:
    """
    >>> _plain("L['self']._modules['layers']._modules['0'].wide")
    'layers.0.wide'
    """
    text = re.sub(r"^L\['[^']*'\]", "", path)
    return re.sub(r"\._modules\['([^']*)'\]|\['?([^']*?)'?\]", r".\1\2", text).strip(".")
