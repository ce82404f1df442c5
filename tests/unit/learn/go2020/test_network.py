"""The network of GO: padding does not matter, segments see what they should, and it starts as its first decisions."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from loadmaster.cost import price  # noqa: E402
from loadmaster.learn.go2020.candidates import BOUND, OVER  # noqa: E402
from loadmaster.learn.go2020.input import GoInput, go_input  # noqa: E402
from loadmaster.learn.go2020.network import (  # noqa: E402
    MIDDLE,
    GoBatch,
    GoNetwork,
    GoOutputs,
    LastDecisions,
    NetworkShape,
    SegmentAttention,
    decisions_of,
    go_batch,
    shape_of,
)
from loadmaster.zoo.synthetic import generate  # noqa: E402
from tests.unit.learn.go2020.decisions import first_decisions  # noqa: E402

ALL = ("fusion", "placement", "schedule")


@pytest.fixture(autouse=True)
def _one_thread() -> None:
    torch.set_num_threads(1)
    torch.manual_seed(0)


def given(ops: int, cluster: str, groups: int = 0, kernels: bool = False) -> GoInput:
    graph = next(iter(generate("layered", 1, ops, (ops, ops))))
    return go_input(price(graph, cluster), groups, kernels=kernels)


def shaken(shape: NetworkShape) -> GoNetwork:
    """A network in which no head is zero."""
    network = GoNetwork(shape)
    with torch.no_grad():
        for weight in network.parameters():
            weight += 0.1 * torch.randn_like(weight)
    return network.eval()


@pytest.mark.parametrize("pooling", ["max", "sum"])
def test_a_problem_gets_the_same_answer_alone_and_in_a_batch(pooling: str) -> None:
    network = shaken(NetworkShape(hidden=16, tasks=ALL, pooling=pooling))
    many = [given(90, "2xp100-pcie", kernels=True), given(60, "4xp100-pcie+1xk80", 40, kernels=True)]
    whole = go_batch(many)
    together = network(whole, first_decisions(many, whole, [0, 2]))
    first_op = 0
    for row, (one, candidate) in enumerate(zip(many, (0, 2), strict=True)):
        batch = go_batch([one])
        alone = network(batch, first_decisions([one], batch, [candidate]))
        part = together.place[row, : one.num_groups, : one.num_devices]
        torch.testing.assert_close(part, alone.place[0], rtol=1e-4, atol=1e-4)
        torch.testing.assert_close(together.level[row, : one.num_groups], alone.level[0], rtol=1e-4, atol=1e-4)
        fusion = together.fusion[first_op : first_op + len(one.single)]
        torch.testing.assert_close(fusion, alone.fusion, rtol=1e-4, atol=1e-4)
        first_op += len(one.single)


def likeliest(batch: GoBatch, outputs: GoOutputs) -> LastDecisions:
    return decisions_of(batch, [outputs.place[0].argmax(1).numpy()], [outputs.level[0].argmax(1).numpy()])


def test_untrained_it_keeps_its_first_decisions_in_the_critical_path_order() -> None:
    one = given(80, "4xp100-pcie")
    batch = go_batch([one])
    for candidate in range(3):
        network, last = GoNetwork(NetworkShape(hidden=16)), first_decisions([one], batch, [candidate])
        for _ in range(3):
            each = network(batch, last)
            last = likeliest(batch, each)
            np.testing.assert_array_equal(each.place[0].argmax(1).numpy(), one.candidate_shares(candidate).argmax(1))
            assert (each.level.argmax(2) == MIDDLE).all()


def test_untrained_candidates_are_chosen_by_their_bound() -> None:
    one = given(80, "4xp100-pcie")
    for choice in ("body", "sage"):
        scores = GoNetwork(NetworkShape(hidden=16, choice=choice)).choose(go_batch([one])).detach().numpy()
        bound = -4 * one.candidates.summary[:, BOUND] - 8 * one.candidates.summary[:, OVER]
        np.testing.assert_allclose(scores, bound, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("choice", ["body", "sage"])
def test_candidates_are_scored_alike_alone_and_in_a_batch(choice: str) -> None:
    network = shaken(NetworkShape(hidden=16, choice=choice))
    many = [given(90, "2xp100-pcie"), given(60, "4xp100-pcie+1xk80", 40)]
    together = torch.split(network.choose(go_batch(many)), [len(one.candidates) for one in many])
    for one, part in zip(many, together, strict=True):
        torch.testing.assert_close(part, network.choose(go_batch([one])), rtol=1e-4, atol=1e-4)


def test_the_choice_of_candidates_learns_through_attention_and_modulation() -> None:
    batch = go_batch([given(80, "4xp100-pcie")])
    for switched in ({}, {"attention": False}, {"modulation": False}, {"choice": "sage"}):
        network = shaken(replace(NetworkShape(hidden=16), **switched))
        network.choose(batch).std().backward()
        reached = {name for name, weight in network.named_parameters() if weight.grad is not None}
        through = "choice" not in switched
        assert ("body.0.ask.weight" in reached) == ("body.1.ask.weight" in reached)
        assert ("body.0.ask.weight" in reached) == (through and "attention" not in switched)
        assert ("modulate.weight" in reached) == (through and "modulation" not in switched)
        assert not any(name.startswith("task") for name in reached)


def test_a_file_that_says_nothing_of_the_choice_is_an_older_one() -> None:
    assert shape_of({"hidden": 16, "tasks": ["placement"]}) == NetworkShape(
        hidden=16, tasks=("placement",), choice="sage"
    )
    assert shape_of({"choice": "body"}) == NetworkShape()


def test_later_passes_see_the_decisions_before() -> None:
    one = given(80, "2xp100-pcie")
    batch = go_batch([one])
    network = shaken(NetworkShape(hidden=16))
    first = first_decisions([one], batch, [-1])
    one_pass = network(batch, first)
    two = network(batch, likeliest(batch, one_pass))
    assert not torch.allclose(two.place, one_pass.place)


def test_without_attention_groups_stand_alone() -> None:
    layer = SegmentAttention(16, 2, False)
    there, state = torch.ones(1, 12, dtype=torch.bool), torch.randn(1, 12, 16)
    other = state.clone()
    other[0, 3] += torch.randn(16)
    moved = (layer(other, there) - layer(state, there)).abs().amax(2)[0] > 1e-7
    assert moved.nonzero()[:, 0].tolist() == [3]


def test_modulation_makes_a_group_depend_on_the_whole_graph() -> None:
    one = given(60, "2xp100-pcie")
    other = replace(one, ops=one.ops.copy())
    far = int(np.setdiff1d(np.arange(1, one.num_groups), _reach(one, 0, 2))[-1])
    other.ops[far] += 4
    for modulation in (True, False):
        network = shaken(NetworkShape(hidden=16, attention=False, modulation=modulation))
        answers = []
        for each in (one, other):
            batch = go_batch([each])
            answers.append(network(batch, first_decisions([each], batch, [-1])).place[0, 0])
        assert bool((answers[0] - answers[1]).abs().max() > 1e-6) == modulation


def _reach(one: GoInput, group: int, steps: int) -> list[int]:
    start, ends = one.neighbours
    seen = {group}
    for _ in range(steps):
        seen |= {int(end) for here in seen for end in ends[start[here] : start[here + 1]]}
    return sorted(seen)


def test_memory_grows_with_the_ops_not_with_their_square() -> None:
    """The largest tensor attention makes for 16 times the groups has 16 times the entries."""
    sizes = []
    for groups in (512, 8192):
        layer, most = SegmentAttention(8, 2, True), [0]

        class Watch(torch.utils._python_dispatch.TorchDispatchMode):  # type: ignore[misc]
            def __torch_dispatch__(self, func, types, args=(), kwargs=None):  # type: ignore[no-untyped-def]
                made = func(*args, **(kwargs or {}))
                for each in made if isinstance(made, tuple) else (made,):
                    if isinstance(each, torch.Tensor):
                        most[0] = max(most[0], each.numel())  # noqa: B023
                return made

        with torch.no_grad(), Watch():
            layer(torch.randn(1, groups, 8), torch.ones(1, groups, dtype=torch.bool))
        sizes.append(most[0])
    assert sizes[1] <= 16 * sizes[0]
