"""Sizes of axes that a file leaves open, as they stand behind '#': one way to name them for TFLite and TensorFlow.

"batch" is every open first axis, "x.1" axis 1 of the input named x, "input0.1" that of the first input.
"""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence

from loadmaster.errors import ImportFailed, InvalidSetting

Dims = tuple[int, ...]


def close(inputs: Sequence[tuple[str, Dims]], sizes: Mapping[str, int], where: str, form: str) -> list[Dims]:
    """The sizes of each input (its name, and its sizes with -1 for open ones). A first axis is 1 unless said.

    Raises:
        ImportFailed: another open axis has no size.
        InvalidSetting: a size for what is not open.
    """
    closed, unsaid, used = [], [], set()
    for place, (name, dims) in enumerate(inputs):
        own = list(dims)
        for axis in (axis for axis, size in enumerate(dims) if size < 0):
            words = [f"{name}.{axis}", f"input{place}.{axis}", *(["batch"] if axis == 0 else [])]
            word = next((word for word in words if word in sizes), None)
            own[axis] = _above_zero(sizes[word], word, where) if word else 1
            used.update([word] if word else [])
            unsaid += [] if word else [(words[0], axis)]
        closed.append(tuple(own))
    _refuse_strangers(inputs, sizes, used, where)
    _announce(unsaid, where, form)
    return closed


def _above_zero(size: int, word: str, where: str) -> int:
    if size < 1:
        raise InvalidSetting(f"size '{word}' is {size}", where, "give a whole number above 0")
    return size


def _refuse_strangers(inputs: Sequence[tuple[str, Dims]], sizes: Mapping[str, int], used: set[str], where: str) -> None:
    known = [f"{name}.{axis}" for name, dims in inputs for axis, size in enumerate(dims) if size < 0]
    fix = f"open are: {', '.join(known)}" if known else "leave it out: every size of this file is fixed"
    for word in sizes:
        if word not in used:
            raise InvalidSetting(f"the model has no open size '{word}'", where, fix)


def _announce(unsaid: Sequence[tuple[str, int]], where: str, form: str) -> None:
    names = [name for name, _ in unsaid]
    if any(axis for _, axis in unsaid):
        asked = ",".join(f"{name}=SIZE" for name in names)
        raise ImportFailed(f"its inputs leave open: {', '.join(names)}", where, f"say them: FILE{form}#{asked}")
    if unsaid:
        said = ", ".join(f"{name} = 1" for name in names)
        warnings.warn(f"{where}: assumed {said}; another size: FILE{form}#batch=64", stacklevel=6)
