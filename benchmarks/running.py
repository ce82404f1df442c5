"""Applied plans against their models: many models, training and inference, plans of many kinds, two and three devices.

    PYTHONPATH=src python3 benchmarks/running.py FOLDER [--workers 2] [--only gpt2,rnnlm] [--seconds 600] [--processes]

Each plan is applied to a small real model on CPU devices in one process, and one step is compared with the module's own
to the bit where the kernels are the same (see loadmaster.runtime.verify). With --processes every plan runs once more
over as many processes as it has devices. The peak of live storages is measured beside the modelled one for plans on
one device in three orders. Writes running.csv, a row a plan, and prints a table of counts; run again, it does what is
not in the file yet.
"""

from __future__ import annotations

import argparse
import csv
import json
import os
import socket
import subprocess
import sys
import time
import traceback
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import replace
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import numpy as np
import torch

from loadmaster.cost import price
from loadmaster.graph.columns import ints
from loadmaster.importers.torch.export import capture_step
from loadmaster.plans import Plan
from loadmaster.runtime.apply import Planning, build
from loadmaster.runtime.verify import Verification, verify_step

ZOO: dict[str, tuple[str, dict[str, Any]]] = {
    "rnnlm": ("rnnlm-2", {"layers": 2, "width": 16, "vocabulary": 50, "batch": 4, "steps": 3}),
    "gnmt": ("gnmt-2", {"layers": 2, "width": 16, "vocabulary": 50, "batch": 4, "steps": 3}),
    "transformer-xl": (
        "transformer-xl-2",
        {"layers": 2, "width": 32, "heads": 2, "inner": 64, "batch": 2, "segment": 8, "memory": 8},
    ),
    "vit": ("vit-base", {"batch": 2, "size": 32, "layers": 1}),
    "nas-cells": ("nas-cells/0", {"cells": 3, "channels": 4, "batch": 2}),
    "unet": ("unet-ddpm", {"batch": 1, "size": 16, "factors": (1, 1)}),
    "wavenet": ("wavenet-2x18", {"stacks": 1, "layers": 3, "batch": 1, "steps": 64}),
    "resnet50": ("resnet50", {"batch": 2, "size": 32}),
    "amoebanet": ("amoebanet-4", {"cells": 3, "channels": 32, "batch": 2, "size": 64}),
}
WORDS = {"vocab_size": 64, "hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 32}
DECODER = {**WORDS, "num_key_value_heads": 2, "max_position_embeddings": 32, "head_dim": 8, "pad_token_id": 0}
ENCODER = {**WORDS, "max_position_embeddings": 32, "pad_token_id": 0}
HUGGING_FACE: dict[str, dict[str, Any]] = {
    "bert": ENCODER,
    "roberta": ENCODER,
    "electra": {**ENCODER, "embedding_size": 16},
    "albert": {**ENCODER, "embedding_size": 16},
    "distilbert": {"vocab_size": 64, "dim": 16, "n_layers": 2, "n_heads": 2, "hidden_dim": 32},
    "deberta-v2": ENCODER,
    "gpt2": {"vocab_size": 64, "n_embd": 16, "n_layer": 2, "n_head": 2, "n_positions": 32},
    "gpt_neo": {**DECODER, "num_layers": 2, "num_heads": 2, "attention_types": [[["global", "local"], 1]]},
    "gpt_neox": DECODER,
    "opt": {**DECODER, "ffn_dim": 32, "word_embed_proj_dim": 16},
    "bloom": {"vocab_size": 64, "hidden_size": 16, "n_layer": 2, "n_head": 2},
    "llama": DECODER,
    "mistral": DECODER,
    "qwen2": DECODER,
    "qwen3": DECODER,
    "gemma": DECODER,
    "phi": DECODER,
    "phi3": DECODER,
    "stablelm": DECODER,
    "starcoder2": DECODER,
    "olmo2": DECODER,
    "cohere": DECODER,
    "granite": DECODER,
    "smollm3": DECODER,
    "t5": {"vocab_size": 64, "d_model": 16, "d_kv": 8, "d_ff": 32, "num_layers": 2, "num_heads": 2},
}
PLANS = ("random", "expert", "placement", "auto")
ORDERS = ("traced", "memory-order", "random order")
COLUMNS = (
    "job", "model", "mode", "devices", "plan", "where", "ops", "sends", "fused", "ok", "bits", "said",
    "modelled_peak", "measured_peak",
)  # fmt: skip
Made = tuple[torch.nn.Module, Any]
BEGUN = time.perf_counter()


def made(name: str) -> Made:
    torch.manual_seed(0)
    if name in ZOO:
        from loadmaster.zoo import find

        entry, settings = ZOO[name]
        found = find(entry)[0]
        return replace(found, settings={**found.settings, **settings}).model(True)
    from transformers import AutoConfig, AutoModel

    module = AutoModel.from_config(AutoConfig.for_model(name, **HUGGING_FACE[name]))
    module.config.use_cache = False
    words = torch.randint(1, 60, (2, 8))
    return module, {"input_ids": words, **({"decoder_input_ids": words} if name == "t5" else {})}


def rows_of(name: str, training: bool, devices: int, folder: Path) -> list[dict[str, Any]]:
    """Every kind of plan for one model, mode and number of devices; leaves the plans for `in_processes`."""
    from loadmaster.search import Budget, solve

    torch.set_num_threads(1)
    module, inputs = made(name)
    captured = capture_step(module, inputs, training=training)
    problem = price(captured.graph, f"{devices}xp100-pcie")
    rows, plans = [], []
    for spec in PLANS:
        result = solve(problem, spec, Budget(None, 60), seed=1)
        step = build(module, captured, Planning(result.plan, problem, result.timeline), devices=["cpu"] * devices)
        found = verify_step(step, inputs)
        facts = {"ops": problem.num_ops, "sends": result.timeline.num_sends, "fused": step.kernels.total}
        rows.append({**_row(name, training, devices, spec, "one process"), **facts, **_said(found)})
        plans.append(result.plan)
        step.detach()
    _keep(_plans_file(folder, name, training, devices), plans)
    return rows


def _row(name: str, training: bool, devices: int, spec: str, where: str) -> dict[str, Any]:
    mode = "train" if training else "infer"
    return {"model": name, "mode": mode, "devices": devices, "plan": spec, "where": where}


def _said(found: Verification) -> dict[str, Any]:
    return {"ok": found.ok, "bits": found.equals_module, "said": str(found)}


def _plans_file(folder: Path, name: str, training: bool, devices: int) -> Path:
    return folder / "plans" / f"{name}-{'train' if training else 'infer'}-{devices}.npz"


def _keep(path: Path, plans: list[Plan]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    sends = {f"sends{i}": plan.send_rank for i, plan in enumerate(plans)}
    columns = {f"{key}{i}": getattr(plan, key) for i, plan in enumerate(plans) for key in ("device", "rank", "kernel")}
    np.savez_compressed(path, **columns, **sends)  # type: ignore[arg-type]


def peaks_of(name: str, training: bool) -> list[dict[str, Any]]:
    """Modelled and measured peak of three orders on one device, and whether all give the same bits."""
    from loadmaster.runtime.memory import measured_peaks
    from loadmaster.search import Budget, solve
    from loadmaster.simulator import settle, simulate

    torch.set_num_threads(1)
    module, inputs = made(name)
    captured = capture_step(module, inputs, training=training)
    problem = price(captured.graph, "1xp100-pcie")
    rng, count, rows = np.random.default_rng(0), problem.num_ops, []
    for order in ORDERS:
        rank = rng.permutation(count) if order == "random order" else np.arange(count)
        plan = Plan.of(problem, [0] * count, rank)
        if order == "memory-order":
            plan = solve(problem, order, Budget(None, 50)).plan
        line = simulate(problem, plan)
        step = build(module, captured, Planning(settle(problem, plan, line), problem, line), devices=["cpu"])
        found = verify_step(step, inputs)
        peak = measured_peaks(step, inputs)[0]
        step.detach()
        held = {"modelled_peak": int(line.peak_bytes[0]), "measured_peak": peak}
        facts = {"ops": count, "sends": 0, "fused": 0}
        rows.append({**_row(name, training, 1, order, "one process"), **facts, **_said(found), **held})
    return rows


def in_processes(name: str, devices: int, folder: Path) -> list[dict[str, Any]]:
    """The plans of a model, training and inference, once more: one process a device."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = str(free.getsockname()[1])
    env = {**os.environ, "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port, "WORLD_SIZE": str(devices)}
    command = [sys.executable, __file__, str(folder), "--part", name, str(devices)]
    pipe = subprocess.PIPE
    started = [
        subprocess.Popen(command, env={**env, "RANK": str(rank)}, stdout=pipe, stderr=pipe, text=True)
        for rank in range(devices)
    ]
    try:
        ended = [one.communicate(timeout=300) for one in started]
    finally:
        for one in started:
            one.kill()
    said = [json.loads(out.splitlines()[-1]) if out.strip() else [[False, False, err[-300:]]] for out, err in ended]
    labels = [(training, spec) for training in (True, False) for spec in PLANS]
    found = []
    for number, (training, spec) in enumerate(labels):
        parts = [of[number] if number < len(of) else [False, False, "ended early"] for of in said]
        worst = next((part for part in parts if not part[0]), parts[0])
        verdict = {"ok": all(p[0] for p in parts), "bits": all(p[1] for p in parts), "said": worst[2]}
        found.append({**_row(name, training, devices, spec, "processes"), **verdict})
    return found


def part(folder: Path, name: str, devices: int) -> None:
    """One process of `in_processes`."""
    torch.set_num_threads(1)
    said = []
    for training in (True, False):
        module, inputs = made(name)
        captured = capture_step(module, inputs, training=training)
        problem = price(captured.graph, f"{devices}xp100-pcie")
        data = np.load(_plans_file(folder, name, training, devices))
        for number in range(len(PLANS)):
            plan = Plan.of(problem, data[f"device{number}"], data[f"rank{number}"], data[f"kernel{number}"])
            plan = replace(plan, send_rank=ints(data[f"sends{number}"]))
            step = build(module, captured, Planning(plan, problem, None), devices=["cpu"] * devices)
            found = verify_step(step, inputs)
            said.append([found.ok, found.equals_module, str(found)])
            step.detach()
    print(json.dumps(said), flush=True)


Job = tuple[str, Callable[..., Any], tuple[Any, ...]]


def jobs_of(names: list[str], folder: Path, processes: bool) -> list[list[Job]]:
    """In rounds: what runs in several processes needs the plans of what ran in one."""
    alone: list[Job] = [
        (f"{name} {'train' if training else 'infer'} on {devices}", rows_of, (name, training, devices, folder))
        for name in names
        for training in (True, False)
        for devices in (2, 3)
    ]
    peaks: list[Job] = [(f"{name} peaks", peaks_of, (name, True)) for name in names]
    apart: list[Job] = [
        (f"{name} on {devices} in processes", in_processes, (name, devices, folder))
        for name in (names if processes else ())
        for devices in (2, 3)
    ]
    return [alone, peaks, apart]


def main() -> None:
    options = argparse.ArgumentParser()
    options.add_argument("folder", type=Path)
    options.add_argument("--workers", type=int, default=2)
    options.add_argument("--only", default="")
    options.add_argument("--seconds", type=float, default=3600)
    options.add_argument("--processes", action="store_true")
    options.add_argument("--part", nargs=2)
    given = options.parse_args()
    if given.part:
        part(given.folder, given.part[0], int(given.part[1]))
        return
    given.folder.mkdir(parents=True, exist_ok=True)
    names = given.only.split(",") if given.only else [*ZOO, *HUGGING_FACE]
    rows = _known(given.folder)
    failed: dict[str, str] = {}
    rounds = jobs_of(names, given.folder.resolve(), given.processes)
    compile_loops()
    with ProcessPoolExecutor(given.workers, mp_context=get_context("spawn")) as pool:
        for jobs in rounds:
            left = [job for job in jobs if job[0] not in {row["job"] for row in rows}]
            if not run_jobs(pool, left, given.seconds, given.folder, rows, failed):
                print("time is up; the same command goes on from here", flush=True)
                break
        _report(rows, failed)
        for worker in list(pool._processes.values()):  # those still busy after the time is up
            worker.terminate()


def compile_loops() -> None:
    """Once, before many workers would each do it."""
    from loadmaster.search import Budget, solve

    name = next(iter(ZOO))
    module, inputs = made(name)
    problem = price(capture_step(module, inputs, training=True).graph, "2xp100-pcie")
    for spec in PLANS:
        solve(problem, spec, Budget(None, 60), seed=1)
    print(f"[{time.perf_counter() - BEGUN:6.1f}] loops compiled", flush=True)


def run_jobs(
    pool: ProcessPoolExecutor,
    jobs: list[Job],
    seconds: float,
    folder: Path,
    rows: list[dict[str, Any]],
    failed: dict[str, str],
) -> bool:
    """Whether there was time for all; every row is kept as soon as it is there."""
    waiting = {pool.submit(call, *args): label for label, call, args in jobs}
    try:
        for done in as_completed(waiting, timeout=max(0.0, seconds - (time.perf_counter() - BEGUN))):
            label = waiting[done]
            try:
                found = [{"job": label, **row} for row in done.result()]
            except Exception as error:
                failed[label] = f"{type(error).__name__}: {str(error)[:300]}"
                print(f"{label}: {failed[label]}", flush=True)
                traceback.print_exc()
                continue
            rows += found
            _write(folder, rows)
            good = sum(row["ok"] for row in found)
            print(f"[{time.perf_counter() - BEGUN:6.1f}] {label}: {good} of {len(found)}", flush=True)
    except TimeoutError:
        for one in waiting:
            one.cancel()
        return False
    return True


def _known(folder: Path) -> list[dict[str, Any]]:
    """Rows of earlier runs."""
    path = folder / "running.csv"
    if not path.exists():
        return []
    with path.open(newline="") as file:
        rows: list[dict[str, Any]] = list(csv.DictReader(file))
    for row in rows:
        row.update(ok=row["ok"] == "True", bits=row["bits"] == "True", devices=int(row["devices"]))
    return rows


def _write(folder: Path, rows: list[dict[str, Any]]) -> None:
    with (folder / "running.part").open("w", newline="") as file:
        writer = csv.DictWriter(file, COLUMNS)
        writer.writeheader()
        writer.writerows(rows)
    (folder / "running.part").rename(folder / "running.csv")


def _report(rows: list[dict[str, Any]], failed: dict[str, str]) -> None:
    for where in ("one process", "processes"):
        of = [row for row in rows if row["where"] == where and row["devices"] > 1]
        models = {row["model"] for row in of}
        print(f"{where}: {len(of)} plans of {len(models)} models, {sum(row['ok'] for row in of)} verified,",
              f"{sum(row['bits'] for row in of)} equal to the module in every bit", flush=True)  # fmt: skip
    peaks = [row for row in rows if row.get("measured_peak")]
    same = sum(str(row["modelled_peak"]) == str(row["measured_peak"]) for row in peaks)
    print(f"peaks: {same} of {len(peaks)} equal to the byte; failed jobs: {list(failed)}", flush=True)


if __name__ == "__main__":
    main()
