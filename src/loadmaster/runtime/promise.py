"""A memory limit and what became of it: what a step may take, what it was planned to take, what it took.

The limit is what torch may allocate on the device (`torch.cuda.max_memory_allocated`). Room for a step is the limit
less what is allocated when it is compiled and what the optimizer will still make. In the second step the real peak is
measured. Where it is above the limit, the excess is taken from the room and the step is compiled again; where that
cannot help, DoesNotFit says what would fit, before the third step.

The CUDA context, and what libraries take past torch's allocator, is the reserve: measured, shown once, and held against
the size of the device.
"""

from __future__ import annotations

import inspect
import sys
import weakref
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any, NoReturn

import torch
from torch import Tensor

from loadmaster.errors import DoesNotFit
from loadmaster.runtime.meter import Meter, meter_of

TIGHTENINGS = 4  # until the step is refused
SPARE = 0.004  # of the limit: what a step takes besides an excess when it is planned again
ADAM_LIKE = ("Adam", "AdamW", "NAdam", "RAdam")  # their foreach step holds one more copy of all weights


@dataclass(frozen=True)
class Planned:
    """One joint graph under the limit: its peak beside what is resident, the smallest it could have, ops run again."""

    peak_bytes: int
    least_bytes: int
    again: int


class Promise:
    """One limit of one process on one device.

    Attributes:
        limit_bytes: that torch may allocate.
        predicted_bytes: peak of the step as it was planned.
        measured_bytes: peak of the step that was measured last, 0 before.
        tightened_bytes: taken from the room since steps took more than predicted.
        kept: whether the last measured step was under the limit.
    """

    def __init__(self, limit_bytes: int, device: torch.device, optimizer: torch.optim.Optimizer | None) -> None:
        self.limit_bytes, self.device = limit_bytes, device
        self.meter: Meter = meter_of(device)
        self.optimizer = None if optimizer is None else weakref.ref(optimizer)
        self.predicted_bytes = self.measured_bytes = self.tightened_bytes = 0
        self.kept = False
        self.graphs: list[Planned] = []
        self.resident_bytes = self.state_bytes = 0
        self._steps, self._measured_step, self._tightenings, self._largest = 0, 2, 0, 0
        self._said = self._led = False
        self._calls = 0
        self._hook = None if optimizer is None else optimizer.register_step_post_hook(_Hook(self))

    def end(self) -> None:
        """Another limit takes its place: steps are its affair no longer."""
        if self._hook is not None:
            self._hook.remove()

    def look(self, inputs: Iterable[Any]) -> None:
        """Before a graph is compiled: what is resident now, and what the optimizer will still make."""
        optimizer = self._its_optimizer()
        trained = _tensors(optimizer)
        self.resident_bytes = self.meter.resident([*inputs, *trained])
        self._batch_bytes = self.resident_bytes - self.meter.resident(trained)
        self.state_bytes = 0 if optimizer is None else state_to_come(optimizer)
        gradients = 0 if optimizer is None else gradient_bytes(optimizer)
        self._update_bytes = self.resident_bytes + self.state_bytes + gradients * (1 + self._copies(optimizer))
        if self._update_bytes > self.limit_bytes:
            advice = "give the optimizer fused=True or foreach=False, or " if self._copies(optimizer) else ""
            what = (
                f"the optimizer's step alone takes {words(self._update_bytes)}, the limit is {words(self.limit_bytes)}"
            )
            raise DoesNotFit(what, "memory_limit", f"{advice}give at least {words(self._update_bytes)}")

    def _its_optimizer(self) -> torch.optim.Optimizer | None:
        return None if self.optimizer is None else self.optimizer()

    def _copies(self, optimizer: torch.optim.Optimizer | None) -> int:
        """Of all gradients, that its step holds for a moment."""
        if optimizer is None or self.device.type != "cuda" or type(optimizer).__name__ not in ADAM_LIKE:
            return 0
        group = optimizer.param_groups[0]
        return int(not group.get("fused") and group.get("foreach") is not False)

    def larger(self, batch: tuple[int, bool]) -> float:
        """How many times larger a batch may come than the one that a graph of open sizes was traced with."""
        count, is_open = batch
        self._largest = max(self._largest, count)
        return self._largest / max(1, count) if is_open else 1.0

    def room(self) -> int:
        return self.limit_bytes - self.resident_bytes - self.state_bytes - self.tightened_bytes

    def plan(self, planned: Planned) -> None:
        """What a graph was planned to take."""
        self.graphs.append(planned)
        step = self.resident_bytes + self.state_bytes + planned.peak_bytes
        self.predicted_bytes = max(step, self._update_bytes, self.predicted_bytes if len(self.graphs) > 1 else 0)
        if not self._said:
            self._said = True
            self._fits_the_device()
            again = f", {planned.again} ops run again in the backward pass" if planned.again else ""
            text = f"limit {words(self.limit_bytes)}, planned peak {words(self.predicted_bytes)}{again}"
            say(f"{text}{self.meter.reserve_text()}")

    def _fits_the_device(self) -> None:
        total, reserve = self.meter.total_bytes(), self.meter.reserve_bytes()
        if total and self.limit_bytes + reserve > total:
            what = f"the limit and {words(reserve)} outside torch's allocator are more than {words(total)}"
            raise DoesNotFit(what, f"memory_limit on {self.device}", f"give at most {words(total - reserve)}")

    def refuse(self, least_bytes: int) -> NoReturn:
        needed = self.limit_bytes - self.room() + least_bytes
        what = f"no step was found within {words(self.limit_bytes)}"
        raise DoesNotFit(what, "memory_limit", f"give at least {words(needed)}, or a smaller batch")

    def counting(self, compiled: Callable[..., Any]) -> Callable[..., Any]:
        """A compiled graph of a step without a known optimizer: its next call in training ends the step before."""
        first = not self._led
        self._led = True

        def run(*inputs: Any) -> Any:
            if first and torch.is_grad_enabled():
                self._calls += 1
                if self._calls > 1:
                    self.after_step()
            return compiled(*inputs)

        return run

    def after_step(self) -> None:
        """After each step of the optimizer."""
        self._steps += 1
        if self._steps == self._measured_step - 1:
            self.meter.begin(_tensors(self._its_optimizer()), self._batch_bytes)
        elif self._steps == self._measured_step:
            self.measured_bytes = self.meter.end()
            self._compare()

    def _compare(self) -> None:
        excess = self.measured_bytes - self.limit_bytes
        self.kept = excess <= 0
        if self.kept:
            return
        spare = sum(planned.peak_bytes - planned.least_bytes for planned in self.graphs)
        self._tightenings += 1
        if excess > spare or self._tightenings > TIGHTENINGS:
            needed = words(self.measured_bytes - (spare if excess > spare else 0))
            what = f"a step took {words(self.measured_bytes)}, the limit is {words(self.limit_bytes)}"
            raise DoesNotFit(what, "memory_limit", f"give at least {needed}, or a smaller batch")
        say(f"a step took {words(self.measured_bytes)}, above {words(self.limit_bytes)}: it is compiled again for less")
        error = max(self.measured_bytes - self.predicted_bytes, self.tightened_bytes + excess)
        self.tightened_bytes = error + round(SPARE * self.limit_bytes)
        self._measured_step = self._steps + 2
        self.graphs.clear()
        self._led = False
        torch._dynamo.reset()


