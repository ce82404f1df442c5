"""Tensors without memory whose values are known where a model asks for them.

Most models never look at a number in a tensor while they run. Some do: a layer is dropped if a random number is small,
a mask is left out if all of it is one, a loop runs once for each expert that got a token. `ValueMode` is torch's mode
of fake tensors that remembers the calls. When a value is asked for, the calls it depends on are run for real, in
order, as far as what they start from is known: constants, drawn numbers, example inputs, and weights unless they were
built without memory. Nothing is run until somebody asks, and nothing large ever.

Some models ask first whether there are values at all: transformers keeps a mask that it would leave out if it saw that
the mask is all ones. `answering` has such models ask.
"""

from __future__ import annotations

import random
import sys
import warnings
import weakref
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch._dispatch.python import no_python_dispatcher
from torch._ops import OpOverload, _higher_order_ops
from torch._subclasses.fake_tensor import (
    DataDependentOutputException,
    DynamicOutputShapeException,
    FakeTensor,
    FakeTensorMode,
)
from torch.overrides import TorchFunctionMode
from torch.utils import _pytree as pytree
from torch.utils._python_dispatch import _disable_current_modes

from loadmaster.importers.torch.origin import line_of_call

# A value of more elements than this is not computed, nor more than so many bytes of them in all.
MOST_ELEMENTS, MOST_BYTES = 2**22, 2**31
SEED = 0  # of the numbers that are drawn where a value is asked for
# Arguments whose values alone give an op's results their sizes; of others, all do.
_SIZED_BY = {torch.ops.aten._ctc_loss.Tensor: (2, 3)}
_MASKED = (torch.ops.aten.index.Tensor, torch.ops.aten.masked_select.default)  # sized by how much of a mask is true
_grouped_mm = torch.ops.aten._grouped_mm.default
_nonzero = torch.ops.aten.nonzero.default


_Call = tuple[OpOverload, Sequence[Any], Mapping[str, Any], Sequence[Tensor | None]]


@dataclass(frozen=True, eq=False)
class Question:
    """A value that the model's code looked at.

    Attributes:
        line: of the model.
        given: fakes of given tensors that the answer depends on.
        draws: it depends on random numbers as well.
        calls: that the answer depends on, in order; those that stand for given tensors have None for their op.
        last: the call that gave the answer; with None for its op, its argument's value is the answer.
        answer: a number, tensors whose shapes matter, or a tensor whose value does.
    """

    line: str
    given: tuple[Tensor, ...]
    draws: bool
    calls: tuple[Any, ...]
    last: tuple[Any, Any, Any]
    answer: Any

    def is_of(self, inputs: Collection[int]) -> bool:
        """Whether these fakes, by id, alone decide the answer."""
        return not self.draws and all(id(fake) in inputs for fake in self.given)

    def truth(self, inputs: Collection[int]) -> Tensor | None:
        """The truth value it asked for, where it comes of weights or of what was computed from them: the step can
        compute that one again."""
        func, args, _ = self.last
        if func is not torch.ops.aten._local_scalar_dense.default or args[0].dtype != torch.bool:
            return None
        return None if all(id(fake) in inputs for fake in self.given) else args[0]

    def same_for(self, values: Mapping[int, Tensor], known: Callable[[Tensor], Tensor | None]) -> bool:
        """Whether it has this answer where the fakes, by id, have those values."""
        real: dict[int, Tensor] = {}

        def filled(leaf: Any) -> Any:
            return real.get(id(leaf), known(leaf)) if isinstance(leaf, Tensor) else leaf

        with torch.no_grad():
            for op, args, kwargs, made in self.calls:
                result = values[id(made[0])].detach().cpu().clone() if op is None else None
                if op is not None:
                    result = op(*pytree.tree_map(filled, args), **pytree.tree_map(filled, kwargs))
                real |= {id(fake): value for fake, value in zip(made, _tensors(result), strict=False)}
            op, args, kwargs = self.last
            if op is None:
                return torch.equal(filled(args), self.answer)
            return _alike(op(*pytree.tree_map(filled, args), **pytree.tree_map(filled, kwargs)), self.answer)


