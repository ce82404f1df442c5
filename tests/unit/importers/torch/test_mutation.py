"""Writes in place and random ops: who must wait for whom, found by walking the captured graph."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from torch import Tensor, nn  # noqa: E402

from loadmaster.graph import OUTPUT, STATE, WEIGHT, Graph  # noqa: E402
from loadmaster.importers.torch.export import capture  # noqa: E402
from tests.unit.importers.torch.models import (  # noqa: E402
    IMAGES,
    WORDS,
    ConvNet,
    Mlp,
    Transformer,
    kinds,
    ops,
    owned_bytes,
    readers_of_memory,
)


def states_written(graph: Graph) -> dict[str, str]:
    """Name of each state that is no optimizer's, and the kind of the op that writes it."""
    found = {}
    for tensor in range(graph.num_tensors):
        base, op = int(graph.alias_of[tensor]), int(graph.producer[tensor])
        if base >= 0 and graph.role[base] == STATE and not graph.kind[op].startswith("optim."):
            found[graph.tensor_name[base]] = graph.kind[op]
    return found


def test_batch_norm_writes_its_statistics_in_place() -> None:
    graph = capture(ConvNet(), (IMAGES,), training=True)
    assert states_written(graph) == {
        "norm.running_mean": "aten._native_batch_norm_legit.default",
        "norm.running_var": "aten._native_batch_norm_legit.default",
        "norm.num_batches_tracked": "aten.add_.Tensor",
    }
    assert not any(graph.is_view[graph.producer[t]] for t in range(graph.num_tensors) if graph.role[t] == STATE)


def test_batch_norm_in_evaluation_only_reads_them() -> None:
    graph = capture(ConvNet(), (IMAGES,), training=False)
    assert owned_bytes(graph, STATE) == 0
    named = dict(zip(graph.tensor_name, graph.role.tolist(), strict=True))
    assert named["norm.running_mean"] == named["norm.running_var"] == WEIGHT


def test_writes_to_activations_are_traced_away() -> None:
    """A ReLU in place makes the second trace, in which batch norm returns its statistics instead of writing them."""
    graph, plain = (capture(ConvNet(inplace), (IMAGES,), training=True) for inplace in (True, False))
    assert states_written(graph) == {
        "norm.running_mean": "aten._native_batch_norm_legit_functional.default",
        "norm.running_var": "aten._native_batch_norm_legit_functional.default",
        "norm.num_batches_tracked": "aten.add.Tensor",
    }
    assert not ops(graph, "aten.copy_") and not ops(graph, "aten.relu_")
    assert int(graph.flops.sum()) == int(plain.flops.sum())
    assert owned_bytes(graph, STATE) == owned_bytes(plain, STATE)
    assert graph.scope[ops(graph, "aten.threshold_backward")[0]] == "relu"


class Stateful(nn.Module):
    """A module with two buffers of 4 floats; each of the functions below is the forward pass of one."""

    def __init__(self, step: Callable[[Tensor, Tensor, Tensor], Tensor]) -> None:
        super().__init__()
        self.register_buffer("mean", torch.zeros(4))
        self.register_buffer("other", torch.zeros(4))
        self.step = step

    def forward(self, x: Tensor) -> Tensor:
        return self.step(self.mean, self.other, x)


def remembers(mean: Tensor, other: Tensor, x: Tensor) -> Tensor:
    new = mean * 0.5 + x
    old_and_new = mean + new  # reads the old value after the new one is made
    mean.copy_(new)
    return old_and_new


def replaces(mean: Tensor, other: Tensor, x: Tensor) -> Tensor:
    mean.copy_(mean * 0.5 + x)
    return mean * 2


def counts(mean: Tensor, other: Tensor, x: Tensor) -> Tensor:
    before = mean * x
    mean.add_(1)
    between = mean * x
    mean.mul_(2)
    return before + between + mean


def changes_its_copy(mean: Tensor, other: Tensor, x: Tensor) -> Tensor:
    new = x * 2
    mean.copy_(new)
    mean.add_(1)
    return new + mean


def copies_twice(mean: Tensor, other: Tensor, x: Tensor) -> Tensor:
    new = x + 1
    mean.copy_(new)
    other.copy_(new)
    return new * 2


def returns_it(mean: Tensor, other: Tensor, x: Tensor) -> Tensor:
    new = x + 1
    mean.copy_(new)
    return new


def keeps_the_input(mean: Tensor, other: Tensor, x: Tensor) -> Tensor:
    mean.copy_(x)
    return mean + x


def looks_through_a_view(mean: Tensor, other: Tensor, x: Tensor) -> Tensor:
    half = mean[:2]
    mean.add_(1)
    return half * 2 + x[:2]


def writes_through_a_view(mean: Tensor, other: Tensor, x: Tensor) -> Tensor:
    before = mean * 2
    mean[1:3] = x[:2]
    return before + mean


STEPS = [remembers, replaces, counts, changes_its_copy, copies_twice, returns_it, keeps_the_input]
STEPS += [looks_through_a_view, writes_through_a_view]


def any_order(graph: Graph, rng: random.Random) -> list[int]:
    """Some order in which every op comes after those it waits for."""
    start, before = graph.dependencies
    left = [set(before[start[op] : start[op + 1]].tolist()) for op in range(graph.num_ops)]
    order: list[int] = []
    while len(order) < graph.num_ops:
        done = set(order)
        order.append(rng.choice([op for op in range(graph.num_ops) if op not in done and left[op] <= done]))
    return order


