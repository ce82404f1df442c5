"""What `plan` and `fits` do with a language model that its files describe: llama.cpp's options, and whether it fits."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from loadmaster.cli import words
from loadmaster.cli.guarding import print_json
from loadmaster.errors import DoesNotFit, InvalidSetting

if TYPE_CHECKING:
    from loadmaster.cluster import Cluster
    from loadmaster.serving.fitting import Setup
    from loadmaster.serving.language import Language
    from loadmaster.serving.llama_cpp import Forecast, Pricing
    from loadmaster.serving.popularity import Popularity
    from loadmaster.serving.requests import Goal, Requests

DEFAULT_REQUESTS = "prompt=2048,new=256,batch=1"


def plan_language(
    model: str,
    on: str | None,
    serve: str,
    target: str | None,
    *,
    goal: Goal,
    cache: str,
    census: Path | None,
    refused: dict[str, Any],
    json: bool,
) -> None:
    """The command that serves the model soonest, what it comes to, and the command that checks it."""
    from loadmaster.cluster.presets import THIS_MACHINE
    from loadmaster.serving.llama_cpp import Pricing, best_options
    from loadmaster.serving.llama_options import read
    from loadmaster.serving.reading import language_of
    from loadmaster.serving.requests import Requests

    if target not in (None, "llama.cpp"):
        what = f"a GGUF file is served by llama.cpp, not by {target}"
        raise InvalidSetting(what, "--for", "leave it out, or give hf:FOLDER with the model's safetensors")
    for option, value in refused.items():
        if value is not None:
            raise InvalidSetting(f"{option} says nothing about '{model}'", option, "the command printed is the plan")
    cluster = words.cluster_of(on or THIS_MACHINE)
    language, requests = language_of(model.removeprefix("hf:")), Requests.of(serve or DEFAULT_REQUESTS)
    popularity = _popularity(language, census)
    pricing = Pricing(language, cluster, requests, popularity)
    best = best_options(pricing, goal, caches_of(cache))
    best = pricing.forecast(read(best.options.command(language), language), goal)  # what is shown is what the text says
    if json:
        print_json(_summary(pricing, best))
    else:
        _show(pricing, best, goal, census)
    if not best.fits:
        what = f"the model does not fit: {_size(best.over_bytes)} are missing"
        raise DoesNotFit(what, cluster.name, f"loadmaster fits {model} --on {cluster.name} says what would help")


def caches_of(text: str) -> tuple[str, ...]:
    """Types of the cache that may be taken, best first."""
    from loadmaster.serving.llama_options import CACHES

    if text != "auto" and text not in CACHES:
        raise InvalidSetting(f"'{text}' is no type of cache", "--cache", f"use auto, {', '.join(CACHES)}")
    return tuple(CACHES) if text == "auto" else (text,)


def _popularity(model: Language, census: Path | None) -> Popularity:
    from loadmaster.serving.popularity import Popularity, read_census

    if census is None:
        return Popularity(model.experts, model.chosen)
    if not model.experts:
        raise InvalidSetting(f"'{model.name}' has no experts", "--census", "leave it out")
    return read_census(census, model.experts, model.chosen, len(model.layers))


def _size(nbytes: float) -> str:
    from loadmaster.report.units import size_text

    return size_text(nbytes)


def _rates(requests: Requests, best: Forecast) -> tuple[list[float], list[float]]:
    """(tokens a second of prompts, of answers): expected, least, most."""
    read = [requests.batch * requests.prompt * 1e9 / max(1.0, ns) for ns in best.prefill_ns]
    new = [requests.batch * 1e9 / max(1.0, ns) for ns in best.token_ns]
    return [read[1], read[2], read[0]], [new[1], new[2], new[0]]


def _summary(pricing: Pricing, best: Forecast) -> dict[str, Any]:
    model, cluster, found = pricing.model, pricing.cluster, best.layout
    prefill, decode = _rates(pricing.requests, best)
    names = ("expected", "least", "most")
    columns = {"weight_bytes": found.weights, "cache_bytes": found.cache, "reserve_bytes": found.reserve}
    return {
        "model": model.name,
        "architecture": model.arch,
        "cluster": cluster.name,
        "requests": str(pricing.requests),
        "fits": best.fits,
        "command": best.options.command(model),
        "check": best.options.bench(model, pricing.requests)[0],
        "options": asdict(best.options),
        "prefill_tokens_per_s": dict(zip(names, prefill, strict=True)),
        "decode_tokens_per_s": dict(zip(names, decode, strict=True)),
        "longest_context": longest(pricing, best),
        "devices": {
            name: {key: int(column[i]) for key, column in columns.items()}
            | {"peak_bytes": int(found.peak_bytes[i]), "memory_bytes": int(cluster.memory_bytes[i])}
            for i, name in enumerate(cluster.device_names)
        },
        "assumed": list(model.notes),
    }


def longest(pricing: Pricing, best: Forecast) -> int:
    """Tokens of context for each sequence for which the same placement has room; 0 where it has none as it is."""
    if not best.fits:
        return 0
    low = best.options.context // best.options.sequences
    high = max(low, pricing.model.longest or low)
    while high - low > 256:
        middle = (low + high) // 2 // 256 * 256
        if middle <= low or not pricing.forecast(best.options.at(middle), "latency").fits:
            high = middle
        else:
            low = middle
    return high if pricing.forecast(best.options.at(high), "latency").fits else low


def _show(pricing: Pricing, best: Forecast, goal: str, census: Path | None) -> None:
    from loadmaster.report.terminal import console

    model, screen, requests = pricing.model, console(), pricing.requests
    kinds = ", ".join(f"{_size(size)} {kind}" for kind, size in list(model.types.items())[:3])
    experts = f", {model.experts} experts of which a token takes {model.chosen}" if model.experts else ""
    screen.print(
        f"{model.name}: {model.arch}, {len(model.layers)} layers{experts}; {_size(model.weight_bytes)} ({kinds})"
    )
    screen.print(f"on {pricing.cluster.name}, {requests}\n")
    screen.print(_table(model, pricing.cluster, best))
    for name, rate in zip(("prefill", "decode"), _rates(requests, best), strict=True):
        screen.print(f"{name}: {rate[0]:,.0f} tokens/s ({rate[1]:,.0f} to {rate[2]:,.0f})")
    screen.print("\n".join(_remarks(pricing, best, goal, census)), soft_wrap=True)
    if best.fits and model.file != model.path:
        print(f"\nfirst: convert_hf_to_gguf.py {model.path} --outfile {model.file} --outtype auto")
    if best.fits:
        print(f"\nrun:   {best.options.command(model)}")
        line, rows = best.options.bench(model, requests)
        print(f"check: {line}\n       {rows}")


def _table(model: Language, cluster: Cluster, best: Forecast) -> Any:
    from loadmaster.report.terminal import plain_table

    found, table = best.layout, plain_table("device", "~layers", ">weights", ">cache", ">reserve", ">peak", ">memory")
    head = len(found.ffn_device)
    for i, name in enumerate(cluster.device_names):
        layers = [layer for layer in range(head) if found.device[layer] == i]
        apart = [layer for layer in range(head) if found.ffn_device[layer] == i != found.device[layer]]
        held = [
            runs_of(layers),
            f"experts of {runs_of(apart)}" if apart else "",
            "head" if found.device[-1] == i else "",
        ]
        sizes = (found.weights[i], found.cache[i], found.reserve[i], found.peak_bytes[i], cluster.memory_bytes[i])
        table.add_row(name, ", ".join(filter(None, held)) or "-", *map(_size, sizes))
    return table


def runs_of(numbers: list[int]) -> str:
    """0-3, 7 of 0, 1, 2, 3, 7."""
    runs: list[list[int]] = []
    for number in numbers:
        if runs and runs[-1][-1] == number - 1:
            runs[-1].append(number)
        else:
            runs.append([number])
    return ", ".join(str(run[0]) if len(run) == 1 else f"{run[0]}-{run[-1]}" for run in runs)


def _remarks(pricing: Pricing, best: Forecast, goal: str, census: Path | None) -> Iterator[str]:
    """Where the figures come from, and what else there is to say of this plan."""
    from loadmaster.serving.reserve import reserve_of

    yield "basis: data-sheet rates times what published llama-bench runs reach of them; not tried on these devices"
    context = f"; {reserve_of('llama.cpp').source}" if pricing.gpus else ""
    yield f"reserve: compute buffers as llama.cpp reports them{context}"
    if best.fits:
        yield f"longest context with this placement: {longest(pricing, best):,} tokens a sequence"
    if (gain := _gain_of_cache(pricing, best, goal)) is not None:
        yield f"the cache in {best.options.key} costs some accuracy; with --cache f16: {gain}"
    if pricing.model.experts and census is None:
        yield "experts: taken as equally popular; a census (--census) says which layers need fewer"
    elif census is not None:
        yield f"experts: as counted in {census}; {_effect(pricing, best, goal)}"
    yield from (f"assumed: {note}" for note in pricing.model.notes)


def _gain_of_cache(pricing: Pricing, best: Forecast, goal: str) -> str | None:
    if best.options.key == "f16":
        return None
    from loadmaster.serving.llama_cpp import best_options

    plain = best_options(pricing, goal, ("f16",))
    return f"{plain.value / best.value:.2f}x the time" if plain.fits else "it does not fit"


def _effect(pricing: Pricing, best: Forecast, goal: str) -> str:
    """What the census changes: the plan that equal popularity leads to, under the census."""
    from loadmaster.serving.llama_cpp import Pricing, best_options
    from loadmaster.serving.popularity import Popularity

    model = pricing.model
    equal = Pricing(model, pricing.cluster, pricing.requests, Popularity(model.experts, model.chosen))
    blind = pricing.forecast(best_options(equal, goal, (best.options.key,)).options, goal)
    return f"the plan for equal popularity would take {blind.value / best.value:.3f}x the time"


def fits_setup(model: str, on: str, serve: str | None, weights: str | None, cache: str | None) -> Setup:
    """What `fits` asks of a model that is served."""
    from loadmaster.serving.fitting import Setup
    from loadmaster.serving.language import with_weights
    from loadmaster.serving.reading import language_of
    from loadmaster.serving.requests import Requests

    path = model.removeprefix("hf:")
    language = language_of(path)
    if path.endswith(".gguf") and weights is not None:
        raise InvalidSetting("a GGUF file says its weights itself", "--weights", "leave it out")
    precision = weights or ("" if words.is_read(model, None) else "bfloat16")
    if precision:
        with_weights(language, precision)
    types = caches_of(cache or "f16")
    return Setup(language, words.cluster_of(on), Requests.of(serve or DEFAULT_REQUESTS), types[0], precision)
