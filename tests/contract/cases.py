"""What a case is, how it is trained by eager torch and by an applied step, and how the two are compared.

A case is written as a user writes a training script: a module, batches, an optimizer, and what happens between steps.
It is made twice from the same seed; one copy is trained by torch's ordinary loop, the other through `lm.apply`. The
outcome is one of:

    equal     losses, weights, buffers, optimizer state and random numbers agree (bits, or rounding of other kernels)
    refused   a LoadmasterError with all three parts, before anything wrong was computed
    wrong     the step trained something else, without a word
    leaked    another error than ours came out, or ours without one of its parts
"""

from __future__ import annotations

import random
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

import loadmaster as lm

STEPS = 3
ROUNDING = 2e-5  # of the largest value of a tensor, where other kernels compute the same
PLANNED = {torch.optim.Adam: "adam", torch.optim.AdamW: "adamw", torch.optim.SGD: "sgd"}


@dataclass
class Script:
    """One training script.

    Attributes:
        module, batches: what is trained, and on what; a batch is a tuple of arguments.
        optimizer: None: SGD with a rate of 0.1.
        before: called with the number of each step, before it; 0 comes after `apply`.
        after: called after each step.
        around: entered for each step.
        training: False: an inference under `no_grad`.
        updates: False: gradients are left in `.grad`, without an optimizer.
        extra: more that the script looks at afterwards.
    """

    module: nn.Module
    batches: Sequence[tuple[Any, ...]]
    optimizer: torch.optim.Optimizer | None = None
    before: Callable[[int], None] = lambda number: None
    after: Callable[[int], None] = lambda number: None
    around: Callable[[], AbstractContextManager[Any]] = nullcontext
    training: bool = True
    updates: bool = True
    extra: Callable[[], Any] = lambda: None

    def __post_init__(self) -> None:
        if self.optimizer is None and self.training and self.updates:
            self.optimizer = torch.optim.SGD(self.module.parameters(), lr=0.1)

    @property
    def planned(self) -> str:
        """The optimizer that its author would plan with."""
        kinds = [name for kind, name in PLANNED.items() if type(self.optimizer) is kind]
        kinds += [name for kind, name in PLANNED.items() if isinstance(self.optimizer, kind)]
        return (kinds or ["adam"])[0] if self.updates else "none"


@dataclass(frozen=True)
class Case:
    """A script by name. `expected`: equal or refused. `fast`: it is part of the tests. `needs_verify`: neither the look
    at the module nor the guard can see it, so that it is refused with `verify` alone."""

    group: str
    name: str
    make: Callable[[], Script]
    expected: str
    fast: bool = False
    needs_verify: bool = False


CASES: list[Case] = []


def case(
    group: str, name: str, expected: str = "equal", fast: bool = False, needs_verify: bool = False
) -> Callable[[Callable[[], Script]], Callable[[], Script]]:
    """Adds a script to the list."""

    def add(make: Callable[[], Script]) -> Callable[[], Script]:
        CASES.append(Case(group, name, make, expected, fast, needs_verify))
        return make

    return add


@dataclass
class Outcome:
    """What came of a case; `said`: the refusal, the difference, or the error that leaked."""

    kind: str
    said: str = ""
    seen: dict[str, Any] = field(default_factory=dict)


def outcome_of(case: Case, seed: int, verify: bool | None) -> Outcome:
    """Trains the script both ways."""
    eager = _made(case, seed)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            expected = _trained_by_torch(eager)
    except Exception as error:  # then a step must not train either
        expected = {"error": f"torch: {type(error).__name__}: {str(error)[:80]}"}
    planned = _made(case, seed)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            found = _trained_by_plan(planned, verify)
    except lm.LoadmasterError as error:
        parts = [error.what, error.where, error.fix]
        said = f"{type(error).__name__}: {' | '.join(parts)}"
        return Outcome("refused" if all(parts) else "leaked", said)
    except Exception as error:
        return Outcome("leaked", f"{type(error).__name__}: {str(error).splitlines()[0] if str(error) else ''}")
    try:
        difference = _difference(expected, found)
    except Exception as error:  # what the script looks at is no tensor any more
        difference = f"{type(error).__name__}: {error}"
    return Outcome("wrong" if difference else "equal", difference)


def _made(case: Case, seed: int) -> Script:
    _seed(seed)
    return case.make()


def _seed(seed: int) -> None:
    torch.manual_seed(seed)
    random.seed(seed)
    np.random.seed(seed)


