"""Do plans rank in reality as they do in the model? Processes pinned to cores as devices, links of a set speed.

    PYTHONPATH=src python3 benchmarks/agreement.py FOLDER [--devices 4] [--plans 20] [--seconds 220] [--only rnnlm,vit]

Every process times every op on its own core in the course of a step, all at once, and the whole step, to which the ops
are made to add up; each plan is simulated with the medians and then run by as many processes as it has devices, each on
a core of its own (and one more for its messages where there are enough), over links throttled to a set speed and
latency. What a message costs the processes themselves, by its size, is measured before and counted with the ops at its
ends. Writes agreement.csv (a row a plan), agreement.json (Spearman's rank correlation and the share of pairs in the
right order) and, with matplotlib, agreement.png. Needs torch, numpy, scipy and numba; on a machine with more free cores
than devices.
"""

from __future__ import annotations

import argparse
import csv
import json
import os
import socket
import statistics
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import combinations
from pathlib import Path
from typing import Any

import numpy as np
import torch

from loadmaster.cluster import Cluster, Device, Link
from loadmaster.cost import price
from loadmaster.graph import UNGIVEN, Graph
from loadmaster.graph.columns import ints
from loadmaster.importers.torch.arguments import split
from loadmaster.importers.torch.export import capture_step
from loadmaster.importers.torch.graph import CapturedStep
from loadmaster.plans import Plan
from loadmaster.problem import Problem
from loadmaster.runtime.apply import Planning, build
from loadmaster.runtime.processes import Incoming, MessageShape, Outgoing, Post, Throttle, joined_group
from loadmaster.runtime.schedule import Send, schedule

BYTES_PER_S, LATENCY_S = 250e6, 400e-6
WARM, LEAST_STEPS, MOST_STEPS, STEPS_MS = 1, 3, 7, 1500.0  # steps of a plan: as many as the time allows
MESSAGES = (1 << 10, 1 << 18, 1 << 21)  # floats of the messages that are timed
MODELS: dict[str, tuple[str, dict[str, Any]]] = {
    "rnnlm": ("rnnlm-2", {"layers": 4, "width": 384, "vocabulary": 2000, "batch": 32, "steps": 5}),
    "gnmt": ("gnmt-2", {"layers": 2, "width": 256, "vocabulary": 2000, "batch": 32, "steps": 5}),
    "vit": ("vit-base", {"batch": 2, "size": 96, "layers": 3}),
    "cells": ("nas-cells/0", {"cells": 3, "channels": 24, "batch": 8}),
    "unet": ("unet-ddpm", {"batch": 1, "size": 16, "factors": (1, 2)}),
    "wavenet": ("wavenet-2x18", {"stacks": 2, "layers": 5, "batch": 1, "steps": 512}),
}
BEGUN = time.perf_counter()


def say(*words: Any) -> None:
    print(f"[{time.perf_counter() - BEGUN:6.1f}]", *words, flush=True)


def made(name: str) -> tuple[torch.nn.Module, Any]:
    from loadmaster.zoo import find

    entry, settings = MODELS[name]
    found = find(entry)[0]
    torch.manual_seed(0)
    module, inputs = replace(found, settings={**found.settings, **settings}).model(True)
    return module.train(), inputs


def cluster_of(devices: int) -> Cluster:
    """Equal cores; a wire out of each, as the throttle has it."""
    cores = tuple(Device(f"core:{i}", "cpu", 2**40, 1e10, 1e10) for i in range(devices))
    pairs = [(src, dst) for src in range(devices) for dst in range(devices) if src != dst]
    channel = np.full((devices, devices), -1, np.int64)
    for src, dst in pairs:
        channel[src, dst] = src
    link = Link(BYTES_PER_S, int(LATENCY_S * 1e9))
    return Cluster("cores", cores, dict.fromkeys(pairs, link), ints(channel))


# What ops take


