"""What decides how long a torch op takes, as text: name, shapes, strides, dtypes and attributes.

Two calls with the same signature are the same work, whatever model they come from. A signature can be called: `call_of`
makes tensors of those shapes on a device.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

# Where whole numbers are places in another argument: op, position of the indices, and how many places there are.
_PLACES: Mapping[str, tuple[int, Callable[[Sequence[Any]], int]]] = {
    "aten.embedding": (1, lambda args: args[0].shape[0]),
    "aten.embedding_dense_backward": (1, lambda args: args[2]),
    "aten.gather": (2, lambda args: args[0].shape[args[1]]),
    "aten.index_select": (2, lambda args: args[0].shape[args[1]]),
    "aten.nll_loss_forward": (1, lambda args: args[0].shape[-1]),
    "aten.nll_loss_backward": (2, lambda args: args[1].shape[-1]),
}

_TILE = 2**20  # elements drawn at random; longer tensors repeat them, since drawing is slow on a CPU


def signature_of(op: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> str:
    """Of one call; tensors may be fake."""
    return json.dumps([str(op), _write(list(args)), _write(dict(kwargs))], separators=(",", ":"))


def update_signature(optimizer: str, weight: Tensor, gradient: Tensor) -> str:
    """Of the update of one weight, which belongs to no op of torch alone."""
    return json.dumps([f"optim.{optimizer}", _write([weight, gradient]), {}], separators=(",", ":"))


def _write(value: Any) -> Any:
    if isinstance(value, Tensor):
        dtype = str(value.dtype).removeprefix("torch.")
        return {"tensor": dtype, "shape": list(map(int, value.shape)), "stride": list(map(int, value.stride()))}
    if isinstance(value, Mapping):
        return {key: _write(part) for key, part in sorted(value.items())}
    if isinstance(value, (list, tuple)):
        return [_write(part) for part in value]
    if isinstance(value, torch.device):
        return {"device": "here"}
    if isinstance(value, (torch.dtype, torch.memory_format, torch.layout)):
        return {"torch": str(value).removeprefix("torch.")}
    if isinstance(value, torch.Generator):
        return None
    if isinstance(value, float) and value in (float("inf"), float("-inf")):
        return {"float": str(value)}
    return value if isinstance(value, (bool, int, float, str, type(None))) else {"text": str(value)}


def call_of(signature: str, device: str) -> Callable[[], Any]:
    """A call of the op on tensors of its own on that device, made here and used each time."""
    name, written, named = json.loads(signature)
    if name.startswith("optim."):
        return _update(name.removeprefix("optim."), written, device)
    namespace, packet, overload = name.split(".")
    op = getattr(getattr(getattr(torch.ops, namespace), packet), overload)
    args = [_read(part, device) for part in written]
    kwargs = {key: _read(part, device) for key, part in named.items()}
    _aim(f"{namespace}.{packet}", args)
    if device.startswith("cuda"):
        _as_cuda_has_them(f"{namespace}.{packet}", args)
    return lambda: op(*args, **kwargs)


def _read(value: Any, device: str) -> Any:
    if isinstance(value, list):
        return [_read(part, device) for part in value]
    if not isinstance(value, dict):
        return value
    if "tensor" in value:
        return _tensor(getattr(torch, value["tensor"]), value["shape"], value["stride"], device)
    if "device" in value:
        return torch.device(device)
    if "torch" in value:
        return getattr(torch, value["torch"])
    return float(value["float"]) if "float" in value else value.get("text")


def _tensor(dtype: torch.dtype, shape: list[int], stride: list[int], device: str) -> Tensor:
    """Filled with what such tensors usually hold; products of zeros would run at a higher clock."""
    size = _size(shape, stride)
    if dtype.is_floating_point:
        tile = torch.empty(min(size, _TILE), dtype=dtype, device=device).normal_(std=0.5)
        flat = tile if size <= _TILE else tile.repeat(-(-size // _TILE))[:size]
    elif dtype == torch.bool:
        flat = torch.ones(size, dtype=dtype, device=device)
    else:
        flat = torch.zeros(size, dtype=dtype, device=device)
    return flat.as_strided(shape, stride)


def _size(shape: Sequence[int], stride: Sequence[int]) -> int:
    return 0 if 0 in shape else 1 + sum((n - 1) * step for n, step in zip(shape, stride, strict=True))


def _places(like: Tensor, count: int) -> Tensor:
    """Random places below `count`, laid out like that tensor."""
    flat = torch.randint(max(1, count), (_size(like.shape, like.stride()),), dtype=like.dtype, device=like.device)
    return flat.as_strided(like.shape, like.stride())


def _aim(name: str, args: list[Any]) -> None:
    """Random places where indices are wanted: equal ones would queue up at one address."""
    if name in _PLACES:
        position, count = _PLACES[name]
        args[position] = _places(args[position], int(count(args)))
    elif name in ("aten.index", "aten.index_put", "aten._unsafe_index", "aten._index_put_impl_"):
        for axis, places in enumerate(args[1]):
            if isinstance(places, Tensor) and places.dtype == torch.int64:
                args[1][axis] = _places(places, args[0].shape[axis])


# Statistics that a GPU keeps in float32 though a CPU keeps them in half precision: op, positions.
_STATISTICS: Mapping[str, tuple[int, ...]] = {
    "aten.native_layer_norm_backward": (3, 4),
    "aten.native_group_norm_backward": (2, 3),
    "aten.native_batch_norm_backward": (5, 6),
}


def _as_cuda_has_them(name: str, args: list[Any]) -> None:
    """Changes tensors that a step traced on a CPU has otherwise than a GPU."""
    for position in _STATISTICS.get(name, ()):
        if isinstance(args[position], Tensor):
            args[position] = args[position].float()
    if "efficient_attention_backward" in name:  # its random seed and offset stay on the host
        args[:] = [a.cpu() if isinstance(a, Tensor) and a.dtype == torch.int64 and not a.dim() else a for a in args]


UPDATED_TOGETHER = 8  # weights; a fused optimizer updates many in one launch


def _update(optimizer: str, written: list[Any], device: str) -> Callable[[], Any]:
    """The fused update of several such weights at once: `UPDATED_TOGETHER` times the work of one."""
    columns: list[list[Tensor]] = []
    for part in (written[0], written[1], written[0], written[0]):
        columns.append([_read(part, device) for _ in range(UPDATED_TOGETHER)])
    weights, gradients, means, squares = columns
    if optimizer == "sgd":
        return lambda: torch._foreach_add_(weights, gradients, alpha=-1e-3)
    for square in squares:
        square.abs_()
    steps = [torch.ones((), device=device) for _ in weights]
    settings: dict[str, Any] = {"lr": 1e-3, "beta1": 0.9, "beta2": 0.999, "weight_decay": 0.0, "eps": 1e-8}
    return lambda: torch._fused_adam_(
        weights, gradients, means, squares, [], steps, amsgrad=False, maximize=False, **settings
    )
