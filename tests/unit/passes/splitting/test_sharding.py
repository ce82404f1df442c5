"""Shares through views, and what plans on shares cost; what they compute is tested where they run."""

from __future__ import annotations

from math import prod

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st
from numpy.typing import NDArray

from loadmaster.cluster import Cluster
from loadmaster.cost import price
from loadmaster.errors import InvalidPlan
from loadmaster.passes.splitting import sharded_graph, sharded_of
from loadmaster.passes.splitting.sharded import least_ns
from loadmaster.passes.splitting.sharding import WAYS, Share, Way, reshaped
from loadmaster.plans import Plan
from loadmaster.simulator import simulate
from tests.unit.cli.test_splits import layers_model


def part_of(whole: NDArray[np.int64], share: Share, part: int, ways: int) -> NDArray[np.int64]:
    """Of each block of the dimension, the part of one device."""
    blocks = np.split(whole, share.blocks, share.dim)
    return np.concatenate([np.split(block, ways, share.dim)[part] for block in blocks], share.dim)


def shapes() -> st.SearchStrategy[tuple[int, ...]]:
    return st.lists(st.sampled_from([1, 2, 3, 4, 6]), min_size=1, max_size=4).map(tuple)


@given(shapes(), st.data())
def test_a_share_in_another_shape_has_the_same_numbers(shape: tuple[int, ...], data: st.DataObject) -> None:
    size, ways = prod(shape), data.draw(st.sampled_from([2, 3]))
    dim = data.draw(st.integers(0, len(shape) - 1))
    share = Share(dim, data.draw(st.sampled_from([1, 2, 3])))
    assume(shape[dim] % (share.blocks * ways) == 0)
    made = data.draw(shapes().filter(lambda other: prod(other) == size) | st.sampled_from([(size,), (1, size)]))
    found = reshaped(shape, made, share, ways)
    whole = np.arange(size)
    for part in range(ways) if found is not None else ():
        before = part_of(whole.reshape(shape), share, part, ways)
        assert part_of(whole.reshape(made), found, part, ways).ravel().tolist() == before.ravel().tolist()


@pytest.mark.parametrize("way", WAYS)
def test_a_step_on_shares_takes_no_less_than_its_shares(way: Way) -> None:
    cluster, graph = Cluster.preset("2xa100-nvlink"), layers_model()
    made = sharded_graph(graph, cluster, way)
    assert made is not None
    problem = price(made.graph, cluster)
    line = simulate(problem, Plan.of(problem, [made.device[name] for name in problem.graph.op_name]))
    whole = price(graph, cluster)
    assert least_ns(whole, way) <= line.step_ns < simulate(whole, Plan.of(whole, [0] * whole.num_ops)).step_ns
    assert set(made.device.values()) == {0, 1} and made.graph.flops.sum() >= graph.flops.sum()


def test_features_pass_one_sum_of_each_layer_on() -> None:
    made = sharded_graph(layers_model(), Cluster.preset("4xa100-nvlink"), "features")
    assert made is not None
    kinds = [kind for kind in made.graph.kind if kind.startswith("collective.")]
    # Four devices do not divide the rows: the first sum is whole for the next product, the second goes by columns to
    # the last activation, which is put together at the end.
    assert kinds == [f"collective.{name}" for name in ("all_reduce", "reduce_scatter", "all_gather") for _ in range(4)]


@pytest.mark.parametrize("wrong", [{"way": "rows", "devices": 2, "graph": ""}, {"way": "samples"}, ["samples"]])
def test_a_file_that_is_not_whole_is_refused(wrong: object) -> None:
    with pytest.raises(InvalidPlan, match="sharding"):
        sharded_of({"sharding": wrong})
