"""Captures a torch module as a Graph: one step of inference, or of training with Adam or SGD.

Nothing is computed and no tensor is copied: the step is traced on fake tensors, so that a model of any size is captured
in the memory of its graph alone. This package is the only importer that needs torch.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import DataDependentOutputException, DynamicOutputShapeException
from torch.utils import _pytree as pytree

from loadmaster.errors import ImportFailed, LoadmasterError, UnknownName
from loadmaster.graph import Graph
from loadmaster.importers.torch.arguments import as_arguments
from loadmaster.importers.torch.building import without_memory
from loadmaster.importers.torch.graph import OPTIMIZER_STATE, CapturedStep, captured_of
from loadmaster.importers.torch.origin import Origins, line_of_failure
from loadmaster.importers.torch.refusals import known_failure, refuse_uncapturable
from loadmaster.importers.torch.step import Target, fake_mode, trace_step
from loadmaster.importers.torch.twin import switch

Build = Callable[[bool], tuple[nn.Module, Any]]


def capture(
    module: nn.Module,
    inputs: Any,
    *,
    training: bool,
    optimizer: str = "adam",
    name: str = "",
    target: Target | None = None,
) -> Graph:
    """The graph of one step of a module.

    When training, the step is forward, backward and the update of every weight that needs a gradient. The loss is the
    module's output if that is a single number, or its `loss`, else the sum of the means of its float tensors. Nothing
    of the size of a tensor is allocated.

    Args:
        module: its weights may be without memory.
        inputs: examples: a tuple of positional ones, a dict of named ones, or both as ((...), {...}); sizes are theirs.
        training: with backward pass and updates.
        optimizer: that updates: adam, adamw, sgd, or none.
        name: of the graph.
        target: who runs the step: the kernels of attention depend on it.

    Raises:
        ImportFailed: the module cannot be traced; the error has its line.
    """
    return capture_step(module, inputs, training=training, optimizer=optimizer, name=name, target=target).graph


def capture_step(
    module: nn.Module,
    inputs: Any,
    *,
    training: bool,
    optimizer: str = "adam",
    name: str = "",
    target: Target | None = None,
) -> CapturedStep:
    """As `capture`, with the traced step kept beside its graph so that it can be run."""
    module = getattr(module, "_orig_mod", module)  # inside what torch.compile returns
    if not isinstance(module, nn.Module) or isinstance(module, torch.jit.ScriptModule):
        what = f"a {type(module).__name__} was given where a plain torch.nn.Module is needed"
        raise ImportFailed(what, name or "capture", "give the module itself, and its inputs beside it")
    if optimizer not in OPTIMIZER_STATE:
        raise UnknownName.among("optimizer to capture", optimizer, OPTIMIZER_STATE)
    label = name or type(module).__name__
    origins = Origins()
    refuse_uncapturable(module, inputs, label)
    with _explained(label, module, origins):
        trace = trace_step(module, as_arguments(inputs, label), training, origins, target)
        captured = captured_of(trace, optimizer, label, training)
    if target is None or not target.gpu:
        return captured
    return replace(captured, graph=replace(captured.graph, captured={**captured.graph.captured, "gpu": True}))


def capture_fake(
    build: Build, *, training: bool, optimizer: str = "adam", name: str = "", target: Target | None = None
) -> Graph:
    """`capture` of what `build(training)` returns, a module and its inputs, built without memory."""
    label = name or getattr(build, "__name__", "model")
    with _explained(label, None, Origins()), without_memory(fake_mode()):
        module, inputs = build(training)
    return capture(module, inputs, training=training, optimizer=optimizer, name=name, target=target)


@contextmanager
def switched(module: nn.Module, training: bool) -> Iterator[None]:
    """The module in training or evaluation mode; one that is in it already may keep parts of itself in the other."""
    modes = [(part, part.training) for part in module.modules()]
    try:
        switch(module, training)
        yield
    finally:
        for part, mode in modes:
            part.training = mode


@contextmanager
def _explained(label: str, module: nn.Module | None, origins: Origins) -> Iterator[None]:
    """Turns whatever torch or the model's own code raises into an error that says where in the model; torch's own lines
    about it are not shown."""
    try:
        with _unlogged():
            yield
    except LoadmasterError:
        raise
    except Exception as cause:
        reason = (str(cause).strip() or type(cause).__name__).splitlines()[0]
        inside = f"module '{origins.calls[-1]}'" if origins.calls and origins.calls[-1] else ""
        where = ", ".join(part for part in (label, inside, line_of_failure(cause)) if part)
        doing = "could not be built" if module is None else "could not be traced"
        reason, fix = known_failure(cause) or (reason, _advice(cause, inside))
        raise ImportFailed(f"{label} {doing}: {reason}", where, fix) from cause


@contextmanager
def _unlogged() -> Iterator[None]:
    """Without log lines of torch, which has a traceback for every op that it cannot trace; TORCH_LOGS shows them."""
    names = [] if "TORCH_LOGS" in os.environ else [name for name in logging.root.manager.loggerDict if _is_torchs(name)]
    before = [(handler, handler.level) for name in names for handler in logging.getLogger(name).handlers]
    try:
        for handler, _ in before:
            handler.setLevel(logging.CRITICAL + 1)
        yield
    finally:
        for handler, level in before:
            handler.setLevel(level)


def _is_torchs(name: str) -> bool:
    return name == "torch" or name.startswith("torch.")


def _advice(cause: Exception, inside: str) -> str:
    data_dependent = isinstance(cause, (DataDependentOutputException, DynamicOutputShapeException))
    if data_dependent or "value out of a tracing tensor" in str(cause) or "data-dependent" in str(cause).lower():
        known = (
            "the model branches on, or takes a size from, the value of a tensor, which is not known without its weights"
        )
        if "expert" in inside or "moe" in inside.lower():
            return f"{known}; set model.config._experts_implementation = 'grouped_mm'"
        return (
            f"{known}; build it for real from a small config and load(module, inputs=...), or make that a setting of it"
        )
    if "Sparse" in str(cause):
        return "sparse tensors have no size known in advance; build embeddings with sparse=False"
    if isinstance(cause, (TypeError, RuntimeError, ValueError, IndexError)):
        return "check that the module runs on inputs of these shapes and types"
    return "check that the module runs eagerly"


@contextmanager
def default_dtype(name: str | None) -> Iterator[None]:
    """Tensors made meanwhile are of that type; fake ones cannot be converted afterwards."""
    before = torch.get_default_dtype()
    if name is not None:
        torch.set_default_dtype(_float_type(name))
    try:
        yield
    finally:
        torch.set_default_dtype(before)


FLOATS = ("float32", "bfloat16", "float16", "float64")


def _float_type(name: str) -> torch.dtype:
    if name not in FLOATS:
        raise UnknownName.among("type to capture in", name, FLOATS, "--dtype")
    found: torch.dtype = getattr(torch, name)
    return found


def with_batch(inputs: Any, size: int, label: str) -> Any:
    """Inputs with their first dimension at that size: rows are repeated, or left out."""
    tensors = [leaf for leaf in pytree.tree_leaves(inputs) if isinstance(leaf, Tensor) and leaf.dim()]
    sizes = {tensor.shape[0] for tensor in tensors}
    if len(sizes) != 1:
        what = f"the inputs have {sorted(sizes)} rows, so there is no one batch to change"
        raise ImportFailed(what, label, "give the batch in the function that builds the model")
    (rows,) = sizes

    def resized(tensor: Tensor) -> Tensor:
        return tensor if not tensor.dim() else tensor.repeat(-(-size // rows), *[1] * (tensor.dim() - 1))[:size].clone()

    return pytree.tree_map_only(Tensor, resized, inputs)