def measured(captured: CapturedStep, module: torch.nn.Module, inputs: Any, rounds: int = 6) -> np.ndarray:
    """[ops of the captured graph] ns of each op in the course of a step on this core, in sum what the whole step takes;
    views have none."""
    problem = price(captured.graph, cluster_of(1))
    step = build(
        module,
        captured,
        Planning(Plan.of(problem, [0] * problem.num_ops), problem, None),
        devices=["cpu"],
        together=False,
    )
    listing, whole = step.program.listing, []
    times = np.zeros((rounds, len(listing.lines)), np.int64)
    args, kwargs = split(inputs)
    for number in range(rounds):
        begun = time.perf_counter_ns()
        step(*args, **kwargs)
        whole.append(time.perf_counter_ns() - begun)
        step.bind(inputs)
        with torch.no_grad():
            for at, (_, run) in enumerate(listing.by_line(step.residents())):
                begun = time.perf_counter_ns()
                run()
                times[number, at] = time.perf_counter_ns() - begun
    step.detach()
    per_line = np.median(times[1:], axis=0)
    per_line *= statistics.median(whole[1:]) / per_line.sum()
    total = np.full(captured.graph.num_ops, UNGIVEN, np.int64)
    total[problem.source_ops] = 0
    for at, line in enumerate(listing.lines):
        total[problem.source_ops[line.op]] += int(per_line[at])
    return total


def times_of(name: str, folder: Path, devices: int) -> np.ndarray:
    """What the processes measured, once all have."""
    paths = [folder / f"{name}.times{rank}.npy" for rank in range(devices)]
    while not all(path.exists() for path in paths):
        time.sleep(0.05)
    return np.median([np.load(path) for path in paths], axis=0).astype(np.int64)


Costs = Mapping[str, Sequence[float]]  # ns of a message and ns of a byte of it, to send and to receive


def with_messages(graph: Graph, problem: Problem, plan: Plan, cost: Costs) -> Graph:
    """The graph with what messages cost the processes themselves: to ask for a send, on the op that made the tensor; to
    take it in, on the first op that reads it."""
    extra, seen = np.zeros(graph.num_ops, np.int64), set()

    def taken(way: str, tensor: int) -> int:
        return round(cost[way][0] + cost[way][1] * int(problem.graph.nbytes[tensor]))

    for event in schedule(problem, plan):
        if isinstance(event, Send):
            maker = int(problem.graph.producer[event.tensor])
            maker = maker if maker >= 0 else int(problem.updater[event.tensor])
            extra[problem.source_ops[maker]] += taken("send_ns", event.tensor)
            seen.add((event.tensor, event.dst))
            continue
        for op in event.ops:
            for tensor in problem.graph.reads_of(op).tolist():
                if (tensor, event.device) in seen:
                    seen.remove((tensor, event.device))
                    extra[problem.source_ops[op]] += taken("receive_ns", tensor)
    times = graph.time_ns[:, 0]
    return replace(graph, time_ns=ints(np.where(extra > 0, times + extra, times)[:, None]))


def message_cost(folder: Path, throttle: Throttle) -> None:
    """Host time to send and to receive a message that need not be waited for, between two processes, by its size."""
    rank, rows, tag = torch.distributed.get_rank(), [], 0
    for size in MESSAGES:
        times = []
        for _ in range(60):
            tag += 1
            times.append(_message(rank, tag, size, throttle))
        rows.append((4 * size, statistics.median(times)))
    if rank < 2:
        (small, own_ns), (large, most_ns) = rows[0], rows[-1]
        found = {("send_ns", "receive_ns")[rank]: (own_ns, max(0.0, (most_ns - own_ns) / (large - small)))}
        (folder / f"message{rank}.part").write_text(json.dumps(found))
        (folder / f"message{rank}.part").rename(folder / f"message{rank}.json")


