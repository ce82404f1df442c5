"""Which ops of one graph are like which of another, by structure alone.

Weisfeiler and Lehman's refinement: an op begins with the name of its work, and in each round takes in the classes of
the ops it reads from and of those that read from it. After r rounds two ops are in one class if, as far as r steps can
see, the graphs around them are the same. Sizes and prices play no part, so another batch, precision or link changes
nothing; a further layer changes only what is near it.
"""

from __future__ import annotations

import re
import zlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import product
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from loadmaster.graph import Graph
from loadmaster.graph.columns import Bools, Ints, ints, rows_of

Classes = NDArray[np.uint32]  # [levels, ops]
Lean = Literal["middle", "first", "last"]  # where a stack that grew is stretched
LEANS: tuple[Lean, ...] = ("middle", "first", "last")

# Rounds of each level, coarsest first. Two steps tell an attention's products apart, six a first layer from a second;
# level 0 is the name of the work alone, which nearly always finds something.
ROUNDS = (0, 1, 2, 6)
LEVELS = len(ROUNDS)
_MIX = np.uint64(0x9E3779B97F4A7C15)  # 2^64 divided by the golden ratio: spreads sums of small numbers


@dataclass(frozen=True, eq=False)
class Sight:
    """What matching sees of a graph.

    Attributes:
        module: [ops] number of the module it is in, in the order in which the program enters them.
        pattern: [modules] its path without numbers: layers of one stack have the same.
    """

    classes: Classes  # [levels, ops]
    module: Ints  # [ops]
    pattern: Ints  # [modules]

    @staticmethod
    def of(graph: Graph, scopes: bool = True) -> Sight:
        """Without `scopes`, as if all ops were in one module without a name."""
        numbers: dict[str, int] = {}
        scope = graph.scope if scopes else ("",) * graph.num_ops
        module = ints([numbers.setdefault(path, len(numbers)) for path in scope])
        return Sight(classes(graph, scope), module, ints([zlib.crc32(_pattern(path).encode()) for path in numbers]))


def classes(graph: Graph, scope: Sequence[str] | None = None) -> Classes:
    """[levels, ops] the class of each op, from its name alone to its wide surroundings; equal across graphs."""
    pairs = list(zip(graph.kind, graph.scope if scope is None else scope, strict=True))
    first = {pair: _first(*pair) for pair in set(pairs)}
    state = _spread(np.array([first[pair] for pair in pairs], np.uint64))
    start, before = graph.dependencies
    readers = rows_of(start)
    levels = []
    for done in range(max(ROUNDS) + 1):
        if done in ROUNDS:
            levels.append((state >> np.uint64(32)).astype(np.uint32))
        state = _spread(
            state + _sums(_spread(state[before]), readers, graph.num_ops) + _sums(state[readers], before, graph.num_ops)
        )
    return np.array(levels)


def _first(kind: str, scope: str) -> int:
    """Of the work and of the kind of module it is in."""
    return zlib.crc32(f"{kind}|{_pattern(scope)}".encode())


def _pattern(path: str) -> str:
    return re.sub(r"[0-9]+", "", path)


def _spread(values: NDArray[np.uint64]) -> NDArray[np.uint64]:
    mixed = values * _MIX
    return (mixed ^ (mixed >> np.uint64(29))) * _MIX


def _sums(values: NDArray[np.uint64], rows: Ints, count: int) -> NDArray[np.uint64]:
    """Sums by row, modulo 2^64: the order of readers does not matter."""
    total = np.zeros(count, np.uint64)
    np.add.at(total, rows, values)
    return total


def match(known: Sight, new: Sight, lean: Lean = "middle") -> tuple[Ints, Bools]:
    """(for each op of `new` the op of `known` that is most like it or -1, whether more than its name is alike).

    Modules first: of those with one pattern, the middle one of nine is like the middle one of seven, so that what grew
    by a layer is stretched, not shifted. Then ops within the module, by the finest level that has the class, in program
    order; at last, ops whose module knows none of their kind, wherever there is one.
    """
    count = new.classes.shape[1]
    like, close = np.full(count, -1, np.int64), np.zeros(count, bool)
    module = _stretched(known.pattern, new.pattern, lean=lean)[new.module]
    for within, level in product((True, False), range(len(new.classes) - 1, -1, -1)):
        left = np.flatnonzero((like < 0) & (module >= 0) if within else like < 0)
        theirs, ours = (sight.classes[level].astype(np.int64) << 31 for sight in (known, new))
        if within:
            theirs, ours = theirs + known.module, ours + np.maximum(module, 0)
        like[left] = _stretched(theirs, ours[left], new.module[left] if within else None)
        close[left] = (like[left] >= 0) & (level > 0)
    return ints(like), close


def matches(known: Sight, new: Sight) -> Iterator[tuple[Ints, Bools]]:
    """As `match` has it; where a stack grew or shrank, stretched in the other ways too, each once."""
    seen = set[bytes]()
    for lean in LEANS:
        modules = _stretched(known.pattern, new.pattern, lean=lean).tobytes()
        if modules not in seen:
            seen.add(modules)
            yield match(known, new, lean)


def _stretched(known: Ints, new: Ints, part: Ints | None = None, lean: Lean = "middle") -> Ints:
    """For each new key, where among the known ones it stands: the first of five at the first of three, the last at the
    last; -1 where there is none. With `part`, each part of the new keys is laid over all known ones by itself. Of five
    over four, the two that share one stand in the middle, or are the first or the last of them."""
    like = np.full(len(new), -1, np.int64)
    if not len(known) or not len(new):
        return ints(like)
    there = np.argsort(known, kind="stable")
    names, first, count = np.unique(known[there], return_index=True, return_counts=True)
    own = np.zeros(len(new), np.int64) if part is None else part
    here = np.lexsort((own, new))
    changes = (np.diff(new[here]) != 0) | (np.diff(own[here]) != 0)
    row = np.concatenate([[0], np.cumsum(changes)])
    size = np.bincount(row)
    place = np.arange(len(new)) - (np.cumsum(size) - size)[row]
    found = np.minimum(np.searchsorted(names, new[here]), len(names) - 1)
    over, under = size[row], count[found]
    target = (
        first[found]
        + {
            "first": place * under // over,
            "middle": (2 * place + 1) * under // (2 * over),
            "last": under - 1 - (over - 1 - place) * under // over,
        }[lean]
    )
    like[here] = np.where(names[found] == new[here], there[target], -1)
    return ints(like)
