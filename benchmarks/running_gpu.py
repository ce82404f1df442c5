"""Applied steps on a GPU: against the eager loop, with CUDA graphs, and with the CPU as a second device under a limit.

    PYTHONPATH=src python3 benchmarks/running_gpu.py FOLDER [--seconds 220] [--only gpt,offload] [--picture]

Prints as it goes and writes steps.csv, offload.json, trace.json (intervals of kernels and copies) and machine.json
into FOLDER; --picture draws the trace that is there. Needs torch with CUDA; transformers for the language models; plans
of its own (traced order, and updates on the CPU), so no search and no compiled simulator.
"""

from __future__ import annotations

import argparse
import csv
import gc
import json
import statistics
import time
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.nn import functional as F

from loadmaster.cost import price
from loadmaster.errors import DoesNotFit
from loadmaster.importers.torch.export import capture_step
from loadmaster.importers.torch.step import Target, loss_of
from loadmaster.plans import Plan
from loadmaster.runtime.apply import build, planning_of, stand_in_cluster
from loadmaster.runtime.verify import verify_step

BEGUN = time.perf_counter()
STEPS, ROUNDS = 10, 5


def say(*words: Any) -> None:
    print(f"[{time.perf_counter() - BEGUN:6.1f}]", *words, flush=True)