def _message(rank: int, tag: int, size: int, throttle: Throttle) -> int:
    """ns that one took this process."""
    shape, took = MessageShape.of(torch.zeros(size)), 0
    post = Post(rank, [torch.device("cpu")] * torch.distributed.get_world_size(), throttle)
    post.free_at = -1e9
    torch.distributed.barrier()
    if rank == 0:
        outgoing, given = Outgoing(post, 1, tag, shape), torch.zeros(size)
        begun = time.perf_counter_ns()
        outgoing(given)
        took = time.perf_counter_ns() - begun
        outgoing.left()
    elif rank == 1:
        incoming = Incoming(post, 0, tag, shape)
        begun = time.perf_counter_ns()
        incoming()
        took = time.perf_counter_ns() - begun
        time.sleep(2e-3 + 4.0 * size / BYTES_PER_S + LATENCY_S)  # until the throttled wire has passed it on
        begun = time.perf_counter_ns()
        incoming.arrive()
        took += time.perf_counter_ns() - begun
    return took


def known_message_cost(folder: Path) -> Costs:
    paths = [folder / f"message{rank}.json" for rank in range(2)]
    while not all(path.exists() for path in paths):
        time.sleep(0.05)
    return {key: value for path in paths for key, value in json.loads(path.read_text()).items()}


def plans_of(problem: Problem, count: int, methods: Sequence[str]) -> list[tuple[str, Plan]]:
    """Good and bad ones: methods, cuts of the program at random places, and blocks thrown about."""
    from loadmaster.search import Budget, solve
    from loadmaster.simulator import settle, simulate

    rng, found = np.random.default_rng(0), []
    for spec in methods:
        found.append((spec, solve(problem, spec, Budget(None, 300), 0).plan))
    devices = problem.num_devices
    while len(found) < count:
        pieces = int(rng.integers(2, 6 * devices))
        cuts = np.sort(rng.choice(problem.num_ops, pieces - 1, replace=False))
        block = np.searchsorted(cuts, np.arange(problem.num_ops), side="right")
        owner = rng.integers(0, devices, pieces) if rng.random() < 0.6 else np.arange(pieces) * devices // pieces
        place = owner[block]
        for group in set(problem.graph.colocate.tolist()) - {-1}:
            members = np.flatnonzero(problem.graph.colocate == group)
            place[members] = place[members[0]]
        plan = Plan.of(problem, place)
        found.append((f"{pieces} pieces", settle(problem, plan, simulate(problem, plan))))
    return found


def prepare(name: str, folder: Path, devices: int, count: int, methods: Sequence[str]) -> None:
    """Times the ops of a model, makes and simulates plans, and leaves them for the processes."""
    from loadmaster.simulator import simulate

    module, inputs = made(name)
    captured = capture_step(module, inputs, training=True, optimizer="sgd")
    times = times_of(name, folder, devices)
    graph = replace(captured.graph, time_ns=ints(times[:, None]))
    problem = price(graph, cluster_of(devices))
    rows, cost = plans_of(problem, count, methods), known_message_cost(folder)
    modelled = []
    for _, plan in rows:
        full = price(with_messages(graph, problem, plan, cost), cluster_of(devices))
        modelled.append(simulate(full, replace(plan, graph_digest=full.source.digest)).step_ns)
    sent = [simulate(problem, plan).num_sends for _, plan in rows]
    temporary = folder / f"{name}.part.npz"
    np.savez(
        temporary,
        names=np.array([label for label, _ in rows]),
        device=np.stack([plan.device for _, plan in rows]),
        rank=np.stack([plan.rank for _, plan in rows]),
        kernel=np.stack([plan.kernel for _, plan in rows]),
        sends=np.stack([plan.send_rank for _, plan in rows]),  # type: ignore[arg-type]
        modelled=np.array(modelled),
        plain=np.array([simulate(problem, plan).step_ns for _, plan in rows]),
        sent=np.array(sent),
    )
    temporary.rename(folder / f"{name}.npz")
    say(name, problem.num_ops, "ops,", f"{int(times[times > 0].sum()) / 1e6:.1f} ms on one core,", len(rows), "plans")


