"""llama.cpp: the options that serve requests soonest within memory.

`Pricing` times a request under `Options` by the roofline of each device; `best_options` looks for the best of them.
Stages are timed one after the other: several prompts that follow each other through several GPUs are not.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np

from loadmaster.cluster import Cluster
from loadmaster.serving.language import Language
from loadmaster.serving.llama_options import (
    CACHES,
    MICRO,
    PAD,
    Options,
    TensorLayout,
    cache_bytes,
    fixed_bytes,
    gpus_and_host,
    layout,
)
from loadmaster.serving.popularity import Popularity
from loadmaster.serving.requests import Requests
from loadmaster.serving.reserve import compute_bytes, streamed_bytes

STREAMED_FROM = 32  # tokens from which products with weights in host memory are sent to a GPU (ggml-cuda, offload_op)

# Part of the data sheet's rate that kernels reach: (least, middle, most), for an interval. Middle from published
# llama-bench runs: an 8B model at -ub 512 reads prompts at 69 of 71 TFLOP/s on an RTX 3090 (IQ4_XS, llama.cpp pull
# request 8416) and 122 of 165 on an RTX 4090 (Q2_K, pull request 7921); 7B in F16 decodes at 737 GB/s (pull request
# 3776). Not measured by this project.
_ARITHMETIC = (0.4, 0.75, 1.0)
_BANDWIDTH = (0.55, 0.75, 0.9)
_HOST_BANDWIDTH = (0.4, 0.65, 0.85)
_LINK = (0.4, 0.7, 0.95)
KERNELS = 10  # of a layer


@dataclass(frozen=True, eq=False)
class Forecast:
    """Options and what they are expected to come to.

    Attributes:
        options: typed.
        layout: what llama.cpp makes of them.
        prefill_ns: of the prompts of a batch: (least, expected, most).
        token_ns: of one token of each sequence, on average: likewise.
        over_bytes: beyond the memory of the devices.
        value: what the goal makes small, ns.
    """

    options: Options
    layout: TensorLayout
    prefill_ns: tuple[float, float, float]
    token_ns: tuple[float, float, float]
    over_bytes: int
    value: float

    @property
    def fits(self) -> bool:
        return self.over_bytes == 0


class Pricing:
    """Times of layers, of one request on one cluster: tables once, then sums."""

    def __init__(self, model: Language, cluster: Cluster, requests: Requests, popularity: Popularity) -> None:
        self.model, self.cluster, self.requests, self.popularity = model, cluster, requests, popularity
        self.gpus, self.host = gpus_and_host(cluster)

    def forecast(self, options: Options, goal: str) -> Forecast:
        """What those options are expected to come to."""
        found = layout(self.model, options, self.cluster)
        spread = [self.times(options, found, level) for level in (2, 1, 0)]
        prefill, token = (tuple(times[i] for times in spread) for i in (0, 1))
        missing = 0 if self.host is not None else self._homeless(options)
        over = int(np.maximum(found.peak_bytes - self.cluster.memory_bytes, 0).sum()) + missing
        value = {"first-token": prefill[1], "per-token": token[1]}.get(goal, prefill[1] + self.requests.new * token[1])
        return Forecast(options, found, prefill, token, over, value)  # type: ignore[arg-type]

    def _homeless(self, options: Options) -> int:
        """Bytes of layers for a host that is not there; its table of words alone is no obstacle."""
        kept = [self.model.layers[i].weight_bytes for i in range(len(self.model.layers) + 1 - options.offloaded)]
        return sum(kept) + sum(self.model.layers[i].weight_bytes for i in options.away)

    def times(self, options: Options, found: TensorLayout, level: int) -> tuple[float, float]:
        """(prefill, token) in ns, at one level of what kernels reach."""
        totals = []
        for decode in (False, True):
            rows = [self.layer(i, int(found.device[i]), int(found.ffn_device[i]), options, decode, level)
                    for i in range(len(self.model.layers))]  # fmt: skip
            head = self.head(int(found.device[-1]), decode, level)
            cuts = int((np.diff(found.device) != 0).sum())
            totals.append(sum(rows) + head + cuts * self.hop(self._tokens(decode), level))
        return totals[0], totals[1]

    def _tokens(self, decode: bool) -> int:
        return self.requests.batch * (1 if decode else self.requests.prompt)

    def hop(self, tokens: int, level: int) -> float:
        """Hidden states from one device to another, there or back."""
        if self.cluster.num_devices == 1:
            return 0.0
        link = next(iter(self.cluster.links.values()))
        rate = (link.bytes_per_s or 1e18) * _LINK[level]
        return link.latency_ns + 4.0 * self.model.width * tokens * 1e9 / rate

    def layer(self, number: int, device: int, ffn: int, options: Options, decode: bool, level: int) -> float:
        """ns of one layer, for a token of each sequence or for all prompts."""
        layer, tokens = self.model.layers[number], self._tokens(decode)
        depth = self.requests.prompt + self.requests.new / 2 if decode else self.requests.prompt / 2
        seen = min(depth, layer.window) if layer.window else depth
        numbers = layer.key * CACHES[options.key] + layer.value * CACHES[options.value]
        reads = self.requests.batch if decode else tokens / MICRO
        dense = layer.attention_bytes, layer.attention_values
        scores = 2.0 * seen * self.model.width * 2
        time = self.part(device, *dense, tokens, level, reads * seen * numbers, scores)
        share = self.popularity.share(number, tokens if decode else min(tokens, MICRO))
        used = layer.ffn_bytes + layer.expert_bytes * share
        chosen = self.model.chosen / max(1, self.model.experts)
        values = layer.ffn_values + layer.expert_values * chosen
        time += self.part(ffn, used, values, tokens, level)
        return time + (2 * self.hop(tokens, level) if ffn != device else 0.0)

    def head(self, device: int, decode: bool, level: int) -> float:
        """The last product, of one token of each sequence."""
        return self.part(device, self.model.output_bytes, self.model.output_values, self.requests.batch, level)

    def part(
        self, device: int, nbytes: float, values: float, tokens: int, level: int, more: float = 0.0, scores: float = 0.0
    ) -> float:
        """ns of products with so many bytes of weights: as arithmetic or bandwidth has it, whichever is longer."""
        host = device not in self.gpus
        times = -(-tokens // MICRO)
        if host and tokens >= STREAMED_FROM and self.gpus:  # sent to the first GPU for every part of the prompt
            if self.host is None:
                return float("inf")
            link = self.cluster.links[self.host, self.gpus[0]]
            sent = times * nbytes * 1e9 / ((link.bytes_per_s or 1e18) * _LINK[level])
            return max(sent, self.part(self.gpus[0], nbytes, values, tokens, level, more, scores))
        if host and self.host is None:
            return float("inf")
        found = self.cluster.devices[self.host if host and self.host is not None else device]
        bandwidth = found.bytes_per_s * (_HOST_BANDWIDTH if host else _BANDWIDTH)[level]
        work = (2.0 * values + scores) * tokens / (found.rate("default" if host else "float16") * _ARITHMETIC[level])
        return max(work, (times * nbytes + more) / bandwidth) * 1e9 + times * KERNELS / 2 * found.launch_ns


def best_options(pricing: Pricing, goal: str, caches: Sequence[str] = tuple(CACHES)) -> Forecast:
    """The options that serve soonest of those that fit; of those that do not, what is least over.

    What does not fit on the GPUs stays on the host in three ways: experts or feed-forward parts of the fewest layers,
    the fewest whole layers, or all experts and the fewest layers; each with the best cut among the GPUs. A cache in
    q8_0 is taken only where that is over 5 % faster, one in q4_0 only where no other fits.
    """
    best = _best_of_cache(pricing, goal, caches[0])
    for cache in caches[1:]:
        if best.fits and (cache == "q4_0" or not pricing.gpus or _all_on_gpus(best)):
            break
        found = _best_of_cache(pricing, goal, cache)
        if (found.over_bytes, found.value * 1.05) < (best.over_bytes, best.value):
            best = found
    return best


def _all_on_gpus(found: Forecast) -> bool:
    return not found.options.away and found.options.offloaded > len(found.layout.ffn_device)


def base_options(pricing: Pricing, cache: str = "f16") -> Options:
    """All on GPUs, with room for the requests."""
    asked = pricing.requests
    each = -(-(asked.prompt + asked.new) // PAD) * PAD
    return Options(len(pricing.model.layers) + 1, (), (), each * asked.batch, asked.batch, cache, cache)


def _best_of_cache(pricing: Pricing, goal: str, cache: str) -> Forecast:
    model, count = pricing.model, len(pricing.model.layers)
    start = base_options(pricing, cache)
    if not pricing.gpus:
        return pricing.forecast(replace(start, offloaded=0), goal)
    order = pricing.popularity.least_used(count, pricing.requests.batch)

    def tried(on: int, away: int) -> Forecast:
        parts = tuple(sorted(i for i in order[:away] if i >= count + 1 - on))
        return pricing.forecast(_cut(pricing, replace(start, offloaded=on, away=parts)), goal)

    found = [tried(count + 1, 0)]
    if pricing.host is not None and not found[0].fits:
        found.append(_first_that_fits(lambda away: tried(count + 1, away), count))
        found.append(_first_that_fits(lambda host: tried(count + 1 - host, 0), count + 1))
        if model.experts:
            found.append(_first_that_fits(lambda host: tried(count + 1 - host, count), count + 1))
    return min(found, key=lambda one: (one.over_bytes, one.value))


def _first_that_fits(tried: Callable[[int], Forecast], most: int) -> Forecast:
    """The least number for which it fits: more on the host is slower and takes less of the GPUs."""
    low, high, best = 0, most, tried(most)
    while low < high:
        middle = (low + high) // 2
        found = tried(middle)
        if found.fits:
            high, best = middle, found
        else:
            low = middle + 1
    return best


def _cut(pricing: Pricing, options: Options) -> Options:
    """The best -ts: stages in the order of the GPUs, by dynamic programming over (GPU, layers so far)."""
    gpus, model = pricing.gpus, pricing.model
    count = len(model.layers)
    first = count + 1 - min(options.offloaded, count + 1)
    if len(gpus) == 1 or first > count:
        return options
    options = replace(options, split=(1,) * len(gpus))  # inputs are there several times where there are several GPUs
    items = range(first, count + 1)
    sizes = np.array([_held(model, i, options) for i in items], float)
    memory = pricing.cluster.memory_bytes
    reached = np.full(len(items) + 1, np.inf)
    reached[0], came = 0.0, []
    for gpu in gpus:
        times = np.array([_time(pricing, i, gpu, options) for i in items])
        room = memory[gpu] - fixed_bytes(pricing.cluster, gpu) - compute_bytes(model, options, False)
        if gpu == gpus[0]:
            room -= streamed_bytes(model, [*range(first), *options.away], False)
        reached, origin = _advance(reached, times, sizes, room, compute_bytes(model, options, True), gpu == gpus[-1])
        came.append(origin)
    counts, at = [], len(items)
    for origin in reversed(came):
        counts.append(at - int(origin[at]))
        at = int(origin[at])
    return replace(options, split=tuple(reversed(counts)))


def _advance(
    reached: np.ndarray, times: np.ndarray, sizes: np.ndarray, room: float, more: float, last: bool
) -> tuple[np.ndarray, np.ndarray]:
    """(least time with so many items placed up to this GPU, where it came from). What does not fit costs what it is
    over, so that there is always a cut; the one with the head has `more` to hold."""
    time, held = (np.concatenate([[0.0], np.cumsum(column)]) for column in (times, sizes))
    block, size = time[None, :] - time[:, None], held[None, :] - held[:, None]  # [from, to]
    limit = np.where(np.arange(len(time)) == len(times), room - more, room)[None, :]
    over = np.maximum(size - limit, 0.0) * (size > 0)
    cost = reached[:, None] + block + over * 1e6
    cost[np.tril_indices(len(time), -1)] = np.inf
    if last:
        cost[:, :-1] = np.inf
    origin = cost.argmin(axis=0)
    return cost[origin, np.arange(len(time))], origin


def _held(model: Language, item: int, options: Options) -> int:
    """Bytes of a layer, or of the head, on its GPU."""
    if item == len(model.layers):
        return model.output_bytes
    layer = model.layers[item]
    part = (layer.expert_bytes if model.experts else layer.ffn_bytes) if item in options.away else 0
    return layer.weight_bytes - part + cache_bytes(layer, options)


def _time(pricing: Pricing, item: int, gpu: int, options: Options) -> float:
    """ns of a request that an item takes on a GPU; what is on the host takes the same everywhere."""
    asked, model = pricing.requests, pricing.model
    if item == len(model.layers):
        return pricing.head(gpu, False, 1) + asked.new * pricing.head(gpu, True, 1)
    ffn = -1 if item in options.away else gpu
    return pricing.layer(item, gpu, ffn, options, False, 1) + asked.new * pricing.layer(
        item, gpu, ffn, options, True, 1
    )
