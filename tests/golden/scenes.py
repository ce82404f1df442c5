"""Named scenes whose numbers are kept in a file and compared with what they are today."""

from __future__ import annotations

import json
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.golden.inputs import sums_of

Told = dict[str, list[float]]


class Scenes:
    """Scenes by name, and the file of their numbers, of which so many digits are kept."""

    def __init__(self, file: Path, digits: int = 12) -> None:
        self.file, self.digits, self.made = file, digits, dict[str, Callable[[], Told]]()

    def __call__(self, make: Callable[[], Told]) -> Callable[[], Told]:
        """Adds a function as the scene of its name."""
        self.made[make.__name__.replace("_", " ")] = make
        return make

    def write(self, names: list[str]) -> None:
        """Makes the named scenes afresh; all, where none is named."""
        kept = json.loads(self.file.read_text()) if names else {}
        for name in names or self.made:
            told = self.made[name]()
            kept[name] = {part: [float(f"{each:.{self.digits}g}") for each in row] for part, row in told.items()}
            print(name, len(kept[name]), flush=True)
        rows = [
            f"{json.dumps(name)}: {{\n"
            + ",\n".join(f"  {json.dumps(part)}: {json.dumps(row)}" for part, row in kept[name].items())
            + "\n}"
            for name in self.made
            if name in kept
        ]
        self.file.write_text("{\n" + ",\n".join(rows) + "\n}\n")

    def check(self, name: str) -> None:
        """That the scene's numbers are the kept ones."""
        found, kept = self.made[name](), json.loads(self.file.read_text())[name]
        assert found.keys() == kept.keys()
        for part, numbers in found.items():
            assert numbers == pytest.approx(kept[part], rel=1e-9), f"{part}: python -m tests.golden.{self.file.stem}"


def checksum(value: Any) -> float:
    return float(zlib.crc32(repr(value).encode()))


def exact(value: Any) -> list[float]:
    """How many whole numbers, their sum and a checksum; of fractions their sums, to six digits."""
    array = np.asarray(value)
    if array.dtype.kind == "f":
        return sums_of(array)
    return [float(array.size), float(array.sum()), checksum(array.astype(np.int64).tolist())]
