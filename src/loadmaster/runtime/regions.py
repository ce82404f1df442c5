"""Fused kernels: the lines of a kernel of several ops compiled as one region by Inductor.

A region is traced and compiled when it is first called, with the tensors it is called with; equal regions are compiled
once. Where that cannot be done (no compiler, an op that Inductor does not take) the region runs op by op, and says why.
Kernels that draw random numbers or update weights are never regions: they must draw the same numbers and use the same
update as before.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor, fx
from torch.fx.experimental.proxy_tensor import make_fx

from loadmaster.runtime.listing import Listing, ListingPart

Run = Callable[..., Sequence[Tensor]]


class Region:
    """One kernel, compiled when it is first called."""

    def __init__(self, run: Run, known: dict[Hashable, Run]) -> None:
        self.plain, self.known = run, known
        self.compiled: Run | None = None
        self.reason = ""  # why it runs op by op, where it does

    def __call__(self, *given: Tensor) -> Sequence[Tensor]:
        if self.compiled is not None:
            return self.compiled(*given)
        if not self.reason:
            self._compile(given)
        return self.plain(*given) if self.compiled is None else self.compiled(*given)

    def _compile(self, given: Sequence[Tensor]) -> None:
        try:
            traced = make_fx(self.plain, tracing_mode="fake", _allow_non_fake_inputs=True)(*given)
            key = _key(traced, given)
            if key not in self.known:
                self.known[key] = _by_inductor(traced, given)
            self.compiled = self.known[key]
        except Exception as error:  # whatever a compiler may not like about it: the ops themselves are there
            self.reason = (str(error).strip() or type(error).__name__).splitlines()[0][:200]


def _key(traced: fx.GraphModule, given: Sequence[Tensor]) -> Hashable:
    """Equal for regions that one compiled function can do."""
    forms = tuple((value.shape, value.stride(), value.dtype, value.device) for value in given)
    own = id(traced) if traced.graph.find_nodes(op="get_attr") else 0
    return traced.code, forms, own


def _by_inductor(traced: fx.GraphModule, given: Sequence[Tensor]) -> Run:
    from torch._inductor import compile as inductor
    from torch._inductor import config

    with config.patch(compile_threads=1):  # no pool of processes for one kernel
        run: Run = inductor(traced, list(given))
    # Code is written and built when it is first run: on copies, since a region may write to what it is given.
    run(*(_copy(value) for value in given))
    return run


def _copy(value: Tensor) -> Tensor:
    return torch.empty_strided(value.shape, value.stride(), dtype=value.dtype, device=value.device).copy_(value)


@dataclass
class RegionKernels:
    """Kernels of several ops in a program.

    Attributes:
        total: kernels of several ops.
        regions: those that are compiled when they are first called.
    """

    total: int = 0
    regions: list[Region] = field(default_factory=list)

    @property
    def compiled(self) -> int:
        return sum(region.compiled is not None for region in self.regions)

    @property
    def by_op(self) -> int:
        """That run op by op, as far as is known before the first step."""
        return self.total - sum(not region.reason for region in self.regions)

    @property
    def reasons(self) -> tuple[str, ...]:
        return tuple(dict.fromkeys(region.reason for region in self.regions if region.reason))

    def __str__(self) -> str:
        if not self.total:
            return ""
        return (
            f"{self.total} fused kernels, {self.by_op} of them op by op"
            if self.by_op
            else f"{self.total} fused kernels"
        )


def with_regions(listing: Listing, kernels: RegionKernels) -> Listing:
    """The listing with each kernel that can be compiled as one call."""
    known: dict[Hashable, Run] = {}

    def made(part: ListingPart) -> Region:
        kernels.regions.append(Region(part.run, known))
        return kernels.regions[-1]

    return listing.joined(_spans(listing), made, "r")


def _spans(listing: Listing) -> list[tuple[int, int]]:
    """Of kernels whose lines stand together; one with a wait in its midst is left as it is."""
    found: dict[int, list[int]] = {}
    for index, line in enumerate(listing.lines):
        if line.kernel >= 0:
            found.setdefault(line.kernel, []).append(index)
    spans = [(indices[0], indices[-1] + 1) for indices in found.values()]
    return sorted(
        span for span, indices in zip(spans, found.values(), strict=True) if span[1] - span[0] == len(indices) > 1
    )