class Block(nn.Module):
    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.norms = nn.ModuleList(nn.LayerNorm(width) for _ in range(2))
        self.mixes, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.inner, self.outer = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)
        self.heads = heads

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        batch, steps, width = x.shape
        parts = self.mixes(self.norms[0](x)).view(batch, steps, 3, self.heads, width // self.heads)
        query, key, value = parts.permute(2, 0, 3, 1, 4)
        mixed = F.scaled_dot_product_attention(query, key, value, is_causal=True)
        x = x + self.out(mixed.transpose(1, 2).reshape(batch, steps, width))
        return x + self.outer(F.gelu(self.inner(self.norms[1](x))))


class Language(nn.Module):
    """A plain decoder, so that the benchmark needs nothing but torch."""

    def __init__(self, layers: int, width: int, words: int = 50257, most: int = 1024) -> None:
        super().__init__()
        self.words, self.places = nn.Embedding(words, width), nn.Embedding(most, width)
        self.blocks = nn.ModuleList(Block(width, width // 64) for _ in range(layers))
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, words, bias=False)

    def forward(self, words: torch.Tensor) -> torch.Tensor:
        x = self.words(words) + self.places.weight[: words.shape[1]]
        for block in self.blocks:
            x = block(x)
        return F.cross_entropy(self.head(self.norm(x))[:, :-1].flatten(0, 1), words[:, 1:].flatten())


def language(layers: int, width: int, batch: int, steps: int) -> tuple[nn.Module, tuple[torch.Tensor, ...]]:
    return Language(layers, width), (torch.randint(0, 50257, (batch, steps)),)


def small_language() -> tuple[nn.Module, tuple[torch.Tensor, ...]]:
    """For `loadmaster race running_gpu:small_language` with this folder on the path."""
    return language(4, 768, 4, 256)


def zoo(name: str, **settings: Any) -> tuple[nn.Module, Any]:
    from dataclasses import replace

    from loadmaster.zoo import ENTRIES

    entry = ENTRIES[name]
    module, inputs = replace(entry, settings={**entry.settings, **settings}).model(True)
    return module, inputs


MODELS: dict[str, Callable[[], tuple[nn.Module, Any]]] = {
    "gpt-12 b8x512 bfloat16": lambda: _half(language(12, 768, 8, 512)),
    "resnet50 b32": lambda: zoo("resnet50"),
    "bert-base b8x128": lambda: zoo("bert-base", steps=128),
    "gpt-12 b1x256": lambda: language(12, 768, 1, 256),
    "vit-base b32": lambda: zoo("vit-base"),
    "gpt-12 b8x1024": lambda: language(12, 768, 8, 1024),
}


def _half(made: tuple[nn.Module, Any]) -> tuple[nn.Module, Any]:
    return made[0].to(torch.bfloat16), made[1]


def on_gpu(inputs: Any) -> Any:
    return torch.utils._pytree.tree_map_only(torch.Tensor, lambda tensor: tensor.cuda(), inputs)


def called(step: Callable[..., Any], inputs: Any) -> Any:
    return step(**inputs) if isinstance(inputs, dict) else step(*inputs)


def clocked(steps: dict[str, Callable[[], Any]], count: int = STEPS, rounds: int = ROUNDS) -> dict[str, float]:
    """Median ms a step of each over rounds, in turns."""
    times: dict[str, list[float]] = {name: [] for name in steps}
    for _ in range(rounds):
        for name, step in steps.items():
            torch.cuda.synchronize()
            begun = time.perf_counter()
            for _ in range(count):
                step()
            torch.cuda.synchronize()
            times[name].append((time.perf_counter() - begun) / count * 1e3)
    return {name: statistics.median(of) for name, of in times.items()}


def clocked_alone(step: Callable[[], Any]) -> tuple[float, int]:
    """(median ms of a step, peak bytes)."""
    torch.cuda.synchronize()
    torch.cuda.reset_peak_memory_stats()
    took = clocked({"": step}, count=2, rounds=3)[""]
    return took, torch.cuda.max_memory_allocated()


def eager(module: nn.Module, inputs: Any, **settings: Any) -> Callable[[], Any]:
    optimizer = torch.optim.Adam(module.parameters(), **settings)

    def step() -> Any:
        optimizer.zero_grad(set_to_none=True)
        loss = loss_of(called(module, inputs), "module")
        loss.backward()
        optimizer.step()
        return loss

    return step


def clean() -> None:
    gc.collect()
    torch.cuda.empty_cache()


def one_gpu(name: str, make: Callable[[], tuple[nn.Module, Any]]) -> dict[str, Any]:
    """Eager loops and the applied step in traced order, without and with CUDA graphs, in turns."""
    torch.manual_seed(0)
    module, inputs = make()
    module.train()
    row: dict[str, Any] = {"model": name}
    begun = time.perf_counter()
    captured = capture_step(module, inputs, training=True, optimizer="adam", target=Target(gpu=True))
    problem = price(captured.graph, stand_in_cluster(1))
    row["capture_s"], row["ops"] = round(time.perf_counter() - begun, 1), problem.num_ops
    module, inputs = module.cuda(), on_gpu(inputs)
    planning = planning_of(captured, Plan.of(problem, [0] * problem.num_ops))
    applied = build(module, captured, planning, devices=["cuda:0"], cuda_graphs=False)
    found = verify_step(applied, inputs)  # of weights as they were drawn: after some steps gradients are noise
    row["verified"], row["verification"] = found.ok, str(found)
    say(name, row)
    graphed = build(module, captured, planning, devices=["cuda:0"], cuda_graphs=True)
    steps: dict[str, Callable[[], Any]] = {
        "eager_ms": eager(module, inputs),
        "eager_fused_ms": eager(module, inputs, fused=True),
        "applied_ms": lambda: called(applied, inputs),
        "graphs_ms": lambda: called(graphed, inputs),
    }
    for step in steps.values():
        for _ in range(6):
            step()
    row |= clocked(steps)
    best = min(row["eager_ms"], row["eager_fused_ms"])
    row["applied_over_eager"] = round(row["applied_ms"] / best, 4)
    row["graphs_over_eager"] = round(row["graphs_ms"] / best, 4)
    row |= host_time(steps)
    say(name, row)
    return row


def host_time(steps: dict[str, Callable[[], Any]]) -> dict[str, float]:
    """Median ms until the host has asked for a whole step, nothing waiting."""
    found = {}
    for name, step in steps.items():
        times = []
        for _ in range(7):
            torch.cuda.synchronize()
            begun = time.perf_counter()
            step()
            times.append((time.perf_counter() - begun) * 1e3)
        found[name.replace("_ms", "_host_ms")] = statistics.median(times)
    return found


def fused(folder: Path) -> None:
    """Kernels of several ops compiled as regions, beside the same plan op by op, eager and torch.compile."""
    from loadmaster.search import Budget, solve

    torch.manual_seed(0)
    module, inputs = language(4, 768, 8, 512)
    captured = capture_step(module, inputs, training=True, optimizer="adam", target=Target(gpu=True))
    result = solve(price(captured.graph, "1xh200"), "greedy-fusion", Budget(None, 1))
    say("fused planned", result.plan.num_kernels, "kernels of", result.problem.num_ops, "ops")
    module, batch = module.cuda(), on_gpu(inputs)
    planning = planning_of(captured, result)
    found: dict[str, Any] = {}
    steps: dict[str, Callable[[], Any]] = {"eager_fused_ms": eager(module, batch, fused=True)}
    for label, compiled in (("by_op_ms", False), ("regions_ms", True)):
        step = build(module, captured, planning, devices=["cuda:0"], cuda_graphs=False, compile_kernels=compiled)
        check = verify_step(step, batch)
        kernels = step.kernels
        found[label.replace("_ms", "_verification")] = str(check)
        found[label.replace("_ms", "_kernels")] = [kernels.total, kernels.compiled, kernels.by_op, *kernels.reasons[:3]]
        say("fused", label, check, kernels)
        steps[label] = lambda step=step: step(*batch)  # type: ignore[misc]
    steps["torch_compile_ms"] = eager(torch.compile(module), batch, fused=True)
    for step in steps.values():
        for _ in range(3):
            step()
    found |= clocked(steps)
    say("fused", found)
    (folder / "fused.json").write_text(json.dumps(found, indent=1))


def placed(folder: Path) -> None:
    """lm.place over the GPU and the CPU: an ordinary loop, against the same on the GPU alone."""
    import copy

    import loadmaster as lm

    torch.manual_seed(0)
    plain, inputs = language(4, 256, 2, 64)
    captured = capture_step(plain, inputs, training=True, optimizer="adam", target=Target(gpu=True))
    problem = price(captured.graph, stand_in_cluster(2))
    device = [int(scope.startswith(("blocks.2", "blocks.3"))) for scope in problem.graph.scope]
    lm.save_plan(Plan.of(problem, device), problem, folder / "placed.json")
    module, losses = copy.deepcopy(plain), {}
    lm.place(module, folder / "placed.json", devices=["cuda:0", "cpu"])
    for name, model in (("cuda and cpu", module), ("cuda", plain.cuda())):
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
        losses[name] = []
        for rows in (2, 1, 2):
            optimizer.zero_grad()
            with torch.autocast("cuda", torch.bfloat16, enabled=rows == 1):
                loss = model(inputs[0][:rows].cuda())
            loss.backward()
            optimizer.step()
            losses[name].append(float(loss))
    where = sorted({str(weight.device) for weight in module.parameters()})
    say("placed", where, losses)
    (folder / "placed.json").write_text(json.dumps({"devices": where, "losses": losses}))


def offload(folder: Path) -> None:
    """Updates, and with them weights and their state, on the CPU: a step too large for a set limit of GPU memory."""
    torch.manual_seed(0)
    module, inputs = language(24, 1024, 4, 512)
    captured = capture_step(module, inputs, training=True, optimizer="adam", target=Target(gpu=True))
    problem = price(captured.graph, stand_in_cluster(2))
    say("offload captured", problem.num_ops, "ops")
    device = [int(kind.startswith("optim.")) for kind in problem.graph.kind]
    planning = planning_of(captured, Plan.of(problem, device))
    found: dict[str, Any] = {"weights_bytes": sum(p.numel() * p.element_size() for p in module.parameters())}
    batch = on_gpu(inputs)
    module.cuda()
    applied: Any = build(module, captured, planning, devices=["cuda:0", "cpu"], cuda_graphs=False)
    check = verify_step(applied, batch)
    found["verified"], found["verification"] = check.ok, str(check)
    say("offload", check)
    for _ in range(2):
        applied(*batch)
    found["applied_ms"], found["applied_peak_bytes"] = clocked_alone(lambda: applied(*batch))
    write_trace(lambda: applied(*batch), folder / "trace.json", found)
    applied.detach()
    applied = None
    clean()
    step: Any = eager(module.cuda(), batch, fused=True)
    for _ in range(2):
        step()
    found["eager_ms"], found["eager_peak_bytes"] = clocked_alone(step)
    del step
    module.zero_grad(set_to_none=True)
    clean()
    found["limit_bytes"] = (found["eager_peak_bytes"] + found["applied_peak_bytes"]) // 2
    under_limit(
        module, batch, lambda: build(module, captured, planning, devices=["cuda:0", "cpu"], cuda_graphs=False), found
    )
    say("offload", found)
    (folder / "offload.json").write_text(json.dumps(found, indent=1))


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


def picture(folder: Path) -> None:
    """Kernels and copies of one step over time, a row a stream; needs matplotlib alone."""
    from matplotlib import pyplot

    events = json.loads((folder / "trace.json").read_text())
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
    figure.savefig(folder / "overlap.png", dpi=110)


def main() -> None:
    options = argparse.ArgumentParser()
    options.add_argument("folder", type=Path)
    options.add_argument("--seconds", type=float, default=220)
    options.add_argument("--only", default="")
    options.add_argument("--picture", action="store_true")
    given = options.parse_args()
    if given.picture:
        picture(given.folder)
        return
    given.folder.mkdir(parents=True, exist_ok=True)
    about = {"torch": torch.__version__, "device": torch.cuda.get_device_name(0), "steps": STEPS, "rounds": ROUNDS}
    (given.folder / "machine.json").write_text(json.dumps(about))
    rows: list[dict[str, Any]] = []
    parts: list[tuple[str, Callable[[], Any]]] = [
        (name, lambda name=name, make=make: rows.append(one_gpu(name, make)))  # type: ignore[misc]
        for name, make in MODELS.items()
    ]
    parts.insert(0, ("offload", lambda: offload(given.folder)))
    parts.append(("fused", lambda: fused(given.folder)))
    parts.append(("placed", lambda: placed(given.folder)))
    for name, part in parts:
        if given.only and not any(name.startswith(wanted) for wanted in given.only.split(",")):
            continue
        if time.perf_counter() - BEGUN > given.seconds - 30:
            say("no time left for", name)
            continue
        try:
            part()
        except Exception:
            say(name, "failed")
            traceback.print_exc()
        clean()
        if rows:
            with (given.folder / "steps.csv").open("w", newline="") as file:
                writer = csv.DictWriter(file, list(dict.fromkeys(key for row in rows for key in row)))
                writer.writeheader()
                writer.writerows(rows)
    say("done")


if __name__ == "__main__":
    main()
