"""A step too large for a set limit of GPU memory, on the GPU and the CPU: by a plan made by hand, and by the planner's.

    PYTHONPATH=src:benchmarks python3 benchmarks/offload_gpu.py FOLDER [--only hand,planner] [--seconds 60] [--picture]

By hand: updates, and with them weights and their state, on the CPU. By the planner: this machine is measured, its GPU
gets the limit, and `lm.plan` does the rest. Each is verified, then runs under the limit, where the eager loop is tried
too. Writes offload.json and trace-*.json (intervals of kernels and copies); --picture draws the traces that are there.
--rehearse plans and verifies a small model with the CPU for both devices.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from running_gpu import clean, clocked_alone, eager, language, on_gpu, say
from torch import nn

import loadmaster as lm
from loadmaster.cluster import Cluster
from loadmaster.cost import price
from loadmaster.errors import DoesNotFit
from loadmaster.importers.torch.export import capture_step
from loadmaster.importers.torch.graph import CapturedStep
from loadmaster.importers.torch.step import Target
from loadmaster.plans import Plan
from loadmaster.runtime.apply import Planning, build, planning_of, stand_in_cluster
from loadmaster.runtime.verify import verify_step

DEVICES = ["cuda:0", "cpu"]
MARGIN = 0.92  # of the limit, to plan with: a plan knows nothing of fragmentation and of what libraries keep
LIMITS = (0.75, 0.5)  # of what the eager loop takes
METHODS = ("recompute:inner=one-device,fuse=no", "auto")  # the best of them is applied


def by_hand(captured: CapturedStep) -> Planning:
    problem = price(captured.graph, stand_in_cluster(2))
    device = [int(kind.startswith("optim.")) for kind in problem.graph.kind]
    return planning_of(captured, Plan.of(problem, device))


def by_planner(captured: CapturedStep, cluster: Cluster, cost: Any, limit: int, seconds: float) -> Planning:
    gpu = replace(cluster.devices[0], memory_bytes=limit)
    limited = replace(cluster, devices=(gpu, *cluster.devices[1:]))
    tried = []
    for spec in METHODS:
        tried.append(lm.plan(captured.graph, on=limited, cost=cost, budget=seconds, method=spec))
        say(spec, f"fits: {tried[-1].fits}, modelled {tried[-1].timeline.step_ns / 1e6:.1f} ms")
    result = min(tried, key=lambda one: one.score)
    plan, problem = result.plan, result.problem
    on_host = sum(problem.graph.kind[op].startswith("optim.") for op in range(problem.num_ops) if plan.device[op])
    peak = int(result.timeline.peak_bytes[0])
    say(result.method, f"fits: {result.fits}, modelled {result.timeline.step_ns / 1e6:.1f} ms, {peak / 1e9:.2f} GB,")
    added = 0 if plan.added is None else len(plan.added.op)
    say(f"{on_host} updates on the host, {added} additions, {result.timeline.num_sends} sends")
    return planning_of(captured, result)


def offload(folder: Path, only: list[str], seconds: float, limits: list[float]) -> None:
    torch.manual_seed(0)
    module, inputs = language(24, 1024, 4, 512)
    captured = capture_step(module, inputs, training=True, optimizer="adam", target=Target(gpu=True))
    say("captured", captured.graph.num_ops, "ops")
    batch = on_gpu(inputs)
    found: dict[str, Any] = {"weights_bytes": sum(p.numel() * p.element_size() for p in module.parameters())}
    step: Any = eager(module.cuda(), batch, fused=True)
    for _ in range(2):
        step()
    found["eager_ms"], found["eager_peak_bytes"] = clocked_alone(step)
    del step
    module.zero_grad(set_to_none=True)
    say("eager", found)
    plans: dict[str, tuple[float, Callable[[], Planning]]] = {}
    if "hand" in only:
        plans["by hand"] = (LIMITS[0], lambda: by_hand(captured))
    if "planner" in only:
        from loadmaster.runtime.measure import here, known_costs

        cluster = here(say=say)
        cost = known_costs()  # rates and efficiencies of this machine; ops by themselves were not timed
        for share in limits:
            most = int(share * MARGIN * found["eager_peak_bytes"])
            plans[f"by the planner, {share:.0%}"] = (
                share,
                lambda most=most: by_planner(captured, cluster, cost, most, seconds),  # type: ignore[misc]
            )
    for name, (share, make) in plans.items():
        row: dict[str, Any] = {"limit_bytes": int(share * found["eager_peak_bytes"])}
        found[name] = row
        try:
            one(name, module, batch, captured, make(), row, folder)
        except (torch.OutOfMemoryError, DoesNotFit) as error:
            row["failed"] = str(error).splitlines()[0][:200]
        say(name, row)
        (folder / "offload.json").write_text(json.dumps(found, indent=1))


def one(
    name: str,
    module: nn.Module,
    batch: Any,
    captured: CapturedStep,
    planning: Planning,
    row: dict[str, Any],
    folder: Path,
) -> None:
    """Verified and drawn without a limit, then under it."""
    module.cpu()
    clean()
    if planning.timeline is not None:
        row["modelled_ms"] = planning.timeline.step_ns / 1e6
        row["modelled_peak_bytes"] = int(planning.timeline.peak_bytes[0])
    module.cuda()
    applied: Any = build(module, captured, planning, devices=DEVICES, cuda_graphs=False)
    check = verify_step(applied, batch)
    row["verified"], row["verification"] = check.ok, str(check)
    say(name, check)
    for _ in range(2):
        applied(*batch)
    write_trace(lambda: applied(*batch), folder / f"trace-{name.partition(',')[0].replace(' ', '-')}.json", row)
    applied.detach()
    applied = None
    module.cpu()
    under_limit(module, batch, lambda: build(module, captured, planning, devices=DEVICES, cuda_graphs=False), row)


def under_limit(module: nn.Module, batch: Any, make: Callable[[], Any], found: dict[str, Any]) -> None:
    """Both ways with no more of the GPU's memory than that."""
    module.cpu()
    clean()
    torch.cuda.set_per_process_memory_fraction(found["limit_bytes"] / torch.cuda.mem_get_info()[1])
    try:
        applied: Any = make()
        for _ in range(3):
            applied(*batch)
        took, peak = clocked_alone(lambda: applied(*batch))
        found["applied_under_limit_ms"], found["applied_under_limit_peak_bytes"] = took, peak
        found["losses"] = [float(applied(*batch)) for _ in range(5)]
        applied.detach()
        applied = None
        clean()
        step = eager(module.cuda(), batch, fused=True)
        for _ in range(2):
            step()
        found["eager_under_limit"] = "ran"
    except (torch.OutOfMemoryError, DoesNotFit) as error:
        who = "eager" if "losses" in found else "applied"
        found[f"{who}_under_limit"] = f"out of memory: {str(error).splitlines()[0][:120]}"
    finally:
        torch.cuda.set_per_process_memory_fraction(1.0)


