"""Traces one step of a torch module (forward, or forward and backward) on fake tensors, which have no memory.

The optimizer's update is not traced: `graph` adds one op per weight, as a fused optimizer launches it. The
backward op of a convolution is traced as its two halves, as GPU libraries run it and as products are traced already.
"""

from __future__ import annotations

import dataclasses
import operator
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, fx, nn
from torch._dispatch.python import enable_python_dispatcher
from torch._ops import OpOverload
from torch._subclasses.fake_tensor import FakeTensor
from torch.fx.experimental.proxy_tensor import get_proxy_mode, make_fx
from torch.utils import _pytree as pytree

from loadmaster.errors import ImportFailed
from loadmaster.importers.torch.arguments import Inputs, seen_inside, split
from loadmaster.importers.torch.attention import GpuAttention
from loadmaster.importers.torch.caches import Surroundings
from loadmaster.importers.torch.dropout import IdleDropout
from loadmaster.importers.torch.interrupts import waiting_interrupts
from loadmaster.importers.torch.mutation import writes_only_given
from loadmaster.importers.torch.origin import Origins, origin_of
from loadmaster.importers.torch.recurrent import dropout_between_layers
from loadmaster.importers.torch.twin import Fakes, Twins, held_by, switch
from loadmaster.importers.torch.values import ValueMode, ValueReads, answering, fixed_draws, traced, warn_of_values

_convolution_backward = torch.ops.aten.convolution_backward.default


@dataclass(frozen=True)
class Cut:
    """A part of a tensor: of each block of a dimension the same one.

    Attributes:
        dim: of the tensor.
        blocks: that the dimension is made of.
        part, parts: which of how many, of each block.
    """

    dim: int
    blocks: int
    part: int
    parts: int

    def of(self, whole: Tensor) -> Tensor:
        pieces = [whole.narrow(self.dim, *place) for place in self._places(whole)]
        return torch.cat(pieces, self.dim) if len(pieces) > 1 else pieces[0].clone()

    def put(self, share: Tensor, whole: Tensor) -> None:
        """Back to where it came from."""
        for piece, place in zip(share.chunk(self.blocks, self.dim), self._places(whole), strict=True):
            whole.narrow(self.dim, *place).copy_(piece)

    def _places(self, whole: Tensor) -> list[tuple[int, int]]:
        block = whole.shape[self.dim] // self.blocks
        size = block // self.parts
        return [(number * block + self.part * size, size) for number in range(self.blocks)]


@dataclass(frozen=True)
class Given:
    """A tensor that the step is given: a weight, a buffer or an input.

    Attributes:
        name: in the module, or of the argument.
        role: "weight", "buffer" or "input".
        fake: a tensor like it, without memory.
        copy_of: a weight that a plan has several times over, or in parts: the name of the module's own.
        cut: which part of it.
    """

    name: str
    role: str
    fake: Tensor
    copy_of: str = ""
    cut: Cut | None = None


@dataclass(frozen=True)
class Place:
    """Stands for a tensor inside inputs or a result: its number among the given ones or the outputs."""

    index: int


@dataclass(frozen=True)
class Form:
    """Nested tensors with a Place where each tensor was: the form of a step's inputs, or of its result.

    Attributes:
        made: a result that is a dataclass is flattened by its fields, and made again by its class.
    """

    leaves: Sequence[Any]
    shape: pytree.TreeSpec
    made: Any = None

    @classmethod
    def of_result(cls, result: Any, outputs: Sequence[Tensor]) -> Form:
        number = {id(tensor): index for index, tensor in enumerate(outputs)}
        leaves, shape = pytree.tree_flatten(_fields(result))
        places = [Place(number[id(leaf)]) if isinstance(leaf, Tensor) else leaf for leaf in leaves]
        return cls(places, shape, type(result) if _is_dataclass(result) else None)

    def filled(self, tensors: Sequence[Any], other: Callable[[Any], Any] = lambda leaf: leaf) -> Any:
        """The same nesting around these tensors, and what `other` makes of each leaf that is none."""
        leaves = [tensors[leaf.index] if isinstance(leaf, Place) else other(leaf) for leaf in self.leaves]
        value = pytree.tree_unflatten(leaves, self.shape)
        return value if self.made is None else self.made(**value)


