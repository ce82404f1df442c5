"""Groups dealt out: whole groups, every device about as full, the same each time."""

from __future__ import annotations

import numpy as np

from loadmaster import Cluster, price
from loadmaster.baselines.cuts import bytes_of, dealt
from loadmaster.passes.groups import group_ops
from loadmaster.problem import Problem
from loadmaster.zoo.synthetic import generate


def problem() -> Problem:
    *_, graph = generate("layered", 1, 0, (60, 80))
    return price(graph, Cluster.preset("2xa100-nvlink+2xp100-pcie"), objective="peak-memory")


def test_ops_of_a_group_stay_together_and_draws_differ() -> None:
    given = problem()
    placements = list(dealt(given, {8: 3, 24: 4}))
    assert len(placements) == 7
    for groups, some in ((8, placements[:3]), (24, placements[3:])):
        label = group_ops(given, groups)
        for device in some:
            assert all(len(np.unique(device[label == group])) == 1 for group in range(int(label.max()) + 1))
    assert len({device.tobytes() for device in placements}) == 7
    again = list(dealt(given, {8: 3, 24: 4}))
    assert all((one == other).all() for one, other in zip(placements, again, strict=True))


def test_no_device_is_fuller_for_its_size_than_the_largest_group_explains() -> None:
    """Each group went to the device that was least full with it: longest processing time first on unlike machines."""
    given = problem()
    device = next(iter(dealt(given, {24: 1})))
    size, label = bytes_of(given), group_ops(given, 24)
    total = np.bincount(label, size)
    full = np.bincount(device, size, given.num_devices) / given.memory_bytes
    for there in range(given.num_devices):
        last = total[np.unique(label[device == there])].min()
        assert (full[there] <= full + last / given.memory_bytes + 1e-9).all()


def test_the_bytes_of_all_ops_are_those_of_all_that_is_made_or_resident() -> None:
    given = problem()
    graph = given.graph
    read = np.zeros(graph.num_tensors, bool)
    read[graph.reads] = True
    own = (graph.producer >= 0) & (graph.alias_of < 0)
    held = given.resident & (read | (given.updater >= 0))
    assert bytes_of(given).sum() == graph.nbytes[own | held].sum()
