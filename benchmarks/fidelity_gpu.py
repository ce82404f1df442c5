"""Gathers what the model is held to, on a machine with a GPU: steps, peaks, and every distinct op alone.

    python benchmarks/fidelity_gpu.py OUT --seconds 480
    python benchmarks/fidelity_gpu.py OUT --device cpu --tiny          # a rehearsal without a GPU

Writes as it goes, so that a run that is cut off keeps what it has: `machine.json`, `graphs.jsonl.xz` (captured steps),
`frames.csv` (what Python's variables hold during each op of an inference), `steps.csv`, `eager.jsonl.gz` (each op of a
real eager step with the memory before, during and after it), `ops.csv` (each distinct op alone), `compiled.csv`. By
`--phases eager` also `eager.csv`: eager steps in many short rounds, each beside what a bare call took the host at that
moment; by `--phases host` `host.csv`: what forward, backward and update took the host alone, of more inferences too; by
`--phases precompile,hostcompiled` `hostcompiled.csv`: the same of compiled steps, compiled by several processes first.
"""

from __future__ import annotations

import argparse
import csv
import gzip
import json
import lzma
import multiprocessing
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from fidelity_models import Case, cases, more_inferences, tiny_cases
from fidelity_steps import COMPILED, Steps, busy, recorded, say, table
from torch.utils._python_dispatch import TorchDispatchMode

from loadmaster.files.graph import graph_to_json
from loadmaster.graph import Graph
from loadmaster.importers.torch.export import capture
from loadmaster.importers.torch.signature import UPDATED_TOGETHER, call_of, signature_of
from loadmaster.importers.torch.step import Target, fake_mode
from loadmaster.runtime.frames import held_by_frames
from loadmaster.runtime.timing import DeviceClock

OP_COLUMNS = ("signature", "hot_ns", "low_ns", "high_ns", "cold_ns", "host_ns", "workspace_bytes", "stable", "note")
PHASES = ("capture", "machine", "steps", "ops", "compile")


def main() -> None:
    settings = _settings()
    out = Path(settings.out)
    out.mkdir(parents=True, exist_ok=True)
    chosen = tiny_cases() if settings.tiny else cases() + (more_inferences() if settings.more else [])
    if settings.only:
        chosen = [case for case in chosen if any(part in case.name for part in settings.only.split(","))]
    work = Work(out, settings)
    for phase in settings.phases.split(","):
        say(f"== {phase}")
        getattr(work, phase)(chosen)
    say("done")


def _settings() -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    parser.add_argument("out")
    parser.add_argument("--device", default="cuda:0")
    parser.add_argument("--tiny", action="store_true")
    parser.add_argument("--seconds", type=float, default=480.0)
    parser.add_argument("--phases", default=",".join(PHASES))
    parser.add_argument("--only", default="")
    parser.add_argument("--known", default="", help="ops.csv.xz of what was timed before")
    parser.add_argument("--more", action="store_true", help="inferences of the fitted models too")
    parser.add_argument("--workers", type=int, default=0, help="processes that capture, or compile, at once")
    parser.add_argument("--reserve", type=float, default=100.0, help="seconds that timing ops leaves for compiling")
    parser.add_argument("--child", default="", help="for the process that times ops")
    return parser.parse_args()


