"""A race on this machine: the defaults against a plan, in turns, and whether each did what was modelled.

What ops took in the course of a step is kept for the next plan.
"""

from __future__ import annotations

import copy
import gc
import statistics
import time
from collections.abc import Callable
from contextlib import suppress
from importlib.util import find_spec
from typing import Any

import torch
from torch import nn

from loadmaster.cluster import Cluster
from loadmaster.cost import Measured, price
from loadmaster.errors import LoadmasterError
from loadmaster.importers.torch.arguments import as_arguments, split
from loadmaster.importers.torch.export import capture_step
from loadmaster.importers.torch.graph import CapturedStep
from loadmaster.importers.torch.step import Target, loss_of
from loadmaster.plans import Plan
from loadmaster.runtime.apply import build, planning_of
from loadmaster.runtime.frames import held_by_frames, peak_of
from loadmaster.runtime.machine import at_this_moment, torch_names
from loadmaster.runtime.measure import PATIENCE_S, keep_costs, keep_reference, measure_ops, reference_of
from loadmaster.runtime.quiet import Reference, was_busy
from loadmaster.runtime.race_result import OURS, Contender, Load, RaceResult, Recalibration
from loadmaster.runtime.storages import LiveStorages
from loadmaster.runtime.verify import same_numbers
from loadmaster.search import Budget, Result, solve
from loadmaster.simulator import simulate

WARM, MOST_ROUNDS, RACE_SECONDS = 2, 9, 40.0  # steps before the clock: the first compiles; rounds; what one waits for
ALONE, COMPILED, EXPERT = "one device, eager", "torch.compile", "expert"
ACCELERATE = "accelerate's device map"
NOT_QUIET = "not recalibrated: others use this machine; race again when it is quiet"
WORTH = 0.95  # of the step on one device: a smaller gain is within the model's error (docs/fidelity.md)


Step = Callable[[], Any]


@same_numbers()  # the caller's random streams stay where they were
def run_race(
    made: tuple[nn.Module, Any],
    cluster: Cluster,
    method: str,
    budget: Budget,
    seed: int,
    *,
    training: bool = True,
    compiled: bool = True,
    say: Callable[[str], None] = lambda text: None,
) -> RaceResult:
    """Plans for what was measured, then lets everyone run in turns: eager torch, torch.compile where it is asked for,
    the expert's plan where there are several devices, and ours.

    Args:
        made: a module with real weights, and example inputs.
        cluster: of this machine (`measure.here`).
        method, budget, seed: of our plan; where no device is a GPU, "auto" does not fuse.
        training: a step with its backward pass and updates, or an inference.
        compiled: torch.compile runs, too.
        say: is told what goes on.

    Returns:
        RaceResult: who took how long, beside what was modelled; ops as they were in the step are kept for the next
            plan.
    """
    module, inputs = made
    gpu = any(name.startswith("cuda") for name in torch_names())
    captured = capture_step(module, inputs, training=training, target=Target(gpu=gpu))
    costs = measure_ops(captured.graph, cluster, say=say)
    problem = price(captured.graph, cluster, cost=costs)
    if method == "auto" and not gpu:
        method = "auto:fusion=none"  # kernels are compiled on GPUs alone, and op by op nothing is saved
    say(f"planning with {method}")
    on_one = solve(problem, "one-device", Budget(None, 1), seed)
    planned = {OURS: worth_leaving(on_one, solve(problem, method, budget, seed), say)}
    if problem.num_devices > 1:
        planned[EXPERT] = solve(problem, "expert", Budget(None, 1), seed)
    steps, held, failed = _steps(captured, made, compiled, planned, say)
    say("racing: " + ", ".join(steps))
    reference = reference_of(torch_names()[0])
    times, peaks, beside = _run(steps, held, reference)
    modelled = {name: (found.timeline.step_ns, int(found.timeline.peak_bytes.max())) for name, found in planned.items()}
    now = at_this_moment(cluster)
    modelled[ALONE] = _eager(captured, made, now, costs, gpu)
    if gpu:
        modelled[COMPILED] = _as_torch_runs(captured, now, costs, "compiled")
    rows = [_row(name, times[name], peaks[name], modelled.get(name), problem.basis) for name in steps]
    alone = next((row for row in rows if row.name == ALONE), None)
    again = None if alone is None else _recalibrate(captured, made, costs, now, alone, reference, say)
    keep_reference(reference)
    load = Load(beside, reference.quietest_ns) if was_busy(beside, reference.quietest_ns) else None
    return RaceResult(tuple(rows), planned[OURS], failed, again, load)


