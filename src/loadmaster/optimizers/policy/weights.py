"""Weights of the policy as a safetensors file, which is a length, a JSON header and numbers in a row: read and written
here without the package, so that planning needs none."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from loadmaster.errors import UnreadableFile
from loadmaster.files.text import checked_path
from loadmaster.files.writing import writing
from loadmaster.optimizers.policy.decoding import PAIR
from loadmaster.optimizers.policy.views import CONTEXT

NAME = "weights"
MOST_BYTES = 1 << 22  # of a file; ours has 6,712
LARGEST = 1e6  # weight, far beyond those that training finds: scores stay numbers
FIX = "give a file that `loadmaster train list` wrote"


def read_weights(path: Path | str) -> NDArray[np.float64]:
    """The vector in the file; refused where it is of another version or not whole."""
    try:
        with checked_path(path).open("rb") as file:
            data = file.read(2 * MOST_BYTES)
    except OSError as error:
        raise UnreadableFile(f"cannot read '{path}': {error.strerror}", "", FIX) from error
    try:
        weights = _numbers(data)
    except (ValueError, KeyError, TypeError, IndexError, RecursionError) as error:
        raise UnreadableFile(f"'{path}' holds no weights of this policy: {error}", "", FIX) from error
    if not (np.abs(weights) <= LARGEST).all():
        raise UnreadableFile(f"'{path}' holds weights beyond {LARGEST:,.0f}, or that are no numbers", "", FIX)
    if len(weights) < PAIR or (len(weights) - PAIR) % (PAIR + CONTEXT + 2):
        raise UnreadableFile(f"'{path}' holds {len(weights):,} numbers that make no network of this policy", "", FIX)
    return weights


def _numbers(data: bytes) -> NDArray[np.float64]:
    length = int.from_bytes(data[:8], "little")
    if length > MOST_BYTES or len(data) > MOST_BYTES:
        raise ValueError("it is too large")
    entry = json.loads(data[8 : 8 + length])[NAME]
    if entry["dtype"] != "F64":
        raise ValueError(f"its numbers are {entry['dtype']}, not F64")
    first, last = entry["data_offsets"]
    return np.frombuffer(data[8 + length :][first:last], np.float64)


def write_weights(path: Path | str, weights: NDArray[np.float64], about: dict[str, Any]) -> None:
    """With what is known of them in the header."""
    numbers = np.ascontiguousarray(weights, np.float64).tobytes()
    entry = {"dtype": "F64", "shape": [len(weights)], "data_offsets": [0, len(numbers)]}
    header = json.dumps(
        {"__metadata__": {key: json.dumps(value) for key, value in about.items()}, NAME: entry}
    ).encode()
    header += b" " * (-len(header) % 8)
    with writing(path) as part:
        part.write_bytes(len(header).to_bytes(8, "little") + header + numbers)
