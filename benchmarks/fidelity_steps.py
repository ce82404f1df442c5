"""Steps of a model on a device, as people run them, and what they take the host: for benchmarks/fidelity_gpu.py."""

from __future__ import annotations

import csv
import gc
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import pairwise
from pathlib import Path
from typing import Any

import torch
from fidelity_models import Case

BEGUN = time.monotonic()
# In the order in which they are compiled while there is time: small graphs first, as compiling takes longest.
COMPILED = [
    "mlp-1024x2048-train-bfloat16", "resnet-16x224-infer-bfloat16", "neox-8x512-train-bfloat16",
    "distilbert-32x128-train-bfloat16", "mistral-4x512-train-bfloat16", "convnext-16x224-infer-bfloat16",
    "t5-16x256-train-bfloat16", "phi-8x512-train-bfloat16", "vit-32x224-train-bfloat16", "gpt2-8x512-train-bfloat16",
    "bert-8x128-infer-bfloat16", "electra-32x128-train-bfloat16", "phi-4x256-infer-bfloat16",
    "bert-16x128-train-bfloat16", "convnext-32x224-train-bfloat16", "resnet-32x224-train-float32",
    "llama-1x512-infer-bfloat16", "mobilenet-32x224-train-bfloat16", "llama-4x1024-train-bfloat16",
    "vit-16x224-infer-bfloat16", "qwen2-4x1024-train-bfloat16", "swin-32x224-train-bfloat16",
    "t5-8x256-infer-bfloat16", "gpt2-1x512-infer-bfloat16", "albert-32x128-train-bfloat16",
    "mlp-1024x2048-train-float32", "bert-16x128-train-float32", "vit-16x224-infer-float32", "phi-8x512-train-float32",
    "gpt2-8x512-train-float32", "llama-4x1024-train-float32", "distilbert-32x128-train-float32",
    "qwen2-4x1024-train-float32",
]  # fmt: skip


def say(text: str) -> None:
    print(f"[{time.monotonic() - BEGUN:6.1f}] {text}", flush=True)


@contextmanager
def table(path: Path, columns: tuple[str, ...]) -> Iterator[Callable[[dict[str, Any]], None]]:
    new = not path.exists()
    with open(path, "a", newline="") as file:
        writer = csv.DictWriter(file, columns)
        if new:
            writer.writeheader()

        def write(row: dict[str, Any]) -> None:
            writer.writerow(row)
            file.flush()

        yield write


