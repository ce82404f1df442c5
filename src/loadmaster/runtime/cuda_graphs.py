"""Piecewise CUDA graphs: stretches of a program that stay on one GPU are recorded once and then replayed.

Sends, waits and calls on the CPU stay outside. A stretch is recorded in the third step, after two that ran call by
call and warmed everything up; what it is given that changes from step to step is copied into place first. Graphs are
kept only where a step with them is faster than one without. What settings of the optimizer were baked in is watched,
and a change records anew.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from loadmaster.runtime.listing import Line, Listing, ListingPart, compiled_text

if TYPE_CHECKING:
    from loadmaster.runtime.execute import AppliedStep

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


class GraphRace:
    """Decides between call by call and CUDA graphs: records in the third step, keeps what is faster.

    Steps 0 and 1 warm up, 2 is timed call by call, 3 records, 4 is timed replayed. `always` skips the race.
    """

    def __init__(self, step: AppliedStep, always: bool | None) -> None:
        self.step, self.always = step, bool(always)
        self.calls = 0
        self.times: dict[str, float] = {}
        self.recorded: Callable[[Sequence[Tensor]], list[Tensor]] | None = None
        self.settings: Any = None
        self.given_up = ""  # why, when it was

    def run(self, residents: Sequence[Tensor]) -> list[Tensor]:
        self.calls += 1
        if self.given_up or self.calls <= 2:
            return self.step.program.run(residents)
        if self.calls == 3:
            return self._timed("call by call", self.step.program.run, residents)
        if self.recorded is None or self.settings != self.step.updates.settings():
            self._prepare()
        assert self.recorded is not None
        if self.calls != 5:
            return self._cloned(self.recorded(residents))
        made = self._timed("replayed", self.recorded, residents)
        if self.times["replayed"] >= self.times["call by call"] and not self.always:
            self.given_up = "slower"
        return self._cloned(made)

    def _prepare(self) -> None:
        step = self.step
        moving = {index for index, _, _ in step._inputs}
        names = step.program.listing.residents
        fixed = {name for index, name in enumerate(names) if index not in moving}
        listing, segments = with_segments(step.program.listing, step.devices, fixed)
        self.recorded = compiled_text(listing.source()[0], listing.constants)
        self.settings = step.updates.settings()
        if not segments:
            self.given_up = "no stretch is long enough"

    def _timed(self, name: str, run: Callable[..., list[Tensor]], residents: Sequence[Tensor]) -> list[Tensor]:
        torch.cuda.synchronize()
        begun = time.perf_counter()
        made = run(residents)
        torch.cuda.synchronize()
        self.times[name] = time.perf_counter() - begun
        return made

    @staticmethod
    def _cloned(made: list[Tensor]) -> list[Tensor]:
        """The next replay overwrites what this one returned."""
        return [value.clone() for value in made]