def _trained_by_torch(script: Script) -> dict[str, Any]:
    _seed(5)
    losses = []
    for number in range(STEPS):
        script.before(number)
        batch = script.batches[number % len(script.batches)]
        with script.around():
            if not script.training:
                with torch.no_grad():
                    losses.append(script.module(*batch))
            else:
                if script.optimizer is not None:
                    script.optimizer.zero_grad()
                loss = _loss(script.module(*batch))
                loss.backward()
                if script.optimizer is not None:
                    script.optimizer.step()
                losses.append(loss.detach())
        script.after(number)
    return _seen(script, losses)


def _trained_by_plan(script: Script, verify: bool | None) -> dict[str, Any]:
    inputs = script.batches[0]
    graph = lm.load(script.module, inputs=inputs, training=script.training, optimizer=script.planned)
    result = lm.solve(lm.price(graph, "2xp100-pcie"), "random", lm.Budget(None, 3), seed=1)
    optimizer = script.optimizer
    settings: dict[str, Any] = {} if verify is None else {"verify": verify}
    step = lm.apply(script.module, inputs, result, optimizer=optimizer, devices=["cpu", "cpu"], **settings)
    _seed(5)
    losses = []
    for number in range(STEPS):
        script.before(number)
        with script.around():
            losses.append(step(*script.batches[number % len(script.batches)]))
        script.after(number)
    step.detach()
    return _seen(script, losses)


def _loss(result: Any) -> Tensor:
    """As `lm.load` documents it: one number, `.loss`, or the sum of means."""
    if isinstance(result, Tensor) and result.numel() == 1:
        return result.reshape(())
    if isinstance(result, Mapping) and "loss" in result:
        return result["loss"]
    if hasattr(result, "loss"):
        return result.loss
    parts = result if isinstance(result, (tuple, list)) else [result]
    if isinstance(result, Mapping):
        parts = list(result.values())
    return sum(part.mean() for part in parts)  # type: ignore[return-value]


def _seen(script: Script, losses: list[Any]) -> dict[str, Any]:
    """All that a script can look at after its loop."""
    seen: dict[str, Any] = {"losses": losses, "random numbers": torch.get_rng_state()}
    seen["weights"] = {name: value.detach().clone() for name, value in script.module.named_parameters()}
    seen["buffers"] = {name: value.clone() for name, value in script.module.named_buffers()}
    seen["python's random numbers"] = (random.getstate(), np.random.get_state()[1].tolist())
    if script.optimizer is not None:
        seen["optimizer"] = script.optimizer.state_dict()
    if not script.updates:
        seen["gradients"] = {name: value.grad for name, value in script.module.named_parameters()}
    seen["extra"] = script.extra()
    return seen


def _difference(expected: Any, found: Any, where: str = "") -> str:
    """The first place where two nests of values differ, or ""."""
    if isinstance(expected, Tensor):
        return _apart(expected, found, where)
    if isinstance(expected, Mapping):
        if not isinstance(found, Mapping) or set(expected) != set(found):
            return f"{where}: {list(expected)} against {list(found)}"
        pairs = [(f"{where} {key}", expected[key], found[key]) for key in expected]
    elif isinstance(expected, (list, tuple)):
        if not isinstance(found, (list, tuple)) or len(expected) != len(found):
            return f"{where}: another length"
        pairs = [(f"{where}[{at}]", *pair) for at, pair in enumerate(zip(expected, found, strict=True))]
    elif hasattr(expected, "__dataclass_fields__"):
        return _difference(vars(expected), vars(found), where)
    else:
        return "" if expected == found or expected is found else f"{where}: {expected!r} against {found!r}"
    return next(filter(None, (_difference(one, other, name) for name, one, other in pairs)), "")


def _apart(expected: Tensor, found: Any, where: str) -> str:
    if not isinstance(found, Tensor) or expected.shape != found.shape or expected.dtype != found.dtype:
        return f"{where}: {tuple(expected.shape)} {expected.dtype} against {getattr(found, 'shape', found)}"
    expected, found = expected.detach(), found.detach()
    if not (expected.is_floating_point() or expected.is_complex()):
        return "" if torch.equal(expected, found) else f"{where}: other values"
    if not expected.numel() or torch.equal(expected, found):
        return ""
    apart = float((expected - found).abs().nan_to_num(nan=0.0).max())
    same_nan = torch.equal(expected.isnan(), found.isnan())
    rounding = ROUNDING if expected.dtype in (torch.float32, torch.complex64) else 1e-2
    rounding = 1e-9 if expected.dtype in (torch.float64, torch.complex128) else rounding
    if same_nan and apart <= rounding * max(1e-3, float(expected.abs().nan_to_num().max())):
        return ""
    return f"{where}: apart by {apart:.2g}"


@contextmanager
def cleaned(take_back: Callable[[], None]) -> Iterator[None]:
    """Something global that a script sets, only for as long as a step runs."""
    try:
        yield
    finally:
        take_back()