class Steps:
    """Steps on one device: made, timed, and their parts asked for one after the other."""

    def __init__(self, out: Path, device: str, seconds: float, *, tiny: bool, task: str, workers: int) -> None:
        self.out, self.device, self.seconds, self.tiny = out, device, seconds, tiny
        self.task, self.workers = task, workers
        self.is_cuda = device.startswith("cuda")

    def left(self) -> float:
        return self.seconds - (time.monotonic() - BEGUN)

    def clear(self) -> None:
        gc.collect()
        if self.is_cuda:
            torch.cuda.synchronize()
            torch.cuda.empty_cache()

    def _step_of(self, module: torch.nn.Module, inputs: dict[str, Any], training: bool) -> Callable[[], Any]:
        if not training:

            def infer() -> Any:
                with torch.no_grad():
                    return module(**inputs)

            return infer
        adam = self._adam(module)

        def train() -> None:
            result = module(**inputs)
            _loss(result).backward()
            adam.step()
            adam.zero_grad(set_to_none=True)

        return train

    def _adam(self, module: torch.nn.Module) -> torch.optim.Adam:
        extra = {"fused": True, "capturable": True} if self.is_cuda else {"fused": True}
        weights = [weight for weight in module.parameters() if weight.requires_grad]
        return torch.optim.Adam(weights, lr=torch.tensor(1e-5, device=self.device) if self.is_cuda else 1e-5, **extra)

    def _wait(self) -> None:
        if self.is_cuda:
            torch.cuda.synchronize()

    def _timed(self, step: Callable[[], Any], count: int) -> float:
        self._wait()
        start = time.perf_counter()
        for _ in range(count):
            step()
        self._wait()
        return (time.perf_counter() - start) * 1e3 / count

    def _bare(self, one: torch.Tensor, calls: int = 200) -> float:
        """ns of the host to ask for a kernel, without autograd."""
        self._wait()
        start = time.perf_counter_ns()
        with torch.no_grad():
            for _ in range(calls):
                one.add_(1.0)
        return (time.perf_counter_ns() - start) / calls

    def host(self, chosen: list[Case]) -> None:
        """What each part of an eager step takes the host, which asks and does not wait; fitted inferences first."""
        chosen = sorted(chosen, key=lambda case: (case.held_out, case.training))
        self._hosts("host.csv", chosen, lambda module: module, spare=5)

    def hostcompiled(self, chosen: list[Case]) -> None:
        """The same of compiled steps, in the order of COMPILED, then the others."""
        order = {name: number for number, name in enumerate(COMPILED)}
        warmed = self.out / "warmed.txt"
        ready = set(warmed.read_text().split()) if warmed.exists() else set(order)
        wanted = sorted((case for case in chosen if case.name in ready), key=lambda case: order[case.name])
        self._hosts("hostcompiled.csv", wanted or chosen[-1:], torch.compile, spare=30)

    def _hosts(self, name: str, chosen: list[Case], made: Callable[[torch.nn.Module], Any], spare: float) -> None:
        columns = (
            "case", "held_out", "rounds", "bare_ns", "forward_ms", "backward_ms", "update_ms", "step_ms",
            "low_forward_ms", "low_backward_ms", "low_update_ms", "low_step_ms", "weights", "modules", "busy_ms",
            "kernels", "compile_s", "note",
        )  # fmt: skip
        with table(self.out / name, columns) as write:
            for case in chosen:
                if self.left() < spare and not self.tiny:
                    say(f"no time for {case.name}")
                    continue
                try:
                    row = self._parts(case, made)
                except Exception as error:
                    row = {"note": f"{type(error).__name__}: {str(error)[:200]}"}
                write({"case": case.name, "held_out": int(case.held_out), **row})
                say(f"{case.name} {row}")
                torch._dynamo.reset()
                self.clear()

    def _parts(self, case: Case, made: Callable[[torch.nn.Module], Any]) -> dict[str, Any]:
        torch.manual_seed(0)
        module, inputs = case.build(self.device, self.tiny)
        row: dict[str, Any] = {"weights": sum(weight.requires_grad for weight in module.parameters())}
        row["modules"] = _calls(module, inputs, case.training)
        start = time.monotonic()
        called = made(module)
        parts = self._parted(module, called, inputs, case.training)
        for _ in range(3):
            parts()
        self._wait()
        row["compile_s"] = round(time.monotonic() - start, 1) if called is not module else ""
        one, rounds, bare, until = torch.ones(16, device=self.device), [], [], time.monotonic() + 1.2
        while len(rounds) < 25 and (len(rounds) < 6 or time.monotonic() < until):
            bare.append(self._bare(one))
            self._wait()
            begun = time.perf_counter()
            marks = parts()
            self._wait()
            marks.append(time.perf_counter())
            rounds.append(
                [(after - before) * 1e3 for before, after in pairwise([begun, *marks])] + [1e3 * (marks[-1] - begun)]
            )
        row |= {"rounds": len(rounds), "bare_ns": round(statistics.median(bare))}
        names = ("forward_ms", "backward_ms", "update_ms", "", "step_ms")
        for key, times in zip(names, zip(*rounds, strict=True), strict=True):
            if key:
                low, middle, _ = statistics.quantiles(times, n=4)
                row |= {key: round(middle, 4), f"low_{key}": round(low, 4)}
        return row | (busy(parts) if self.is_cuda else {})

    def _parted(
        self, module: torch.nn.Module, called: Any, inputs: dict[str, Any], training: bool
    ) -> Callable[[], Any]:
        """A step that says when each of its parts was asked for: forward, backward, update."""
        if not training:

            def infer() -> list[float]:
                with torch.no_grad():
                    called(**inputs)
                return [time.perf_counter()] * 3

            return infer
        adam = self._adam(module)

        def train() -> list[float]:
            loss = _loss(called(**inputs))
            marks = [time.perf_counter()]
            loss.backward()
            marks.append(time.perf_counter())
            adam.step()
            adam.zero_grad(set_to_none=True)
            return [*marks, time.perf_counter()]

        return train

    def kernels(self, chosen: list[Case]) -> None:
        """Which kernels a step runs eagerly and in a CUDA graph."""
        import transformers

        say(f"transformers {transformers.__version__}")
        with table(self.out / "kernels.csv", ("case", "mode", "kernel", "count", "us")) as write:
            for case in chosen:
                module, inputs = case.build(self.device, self.tiny)
                modes = {"eager": self._step_of(module, inputs, case.training)}
                modes["graphs"] = recorded(modes["eager"]).replay
                for mode, step in modes.items():
                    for name, times in _kernels(step).items():
                        times = {"count": len(times), "us": round(sum(times) / 1e3, 1)}
                        write({"case": case.name, "mode": mode, "kernel": name[:120], **times})
                say(f"kernels of {case.name}")
                torch._dynamo.reset()
                self.clear()

    def precompile(self, chosen: list[Case]) -> None:
        """Fills the caches on disk by several processes at once, since compiling takes longest."""
        order = [case.name for case in chosen if case.name in COMPILED]
        order.sort(key=COMPILED.index)
        half = str(self.left() * 0.6)
        workers = self.workers or 4
        few = {**os.environ, "TORCHINDUCTOR_COMPILE_THREADS": "2"}
        command = [
            sys.executable,
            str(Path(__file__).with_name("fidelity_gpu.py")),
            str(self.out),
            "--device",
            self.device,
            "--phases",
            "warm",
            "--seconds",
            half,
        ]
        running = [
            subprocess.Popen([*command, "--child", ",".join(order[number::workers])], env=few)
            for number in range(workers)
        ]
        for child in running:
            child.wait()

    def warm(self, chosen: list[Case]) -> None:
        """Compiles the named cases, for `precompile`."""
        named = {case.name: case for case in chosen}
        for name in filter(None, self.task.split(",")):
            if self.left() < 0.2 * self.seconds:
                break
            try:
                module, inputs = named[name].build(self.device, self.tiny)
                step = self._step_of(torch.compile(module), inputs, named[name].training)
                step()
                step()
                self._wait()
                with open(self.out / "warmed.txt", "a") as file:
                    file.write(name + "\n")
                say(f"compiled {name}")
            except Exception as error:
                say(f"could not compile {name}: {type(error).__name__}: {str(error)[:200]}")
            torch._dynamo.reset()
            self.clear()


