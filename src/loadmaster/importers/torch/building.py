"""Calls a function that builds a module, without the memory of its tensors.

What such functions do to a module they have built works as on a machine with room and a GPU: `.half()`, `.to(dtype)`,
`.cuda()`, `device="cuda"`. Devices do not matter here, since the plan decides them: everything is built for the CPU.
"""

from __future__ import annotations

import math
import os
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Any

import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensor
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

from loadmaster.errors import ImportFailed
from loadmaster.importers.torch.origin import line_of_failure
from loadmaster.importers.torch.values import ValueMode, ValueReads

_CHECKED_BYTES = 2**24  # allocations below this are not looked at one by one
_SHARE_OF_MEMORY = 0.8  # of what is free: a build makes more than its weights


def built(build: Callable[[], Any], label: str) -> Any:
    """What `build` returns, with tensors that have no memory. Where that cannot be done it is called again for real,
    after a warning, and stopped before it takes more memory than there is."""
    mode = ValueMode()
    try:
        with without_memory(mode):
            return build()
    except ImportFailed:
        raise
    except Exception as error:
        reason = (str(error).strip() or type(error).__name__).splitlines()[0]
        line = line_of_failure(error)
        where = f"{label}, {line}" if line else label
    if made_for_torch(mode):
        warnings.warn(
            f"{where}: cannot be built without memory ({reason}); built for real, which takes that of its weights",
            stacklevel=3,
        )
    with _Bounded(label):
        return build()


def made_for_torch(mode: ValueMode) -> bool:
    """Whether any tensor was made before it failed: what never touched torch fails for reasons of its own."""
    return mode.num_calls > 0


@contextmanager
def without_memory(mode: ValueMode) -> Iterator[None]:
    """Within the block, modules are built without memory for their tensors, on whatever device they ask for."""
    with mode, ValueReads(mode), _OnCpu(), _converted_one_by_one():
        yield


class _OnCpu(TorchFunctionMode):
    """Whatever device is named, the CPU is taken: fake tensors of others cannot be traced with gradients."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if func is Tensor.__deepcopy__ and isinstance(args[0], FakeTensor):
            return _deep_copy(*args)
        if func in (Tensor.cuda, Tensor.xpu) and isinstance(args[0], Tensor):
            return args[0]
        if func in (nn.Module.to, Tensor.to) or "device" in kwargs or func is torch.empty:
            args = tuple(args[:1]) + tuple(_cpu_for(value) for value in args[1:])
            kwargs = {name: _cpu_for(value) if name == "device" else value for name, value in kwargs.items()}
        return func(*args, **kwargs)


def _deep_copy(tensor: FakeTensor, memo: dict[int, Any]) -> Tensor:
    """As `copy.deepcopy` does with a real tensor: torch would build a fake one by parts that it lacks."""
    if id(tensor) not in memo:
        made = tensor.detach().clone()
        if isinstance(tensor, nn.Parameter):
            made = nn.Parameter(made, tensor.requires_grad)
        memo[id(tensor)] = made.requires_grad_(tensor.requires_grad)
    copied: Tensor = memo[id(tensor)]
    return copied


def _cpu_for(value: Any) -> Any:
    """The CPU in place of a device; anything else as it is. The device "meta" has no memory already, and stays."""
    if isinstance(value, bool) or not isinstance(value, (str, int, torch.device)):
        return value
    if isinstance(value, int):
        return value
    try:
        return value if torch.device(value).type == "meta" else torch.device("cpu")
    except RuntimeError:
        return value


@contextmanager
def _converted_one_by_one() -> Iterator[None]:
    """`module.half()` and the like put new parameters in place of the old, each once however many modules share it.
    torch would swap the memory of the two, which fake tensors do not have."""
    plain_apply, plain_to, plain_cuda = nn.Module._apply, nn.Module.to, nn.Module.cuda

    def apply(self: nn.Module, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> nn.Module:
        done: dict[int, tuple[Tensor, Tensor]] = {}  # with the old one, so that no other gets its id

        def once(old: Tensor) -> Tensor:
            if id(old) not in done:
                with torch.no_grad():
                    new = fn(old)
                if isinstance(old, nn.Parameter):
                    new = nn.Parameter(new, requires_grad=old.requires_grad)
                done[id(old)] = old, new
            return done[id(old)][1]

        for module in self.modules() if recurse else (self,):
            stores: tuple[dict[str, Any], ...] = (module._parameters, module._buffers)
            for store in stores:
                store.update({name: once(value) for name, value in store.items() if value is not None})
        return self

    def to(self: nn.Module, *args: Any, **kwargs: Any) -> nn.Module:
        return plain_to(self, *map(_cpu_for, args), **{n: _cpu_for(v) for n, v in kwargs.items()})

    of_torch: Any = nn.Module
    of_torch._apply, of_torch.to, of_torch.cuda = apply, to, lambda self, device=None: self
    try:
        yield
    finally:
        of_torch._apply, of_torch.to, of_torch.cuda = plain_apply, plain_to, plain_cuda


class _Bounded(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Stops a real build before an allocation that does not fit into the memory that is free."""

    def __init__(self, label: str) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.label = label

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        size = args[0] if args and isinstance(args[0], (list, tuple, torch.Size)) else None
        if size is not None and all(isinstance(n, int) for n in size):
            dtype = kwargs.get("dtype") or torch.get_default_dtype()
            self._check(math.prod(size) * dtype.itemsize)
        return func(*args, **kwargs)

    def _check(self, nbytes: int) -> None:
        if nbytes < _CHECKED_BYTES:
            return
        free = _free_bytes()
        if nbytes > _SHARE_OF_MEMORY * free:
            what = f"'{self.label}' needs {nbytes / 2**30:.1f} GiB for one tensor, and {free / 2**30:.1f} GiB are free"
            fix = "build it from a smaller config, or without code that asks for the device or the address of a tensor"
            raise ImportFailed(what, self.label, fix)


def _free_bytes() -> int:
    with suppress(OSError), open("/proc/meminfo") as file:  # Linux: what can be had without swapping
        for line in file:
            if line.startswith("MemAvailable:"):
                return int(line.split()[1]) * 1024
    return os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
