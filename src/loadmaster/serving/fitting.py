"""Fitting: whether a model fits, and the smallest change that makes it fit, each tried by planning for it.

Behind `loadmaster fits` for language models, from sizes alone: nothing is captured, so that the answer takes a moment.
Changes come in the order of what they give up, as they are found; none is told for which no placement was found.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from itertools import combinations

from loadmaster.cluster import Cluster
from loadmaster.cluster.growing import has_host, with_host, with_more
from loadmaster.serving.language import Language, with_weights
from loadmaster.serving.llama_cpp import Forecast, Pricing, best_options
from loadmaster.serving.llama_options import CACHES
from loadmaster.serving.popularity import Popularity
from loadmaster.serving.requests import Requests

MOST_CHANGES = 3  # together, as for other plans


@dataclass(frozen=True)
class ServingRemedy:
    """One way to make it fit.

    Attributes:
        what: in words.
        command: options that bring it about.
        request_ns: modelled time of a request then.
        peak_bytes: on the fullest device.
        cost: how much each part gives up, least first.
    """

    what: str
    command: str
    request_ns: float
    peak_bytes: int
    cost: tuple[int, ...] = ()


@dataclass(frozen=True)
class ServingFit:
    """Whether the model fits as it is.

    Attributes:
        fits: as it is.
        need_bytes: peak of the best placement on its fullest device.
        have_bytes: memory of that device.
        request_ns: modelled time of a request, as it is.
    """

    fits: bool
    need_bytes: int
    have_bytes: int
    request_ns: float


@dataclass(frozen=True)
class Setup:
    """What is asked to fit.

    Attributes:
        model: by its sizes.
        cluster: with the memory that is there.
        requests: to be answered.
        cache: of which type the cache may be.
        precision: of the weights; "": as the file has them.
    """

    model: Language
    cluster: Cluster
    requests: Requests
    cache: str = "f16"
    precision: str = ""


@dataclass(frozen=True)
class _ServingCandidate:
    what: str
    command: Callable[[Setup], str]  # of the setup with all changes in it
    cost: int
    kind: str  # two of a kind are not combined
    change: Callable[[Setup], Setup]


def placed(setup: Setup) -> Forecast:
    """The best placement of the setup."""
    model = with_weights(setup.model, setup.precision) if setup.precision else setup.model
    popularity = Popularity(model.experts, model.chosen)
    return best_options(Pricing(model, setup.cluster, setup.requests, popularity), "latency", (setup.cache,))


def fit(setup: Setup) -> ServingFit:
    """Whether it fits as it is."""
    best = placed(setup)
    short = _fullest(best, setup.cluster)
    need = int(best.layout.peak_bytes[short])
    need += best.over_bytes if not best.fits and setup.cluster.memory_bytes[short] >= need else 0
    return ServingFit(best.fits, need, int(setup.cluster.memory_bytes[short]), best.value)


def _fullest(best: Forecast, cluster: Cluster) -> int:
    return int((best.layout.peak_bytes - cluster.memory_bytes).argmax())


def remedies(setup: Setup) -> Iterator[ServingRemedy]:
    """The fewest changes after which it fits, in the order of what they give up; of a kind the mildest."""
    candidates = list(_candidates(setup))
    for count in range(1, MOST_CHANGES + 1):
        done: set[tuple[str, ...]] = set()
        for some in sorted(combinations(candidates, count), key=_cost):
            kinds = tuple(remedy.kind for remedy in some)
            if len(set(kinds)) < count or kinds in done or {"host", "devices"} <= set(kinds):
                continue
            changed = setup
            for remedy in some:
                changed = remedy.change(changed)
            best = placed(changed)
            if best.fits:
                done.add(kinds)
                yield _told(some, changed, best)
        if done:
            return


def _cost(some: tuple[_ServingCandidate, ...]) -> tuple[int, ...]:
    return tuple(sorted((remedy.cost for remedy in some), reverse=True))


def _told(some: tuple[_ServingCandidate, ...], changed: Setup, best: Forecast) -> ServingRemedy:
    command = " ".join(dict.fromkeys(remedy.command(changed) for remedy in some))
    what = " and ".join(remedy.what for remedy in some)
    peak = int(best.layout.peak_bytes[_fullest(best, changed.cluster)])
    return ServingRemedy(what, command, best.value, peak, _cost(some))


def _candidates(setup: Setup) -> Iterator[_ServingCandidate]:
    """What keeps the answers as they are comes first, hardware last; of a kind, the mildest first."""
    if not has_host(setup.cluster):
        on, typed = with_host(setup.cluster)
        yield _ServingCandidate("layers in host memory, computed there", _said(typed), 0, "host", _on(on))
    if setup.model.path.endswith(".gguf"):
        for cache in list(CACHES)[list(CACHES).index(setup.cache) + 1 :]:
            change = _cached_in(cache)
            yield _ServingCandidate(f"the cache in {cache}", _said(f"--cache {cache}"), 1, "cache", change)
    for batch in _halves(setup.requests.batch):
        yield _ServingCandidate(f"a smaller batch of {batch}", _asked, 2, "batch", _asking(batch=batch))
    for prompt in _halves(setup.requests.prompt)[:4]:
        yield _ServingCandidate(f"a shorter prompt of {prompt}", _asked, 3, "prompt", _asking(prompt=prompt))
    if setup.precision:
        for precision in ("int8", "int4")[{"int8": 1, "int4": 2}.get(setup.precision, 0) :]:
            said = _said(f"--weights {precision}")
            yield _ServingCandidate(f"weights as {precision}", said, 4, precision, _as(precision))
    for count in (1, 3):
        on, typed = with_more(setup.cluster, count)
        what = f"{count} more device{'s' if count > 1 else ''} like '{on.devices[0].kind}'"
        yield _ServingCandidate(what, _said(typed), 5, "devices", _on(on))


def _said(text: str) -> Callable[[Setup], str]:
    return lambda setup: text


def _asked(setup: Setup) -> str:
    return f"--serve {setup.requests}"


def _asking(**settings: int) -> Callable[[Setup], Setup]:
    return lambda setup: replace(setup, requests=replace(setup.requests, **settings))


def _on(cluster: Cluster) -> Callable[[Setup], Setup]:
    return lambda setup: replace(setup, cluster=cluster)


def _as(precision: str) -> Callable[[Setup], Setup]:
    return lambda setup: replace(setup, precision=precision)


def _cached_in(cache: str) -> Callable[[Setup], Setup]:
    return lambda setup: replace(setup, cache=cache)


def _halves(number: int) -> list[int]:
    return [number >> times for times in range(1, number.bit_length())]
