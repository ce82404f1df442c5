"""Objectives: what they say of themselves, and energy, worked out by hand and by trying everything."""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from loadmaster import catalog
from loadmaster.cluster import Cluster, Link
from loadmaster.cost import price
from loadmaster.errors import InvalidCluster, InvalidSetting
from loadmaster.graph.columns import ints
from loadmaster.methods.exact.cp_sat import CpSat
from loadmaster.plans import Plan
from loadmaster.problem import Problem
from loadmaster.problem.bounds import lower_bound
from loadmaster.problem.objective import BUSIEST, PEAK, SUM, Goal, Objective, objective_named
from loadmaster.report.terminal import methods_table
from loadmaster.report.units import value_text
from loadmaster.search import Budget, solve
from loadmaster.simulator import simulate
from tests.graphs.tiny import GRAPHS, diamond, pair
from tests.reference import brute_force, judge
from tests.strategies import plans, problems


def drawing(first: tuple[float, float], second: tuple[float, float]) -> Cluster:
    """Two toy devices with (watts, idle watts) each."""
    cluster = pair()
    pairs = zip(cluster.devices, (first, second), strict=True)
    return replace(cluster, devices=tuple(replace(d, watts=w, idle_watts=i) for d, (w, i) in pairs))


class TestNames:
    @pytest.mark.parametrize("name", catalog.OBJECTIVES)
    def test_each_is_known_by_its_name(self, name: str) -> None:
        found = objective_named(name)
        assert (found.name, str(found)) == (name, name)
        assert objective_named(found) is found
        assert all(getattr(found, word) for word in ("subject", "wanted", "each", "unit"))
        assert value_text(found)(1.0)

    def test_others_are_refused_with_the_choices(self) -> None:
        with pytest.raises(InvalidSetting, match="'speed' is unknown") as caught:
            objective_named("speed")
        assert all(name in caught.value.fix for name in catalog.OBJECTIVES)

    def test_two_of_a_kind_are_equal(self) -> None:
        assert objective_named("energy") == objective_named("energy") != objective_named("step-time")
        assert isinstance(price(diamond(), pair()).objective, Objective)


class TestEnergy:
    def test_by_hand(self) -> None:
        """The diamond on one device takes 70 ns: 70 ns x 5 W there, 70 ns x 2 W for the other to stand by."""
        problem = price(diamond(), drawing((5, 1), (3, 2)), objective="energy")
        line = simulate(problem, Plan.of(problem, [0, 0, 0, 0]))
        assert line.busy_ns[:2].tolist() == [line.step_ns, 0]
        assert problem.value(line) == 1000 * line.step_ns * (5 + 2)

    def test_without_watts_it_says_which_device(self) -> None:
        with pytest.raises(InvalidCluster, match="'d0' has no watts"):
            price(diamond(), pair(), objective="energy")

    def test_idle_above_busy_is_refused(self) -> None:
        with pytest.raises(InvalidCluster, match="draws more when it is idle"):
            drawing((5, 6), (1, 1))

    def test_steps_too_long_for_whole_numbers_are_refused(self) -> None:
        with pytest.raises(InvalidSetting, match="too long"):
            price(diamond(), drawing((1e14, 0), (1e14, 0)), objective="energy")

    def test_frugal_device_is_taken_where_nothing_is_paid_for_waiting(self) -> None:
        problem = price(diamond(), drawing((50, 0), (5, 0)), objective="energy")
        for method in ("auto", "anneal", "brkga"):
            found = solve(problem, method, Budget(None, 300))
            assert found.plan.device.tolist() == [1, 1, 1, 1] and found.gap == 0.0

    @pytest.mark.parametrize("name", GRAPHS)
    @pytest.mark.parametrize("method", ["auto", "anneal", "heft", "etf", "brkga", "cp-sat"])
    def test_never_under_the_best_of_all_plans_nor_the_bound(self, name: str, method: str) -> None:
        problem = price(GRAPHS[name](), drawing((9, 4), (5, 1)), objective="energy")
        found = solve(problem, method, Budget(None, 200))
        assert found.value == judge(problem, found.plan).score("energy")[1] >= found.lower_bound
        if problem.num_ops <= 5:
            assert found.value >= least_energy(name) >= lower_bound(problem)

    @pytest.mark.parametrize("name", [name for name, graph in GRAPHS.items() if graph().num_ops <= 5])
    def test_cp_sat_proves_it(self, name: str) -> None:
        problem = price(GRAPHS[name](), drawing((9, 4), (5, 1)), objective="energy")
        proof = CpSat().prove(problem, Plan.of(problem, [0] * problem.num_ops), budget=Budget(20.0))
        assert proof.bound <= least_energy(name)

    def test_tables_have_a_column_for_it(self) -> None:
        def heads(problem: Problem) -> list[Any]:
            table = methods_table([("heft", solve(problem, "heft", Budget(None, 1)))])
            return [column.header for column in table.columns]

        cluster = drawing((9, 4), (5, 1))
        assert "energy" in heads(price(diamond(), cluster, objective="energy"))
        assert "energy" not in heads(price(diamond(), cluster))


