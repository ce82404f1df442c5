"""run_plan: builds a model by name, applies a plan to it, times it, and sets what was modelled beside it.

What `loadmaster run` does: in one process, or as one of several that torchrun started, of which the slowest counts in
each step. Peaks are measured where every device is the host.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from os import PathLike
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from loadmaster.errors import CannotRun
from loadmaster.importers import build as build_model
from loadmaster.importers.torch.arguments import as_arguments, split
from loadmaster.pipelines.pipelined import pipelined_of
from loadmaster.runtime.apply import Planning, bound, plan_file
from loadmaster.runtime.microbatches import whole_batch
from loadmaster.runtime.proving import prove

if TYPE_CHECKING:
    from loadmaster.runtime.execute import AppliedStep
    from loadmaster.runtime.verify import Verification


@dataclass(frozen=True, eq=False)
class Running:
    """What a plan was modelled to take, and what it took.

    Attributes:
        name: of the model.
        mode: training or inference.
        devices, torch_devices: of the plan, and what stood for each.
        ops: of the plan.
        kernels_fused: kernels of several ops.
        kernels_apart: those of them that ran op by op.
        kernels_reasons: why they did.
        modelled_ns: of a step; None where the cluster is not known.
        measured_ns: median over the steps that were timed, after two to warm up.
        fastest_ns: of the steps that were timed.
        modelled_peak_bytes, measured_peak_bytes: [devices] where known.
        verification: what came of it; None where it was not done.
        verified: the same in words, or why it was not.
        notes: what else is to be said.
    """

    name: str
    mode: str
    devices: tuple[str, ...]
    torch_devices: tuple[str, ...]
    ops: int
    kernels_fused: int
    kernels_apart: int
    kernels_reasons: tuple[str, ...]
    modelled_ns: int | None
    measured_ns: int
    fastest_ns: int
    modelled_peak_bytes: tuple[int, ...] | None
    measured_peak_bytes: tuple[int, ...] | None
    verification: str | None
    verified: str
    notes: tuple[str, ...]

    def as_data(self) -> dict[str, Any]:
        return dict(vars(self))


def run_plan(
    model: str,
    plan: str | PathLike[str],
    *,
    verify: bool | None = None,
    steps: int = 5,
    devices: Sequence[str] | None = None,
    compile_kernels: bool | None = None,
) -> Running | None:
    """Builds a model, applies a plan to it and times some steps; what `loadmaster run` does.

    Args:
        model: package.module:callable that returns (module, example inputs).
        plan: its file, which says how the model was captured.
        verify: compare a step with the module first; CannotRun where they differ. By default where memory allows.
        steps: that are timed, after two to warm up.
        devices: a torch device for each device of the plan.
        compile_kernels: as in `apply`.

    Returns:
        Running: in the process of rank 0; None in all others of a run of several.
    """
    file = plan_file(plan)
    torch.manual_seed(0)
    made = build_model(model, dtype=file.captured.get("dtype"), batch=file.captured.get("batch"))
    if not (isinstance(made, tuple) and isinstance(made[0], nn.Module)):
        raise CannotRun(f"'{model}' gives no torch module", model, "return (module, example inputs)")
    module, inputs = made
    pipeline = pipelined_of(file.captured)
    if pipeline is not None:
        inputs = whole_batch(inputs, pipeline.microbatches)
    step, planning = bound(module, inputs, plan, devices=devices, compile_kernels=compile_kernels)
    found = prove(step, inputs, planning, verify)
    peaks = peaks_of(step, inputs)
    times = timed(step, inputs, steps)
    if step.post is not None:
        times, peaks = gathered(step.post.rank, times, peaks)
        step.detach()
        if step.post.rank:
            return None
    return report(step, planning, times, peaks, found)


def gathered(rank: int, times: list[int], peaks: tuple[int, ...] | None) -> tuple[list[int], tuple[int, ...] | None]:
    """The slowest process of each step, and the peak of each device from the process that has it."""
    found: list[Any] = [None] * torch.distributed.get_world_size()
    torch.distributed.all_gather_object(found, (times, None if peaks is None else peaks[rank]))
    held = [peak for _, peak in found]
    return [max(step) for step in zip(*(t for t, _ in found), strict=True)], None if None in held else tuple(held)


def peaks_of(step: AppliedStep, inputs: Any) -> tuple[int, ...] | None:
    """Measured where every device is the host: a GPU's allocator counts for itself."""
    from loadmaster.runtime.memory import measured_peaks

    if any(device.type != "cpu" for device in step.devices):
        return None
    return tuple(measured_peaks(step, inputs))


def timed(step: Callable[..., Any], inputs: Any, steps: int) -> list[int]:
    """[steps] ns, after two to warm up."""
    args, kwargs = split(as_arguments(inputs, "run"))
    times = []
    for number in range(steps + 2):
        _settled()
        begun = time.perf_counter_ns()
        step(*args, **kwargs)
        _settled()
        if number >= 2:
            times.append(time.perf_counter_ns() - begun)
    return times


def _settled() -> None:
    if torch.cuda.is_initialized():  # type: ignore[no-untyped-call]  # else this process has nothing there
        torch.cuda.synchronize()


def report(
    step: AppliedStep,
    planning: Planning,
    times: Sequence[int],
    peaks: tuple[int, ...] | None,
    found: Verification | None,
) -> Running:
    """What was modelled beside what was measured."""
    line = planning.modelled or planning.timeline
    notes = [] if line is not None else ["the plan's file does not say what cluster it was made for: nothing modelled"]
    if step.post is not None:
        notes.append(f"{len(step.devices)} processes, one a device")
    elif len(set(step.devices)) < len(step.devices):
        notes.append("devices of the plan share one here: the measured step is the sum of what the plan does at once")
    return Running(
        name=step.captured.graph.name,
        mode="training" if step.captured.training else "inference",
        devices=planning.problem.cluster.device_names,
        torch_devices=tuple(map(str, step.devices)),
        ops=step.problem.num_ops,
        kernels_fused=step.kernels.total,
        kernels_apart=step.kernels.by_op,
        kernels_reasons=step.kernels.reasons,
        modelled_ns=None if line is None else line.step_ns,
        measured_ns=int(statistics.median(times)),
        fastest_ns=min(times),
        modelled_peak_bytes=None if line is None else tuple(line.peak_bytes.tolist()),
        measured_peak_bytes=peaks,
        verification=None if found is None else str(found),
        verified=step.verified,
        notes=tuple(notes),
    )