def run(graph: Graph, order: list[int]) -> dict[str, Any]:
    """What memory holds at the end, where an op's result is a term of what it finds in memory when it runs.

    A view passes on the memory itself. Two orders of the same computation end with the same terms.
    """
    memory: dict[int, Any] = {t: graph.tensor_name[t] for t in range(graph.num_tensors) if graph.producer[t] < 0}
    for op in order:
        if not graph.is_view[op]:
            term = hash((graph.kind[op], *(memory[int(graph.owner[t])] for t in graph.reads_of(op))))
            memory |= {int(graph.owner[t]): (term, index) for index, t in enumerate(graph.makes_of(op))}
    return {graph.tensor_name[t]: held for t, held in memory.items()}


@pytest.mark.parametrize("step", STEPS, ids=lambda step: step.__name__)
def test_every_legal_order_computes_the_same(step: Any) -> None:
    graph = capture(Stateful(step), (torch.ones(4),), training=False)
    expected = run(graph, list(range(graph.num_ops)))
    rng = random.Random(0)
    for _ in range(20):
        assert run(graph, any_order(graph, rng)) == expected


@pytest.mark.parametrize("step", STEPS, ids=lambda step: step.__name__)
def test_program_order_computes_what_the_module_does(step: Any) -> None:
    """Terms that hold no overwritten value: each read finds the tensor that it names, not a later one in its place."""
    graph = capture(Stateful(step), (torch.ones(4),), training=False)
    holds = {t: t for t in range(graph.num_tensors) if graph.producer[t] < 0}
    for op in range(graph.num_ops):
        for tensor in graph.reads_of(op):
            held = holds[int(graph.owner[tensor])]
            shown = int(tensor)
            while graph.producer[shown] >= 0 and graph.is_view[graph.producer[shown]]:
                shown = int(graph.alias_of[shown])
            assert held == shown
        if not graph.is_view[op]:
            holds |= {int(graph.owner[t]): int(t) for t in graph.makes_of(op)}


def test_a_new_state_waits_for_those_who_read_the_old_one() -> None:
    graph = capture(Stateful(remembers), (torch.ones(4),), training=False)
    (copy,) = ops(graph, "aten.copy_")
    assert states_written(graph) == {"mean": "aten.copy_.default"}
    assert {graph.op_name[op] for op in graph.after_of(copy)} == {"mul", "add_1"}
    assert not graph.is_view[copy]


def test_a_new_state_is_written_without_a_copy_where_nobody_needs_the_old_one() -> None:
    graph = capture(Stateful(replaces), (torch.ones(4),), training=False)
    assert kinds(graph) == ["mul", "add", "mul"]
    assert states_written(graph) == {"mean": "aten.add.Tensor"}
    assert graph.producer[graph.reads_of(2)].tolist() == [1]
    assert graph.after_of(1).tolist() == [0]


def test_all_who_write_one_state_share_a_device() -> None:
    graph = capture(Stateful(counts), (torch.ones(4),), training=False)
    op = {name: index for index, name in enumerate(graph.op_name)}
    assert graph.colocate[op["add_"]] == graph.colocate[op["mul_"]] >= 0


def test_one_result_is_written_to_one_place_and_copied_to_the_other() -> None:
    graph = capture(Stateful(copies_twice), (torch.ones(4),), training=False)
    assert states_written(graph) == {"mean": "aten.add.Tensor", "other": "aten.copy_.default"}


def test_what_is_returned_or_given_keeps_its_own_memory() -> None:
    returned = capture(Stateful(returns_it), (torch.ones(4),), training=False)
    assert owned_bytes(returned, OUTPUT) == 16
    given = capture(Stateful(keeps_the_input), (torch.ones(4),), training=False)
    assert kinds(given) == ["copy_", "add"]


@pytest.mark.parametrize("make", [Mlp, Transformer, ConvNet])
def test_an_update_comes_after_all_who_read_what_it_overwrites(make: Any) -> None:
    inputs = {Mlp: torch.ones(8, 16), Transformer: WORDS, ConvNet: IMAGES}[make]
    graph = capture(make(), (inputs,), training=True)
    updates = ops(graph, "optim.")
    assert len(updates) == len(list(make().parameters()))
    for op in updates:
        for made in graph.makes_of(op):
            assert readers_of_memory(graph, made) - {op} <= set(graph.after_of(op).tolist())


def test_weights_are_grouped_with_their_update_but_not_with_their_readers() -> None:
    graph = capture(Transformer(), (WORDS,), training=True)
    updates = ops(graph, "optim.")
    assert len({int(graph.colocate[op]) for op in updates}) == len(updates)
    assert all(graph.colocate[op] == -1 for op in range(graph.num_ops) if op not in updates)


def test_random_ops_are_chained_in_program_order() -> None:
    graph = capture(Transformer(dropout=0.1), (WORDS,), training=True)
    drops = ops(graph, "aten.native_dropout.default")
    assert len(drops) == 4
    assert [graph.after_of(op).tolist() for op in drops] == [[], *([op] for op in drops[:-1])]
    others = set(range(graph.num_ops)) - set(drops) - set(ops(graph, "optim."))
    assert not any(len(graph.after_of(op)) for op in others)  # attention that drops nothing draws nothing
