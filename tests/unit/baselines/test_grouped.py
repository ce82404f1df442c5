"""Groups listed one by one: whole groups, each where the rule says, counted again op by op and tensor by tensor."""

from __future__ import annotations

import numpy as np
import pytest

from loadmaster import Cluster, price
from loadmaster.baselines.cuts import Rule, Way, grouped
from loadmaster.catalog.specs import make_method
from loadmaster.passes.groups import group_ops
from loadmaster.problem import Problem
from loadmaster.search import Budget, Search
from loadmaster.zoo.shelf import load_zoo
from loadmaster.zoo.synthetic import generate


def problem(cluster: str = "2xa100-nvlink+2xp100-pcie") -> Problem:
    *_, graph = generate("layered", 1, 0, (60, 80))
    return price(graph, Cluster.preset(cluster))


def _sent_ns(given: Problem, sender: set[int], reader: set[int], link: int) -> int:
    """What one set of ops sends to another over a class of links: each tensor once."""
    graph, total = given.graph, 0
    for tensor in range(graph.num_tensors):
        home = int(given.updater[tensor] if given.resident[tensor] else graph.producer[tensor])
        if home in sender and set(graph.readers_of(tensor).tolist()) & reader:
            total += int(given.send_ns[tensor, link])
    return total


@pytest.mark.parametrize("rule", ["finish", "load"])
@pytest.mark.parametrize("sends", [0.0, 1.0, 4.0])
def test_every_group_goes_where_it_costs_least_beside_those_before_it(rule: Rule, sends: float) -> None:
    given = problem()
    label = group_ops(given, 12, "edges")
    members = [set(np.flatnonzero(label == group).tolist()) for group in range(int(label.max()) + 1)]
    device = grouped(given, Way("edges", 12, rule, sends)).device
    free, load = [0.0] * given.num_devices, [0.0] * given.num_devices
    done: list[tuple[int, float]] = []
    for group, ops in enumerate(members):
        (chosen,) = set(device[list(ops)].tolist())
        costs, ends = [], []
        for there in range(given.num_devices):
            arrives, moved = 0.0, 0.0
            for (where, end), other in zip(done, members, strict=False):
                if where != there:
                    coming = _sent_ns(given, other, ops, int(given.send_class[where, there]))
                    going = _sent_ns(given, ops, other, int(given.send_class[where, there]))
                    moved += coming + going
                else:
                    coming = 0
                reads = _sent_ns(given, other, ops, 0) > 0
                arrives = max(arrives, end + coming) if reads else arrives
            own = float(given.op_ns[list(ops), there].sum())
            ends.append(max(free[there], arrives) + own)
            costs.append((ends[-1] if rule == "finish" else load[there] + own) + sends * moved)
        assert costs[chosen] == pytest.approx(min(costs)), group
        free[chosen], load[chosen] = ends[chosen], load[chosen] + float(given.op_ns[list(ops), chosen].sum())
        done.append((chosen, ends[chosen]))


def test_modules_of_a_wide_model_are_dealt_out_better_than_single_ops() -> None:
    """NASNet's cells have branches side by side: HEFT spreads their ops and pays for it on the links."""
    given = price(load_zoo("nasnet/train"), Cluster.preset("placeto-2"))
    search = Search(given, Budget(None, 10))
    step = search.score(grouped(given, Way("scope", 128, "finish", 1.0))).value
    assert step < 0.85 * search.score(make_method("heft").optimize(search)).value
    assert step < 0.85 * search.score(make_method("expert").optimize(search)).value
