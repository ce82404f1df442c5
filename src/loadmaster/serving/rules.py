"""Rules: what other tools do with the same model and the same devices, as placements that our simulator judges.

`accelerate auto`, `balanced_low_0` and `sequential` are accelerate's own functions at work. `llama.cpp` is its
default (`--tensor-split` by free memory, the first layers computed on the host where the GPUs are full) and
`vllm` its own (the same number of layers for every pipeline rank), written after their documentation.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from typing import Any

import numpy as np

from loadmaster.errors import InvalidSetting, MissingExtra
from loadmaster.graph.columns import Ints, ints
from loadmaster.serving.services import Service, cache_bytes

ACCELERATE = ("auto", "balanced", "balanced_low_0", "sequential")
ROOM = 0.9  # of a GPU's memory that accelerate gives to weights where the user says nothing


def gpus_of(service: Service) -> list[int]:
    """Devices in the order in which CUDA would number them; the host alone where there is nothing else."""
    found = [d for d in range(service.cluster.num_devices) if d != service.host]
    return found or [0]


def accelerate_map(model: Any, service: Service, policy: str = "auto") -> dict[str, Any]:
    """What `from_pretrained(device_map=policy)` would do: module path to GPU number, "cpu" or "disk"."""
    try:
        import accelerate  # noqa: F401
    except ModuleNotFoundError:
        raise MissingExtra.of("accelerate", "serving", "its device maps") from None
    if policy not in ACCELERATE:
        raise InvalidSetting(f"'{policy}' is no policy of accelerate", "", f"use one of {', '.join(ACCELERATE)}")
    memory = service.cluster.memory_bytes
    gpus = gpus_of(service)
    most: dict[Any, int] = {i: int(memory[d] * ROOM) for i, d in enumerate(gpus) if d != service.host}
    most["cpu"] = int(memory[service.host]) if service.host is not None else 0
    kinds = list(getattr(model, "_no_split_modules", None) or [])
    with _quiet():
        return _inferred(model, policy, most, kinds)


def _inferred(model: Any, policy: str, most: dict[Any, int], kinds: list[str]) -> dict[str, Any]:
    from accelerate.utils import get_balanced_memory, infer_auto_device_map

    if policy != "sequential":
        low = policy == "balanced_low_0"
        most = get_balanced_memory(model, max_memory=most, no_split_module_classes=kinds, low_zero=low)
    found: dict[str, Any] = infer_auto_device_map(model, max_memory=most, no_split_module_classes=kinds)
    return found


@contextmanager
def _quiet() -> Iterator[None]:
    """accelerate warns of GPUs that are planned for and are not here."""
    log = logging.getLogger("accelerate.utils.modeling")
    level = log.level
    log.setLevel(logging.ERROR)
    try:
        yield
    finally:
        log.setLevel(level)


def from_map(service: Service, device_map: Mapping[str, Any]) -> tuple[Ints, Ints]:
    """(compute, home) of a device map. Modules on "cpu" are streamed to the main device, the first GPU, as
    `dispatch_model` does it."""
    gpus = gpus_of(service)
    main = gpus[0]
    compute, home = (np.empty(len(service.names), np.int64) for _ in range(2))
    for unit, name in enumerate(service.names):
        place = _entry(device_map, name)
        if isinstance(place, int):
            compute[unit] = home[unit] = gpus[place]
        else:  # "cpu" or "disk"
            home[unit] = main if service.host is None else service.host
            compute[unit] = main
    return ints(compute), ints(home)


def _entry(device_map: Mapping[str, Any], name: str) -> Any:
    """The entry of the longest prefix of the path; modules without weights may have none."""
    parts = name.split(".")
    for length in range(len(parts), -1, -1):
        path = ".".join(parts[:length])
        if path in device_map:
            return device_map[path]
    inside = [place for path, place in device_map.items() if path.startswith(f"{name}.")]
    return inside[0] if inside else 0


def layers_of(service: Service) -> list[int]:
    """Units that are layers: those that have a cache, or, where none has, those with a number at the end."""
    cached = np.flatnonzero(cache_bytes(service))
    numbered = [u for u, name in enumerate(service.names) if name.rpartition(".")[2].isdecimal()]
    return [u for u in numbered if u in set(cached.tolist())] or numbered


def by_memory(service: Service) -> tuple[Ints, Ints]:
    """llama.cpp: layers in proportion to the memory of the GPUs, as many as fit; those before them on the host."""
    gpus = [d for d in gpus_of(service) if d != service.host] or [0]
    layers, each = layers_of(service), service.weight_bytes + cache_bytes(service)
    held = np.bincount(service.within, each, len(each)).astype(np.int64)  # experts with their layer
    memory = service.cluster.memory_bytes[gpus] * ROOM
    rest = int(held.sum() - held[layers].sum())
    offloaded = len(layers)
    while offloaded and held[layers[len(layers) - offloaded :]].sum() + rest > memory.sum():
        offloaded -= 1
    kept = layers[: len(layers) - offloaded]
    share = np.cumsum(memory) / memory.sum()
    compute = np.full(len(service.names), gpus[-1], np.int64)
    for i, unit in enumerate(layers[len(layers) - offloaded :]):
        compute[unit] = gpus[int(np.searchsorted(share, (i + 0.5) / max(1, offloaded)))]
    host = gpus[0] if service.host is None else service.host
    compute[kept] = host
    for unit in range(layers[0] if layers else 0):  # what comes before the first layer is computed on the host
        compute[unit] = host if kept else gpus[0]
    return ints(compute), ints(compute)


def equal_layers(service: Service) -> tuple[Ints, Ints]:
    """vLLM: layers in equal parts, one for each GPU in order; what comes before goes first, what comes after last."""
    gpus, layers = gpus_of(service), layers_of(service)
    compute = np.full(len(service.names), gpus[-1], np.int64)
    for i, unit in enumerate(layers):
        compute[unit] = gpus[i * len(gpus) // len(layers)]
    compute[: layers[0] if layers else 0] = gpus[0]
    return ints(compute), ints(compute)


def all_rules(model: Any, service: Service) -> dict[str, tuple[Ints, Ints]]:
    """Every rule that can be asked here; accelerate's only where it is installed."""
    found = {"llama.cpp": by_memory(service), "vllm": equal_layers(service)}
    with suppress(MissingExtra):
        for policy in ("auto", "sequential", "balanced_low_0"):
            found[f"accelerate {policy}"] = from_map(service, accelerate_map(model, service, policy))
    # Modules that share a weight stay together, and experts with their layer, as all these runtimes keep them.
    kept = service.together[service.within]
    return {name: (ints(c[kept]), ints(h[kept])) for name, (c, h) in found.items()}
