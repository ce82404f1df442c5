"""Applied steps on a GPU: against the eager loop, with CUDA graphs, and with the CPU as a second device under a limit.

    PYTHONPATH=src python3 benchmarks/running_gpu.py FOLDER [--seconds 220]

Prints as it goes and writes steps.csv, offload.json, trace.json (intervals of kernels and copies) and machine.json
into FOLDER. Needs torch with CUDA; transformers for the language models; plans of its own (traced order, and updates
on the CPU), so no search and no compiled simulator.
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
from loadmaster.importers.torch.export import capture_step
from loadmaster.importers.torch.step import Target, loss_of
from loadmaster.plans import Plan
from loadmaster.runtime.apply import build, planning_of, stand_in_cluster
from loadmaster.runtime.verify import verify_step

BEGUN = time.perf_counter()
STEPS, ROUNDS = 10, 3


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


def clocked(step: Callable[[], Any]) -> tuple[float, int]:
    """(median ms a step over rounds, peak bytes)."""
    torch.cuda.synchronize()
    torch.cuda.reset_peak_memory_stats()
    times = []
    for _ in range(ROUNDS):
        begun = time.perf_counter()
        for _ in range(STEPS):
            step()
        torch.cuda.synchronize()
        times.append((time.perf_counter() - begun) / STEPS * 1e3)
    return statistics.median(times), torch.cuda.max_memory_allocated()


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
    """Eager loops and the applied step in traced order, without and with CUDA graphs."""
    torch.manual_seed(0)
    module, inputs = make()
    module.train()
    row: dict[str, Any] = {"model": name}
    begun = time.perf_counter()
    captured = capture_step(module, inputs, training=True, optimizer="adam", target=Target(gpu=True))
    problem = price(captured.graph, stand_in_cluster(1))
    row["capture_s"], row["ops"] = round(time.perf_counter() - begun, 1), problem.num_ops
    say(name, "captured", row)
    module, inputs = module.cuda(), on_gpu(inputs)
    for label, settings in (("eager_ms", {}), ("eager_fused_ms", {"fused": True})):
        step = eager(module, inputs, **settings)
        for _ in range(3):
            step()
        row[label], row["eager_peak_bytes"] = clocked(step)
        del step
        module.zero_grad(set_to_none=True)
        clean()
    say(name, {key: row[key] for key in ("eager_ms", "eager_fused_ms")})
    planning = planning_of(captured, Plan.of(problem, [0] * problem.num_ops))
    for label, graphs in (("applied_ms", False), ("graphs_ms", True)):
        step = build(module, captured, planning, devices=["cuda:0"], cuda_graphs=graphs)
        if not graphs:
            torch.backends.cuda.matmul.allow_tf32 = False
            found = verify_step(step, inputs)
            row["verified"], row["verification"] = found.ok, str(found)
            say(name, "verified:", found)
        for _ in range(6):
            called(step, inputs)
        row[label], row[label.replace("_ms", "_peak_bytes")] = clocked(lambda s=step: called(s, inputs))
        step.detach()
        del step
        clean()
    best = min(row["eager_ms"], row["eager_fused_ms"])
    row["applied_over_eager"] = round(row["applied_ms"] / best, 4)
    row["graphs_over_eager"] = round(row["graphs_ms"] / best, 4)
    say(name, row)
    return row


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
    step: Any = eager(module.cuda(), batch, fused=True)
    for _ in range(2):
        step()
    found["eager_ms"], found["eager_peak_bytes"] = clocked_few(step)
    del step
    module.zero_grad(set_to_none=True)
    module.cpu()
    clean()
    applied: Any = build(module, captured, planning, devices=["cuda:0", "cpu"], cuda_graphs=False)
    check = verify_step(applied, batch)
    found["verified"], found["verification"] = check.ok, str(check)
    for _ in range(2):
        applied(*batch)
    found["applied_ms"], found["applied_peak_bytes"] = clocked_few(lambda: applied(*batch))
    say("offload", found)
    write_trace(lambda: applied(*batch), folder / "trace.json", found)
    limit = (found["eager_peak_bytes"] + found["applied_peak_bytes"]) // 2
    found["limit_bytes"] = limit
    clean()
    total = torch.cuda.get_device_properties(0).total_memory
    torch.cuda.set_per_process_memory_fraction(limit / total)
    found["applied_under_limit_ms"], found["applied_under_limit_peak_bytes"] = clocked_few(lambda: applied(*batch))
    found["losses"] = [float(applied(*batch)) for _ in range(5)]
    applied.detach()
    applied = None
    clean()
    try:
        step = eager(module.cuda(), batch, fused=True)
        for _ in range(2):
            step()
        found["eager_under_limit"] = "ran"
    except torch.OutOfMemoryError as error:
        found["eager_under_limit"] = f"out of memory: {str(error).splitlines()[0][:120]}"
    torch.cuda.set_per_process_memory_fraction(1.0)
    say("offload", found)
    (folder / "offload.json").write_text(json.dumps(found, indent=1))


def clocked_few(step: Callable[[], Any]) -> tuple[float, int]:
    global STEPS, ROUNDS
    kept, (STEPS, ROUNDS) = (STEPS, ROUNDS), (2, 3)
    try:
        return clocked(step)
    finally:
        STEPS, ROUNDS = kept


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


def main() -> None:
    options = argparse.ArgumentParser()
    options.add_argument("folder", type=Path)
    options.add_argument("--seconds", type=float, default=220)
    options.add_argument("--only", default="")
    given = options.parse_args()
    given.folder.mkdir(parents=True, exist_ok=True)
    about = {"torch": torch.__version__, "device": torch.cuda.get_device_name(0), "steps": STEPS, "rounds": ROUNDS}
    (given.folder / "machine.json").write_text(json.dumps(about))
    rows: list[dict[str, Any]] = []
    parts: list[tuple[str, Callable[[], Any]]] = [
        (name, lambda name=name, make=make: rows.append(one_gpu(name, make)))  # type: ignore[misc]
        for name, make in MODELS.items()
    ]
    parts.insert(0, ("offload", lambda: offload(given.folder)))
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
