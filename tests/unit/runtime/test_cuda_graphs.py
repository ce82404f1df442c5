"""Which calls are recorded together, on a machine without a GPU: recording is left out, the cut-up program is run."""

from __future__ import annotations

import copy
from typing import Any

import pytest

torch = pytest.importorskip("torch")

import numpy as np  # noqa: E402

from loadmaster.cost import price  # noqa: E402
from loadmaster.importers.torch.export import capture_step  # noqa: E402
from loadmaster.plans import Plan  # noqa: E402
from loadmaster.runtime.apply import build, planning_of, stand_in_cluster  # noqa: E402
from loadmaster.runtime.cuda_graphs import with_segments  # noqa: E402
from loadmaster.runtime.listing import compiled_text  # noqa: E402
from tests.unit.importers.torch.models import WORDS, Transformer  # noqa: E402


@pytest.mark.parametrize("devices", [1, 2])
def test_a_program_in_segments_is_the_same_program(devices: int) -> None:
    module = Transformer(dropout=0.0)
    twin = copy.deepcopy(module)
    captured = capture_step(module, (WORDS,), training=True)
    problem = price(captured.graph, stand_in_cluster(devices))
    half = problem.num_ops // 2
    place = np.where(np.arange(problem.num_ops) < half, 0, devices - 1)
    for group in set(problem.graph.colocate.tolist()) - {-1}:
        place[problem.graph.colocate == group] = 0
    planning = planning_of(captured, Plan.of(problem, place))
    steps = [build(which, captured, planning, devices=["cpu"] * devices) for which in (module, twin)]
    calls: list[int] = []

    def make(run: Any, fixed: list[bool], device: Any, pools: Any) -> Any:
        assert device.type == "cuda"
        return lambda *given: calls.append(len(given)) or run(*given)

    step = steps[0]
    gpus = [torch.device("cuda"), torch.device("cpu")][:devices]
    listing, count = with_segments(step.program.listing, gpus, set(), make)
    assert count >= 1
    if devices == 1:
        assert count == 1 and len(listing.lines) == 1
    run = compiled_text(listing.source()[0], listing.constants)
    step._bind((WORDS,), {})
    with torch.no_grad():
        loss = run(step._residents)[0]
    assert len(calls) == count
    assert torch.equal(loss, steps[1](WORDS))
    for mine, theirs in zip(module.parameters(), twin.parameters(), strict=True):
        assert torch.equal(mine, theirs)
