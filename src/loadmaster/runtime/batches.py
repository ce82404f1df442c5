"""The tensors of a batch, in the form of the capture; what a step would read as something else is refused."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils import _pytree as pytree

from loadmaster.errors import InvalidSetting
from loadmaster.importers.torch.arguments import joined, seen_inside
from loadmaster.importers.torch.graph import CapturedStep
from loadmaster.importers.torch.step import Given, Place
from loadmaster.runtime.contract import refuse_input

_WHERE = "the inputs of the step"
_LAYOUT = {"is_contiguous", "stride", "storage_offset", "is_conj", "is_neg", "_version"}


def tensors_of_batch(
    captured: CapturedStep,
    named: Mapping[str, Tensor],
    args: tuple[Any, ...],
    kwargs: Mapping[str, Any],
    words: Collection[str] = (),
) -> dict[int, Tensor]:
    """By their number among the given ones; `named`: the module's own; `words`: of the model's code, which may ask for
    strides or for what hangs on a tensor. Another form of batch is refused."""
    form, given = captured.trace.inputs, captured.trace.given
    inputs = joined(args, kwargs)
    if not kwargs and len(args) == 1 and isinstance(args[0], dict) and form.shape.type is dict:
        inputs = args[0]
    leaves, shape = pytree.tree_flatten(inputs)
    if shape != form.shape:
        with seen_inside(inputs):
            leaves, shape = pytree.tree_flatten(inputs)
    if shape != form.shape:
        what = f"a batch of the form {_text(shape)} was given to a step captured for {_text(form.shape)}"
        raise InvalidSetting(what, _WHERE, "give inputs as they were when the model was captured")
    found: dict[int, Tensor] = {}
    for leaf, place in zip(leaves, form.leaves, strict=True):
        if isinstance(place, Place) and isinstance(leaf, Tensor):
            own = named.get(given[place.index].name) if given[place.index].role != "input" else None
            _check_tensor(leaf, given[place.index], own, found.get(place.index, leaf), captured.training)
            if words:
                _refuse_asked(leaf, given[place.index], words)
            found[place.index] = leaf
        elif isinstance(leaf, Tensor) or type(leaf) is not type(place) or not _is(leaf, place):
            what = f"{leaf!r} was given where the step was captured with {place!r}"
            raise InvalidSetting(what, _WHERE, "capture and plan with this input")
    return found


def _check_tensor(leaf: Tensor, given: Given, own: Tensor | None, before: Tensor, training: bool) -> None:
    """`own`: the weight or buffer that it was at capture; `before`: what came for the same tensor in this batch."""
    fake = given.fake
    if leaf.shape != fake.shape or leaf.dtype != fake.dtype:
        shown = f"{dtype_text(leaf.dtype)}{list(leaf.shape)}", f"{dtype_text(fake.dtype)}{list(fake.shape)}"
        what = f"{given.name} is {shown[0]}, but the step was captured with {shown[1]}"
        raise InvalidSetting(what, _WHERE, "a plan is for one shape: plan again for this one")
    if before is not leaf:
        what = f"{given.name} was one tensor given twice when the step was captured, and is two tensors now"
        raise InvalidSetting(what, _WHERE, "plan with two different tensors as example inputs")
    if own is not None and leaf is not own:
        what = f"the step was captured with the module's own '{given.name}' as an input, and got another tensor"
        raise InvalidSetting(what, _WHERE, "plan with a tensor of its own as example input: .clone()")
    if type(leaf) not in (Tensor, nn.Parameter, nn.Buffer) or leaf.requires_grad:
        refuse_input(leaf, training)


def _refuse_asked(leaf: Tensor, given: Given, words: Collection[str]) -> None:
    """What code may ask of a tensor besides its values, shape and type."""
    if not _LAYOUT.isdisjoint(words) and _layout(leaf) != _layout(given.fake):
        what = f"{given.name} is laid out in memory otherwise than at capture, and the model asks how"
        raise InvalidSetting(what, _WHERE, "give it as x.resolve_conj().contiguous(), also as example input")
    if hung := [key for key in vars(leaf) if key in words]:
        what = f"{given.name} has an attribute '{hung[0]}', which the model reads and a step does not"
        raise InvalidSetting(what, _WHERE, "give it to the module as an input of its own")


def _layout(tensor: Tensor) -> tuple[Any, ...]:
    return tensor.stride(), tensor.storage_offset(), tensor.is_conj(), tensor.is_neg()


def dtype_text(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


def _is(leaf: Any, place: Any) -> bool:
    if isinstance(leaf, (float, complex)):
        return repr(leaf) == repr(place)  # -0.0 is another number, and nan is the same
    try:
        return bool(leaf == place)
    except Exception:  # an array has no one answer
        return False


def _text(shape: pytree.TreeSpec) -> str:
    return " ".join(str(shape).split())
