"""Where a traced op comes from: the module that issued it and the line of the model's code.

Backward ops have no module on the stack and no line of the model: they take both from the forward op whose autograd
node is running, or from what they read where none is (the gradient of the loss itself).
"""

from __future__ import annotations

import sys
import sysconfig
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import CodeType, FrameType
from typing import Any, NamedTuple

import torch
from torch import fx, nn

from loadmaster.importers.torch.interrupts import interrupt_if_asked

# Private to torch but the only way back from a running autograd node to the forward op (torch 2.6 to 2.13).
_next_sequence_number = torch._C._autograd._get_sequence_nr
_running_autograd_node = torch._C._current_autograd_node

_TORCH = str(Path(torch.__file__).parent)
_STANDARD = sysconfig.get_path("stdlib")
_SITE = sysconfig.get_path("purelib")
_HERE = str(Path(__file__).parent)
_RUNTIME = str(Path(__file__).parents[2] / "runtime")
_STEP = str(Path(__file__).with_name("step.py"))  # calls the model: what is further out is none of it


class Origin(NamedTuple):
    """Where in the model an op comes from.

    Attributes:
        scope: module path, as in named_modules()
        source: file:line, without folders.
    """

    scope: str
    source: str


NOWHERE = Origin("", "")
_KEY = "loadmaster_origin"


def origin_of(node: fx.Node) -> Origin:
    """Module path and source line of a traced node, NOWHERE where they are not known."""
    origin: Origin = node.meta.get(_KEY, NOWHERE)
    return origin


class Origins:
    """Marks every op of a trace with its origin while `watching` the module and `marking` the graph."""

    def __init__(self) -> None:
        self.calls: list[str] = []  # modules being called, innermost last
        self.replayed: fx.Node | None = None  # op of an earlier trace that is being traced again
        self._of_sequence: dict[int, Origin] = {}
        self._lines: dict[CodeType, bool] = {}

    @contextmanager
    def watching(self, module: nn.Module) -> Iterator[None]:
        handles = []
        for name, part in module.named_modules():
            handles.append(part.register_forward_pre_hook(self._enter(name), prepend=True))
            handles.append(part.register_forward_hook(self._leave(name)))
        try:
            yield
        finally:
            for handle in handles:
                handle.remove()

    def _enter(self, name: str) -> Callable[..., None]:
        def enter(module: nn.Module, args: Any) -> None:
            interrupt_if_asked()
            self.calls.append(name)

        return enter

    def _leave(self, name: str) -> Callable[..., None]:
        def leave(module: nn.Module, args: Any, result: Any) -> None:
            # A module that failed leaves no trace of its end: its caller may have caught that and gone on.
            while self.calls.pop() != name:
                pass

        return leave

    @contextmanager
    def marking(self, graph: fx.Graph) -> Iterator[None]:
        create = graph.create_node

        def create_and_mark(*args: Any, **settings: Any) -> fx.Node:
            node = create(*args, **settings)
            if node.op == "call_function":
                node.meta[_KEY] = self._find(node)
            return node

        graph.create_node = create_and_mark  # type: ignore[method-assign]
        try:
            yield
        finally:
            del graph.create_node

    def _find(self, node: fx.Node) -> Origin:
        if self.replayed is not None:
            return origin_of(self.replayed)
        running = None if self.calls else _running_autograd_node()
        if running is not None:
            return self._of_sequence.get(running._sequence_nr(), NOWHERE)
        if not self.calls:
            return next((o for o in map(origin_of, node.all_input_nodes) if o != NOWHERE), NOWHERE)
        origin = Origin(self.calls[-1], self._line(sys._getframe(1)))
        # The autograd node of an op is numbered just before the op is traced; ops that need no gradient come
        # after it under the same number and must not take it over.
        self._of_sequence.setdefault(_next_sequence_number() - 1, origin)
        return origin

    def _line(self, frame: FrameType | None) -> str:
        """The innermost line of code that is neither torch's, nor Python's, nor the importer's."""
        while frame is not None and frame.f_code.co_filename != _STEP:
            code = frame.f_code
            known = self._lines.get(code)
            if known is None:
                known = self._lines[code] = _is_of_model(code.co_filename)
            if known:
                return f"{Path(code.co_filename).name}:{frame.f_lineno}"
            frame = frame.f_back
        return ""


def line_of_call() -> str:
    """The innermost line of the model's code that is running, or ""."""
    return Origins()._line(sys._getframe(1))


def line_of_failure(error: BaseException) -> str:
    """The innermost line of the model's code that the error passed through, or ""."""
    line, trace = "", error.__traceback__
    while trace is not None:
        filename = trace.tb_frame.f_code.co_filename
        if _is_of_model(filename):
            line = f"{Path(filename).name}:{trace.tb_lineno}"
        trace = trace.tb_next
    return line


def _is_of_model(filename: str) -> bool:
    if filename.startswith(("<eval_with_key>", "<frozen", "<string>", _TORCH, _HERE, _RUNTIME)):
        return False
    return filename.startswith(_SITE) or not filename.startswith(_STANDARD)