def write_trace(step: Callable[[], Any], path: Path, found: dict[str, Any]) -> None:
    """Intervals of kernels and copies of one step, and how much of the copies lies under kernels."""
    from torch.profiler import ProfilerActivity, profile

    with profile(activities=[ProfilerActivity.CUDA, ProfilerActivity.CPU]) as seen:
        step()
        torch.cuda.synchronize()
    raw = path.with_name("profile.json")
    seen.export_chrome_trace(str(raw))
    events = json.loads(raw.read_text())["traceEvents"]
    raw.unlink()
    kept = [
        {"name": e["name"][:60], "kind": e["cat"], "stream": e["args"].get("stream"), "us": e["ts"], "for_us": e["dur"]}
        for e in events
        if e.get("cat") in ("kernel", "gpu_memcpy", "gpu_memset") and e.get("ph") == "X"
    ]
    path.write_text(json.dumps(kept))
    kernels = merged([(e["us"], e["us"] + e["for_us"]) for e in kept if e["kind"] == "kernel"])
    copies = merged([(e["us"], e["us"] + e["for_us"]) for e in kept if e["kind"] == "gpu_memcpy"])
    both = sum(max(0.0, min(a[1], b[1]) - max(a[0], b[0])) for a in kernels for b in copies)
    total = sum(end - start for start, end in copies)
    found["copies_us"], found["copies_under_kernels_us"] = round(total), round(both)
    found["kernels_us"] = round(sum(end - start for start, end in kernels))


