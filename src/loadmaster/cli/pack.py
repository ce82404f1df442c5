"""The verb pack: offsets for blocks of memory whose lives are known, within a capacity."""

from __future__ import annotations

import time
from pathlib import Path
from typing import TYPE_CHECKING

from loadmaster.cli import stages, words
from loadmaster.errors import DoesNotFit, LoadmasterError

if TYPE_CHECKING:
    from loadmaster.files.lifetimes import Lifetimes


def pack(lifetimes: Path, capacity: str, out: Path, seconds: float) -> dict[str, object]:
    """Writes the offsets and says how it went; raises DoesNotFit where there are none, or none were found."""
    from loadmaster.cluster.cluster import parse_size
    from loadmaster.files.lifetimes import load_lifetimes, save_offsets
    from loadmaster.simulator.arenas.capacity import fit_in
    from loadmaster.simulator.arenas.orders import peak_of

    limit = parse_size(f"{capacity}B" if capacity.isdecimal() else capacity, "--capacity")
    words.check_writable(out)
    blocks = load_lifetimes(lifetimes)
    peak = peak_of(blocks.lower, blocks.upper, blocks.nbytes)
    if peak > limit:
        raise _too_little(blocks, peak, limit)
    begun = time.perf_counter()
    with stages.status("packing"):
        found = fit_in(
            blocks.lower, blocks.upper, blocks.nbytes, limit, stop=lambda: time.perf_counter() - begun > seconds
        )
    if found.offset is None:
        raise _not_found(blocks, limit, seconds if not found.sure else None)
    save_offsets(blocks, found.offset, out)
    arena = int((found.offset + blocks.nbytes).max(initial=0))
    return {
        "blocks": len(blocks.id),
        "capacity_bytes": limit,
        "arena_bytes": arena,
        "peak_bytes": peak,
        "seconds": round(time.perf_counter() - begun, 3),
        "out": str(out),
    }


def _too_little(blocks: Lifetimes, peak: int, limit: int) -> LoadmasterError:
    what = f"{peak:,} bytes are alive at once, and the capacity is {limit:,}"
    return DoesNotFit(what, f"{len(blocks.id)} blocks", f"give at least --capacity {peak}")


def _not_found(blocks: Lifetimes, limit: int, seconds: float | None) -> LoadmasterError:
    where, more = f"{len(blocks.id)} blocks", "give a larger --capacity"
    if seconds is None:
        return DoesNotFit(f"no offsets keep all blocks within {limit:,} bytes", where, more)
    what = f"no offsets within {limit:,} bytes were found in {seconds:g} seconds"
    return DoesNotFit(what, where, f"{more} or more --seconds")