@dataclass(frozen=True)
class Trace:
    """A traced step. Its graph starts with one placeholder per given tensor, in the same order.

    Attributes:
        module: the traced graph.
        given: weights, buffers and inputs, in the order of the placeholders.
        outputs: nodes that are returned.
        gradients: by the name of the weight, where there is one.
        inputs: the form in which a batch comes.
        result: of an inference; a training step returns its loss.
        truths: of the last outputs, each one truth value that the module looked at: what it was, and the line.
    """

    module: fx.GraphModule
    given: Sequence[Given]
    outputs: Sequence[fx.Node]
    gradients: Mapping[str, fx.Node]
    inputs: Form
    result: Form | None
    truths: tuple[tuple[bool, str], ...] = ()


@dataclass(frozen=True)
class Target:
    """Who runs a traced step. `gpu`: a CUDA device, which has other kernels for attention than a CPU. `keep`: the
    caller holds on to all that the module returns, as `out = module(x); out.loss.backward()` does, and not to the loss
    alone. `masks`: transformers builds the masks that it builds whenever it is traced, also those that it leaves out
    where it sees that they are all ones. `traced`: the step is one that torch.compile traced or a CUDA graph recorded:
    transformers then builds masks even where none is given. `copies`: dropout that drops nothing makes a copy, which no
    real step does."""

    gpu: bool = False
    keep: bool = False
    masks: bool = False
    traced: bool = False
    copies: bool = False


def fake_mode() -> ValueMode:
    """What traces run under: tensors without memory whose values are known where they must be."""
    return ValueMode()


def trace_step(
    module: nn.Module, inputs: Inputs, training: bool, origins: Origins, target: Target | None = None
) -> Trace:
    """One step of `module` on `inputs`. Neither is written to, and nothing of the size of a tensor is allocated.
    `target`: what runs the step, and what its caller keeps."""
    mode = _mode_of(module, inputs)
    with waiting_interrupts(), mode.forgetting(), fixed_draws(), seen_inside(inputs):
        with Surroundings(module) as caches:
            trace = _trace(mode, module, inputs, training, origins, target or Target())
        if caches.read:
            with Surroundings(module):
                trace = _trace(mode, module, inputs, training, origins, target or Target())
        warn_of_values(mode.asked, type(module).__name__)
    return trace


def _trace(
    mode: ValueMode, module: nn.Module, inputs: Inputs, training: bool, origins: Origins, target: Target
) -> Trace:
    step = _Step.of(module, inputs, training, Fakes(mode), origins)
    fakes = [given.fake for given in step.given]
    # The Python dispatcher has the decompositions by which torch.compile traces: dropout is one op as on a GPU,
    # recurrent layers are unrolled unless oneDNN takes them, and batch norm says that it writes to its statistics.
    step.keep, step.mode, step.casts_once = target.keep, mode, torch.is_autocast_cache_enabled()
    watching = origins.watching(step.twin)
    with mode, enable_python_dispatcher(), _without_onednn(), watching, as_run(mode, target):
        halves = {_convolution_backward: _halves}
        traced = make_fx(step, decomposition_table=halves, _allow_non_fake_inputs=True)(*fakes)
    _tidy(traced)
    if not writes_only_given(traced.graph):
        traced = _without_writes(traced, fakes, mode, origins)
    _give_back(traced, step.twins.originals)
    return step.finish(traced)


def _give_back(traced: fx.GraphModule, originals: Mapping[int, Any]) -> None:
    """Puts the module's own constants and generators in the place of their twins: those are what the step runs with."""
    for node in traced.graph.nodes:
        if node.op == "get_attr":
            name = str(node.target)
            made = getattr(traced, name)
            if isinstance(made, FakeTensor) and id(made) not in originals:
                what = "a tensor of the step was computed where it cannot be followed, as in another thread"
                raise ImportFailed(what, f"a tensor of shape {list(made.shape)}", "compute it in the thread of forward")
            own = originals.get(id(made), made)
            setattr(traced, name, own)
            if isinstance(own, torch.Generator):  # an argument, and no tensor
                node.meta["generator"] = own
        found = {key: _generator(value, originals) for key, value in node.kwargs.items()}
        if any(found.values()):
            node.kwargs = {**node.kwargs, **{key: own for key, own in found.items() if own is not None}}
    for node in [node for node in traced.graph.nodes if "generator" in node.meta]:
        traced.graph.erase_node(node)


def _generator(value: Any, originals: Mapping[int, Any]) -> torch.Generator | None:
    """The module's own, where an argument is a twin of it."""
    if isinstance(value, fx.Node):
        return value.meta.get("generator")
    return originals.get(id(value), value) if isinstance(value, torch.Generator) else None


def _halves(*args: Any) -> Any:
    """The gradient of a convolution's input, for which earlier layers wait, apart from those of its weight and bias,
    for which only the update does. NotImplemented leaves the op whole."""
    *operands, (of_input, of_weight, of_bias) = args
    if not (of_input and of_weight):
        return NotImplemented
    gradient, _, _ = _convolution_backward(*operands, [True, False, False])
    return gradient, *_convolution_backward(*operands, [False, True, of_bias])[1:]