class Work(Steps):
    """The phases, each writing its own files."""

    def __init__(self, out: Path, settings: argparse.Namespace) -> None:
        given = {"tiny": settings.tiny, "task": settings.child, "workers": settings.workers}
        super().__init__(out, settings.device, settings.seconds, **given)
        self.reserve = settings.reserve
        self.known = _known(settings.known) if settings.known else set()
        self.signatures: dict[str, None] = {}  # of captured graphs, in order
        self.logged: dict[str, int] = {}  # of eager steps, numbered

    def capture(self, chosen: list[Case]) -> None:
        """On all cores, before CUDA is started: a process that has started it cannot fork."""
        workers = min(len(chosen), self.workers or max(1, (os.cpu_count() or 2) - 2))
        context = multiprocessing.get_context("fork")
        frames = table(self.out / "frames.csv", ("case", "resident_bytes", "live_bytes", "signature"))
        with (
            context.Pool(workers) as pool,
            open(self.out / "graphs.jsonl.xz", "wb") as plain,
            open(self.out / "traced.jsonl.xz", "wb") as traced,
            frames as write,
        ):
            for found in pool.imap_unordered(_captured, [(case, self.tiny) for case in chosen]):
                say(f"captured {found.case}" if found.graph else f"FAILED to capture {found.case}: {found.failed}")
                for file, text in ((plain, found.graph), (traced, found.traced)):
                    file.write(text)
                    file.flush()
                self.signatures.update(dict.fromkeys(found.signatures))
                for row in found.held:
                    write({"case": found.case, **row})
        say(f"{len(self.signatures)} distinct ops")

    def machine(self, chosen: list[Case]) -> None:
        facts: dict[str, Any] = {"torch": torch.__version__, "cores": os.cpu_count(), "device": self.device}
        if self.is_cuda:
            properties = torch.cuda.get_device_properties(self.device)
            free, total = torch.cuda.mem_get_info(self.device)
            facts |= {"name": properties.name, "free_bytes": free, "total_bytes": total, "cuda": torch.version.cuda}
            facts |= {"processors": properties.multi_processor_count, "l2_bytes": properties.L2_cache_size}
            facts["context_bytes"] = total - free
            facts["links"] = _links(self.device)
            facts |= _launches(self.device)
            facts["cublas_workspace_bytes"] = _product_workspace(self.device)
            facts["conf"] = os.environ.get("PYTORCH_CUDA_ALLOC_CONF", "")
        (self.out / "machine.json").write_text(json.dumps(facts, indent=1))
        say(json.dumps(facts))

    def steps(self, chosen: list[Case]) -> None:
        columns = (
            "case", "held_out", "eager_ms", "synced_ms", "low_ms", "high_ms", "busy_ms", "kernels", "graph_ms",
            "before_bytes", "peak_bytes", "after_bytes", "reserved_bytes", "ops", "note",
        )  # fmt: skip
        with table(self.out / "steps.csv", columns) as write, gzip.open(self.out / "eager.jsonl.gz", "wt") as log:
            for case in chosen:
                if self.left() < 60 and not self.tiny:
                    say(f"no time for {case.name}")
                    continue
                try:
                    row = self._step(case, log)
                except Exception as error:
                    row = {"note": f"{type(error).__name__}: {str(error)[:200]}"}
                write({"case": case.name, "held_out": int(case.held_out), **row})
                say(f"{case.name} {row}")
                self.clear()
        numbered = {number: text for text, number in self.logged.items()}
        with gzip.open(self.out / "eager_signatures.json.gz", "wt") as file:
            json.dump(numbered, file)

    def eager(self, chosen: list[Case]) -> None:
        """How fast the host is changes from minute to minute where others use it: so each round has a bare call too."""
        columns = ("case", "held_out", "rounds", "step_ms", "low_ms", "least_ms", "host_ns", "low_host_ns", "note")
        with table(self.out / "eager.csv", columns) as write:
            for case in chosen:
                if self.left() < 10 and not self.tiny:
                    say(f"no time for {case.name}")
                    continue
                try:
                    row = self._rounds(case)
                except Exception as error:
                    row = {"note": f"{type(error).__name__}: {str(error)[:200]}"}
                write({"case": case.name, "held_out": int(case.held_out), **row})
                say(f"{case.name} {row}")
                self.clear()

    def _rounds(self, case: Case) -> dict[str, Any]:
        torch.manual_seed(0)
        module, inputs = case.build(self.device, self.tiny)
        step = self._step_of(module, inputs, case.training)
        for _ in range(3):
            step()
        one, took, hosts, until = torch.ones(16, device=self.device), [], [], time.monotonic() + 1.5
        while len(took) < 25 and (len(took) < 5 or time.monotonic() < until):
            hosts.append(self._bare(one))
            took.append(self._timed(step, 2))
        row: dict[str, Any] = {"rounds": len(took), "step_ms": round(statistics.median(took), 4)}
        row |= {"low_ms": round(statistics.quantiles(took, n=4)[0], 4), "least_ms": round(min(took), 4)}
        return row | {"host_ns": round(statistics.median(hosts)), "low_host_ns": round(min(hosts))}

    def _step(self, case: Case, log: Any) -> dict[str, Any]:
        torch.manual_seed(0)
        module, inputs = case.build(self.device, self.tiny)
        step = self._step_of(module, inputs, case.training)
        for _ in range(3):
            step()
        self._wait()
        row: dict[str, Any] = {}
        groups = [self._timed(step, 4) for _ in range(3)]
        row["eager_ms"] = round(statistics.median(groups), 4)
        single = [self._timed(step, 1) for _ in range(5)]
        row |= {"synced_ms": round(statistics.median(single), 4)}
        row |= {"low_ms": round(min(single), 4), "high_ms": round(max(single), 4)}
        if self.is_cuda:
            row |= self._memory(step)
            row |= busy(step)
        row["ops"] = self._log(case, step, log)
        if self.is_cuda:
            try:
                row["graph_ms"] = round(_as_graph(step), 4)
            except Exception as error:
                row["note"] = f"no graph: {type(error).__name__}: {str(error)[:120]}"
        return row

    def _memory(self, step: Callable[[], Any]) -> dict[str, Any]:
        self._wait()
        torch.cuda.empty_cache()
        before = torch.cuda.memory_allocated()
        torch.cuda.reset_peak_memory_stats()
        step()
        self._wait()
        peak, after = torch.cuda.max_memory_allocated(), torch.cuda.memory_allocated()
        reserved = torch.cuda.max_memory_reserved()
        return {"before_bytes": before, "peak_bytes": peak, "after_bytes": after, "reserved_bytes": reserved}

    def _log(self, case: Case, step: Callable[[], Any], log: Any) -> int:
        mode = _Log(self.logged, self.is_cuda)
        with mode:
            step()
        self._wait()
        log.write(json.dumps({"case": case.name, "ops": mode.rows}) + "\n")
        log.flush()
        return len(mode.rows)

    def ops(self, chosen: list[Case]) -> None:
        """In a child process, which is started again after an op that kills it."""
        wanted = [text for text in dict.fromkeys([*self.signatures, *self.logged]) if text not in self.known]
        listed = self.out / "wanted.json"
        listed.write_text(json.dumps(wanted))
        done, until = 0, time.time() + self.left() - (5 if self.tiny else self.reserve)
        while done < len(wanted) and time.time() < until:
            command = [sys.executable, __file__, str(self.out), "--device", self.device, "--phases", "child"]
            code = subprocess.run([*command, "--child", f"{done},{until}"]).returncode
            at = int((self.out / "at.txt").read_text())
            if code == 0:
                done = at
                break
            with table(self.out / "ops.csv", OP_COLUMNS) as write:
                write({"signature": wanted[at], "note": f"killed the process ({code})"})
            say(f"op {at} killed the process: {wanted[at][:100]}")
            done = at + 1
        listed.unlink()
        (self.out / "at.txt").unlink()
        say(f"timed {done} of {len(wanted)} ops")

    def child(self, chosen: list[Case]) -> None:
        """Times ops from a number on, until a time."""
        wanted = json.loads((self.out / "wanted.json").read_text())
        start, until = int(self.task.split(",")[0]), float(self.task.split(",")[1])
        clock = DeviceClock(self.device)
        with table(self.out / "ops.csv", OP_COLUMNS) as write:
            for number in range(start, len(wanted)):
                (self.out / "at.txt").write_text(str(number))
                if time.time() > until:
                    return
                row = self._op(clock, wanted[number])
                if "CUDA error" in row.get("note", "") or "AcceleratorError" in row.get("note", ""):
                    os._exit(3)  # nothing works in this process any more
                write({"signature": wanted[number], **row})
                if number % 200 == 0:
                    self.clear()
                    say(f"op {number} of {len(wanted)}")
            (self.out / "at.txt").write_text(str(len(wanted)))

    def _op(self, clock: DeviceClock, signature: str) -> dict[str, Any]:
        if self.is_cuda and "_for_cpu" in signature:
            return {"note": "a CPU kernel"}
        try:
            call = call_of(signature, self.device)
            with torch.no_grad():
                timing = clock.time(call)
        except Exception as error:
            return {"note": f"{type(error).__name__}: {str(error)[:160]}"}
        times = {key: getattr(timing, key) for key in ("hot_ns", "low_ns", "high_ns", "cold_ns", "host_ns")}
        if signature.startswith('["optim.'):
            times = {key: round(value / UPDATED_TOGETHER) for key, value in times.items()}
        return {**times, "workspace_bytes": timing.workspace_bytes, "stable": int(timing.stable)}

    def compile(self, chosen: list[Case]) -> None:
        columns = (
            "case",
            "held_out",
            "compile_s",
            "step_ms",
            "busy_ms",
            "kernels",
            "peak_bytes",
            "before_bytes",
            "note",
        )
        named = {case.name: case for case in chosen}
        wanted = [named[name] for name in COMPILED if name in named] or chosen[-1:]
        with table(self.out / "compiled.csv", columns) as write:
            for case in wanted:
                if self.left() < 45 and not self.tiny:
                    break
                try:
                    row = self._compiled(case)
                except Exception as error:
                    row = {"note": f"{type(error).__name__}: {str(error)[:200]}"}
                write({"case": case.name, "held_out": int(case.held_out), **row})
                say(f"compiled {case.name} {row}")
                torch._dynamo.reset()
                self.clear()

    def _compiled(self, case: Case) -> dict[str, Any]:
        torch.manual_seed(0)
        module, inputs = case.build(self.device, self.tiny)
        start = time.monotonic()
        step = self._step_of(torch.compile(module), inputs, case.training)
        for _ in range(3):
            step()
        self._wait()
        row: dict[str, Any] = {"compile_s": round(time.monotonic() - start, 1)}
        row["step_ms"] = round(statistics.median(self._timed(step, 4) for _ in range(3)), 4)
        if self.is_cuda:
            memory = self._memory(step)
            row |= {key: memory[key] for key in ("peak_bytes", "before_bytes")} | busy(step)
        return row


