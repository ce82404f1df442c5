"""Proofs of small problems: from any plan to the same best one, the same every time, and honest where work runs out."""

from __future__ import annotations

import numpy as np
import pytest

from loadmaster import Budget, GraphBuilder, price, solve
from loadmaster.baselines.fusion.greedy import sharing_of
from loadmaster.methods.exact.branching.proving import prove
from loadmaster.plans import Plan
from loadmaster.problem import Problem
from tests.reference import judge


def drawn(seed: int, ops: int = 10, devices: int = 8) -> Problem:
    """Products and light ops of a megabyte or four, each reading one or two earlier results, on equal devices."""
    rng, g = np.random.default_rng(seed), GraphBuilder(f"drawn {seed}")
    known = [g.tensor(4 << 20, "input", shape=(1024, 1024))]
    for op in range(ops):
        reads = sorted({int(t) for t in rng.choice(known, size=min(len(known), int(rng.integers(1, 3))))})
        made = g.tensor(4 << 20, "output" if op == ops - 1 else "activation", shape=(1024, 1024))
        heavy = rng.random() < 0.4
        kind = "aten.mm.default" if heavy else "aten.add.Tensor" if len(reads) > 1 else "aten.relu.default"
        g.op(f"op{op}", kind, reads, [made], flops=int(rng.integers(1, 4)) * 10**9 if heavy else 2**20)
        known.append(made)
    return price(g.build(), f"{devices}xp100-pcie")


@pytest.mark.parametrize("seed", [8, 10, 12])
def test_from_any_plan_the_same_best_one_is_proved(seed: int) -> None:
    problem = drawn(seed)
    rng, sharing = np.random.default_rng(seed), sharing_of(problem)
    starts = [Plan.of(problem, device) for device in (np.zeros(10, np.int64), rng.integers(0, 8, 10))]
    for fusing in (False, sharing):
        found = [prove(problem, start, fusing) for start in starts]
        assert all(proof is not None and proof.optimal and not proof.bound.cut for proof in found)
        assert len({proof.score for proof in found if proof is not None}) == 1
        for proof in found:
            assert proof is not None and judge(problem, proof.plan).score("step-time") == tuple(proof.score)
    again = prove(problem, starts[0], sharing)
    assert again is not None and found[0] is not None
    assert (again.moments, again.score, again.bound) == (found[0].moments, found[0].score, found[0].bound)


def test_where_work_runs_out_it_says_so_and_its_bound_holds() -> None:
    problem = drawn(12)
    start = Plan.of(problem, np.zeros(10, np.int64))
    whole = prove(problem, start)
    assert whole is not None
    for moments in (1, 20, 100):
        some = prove(problem, start, moments=moments)
        assert some is not None and some.bound.value <= whole.score.value <= some.score.value
        assert some.optimal or some.bound.cut
    assert prove(problem, start, fusing=True) is None, "any kernels are too many"


def test_the_default_calls_such_a_plan_optimal_and_says_of_what() -> None:
    found = solve(drawn(12), "auto", Budget(None, 20_000))
    assert found.optimal and found.among.kernels != "none" and not found.cut