@contextmanager
def as_run(mode: ValueMode, target: Target) -> Iterator[None]:
    """While it is entered, a module called on fake tensors issues the ops that it would issue on real ones there."""
    attention = GpuAttention() if target.gpu else nullcontext()
    answers = traced() if target.traced else nullcontext() if target.masks else answering(mode)
    dropout = nullcontext() if target.copies else IdleDropout()
    with attention, dropout, dropout_between_layers(), ValueReads(mode), answers:
        yield


@contextmanager
def _without_onednn() -> Iterator[None]:
    enabled = torch._C._get_mkldnn_enabled()  # torch.backends.mkldnn.flags() would warn about Intel GPUs
    torch._C._set_mkldnn_enabled(False)
    try:
        yield
    finally:
        torch._C._set_mkldnn_enabled(enabled)


@dataclass
class _Step:
    """The step as a function of the given tensors alone, which is what make_fx traces."""

    twin: nn.Module  # of the module, around the fakes of what is given
    twins: Twins
    training: bool
    origins: Origins
    given: list[Given]
    inputs: Form
    # After tracing:
    learned: list[str] = field(default_factory=list)  # weights with a gradient
    num_outputs: int = 0
    keep: bool = False
    mode: ValueMode = field(default_factory=fake_mode)
    truths: list[tuple[bool, str]] = field(default_factory=list)
    casts_once: bool = True  # autocast casts a weight once, whoever reads it
    result: Form | None = None

    @classmethod
    def of(cls, module: nn.Module, inputs: Inputs, training: bool, fakes: Fakes, origins: Origins) -> _Step:
        weights = [part for named in module.named_parameters() for part in held_by(*named)]
        buffers = [part for named in module.named_buffers() for part in held_by(*named)]
        given = [Given(name, "weight", fakes(weight, learned=training)) for name, weight in weights]
        given += [Given(name, "buffer", fakes(buffer)) for name, buffer in buffers]
        place = {id(entry.fake): index for index, entry in enumerate(given)}
        paths, shape = pytree.tree_flatten_with_path(inputs)
        leaves: list[Any] = []
        for path, leaf in paths:
            if isinstance(leaf, Tensor):
                fake = fakes(leaf)
                if place.setdefault(id(fake), len(given)) == len(given):
                    given.append(Given(f"input{pytree.keystr(path)}", "input", fake))
                leaf = Place(place[id(fake)])
            leaves.append(leaf)
        twins = Twins(fakes)
        twin = twins(module)
        switch(twin, training)
        return cls(twin, twins, training, origins, given, Form(leaves, shape))

    def __call__(self, *tensors: Tensor) -> list[Tensor]:
        mode = get_proxy_mode()
        assert mode is not None
        torch.set_autocast_cache_enabled(self.casts_once)  # make_fx has switched it off
        with self.origins.marking(mode.tracer.graph):
            if not self.training:
                with torch.no_grad():
                    result = self._forward(tensors)
                outputs = tensors_of(result)
                self.result = Form.of_result(result, outputs)
                return self._with_truths(outputs)
            with torch.enable_grad():
                return self._forward_backward(tensors)

    def _forward(self, tensors: Sequence[Tensor]) -> Any:
        assert all(tensor is given.fake for tensor, given in zip(tensors, self.given, strict=True))
        args, kwargs = split(self.inputs.filled(tensors, self.twins))
        return self.twin(*args, **kwargs)

    def _forward_backward(self, tensors: Sequence[Tensor]) -> list[Tensor]:
        result = self._forward(tensors)
        loss = loss_of(result, type(self.twin).__name__)
        kept = [tensor for tensor in tensors_of(result) if tensor is not loss] if self.keep else []
        if not loss.requires_grad:
            what = f"the loss of {type(self.twin).__name__} depends on no weight that needs a gradient"
            raise ImportFailed(what, "the module's output", "capture with training=False, or give it weights to learn")
        wanted = {given.name: tensor for given, tensor in zip(self.given, tensors, strict=True) if tensor.requires_grad}
        for given in self.given:
            if given.role == "input" and given.name in wanted:
                what = f"forward asks for the gradient of '{given.name}' itself, which would be left in its .grad"
                fix = "ask for that of a tensor of its own: x = x.detach().requires_grad_()"
                raise ImportFailed(what, type(self.twin).__name__, fix)
        gradients = torch.autograd.grad(loss, list(wanted.values()), allow_unused=True)
        found = {name: gradient for name, gradient in zip(wanted, gradients, strict=True) if gradient is not None}
        self.learned = list(found)
        return [*self._with_truths([loss, *kept]), *found.values()]

    def _with_truths(self, outputs: Sequence[Tensor]) -> list[Tensor]:
        """The outputs, and the truth values that decided what ran."""
        inputs = {id(given.fake) for given in self.given if given.role == "input"}
        asked = [(one, one.truth(inputs)) for one in self.mode.questions if one.line]
        found = [(one, tensor) for one, tensor in asked if tensor is not None]
        self.truths = [(bool(one.answer), one.line) for one, _ in found]
        self.num_outputs = len(outputs) + len(found)
        return [*outputs, *(tensor for _, tensor in found)]

    def finish(self, traced: fx.GraphModule) -> Trace:
        (results,) = traced.graph.output_node().args
        assert isinstance(results, (list, tuple))
        outputs = [node for node in results[: self.num_outputs] if isinstance(node, fx.Node)]
        gradients = dict(zip(self.learned, results[self.num_outputs :], strict=True))
        found = {name: gradient for name, gradient in gradients.items() if isinstance(gradient, fx.Node)}
        return Trace(traced, self.given, outputs, found, self.inputs, self.result, tuple(self.truths))


