"""What tests of learning share: weights in a file."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from safetensors import safe_open


def weights(path: Path) -> dict[str, np.ndarray]:
    """By name."""
    with safe_open(str(path), "np") as file:
        return {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