def worth_leaving(alone: Result, found: Result, say: Callable[[str], None] = lambda text: None) -> Result:
    """The plan that was found, or that of one device where it promises hardly more: one thread of the host asks for all
    kernels, waits for what is sent to the CPU and runs the CPU's own ops, and none of that is modelled. HEFT's plan of
    a decoder, modelled as fast as one device alone, took 1.35 times as long (docs/fidelity.md)."""
    if not found.timeline.num_sends or not alone.fits or found.timeline.step_ns < WORTH * alone.timeline.step_ns:
        return found
    gain = 1 - found.timeline.step_ns / alone.timeline.step_ns
    say(f"the plan found promises {max(0.0, gain):.1%} over one device, less than its sends may cost: one device it is")
    return alone


Modelled = tuple[int, int]  # ns of a step, bytes at its peak


def _eager(
    captured: CapturedStep, made: tuple[nn.Module, Any], cluster: Cluster, costs: Measured, gpu: bool
) -> Modelled:
    """One device, asked op by op; of an inference, the peak with what Python's variables hold."""
    step_ns, peak = _as_torch_runs(captured, cluster, costs, "eager")
    if captured.training:
        return step_ns, peak
    with suppress(Exception):  # a module that looks at large values cannot be followed on fake tensors
        table = costs.times.get(cluster.devices[0].kind, {})
        workspaces = {signature: time.workspace_bytes for signature, time in table.items()}
        peak = peak_of(held_by_frames(made[0], made[1], Target(gpu=gpu)), workspaces)
    return step_ns, peak


def _as_torch_runs(captured: CapturedStep, cluster: Cluster, costs: Measured, mode: str) -> Modelled:
    """A step on the first device in that mode, where the cluster knows it: fused greedily when it is compiled."""
    own = cluster.with_mode(mode) if mode in cluster.dispatch_ns else cluster
    problem = price(captured.graph, own, cost=costs)
    if mode == "compiled":
        plan = solve(problem, "greedy-fusion:inner=one-device", Budget(None, 1)).plan
    else:
        plan = Plan.of(problem, [0] * problem.num_ops, range(problem.num_ops))
    found = simulate(problem, plan)
    return found.step_ns, int(found.peak_bytes.max())


def _recalibrate(
    captured: CapturedStep,
    made: tuple[nn.Module, Any],
    costs: Measured,
    cluster: Cluster,
    alone: Contender,
    reference: Reference,
    say: Callable[[str], None],
) -> Recalibration | None:
    """Keeps what ops took in the course of a step on a quiet machine, so that the next plan here rests on it."""
    from loadmaster.runtime.recalibrate import recalibrated, times_in_course

    say("recalibrating")
    device, kind = torch_names()[0], cluster.devices[0].kind
    if not reference.is_quiet(PATIENCE_S):
        say(NOT_QUIET)
        return None
    try:
        own = copy.deepcopy(made[0]).to(device).train(captured.training)
        inputs = _moved(as_arguments(made[1], "race"), device)
        found = times_in_course(own, captured, inputs, device)
    except (LoadmasterError, torch.OutOfMemoryError) as error:
        say(f"not recalibrated: {error}")
        return None
    beside = reference.look()
    if was_busy(beside, reference.quietest_ns):
        say(NOT_QUIET)
        return None
    kept = recalibrated(costs, kind, found, beside)
    keep_costs(kept)
    after_ns, _ = _as_torch_runs(captured, cluster, kept, "eager")
    assert alone.modelled_ns is not None
    return Recalibration(alone.modelled_ns, after_ns, alone.measured_ns)


def _row(name: str, times: list[int], peak: int | None, modelled: Modelled | None, basis: str) -> Contender:
    low, middle, high = (round(value) for value in statistics.quantiles(times, n=4))
    step_ns, peak_bytes = modelled or (None, None)
    return Contender(name, step_ns, middle, low, high, peak_bytes, peak, "" if modelled is None else basis)


def _steps(
    captured: CapturedStep,
    made: tuple[nn.Module, Any],
    compiled: bool,
    planned: dict[str, Result],
    say: Callable[[str], None],
) -> tuple[dict[str, Step], dict[str, list[int]], dict[str, str]]:
    """(who can run, warmed up; what each of them holds on each GPU between steps; who could not)"""
    first, training, (module, inputs) = torch_names()[0], captured.training, made
    makers: dict[str, Callable[[], Step]] = {ALONE: lambda: _plain_step(module, inputs, training, first, False)}
    if compiled:
        makers[COMPILED] = lambda: _plain_step(module, inputs, training, first, True)
    if len(torch_names()) > 2 and find_spec("accelerate") is not None:
        makers[ACCELERATE] = lambda: _mapped_step(module, inputs, training)
    for name, result in planned.items():
        makers[name] = lambda result=result: _planned_step(module, inputs, captured, result)  # type: ignore[misc]
    steps: dict[str, Step] = {}
    held: dict[str, list[int]] = {}
    failed: dict[str, str] = {}
    for name, make in makers.items():
        say(f"warming up {name}")
        try:
            before = _allocated()
            step = make()
            for _ in range(WARM):
                step()
            steps[name] = step
            held[name] = [now - then for now, then in zip(_allocated(), before, strict=True)]
        except Exception as error:  # a rival that cannot run here is reported, ours is an error
            if name == OURS:
                raise
            failed[name] = f"{type(error).__name__}: {str(error).splitlines()[0] if str(error) else ''}"
            say(f"{name} cannot run: {failed[name]}")
    return steps, held, failed


