"""Gathers what the forecast is fitted and held to, on a machine with a GPU: ops alone, kernels of real steps, steps.

    python benchmarks/forecast_gpu.py OUT --seconds 550
    python benchmarks/forecast_gpu.py OUT --device cpu --tiny --seconds 120     # a rehearsal without a GPU

First every step is captured on all cores while one process times single ops (`ops.csv.xz`). Then waves of processes
build and compile a step each; when all of a wave are ready they are timed one after the other, alone on the machine:
`steps.csv` has steps, peaks and the host's parts, `kernels.csv.xz` what each kernel of an eager and of a compiled step
took, by the op that asked for it. Models of benchmarks/forecast_models.py come first and are held out; those of
benchmarks/fidelity_models.py, a quarter as deep, are for fitting.
"""

from __future__ import annotations

import argparse
import csv
import io
import json
import lzma
import multiprocessing
import os
import random
import statistics
import time
import warnings
from collections.abc import Callable, Iterator
from itertools import pairwise
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import Any

import torch
import torch._inductor.config
from fidelity_gpu import Work, _built_without_memory, _packed
from fidelity_models import Case, cases
from fidelity_steps import say
from forecast_models import FAMILIES, held_out_cases, tiny_cases
from forecast_sweep import sweep

from loadmaster.importers.torch.export import capture
from loadmaster.importers.torch.signature import call_of
from loadmaster.importers.torch.step import Target
from loadmaster.runtime.timing import DeviceClock

OP_COLUMNS = ("signature", "hot_ns", "low_ns", "high_ns", "cold_ns", "host_ns", "workspace_bytes", "stable", "note")
MODES = ("eager", "compiled")
PARTS = ("forward_ms", "backward_ms", "update_ms")
STEP_COLUMNS = (
    "case", "held_out", "mode", "rounds", "bare_ns", "step_ms", "low_step_ms", "forward_ms", "backward_ms",
    "update_ms", "busy_ms", "kernels", "peak_bytes", "before_bytes", "weights", "compile_s", "note",
)  # fmt: skip
KERNEL_COLUMNS = (
    "case", "mode", "op", "kernel", "shapes", "strides", "dtypes", "values", "count", "total_ns", "least_ns", "meta",
)  # fmt: skip
METAS: dict[str, list[Any]] = {}  # what Inductor knows of each kernel it made


class Quarter(Case):
    """A model of benchmarks/fidelity_models.py, a quarter as deep: its kernels are those of the whole."""

    @property
    def name(self) -> str:
        return f"{self.model}/4-{super().name.partition('-')[2]}"

    def build(self, device: str, tiny: bool = False) -> Any:
        return super().build(device, True)


def chosen_cases(tiny: bool) -> list[Case]:
    if tiny:
        return tiny_cases()
    single = ("bert", "phi", "resnet", "swin")
    some = [case for case in cases() if case.dtype == "bfloat16" or case.model in single]
    known = [Quarter(c.model, c.dtype, c.training, c.batch, c.length) for c in some]
    return sorted([*held_out_cases(), *known], key=_turn)


SLOW = ("segformer", "mobilevit", "efficientnet", "ddpm", "mamba2", "poolformer", "regnet", "mobilenet")  # to compile


def _turn(case: Case) -> tuple[bool, bool, bool, bool]:
    """What takes minutes to compile, then what is held out; training before inference, bfloat16 before float32."""
    slow = case.model in SLOW and case.training
    return not slow, case.model not in FAMILIES, not case.training, case.dtype != "bfloat16"


def main() -> None:
    settings = _settings()
    os.environ.setdefault("PYTORCH_NVML_BASED_CUDA_CHECK", "1")  # asking for a GPU must not start CUDA before the forks
    os.environ.setdefault("HF_HUB_OFFLINE", "1")
    warnings.filterwarnings("ignore")
    out = Path(settings.out)
    out.mkdir(parents=True, exist_ok=True)
    chosen = chosen_cases(settings.tiny)
    if settings.only:
        chosen = [case for case in chosen if case.model in settings.only.split(",")]
    import transformers

    facts = {"torch": torch.__version__, "transformers": transformers.__version__, "cores": os.cpu_count()}
    (out / "machine.json").write_text(json.dumps(facts, indent=1))
    say(f"{len(chosen)} cases, {facts}")
    context = multiprocessing.get_context("fork" if _forks(settings.device) else "spawn")
    if "ops" in settings.phases:
        first_phase(context, settings, chosen, out)
    if "steps" in settings.phases:
        waves(context, settings, chosen, out)
    say("done")