def merged(spans: list[tuple[float, float]]) -> list[tuple[float, float]]:
    joined: list[tuple[float, float]] = []
    for start, end in sorted(spans):
        if joined and start <= joined[-1][1]:
            joined[-1] = (joined[-1][0], max(end, joined[-1][1]))
        else:
            joined.append((start, end))
    return joined


def picture(trace: Path) -> None:
    """Kernels and copies of one step over time, a row a stream; needs matplotlib alone."""
    from matplotlib import pyplot

    events = json.loads(trace.read_text())
    begun = min(event["us"] for event in events)
    kinds = {"kernel": "tab:blue", "gpu_memcpy": "tab:orange", "gpu_memset": "grey"}
    streams = sorted({event["stream"] for event in events})
    figure, axes = pyplot.subplots(figsize=(9, 1 + 0.5 * len(streams)))
    for kind, colour in kinds.items():
        for row, stream in enumerate(streams):
            of = [event for event in events if event["stream"] == stream and event["kind"] == kind]
            spans = [((event["us"] - begun) / 1e3, event["for_us"] / 1e3) for event in of]
            axes.broken_barh(spans, (row - 0.4, 0.8), color=colour)
    axes.set(yticks=range(len(streams)), yticklabels=[f"stream {s}" for s in streams], xlabel="ms")
    axes.plot([], color="tab:blue", linewidth=6, label="kernels")
    axes.plot([], color="tab:orange", linewidth=6, label="copies")
    axes.legend(frameon=False, loc="upper right")
    figure.tight_layout()
    figure.savefig(trace.with_suffix(".png"), dpi=110)


def rehearse() -> None:
    """The planner's part on CPUs, with a small model."""
    torch.manual_seed(0)
    module, inputs = language(4, 64, 4, 64)
    captured = capture_step(module, inputs, training=True, optimizer="adam")
    cluster = Cluster.preset("1xh200+cpu")
    alone = lm.plan(captured.graph, on="1xh200", method="one-device", budget=lm.Budget(None, 1))
    whole = int(alone.timeline.peak_bytes[0])
    for share in LIMITS:
        planning = by_planner(captured, cluster, None, int(share * whole), 5.0)
        applied = build(module, captured, planning, devices=["cpu", "cpu"])
        say(f"{share:.0%} of {whole} bytes:", verify_step(applied, inputs))
        applied.detach()


def main() -> None:
    options = argparse.ArgumentParser()
    options.add_argument("folder", type=Path)
    options.add_argument("--only", default="hand,planner")
    options.add_argument("--seconds", type=float, default=40, help="for each search of the planner")
    options.add_argument("--limits", default=",".join(map(str, LIMITS)), help="shares of what the eager loop takes")
    options.add_argument("--picture", action="store_true")
    options.add_argument("--rehearse", action="store_true")
    given = options.parse_args()
    given.folder.mkdir(parents=True, exist_ok=True)
    if given.picture:
        for trace in given.folder.glob("trace-*.json"):
            picture(trace)
    elif given.rehearse:
        rehearse()
    else:
        offload(given.folder, given.only.split(","), given.seconds, [float(share) for share in given.limits.split(",")])


if __name__ == "__main__":
    main()
