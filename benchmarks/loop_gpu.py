"""torch.compile(backend="loadmaster") in ordinary loops on one GPU: beside eager, torch.compile and its memory budget.

    PYTHONPATH=src:benchmarks python3 benchmarks/loop_gpu.py FOLDER [--seconds 470] [--only vit,gqa] [--toy]

One process a model builds every variant and measures its peak, all models at once; then each model in turn, alone on
the GPU, takes steps of all variants in alternating rounds. Peaks are `max_memory_allocated` less what was allocated
before the variant was built. Limits are shares of torch.compile's peak. Writes FOLDER/peaks.csv and FOLDER/steps.csv
after each row. `--toy`: tiny models, also on a CPU. `--table docs/limits.csv` prints the figures of the documents from
rows kept of such a run.
"""

from __future__ import annotations

import argparse
import csv
import math
import statistics
import subprocess
import sys
import time
import traceback
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any

import torch
from loop_models import GPU, PLACE, case_of
from torch import nn

from loadmaster.runtime.backend import loadmaster

BEGUN = time.time()
SHARES, BUDGETS = (0.65, 0.5), (0.5, 0.2)
MODELS = ("vit", "translator", "scan", "mixer", "conformer", "windows", "experts", "pairs")
FULL = ("mixer-fp32", "windows-fp32", "pairs-fp32")
COMPILING = 0.68  # of the seconds, before models are timed


class Variant:
    """One way to run the loop, with weights of its own."""

    def __init__(self, bench: Bench, name: str, wrap: Callable[[nn.Module, Any], Any]) -> None:
        torch.manual_seed(0)
        self.name, self.bench, self.before = name, bench, allocated()
        module = bench.make().to(PLACE)
        self.optimizer = torch.optim.AdamW(module.parameters(), 1e-4, fused=True)
        start = time.perf_counter()
        self.model = wrap(module, self.optimizer)
        self.loss = self.step()
        self.compile_s = time.perf_counter() - start
        for _ in range(7):
            self.loss = self.step()
        self.peak = self._peak()

    def step(self) -> float:
        self.optimizer.zero_grad()
        precision: AbstractContextManager[Any] = nullcontext()
        if self.bench.precision == "bf16":
            precision = torch.autocast(PLACE, torch.bfloat16)
        with precision:
            loss = self.model(*self.bench.batch)
        loss.backward()
        self.optimizer.step()
        return float(loss)

    def _peak(self) -> int:
        if not GPU:
            from loadmaster.runtime.meter import CpuMeter

            meter, state = CpuMeter(), self.optimizer.state.values()
            meter.begin([*self.model.parameters(), *(v for of in state for v in of.values())], 0)
            self.step()
            return meter.end()
        torch.cuda.synchronize()
        torch.cuda.reset_peak_memory_stats()
        self.step()
        self.step()
        return int(torch.cuda.max_memory_allocated()) - self.before


def allocated() -> int:
    return int(torch.cuda.memory_allocated()) if GPU else 0


class Bench:
    """All variants of one model."""

    def __init__(self, name: str, folder: Path, seconds: float, toy: bool) -> None:
        torch.manual_seed(1)
        self.name, self.folder, self.toy = name, folder, toy
        self.make, batch, self.precision = case_of(name, toy)
        self.batch = tuple(part.to(PLACE) for part in batch)
        self.until, self.variants = seconds, list[Variant]()

    def wraps(self) -> Iterator[tuple[str, Callable[[nn.Module, Any], Any], int]]:
        """Name, how to make it and its limit. A limit is a share of torch.compile's peak, or the peak of a budget."""
        yield "compile", lambda module, _: torch.compile(module), 0
        yield "ours", lambda module, _: torch.compile(module, backend=loadmaster), 0
        for budget in BUDGETS:
            yield f"budget {budget}", lambda module, _, b=budget: torch.compile(module, backend=with_budget(b)), 0
        peak = {variant.name: variant.peak for variant in self.variants}
        limits = [(f"ours {share}", share * peak["compile"]) for share in SHARES if "compile" in peak]
        limits += [(f"ours as {name}", peak[name]) for name in peak if name.startswith("budget")]
        for name, limit in limits:
            yield name, lambda module, opt, limit=round(limit): self.limited(module, opt, limit), round(limit)
        yield "eager", lambda module, _: module, 0

    def limited(self, module: nn.Module, optimizer: Any, limit: int) -> Any:
        """The limit is of the process, so it counts what other variants hold."""
        before = allocated() - sum(weight.nbytes for weight in module.parameters()) if GPU else 0
        options = {"memory_limit": f"{limit + before}B", "optimizer": optimizer}
        return torch.compile(module, backend=loadmaster, options=options)

    def build(self) -> None:
        for name, wrap, limit in self.wraps():
            if time.time() > self.until:
                self.say("no time for", name)
                break
            row: dict[str, Any] = {"model": self.name, "precision": self.precision, "variant": name, "limit": limit}
            try:
                variant = Variant(self, name, wrap)
                self.variants.append(variant)
                row |= {"peak": variant.peak, "compile_s": round(variant.compile_s, 1), "loss": variant.loss}
                row |= promised(variant)
            except Exception as error:
                traceback.print_exc()
                row["error"] = str(error).strip().replace("\n", " ")[-300:]
            self.write("peaks.csv", row)
            torch.cuda.empty_cache() if GPU else None  # the other models run beside
        for variant in self.variants:  # a tightened step has made all others compile again, from their caches
            variant.step()
            variant.step()

    def time(self, seconds: float) -> None:
        """Rounds in turns, the order reversed every other time."""
        took: dict[str, list[float]] = {variant.name: [] for variant in self.variants}
        begun, number = time.time(), 0
        while time.time() < begun + seconds or number < 4:
            for variant in self.variants[:: 1 if number % 2 else -1]:
                torch.cuda.synchronize() if GPU else None
                start = time.perf_counter()
                variant.step()
                variant.step()
                torch.cuda.synchronize() if GPU else None
                took[variant.name].append((time.perf_counter() - start) / 2 * 1e3)
            number += 1
        base = took.get("compile", [])
        for variant in self.variants:
            mine = took[variant.name]
            over = [a / b for a, b in zip(mine, base, strict=False)]
            row = {"model": self.name, "precision": self.precision, "variant": variant.name, "rounds": number}
            row |= {"ms": statistics.median(mine), "low": min(mine), "peak": variant.peak}
            self.write("steps.csv", row | {"over_compile": statistics.median(over) if over else 0})

    def write(self, file: str, row: dict[str, Any]) -> None:
        self.say(row)
        columns = "model precision variant limit peak predicted measured again tightened compile_s loss rounds ms low"
        path = self.folder / file
        with path.open("a", newline="") as out:
            writer = csv.DictWriter(out, [*columns.split(), "over_compile", "error"])
            if not out.tell():
                writer.writeheader()
            writer.writerow(row)

    def say(self, *words: Any) -> None:
        print(f"[{time.time() - BEGUN:5.0f}] {self.name}", *words, flush=True)


