"""Piecewise CUDA graphs: stretches of a program that stay on one GPU are recorded once and then replayed.

Sends, waits and calls on the CPU stay outside. A stretch is recorded in the third step, after two that ran call by
call and warmed everything up; what it is given that changes from step to step is copied into place first. Graphs are
kept only where a step with them is faster than one without. What settings of the optimizer were baked in is watched,
and a change records anew.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import count
from typing import Any

import torch
from torch import Tensor

from loadmaster.runtime.program import Line, Listing

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
    lasting, number = set(listing.returned), count()
    later = _used_later(listing.lines, lasting)
    lines: list[Line] = []
    constants, known = dict(listing.constants), set(fixed)
    for start, end in _stretches(listing.lines, devices):
        part = listing.lines[start:end]
        if end - start < LEAST_CALLS or not _is_recordable(part[0], devices):
            lines += part
            continue
        made = {name for line in part for name in line.makes}
        given = list(dict.fromkeys(n for line in part for n in line.uses if n not in made))
        leaving = [name for name in dict.fromkeys(n for line in part for n in line.makes) if later[name] >= end]
        device = devices[part[0].device]
        run = listing.function(part, given, leaving)
        name = f"s{next(number)}"
        constants[name] = make(run, [one in known for one in given], device, pools)
        target = f"[{', '.join(leaving)}] = " if leaving else ""
        lines.append(Line(f"{target}{name}({', '.join(given)})", given, leaving, part[0].op, part[0].device))
        known.update(leaving)
    return Listing(lines, listing.residents, listing.returned, constants), next(number)


def _used_later(lines: Sequence[Line], lasting: set[str]) -> dict[str, int]:
    """The last line that uses each name; names that are returned, one past the end."""
    last = {name: index for index, line in enumerate(lines) for name in (*line.uses, *line.makes)}
    return {**last, **dict.fromkeys(lasting, len(lines))}


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
