"""Is there a plan that needs no more memory than torch.compile does by default? Training steps on one GPU.

    PYTHONPATH=src:benchmarks python3 benchmarks/memory_compile.py FOLDER [--workers 10] [--seconds 300] [--only NAME,…]

For each model, in a process of its own: the peak of an eager step and of torch.compile's default step as their
allocator counts them; then the same step captured, its fastest kernels in program order, and our plan with what
torch.compile needed as its limit, less what libraries take for themselves (`LIBRARIES`, as plans that were run have
shown). Times are modelled: many models share the GPU. Writes FOLDER/NAME.json as it goes; those that are there are not
made again. No optimizer: torch.compile compiles the module alone.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from fidelity_models import Case as Known
from memory import Case, facts, run_beside
from torch.utils._pytree import tree_map_only

from loadmaster.cost import Calibrated, price
from loadmaster.importers.torch.arguments import as_arguments, split
from loadmaster.importers.torch.export import capture_step
from loadmaster.importers.torch.step import Target, loss_of
from loadmaster.zoo import find
from loadmaster.zoo.pieces import images

LIBRARIES = 100_000_000  # bytes that a measured peak is above the modelled one: 70 to 100 MB in plans that were run
GPU = torch.cuda.is_available()
PLACE = "cuda" if GPU else "cpu"


class Classifier(torch.nn.Module):
    """An image model of timm with its loss."""

    def __init__(self, name: str) -> None:
        super().__init__()
        import timm

        self.body = timm.create_model(name, pretrained=False)

    def forward(self, x: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        return torch.nn.functional.cross_entropy(self.body(x), labels)


def of_zoo(name: str, **settings: Any) -> Callable[[], Any]:
    """A model of the zoo at its own size, but for what is given."""
    entry, _ = find(name)
    return lambda: replace(entry, settings={**entry.settings, **settings}).model(True)


def of_timm(name: str, batch: int = 32) -> Callable[[], Any]:
    return lambda: (Classifier(name), (images(batch, 224), torch.randint(0, 1000, (batch,))))


def of_transformers(name: str, batch: int, length: int) -> Callable[[], Any]:
    return lambda: Known(name, "float32", True, batch, length).build("cpu")


MODELS: dict[str, Callable[[], Any]] = {
    "tiny": of_zoo("gpt2", batch=2, steps=32, layers=1, vocabulary=64),  # to try it out
    "gpt2": of_zoo("gpt2", batch=4),
    "bert-base": of_zoo("bert-base"),
    "vit-base": of_zoo("vit-base"),
    "resnet50": of_zoo("resnet50"),
    "t5-base": of_zoo("t5-base", batch=4),
    "inception-v3": of_zoo("inception-v3"),
    "unet-ddpm": of_zoo("unet-ddpm", batch=4),
    "transformer-xl-2": of_zoo("transformer-xl-2"),
    "llama": of_transformers("llama", 4, 1024),
    "qwen2": of_transformers("qwen2", 4, 1024),
    "mistral": of_transformers("mistral", 4, 512),
    "phi": of_transformers("phi", 8, 512),
    "neox": of_transformers("neox", 8, 512),
    "albert": of_transformers("albert", 32, 128),
    "distilbert": of_transformers("distilbert", 32, 128),
    "electra": of_transformers("electra", 32, 128),
    "convnext": of_transformers("convnext", 32, 224),
    "swin": of_transformers("swin", 32, 224),
    "regnet": of_transformers("regnet", 32, 224),
    "mobilenet": of_transformers("mobilenet", 32, 224),
    "timm/eca_resnext26ts": of_timm("eca_resnext26ts"),
    "timm/ecaresnet26t": of_timm("ecaresnet26t"),
    "timm/ecaresnet50d": of_timm("ecaresnet50d"),
    "timm/ghostnet_100": of_timm("ghostnet_100"),
}


def built(name: str) -> tuple[torch.nn.Module, Any]:
    torch.manual_seed(0)
    module, inputs = MODELS[name]()
    return module.train().to(PLACE), tree_map_only(torch.Tensor, lambda value: value.to(PLACE), inputs)


def peak_of(run: Any, module: torch.nn.Module, inputs: Any) -> int:
    """Of the second step: of the first, compiling has a part."""
    args, kwargs = split(as_arguments(inputs, "memory"))
    for _ in range(2):
        module.zero_grad(set_to_none=True)
        if GPU:
            torch.cuda.synchronize()
            torch.cuda.reset_peak_memory_stats()
        loss_of(run(*args, **kwargs), "module").backward()
    module.zero_grad(set_to_none=True)
    return torch.cuda.max_memory_allocated() if GPU else 0


def row_of(name: str) -> dict[str, Any]:
    begun = time.perf_counter()
    module, inputs = built(name)
    row: dict[str, Any] = {"model": name, "eager": peak_of(module, module, inputs)}
    row["compiled"] = peak_of(torch.compile(module), module, inputs)
    row["compiling_s"] = round(time.perf_counter() - begun, 1)
    captured = capture_step(module, inputs, training=True, optimizer="none", target=Target(gpu=GPU))
    case = Case(price(captured.graph, "1xh200" if GPU else "1xa100-nvlink", cost=Calibrated.shipped()))
    row |= facts(case) | {"fused": case.peak}
    limit = row["compiled"] - LIBRARIES if GPU else int(0.8 * case.peak)
    found = case.ours(limit)
    row |= {f"ours: {key}": value for key, value in found.items()}
    row["limit"] = limit
    return row


def run_all(names: list[str], given: argparse.Namespace) -> None:
    missing = [name for name in names if not path_of(given.folder, name).exists()]
    commands = [[sys.executable, __file__, str(given.folder), "--model", name] for name in missing]
    run_beside(commands, given.workers, given.seconds)


def path_of(folder: Path, name: str) -> Path:
    return folder / f"{name.replace('/', '_')}.json"


def main() -> None:
    options = argparse.ArgumentParser()
    options.add_argument("folder", type=Path)
    options.add_argument("--only", default="")
    options.add_argument("--workers", type=int, default=1)
    options.add_argument("--seconds", type=float, default=1e9)
    options.add_argument("--model", default="", help="this one, in this process")
    given = options.parse_args()
    given.folder.mkdir(parents=True, exist_ok=True)
    if not given.model:
        run_all(given.only.split(",") if given.only else list(MODELS)[1:], given)
        return
    row = row_of(given.model)
    path_of(given.folder, given.model).write_text(json.dumps(row))
    print(row, flush=True)


if __name__ == "__main__":
    main()