def with_budget(budget: float) -> Callable[..., Any]:
    def compiler(module: Any, inputs: Any) -> Any:
        from torch._functorch import config
        from torch._inductor.compile_fx import compile_fx

        with config.patch(activation_memory_budget=budget):
            return compile_fx(module, inputs)

    return compiler


def promised(variant: Variant) -> dict[str, Any]:
    """What a limited variant was planned to take."""
    from loadmaster.runtime import promise

    known = promise._by_optimizer.get(variant.optimizer)
    if known is None:
        return {}
    again = sum(planned.again for planned in known.graphs)
    sizes = {"predicted": known.predicted_bytes - variant.before, "measured": known.measured_bytes - variant.before}
    return sizes | {"tightened": known.tightened_bytes, "again": again}


def child(name: str, folder: Path, until: float, toy: bool) -> None:
    torch._dynamo.config.cache_size_limit = 64
    bench = Bench(name, folder, until, toy)
    bench.build()
    (folder / f"{name}.ready").touch()
    while not (folder / f"{name}.go").exists():
        time.sleep(0.2)
    bench.time(1.0 if toy else 8.0)


def table(path: Path) -> None:
    """Ratios of steps and peaks: geometric mean, standard error and the worst."""
    with path.open(newline="") as file:
        known = {(r["model"], r["precision"], r["variant"]): r for r in csv.DictReader(file)}
    models = sorted({key[:2] for key in known})

    def ratios(what: str, pairs: list[tuple[str, str]], column: str) -> None:
        both = [(known.get((*m, a), {}), known.get((*m, b), {})) for m in models for a, b in pairs]
        found = [float(a[column]) / float(b[column]) for a, b in both if a.get(column) and b.get(column)]
        logs = [math.log(one) for one in found]
        error = statistics.stdev(logs) / len(logs) ** 0.5
        print(f"{what}: {math.exp(statistics.mean(logs)):.3f} ± {error:.3f}, worst {max(found):.3f}, of {len(found)}")

    ratios("step over torch.compile, no limit", [("ours", "compile")], "step_ms")
    ratios("peak over torch.compile, no limit", [("ours", "compile")], "peak_bytes")
    ratios(
        "step over a budget with the peak of this", [(f"ours as budget {b}", f"budget {b}") for b in BUDGETS], "step_ms"
    )
    for share in SHARES:
        ratios(f"step over torch.compile at {share} of its peak", [(f"ours {share}", "compile")], "step_ms")
    limited = [r for r in known.values() if r["limit_bytes"] != "0"]
    kept = [int(r["peak_bytes"]) <= int(r["limit_bytes"]) for r in limited if r["peak_bytes"]]
    print(f"{sum(kept)} of {len(kept)} accepted limits kept, {len(limited) - len(kept)} refused")


def main() -> None:
    options = argparse.ArgumentParser()
    options.add_argument("folder", type=Path, nargs="?", default=Path("build/loop"))
    options.add_argument("--table", type=Path)
    options.add_argument("--seconds", type=float, default=470)
    options.add_argument("--only", default=",".join(MODELS + FULL))
    options.add_argument("--toy", action="store_true")
    options.add_argument("--child", default="")
    options.add_argument("--until", type=float, default=0.0)
    given = options.parse_args()
    if given.table:
        table(given.table)
        return
    given.folder.mkdir(parents=True, exist_ok=True)
    if given.child:
        child(given.child, given.folder, given.until, given.toy)
        return
    until, end = BEGUN + COMPILING * given.seconds, BEGUN + given.seconds
    toy = ["--toy"] if given.toy else []
    command = [sys.executable, __file__, str(given.folder), *toy, "--until", str(until), "--child"]
    names = given.only.split(",")
    running = {name: subprocess.Popen([*command, name]) for name in names}
    while any(not (given.folder / f"{n}.ready").exists() and p.poll() is None for n, p in running.items()):
        if time.time() > until + 45:  # what is compiling then is in nobody's way much longer
            break
        time.sleep(0.5)
    for name, process in running.items():
        (given.folder / f"{name}.go").touch()
        try:
            process.wait(max(1.0, end - time.time()))
        except subprocess.TimeoutExpired:
            process.kill()
    for path in [*given.folder.glob("*.ready"), *given.folder.glob("*.go")]:
        path.unlink()
    print(f"[{time.time() - BEGUN:5.0f}] done", flush=True)


if __name__ == "__main__":
    main()