def _settings() -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    parser.add_argument("out")
    parser.add_argument("--device", default="cuda:0")
    parser.add_argument("--tiny", action="store_true")
    parser.add_argument("--seconds", type=float, default=550.0)
    parser.add_argument("--only", default="", help="models")
    parser.add_argument(
        "--profile", action=argparse.BooleanOptionalAction, default=True, help="kernels of each step too"
    )
    parser.add_argument("--phases", default="ops,steps")
    parser.add_argument("--ops", type=int, default=2600, help="single ops to time")
    parser.add_argument("--sweep-seconds", type=float, default=70.0)
    parser.add_argument("--workers", type=int, default=max(1, (os.cpu_count() or 2) - 1))
    parser.add_argument("--patience", type=float, default=120.0, help="seconds a step may take to compile")
    settings = parser.parse_args()
    settings.child, settings.known, settings.reserve = "", "", 0.0
    return settings


def _forks(device: str) -> bool:
    """Whether a fork of this process can use the device: not where something has started CUDA already."""
    probe = multiprocessing.get_context("fork").Process(target=_probe, args=(device,))
    probe.start()
    probe.join(60)
    say(f"a fork ends with {probe.exitcode}")
    return probe.exitcode == 0


def _probe(device: str) -> None:
    torch.ones(1, device=device).add_(1)


def first_phase(context: Any, settings: argparse.Namespace, chosen: list[Case], out: Path) -> None:
    """Captures on all cores; one more process has the GPU meanwhile."""
    timing = context.Process(target=time_ops, args=(settings, out))
    timing.start()
    tasks = [(case, settings.tiny) for case in chosen]
    with (
        context.Pool(max(1, settings.workers - 1), maxtasksperchild=4) as pool,
        open(out / "graphs.jsonl.xz", "wb") as plain,
        open(out / "traced.jsonl.xz", "wb") as traced,
    ):
        for name, texts, failed in _until(pool.imap_unordered(graphs_of, tasks), settings.sweep_seconds * 1.3):
            say(f"captured {name}" if texts else f"FAILED to capture {name}: {failed}")
            for file, text in zip((plain, traced), texts, strict=False):
                file.write(text)
                file.flush()
        pool.terminate()
    timing.join()


def _until(results: Any, seconds: float) -> Iterator[Any]:
    end = time.monotonic() + seconds
    while True:
        try:
            yield results.next(max(0.1, end - time.monotonic()))
        except StopIteration:
            return
        except multiprocessing.TimeoutError:
            say("no time for the other captures")
            return


def graphs_of(task: tuple[Case, bool]) -> tuple[str, list[bytes], str]:
    case, tiny = task
    torch.set_num_threads(1)
    try:
        graphs = []
        for traced in (False, True):
            module, inputs = _built_without_memory(case, tiny)
            target = Target(gpu=True, keep=True, traced=traced)
            graphs.append(capture(module, inputs, training=case.training, name=case.name, target=target))
    except Exception as error:
        return case.name, [], f"{type(error).__name__}: {error}"[:300]
    same = graphs[0].kind == graphs[1].kind
    return case.name, [_packed(graphs[0]), b"" if same else _packed(graphs[1])], ""


def time_ops(settings: argparse.Namespace, out: Path) -> None:
    end, clock = time.monotonic() + settings.sweep_seconds, DeviceClock(settings.device)
    wanted = sweep(settings.ops)
    rows: list[dict[str, Any]] = []
    for number, text in enumerate(wanted):
        if time.monotonic() > end:
            break
        try:
            with torch.no_grad():
                timing = clock.time(call_of(text, settings.device))
            keys = ("hot_ns", "low_ns", "high_ns", "cold_ns", "host_ns", "workspace_bytes")
            row = {key: getattr(timing, key) for key in keys} | {"stable": int(timing.stable)}
        except Exception as error:
            row = {"note": f"{type(error).__name__}: {str(error)[:100]}"}
            if "CUDA error" in row["note"]:
                rows.append({"signature": text, **row})
                break  # nothing works in this process any more
        rows.append({"signature": text, **row})
        if number % 300 == 299:
            say(f"timed {number + 1} ops")
    append_rows(out / "ops.csv.xz", OP_COLUMNS, rows)
    say(f"timed {len(rows)} of {len(wanted)} ops, {sum('note' in row for row in rows)} failed")


