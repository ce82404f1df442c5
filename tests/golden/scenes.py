"""Named scenes whose numbers are kept in a file and compared with what they are today.

Of most it is also kept, in returns.json, what functions gave back on the way, by file: two ways may lead to one number.
"""

from __future__ import annotations

import json
import os
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.golden.inputs import sums_of
from tests.golden.watching import Told, watched

RETURNS = Path(__file__).parent / "returns.json"
PLAIN = os.environ.get("NUMBA_DISABLE_JIT") == "1"  # then all functions would be seen, and of each the time it takes


class Scenes:
    """Scenes by name, and the file of their numbers, of which so many digits are kept. `unwatched`: those of which it
    is not kept what functions gave, or "all": they call so many that looking at each would take too long."""

    def __init__(self, file: Path, digits: int = 12, unwatched: tuple[str, ...] | str = "all") -> None:
        self.file, self.digits, self.made = file, digits, dict[str, Callable[[], Told]]()
        self.unwatched = unwatched

    def __call__(self, make: Callable[[], Told]) -> Callable[[], Told]:
        """Adds a function as the scene of its name."""
        self.made[make.__name__.replace("_", " ")] = make
        return make

    def write(self, names: list[str]) -> None:
        """Makes the named scenes afresh; all, where none is named."""
        kept = json.loads(self.file.read_text()) if names else {}
        returns = json.loads(RETURNS.read_text())
        if not names:
            returns = {key: row for key, row in returns.items() if not key.startswith(f"{self.file.stem}: ")}
        for name in names or self.made:
            told, given = self._run(name)
            kept[name] = {part: [float(f"{each:.{self.digits}g}") for each in row] for part, row in told.items()}
            returns |= {self._key(name): given} if given else {}
            print(name, len(kept[name]), flush=True)
        self.file.write_text(_text({name: kept[name] for name in self.made if name in kept}))
        RETURNS.write_text(_text(dict(sorted(returns.items()))))

    def _key(self, name: str) -> str:
        return f"{self.file.stem}: {name}"

    def _run(self, name: str) -> tuple[Told, Told]:
        """Its numbers, and what functions gave back."""
        if PLAIN or self.unwatched == "all" or name in self.unwatched:
            return self.made[name](), {}
        with watched() as given:
            told = self.made[name]()
        return told, given

    def check(self, name: str) -> None:
        """That the scene's numbers are the kept ones, and what functions gave back on the way."""
        (found, given), kept = self._run(name), json.loads(self.file.read_text())[name]
        again = f"python -m tests.golden.{self.file.stem}"
        assert found.keys() == kept.keys()
        for part, numbers in found.items():
            assert numbers == pytest.approx(kept[part], rel=1e-9), f"{part}: {again}"
        if given:
            before = json.loads(RETURNS.read_text())[self._key(name)]
            differ = [file for file in {**given, **before} if not _alike(given.get(file, []), before.get(file, []))]
            assert not differ, f"functions there give back something else; if they should: {again} {name!r}"


def _alike(one: list[float], two: list[float]) -> bool:
    return one == pytest.approx(two, rel=1e-6, abs=1e-6)


def _text(kept: dict[str, Told]) -> str:
    rows = [
        f"{json.dumps(name)}: {{\n"
        + ",\n".join(f"  {json.dumps(part)}: {json.dumps(row)}" for part, row in told.items())
        + "\n}"
        for name, told in kept.items()
    ]
    return "{\n" + ",\n".join(rows) + "\n}\n"


def checksum(value: Any) -> float:
    return float(zlib.crc32(repr(value).encode()))


def exact(value: Any) -> list[float]:
    """How many whole numbers, their sum and a checksum; of fractions their sums, to six digits."""
    array = np.asarray(value)
    if array.dtype.kind == "f":
        return sums_of(array)
    return [float(array.size), float(array.sum()), checksum(array.astype(np.int64).tolist())]
