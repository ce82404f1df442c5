"""Phases: what a causal language model runs for a request, captured without allocating a weight.

Prefill reads the prompt once. Decode is captured twice, with the cache as it is after the prompt and as it is at the
end; its time grows evenly between the two, so that their mean is that of a token. The cache is an input of decode: it
is read where its layer runs and never leaves it; what a token adds to it is an output.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from loadmaster.errors import ImportFailed, InvalidSetting, MissingExtra, UnreadableFile
from loadmaster.graph import Graph
from loadmaster.importers.torch.export import capture
from loadmaster.importers.torch.step import Target, fake_mode
from loadmaster.serving.requests import Requests

DTYPES = {"float32": torch.float32, "float16": torch.float16, "bfloat16": torch.bfloat16}


@dataclass(frozen=True, eq=False)
class Phase:
    """One graph of a request.

    Attributes:
        name: prefill, or one of the two decodes.
        graph: as captured.
        times: that a request runs it: prefill once, each decode for half of the new tokens.
    """

    name: str
    graph: Graph
    times: float


@dataclass(frozen=True, eq=False)
class Served:
    """A model and the phases of a request to it.

    Attributes:
        name: of the model.
        model: without memory.
        blocks: modules that no runtime splits.
        phases: prefill, and decode at its first and at its last length.
        requests: what they are of.
        dtype: of what is computed.
    """

    name: str
    model: nn.Module
    blocks: tuple[str, ...]
    phases: tuple[Phase, ...]
    requests: Requests
    dtype: str


def serve(path: str | Path, requests: Requests, dtype: str = "bfloat16") -> Served:
    """The model of a folder with a config.json, at work on such requests."""
    model = build(path, dtype)
    blocks = blocks_of(model)
    shape = _cache_shape(model, requests.batch)
    prompt = _fake(lambda: torch.zeros(requests.batch, requests.prompt, dtype=torch.long))
    token = _fake(lambda: torch.zeros(requests.batch, 1, dtype=torch.long))
    last = requests.prompt + requests.new
    phases = (
        Phase("prefill", _captured(_Prefill(model), (prompt,), "prefill"), 1.0),
        Phase("decode, first", _decode(model, token, shape, requests.prompt + 1, dtype), requests.new / 2),
        Phase("decode, last", _decode(model, token, shape, last, dtype), requests.new / 2),
    )
    name = Path(path).parent.name if Path(path).is_file() else Path(path).name
    return Served(name or type(model).__name__, model, blocks, phases, requests, dtype)


def build(path: str | Path, dtype: str = "bfloat16") -> nn.Module:
    """The causal language model that a config.json describes, its weights without memory and without a download."""
    if dtype not in DTYPES:
        raise InvalidSetting(f"'{dtype}' is no type of weights here", "--weights", f"use one of {', '.join(DTYPES)}")
    config = _config(Path(path))
    transformers = _transformers()
    try:
        with fake_mode(), _quiet(transformers):
            model: nn.Module = transformers.AutoModelForCausalLM.from_config(config, dtype=DTYPES[dtype])
    except ValueError as error:
        what = f"'{path}' describes no causal language model: {str(error).splitlines()[0]}"
        raise ImportFailed(what, str(path), "give the config.json of a model that generates text") from None
    return model.eval()


def _config(path: Path) -> Any:
    file = path / "config.json" if path.is_dir() else path
    try:
        data = json.loads(file.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise UnreadableFile(f"there is no '{file}'", str(path), "give a folder with a config.json") from None
    except (OSError, UnicodeDecodeError, json.JSONDecodeError) as error:
        raise UnreadableFile(f"'{file}' cannot be read: {error}", str(path), "is it the model's config.json?") from None
    if not isinstance(data, dict) or not isinstance(kind := data.pop("model_type", None), str):
        raise UnreadableFile(f"'{file}' names no model_type", str(path), "is it the model's config.json?")
    transformers = _transformers()
    try:
        return transformers.AutoConfig.for_model(kind, **data)
    except ValueError as error:
        what = f"models of type '{kind}' are not known to transformers {transformers.__version__}"
        raise ImportFailed(what, str(file), "upgrade transformers, or give package.module:callable") from error


def _transformers() -> Any:
    try:
        import transformers
    except ModuleNotFoundError:
        raise MissingExtra.of("transformers", "zoo", "a model from its config.json") from None
    return transformers


@contextmanager
def _quiet(transformers: Any) -> Iterator[None]:
    level = transformers.logging.get_verbosity()
    transformers.logging.set_verbosity_error()
    try:
        yield
    finally:
        transformers.logging.set_verbosity(level)


def blocks_of(model: nn.Module) -> tuple[str, ...]:
    """Paths of the modules that their authors say must not be split; layers of a list where nobody says."""
    kinds = set(getattr(model, "_no_split_modules", None) or ())
    named = [(name, module) for name, module in model.named_modules() if name]
    blocks = [name for name, module in named if type(module).__name__ in kinds]
    return tuple(blocks) or tuple(name for name, _ in named if name.rpartition(".")[2].isdecimal())


def _fake(make: Callable[[], Tensor]) -> Tensor:
    with fake_mode():
        return make()


def _cache_shape(model: nn.Module, batch: int) -> list[tuple[int, int, int]]:
    """[layers] (batch, heads, size) of keys and values."""
    whole: Any = model
    config = whole.config.get_text_config()
    heads = getattr(config, "num_key_value_heads", None) or config.num_attention_heads
    size = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
    return [(batch, heads, size)] * config.num_hidden_layers


def _decode(model: nn.Module, token: Tensor, shape: list[tuple[int, int, int]], context: int, dtype: str) -> Graph:
    def keys() -> Tensor:
        batch, heads, size = shape[0]
        return torch.empty(batch, heads, context, size, dtype=DTYPES[dtype])

    cache = [(_fake(keys), _fake(keys)) for _ in shape]
    return _captured(_Decode(model), (token, cache), f"decode at {context}")


def _captured(module: nn.Module, inputs: Any, name: str) -> Graph:
    """The graph, with paths as they are in the model itself."""
    from dataclasses import replace

    graph = capture(module.eval(), inputs, training=False, name=name, target=Target(masks=True))
    return replace(
        graph,
        scope=tuple(scope.removeprefix("model").removeprefix(".") for scope in graph.scope),
        tensor_name=tuple(tensor.removeprefix("model.") for tensor in graph.tensor_name),
    )


class _Prefill(nn.Module):
    """The prompt goes in; the scores of the next token and the cache come out."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, ids: Tensor) -> Any:
        out = self.model(input_ids=ids, use_cache=True, logits_to_keep=1)
        return out.logits, [(layer.keys, layer.values) for layer in out.past_key_values.layers]