class ValueMode(FakeTensorMode):  # type: ignore[no-untyped-call]
    """Fake tensors, with the calls that made them."""

    def __init__(self) -> None:
        # Tensors that a module keeps beside its parameters and buffers stay real, and are read as if fake.
        super().__init__(allow_non_fake_inputs=True)
        # torch's cache of results, one for the whole process, forgets how large their storages are (torch 2.13).
        self.cache_enabled = False
        for op in _higher_order_ops.values():  # they ask for the type of the mode, not for its kind
            if FakeTensorMode in op.python_key_table:
                op.python_key_table.setdefault(ValueMode, op.python_key_table[FakeTensorMode])
        self.expected: Any = None  # result of the call that is being replayed, where its size depends on data
        self.asked: list[str] = []  # lines of the model that asked for a value and were told one
        self.questions: list[Question] = []  # the same, as they can be asked again
        self._calls: list[_Call] = []
        self._last: tuple[Any, Any, Any, list[weakref.ref[Tensor]]] | None = None
        self._done: set[int] = set()  # calls that were run for real, or could not be
        self._facts: set[int] = set()  # calls that stand for what is known of given tensors
        self._real: dict[int, Tensor] = {}  # by id of the fake one, which a call keeps alive
        self._spoilt: set[int] = set()  # storages of real tensors that something unknown was written to
        self._bytes = 0
        self._depth = 0
        self._random: Tensor | None = None  # state of the generator

    @property
    def num_calls(self) -> int:
        return len(self._calls) + (self._last is not None)

    def know(self, fake: Tensor, real: Tensor) -> None:
        """That `fake` has the value of `real`; the one may be fake as well."""
        self._keep_last()
        self._facts.add(len(self._calls))
        self._calls.append((torch.ops.aten.clone.default, (real,), {}, [fake]))

    @contextmanager
    def forgetting(self) -> Iterator[None]:
        """Forgets afterwards what was called meanwhile."""
        self._keep_last()
        mark, self.asked, self.questions = len(self._calls), [], []
        try:
            yield
        finally:
            for _, _, _, made in self._calls[mark:]:
                for tensor in made:
                    self._real.pop(id(tensor), None)
            self._last, self.questions = None, []
            del self._calls[mark:]
            self._done = {call for call in self._done if call < mark}
            self._facts = {call for call in self._facts if call < mark}
            self.expected = None

    def dispatch(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if self._depth:
            return super().dispatch(func, types, args, kwargs)
        self._depth = 1
        self._keep_last()
        try:
            made = self._answer(func, types, args, kwargs)
        finally:
            self._depth = 0
        self._last = func, args, kwargs, [weakref.ref(tensor) for tensor in _tensors(made)]
        return made

    def _keep_last(self) -> None:
        """Keeps the last call with its results alive. Not before the next one: while autograd takes a result over, a
        second hand on it would make autograd trace a `detach`."""
        if self._last is not None:
            func, args, kwargs, made = self._last
            self._calls.append((func, args, kwargs, [ref() for ref in made]))
            self._last = None

    def _answer(self, func: Any, types: Any, args: Any, kwargs: Any) -> Any:
        if func is _grouped_mm and args[0].dtype != torch.bfloat16:
            return self._grouped_product(*args, **kwargs)
        if real := [tensor for tensor in _written(func, args, kwargs) if not isinstance(tensor, FakeTensor)]:
            self._spoilt.update(map(_memory, real))  # of a global, say: it must not be written to
            args, kwargs = pytree.tree_map_only(Tensor, self._as_fake, (args, kwargs))
        try:
            return super().dispatch(func, types, args, kwargs)
        except (DataDependentOutputException, DynamicOutputShapeException):
            if self.expected is not None:
                return pytree.tree_map_only(Tensor, self._like, self.expected)
            real, needed = self._run(func, args, kwargs)
            if real is None:
                raise
            if func in _SIZED_BY:
                for place in _SIZED_BY[func]:
                    self.read(args[place])
            elif func in _MASKED:
                self._ask_sizes(_tensors(args[1]))
            else:
                self._ask(needed, (func, args, kwargs), real)
            return pytree.tree_map_only(Tensor, self._like, real)

    def _as_fake(self, tensor: Tensor) -> Tensor:
        return tensor if isinstance(tensor, FakeTensor) else self.from_tensor(tensor)

    def _like(self, tensor: Tensor) -> Tensor:
        with self:
            return torch.empty_strided(tensor.shape, tensor.stride(), dtype=tensor.dtype, device="cpu")

    def _grouped_product(self, a: Tensor, b: Tensor, offs: Tensor | None = None, *rest: Any, **_: Any) -> Tensor:
        """torch 2.13 multiplies groups of any float type, but knows the size of the result for bfloat16 alone."""
        groups = () if offs is None or a.dim() + b.dim() == 5 else (offs.shape[0],)
        if a.dim() == 3 and b.dim() == 3:
            groups = (a.shape[0],)
        with self:
            return torch.empty((*groups, a.shape[-2], b.shape[-1]), dtype=a.dtype, device="cpu")

    # Values

    def value_of(self, fake: Tensor) -> Tensor | None:
        """Its value, or None where that is not known."""
        self._catch_up([fake])
        return self.known(fake)

    def read(self, fake: Tensor) -> Tensor | None:
        """Its value, which the model's code now knows."""
        needed = self._catch_up([fake])
        real = self.known(fake)
        if real is not None:
            self._ask(needed, (None, fake, {}), real.clone())
        return real

    def _ask(self, needed: Sequence[int], last: tuple[Any, Any, Any], answer: Any) -> None:
        """Notes a question where other inputs or draws might give another answer."""
        given = tuple(_tensors([self._calls[call][3][0] for call in needed if call in self._facts]))
        draws = any(_draws(self._calls[call][0]) for call in needed)
        if given or draws:
            calls = tuple(
                (None if call in self._facts else self._calls[call][0], *self._calls[call][1:]) for call in needed
            )
            self.asked.append(line_of_call())
            self.questions.append(Question(self.asked[-1], given, draws, calls, last, answer))

    def _ask_sizes(self, masks: Sequence[Tensor]) -> None:
        for mask in (mask for mask in masks if mask.dtype in (torch.bool, torch.uint8)):
            places, needed = self._run(_nonzero, (mask,), {})
            self._ask(needed, (_nonzero, (mask,), {}), places)

    def comes_of_given(self, fake: Tensor) -> bool:
        """Whether it was computed from weights, inputs or draws."""
        self._keep_last()
        return any(call in self._facts or _draws(self._calls[call][0]) for call in self._needed([fake]))

    def _run(self, func: OpOverload, args: Any, kwargs: Any) -> tuple[Any, list[int]]:
        """What a call gives for real, or None; and the calls that it depends on."""
        needed = self._catch_up(_tensors((args, kwargs)))
        with self._really():
            return self._result(func, args, kwargs), needed

    def _catch_up(self, wanted: Sequence[Tensor]) -> list[int]:
        """Runs what those tensors depend on, and returns those calls."""
        self._keep_last()
        needed = self._needed(wanted)
        todo = [call for call in needed if call not in self._done]
        if todo:
            with self._really():
                for call in todo:
                    self._redo(call)
            self._done.update(todo)
        return needed

    def _needed(self, wanted: Sequence[Tensor]) -> list[int]:
        """The calls that made those tensors, or wrote to them or to what they were made of, in order; with those that
        read what these overwrite, which could not be run later."""
        ids, memory, overwritten, needed = set(map(id, wanted)), set(map(_memory, wanted)), set(), []
        for call in range(len(self._calls) - 1, -1, -1):
            func, args, kwargs, made = self._calls[call]
            read, written = _tensors((args, kwargs)), set(map(_memory, _written(func, args)))
            makes = any(tensor is not None and id(tensor) in ids for tensor in made)
            if makes or written & memory or any(_memory(tensor) in overwritten for tensor in read):
                needed.append(call)
                ids.update(map(id, read))
                memory.update(map(_memory, read))
                overwritten |= written
        return needed[::-1]

    @contextmanager
    def _really(self) -> Iterator[None]:
        """Ops are what they are outside of any trace; their random numbers come from a stream of their own."""
        with _disable_current_modes(), no_python_dispatcher(), torch._C._AutoDispatchBelowAutograd():
            before = torch.get_rng_state()
            if self._random is None:
                torch.manual_seed(SEED)
            else:
                torch.set_rng_state(self._random)
            try:
                yield
            finally:
                self._random = torch.get_rng_state()
                torch.set_rng_state(before)

    def _redo(self, call: int) -> None:
        func, args, kwargs, made = self._calls[call]
        large = (
            any(tensor is not None and tensor.numel() > MOST_ELEMENTS for tensor in made) or self._bytes > MOST_BYTES
        )
        real = None if large else self._result(func, args, kwargs)
        if real is None:
            self._spoil(func, args)
            return
        for fake, value in zip(made, _tensors(real), strict=False):
            if fake is not None and fake.shape == value.shape and fake.dtype == value.dtype:
                self._real[id(fake)] = value
                self._bytes += value.untyped_storage().nbytes()

    def _result(self, func: OpOverload, args: Any, kwargs: Any) -> Any:
        leaves, shape = pytree.tree_flatten((args, kwargs))
        found = [self.known(leaf) if isinstance(leaf, Tensor) else leaf for leaf in leaves]
        if any(value is None and isinstance(leaf, Tensor) for value, leaf in zip(found, leaves, strict=True)):
            return None
        args, kwargs = pytree.tree_unflatten(found, shape)
        if isinstance(kwargs.get("device"), torch.device):
            kwargs = {**kwargs, "device": torch.device("cpu")}
        try:
            return func(*args, **kwargs)
        except Exception:
            return None

    def known(self, tensor: Tensor) -> Tensor | None:
        if isinstance(tensor, FakeTensor):
            real = self._real.get(id(tensor), tensor.constant)
        else:
            real = tensor if tensor.device.type == "cpu" else None
        return None if real is None or real.untyped_storage()._cdata in self._spoilt else real

    def _spoil(self, func: OpOverload, args: Sequence[Any]) -> None:
        """What an unknown value was written to is unknown from then on, and whatever shares its memory."""
        known = [self.known(tensor) for tensor in _written(func, args)]
        self._spoilt.update(real.untyped_storage()._cdata for real in known if real is not None)


class ValueReads(TorchFunctionMode):
    """Gives the numbers of a fake tensor to code that leaves torch for them: numpy, lists."""

    _LEAVES = (Tensor.numpy, Tensor.tolist, Tensor.__array__)

    def __init__(self, mode: ValueMode) -> None:
        super().__init__()
        self.mode = mode

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func in self._LEAVES and isinstance(args[0], FakeTensor):
            real = self.mode.read(args[0])
            if real is None:
                raise DataDependentOutputException(func)
            with _disable_current_modes():
                return func(real, *args[1:], **(kwargs or {}))
        return func(*args, **(kwargs or {}))


@contextmanager
def fixed_draws() -> Iterator[None]:
    """Python's and NumPy's random numbers from a fixed seed, so that a model that draws some is captured the same
    each time; afterwards their streams, and torch's, go on where they were."""
    before, numbers, of_torch = random.getstate(), np.random.get_state(), torch.get_rng_state()
    random.seed(SEED)
    np.random.seed(SEED)
    try:
        yield
    finally:
        random.setstate(before)
        np.random.set_state(numbers)
        torch.set_rng_state(of_torch)


def warn_of_values(lines: Sequence[str], label: str) -> None:
    """Warns of places where a model looks at the values of its tensors: what it does there may depend on the data."""
    if lines:
        places = sorted(set(filter(None, lines)))
        said = f"{', '.join(places[:3])}{' and elsewhere' if len(places) > 3 else ''}"
        warnings.warn(
            f"{label} asks for the values of tensors ({said}): captured as it runs on these inputs, with random "
            f"numbers of seed {SEED}; on others it may run differently",
            stacklevel=5,
        )


@contextmanager
def answering(mode: ValueMode) -> Iterator[None]:
    """Transformers takes a tensor of this mode for a real one where its value is known."""
    with _told("is_fake_tensor", lambda x: isinstance(x, FakeTensor) and mode.value_of(x) is None):
        yield


@contextmanager
def traced() -> Iterator[None]:
    """Transformers takes the step for one that a CUDA graph records."""
    with _told("is_cuda_stream_capturing", lambda: True):
        yield


@contextmanager
def _told(question: str, answer: Callable[..., bool]) -> Iterator[None]:
    """Transformers, where it is there and of an age that asks, gets that answer."""
    found: Any = sys.modules.get("transformers.utils.import_utils")
    before = getattr(found, question, None)
    if before is None:
        yield
        return
    setattr(found, question, answer)
    try:
        yield
    finally:
        setattr(found, question, before)


def _written(func: OpOverload, args: Sequence[Any], kwargs: Mapping[str, Any] | None = None) -> list[Tensor]:
    """What a call writes to."""
    if not (isinstance(func, OpOverload) and func._schema.is_mutable):
        return []
    given = {**dict(zip((one.name for one in func._schema.arguments), args, strict=False)), **(kwargs or {})}
    written = [argument.name for argument in func._schema.arguments if argument.is_write]
    return _tensors([given[name] for name in written if name in given])


def _alike(one: Any, other: Any) -> bool:
    """Numbers by value, tensors by shape."""
    if isinstance(one, (Tensor, tuple, list)):
        return [tensor.shape for tensor in _tensors(one)] == [tensor.shape for tensor in _tensors(other)]
    return bool(one == other)


def _draws(func: OpOverload) -> bool:
    return isinstance(func, OpOverload) and torch.Tag.nondeterministic_seeded in func.tags


def _memory(tensor: Tensor) -> int:
    """Equal where two tensors share theirs."""
    try:
        return int(tensor.untyped_storage()._cdata)
    except (NotImplementedError, RuntimeError):  # sparse
        return id(tensor)


def _tensors(value: Any) -> list[Tensor]:
    if isinstance(value, Tensor):
        return [value]
    return [leaf for leaf in pytree.tree_leaves(value) if isinstance(leaf, Tensor)]
