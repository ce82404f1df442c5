"""Numbers with units, for people: 1.24 ms, 15.9 GiB. Three digits, and one unit for what stands side by side."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

from loadmaster.problem.objective import Objective

_TIMES = (("s", 10**9), ("ms", 10**6), ("us", 10**3), ("ns", 1))
_SIZES = (("TiB", 2**40), ("GiB", 2**30), ("MiB", 2**20), ("KiB", 2**10), ("B", 1))
_ENERGIES = (("kJ", 10**15), ("J", 10**12), ("mJ", 10**9), ("uJ", 10**6), ("nJ", 10**3), ("pJ", 1))
_COUNTS = (("P", 10**15), ("T", 10**12), ("G", 10**9), ("M", 10**6), ("k", 10**3), ("", 1))


def time_text(ns: float) -> str:
    """74 ns, 12.3 us, 1.24 ms, 2.50 s."""
    return _scaled(ns, _TIMES)


def size_text(nbytes: float) -> str:
    """512 B, 1.50 KiB, 15.9 GiB."""
    return _scaled(nbytes, _SIZES)


def energy_text(pj: float) -> str:
    """12.5 uJ, 3.10 J."""
    return _scaled(pj, _ENERGIES)


def value_text(objective: Objective) -> Callable[[float], str]:
    """How values of the objective are written."""
    return {"ns": time_text, "bytes": size_text, "pJ": energy_text}[objective.unit]


def count_text(count: float, unit: str) -> str:
    """1.24 TFLOP, 3.10 GFLOP."""
    return _scaled(count, tuple((prefix + unit, scale) for prefix, scale in _COUNTS))


def sizes_text(sizes: Sequence[int]) -> str:
    """Several sizes in the unit of the largest: 3.10 4.00 0 GiB; more than eight of them as a range."""
    unit, scale = next((unit, scale) for unit, scale in _SIZES if max(sizes) >= scale or scale == 1)
    shown = [_digits(size / scale, whole=size == 0 or scale == 1) for size in sizes]
    if len(sizes) > 8:
        shown = [shown[sizes.index(min(sizes))], "to", shown[sizes.index(max(sizes))]]
    return f"{' '.join(shown)} {unit}"


def column_text(values: Sequence[int], *, sizes: bool = False) -> list[str]:
    """Times, or sizes, that stand above each other: all in the unit of the smallest, so that they compare at sight."""
    units = _SIZES if sizes else _TIMES
    least = min((value for value in values if value > 0), default=1)
    unit, scale = next((unit, scale) for unit, scale in units if least >= scale or scale == 1)
    return [f"{_digits(value / scale, whole=scale == 1)} {unit}" for value in values]


def percent_text(share: float) -> str:
    """+12.3 %; a dash where there is nothing to compare with."""
    return "-" if not math.isfinite(share) else f"{100 * share:+.1f} %"


def _scaled(value: float, units: tuple[tuple[str, int], ...]) -> str:
    # A value that would be shown as 1000 belongs to the next unit: 999,999 ns are 1.00 ms.
    shown = max(value, float(f"{value:.3g}"))
    unit, scale = next(((unit, scale) for unit, scale in units if shown >= scale), units[-1])
    return f"{_digits(value / scale, whole=scale == 1)} {unit}"


def _digits(value: float, whole: bool = False) -> str:
    """Three significant digits, without an exponent."""
    if whole:
        return f"{value:.0f}"
    return f"{value:.{2 if abs(value) < 9.995 else 1 if abs(value) < 99.95 else 0}f}"


def percent(part: float, whole: float) -> str:
    """Such as "12 %", for sentences."""
    share = 100 * part / whole if whole else 0.0
    return f"{share:.0f} %" if share >= 1 or share == 0 else f"{share:.1f} %"