@cache
def least_energy(name: str) -> int:
    """Of all plans of a graph."""
    return brute_force(price(GRAPHS[name](), drawing((9, 4), (5, 1)), objective="energy"), "energy")[1]


class TestThroughput:
    def test_by_hand(self) -> None:
        """a and b on d0 (30 ns), c and d on d1 (40 ns); A goes over in 15 ns, B in 10, and nothing back."""
        cluster = pair()
        plan = Plan.of(price(diamond(), cluster), [0, 0, 1, 1])
        for overlap, value in ((True, 40), (False, 40 + 15 + 10)):
            devices = tuple(replace(device, overlap=overlap) for device in cluster.devices)
            problem = price(diamond(), replace(cluster, devices=devices), objective="throughput")
            assert problem.value(simulate(problem, plan)) == value

    def test_what_is_sent_to_many_counts_once_for_the_sender(self) -> None:
        """a makes 60 bytes (11 ns on the way) for b and c elsewhere, 30 bytes (8 ns) for d elsewhere."""
        problem = price(GRAPHS["fork"](), three(), objective="throughput")
        line = simulate(problem, Plan.of(problem, [0, 1, 2, 2]))
        assert line.busy_ns[-3:].tolist() == [11 + 8, 11, 11 + 8]

    @pytest.mark.parametrize("name", [name for name, graph in GRAPHS.items() if graph().num_ops <= 5])
    @pytest.mark.parametrize("overlap", [True, False])
    def test_auto_finds_the_best_of_all_placements(self, name: str, overlap: bool) -> None:
        cluster = pair()
        devices = tuple(replace(device, overlap=overlap) for device in cluster.devices)
        problem = price(GRAPHS[name](), replace(cluster, devices=devices), objective="throughput")
        found = solve(problem, "auto", Budget(None, 400))
        assert found.value == brute_force(problem, "throughput")[1] >= found.lower_bound


def three() -> Cluster:
    device = replace(pair().devices[0], overlap=False)
    pairs = [(src, dst) for src in range(3) for dst in range(3) if src != dst]
    channel = np.full((3, 3), -1, np.int64)
    for number, ends in enumerate(pairs):
        channel[ends] = number
    devices = tuple(replace(device, name=f"d{number}") for number in range(3))
    return Cluster("three", devices, dict.fromkeys(pairs, Link(1e10, 5)), ints(channel))


@settings(max_examples=150)
@given(st.data())
def test_no_plan_goes_under_the_bound_of_any_objective(data: st.DataObject) -> None:
    problem = data.draw(problems(max_ops=7, max_devices=3))
    plan = data.draw(plans(problem))
    over, value = judge(problem, plan).score(problem.objective)
    assert value >= lower_bound(problem, fusing=plan.fuses, fitting=over == 0)


def test_goals_by_hand() -> None:
    """Two devices, of which the second does nothing while it sends or receives for 5 and 40 ns, and two channels."""
    busy = ints([[10, 20, 7, 3, 90, 5], [10, 20, 70, 3, 90, 40]])
    step, peaks = ints([100, 200]), ints([[8, 6], [1, 9]])
    assert Goal(BUSIEST, 0, held_up=ints([0, 1])).values(step, peaks, busy).tolist() == [25, 70]
    assert Goal(BUSIEST, 0, held_up=ints([1, 0])).values(step, peaks, busy).tolist() == [100, 100]
    assert Goal(PEAK, 0).values(step, peaks, busy).tolist() == [8, 9]
    assert Goal(SUM, 3, ints([2, 5])).values(step, peaks, busy).tolist() == [420, 720]
    assert Goal(SUM, 1).values(step, peaks, busy).tolist() == [100, 200]


def test_devices_without_channels_that_do_nothing_are_worth_nothing() -> None:
    assert Goal(BUSIEST, 0, held_up=ints([1])).values(ints([9]), ints([[4]]), ints([[0, 0]])).tolist() == [0]