def append_rows(path: Path, columns: tuple[str, ...], rows: list[dict[str, Any]]) -> None:
    """As one more stream of a compressed table; readers see them joined."""
    text = io.StringIO()
    writer = csv.DictWriter(text, columns)
    if not path.exists():
        writer.writeheader()
    writer.writerows(rows)
    data = text.getvalue().encode()
    with open(path, "ab") as file:
        file.write(lzma.compress(data) if path.suffix == ".xz" else data)


def waves(context: Any, settings: argparse.Namespace, chosen: list[Case], out: Path) -> None:
    """Each wave compiles at once and is timed one by one."""
    rest, longest = list(chosen), 60.0
    while rest:
        left = settings.seconds - _now()
        if left < (10 if settings.tiny else longest):
            break
        some, rest = rest[: settings.workers + 1], rest[settings.workers + 1 :]
        start = _now()
        wave(context, settings, some, out)
        longest = max(longest, 0.8 * (_now() - start))
    for case in rest:
        say(f"no time for {case.name}")


def _now() -> float:
    from fidelity_steps import BEGUN

    return time.monotonic() - BEGUN


def wave(context: Any, settings: argparse.Namespace, some: list[Case], out: Path) -> None:
    say(f"== wave of {len(some)}: {' '.join(case.name for case in some)}")
    running: dict[Connection, tuple[Case, Any]] = {}
    for case in some:
        ours, theirs = context.Pipe()
        child = context.Process(target=child_of, args=(theirs, case, settings), daemon=True)
        child.start()
        theirs.close()
        running[ours] = case, child
    end = time.monotonic() + min(settings.patience, settings.seconds - _now() - 25)
    ready = gathered(running, end)
    say(f"{len(ready)} of {len(some)} ready")
    for link in list(running):
        if link not in ready:
            running[link][1].kill()
            say(f"too slow: {running.pop(link)[0].name}")
    for link in ready:
        if settings.seconds - _now() < 8:
            break
        case, _ = running[link]
        rows = asked(link, "go", 45)
        for row in rows or []:
            append_rows(
                out / "steps.csv", STEP_COLUMNS, [{"case": case.name, "held_out": int(case.model in FAMILIES), **row}]
            )
            say(f"{case.name} {row}")
        if rows is None:
            say(f"{case.name} was lost")
    found: list[dict[str, Any]] = []
    for link in ready:
        if link in running and link.poll(max(0.1, min(15, settings.seconds + 5 - _now()))):
            found += [{"case": running[link][0].name, **row} for row in _received(link) or []]
    append_rows(out / "kernels.csv.xz", KERNEL_COLUMNS, found)
    for _, child in running.values():
        child.kill()
        child.join()


def gathered(running: dict[Connection, tuple[Case, Any]], end: float) -> list[Connection]:
    """Those that said that they are ready before the end, in that order."""
    waiting, ready = list(running), []
    while waiting and time.monotonic() < end:
        for link in wait(waiting, max(0.1, end - time.monotonic())):
            assert isinstance(link, Connection)
            waiting.remove(link)
            said = _received(link)
            case, child = running[link]
            if said == "ready":
                ready.append(link)
            else:
                say(f"FAILED {case.name}: {said}")
                del running[link]
                child.kill()
    return ready


def asked(link: Connection, word: str, seconds: float) -> Any:
    try:
        link.send(word)
    except OSError:
        return None
    return _received(link) if link.poll(seconds) else None


def _received(link: Connection) -> Any:
    try:
        return link.recv()
    except (EOFError, OSError):
        return None