def _known(path: str) -> set[str]:
    with lzma.open(path, "rt", newline="") as file:
        return {row["signature"] for row in csv.DictReader(file)}


@dataclass(frozen=True)
class _Captured:
    """One case as text; `traced`: as torch.compile or a CUDA graph sees it, where that is something else."""

    case: str
    graph: bytes = b""
    traced: bytes = b""
    signatures: tuple[str, ...] = ()
    held: Sequence[dict[str, Any]] = ()
    failed: str = ""


def _captured(task: tuple[Case, bool]) -> _Captured:
    case, tiny = task
    torch.set_num_threads(1)
    try:
        graphs = []
        for traced in (False, True):
            target = Target(gpu=True, keep=True, traced=traced)
            module, inputs = _built_without_memory(case, tiny)
            graphs.append(capture(module, inputs, training=case.training, name=case.name, target=target))
    except Exception as error:
        return _Captured(case.name, failed=f"{type(error).__name__}: {error}"[:300])
    plain, other = graphs
    signatures = dict.fromkeys([*plain.signature.values(), *other.signature.values()])
    held = [] if case.training else _held(case, tiny)
    same = plain.kind == other.kind
    return _Captured(case.name, _packed(plain), b"" if same else _packed(other), tuple(signatures), held)


def _packed(graph: Graph) -> bytes:
    text = json.dumps(graph_to_json(graph), separators=(",", ":")) + "\n"
    return lzma.compress(text.encode(), preset=3)


