"""Fitting: whether a model fits, and the smallest change that makes it fit, each tried by planning for it.

Behind `loadmaster fits` for language models: fewer bits, smaller requests, a host or more devices, the fewest changes
that do, those that give up least first. A remedy is only told where a placement was found.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import cache
from itertools import combinations
from pathlib import Path
from typing import Any

from loadmaster.cluster import Cluster
from loadmaster.cluster.growing import has_host, with_host, with_more
from loadmaster.serving.placing import Placement, place
from loadmaster.serving.planning import captured_in, priced
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
    """Whether the model fits as it is, and what would help, cheapest first.

    Attributes:
        fits: as it is.
        need_bytes: peak of the best placement on its fullest device.
        have_bytes: memory of that device.
        request_ns: modelled time of a request, as it is.
        changes: that make it fit, cheapest first; empty where it fits.
    """

    fits: bool
    need_bytes: int
    have_bytes: int
    request_ns: float
    changes: tuple[ServingRemedy, ...]


def fit(
    path: str | Path, cluster: Cluster, requests: Requests, *, precision: str = "bfloat16", seconds: float = 1.0
) -> ServingFit:
    """Plans for the cluster as it is; where that does not fit, for every change that might help."""

    from loadmaster.serving.phases import serve

    @cache
    def captured(asked: Requests, dtype: str) -> Any:
        return serve(path, asked, dtype)

    def tried(setup: _ServingSetup) -> Placement:
        served = captured(setup.requests, captured_in(setup.precision))
        return place(priced(served, setup.cluster, precision=setup.precision), seconds=seconds)

    setup = _ServingSetup(cluster, requests, precision)
    best = tried(setup)
    changes = () if best.fits else tuple(_helpful(setup, tried))
    short = int((best.peak_bytes - cluster.memory_bytes).argmax())
    have = int(cluster.memory_bytes[short])
    ranked = tuple(sorted(changes, key=lambda change: (change.cost, change.request_ns)))
    return ServingFit(best.fits, int(best.peak_bytes[short]), have, best.value, ranked)


@dataclass(frozen=True)
class _ServingSetup:
    cluster: Cluster
    requests: Requests
    precision: str


@dataclass(frozen=True)
class _ServingCandidate:
    what: str
    command: Callable[[_ServingSetup], str]  # of the setup with all changes in it
    cost: int
    kind: str  # two of a kind are not combined
    change: Callable[[_ServingSetup], _ServingSetup]


def _helpful(setup: _ServingSetup, tried: Callable[[_ServingSetup], Placement]) -> Iterator[ServingRemedy]:
    """The fewest changes after which a plan was found that fits, of a kind the mildest; no other is ever told."""
    remedies = list(_remedies(setup))
    for count in range(1, MOST_CHANGES + 1):
        done: set[tuple[str, ...]] = set()
        for some in combinations(remedies, count):
            kinds = tuple(remedy.kind for remedy in some)
            if len(set(kinds)) < count or kinds in done or {"host", "devices"} <= set(kinds):
                continue
            changed = setup
            for remedy in some:
                changed = remedy.change(changed)
            placement = tried(changed)
            if placement.fits:
                done.add(kinds)
                yield _told(some, changed, placement)
        if done:
            return


def _told(some: tuple[_ServingCandidate, ...], changed: _ServingSetup, placement: Placement) -> ServingRemedy:
    command = " ".join(dict.fromkeys(remedy.command(changed) for remedy in some))
    cost = tuple(sorted(remedy.cost for remedy in some))
    what = " and ".join(remedy.what for remedy in some)
    fullest = int((placement.peak_bytes / changed.cluster.memory_bytes).argmax())
    return ServingRemedy(what, command, placement.value, int(placement.peak_bytes[fullest]), cost)


def _remedies(setup: _ServingSetup) -> Iterator[_ServingCandidate]:
    """What keeps the answers as they are comes first, hardware last; of a kind, the mildest first."""
    if not has_host(setup.cluster):
        on, typed = with_host(setup.cluster)
        what = "weights in host memory, streamed or computed there"
        yield _ServingCandidate(what, _said(typed), 0, "host", _on(on))
    for batch in _halves(setup.requests.batch):
        yield _ServingCandidate(f"a smaller batch of {batch}", _asked, 1, "batch", _asking(batch=batch))
    for prompt in _halves(setup.requests.prompt)[:4]:
        yield _ServingCandidate(f"a shorter prompt of {prompt}", _asked, 2, "prompt", _asking(prompt=prompt))
    for dtype in ("int8", "int4")[{"int8": 1, "int4": 2}.get(setup.precision, 0) :]:
        yield _ServingCandidate(f"weights as {dtype}", _said(f"--weights {dtype}"), 3, dtype, _as(dtype))
    for count in (1, 3):
        on, typed = with_more(setup.cluster, count)
        what = f"{count} more device{'s' if count > 1 else ''} like '{on.devices[0].kind}'"
        yield _ServingCandidate(what, _said(typed), 4, "devices", _on(on))


def _said(text: str) -> Callable[[_ServingSetup], str]:
    return lambda setup: text


def _asked(setup: _ServingSetup) -> str:
    return f"--serve {setup.requests}"


def _asking(**settings: int) -> Callable[[_ServingSetup], _ServingSetup]:
    return lambda setup: replace(setup, requests=replace(setup.requests, **settings))


def _on(cluster: Cluster) -> Callable[[_ServingSetup], _ServingSetup]:
    return lambda setup: replace(setup, cluster=cluster)


def _as(precision: str) -> Callable[[_ServingSetup], _ServingSetup]:
    return lambda setup: replace(setup, precision=precision)


def _halves(number: int) -> list[int]:
    return [number >> times for times in range(1, number.bit_length())]