class _Hook:
    """Does not keep the promise alive by its optimizer alone, nor the optimizer."""

    def __init__(self, promise: Promise) -> None:
        self.promise = promise

    def __call__(self, *_: Any) -> None:
        self.promise.after_step()


_by_optimizer: weakref.WeakKeyDictionary[torch.optim.Optimizer, Promise] = weakref.WeakKeyDictionary()
_without: dict[tuple[int, str], Promise] = {}


def promise_of(limit_bytes: int, device: torch.device, optimizer: torch.optim.Optimizer | None) -> Promise:
    """The promise that belongs to an optimizer; without one, to a limit on a device."""
    if optimizer is None:
        if (limit_bytes, str(device)) not in _without:
            _without[limit_bytes, str(device)] = Promise(limit_bytes, device, None)
        return _without[limit_bytes, str(device)]
    known = _by_optimizer.get(optimizer)
    if known is None or known.limit_bytes != limit_bytes:
        if known is not None:
            known.end()
        known = _by_optimizer[optimizer] = Promise(limit_bytes, device, optimizer)
    return known


def _tensors(optimizer: torch.optim.Optimizer | None) -> list[Tensor]:
    """Weights, gradients and state."""
    if optimizer is None:
        return []
    weights = [weight for group in optimizer.param_groups for weight in group["params"]]
    state = [value for of in optimizer.state.values() for value in of.values() if isinstance(value, Tensor)]
    return [*weights, *(weight.grad for weight in weights if weight.grad is not None), *state]


def gradient_bytes(optimizer: torch.optim.Optimizer) -> int:
    """That one backward pass will make."""
    weights = (weight for group in optimizer.param_groups for weight in group["params"])
    return sum(weight.nbytes for weight in weights if weight.requires_grad and weight.grad is None)


def state_to_come(optimizer: torch.optim.Optimizer) -> int:
    """Bytes of state that the first step will make: in proportion to a tiny weight that a twin has updated."""
    total = 0.0
    for group in optimizer.param_groups:
        missing = sum(w.nbytes for w in group["params"] if w.requires_grad and not optimizer.state.get(w))
        total += missing * _state_share(optimizer, group) if missing else 0.0
    return round(total)


def _state_share(optimizer: torch.optim.Optimizer, group: dict[str, Any]) -> float:
    """Bytes of state for a byte of weights; 0 for an optimizer that cannot be tried."""
    plain = {"foreach": None, "fused": None, "capturable": False, "differentiable": False}
    known = {name: plain.get(name, value) for name, value in group.items() if name in optimizer.defaults}
    weight = torch.nn.Parameter(torch.ones(64, 64, dtype=group["params"][0].dtype))
    weight.grad = torch.ones_like(weight)
    try:
        kind: Any = type(optimizer)
        accepted = inspect.signature(kind).parameters
        twin = kind([weight], **{name: value for name, value in known.items() if name in accepted})
        twin.step()
    except Exception:  # a class of somebody else: measured in the second step
        return 0.0
    state = [value for value in twin.state[weight].values() if isinstance(value, Tensor) and value.dim()]
    return sum(value.nbytes for value in state) / weight.nbytes


def words(nbytes: int) -> str:
    """
    >>> words(5 * 2**30), words(300 * 2**20)
    ('5.00 GiB', '300.0 MiB')
    """
    return f"{nbytes / 2**30:.2f} GiB" if nbytes >= 2**30 else f"{nbytes / 2**20:.1f} MiB"


def say(text: str) -> None:
    print(f"loadmaster: {text}", file=sys.stderr, flush=True)
