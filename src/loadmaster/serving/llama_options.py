"""llama.cpp's options, and where it puts a model by them.

`Options` is a placement in the only words llama.cpp has: which layers go to GPUs (-ngl), how they are cut among them
(-ts), whose experts or feed-forward parts stay on the host (--n-cpu-moe, -ot), how long the context is and what the
cache is made of (-c, -ctk, -ctv). `layout` says where llama.cpp then puts every byte, after its source
(src/llama-model.cpp load_tensors, src/llama-kv-cache.cpp); `read` turns a printed command back into `Options`, so that
what is shown is what the text says.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from loadmaster.cluster import Cluster
from loadmaster.errors import InvalidSetting
from loadmaster.graph.columns import Ints, ints
from loadmaster.serving.language import Language, Layer
from loadmaster.serving.requests import Requests
from loadmaster.serving.reserve import compute_bytes, reserve_of, streamed_bytes

# bytes of a number in the cache (ggml block sizes)
CACHES = {"f16": 2.0, "q8_0": 34 / 32, "q4_0": 18 / 32}
MICRO = 512  # tokens of a prompt that are read at a time (-ub)
PAD = 256  # tokens by which caches grow


@dataclass(frozen=True)
class Options:
    """What is typed.

    Attributes:
        offloaded: -ngl: layers on GPUs, counted from the last, the head among them.
        split: -ts: of those, in proportion; empty: one GPU.
        away: layers whose experts, or dense feed-forward parts, stay on the host.
        context: -c, of all sequences together.
        sequences: -np.
        key, value: -ctk, -ctv.
        micro: -ub.
    """

    offloaded: int
    split: tuple[int, ...] = ()
    away: tuple[int, ...] = ()
    context: int = 4096
    sequences: int = 1
    key: str = "f16"
    value: str = "f16"
    micro: int = MICRO

    @property
    def words(self) -> list[str]:
        """Without those of a server or of llama-bench alone."""
        found = ["-ngl", str(self.offloaded)]
        if len(self.split) > 1:
            found += ["-ts", ",".join(map(str, self.split))]
        return found

    def command(self, model: Language, tool: str = "llama-server") -> str:
        """The line to type."""
        words = [tool, "-m", model.file, *self.words, *self._away(model, "--n-cpu-moe")]
        words += ["-c", str(self.context), "-ctk", self.key, "-ctv", self.value, "-fa", "on"]
        words += ["-np", str(self.sequences)] if tool == "llama-server" else []
        return shlex.join(words)

    def at(self, context: int) -> Options:
        """The same with another context for each sequence."""
        return replace(self, context=-(-context // PAD) * PAD * self.sequences)

    def bench(self, model: Language, requests: Requests) -> tuple[str, str]:
        """(the run that checks a forecast, which of its rows do)."""
        prompt, new = str(requests.prompt), str(requests.new)
        if requests.batch > 1:
            line = self.command(model, "llama-batched-bench")
            more = shlex.join(["-npp", prompt, "-ntg", new, "-npl", str(requests.batch)])
            return f"{line} {more}", "columns S_PP and S_TG"
        words = ["llama-bench", "-m", model.file, "-ngl", str(self.offloaded)]
        words += ["-ts", "/".join(map(str, self.split))] if len(self.split) > 1 else []
        words += [*self._away(model, "-ncmoe"), "-ctk", self.key, "-ctv", self.value, "-fa", "1"]
        words += ["-p", prompt, "-n", new, "-d", f"0,{prompt}"]
        return shlex.join(words), f"rows pp{prompt} and tg{new} @ d{prompt}"

    def _away(self, model: Language, counted: str) -> list[str]:
        if not self.away:
            return []
        if model.experts and list(self.away) == list(range(len(self.away))):
            return [counted, str(len(self.away))]
        part = "(up|down|gate|gate_up)_(ch|)exps" if model.experts else "(up|down|gate)\\."
        return ["-ot", f"blk\\.({'|'.join(map(str, self.away))})\\.ffn_{part}=CPU"]


def read(command: str, model: Language) -> Options:
    """A printed command as the placement it asks for; InvalidSetting for options that are not known here."""
    words = shlex.split(command)[1:]
    given: dict[str, str] = {}
    for name, value in zip(words[::2], words[1::2], strict=True):
        given[name] = value
    known = {"-m", "-ngl", "-ts", "-ot", "--n-cpu-moe", "-c", "-ctk", "-ctv", "-fa", "-np", "-ub"}
    if other := sorted(set(given) - known):
        raise InvalidSetting(f"'{other[0]}' is not read here", command, f"use {', '.join(sorted(known))}")
    away = set(range(int(given.get("--n-cpu-moe", "0"))))
    part = "exps" if model.experts else "up"
    for rule in filter(None, given.get("-ot", "").split(",")):
        pattern, _, where = rule.rpartition("=")
        name = "ffn_up_exps.weight" if part == "exps" else "ffn_up.weight"
        if where == "CPU":
            away |= {i for i in range(len(model.layers)) if re.search(pattern, f"blk.{i}.{name}")}
    split = tuple(int(float(one)) for one in given.get("-ts", "").split(",") if one)
    return Options(
        int(given["-ngl"]),
        split,
        tuple(sorted(away)),
        int(given["-c"]),
        int(given.get("-np", "1")),
        given.get("-ctk", "f16"),
        given.get("-ctv", "f16"),
        int(given.get("-ub", MICRO)),
    )


@dataclass(frozen=True, eq=False)
class TensorLayout:
    """Where llama.cpp puts a model.

    Attributes:
        device: [layers + 1] of each layer and of the head, as an index of the cluster.
        ffn_device: [layers] of the experts or the dense feed-forward part.
        weights, cache, reserve: [devices] bytes.
    """

    device: Ints  # [layers + 1]
    ffn_device: Ints  # [layers]
    weights: Ints  # [devices]
    cache: Ints  # [devices]
    reserve: Ints  # [devices]

    @property
    def peak_bytes(self) -> Ints:
        return ints(self.weights + self.cache + self.reserve)


def gpus_and_host(cluster: Cluster) -> tuple[list[int], int | None]:
    """(GPUs as CUDA numbers them, the host if it is among the devices)."""
    kinds = [device.kind.startswith("cpu") for device in cluster.devices]
    return [i for i, host in enumerate(kinds) if not host], next((i for i, host in enumerate(kinds) if host), None)


def cached_tokens(layer: Layer, options: Options) -> int:
    """Tokens for which a layer has room, of all sequences."""
    each = -(-options.context // options.sequences // PAD) * PAD
    if layer.window:
        each = min(each, -(-(layer.window + options.micro) // PAD) * PAD)
    return each * options.sequences


def cache_bytes(layer: Layer, options: Options) -> int:
    """Of one layer."""
    numbers = layer.key * CACHES[options.key] + layer.value * CACHES[options.value]
    return round(cached_tokens(layer, options) * numbers) + layer.state_bytes * options.sequences


def layout(model: Language, options: Options, cluster: Cluster) -> TensorLayout:
    """Where every byte goes. Without a host among the devices, what llama.cpp keeps there is nobody's."""
    gpus, host = gpus_and_host(cluster)
    count, devices = len(model.layers), cluster.num_devices
    kept = np.zeros(devices + 1, np.int64)  # the last: a host that is not among the devices
    cache, on_host = np.zeros(devices + 1, np.int64), devices if host is None else host
    device = _devices(count, options, gpus, on_host)
    ffn = device[:-1].copy()
    ffn[list(options.away)] = on_host
    for i, layer in enumerate(model.layers):
        part = layer.expert_bytes if model.experts else layer.ffn_bytes
        kept[device[i]] += layer.weight_bytes - part
        kept[ffn[i]] += part
        cache[device[i]] += cache_bytes(layer, options)
    kept[on_host] += model.embedding_bytes + model.other_bytes
    kept[device[-1]] += model.output_bytes - (model.embedding_bytes if model.tied and device[-1] == on_host else 0)
    reserve = np.zeros(devices + 1, np.int64)
    for gpu in gpus:
        used, first = bool((device == gpu).any()), gpu == gpus[0]
        streams = streamed_bytes(model, [i for i in range(count) if ffn[i] == on_host], device[-1] == on_host)
        reserve[gpu] = fixed_bytes(cluster, gpu) + (streams if first else 0)
        reserve[gpu] += compute_bytes(model, options, bool(device[-1] == gpu)) if used else 0
    reserve[on_host] += compute_bytes(model, options, bool(device[-1] == on_host))
    return TensorLayout(ints(device), ints(ffn), *(ints(column[:devices]) for column in (kept, cache, reserve)))


def fixed_bytes(cluster: Cluster, gpu: int) -> int:
    """CUDA's context and pools on that GPU."""
    return reserve_of("llama.cpp").of(int(cluster.memory_bytes[gpu]))


def _devices(count: int, options: Options, gpus: Sequence[int], host: int) -> Ints:
    """[layers + 1] of the cluster."""
    return ints(np.array([host if gpu < 0 else gpus[gpu] for gpu in cut(count, options, len(gpus))]))


def cut(count: int, options: Options, gpus: int) -> list[int]:
    """[layers + 1] GPU of each layer and of the head, -1 for the host; in llama.cpp's own arithmetic of 32 bits."""
    if not gpus:
        return [-1] * (count + 1)
    weights = np.array(options.split[:gpus] or (1,), np.float32)
    ends = np.cumsum(weights, dtype=np.float32) / weights.sum(dtype=np.float32)
    offloaded = min(options.offloaded, count + 1)
    first, found = count + 1 - offloaded, []
    for i in range(count + 1):
        at = np.float32(i - first) / np.float32(max(1, offloaded))
        found.append(-1 if i < first else min(int(np.searchsorted(ends, at, "right")), gpus - 1))
    return found