def child_of(link: Connection, case: Case, settings: argparse.Namespace) -> None:
    torch.set_num_threads(1)
    try:
        step = Prepared(case, settings)
    except BaseException as error:
        link.send(f"{type(error).__name__}: {str(error)[:300]}")
        return
    link.send("ready")
    link.recv()
    try:
        rows, profiler = step.timed()
    except Exception as error:
        rows, profiler = [{"note": f"{type(error).__name__}: {str(error)[:200]}"}], None
    link.send(rows)
    try:
        link.send(step.kernels_of(profiler) if profiler else [])
    except Exception as error:
        link.send([{"kernel": f"{type(error).__name__}: {str(error)[:200]}"}])
    link.recv()  # stays until it is ended: tearing down would disturb the next


class Prepared(Work):
    """One step, eager and compiled, which has run in both ways."""

    def __init__(self, case: Case, settings: argparse.Namespace) -> None:
        super().__init__(Path(settings.out), settings)
        torch._inductor.config.compile_threads = 1  # there are many such processes
        self.training = case.training
        _note_metas()
        torch._dynamo.config.automatic_dynamic_shapes = False
        torch.manual_seed(0)
        self.module, self.inputs = self._patient(lambda: case.build(self.device, self.tiny))
        self.ways, self.compile_s = {"eager": self.module}, 0.0
        self._warm(self._parted(self.module, self.module, self.inputs, case.training))
        start = time.monotonic()
        self.failed = self._compile(noted=True) and self._compile(noted=False)
        self.compile_s = round(time.monotonic() - start, 1)
        self.profiles = settings.profile
        self.clear()

    def _compile(self, noted: bool) -> str:
        """What went wrong; `noted`: with the bytes of each kernel, which changes nothing else of it."""
        torch._inductor.config.benchmark_kernel = noted
        torch._dynamo.reset()
        compiled = torch.compile(self.module)
        try:
            self._warm(self._parted(self.module, compiled, self.inputs, self.training))
        except Exception as error:
            return f"{type(error).__name__}: {str(error)[:200]}"
        self.ways["compiled"] = compiled
        return ""

    def _warm(self, step: Callable[[], Any]) -> None:
        for _ in range(3):
            self._patient(step)
        self._wait()
        self.clear()

    def _patient(self, call: Callable[[], Any]) -> Any:
        """Others of the wave may have the memory for the moment."""
        for _ in range(6):
            try:
                return call()
            except torch.OutOfMemoryError:
                self.clear()
                time.sleep(4 * random.random() + 2)
        return call()

    def timed(self) -> tuple[list[dict[str, Any]], Any]:
        rows, steps = [], {}
        for mode, called in self.ways.items():
            steps[mode] = step = self._parted(self.module, called, self.inputs, self.training)
            row = {"mode": mode, **self._rounds_of(step)}
            if self.is_cuda:
                memory = self._memory(step)
                row |= {key: memory[key] for key in ("peak_bytes", "before_bytes")}
            row["weights"] = sum(weight.requires_grad for weight in self.module.parameters())
            rows.append(row | ({"compile_s": self.compile_s} if mode == "compiled" else {}))
        if self.failed:
            rows.append({"mode": "compiled", "note": self.failed})
        return rows, self._profile(steps) if self.profiles else None

    def _rounds_of(self, step: Callable[[], list[float]]) -> dict[str, Any]:
        """Steps as a loop runs them, three in a row; parts are of one that was waited for. No profiler has been on: it
        leaves launches slower than they were."""
        one, took, parts, bare, until = torch.ones(16, device=self.device), [], [], [], time.monotonic() + 0.6
        step()
        while len(took) < 12 and (len(took) < 3 or time.monotonic() < until):
            bare.append(self._bare(one, 100))
            took.append(self._timed(step, 3))
            self._wait()
            begun = time.perf_counter()
            marks = step()
            parts.append([(after - before) * 1e3 for before, after in pairwise([begun, *marks])])
        row: dict[str, Any] = {"rounds": len(took), "bare_ns": round(statistics.median(bare))}
        for key, times in zip(PARTS, zip(*parts, strict=True), strict=False):
            row[key] = round(statistics.median(times), 4)
        row["step_ms"] = round(statistics.median(took), 4)
        return row | {"low_step_ms": round(statistics.quantiles(took, n=4)[0], 4)}

    def _profile(self, steps: dict[str, Callable[[], Any]]) -> Any:
        """Of one step of each; still to be closed, which takes the host long."""
        from torch.profiler import ProfilerActivity, profile, record_function

        which = [ProfilerActivity.CPU] + ([ProfilerActivity.CUDA] if self.is_cuda else [])
        profiler = profile(activities=which, record_shapes=True)
        for step in steps.values():
            step()
        self._wait()
        profiler.__enter__()
        for mode, step in steps.items():
            with record_function(f"MODE {mode}"):
                step()
                self._wait()
        return profiler

    def kernels_of(self, profiler: Any) -> list[dict[str, Any]]:
        profiler.__exit__(None, None, None)
        events = list(profiler.profiler.kineto_results.events())
        spans = {e.name()[5:]: (e.start_ns(), e.end_ns()) for e in events if _is_mark(e)}
        asked_by = {e.correlation_id(): e for e in events if _asks(e)}
        found: dict[tuple[Any, ...], list[int]] = {}
        for event in events:
            if _on_gpu(event) != self.is_cuda or _is_annotation(event):
                continue
            mode = next((m for m, (low, high) in spans.items() if low <= event.start_ns() <= high), "")
            op = asked_by.get(event.linked_correlation_id()) if self.is_cuda else event
            key = (mode, "" if op is None else op.name(), event.name()[:100], *_facts(op))
            found.setdefault(key, []).append(event.duration_ns())
        return [_kernel_row(key, times) for key, times in found.items()]


