"""Fused kernels compiled as one region, and op by op where that cannot be."""

from __future__ import annotations

import shutil
from typing import Any

import pytest
import torch
from torch import nn

from loadmaster.cost import price
from loadmaster.importers.torch.export import capture_step
from loadmaster.plans import Plan
from loadmaster.runtime import regions
from loadmaster.runtime.apply import Planning, build
from loadmaster.runtime.execute import AppliedStep
from loadmaster.runtime.verify import verify_step
from loadmaster.search import Budget, solve

INPUTS = (torch.linspace(-1, 1, 32).reshape(4, 8),)


def applied(module: nn.Module, training: bool, compiled: bool | None) -> AppliedStep:
    captured = capture_step(module, INPUTS, training=training)
    result = solve(price(captured.graph, "2xp100-pcie"), "greedy-fusion", Budget(None, 5))
    assert result.plan.fuses
    planning = Planning(result.plan, result.problem, result.timeline)
    return build(module, captured, planning, devices=["cpu"] * 2, compile_kernels=compiled)


def small(*more: nn.Module) -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(8, 8), nn.Sigmoid(), nn.Tanh(), *more)


@pytest.mark.skipif(shutil.which("g++") is None, reason="Inductor needs a C++ compiler on a CPU")
def test_a_kernel_is_compiled_as_one_region_and_computes_the_same() -> None:
    step = applied(small(), training=False, compiled=True)
    found = verify_step(step, INPUTS)
    assert found.ok and not found.must_equal_capture
    assert step.kernels.total == step.kernels.compiled == 1 and step.kernels.by_op == 0
    assert "1 fused kernels)" in repr(step)


def test_a_region_that_cannot_be_compiled_runs_op_by_op_and_says_why(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*given: Any) -> Any:
        raise RuntimeError("no compiler here")

    monkeypatch.setattr(regions, "_by_inductor", refuse)
    step = applied(small(), training=True, compiled=True)
    found = verify_step(step, INPUTS)
    assert found.equals_module and found.must_equal_capture
    assert step.kernels.by_op == step.kernels.total > 0
    assert step.kernels.reasons == ("no compiler here",)
    assert "op by op" in repr(step)


def test_kernels_that_draw_random_numbers_are_never_compiled() -> None:
    module = small(nn.Dropout(0.5), nn.Sigmoid())
    captured = capture_step(module, INPUTS, training=True)
    problem = price(captured.graph, "1xp100-pcie")
    draws = next(op for op, kind in enumerate(problem.graph.kind) if "native_dropout.default" in kind)
    kernel = [op - (op == draws + 1) for op in range(problem.num_ops)]  # with the op that reads it
    plan = Plan.of(problem, [0] * problem.num_ops, None, kernel)
    step = build(module, captured, Planning(plan, problem, None), devices=["cpu"], compile_kernels=True)
    assert verify_step(step, INPUTS).equals_module
    assert step.kernels.total == step.kernels.by_op == 1 and not step.kernels.regions


def test_on_cpus_nothing_is_compiled_unless_asked_for() -> None:
    step = applied(small(), training=True, compiled=None)
    assert verify_step(step, INPUTS).equals_module and not step.kernels.regions
