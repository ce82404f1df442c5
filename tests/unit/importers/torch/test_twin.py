"""A module is as it was after it was captured, whatever its code does; and each capture of it gives the same graph."""

from __future__ import annotations

import copy
import functools
import itertools
import random
import threading
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from torch import Tensor, nn  # noqa: E402
from torch._subclasses import FakeTensor  # noqa: E402
from torch.nn.utils import parametrizations  # noqa: E402

import loadmaster as lm  # noqa: E402
from loadmaster.errors import ImportFailed  # noqa: E402
from loadmaster.importers.torch.export import capture_step  # noqa: E402
from loadmaster.runtime.frames import held_by_frames  # noqa: E402

X = torch.randn(5, 4)


class Shared(nn.Module):
    """One layer under three names, a weight that is tied, and a tensor of its own beside them."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 4)
        self.again = self.layer
        self.chain = nn.Sequential(*[self.layer] * 3)
        self.head = nn.Linear(4, 4, bias=False)
        self.head.weight = self.layer.weight
        self.scale = torch.rand(4)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.chain(self.again(x)) * self.scale).sum()


class Writes(nn.Module):
    """Writes to all that a module can hold."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 4)
        self.register_buffer("ema", torch.zeros(4))
        self.plain = torch.zeros(4)
        self.tensors = {"last": [torch.zeros(4)]}
        self.count, self.numbers, self.order = 0, random.Random(3), itertools.cycle([1.0, 2.0])
        self.seen: list[Any] = []
        self.lock, self.parent = threading.Lock(), weakref.ref(self)
        self.scaled = functools.partial(_scaled, self)
        seen = self.seen
        self.layer.register_forward_hook(lambda layer, args, made: seen.append(made))
        self.cached = functools.lru_cache(4)(self._ones)

    def _ones(self, size: int) -> Tensor:
        self.count += 1
        return torch.ones(size)

    def forward(self, x: Tensor) -> Tensor:
        parent = self.parent()
        assert parent is not None
        parent.count += 1
        with self.lock:
            made = self.scaled(self.layer(x)) * self.cached(4) * next(self.order) * (1 + self.numbers.random())
        self.ema = 0.9 * self.ema + made.detach().mean(0)
        self.tensors["last"][0] = self.plain = made.detach()
        self.fresh = made
        random.random(), torch.manual_seed(5)
        return made.sum()


def _scaled(module: Writes, x: Tensor) -> Tensor:
    module.count += 1
    return 2 * x


class Fails(Writes):
    def __init__(self, error: type[BaseException]) -> None:
        super().__init__()
        self.error = error

    def forward(self, x: Tensor) -> Tensor:
        super().forward(x)
        raise self.error("in the middle")


class Deep(nn.Module):
    """Each layer knows the next one."""

    def __init__(self, depth: int) -> None:
        super().__init__()
        self.next = None
        for _ in range(depth):
            outer = nn.Module()
            outer.next, self.next = self.next, outer
        self.layer = nn.Linear(4, 4)

    def forward(self, x: Tensor) -> Tensor:
        return self.layer(x).sum()


def spectral() -> nn.Module:
    return nn.Sequential(parametrizations.spectral_norm(nn.Linear(4, 4)), nn.Linear(4, 1))


def normed() -> nn.Module:
    with pytest.warns(FutureWarning):
        return nn.Sequential(nn.utils.weight_norm(nn.Linear(4, 4)), nn.BatchNorm1d(4), nn.Linear(4, 1))


def frozen() -> nn.Module:
    module = nn.Sequential(nn.Linear(4, 4), nn.Dropout(), nn.Linear(4, 1)).train()
    module[0].requires_grad_(False).eval()
    module[2].weight.grad = torch.ones(1, 4)
    return module


MODULES: list[Callable[[], nn.Module]] = [Shared, Writes, spectral, normed, frozen]


def state_of(value: Any, known: dict[int, int] | None = None) -> Any:
    """All that can be reached, as plain values, with what is shared by its number: read in the order of attributes."""
    known = {} if known is None else known
    if isinstance(value, (type(None), bool, int, float, str, torch.dtype)):
        return value
    if id(value) in known:
        return known[id(value)]
    known[id(value)] = len(known)
    if isinstance(value, Tensor):
        assert not isinstance(value, FakeTensor)
        return (
            id(value),
            type(value),
            value.tolist(),
            value.requires_grad,
            state_of(value.grad if value.is_leaf else None),
            value._version,
        )
    if isinstance(value, random.Random):
        return value.getstate()
    if isinstance(value, itertools.cycle):
        return list(itertools.islice(copy.copy(value), 3))
    if isinstance(value, dict):
        return [(state_of(key, known), state_of(part, known)) for key, part in value.items()]
    if isinstance(value, (list, tuple)):
        return [state_of(part, known) for part in value]
    if hasattr(value, "cache_info"):
        return value.cache_info()
    return type(value), state_of(vars(value), known) if isinstance(value, nn.Module) else id(value)