def _loss(result: Any) -> torch.Tensor:
    loss = result if isinstance(result, torch.Tensor) else getattr(result, "loss", None)
    return result[0].float().mean() if loss is None else loss


def _calls(module: torch.nn.Module, inputs: dict[str, Any], training: bool) -> int:
    """How many modules a forward pass calls."""
    seen: list[None] = []
    handles = [part.register_forward_hook(lambda *_: seen.append(None)) for part in module.modules()]
    with torch.no_grad():
        module(**inputs)
    for handle in handles:
        handle.remove()
    return len(seen)


def busy(step: Callable[[], Any]) -> dict[str, Any]:
    """Sum of the kernels' own times in one step."""
    times = [time for some in _kernels(step).values() for time in some]
    return {"busy_ms": round(sum(times) / 1e6, 4), "kernels": len(times)}


def _kernels(step: Callable[[], Any]) -> dict[str, list[int]]:
    """ns of each, by name, in one step after two."""
    from torch.profiler import ProfilerActivity, profile

    step()
    step()
    torch.cuda.synchronize()
    with profile(activities=[ProfilerActivity.CUDA]) as seen:
        step()
        torch.cuda.synchronize()
    found: dict[str, list[int]] = {}
    for event in seen.profiler.kineto_results.events():
        if event.device_type() == torch.autograd.DeviceType.CUDA:
            found.setdefault(event.name(), []).append(event.duration_ns())
    return found


def recorded(step: Callable[[], Any]) -> torch.cuda.CUDAGraph:
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        step()
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        step()
    return graph
