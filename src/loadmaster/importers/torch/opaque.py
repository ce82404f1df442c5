"""Ops whose arithmetic torch does not tell: custom ops, and iterations that end when they converge.

They count their bytes and one operation for each element, and are marked as assumed, unless their author says more.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from torch._ops import OpOverload, OpOverloadPacket
from torch.utils.flop_counter import flop_registry

from loadmaster.errors import InvalidSetting, kind_of

_KNOWN_LIBRARIES = {"aten", "prims", "prim", "_c10d_functional", "c10d_functional", "quantized", "quantized_decomposed"}
_ITERATIVE = {"_linalg_svd", "_linalg_eigh", "linalg_eig", "_linalg_eigvals", "linalg_matrix_exp", "linalg_lstsq"}

_TOLD: dict[str, Callable[..., int]] = {}  # by qualified name, such as "mine::product"


def cost_of(op: Any, flops: Callable[..., int]) -> None:
    """Tells how many floating-point operations an op of your own takes.

    >>> import loadmaster as lm
    >>> lm.cost_of("mine::product", lambda a, b: 2 * a.numel() * b.shape[-1])

    Args:
        op: what `torch.library.custom_op` returned, an op of `torch.ops`, or its name: "mine::product".
        flops: called with the op's own arguments, tensors without values; it returns a whole number.

    Raises:
        InvalidSetting: `op` names no op, or `flops` cannot be called.
    """
    name = op if isinstance(op, str) else _name_of(op)
    if name is None or "::" not in name:
        raise InvalidSetting(
            f"{name or kind_of(op)} names no op", "cost_of", "give an op of torch.ops, or 'library::name'"
        )
    if not callable(flops):
        raise InvalidSetting(f"flops is {kind_of(flops)}", "cost_of", "give a function of the op's arguments")
    _TOLD[name] = flops


def told_flops(op: OpOverload, args: Sequence[Any], kwargs: Mapping[str, Any]) -> int | None:
    """What its author said, None where nobody did."""
    found = _TOLD.get(op._schema.name)
    return None if found is None else max(0, int(found(*args, **kwargs)))


def is_opaque(op: OpOverload) -> bool:
    """Whether nobody has said what it computes, or how often."""
    library, _, name = op._schema.name.rpartition("::")
    if op._schema.name in _TOLD or op.overloadpacket in flop_registry:
        return False
    return library not in _KNOWN_LIBRARIES or name in _ITERATIVE


def _name_of(op: Any) -> str | None:
    if isinstance(op, OpOverload):
        return op._schema.name
    if isinstance(op, OpOverloadPacket):
        return op._qualified_op_name
    name = getattr(op, "_qualname", None)  # a CustomOpDef
    return name if isinstance(name, str) else None
