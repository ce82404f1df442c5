"""What no capture can follow, said before torch says it in words of its own."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.utils import _pytree as pytree

from loadmaster.errors import ImportFailed

_PACKED = ("torch.ao.nn.quantized", "torch.ao.nn.intrinsic.quantized", "torch.ao.nn.sparse.quantized")
_NESTED = "a nested (jagged) tensor, whose sizes depend on the data", "pad to one length, and mask what is padding"
# Parts of torch's message, what it means, and what to do.
_KNOWN_FAILURES = (
    ("symbolically trace a dynamo-optimized function", "it calls a function compiled by torch.compile",
     "call the function itself, without torch.compile"),
    ("igher order operator", "it chooses a branch or a number of rounds by data (torch.cond, while_loop, map)",
     "choose in Python before, or compute both branches and take torch.where"),
    ("nested_tensor", f"it makes {_NESTED[0]}", _NESTED[1]),
    ("NestedInt", f"it makes {_NESTED[0]}", _NESTED[1]),
)  # fmt: skip


def refuse_uncapturable(module: nn.Module, inputs: Any, label: str) -> None:
    """Refuses layers whose weights are packed, and inputs without a fixed shape.

    Raises:
        ImportFailed: with the layer or the input, and what to give instead.
    """
    for name, part in module.named_modules():
        if type(part).__module__.startswith(_PACKED):
            what = f"layer '{name}' ({type(part).__name__}) holds packed weights, which have no sizes"
            fix = "capture the module before it is quantized, or quantize it with torchao, whose weights are tensors"
            raise ImportFailed(what, label, fix)
        if isinstance(part, torch.jit.ScriptModule):
            what = f"layer '{name}' ({part.original_name}) is TorchScript, whose code is not Python's any more"
            raise ImportFailed(what, label, "give the layer as it was before torch.jit")
        if "_orig_mod" in part._modules or part._compiled_call_impl is not None:
            what = f"layer '{name}' ({type(part).__name__}) is compiled by torch.compile"
            raise ImportFailed(what, label, "load and apply the model without it: a plan has kernels of its own")
    for leaf in pytree.tree_leaves(inputs):
        if isinstance(leaf, Tensor) and leaf.is_nested:
            raise ImportFailed(f"an input is {_NESTED[0]}", label, _NESTED[1])


def known_failure(cause: BaseException) -> tuple[str, str] | None:
    """What a message of torch means, and what to do; None where it says so itself."""
    return next(((what, fix) for words, what, fix in _KNOWN_FAILURES if words in str(cause)), None)