@contextmanager
def unharmed(module: nn.Module) -> Iterator[None]:
    before = state_of(module), random.getstate(), torch.get_rng_state().tolist()
    yield
    assert (state_of(module), random.getstate(), torch.get_rng_state().tolist()) == before


@pytest.mark.parametrize("training", [True, False])
@pytest.mark.parametrize("make", MODULES)
def test_a_module_is_as_it_was(make: Callable[[], nn.Module], training: bool) -> None:
    module = make()
    with unharmed(module):
        graphs = [lm.load(module, inputs=(X,), training=training) for _ in range(3)]
        held_by_frames(module, (X,))
    assert len({graph.digest for graph in graphs}) == 1


@pytest.mark.parametrize("error", [ValueError, KeyboardInterrupt])
def test_also_when_it_fails(error: type[BaseException]) -> None:
    module = Fails(error)
    with unharmed(module), pytest.raises(ImportFailed if error is ValueError else error):
        lm.load(module, inputs=(X,))


def test_a_generator_is_not_moved_on() -> None:
    class Draws(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.factors = (float(n) for n in range(3))

        def forward(self, x: Tensor) -> Tensor:
            return x * next(self.factors)

    module = Draws()
    with pytest.raises(ImportFailed, match="next value of a generator"):
        lm.load(module, inputs=(X,), training=False)
    assert list(module.factors) == [0.0, 1.0, 2.0]


def test_modules_may_be_nested_deeply() -> None:
    assert lm.load(Deep(250), inputs=(X,)).num_ops > 0


def test_lazy_weights_stay_lazy() -> None:
    module = nn.Sequential(nn.LazyLinear(3))
    with pytest.raises(ImportFailed, match="call the module once"):
        lm.load(module, inputs=(X,))
    assert isinstance(module[0].weight, nn.UninitializedParameter)


def test_inputs_are_as_they_were() -> None:
    class Cache:
        def __init__(self) -> None:
            self.rows: list[Tensor] = []

    class Reads(nn.Module):
        def forward(self, x: Tensor, cache: Cache) -> Tensor:
            cache.rows.append(x)
            return x.sum()

    cache = Cache()
    lm.load(Reads(), inputs=(X, cache), training=False)
    assert cache.rows == []


def test_constants_of_a_captured_step_are_the_modules_own() -> None:
    module = Shared()
    trace = capture_step(module, (X,), training=True).trace.module
    constants = [getattr(trace, str(node.target)) for node in trace.graph.find_nodes(op="get_attr")]
    assert constants and all(constant is module.scale for constant in constants)


@pytest.mark.parametrize("training", [True, False])
@pytest.mark.parametrize("write", [
    lambda k: k[:, 0].zero_(), lambda k: k[:, ::2].mul_(2), lambda k: k.view(-1)[3:].add_(1),
    lambda k: k.t()[1].copy_(k[:, 0]), lambda k: k.as_strided((3,), (5,), 1).sub_(1),
])  # fmt: skip
def test_parts_written_in_place_are_captured_alike(write: Callable[[Tensor], Tensor], training: bool) -> None:
    class InPlace(nn.Linear):
        def forward(self, x: Tensor) -> Tensor:
            made = super().forward(x)
            write(made)
            return made.sum()

    module = InPlace(4, 4)
    assert len({lm.load(module, inputs=(X,), training=training).digest for _ in range(3)}) == 1


@functools.lru_cache(4)
def remembered(size: int) -> tuple[Tensor, int]:
    return torch.arange(size).float(), size


@pytest.mark.parametrize("called_before", [False, True])
def test_functions_that_remember_tensors_remember_none_of_a_trace(called_before: bool) -> None:
    class Remembers(nn.Linear):
        def forward(self, x: Tensor) -> Tensor:
            return (super().forward(x) * remembered(4)[0]).sum()

    module = Remembers(4, 4)
    remembered.cache_clear()
    fresh = lm.load(module, inputs=(X,)).digest
    if called_before:
        module(X)
    assert lm.load(module, inputs=(X,)).digest == fresh
    assert type(remembered(4)[0]) is Tensor