def _held(case: Case, tiny: bool) -> list[dict[str, Any]]:
    try:
        module, inputs = case.build("cpu", tiny)
        rows = held_by_frames(module, inputs, Target(gpu=True))
    except Exception as error:
        say(f"FAILED to follow {case.name}: {type(error).__name__}: {error}"[:300])
        return []
    given = [value.untyped_storage() for value in (*module.parameters(), *module.buffers(), *inputs.values())]
    resident = sum({storage._cdata: storage.nbytes() for storage in given}.values())
    return [{"resident_bytes": resident, "live_bytes": row.live_bytes, "signature": row.signature} for row in rows]


def _built_without_memory(case: Case, tiny: bool) -> Any:
    try:
        with fake_mode():
            return case.build("cpu", tiny)
    except Exception:  # its initial weights depend on numbers, which fake tensors do not have
        return case.build("cpu", tiny)


class _Log(TorchDispatchMode):
    """Each op of a real step: number of its signature, and bytes allocated before, at most during and after it."""

    def __init__(self, known: dict[str, int], is_cuda: bool) -> None:
        super().__init__()
        self.known, self.is_cuda = known, is_cuda
        self.rows: list[list[int]] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        text = signature_of(func, args, kwargs or {})
        number = self.known.setdefault(text, len(self.known))
        before = self._allocated("current")
        if self.is_cuda:
            torch.cuda.reset_peak_memory_stats()
        result = func(*args, **(kwargs or {}))
        self.rows.append([number, before, self._allocated("peak"), self._allocated("current")])
        return result

    def _allocated(self, which: str) -> int:
        if not self.is_cuda:
            return 0
        return int(torch._C._cuda_memoryStats(torch.cuda.current_device())["allocated_bytes"]["all"][which])


