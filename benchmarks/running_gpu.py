"""Applied steps on a GPU: against the eager loop, with CUDA graphs, with fused kernels, and placed by modules.

    PYTHONPATH=src python3 benchmarks/running_gpu.py FOLDER [--seconds 220] [--only gpt,fused]

Prints as it goes and writes steps.csv, fused.json, placed.json and machine.json into FOLDER. Needs torch with CUDA;
transformers for the language models.
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

import numpy as np
import torch
from torch import nn
from torch.nn import functional as F

from loadmaster.cost import Learned, price
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
    """For `loadmaster tools race running_gpu:small_language` with this folder on the path."""
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


def gpt2(layers: int) -> tuple[nn.Module, Any]:
    """Hugging Face's, whose activation and dropout are many small ops."""
    from transformers import GPT2Config, GPT2LMHeadModel

    module = GPT2LMHeadModel(GPT2Config(n_layer=layers, use_cache=False))
    words = torch.randint(0, 50257, (8, 512))
    return module, {"input_ids": words, "labels": words}


FUSED: dict[str, tuple[Callable[[], tuple[nn.Module, Any]], str]] = {
    "gpt2": (lambda: gpt2(4), "greedy-fusion:inner=one-device"),
    "gpt2, joint": (lambda: gpt2(4), "joint"),
    "decoder": (lambda: language(4, 768, 8, 512), "greedy-fusion"),
}


def fused(folder: Path) -> None:
    """Every case of them; what is there of an earlier one is kept."""
    found = {}
    for name in FUSED:
        found[name] = fused_case(name)
        (folder / "fused.json").write_text(json.dumps(found, indent=1))
        clean()


def fused_case(name: str) -> dict[str, Any]:
    """Kernels of several ops compiled as regions, beside the same plan op by op, eager and torch.compile."""
    from loadmaster.search import Budget, solve

    torch.manual_seed(0)
    make, method = FUSED[name]
    module, batch = make()
    captured = capture_step(module, batch, training=True, optimizer="adam", target=Target(gpu=True))
    problem = price(captured.graph, "1xh200", cost=Learned())
    result = solve(problem, method, Budget(None, 300), 0)
    sizes = np.bincount(result.plan.kernel)
    found: dict[str, Any] = {"method": method, "ops": problem.num_ops, "kernels": result.plan.num_kernels}
    found |= {"of_several": int((sizes > 1).sum()), "modelled_ms": result.timeline.step_ns / 1e6}
    found["largest"] = int(sizes.max())
    say("fused", name, found)
    module, batch = module.cuda(), on_gpu(batch)
    planning = planning_of(captured, result)
    steps: dict[str, Callable[[], Any]] = {"eager_fused_ms": eager(module, batch, fused=True)}
    for label, compiled in (("by_op_ms", False), ("regions_ms", True)):
        step = build(module, captured, planning, devices=["cuda:0"], cuda_graphs=False, compile_kernels=compiled)
        check = verify_step(step, batch)
        kernels = step.kernels
        found[label.replace("_ms", "_verification")] = str(check)
        found[label.replace("_ms", "_kernels")] = [kernels.total, kernels.compiled, kernels.by_op, *kernels.reasons[:3]]
        say("fused", label, check, kernels)
        steps[label] = lambda step=step: called(step, batch)  # type: ignore[misc]
    if method != "joint":  # of a model that the case before it has compiled
        steps["torch_compile_ms"] = eager(torch.compile(module), batch, fused=True)
    for step in steps.values():
        for _ in range(3):
            step()
    found |= clocked(steps)
    say("fused", name, found)
    return found


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
