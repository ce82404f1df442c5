"""What is placed as one: units of ops, the order among them, and the downsets of that order."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from scipy.sparse import coo_array
from scipy.sparse.csgraph import connected_components

from loadmaster.graph.columns import Ints, from_pairs, ints, positions, ragged, rows_of
from loadmaster.problem import Problem


@dataclass(frozen=True, eq=False)
class Units:
    """Ops that go together. `before[u]` and `after[u]`: units that u waits for, and that wait for it, as bits.

    Attributes:
        unit: [ops] numbered in an order in which each comes after those it waits for.
    """

    unit: Ints  # [ops]
    before: tuple[int, ...]
    after: tuple[int, ...]

    @property
    def count(self) -> int:
        return len(self.before)


@dataclass(frozen=True, eq=False)
class Downs:
    """Downsets: sets of units that hold all that their members wait for.

    Attributes:
        members: [downsets] as bits.
        unit: what each may be extended by.
        after: the downset with it.
    """

    members: tuple[int, ...]  # [downsets]
    start: Ints  # [downsets + 1]
    unit: Ints
    after: Ints

    def between(self, smaller: int, larger: int) -> list[int]:
        """Units of the larger one that are not in the smaller one."""
        return _places(self.members[larger] & ~self.members[smaller])


def units_of(problem: Problem, label: Ints) -> Units:
    """Units of ops with equal labels; those that would wait for each other are one.

    An op that comes back to its own unit from outside (a backward op, which lies with its forward op) is left out of
    the order: stages are contiguous going forward, as Tarnawski et al. (2020) have it.
    """
    label = _with_neighbours(problem, ints(np.unique(label, return_inverse=True)[1].reshape(-1)))
    source, target = _edges(problem, label)
    count = int(label.max()) + 1
    ones = np.ones(len(source), np.int8)
    _, knot = connected_components(coo_array((ones, (source, target)), shape=(count, count)), connection="strong")
    return _numbered(ints(knot[label]), knot[source], knot[target])


def _with_neighbours(problem: Problem, label: Ints) -> Ints:
    """[ops] labels after units that take no time and deal with one other unit alone have joined it: nothing is lost."""
    start, before = problem.graph.dependencies
    while True:
        count = int(label.max()) + 1
        one, other = label[rows_of(start)], label[before]
        apart = one != other
        pairs = np.unique(np.concatenate([one[apart] * count + other[apart], other[apart] * count + one[apart]]))
        degree = np.bincount(pairs // count, minlength=count)
        idle = np.bincount(label, weights=problem.op_ns.max(axis=1), minlength=count) == 0
        lone = np.flatnonzero(idle & (degree == 1))
        if not len(lone) or count == 1:
            return label
        to = np.arange(count)
        first = pairs[np.searchsorted(pairs // count, lone)] % count
        to[lone] = np.where(np.isin(first, lone), np.minimum(first, lone), first)
        label = ints(np.unique(to[label], return_inverse=True)[1].reshape(-1))


def _edges(problem: Problem, label: Ints) -> tuple[Ints, Ints]:
    """(unit, unit that waits for it), without ops that come back.

    An op that needs one that came back, and itself comes back to nothing, belongs to the backward pass alone. It takes
    its place between units as if it ran forward, too: what it gives to comes before it, what it needs after.
    """
    start, before = problem.graph.dependencies
    reader = rows_of(start)
    returns = _returning(problem, label)
    late = _late(start, before, returns)
    alone, apart = late & ~returns, label[reader] != label[before]
    forward = apart & ~returns[reader] & ~late[before]
    mirrored = apart & late[reader] & late[before] & (alone[reader] | alone[before])
    source = np.concatenate([label[before[forward]], label[reader[mirrored]]])
    target = np.concatenate([label[reader[forward]], label[before[mirrored]]])
    return ints(source), ints(target)


def _late(start: Ints, before: Ints, returns: np.ndarray) -> np.ndarray:
    """[ops] whether it comes back, or needs one that does."""
    late = returns.copy()
    for op in range(len(late)):
        late[op] = late[op] or late[before[start[op] : start[op + 1]]].any()
    return late


def _returning(problem: Problem, label: Ints) -> np.ndarray:
    """[ops] whether a way leads from an op of its unit out of the unit and back to it."""
    start, before = problem.graph.dependencies
    left = list[int]()  # units that some way to the op went through and left, as bits
    returns = np.zeros(problem.num_ops, bool)
    names = label.tolist()
    for op in range(problem.num_ops):
        gone = 0
        for earlier in before[start[op] : start[op + 1]].tolist():
            gone |= left[earlier] if names[earlier] == names[op] else left[earlier] | (1 << names[earlier])
        returns[op] = bool(gone >> names[op] & 1)
        left.append(gone & ~(1 << names[op]))
    return returns


def _numbered(unit: Ints, source: Ints, target: Ints) -> Units:
    """Numbers units in topological order, first op first."""
    from loadmaster.graph.order import topological_order

    first = np.unique(unit, return_index=True)[1]
    apart = source != target
    start, values = from_pairs(target[apart], source[apart], len(first))
    order = topological_order(start, values, first)
    place = positions(order)
    before, after = [0] * len(first), [0] * len(first)
    for one, other in zip(place[source[apart]].tolist(), place[target[apart]].tolist(), strict=True):
        before[other] |= 1 << one
        after[one] |= 1 << other
    return Units(ints(place[unit]), tuple(before), tuple(after))


def joined(units: Units, weight: np.ndarray, light: float) -> Ints:
    """[units] labels after light units have joined a neighbour: the only one they wait for, or that waits for them."""
    label = list(range(units.count))

    def root(unit: int) -> int:
        while label[unit] != unit:
            unit = label[unit]
        return unit

    total = weight.astype(float).copy()
    for unit in range(units.count):
        for bits in (units.before[unit], units.after[unit]):
            if bits and bits & (bits - 1) == 0:
                mine, other = root(unit), root(bits.bit_length() - 1)
                if mine != other and total[mine] + total[other] <= light:
                    low, high = sorted((mine, other))
                    label[high], total[low] = low, total[mine] + total[other]
                    break
    return ints([root(unit) for unit in range(units.count)])


def downsets(units: Units, most: int) -> Downs | None:
    """Every downset, the smaller first, with what each may be extended by; None: there are more than `most`."""
    from loadmaster.baselines.downsets.enumerating import BITS, enumerated

    key = np.random.default_rng(0).integers(0, 2**62, units.count)
    waits = (*ragged(list(map(_places, units.before))), *ragged(list(map(_places, units.after))))
    words, start, unit, larger = enumerated(*waits, ints(key), most)
    if not len(start):
        return None
    rows = words.reshape(len(start) - 1, -1).tolist()
    members = (sum(word << BITS * place for place, word in enumerate(row)) for row in rows)
    return Downs(tuple(members), ints(start), ints(unit), ints(larger))


def _places(bits: int) -> list[int]:
    """Of the bits that are set, the lowest first."""
    found = []
    while bits:
        found.append((bits & -bits).bit_length() - 1)
        bits &= bits - 1
    return found
