"""Plans over several processes with a GPU: one for the GPU and one for the CPU, and two that share a GPU by NCCL.

    PYTHONPATH=src:benchmarks python3 benchmarks/processes_gpu.py FOLDER [--rehearse]

Each case is `loadmaster run --verify` in every process, as torchrun would start it, of a plan whose pieces are thrown
about two devices, so that tensors go both ways many times. NCCL refuses two processes on one GPU of one machine; it
knows a machine by NCCL_HOSTID, and with two names the messages go over its network transport. Writes processes.json;
--rehearse takes the CPU for every device, so that all but CUDA is tried where there is none.
"""

from __future__ import annotations

import argparse
import json
import os
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from running_gpu import language

from loadmaster.cost import price
from loadmaster.files import save_plan
from loadmaster.importers.torch.export import capture_step
from loadmaster.plans import Plan

PIECES = 12
SECONDS = 100.0  # for one case


def small() -> tuple[torch.nn.Module, Any]:
    """For `loadmaster run processes_gpu:small`."""
    return language(4, 256, 2, 64)


def plan_of(folder: Path, cluster: str, training: bool) -> Path:
    """Pieces of the program thrown about two devices."""
    torch.manual_seed(0)
    module, inputs = small()
    problem = price(capture_step(module, inputs, training=training).graph, cluster)
    rng = np.random.default_rng(0)
    cuts = np.sort(rng.choice(problem.num_ops, PIECES - 1, replace=False))
    device = rng.integers(0, 2, PIECES)[np.searchsorted(cuts, np.arange(problem.num_ops), side="right")]
    for group in set(problem.graph.colocate.tolist()) - {-1}:
        members = np.flatnonzero(problem.graph.colocate == group)
        device[members] = device[members[0]]
    path = folder / f"{cluster}-{'train' if training else 'infer'}.json"
    save_plan(Plan.of(problem, device), problem, path)
    return path


def in_processes(plan: Path, devices: Sequence[str] | None, own: Callable[[int], dict[str, str]]) -> dict[str, Any]:
    """`loadmaster run` in two processes, and what the first printed. `own`: what else a process finds in its
    environment."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = str(free.getsockname()[1])
    shared = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port, "WORLD_SIZE": "2", "LOCAL_WORLD_SIZE": "2"}
    command = [sys.executable, "-m", "loadmaster", "run", "processes_gpu:small", "--plan", str(plan), "--verify"]
    command += ["--json", "--no-compile", *(["--devices", ",".join(devices)] if devices else [])]
    begun = time.monotonic()
    started = [
        subprocess.Popen(
            command,
            env={**os.environ, **shared, "RANK": str(rank), "LOCAL_RANK": str(rank), **own(rank)},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        for rank in range(2)
    ]
    try:
        said = [one.communicate(timeout=SECONDS)[0] for one in started]
    except subprocess.TimeoutExpired:
        return {"failed": f"not done after {SECONDS:g} s"}
    finally:
        for one in started:
            one.kill()
    if any(one.returncode for one in started):
        return {"failed": [text[-1500:] for text in said]}
    printed = json.loads(said[0][said[0].index("{") : said[0].rindex("}") + 1])
    kept = ("mode", "torch_devices", "ops", "measured_ns", "verification", "notes")
    return {**{key: printed[key] for key in kept}, "seconds": round(time.monotonic() - begun, 1)}


def alone(folder: Path) -> dict[str, Any]:
    """A world of one rank: NCCL itself, and a tensor through it."""
    import torch.distributed as dist

    from loadmaster.runtime.processes import share

    os.environ.update({"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "29531", "RANK": "0", "WORLD_SIZE": "1"})
    dist.init_process_group("nccl", device_id=torch.device("cuda:0"))
    given = torch.randn(1000, device="cuda")
    sent = share(given, 0)
    dist.all_reduce(sent)
    torch.cuda.synchronize()
    dist.destroy_process_group()
    return {"nccl": ".".join(map(str, torch.cuda.nccl.version())), "equal": bool(torch.equal(sent, given))}


def main() -> None:
    options = argparse.ArgumentParser()
    options.add_argument("folder", type=Path)
    options.add_argument("--rehearse", action="store_true", help="CPUs alone")
    given = options.parse_args()
    given.folder.mkdir(parents=True, exist_ok=True)
    apart = {"NCCL_SOCKET_IFNAME": "lo", "NCCL_IB_DISABLE": "1", "NCCL_P2P_DISABLE": "1"}
    found: dict[str, Any] = {}
    if not given.rehearse:
        found["NCCL, one process"] = alone(given.folder)
        print(found, flush=True)
    for training in (True, False):
        mode = "training" if training else "inference"
        plan = plan_of(given.folder, "1xh200+cpu", training)
        cases: dict[str, Any] = {f"GPU and CPU, {mode}": (plan, None, lambda rank: {})}
        plan = plan_of(given.folder, "2xh200", training)
        one_gpu = None if given.rehearse else ["cuda:0", "cuda:0"]
        cases[f"NCCL, two on one GPU, {mode}"] = (plan, one_gpu, lambda rank: {**apart, "NCCL_HOSTID": f"host{rank}"})
        for name, case in cases.items():
            found[name] = in_processes(*case)
            print(name, json.dumps(found[name], indent=1), flush=True)
            (given.folder / "processes.json").write_text(json.dumps(found, indent=1))


if __name__ == "__main__":
    main()
