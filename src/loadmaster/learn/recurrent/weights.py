"""Weights of the recurrent placers: read from a file, with the settings they were trained with.

The file also says what they were trained with, which replaces the method's own settings; weights for another number of
devices are refused.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeVar

import torch
from torch import Tensor, nn

from loadmaster.errors import UnreadableFile
from loadmaster.papers.weights import foreign, read_tensors

RecurrentSettings = TypeVar("RecurrentSettings")
MOST_WIDTH = 4096  # of a layer


@contextmanager
def seeded(seed: int) -> Iterator[None]:
    """Random numbers of torch from this seed, and as they were afterwards."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        yield


def settings_from(settings: RecurrentSettings, policy: str, names: tuple[str, ...]) -> RecurrentSettings:
    """The settings with what the checkpoint they name was trained with."""
    checkpoint: str = settings.checkpoint  # type: ignore[attr-defined]
    known = read_weights(checkpoint, policy)[0]
    with foreign(checkpoint, f"train it again: loadmaster train {policy}"):
        if any(type(known[name]) is not type(getattr(settings, name)) for name in names):
            raise TypeError(f"its {', '.join(names)} are not what they should be")
        if any(type(known[name]) is int and not 0 <= known[name] <= MOST_WIDTH for name in names):
            raise ValueError(f"its {', '.join(names)} are beyond any network")
    changed: RecurrentSettings = replace(settings, **{name: known[name] for name in names})  # type: ignore[type-var]
    return changed


def load_into(network: nn.Module, checkpoint: str, policy: str, devices: int) -> None:
    known, weights = read_weights(checkpoint, policy)
    if known.get("devices") != devices:
        what = f"'{checkpoint}' places on {known.get('devices')} devices, this cluster has {devices}"
        raise UnreadableFile(what, "checkpoint", f"train one for this cluster: loadmaster train {policy}")
    try:
        network.load_state_dict(weights)
    except RuntimeError as error:
        what = f"'{checkpoint}' does not fit this version of '{policy}'"
        raise UnreadableFile(what, "checkpoint", f"train it again: loadmaster train {policy}") from error


def read_weights(checkpoint: str, policy: str) -> tuple[dict[str, Any], dict[str, Tensor]]:
    """What is known of the weights, and the weights."""
    fix = f"give a .safetensors file of: loadmaster train {policy} --corpus MODEL --out DIR"
    if not Path(checkpoint).is_file():
        raise UnreadableFile(f"there is no file '{checkpoint}'", "checkpoint", fix)
    known, tensors = read_tensors(checkpoint, "policy", fix)
    weights = {n.removeprefix("network."): tensor for n, tensor in tensors.items() if n.startswith("network.")}
    if known.get("policy") != policy:
        raise UnreadableFile(f"'{checkpoint}' holds no policy of '{policy}'", "checkpoint", fix)
    return known, weights
