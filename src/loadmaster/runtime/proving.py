"""When a step is proven against its module: on the example inputs at `apply`, and on the batch of the first call.

On by default. It takes a copy of module and optimizer and three runs, so where memory is short it is left out, and the
step says so.
"""

from __future__ import annotations

import warnings
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist
from torch import Tensor

from loadmaster.errors import CannotRun, LoadmasterError
from loadmaster.pipelines.pipelined import pipelined_of
from loadmaster.runtime.execute import tensors_by_name
from loadmaster.runtime.verify import Verification, verify_step

if TYPE_CHECKING:
    from loadmaster.runtime.apply import Planning
    from loadmaster.runtime.execute import AppliedStep

_SHARE = 0.8  # of the free memory
NOT_VERIFIED = "not verified"


def verify_of(step: AppliedStep, inputs: Any) -> Verification:
    """Runs the step and the model beside each other from the same weights, microbatch by microbatch in a pipeline."""
    pipeline = pipelined_of(step.captured.graph.captured)
    try:
        if pipeline is None:
            return verify_step(step, inputs)
        from loadmaster.runtime.pipelines import verify_pipeline

        return verify_pipeline(step, inputs, pipeline)
    except LoadmasterError:
        raise
    except Exception as error:
        reason = (str(error).strip() or type(error).__name__).splitlines()[0]
        what = f"the module could not be run beside the step: {type(error).__name__}: {reason}"
        fix = "check that a copy (copy.deepcopy) of the module and the optimizer trains on this batch by itself"
        raise CannotRun(what, f"verify, {type(step.binding.module).__name__}", fix) from error


def prove(step: AppliedStep, inputs: Any, planning: Planning, wanted: bool | None) -> Verification | None:
    """CannotRun where the step differs from its module; None where they were not compared: `step.verified` says why."""
    why = "verify=False" if wanted is False else "" if wanted else _agreed(step, _too_large(step, planning))
    if why:
        step.verified = f"{NOT_VERIFIED}: {why}"
        if wanted is None:
            warnings.warn(step.verified, stacklevel=3)
        return None
    found = verify_of(step, inputs)
    found.require()
    step.verified = str(found)
    step.unproven = _prove_next
    return found


def _prove_next(step: AppliedStep, inputs: Any) -> None:
    found = verify_of(step, inputs)
    found.require()
    step.verified = f"{found}, and on the batch of the first call"


def _too_large(step: AppliedStep, planning: Planning) -> str:
    """Why a copy and its runs would not fit, as far as sizes tell."""
    weights = sum(map(_bytes, tensors_by_name(step.binding.module).values()))
    state = max(
        2 * weights if step.captured.optimizer.startswith("adam") else 0, sum(map(_bytes, step.updates.state()))
    )
    line = planning.modelled or planning.timeline
    made = int(line.peak_bytes.sum()) if line is not None else int(step.captured.graph.nbytes.sum())
    gpus = {device for device in step.devices if device.type == "cuda"}
    wanted = {torch.device("cpu"): 8 * weights + 2 * state + (0 if gpus else made)}
    wanted |= dict.fromkeys(gpus, 3 * weights + 2 * state + made)
    for device, need in wanted.items():
        free = free_bytes(device)
        if need > _SHARE * free:
            said = f"a copy of the module and its runs take about {need / 1e9:.1f} GB on {device}"
            return f"{said}, where {free / 1e9:.1f} GB are free; verify=True compares all the same"
    return ""


def _agreed(step: AppliedStep, why: str) -> str:
    """Of several processes all compare, or none."""
    if step.post is None:
        return why
    found: list[Any] = [None] * dist.get_world_size()
    dist.all_gather_object(found, why)
    return next(filter(None, found), "")


def _bytes(tensor: Tensor) -> int:
    return tensor.numel() * tensor.element_size()


def free_bytes(device: torch.device) -> int:
    """Memory that may be used there now."""
    from loadmaster.runtime.machine import _memory

    return _memory(str(device))
