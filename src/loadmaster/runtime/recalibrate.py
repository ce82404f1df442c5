"""What ops take in the course of a real step on one device: neighbours leave them other caches than a run alone does.

On a CPU each call is timed as it runs. On CUDA the calls are queued behind a kernel that sleeps until the host has
asked for all of them, with an event between neighbours, so that the device never waits for the host.
"""

from __future__ import annotations

import statistics
import time
from collections import defaultdict
from collections.abc import Mapping
from itertools import pairwise
from typing import Any

import numpy as np
import torch
from torch import nn

from loadmaster.cost import Measured, OpTime, price
from loadmaster.importers.torch.graph import CapturedStep
from loadmaster.plans import Plan
from loadmaster.runtime.apply import Planning, build, stand_in_cluster
from loadmaster.runtime.execute import AppliedStep
from loadmaster.runtime.timing import DeviceClock
from loadmaster.runtime.verify import unchanged

ROUNDS = 5  # the fewest that quartiles say something of, as in `timing`


def recalibrated(costs: Measured, kind: str, found: Mapping[str, list[int]], reference_ns: int = 0) -> Measured:
    """The same costs with ops as they were in a step on that kind of device, where they were timed at all; with the
    reference beside that step (`quiet`)."""
    table = dict(costs.times.get(kind, {}))
    for signature, times in found.items():
        if signature in table and len(times) > 1:
            low, middle, high = (round(value) for value in statistics.quantiles(times, n=4))
            seen: OpTime = table[signature]
            new = seen._replace(hot_ns=middle, cold_ns=middle, low_ns=low, high_ns=high)
            table[signature] = new._replace(reference_ns=reference_ns)
    return Measured({**costs.times, kind: table}, costs.fallback)


def times_in_course(module: nn.Module, captured: CapturedStep, inputs: Any, device: str) -> dict[str, list[int]]:
    """By signature: ns of each such op in each round of a step on one device. Nothing is changed; updates are left out,
    which eager loops do for all weights at once."""
    problem = price(captured.graph, stand_in_cluster(1))
    plan = Planning(Plan.of(problem, [0] * problem.num_ops), problem, None)
    step = build(module, captured, plan, devices=[device], cuda_graphs=False, compile_kernels=False, together=False)
    try:
        with unchanged(step), torch.no_grad():
            _once(step, inputs, None)
            clock = DeviceClock(device) if device.startswith("cuda") else None
            rounds = np.array([_once(step, inputs, clock) for _ in range(ROUNDS)])
    finally:
        step.detach()
    names = problem.graph.op_name
    found: dict[str, list[int]] = defaultdict(list)
    per_op = np.zeros((ROUNDS, problem.num_ops), np.int64)
    for column, line in enumerate(step.program.listing.lines):
        if line.op >= 0:
            per_op[:, line.op] += rounds[:, column]
    for op, name in enumerate(names):
        signature = captured.graph.signature.get(name, "")
        if signature and not problem.graph.kind[op].startswith("optim."):
            found[signature] += per_op[:, op].tolist()
    return found


def _once(step: AppliedStep, inputs: Any, clock: DeviceClock | None) -> list[int]:
    """[lines] ns of each in one step; `clock` of the CUDA device, where it is one."""
    step.bind(inputs)
    calls = step.program.listing.by_line(step.residents())
    if clock is None:
        times = []
        for _, run in calls:
            begun = time.perf_counter_ns()
            run()
            times.append(time.perf_counter_ns() - begun)
        return times
    begun = time.perf_counter_ns()
    marks = _events(step, clock, 0)
    took = time.perf_counter_ns() - begun  # of the host, nothing asleep
    clock.wait()
    step.bind(inputs)
    marks = _events(step, clock, round(1.5 * took))
    clock.wait()
    gaps = [round(float(one.elapsed_time(other)) * 1e6) for one, other in pairwise(marks)]
    idle = min(gaps)  # what an event itself takes
    return [gap - idle for gap in gaps]


def _events(step: AppliedStep, clock: DeviceClock, sleep_ns: int) -> list[Any]:
    count = len(step.program.listing.lines) + 1
    marks = [torch.cuda.Event(enable_timing=True) for _ in range(count)]  # type: ignore[no-untyped-call]
    for mark in marks:  # made when it is first recorded
        mark.record()
    torch.cuda._sleep(round(clock.sleep_per_ns * sleep_ns))  # type: ignore[no-untyped-call]
    marks[0].record()
    for mark, (_, run) in zip(marks[1:], step.program.listing.by_line(step.residents()), strict=True):
        run()
        mark.record()
    return marks