def _plain_step(module: nn.Module, inputs: Any, training: bool, device: str, compiled: bool) -> Step:
    """As people write it: forward, backward, a fused optimizer."""
    own = copy.deepcopy(module).to(device).train(training)
    args, kwargs = _moved(split(as_arguments(inputs, "race")), device)
    return _loop(own, torch.compile(own) if compiled else own, args, kwargs, training)


def _loop(own: nn.Module, called: Any, args: Any, kwargs: Any, training: bool) -> Step:
    if not training:

        def infer() -> Any:
            with torch.no_grad():
                return called(*args, **kwargs)

        return infer
    adam = torch.optim.Adam([weight for weight in own.parameters() if weight.requires_grad], fused=True)

    def train() -> None:
        loss_of(called(*args, **kwargs), "race").backward()  # type: ignore[no-untyped-call]
        adam.step()
        adam.zero_grad(set_to_none=True)

    return train


def _mapped_step(module: nn.Module, inputs: Any, training: bool) -> Step:
    """Spread over all GPUs by accelerate's own rule, as `device_map="auto"` does it."""
    from accelerate import dispatch_model, infer_auto_device_map

    own = copy.deepcopy(module).train(training)
    whole = list(getattr(own, "_no_split_modules", None) or [])
    found = infer_auto_device_map(own, no_split_module_classes=whole)
    spread = dispatch_model(own, found)
    args, kwargs = split(as_arguments(inputs, "race"))
    return _loop(spread, spread, args, kwargs, training)


def _planned_step(module: nn.Module, inputs: Any, captured: CapturedStep, result: Result) -> Step:
    step = build(copy.deepcopy(module).train(captured.training), captured, planning_of(captured, result))
    args, kwargs = split(as_arguments(inputs, "race"))
    return lambda: step(*args, **kwargs)


def _moved(value: Any, device: str) -> Any:
    return torch.utils._pytree.tree_map_only(torch.Tensor, lambda tensor: tensor.to(device), value)


def _run(
    steps: dict[str, Step], held: dict[str, list[int]], reference: Reference
) -> tuple[dict[str, list[int]], dict[str, int | None], int]:
    """(times of each, peaks of each, the reference beside them)"""
    times: dict[str, list[int]] = {name: [] for name in steps}
    peaks = {name: _peak(step, held[name]) for name, step in steps.items()}
    until, beside = time.monotonic() + RACE_SECONDS, list[int]()
    for number in range(MOST_ROUNDS):
        if number >= 3 and time.monotonic() > until:
            break
        for name, step in steps.items():
            times[name].append(_timed(step))
        beside.append(reference.look())
    return times, peaks, round(statistics.median(beside))


def _timed(step: Step) -> int:
    _wait()
    start = time.perf_counter_ns()
    step()
    _wait()
    return time.perf_counter_ns() - start


def _allocated() -> list[int]:
    """[GPUs] bytes of tensors that are alive."""
    if not torch.cuda.is_available():
        return []
    gc.collect()
    _wait()
    return [torch.cuda.memory_allocated(number) for number in range(torch.cuda.device_count())]


def _peak(step: Step, held: list[int]) -> int | None:
    """The most bytes on the device that holds most: of CUDA's allocator, without what the other runners hold there, or
    of live storages on a CPU."""
    if not torch.cuda.is_available():
        with suppress(Exception), LiveStorages() as seen:  # a compiled step hides its tensors
            step()  # meets every weight and state
            seen.peak_bytes = 0
            step()
            return seen.peak_bytes
        return None
    before = _allocated()
    for number in range(torch.cuda.device_count()):
        torch.cuda.reset_peak_memory_stats(number)
    step()
    _wait()
    return max(
        torch.cuda.max_memory_allocated(number) - there + own
        for number, (there, own) in enumerate(zip(before, held, strict=True))
    )


def _wait() -> None:
    if torch.cuda.is_available():
        for number in range(torch.cuda.device_count()):
            torch.cuda.synchronize(number)
