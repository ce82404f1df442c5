"""Trained weights as files: read whole, looked at before anything is made of them, refused in words of ours.

A file of weights comes from anywhere. It is data: nothing in it is run. What its header says decides how large the
network is, so the network is first made without memory and compared with what the file holds.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from importlib import resources
from pathlib import Path
from typing import Any, TypeVar

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor, nn

from loadmaster.errors import LoadmasterError, UnreadableFile

MOST_SIZE = 4_096  # of a layer, or of a number of layers
Network = TypeVar("Network", bound=nn.Module)


@contextmanager
def foreign(path: Path | str, fix: str) -> Iterator[None]:
    """What goes wrong in the block is the fault of the file, and said so."""
    try:
        yield
    except LoadmasterError:
        raise
    except SafetensorError as error:
        raise UnreadableFile(
            f"'{path}' is no safetensors file, or not a whole one: {_first_line(error)}", "", fix
        ) from error
    except Exception as error:
        what = f"'{path}' holds no policy that this version can run: {type(error).__name__}: {_first_line(error)}"
        raise UnreadableFile(what, "", fix) from error


@contextmanager
def seeded(seed: int) -> Iterator[None]:
    """Random numbers of torch from this seed, and as they were afterwards."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        yield


def _first_line(error: Exception) -> str:
    return (str(error).strip().splitlines() or [""])[0][:200]


def shipped(name: str) -> str:
    """The file of the weights of that name which come with the package."""
    return str(resources.files("loadmaster.papers").joinpath("weights", f"{name}.safetensors"))


def read_policy(path: Path | str, policy: str, make: Callable[[dict[str, Any]], Network]) -> Network:
    """The network that a file holds; `make` builds it from what the file says of itself."""
    fix = f"give checkpoint=FILE.safetensors or none, or train one: loadmaster lab train {policy}"
    if not Path(path).is_file():
        raise UnreadableFile(f"there is no file '{path}'", "checkpoint", fix)
    known, tensors = read_tensors(path, "policy", fix)
    weights = {name.removeprefix("network."): tensor for name, tensor in tensors.items()}
    return network_of(lambda: make(known), weights, path, fix)


def read_tensors(path: Path | str, header: str, fix: str) -> tuple[dict[str, Any], dict[str, Tensor]]:
    """What the header says under that name, and the tensors."""
    with foreign(path, fix), safe_open(str(path), "pt") as file:
        known = json.loads((file.metadata() or {}).get(header, "{}"))
        if not isinstance(known, dict):
            raise TypeError(f"'{header}' of its header is no object")
        if header == "policy" and not _is_modest(known):
            raise ValueError("its header wants a network beyond any")
        tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
        for name, tensor in tensors.items():
            if tensor.is_floating_point() and not torch.isfinite(tensor).all():
                raise ValueError(f"'{name}' has numbers that are not finite")
    return known, tensors


def _is_modest(shape: Any) -> bool:
    """Whether no size of a network is beyond any, however deep it stands."""
    if isinstance(shape, dict | list):
        return all(map(_is_modest, shape.values() if isinstance(shape, dict) else shape))
    return not isinstance(shape, int | float) or abs(shape) <= MOST_SIZE


def network_of(make: Callable[[], Network], weights: Mapping[str, Tensor], path: Path | str, fix: str) -> Network:
    """The network with these weights, made once it is known that they are the ones it has."""
    with foreign(path, fix):
        with torch.device("meta"):
            wanted = {name: tuple(tensor.shape) for name, tensor in make().state_dict().items()}
        given = {name: tuple(tensor.shape) for name, tensor in weights.items()}
        if wanted != given:
            odd = sorted(name for name in wanted.keys() | given.keys() if wanted.get(name) != given.get(name))
            raise ValueError(f"'{odd[0]}' has the shape {given.get(odd[0])}, not {wanted.get(odd[0])}")
        network = make()
        network.load_state_dict(dict(weights))
    return network
