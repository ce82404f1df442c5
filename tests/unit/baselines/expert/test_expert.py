"""The human expert: where layers, lanes of advice and ops of no module go, on small models."""

from __future__ import annotations

import numpy as np
import pytest

from loadmaster.baselines.expert import expert_placement, layer_of, shares, unit_of
from loadmaster.cost import price
from loadmaster.graph import Graph, GraphBuilder


def test_units() -> None:
    assert unit_of("layers.1.cell", ("layers.*",)) == (0, 1)
    assert unit_of("layers.10", ("layers.*",)) == (0, 10)
    assert unit_of("head", ("layers.*", "head")) == (1, 0)
    assert unit_of("header", ("layers.*", "head")) is None
    assert unit_of("my.layers.1", ("layers.*",)) is None
    assert layer_of("decoder.layers.3.cell") == ("decoder.layers", 3)
    assert layer_of("decoder.norm") == ("decoder.norm", -1)


def chain(scopes: list[str], name: str = "chain", sizes: dict[int, int] | None = None) -> Graph:
    """Ops of 1,000 ns in a row, each reading the one before: o0 -> o1 -> o2 -> ...; tensors have 1,000 bytes."""
    builder = GraphBuilder(name)
    before: list[int] = []
    for number, scope in enumerate(scopes):
        role = "output" if number == len(scopes) - 1 else "activation"
        made = builder.tensor((sizes or {}).get(number, 1000), role)
        builder.op(f"o{number}", "op", before, [made], scope=scope, time_ns=1000)
        before = [made]
    return builder.build()


def test_an_unknown_model_is_cut_between_layers_where_the_program_comes_to_them() -> None:
    there = ["embed", "block.0.a", "block.0.b", "block.1.a", "block.1.b", "block.2.a", "block.2.b", "head"]
    problem = price(chain([*there, *reversed(there)]), "2xp100-pcie")
    device = expert_placement(problem).tolist()
    # Times in units: embed 2, blocks 4 each, head 2; half of 16 is in the middle of block 1.
    assert device[:3] == [0, 0, 0] and device[5:8] == [1, 1, 1]
    assert device == device[::-1]


def test_ops_without_a_module_go_where_they_send_least() -> None:
    scopes = ["block.0", "block.0", "", "block.1", "", "block.1", "", "block.0"]
    # o2 stands between the devices: whichever of its two tensors is smaller is the one to send. o4 does not.
    # o6 stands between them too, on the way back.
    before = price(chain(scopes, sizes={1: 10, 2: 9000, 5: 9000, 6: 10}), "2xp100-pcie")
    assert expert_placement(before).tolist() == [0, 0, 1, 1, 1, 1, 1, 0]
    behind = price(chain(scopes, sizes={1: 9000, 2: 10, 5: 10, 6: 9000}), "2xp100-pcie")
    assert expert_placement(behind).tolist() == [0, 0, 0, 1, 1, 1, 0, 0]


def test_without_scopes_the_program_is_cut_into_shares() -> None:
    problem = price(chain([""] * 12), "4xp100-pcie")
    assert expert_placement(problem).tolist() == [0, 0, 0, 1, 1, 1, 2, 2, 2, 3, 3, 3]
    assert shares(problem.best_ns, problem).tolist() == expert_placement(problem).tolist()


def test_a_slower_device_gets_a_smaller_share() -> None:
    builder = GraphBuilder("uneven")
    tensors = [builder.tensor(8, "output") for _ in range(30)]
    for number, tensor in enumerate(tensors):
        builder.op(f"o{number}", "op", [], [tensor], time_ns=[1000, 2000])
    problem = price(builder.build(), "2xp100-pcie")
    assert np.bincount(expert_placement(problem)).tolist() == [20, 10]


@pytest.mark.parametrize(("slow", "ops"), [(5_000, [25, 5]), (5_001, [30])])
def test_a_device_more_than_five_times_slower_gets_nothing(slow: int, ops: list[int]) -> None:
    builder = GraphBuilder("uneven")
    for number in range(30):
        builder.op(f"o{number}", "op", [], [builder.tensor(8, "output")], time_ns=[1_000, slow])
    assert np.bincount(expert_placement(price(builder.build(), "2xp100-pcie"))).tolist() == ops


def test_an_op_that_a_device_cannot_run_counts_a_hundred_times() -> None:
    """Of two ops of a hundred: the other device would take as long as 298 for all."""
    builder = GraphBuilder("uneven")
    for number in range(100):
        builder.op(
            f"o{number}", "op", [], [builder.tensor(8, "output")], time_ns=[1_000, None if number < 2 else 1_000]
        )
    problem = price(builder.build(), "2xp100-pcie")
    share = np.bincount(shares(problem.best_ns, problem)) / 100
    assert share.tolist() == pytest.approx([298 / 398, 100 / 398], abs=0.01)


def test_advice_whose_modules_are_not_there_is_ignored() -> None:
    """Another model that happens to be called gpt2."""
    problem = price(chain([f"body.{i // 2}" for i in range(8)], name="gpt2"), "2xp100-pcie")
    assert expert_placement(problem).tolist() == [0, 0, 0, 0, 1, 1, 1, 1]
