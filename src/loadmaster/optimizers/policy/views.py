"""What the policy sees of each op before anything is decided: numbers without a unit, so that one set of weights serves
graphs and clusters of any size.

Ratios and logarithms: an op's time against what its data takes on links, its place on the critical path, bytes against
memory; the same of its makers and readers, two rounds of them; and a few numbers of the whole problem.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from loadmaster.graph.columns import Ints, ints, rows_of
from loadmaster.optimizers.dealing import bytes_of
from loadmaster.optimizers.lists.schedulers import downward_rank, mean_sends, mean_times, upward_rank
from loadmaster.passes.groups import mirrored_position, turning_point
from loadmaster.problem import Problem

Floats = NDArray[np.float64]
OWN = 9  # features of an op itself, and of the problem: see `_own` and `_common`
PASSED = 4  # of its own features, those that its makers and readers are told
CONTEXT = OWN + 4 * PASSED + 4


class View(NamedTuple):
    """Columns of a problem that the loop reads.

    Attributes:
        scale_ns: [ops] what a delay of the op is measured in: its own time and that of what it reads on links.
        mirror: [ops] the forward op that a backward op belongs to, or the op itself.
        bytes_of: [ops] bytes that it makes, updates or is the first to read.
        share_ns: an equal share of all work.
        level: [ops] upward rank.
    """

    context: Floats  # [ops, CONTEXT]
    scale_ns: Floats  # [ops]
    mirror: Ints  # [ops]
    bytes_of: Floats  # [ops]
    share_ns: float
    level: Ints  # [ops]


def view_of(problem: Problem) -> View:
    """What the network is shown of the ops of a problem, whatever is decided."""
    time, send = mean_times(problem).astype(np.float64), mean_sends(problem).astype(np.float64)
    coming = _summed(problem, send)
    up, down = upward_rank(problem), downward_rank(problem)
    size = bytes_of(problem)
    own = _own(problem, time, send, coming, up, down, size)
    told = _passed(problem, own[:, :PASSED])
    common = np.broadcast_to(_common(problem, time, coming, up, size), (problem.num_ops, 4))
    share = float(problem.best_ns.sum() / problem.num_devices) + 1.0
    context = np.ascontiguousarray(np.concatenate([own, told, common], axis=1))
    return View(context, time + coming + 1.0, ints(mirrored_position(problem)), size, share, up)


def _own(problem: Problem, time: Floats, send: Floats, coming: Floats, up: Ints, down: Ints, size: Floats) -> Floats:
    graph, longest = problem.graph, float(max(1, up.max()))
    made = np.zeros(problem.num_ops)
    np.add.at(made, rows_of(graph.make_start), send[graph.makes])
    readers = np.zeros(problem.num_ops)
    np.add.at(readers, rows_of(graph.make_start), np.diff(graph.readers[0])[graph.makes])
    room = float(problem.memory_bytes.sum()) + 1.0
    ops = np.arange(problem.num_ops)
    columns = (
        _ratio(time, time.mean()),
        _ratio(made, time),
        _ratio(coming, time),
        _ratio(size * problem.num_ops, room),
        up / longest,
        (up + down - time) / longest,
        (ops > turning_point(problem)).astype(np.float64),
        np.log1p(readers) / 3,
        np.log1p(np.diff(graph.read_start)) / 3,
    )
    return np.stack(columns, axis=1)


def _common(problem: Problem, time: Floats, coming: Floats, up: Ints, size: Floats) -> Floats:
    """Of the whole problem: how much runs side by side, how full memory is, what links cost, how many devices."""
    return np.array(
        [
            _ratio(time.sum() / problem.num_devices, up.max()),
            _ratio(size.sum(), problem.memory_bytes.sum()),
            _ratio(coming.sum(), time.sum()),
            np.log2(problem.num_devices) / 4,
        ]
    )


def _ratio(one: NDArray[np.float64] | float, other: NDArray[np.float64] | float) -> Floats:
    """The logarithm of a ratio, as a number from -1 to 1."""
    found: Floats = np.tanh(np.log((np.asarray(one, np.float64) + 1) / (np.asarray(other, np.float64) + 1)) / 3)
    return found


def _summed(problem: Problem, per_tensor: Floats) -> Floats:
    """[ops] over what each reads of what the step makes."""
    graph = problem.graph
    made = graph.is_made[graph.reads]
    total = np.zeros(problem.num_ops)
    np.add.at(total, rows_of(graph.read_start)[made], per_tensor[graph.reads[made]])
    return total


def _passed(problem: Problem, told: Floats) -> Floats:
    """Two rounds along the tensors: means over makers and over readers, then over theirs."""
    graph = problem.graph
    made = graph.is_made[graph.reads]
    maker, reader = graph.producer[graph.reads][made], rows_of(graph.read_start)[made]
    before = _means(maker, reader, told)
    after = _means(reader, maker, told)
    return np.concatenate([before, after, _means(maker, reader, before), _means(reader, maker, after)], axis=1)


def _means(source: Ints, target: Ints, values: Floats) -> Floats:
    count = np.bincount(target, minlength=len(values)) + 1e-9
    columns = [np.bincount(target, column[source], minlength=len(values)) / count for column in values.T]
    return np.stack(columns, axis=1)