class _Decode(nn.Module):
    """A token and the cache go in; the scores of the next token and what the cache gains come out."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, ids: Tensor, filled: list[tuple[Tensor, Tensor]]) -> Any:
        cache, gained = _filled(filled)
        out = self.model(input_ids=ids, past_key_values=cache, use_cache=True)
        return out.logits, gained


def _filled(filled: list[tuple[Tensor, Tensor]]) -> tuple[Any, list[Tensor]]:
    """A cache that is full up to this token, whose place is in it already, and the list of what is put there."""
    from transformers import cache_utils

    gained: list[Tensor] = []
    kinds: Any = cache_utils

    def update(self: Any, key_states: Tensor, value_states: Tensor, *args: Any, **settings: Any) -> Any:
        gained.extend((key_states, value_states))
        return self.keys, self.values

    own = {
        "update": update,
        "get_seq_length": lambda self, *args: int(self.keys.shape[2]) - 1,
        "get_mask_sizes": lambda self, *args: (int(self.keys.shape[2]), 0),
    }
    full = type("Full", (kinds.DynamicLayer,), own)
    cache = kinds.DynamicCache()
    cache.layers = [_layer(full, keys, values) for keys, values in filled]
    return cache, gained


def _layer(full: type, keys: Tensor, values: Tensor) -> Any:
    layer: Any = full()
    layer.keys, layer.values = keys, values
    layer.dtype, layer.device, layer.is_initialized = keys.dtype, keys.device, True
    return layer