def _mode_of(module: nn.Module, inputs: Inputs) -> ValueMode:
    """That of the fake tensors it was built with, since two modes do not mix; else a new one."""
    for tensor in (*module.parameters(), *module.buffers(), *pytree.tree_leaves(inputs)):
        if isinstance(tensor, FakeTensor) and isinstance(tensor.fake_mode, ValueMode):
            return tensor.fake_mode
    return fake_mode()


def _without_writes(traced: fx.GraphModule, fakes: list[Tensor], mode: ValueMode, origins: Origins) -> fx.GraphModule:
    """The same step traced again, where an op that wrote to an activation makes a new tensor instead."""

    class Replay(fx.Interpreter):
        def run_node(self, n: fx.Node) -> Any:
            origins.replayed, mode.expected = n, n.meta.get("val")
            return super().run_node(n)

    def replay(*tensors: Tensor) -> Any:
        proxies = get_proxy_mode()
        assert proxies is not None
        with origins.marking(proxies.tracer.graph):
            return Replay(traced).run(*tensors)

    with mode, torch.no_grad():
        plain = [fake.detach() for fake in fakes]
        pure = make_fx(torch.func.functionalize(replay, remove="mutations"), _allow_non_fake_inputs=True)(*plain)
    origins.replayed = None
    _tidy(pure)
    return pure


def _tidy(traced: fx.GraphModule) -> None:
    traced.graph.eliminate_dead_code()
    for node in traced.graph.nodes:
        if (
            node.op == "call_function"
            and node.target is not operator.getitem
            and not isinstance(node.target, OpOverload)
        ):
            what = f"'{node.target}' is not an op of torch, so its cost and its memory are unknown"
            where = " at ".join(filter(None, origin_of(node)))
            raise ImportFailed(what, where, "use plain torch in place of the control flow or custom kernel behind it")
        if node.op == "get_attr":
            node.meta.setdefault("val", getattr(traced, str(node.target)))


def _is_dataclass(result: Any) -> bool:
    return dataclasses.is_dataclass(result) and not isinstance(result, type)


def _fields(result: Any) -> Any:
    if not _is_dataclass(result):
        return result
    return {entry.name: getattr(result, entry.name) for entry in dataclasses.fields(result)}


def tensors_of(result: Any) -> list[Tensor]:
    """Every tensor of a module's result, in order, each once."""
    leaves = [leaf for leaf in pytree.tree_leaves(_fields(result)) if isinstance(leaf, Tensor)]
    return list({id(leaf): leaf for leaf in leaves}.values())


def loss_of(result: Any, name: str) -> Tensor:
    """The result if it is one number, its `loss` if it has one, else the sum of the means of its float tensors."""
    given = result.get("loss") if isinstance(result, Mapping) else getattr(result, "loss", None)
    loss = result if isinstance(result, Tensor) else given
    if isinstance(loss, Tensor) and loss.numel() == 1:
        return loss if loss.dim() == 0 else loss.reshape(())
    means = [tensor.mean() for tensor in tensors_of(result) if tensor.is_floating_point()]
    if not means:
        what = f"{name} returns no float tensor, so there is no loss to train on"
        raise ImportFailed(
            what, f"it returns a {type(result).__name__}", "return a loss, or capture with training=False"
        )
    return sum(means[1:], means[0])