# In each process


def work(folder: Path, devices: int, names: list[str], end: float) -> None:
    rank = int(os.environ["RANK"])
    _pin(rank, devices)
    torch.set_num_threads(1)
    rows, throttle = [], Throttle(BYTES_PER_S, LATENCY_S, str(folder / "board"))
    models = {name: _measured_here(name, folder, rank) for name in names}
    joined_group(devices)
    message_cost(folder, throttle)
    for name, (module, inputs, captured) in models.items():
        problem = price(captured.graph, cluster_of(devices))
        while not (folder / f"{name}.npz").exists():
            time.sleep(0.05)
        data = np.load(folder / f"{name}.npz")
        for number, label in enumerate(data["names"].tolist()):
            plan = Plan.of(problem, data["device"][number], data["rank"][number], data["kernel"][number])
            plan = replace(plan, send_rank=ints(data["sends"][number]))
            planning = Planning(plan, problem, None)
            step = build(module, captured, planning, devices=["cpu"] * devices, throttle=throttle, together=False)
            times = _steps(step, inputs)
            go = torch.tensor([int(time.time() < end)])
            torch.distributed.broadcast(go, 0)
            row = {"model": name, "plan": label, "modelled_ms": data["modelled"][number] / 1e6}
            facts = {"without_messages_ms": data["plain"][number] / 1e6, "sends": int(data["sent"][number])}
            rows.append({**row, "measured_ms": statistics.median(times), **facts})
            if rank == 0 and number % 5 == 4:
                _write(folder, rows)
                say(name, number + 1, "plans:", {k: v for k, v in rows[-1].items() if k != "model"})
            if not go.item():
                break
        if rank == 0:
            _write(folder, rows)
        if time.time() > end:
            break
    torch.distributed.barrier()


def _measured_here(name: str, folder: Path, rank: int) -> tuple[torch.nn.Module, Any, CapturedStep]:
    """A model whose ops this process has timed, before it joined the others."""
    module, inputs = made(name)
    captured = capture_step(module, inputs, training=True, optimizer="sgd")
    count = os.environ.pop("WORLD_SIZE")
    path = folder / f"{name}.times{rank}.npy"
    np.save(path.with_suffix(".part.npy"), measured(captured, module, inputs))
    path.with_suffix(".part.npy").rename(path)
    os.environ["WORLD_SIZE"] = count
    return module, inputs, captured


def _steps(step: Any, inputs: Any) -> list[float]:
    """ms of each; all processes come to the same number of them, since all know the slowest's times."""
    times: list[float] = []
    for _ in range(WARM):
        _slowest(step, inputs)
    while len(times) < LEAST_STEPS or (len(times) < MOST_STEPS and sum(times) < STEPS_MS):
        times.append(_slowest(step, inputs))
    return times


def _pin(rank: int, devices: int) -> None:
    """A core to compute, and where there are enough a second one for the wire, as devices have copy engines."""
    free = sorted(os.sched_getaffinity(0))
    each = 2 if len(free) > 2 * devices else 1
    os.sched_setaffinity(0, {free[(each * rank + extra) % len(free)] for extra in range(each)})


def _slowest(step: Any, inputs: Any) -> float:
    """ms of one step until the last process has ended it."""
    args, kwargs = split(inputs)
    torch.distributed.barrier()
    begun = time.perf_counter()
    step(*args, **kwargs)
    took = torch.tensor([(time.perf_counter() - begun) * 1e3], dtype=torch.float64)
    torch.distributed.all_reduce(took, torch.distributed.ReduceOp.MAX)
    return float(took)


def _write(folder: Path, rows: list[dict[str, Any]]) -> None:
    with (folder / "agreement.csv").open("w", newline="") as file:
        writer = csv.DictWriter(file, list(rows[0]))
        writer.writeheader()
        writer.writerows(rows)


# What came of it


