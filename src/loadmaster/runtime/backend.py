"""torch.compile(model, backend="loadmaster"): torch's own compiler, under the memory limit you give.

    model = torch.compile(model, backend="loadmaster", options={"memory_limit": "5GiB", "optimizer": optimizer})

Dynamo captures, AOTAutograd makes forward and backward, Inductor compiles both. With a limit, `partitioner` decides
what the forward pass saves and `promise` holds the step to the limit; without one nothing differs from torch.compile.
The training loop stays as it is. With `plan` each op runs where the plan has its module (`spreading`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, fx

from loadmaster.cluster.cluster import parse_size
from loadmaster.errors import CannotRun, InvalidSetting, UnknownName

OPTIONS = ("memory_limit", "optimizer", "plan", "devices")
OLDEST = (2, 11)  # whose Inductor takes a partitioner that is told from others in its caches


def loadmaster(
    module: fx.GraphModule,
    inputs: Sequence[Any],
    *,
    mode: str | None = None,
    options: Mapping[str, Any] | None = None,
    **_: Any,
) -> Callable[..., Any]:
    """What torch calls with each graph.

    Args:
        module, inputs: the graph and what it is called with.
        mode: as of torch.compile: "reduce-overhead", "max-autotune", …
        options: `memory_limit`, a size with a unit, and `optimizer`, whose state counts; or `plan` (a result or a file)
            and `devices`.

    Raises:
        InvalidSetting, UnknownName: an option that there is not, or not so.
        CannotRun: a torch before 2.11.
        DoesNotFit: no step within the limit; the least that would do is named.
    """
    given = dict(options or {})
    check_options(given)
    if "plan" in given:
        from loadmaster.runtime.placing import module_devices
        from loadmaster.runtime.spreading import run_spread

        return run_spread(module, inputs, module_devices(given["plan"], given.get("devices")))
    settings = torch._inductor.list_mode_options(mode) if mode else {}
    if "memory_limit" not in given:
        return _by_inductor(module, inputs, settings)
    return _limited(module, inputs, settings, given)


def check_options(given: Mapping[str, Any]) -> None:
    for name in given:
        if name not in OPTIONS:
            raise UnknownName.among("option", name, OPTIONS, "torch.compile(backend='loadmaster')")
    if "plan" in given and "memory_limit" in given:
        raise InvalidSetting("a plan has its own limits", "memory_limit", "give a plan or a limit")
    for name, other in (("devices", "plan"), ("optimizer", "memory_limit")):
        if name in given and other not in given:
            raise InvalidSetting(f"'{name}' says nothing without '{other}'", name, f"give '{other}' or leave it out")
    if "plan" not in given:
        _check_torch()
    if "memory_limit" in given:
        limit_of(given["memory_limit"])
    if not isinstance(given.get("optimizer"), (torch.optim.Optimizer, type(None))):
        raise InvalidSetting.instead_of("torch optimizer", given["optimizer"], "optimizer", "give the one you step")


def limit_of(text: object) -> int:
    """Bytes; a number alone may be anything, so it is refused."""
    if not isinstance(text, str) or not any(letter.isalpha() for letter in text):
        raise InvalidSetting(f"{text!r} is not a size with a unit", "memory_limit", 'write "5GiB" or "512MiB"')
    return parse_size(text, "memory_limit")


def _check_torch() -> None:
    found = tuple(int(part) for part in torch.__version__.split("+")[0].split(".")[:2])
    if found < OLDEST:
        what = f"torch.compile(backend='loadmaster') needs torch 2.11, here is {torch.__version__}"
        raise CannotRun(what, "torch", "pip install 'torch>=2.11', or run a plan with lm.apply")


def _by_inductor(module: fx.GraphModule, inputs: Sequence[Any], settings: Mapping[str, Any]) -> Callable[..., Any]:
    from torch._inductor.compile_fx import compile_fx

    compiled: Any = compile_fx(module, list(inputs), config_patches=dict(settings))
    return compiled  # type: ignore[no-any-return]


def _limited(
    module: fx.GraphModule, inputs: Sequence[Any], settings: Mapping[str, Any], given: Mapping[str, Any]
) -> Callable[..., Any]:
    from torch._functorch import config as functorch
    from torch._inductor import config as inductor

    from loadmaster.runtime.partitioner import LimitedPartitioner
    from loadmaster.runtime.promise import promise_of

    device = next((i.device for i in inputs if isinstance(i, Tensor) and i.device.type != "cpu"), torch.device("cpu"))
    promise = promise_of(limit_of(given["memory_limit"]), device, given.get("optimizer"))
    promise.look(inputs)
    # The cache of whole steps does not know limits; that of kernels stays.
    with (
        functorch.patch(enable_autograd_cache=False),
        inductor.patch(custom_partitioner_fn=LimitedPartitioner(promise)),
    ):
        compiled = _by_inductor(module, inputs, settings)
    return compiled if given.get("optimizer") is not None else promise.counting(compiled)