def _on_gpu(event: Any) -> bool:
    return bool(event.device_type() == torch.autograd.DeviceType.CUDA)


def _asks(event: Any) -> bool:
    """An op, and no call of CUDA's runtime: these are numbered apart."""
    return not _on_gpu(event) and not event.linked_correlation_id() and not event.name().startswith("cu")


def _is_mark(event: Any) -> bool:
    return not _on_gpu(event) and event.name().startswith("MODE ")


def _is_annotation(event: Any) -> bool:
    kind = event.activity_type() if hasattr(event, "activity_type") else ""
    marks = ("MODE ", "Optimizer.", "Torch-Compiled", "## ", "CompiledFunction", "autograd::", "ProfilerStep")
    return "annotation" in str(kind) or event.name().startswith(marks)


def _facts(op: Any) -> tuple[str, ...]:
    """Shapes, strides, dtypes and numbers of the call, the long lists of an optimizer in short."""
    if op is None:
        return "", "", "", ""
    strides = op.structured_input_strides() if hasattr(op, "structured_input_strides") else []
    values = [str(value)[:40] for value in op.concrete_inputs()]
    parts = (op.shapes(), strides, op.dtypes(), values)
    return tuple(json.dumps(list(part)[:48], separators=(",", ":"), default=str) for part in parts)


def _kernel_row(key: tuple[Any, ...], times: list[int]) -> dict[str, Any]:
    row = dict(zip(KERNEL_COLUMNS[1:8], key, strict=True))
    meta = METAS.get(str(row["op"]), METAS.get(str(row["kernel"]), []))
    row |= {"count": len(times), "total_ns": sum(times), "least_ns": min(times)}
    return row | {"meta": json.dumps(meta, separators=(",", ":"), default=str) if meta else ""}


def _note_metas() -> None:
    """Inductor's own counts of loads, stores and bytes of each kernel, as it makes it."""
    try:
        from torch._inductor.runtime.triton_heuristics import CachingAutotuner
    except ImportError:
        return
    before = CachingAutotuner.__init__

    def noting(self: Any, *args: Any, **kwargs: Any) -> None:
        before(self, *args, **kwargs)
        meta = getattr(self, "inductor_meta", {})
        wanted = ("num_load", "num_store", "num_reduction", "kernel_num_gb", "tiling_scores")
        facts = {name: meta[name] for name in wanted if name in meta}
        facts["hints"] = getattr(self, "size_hints", None)
        METAS.setdefault(str(meta.get("kernel_name")), []).append(facts)

    CachingAutotuner.__init__ = noting  # type: ignore[method-assign]


if __name__ == "__main__":
    main()