def summary(folder: Path) -> dict[str, Any]:
    from scipy.stats import spearmanr

    with (folder / "agreement.csv").open() as file:
        rows = [{**row, "x": float(row["modelled_ms"]), "y": float(row["measured_ms"])} for row in csv.DictReader(file)]
    found: dict[str, Any] = {"plans": len(rows), "models": {}}
    right = pairs = 0
    for name in dict.fromkeys(row["model"] for row in rows):
        of = [row for row in rows if row["model"] == name]
        x, y = [row["x"] for row in of], [row["y"] for row in of]
        far = [(i, j) for i, j in combinations(range(len(of)), 2) if abs(x[i] - x[j]) > 0.05 * min(x[i], x[j])]
        good = sum((x[i] - x[j]) * (y[i] - y[j]) > 0 for i, j in far)
        right, pairs = right + good, pairs + len(far)
        ratio = statistics.median(b / a for a, b in zip(x, y, strict=True))
        found["models"][name] = {
            "plans": len(of),
            "spearman": round(float(spearmanr(x, y).statistic), 4),
            "pairs_right": round(good / max(1, len(far)), 4),
            "measured_over_modelled": round(ratio, 3),
        }
    found["spearman_least"] = min((m["spearman"] for m in found["models"].values()), default=None)
    found["pairs"], found["pairs_right"] = pairs, round(right / max(1, pairs), 4)
    (folder / "agreement.json").write_text(json.dumps(found, indent=1))
    picture(folder, rows)
    return found


def picture(folder: Path, rows: list[dict[str, Any]]) -> None:
    try:
        from matplotlib import pyplot
    except ModuleNotFoundError:
        say("no matplotlib: no picture")
        return
    figure, axes = pyplot.subplots(figsize=(6, 6))
    for name in dict.fromkeys(row["model"] for row in rows):
        of = [row for row in rows if row["model"] == name]
        axes.scatter([row["x"] for row in of], [row["y"] for row in of], s=18, alpha=0.8, label=name)
    ends = [min(row["x"] for row in rows), max(row["y"] for row in rows)]
    axes.plot(ends, ends, color="grey", linewidth=0.8)
    axes.set(xscale="log", yscale="log", xlabel="modelled step, ms", ylabel="measured step, ms")
    axes.legend(frameon=False)
    figure.tight_layout()
    figure.savefig(folder / "agreement.png", dpi=110)


def main() -> None:
    options = argparse.ArgumentParser()
    options.add_argument("folder", type=Path)
    options.add_argument("--devices", type=int, default=4)
    options.add_argument("--plans", type=int, default=20)
    options.add_argument("--seconds", type=float, default=220)
    options.add_argument("--only", default=",".join(MODELS))
    options.add_argument("--methods", default="one-device,expert,heft,etf,placement")
    options.add_argument("--end", type=float, default=0.0)
    given = options.parse_args()
    given.folder.mkdir(parents=True, exist_ok=True)
    names = given.only.split(",")
    if given.end:
        work(given.folder, given.devices, names, given.end)
        return
    end = time.time() + given.seconds - 10
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = str(free.getsockname()[1])
    env = {**os.environ, "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port, "WORLD_SIZE": str(given.devices)}
    command = [sys.executable, *sys.argv, "--end", str(end)]
    started = [
        subprocess.Popen(command, env={**env, "RANK": str(rank), "OMP_NUM_THREADS": "1"})
        for rank in range(given.devices)
    ]
    cores = sorted(os.sched_getaffinity(0))
    os.sched_setaffinity(0, set(cores[2 * given.devices :]) or set(cores))
    torch.set_num_threads(1)
    try:
        for name in names:
            prepare(name, given.folder, given.devices, given.plans, given.methods.split(","))
        for one in started:
            one.wait(timeout=max(10.0, end + 60 - time.time()))
    finally:
        for one in started:
            one.kill()
    say(json.dumps(summary(given.folder)))


if __name__ == "__main__":
    main()
