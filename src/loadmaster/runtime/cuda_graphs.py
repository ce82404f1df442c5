"""Piecewise CUDA graphs: stretches of a program that stay on one GPU are recorded once and then replayed.

Sends, waits and calls on the CPU stay outside. A stretch is recorded in the third step, after two that ran call by
call and warmed everything up; what it is given that changes from step to step is copied into place first. Graphs are
kept only where a step with them is faster than one without. What settings of the optimizer were baked in is watched,
and a change records anew.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from loadmaster.runtime.listing import Line, Listing, ListingPart

LEAST_CALLS = 8  # a replay costs about as much as launching a few kernels


class Segment:
    """One stretch, replayed once it was recorded."""

    def __init__(
        self, run: Callable[..., list[Tensor]], fixed: Sequence[bool], device: torch.device, pools: dict[Any, Any]
    ) -> None:
        self.run, self.fixed, self.device, self.pools = run, fixed, device, pools
        self.graph: torch.cuda.CUDAGraph | None = None
        self.given: list[Tensor] = []
        self.made: list[Tensor] = []

    def __call__(self, *given: Tensor) -> list[Tensor]:
        if self.graph is None:
            self._record(given)
        else:
            for mine, theirs, fixed in zip(self.given, given, self.fixed, strict=True):
                if not fixed:
                    mine.copy_(theirs)
        assert self.graph is not None
        self.graph.replay()
        return list(self.made)

    def _record(self, given: Sequence[Tensor]) -> None:
        self.given = [value if fixed else value.clone() for value, fixed in zip(given, self.fixed, strict=True)]
        graph = torch.cuda.CUDAGraph()
        torch.cuda.synchronize(self.device)
        if self.device not in self.pools:
            self.pools[self.device] = torch.cuda.graph_pool_handle()
        with torch.cuda.device(self.device), torch.cuda.graph(graph, pool=self.pools[self.device]):
            self.made = self.run(*self.given)
        self.graph = graph


def with_segments(
    listing: Listing, devices: Sequence[torch.device], fixed: set[str], make: Callable[..., Any] = Segment
) -> tuple[Listing, int]:
    """The listing with each stretch of calls on one GPU as one call, and how many there are. `fixed`: residents that
    are the same tensor in every step."""
    pools: dict[torch.device, Any] = {}
    known = set(fixed)

    def made(part: ListingPart) -> Any:
        segment = make(part.run, [one in known for one in part.given], devices[part.lines[0].device], pools)
        known.update(part.made)
        return segment

    spans = [
        (start, end)
        for start, end in _stretches(listing.lines, devices)
        if end - start >= LEAST_CALLS and _is_recordable(listing.lines[start], devices)
    ]
    return listing.joined(spans, made, "s"), len(spans)


def _is_recordable(line: Line, devices: Sequence[torch.device]) -> bool:
    return not line.alone and devices[line.device].type == "cuda"


def _stretches(lines: Sequence[Line], devices: Sequence[torch.device]) -> list[tuple[int, int]]:
    """Neighbours that can be recorded together; every other line by itself."""
    found, start = [], 0
    for index in range(1, len(lines) + 1):
        same = (
            index < len(lines)
            and lines[index].device == lines[start].device
            and _is_recordable(lines[index], devices)
            and _is_recordable(lines[start], devices)
        )
        if not same:
            found.append((start, index))
            start = index
    return found
