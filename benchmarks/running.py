"""Applied plans against their models: many models, training and inference, plans of many kinds, two and three devices.

    PYTHONPATH=src python3 benchmarks/running.py FOLDER [--workers 2] [--only gpt2,rnnlm] [--seconds 600] [--processes]

Each plan is applied to a small real model on CPU devices in one process, and one step is compared with the module's own
to the bit where the kernels are the same (see loadmaster.runtime.verify). With --processes every plan runs once more
over as many processes as it has devices. The peak of live storages is measured beside the modelled one for plans on
one device in three orders. Writes running.csv, a row a plan, and prints a table of counts.
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
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import replace
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import numpy as np
import torch

from loadmaster.columns import ints
from loadmaster.cost import price
from loadmaster.importers.torch.export import capture_step
from loadmaster.plans import Plan
from loadmaster.runtime.apply import Planning, build
from loadmaster.runtime.verify import verify_step

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
    "amoebanet": ("amoebanet-4", {"cells": 3, "channels": 32, "batch": 1, "size": 32}),
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
PLANS = ("random", "expert", "auto", "joint")
ORDERS = ("traced", "memory-order", "random order")
Made = tuple[torch.nn.Module, Any]


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


def rows_of(name: str, training: bool, devices: int, processes: bool) -> list[dict[str, Any]]:
    """Every kind of plan for one model, mode and number of devices."""
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
        row = {"model": name, "mode": "train" if training else "infer", "devices": devices, "plan": spec}
        rows.append({**row, "where": "one process", "ops": problem.num_ops, "sends": result.timeline.num_sends}
                    | {"ok": found.ok, "bits": found.equals_module, "said": str(found)})  # fmt: skip
        plans.append(result.plan)
        step.detach()
    if processes:
        rows += in_processes(name, training, devices, plans, rows)
    return rows


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
        row = {"model": name, "mode": "train" if training else "infer", "devices": 1, "plan": order}
        facts = {"where": "one process", "ops": count, "sends": 0, "ok": found.ok, "bits": found.equals_module}
        held = {"said": str(found), "modelled_peak": int(line.peak_bytes[0]), "measured_peak": peak}
        rows.append({**row, **facts, **held})
    return rows


def in_processes(
    name: str, training: bool, devices: int, plans: list[Plan], rows: list[dict[str, Any]]
) -> list[dict[str, Any]]:
    """The same plans once more, one process a device."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = str(free.getsockname()[1])
    path = Path(f"{os.environ.get('TMPDIR', '/tmp')}/running-{os.getpid()}-{port}.npz")
    sends = {f"sends{i}": plan.send_rank for i, plan in enumerate(plans)}
    columns = {f"{key}{i}": getattr(plan, key) for i, plan in enumerate(plans) for key in ("device", "rank", "kernel")}
    np.savez(path, **columns, **sends)  # type: ignore[arg-type]
    env = {**os.environ, "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port, "WORLD_SIZE": str(devices)}
    command = [sys.executable, __file__, str(path), "--part", name, str(int(training)), str(devices)]
    started = [
        subprocess.Popen(
            command, env={**env, "RANK": str(rank)}, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        )
        for rank in range(devices)
    ]
    ended = [one.communicate(timeout=900) for one in started]
    path.unlink()
    said = [json.loads(out.splitlines()[-1]) if out.strip() else [[False, False, err[-300:]]] for out, err in ended]
    found = []
    for number, row in enumerate(rows):
        parts = [of[number] if number < len(of) else [False, False, "ended early"] for of in said]
        worst = next((part for part in parts if not part[0]), parts[0])
        found.append({**row, "where": "processes", "ok": all(p[0] for p in parts), "bits": all(p[1] for p in parts)}
                     | {"said": worst[2]})  # fmt: skip
    return found


def part(path: Path, name: str, training: bool, devices: int) -> None:
    """One process of `in_processes`."""
    torch.set_num_threads(1)
    module, inputs = made(name)
    captured = capture_step(module, inputs, training=training)
    problem = price(captured.graph, f"{devices}xp100-pcie")
    data, said = np.load(path), []
    for number in range(len(PLANS)):
        plan = Plan.of(problem, data[f"device{number}"], data[f"rank{number}"], data[f"kernel{number}"])
        plan = replace(plan, send_rank=ints(data[f"sends{number}"]))
        step = build(module, captured, Planning(plan, problem, None), devices=["cpu"] * devices)
        found = verify_step(step, inputs)
        said.append([found.ok, found.equals_module, str(found)])
        step.detach()
    print(json.dumps(said), flush=True)


def jobs_of(names: list[str], processes: bool) -> Iterator[tuple[str, Callable[..., Any], tuple[Any, ...]]]:
    for name in names:
        for training in (True, False):
            for devices in (2, 3):
                label = f"{name} {'train' if training else 'infer'} on {devices}"
                yield label, rows_of, (name, training, devices, processes)
    for name in names[:5]:
        yield f"{name} peaks", peaks_of, (name, True)


def main() -> None:
    options = argparse.ArgumentParser()
    options.add_argument("folder", type=Path)
    options.add_argument("--workers", type=int, default=2)
    options.add_argument("--only", default="")
    options.add_argument("--seconds", type=float, default=3600)
    options.add_argument("--processes", action="store_true")
    options.add_argument("--part", nargs=3)
    given = options.parse_args()
    if given.part:
        part(given.folder, given.part[0], given.part[1] == "1", int(given.part[2]))
        return
    given.folder.mkdir(parents=True, exist_ok=True)
    begun, rows, failed = time.perf_counter(), [], []
    names = given.only.split(",") if given.only else [*ZOO, *HUGGING_FACE]
    with ProcessPoolExecutor(given.workers, mp_context=get_context("spawn")) as pool:
        waiting = {pool.submit(call, *args): label for label, call, args in jobs_of(names, given.processes)}
        try:
            for done in as_completed(waiting, timeout=given.seconds):
                try:
                    rows += done.result()
                    good = sum(row["ok"] for row in done.result())
                    print(
                        f"[{time.perf_counter() - begun:6.1f}] {waiting[done]}: {good} of {len(done.result())}",
                        flush=True,
                    )
                except Exception as error:
                    failed.append(waiting[done])
                    print(f"{waiting[done]}: {type(error).__name__}: {str(error)[:300]}", flush=True)
                    if len(failed) < 4:
                        traceback.print_exc()
        except TimeoutError:
            print("time is up", flush=True)
            pool.shutdown(wait=False, cancel_futures=True)
    _report(given.folder, rows, failed)
    os._exit(0)  # workers that are still busy after the time is up


def _report(folder: Path, rows: list[dict[str, Any]], failed: list[str]) -> None:
    keys = list(dict.fromkeys(key for row in rows for key in row))
    with (folder / "running.csv").open("w", newline="") as file:
        writer = csv.DictWriter(file, keys)
        writer.writeheader()
        writer.writerows(rows)
    for where in ("one process", "processes"):
        of = [row for row in rows if row["where"] == where and row["devices"] > 1]
        models = {row["model"] for row in of}
        print(f"{where}: {len(of)} plans of {len(models)} models, {sum(row['ok'] for row in of)} verified,",
              f"{sum(row['bits'] for row in of)} equal to the module in every bit", flush=True)  # fmt: skip
    peaks = [row for row in rows if "measured_peak" in row]
    same = Counter(row["modelled_peak"] == row["measured_peak"] for row in peaks)
    print(f"peaks: {same[True]} of {len(peaks)} equal to the byte; failed jobs: {failed}", flush=True)


if __name__ == "__main__":
    main()
