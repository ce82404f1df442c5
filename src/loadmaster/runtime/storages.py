"""The bytes of live storages during a step on the CPU, counted op by op.

By weak references to storages, as torch dispatches: what eager torch really holds, to set beside what a plan holds.
"""

from __future__ import annotations

import gc
import weakref
from typing import Any

from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves


class LiveStorages(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Counts every storage from the op that makes it, or first reads it, until it is freed."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.live_bytes = 0
        self.peak_bytes = 0
        self._known: dict[int, int] = {}

    def __enter__(self) -> LiveStorages:
        gc.collect()
        super().__enter__()  # type: ignore[no-untyped-call]
        return self

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        for value in tree_leaves((args, kwargs)):
            self._count(value)
        result = func(*args, **(kwargs or {}))
        for value in tree_leaves(result):
            self._count(value)
        self.peak_bytes = max(self.peak_bytes, self.live_bytes)
        return result

    def _count(self, value: Any) -> None:
        if not isinstance(value, Tensor):
            return
        storage = value.untyped_storage()
        key = storage._cdata
        if key in self._known:
            return
        self._known[key] = storage.nbytes()
        self.live_bytes += storage.nbytes()
        weakref.finalize(storage, self._free, key)

    def _free(self, key: int) -> None:
        self.live_bytes -= self._known.pop(key, 0)