def _as_graph(step: Callable[[], Any]) -> float:
    """The step replayed as one CUDA graph."""
    graph = recorded(step)
    graph.replay()
    torch.cuda.synchronize()
    times = []
    for _ in range(3):
        start = time.perf_counter()
        for _ in range(4):
            graph.replay()
        torch.cuda.synchronize()
        times.append((time.perf_counter() - start) * 250)
    return statistics.median(times)


def _links(device: str) -> list[dict[str, Any]]:
    rows = []
    for size in (4 * 2**10, 2**20, 16 * 2**20, 256 * 2**20):
        there = torch.empty(size, dtype=torch.uint8, device=device)
        for pinned in (True, False):
            here = torch.empty(size, dtype=torch.uint8, pin_memory=pinned)
            for way, call in (("to", lambda h=here, t=there: t.copy_(h)), ("from", lambda h=here, t=there: h.copy_(t))):
                rows.append({"bytes": size, "pinned": pinned, "way": way, "us": _best_us(call)})
        other = torch.empty_like(there)
        rows.append({"bytes": size, "way": "within", "us": _best_us(lambda o=other, t=there: o.copy_(t))})
    both = _both_ways(device)
    return [*rows, both]


def _both_ways(device: str) -> dict[str, Any]:
    size = 256 * 2**20
    out, back = (torch.empty(size, dtype=torch.uint8, pin_memory=True) for _ in range(2))
    there, too = (torch.empty(size, dtype=torch.uint8, device=device) for _ in range(2))
    up, down = torch.cuda.Stream(), torch.cuda.Stream()

    def call() -> None:
        with torch.cuda.stream(up):
            there.copy_(out, non_blocking=True)
        with torch.cuda.stream(down):
            back.copy_(too, non_blocking=True)

    return {"bytes": size, "way": "both", "us": _best_us(call)}


def _best_us(call: Callable[[], Any]) -> float:
    call()
    times = []
    for _ in range(7):
        torch.cuda.synchronize()
        start = time.perf_counter()
        call()
        torch.cuda.synchronize()
        times.append((time.perf_counter() - start) * 1e6)
    return round(statistics.median(times), 2)


def _launches(device: str) -> dict[str, Any]:
    """What asking for an empty kernel costs the host, and what running many in a row costs the device."""
    one = torch.ones(16, device=device)
    clock = DeviceClock(device)
    timing = clock.time(lambda: one.add_(1.0))
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for _ in range(1000):
            one.add_(1.0)
    graph.replay()
    return {
        "small_kernel_ns": timing.hot_ns,
        "small_dispatch_ns": timing.host_ns,
        "cold_event_ns": clock.empty_ns,
        "graph_kernel_ns": round(_best_us(graph.replay)),
    }


def _product_workspace(device: str) -> dict[str, int]:
    found = {}
    for dtype in (torch.float32, torch.bfloat16):
        a = torch.ones(256, 256, dtype=dtype, device=device)
        before = torch.cuda.memory_allocated()
        kept = a @ a
        found[str(dtype)] = torch.cuda.memory_allocated() - before - kept.nbytes
    return found


if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).parent))
    main()
