"""torch.compile(model, backend="loadmaster"): forward and backward in the order that needs least memory.

Each graph that torch hands over (one for each stretch between graph breaks, and its backward) is ordered by the
planner; ops, and with them all results, stay the same. With `options={"plan": ...}`, and `"devices"` beside it, each op
runs where the plan has its module, as `lm.place` has it, and tensors are copied to whoever needs them. A graph with
sizes that are not known is left in its own order.
"""

from __future__ import annotations

import heapq
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, fx
from torch.utils import _pytree as pytree

from loadmaster.errors import LoadmasterError
from loadmaster.importers.torch.graph import captured_of
from loadmaster.importers.torch.step import Form, Given, Trace
from loadmaster.runtime.devices import moved

SIMULATIONS = 50  # for the order of one graph: hundredths of a second, beside seconds that it takes to compile


def loadmaster(
    module: fx.GraphModule,
    inputs: Sequence[Any],
    *,
    mode: str | None = None,
    options: Mapping[str, Any] | None = None,
    **_: Any,
) -> Callable[..., Any]:
    """What torch calls with each graph. `options`: `plan` (a result or a file) and `devices`."""
    from torch._dynamo.backends.common import aot_autograd

    places = _places(options or {})

    def compiler(graph: fx.GraphModule, given: Sequence[Any]) -> Callable[..., Any]:
        ordered = memory_first(graph)
        if places is not None:
            spread(ordered, *places)
        return _boxed(ordered)

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


def memory_first(module: fx.GraphModule) -> fx.GraphModule:
    """The same graph with its ops in an order of less memory; as it is where sizes are not known, or nothing is won."""
    try:
        order = _order(module)
    except (LoadmasterError, TypeError, ValueError, KeyError, AttributeError, RuntimeError):
        return module
    place = {node: number for number, node in enumerate(order)}
    last = module.graph.output_node()
    for node in sorted(place, key=place.__getitem__):
        last.prepend(node)
    module.graph.lint()
    module.recompile()
    return module


def _order(module: fx.GraphModule) -> list[fx.Node]:
    """Its nodes but for placeholders and output, those that are no ops right after what they show."""
    from loadmaster.cost import price
    from loadmaster.runtime.apply import stand_in_cluster
    from loadmaster.search import Budget, solve

    trace = _trace(module)
    captured = captured_of(trace, "none", "graph", training=False)
    problem = price(captured.graph, stand_in_cluster(1))
    plan = solve(problem, "memory-order", Budget(None, SIMULATIONS)).plan
    rank = {problem.graph.op_name[op]: int(plan.rank[op]) for op in range(problem.num_ops)}
    return _by_rank(module.graph, rank)


def _trace(module: fx.GraphModule) -> Trace:
    given = []
    for node in module.graph.find_nodes(op="placeholder"):
        value = node.meta.get("val")
        if not isinstance(value, Tensor) or any(not isinstance(size, int) for size in (*value.shape, *value.stride())):
            raise TypeError(f"'{node}' has no size that is known")
        given.append(Given(str(node), "input", value))
    leaves = pytree.tree_leaves(module.graph.output_node().args)
    outputs = list(dict.fromkeys(leaf for leaf in leaves if isinstance(leaf, fx.Node)))
    return Trace(module, given, outputs, {}, Form((), pytree.tree_flatten(())[1]), None)


def _by_rank(graph: fx.Graph, rank: Mapping[str, int]) -> list[fx.Node]:
    """By rank as far as what they read allows; views and getitems as soon as they can be made."""
    inside = [node for node in graph.nodes if node.op not in ("placeholder", "output")]
    number = {node: index for index, node in enumerate(inside)}
    left = {node: sum(read in number for read in node.all_input_nodes) for node in inside}

    def key(node: fx.Node) -> tuple[int, int]:
        return rank.get(node.name, -1), number[node]

    ready = [(key(node), node.name, node) for node in inside if not left[node]]
    heapq.heapify(ready)
    order = []
    while ready:
        node = heapq.heappop(ready)[2]
        order.append(node)
        for user in node.users:
            if user in left:
                left[user] -= 1
                if not left[user]:
                    heapq.heappush(ready, (key(user), user.name, user))
    return order


Places = tuple[Mapping[str, int], Sequence[torch.device]]


def _places(options: Mapping[str, Any]) -> Places | None:
    """Device of each module path, and a torch device for each device."""
    if "plan" not in options:
        return None
    from loadmaster.runtime.placing import module_devices

    return module_devices(options["plan"], options.get("devices"))


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
