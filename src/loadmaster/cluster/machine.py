"""This machine as a cluster, by data sheets: the GPUs that nvidia-smi names, and the CPU.

Nothing is measured and torch is not needed; `loadmaster measure` and `--on here` measure. A GPU of a kind that has no
preset counts as an RTX 4090 with the memory it has. The CPU has the rates of the preset `cpu`, by its share of cores.
"""

from __future__ import annotations

import os
import re
import subprocess
from collections import Counter
from collections.abc import Iterable
from dataclasses import replace

from loadmaster.cluster.cluster import Cluster, Device
from loadmaster.cluster.presets import THIS_MACHINE, preset

_CORES = 28  # of the preset `cpu`
# What names of nvidia-smi hold, all words of a row, and the preset; the first row that matches.
_KINDS = (
    ("h200", "h200"),
    ("h100 pcie", "h100-pcie"),
    ("h100", "h100-nvswitch"),
    ("b200", "b200"),
    ("a100 pcie 40gb", "a100-40-pcie"),
    ("a100 pcie", "a100-80-pcie"),
    ("a100 40gb", "a100-40-nvlink"),
    ("a100", "a100-nvlink"),
    ("v100", "v100-nvlink"),
    ("p100", "p100-pcie"),
    ("k80", "k80"),
    ("l40s", "l40s"),
    ("l4", "l4"),
    ("a10g", "a10g"),
    ("rtx 3090", "rtx-3090"),
    ("rtx 4090", "rtx-4090"),
    ("rtx 5090", "rtx-5090"),
)


def this_machine() -> Cluster:
    """The cluster `this-machine`."""
    found = preset("+".join([*gpu_parts(_nvidia_smi()), "cpu"]))
    devices = [_sized(device) if device.kind == "cpu" else device for device in found.devices]
    return replace(found, name=THIS_MACHINE, devices=tuple(devices))


def gpu_parts(lines: Iterable[str]) -> list[str]:
    """Parts of a preset for lines of nvidia-smi, name and MiB.

    >>> gpu_parts(["NVIDIA A100-SXM4-80GB, 81920", "NVIDIA A100-SXM4-80GB, 81920", "NVIDIA T4, 15360"])
    ['2xa100-nvlink:81920MiB', '1x15360MiB']
    """
    parts = Counter[str]()
    for line in lines:
        name, _, mib = line.rpartition(",")
        words = set(re.split(r"[^a-z0-9]+", name.lower()))
        kind = next((kind for held, kind in _KINDS if words.issuperset(held.split())), "")
        size = f"{mib.strip()}MiB"
        parts[f"{kind}:{size}" if kind else size] += 1
    return [f"{count}x{part}" for part, count in parts.items()]


def _nvidia_smi() -> list[str]:
    """A line for each GPU; none where there is no such program, or no GPU that it knows."""
    asked = ["nvidia-smi", "--query-gpu=name,memory.total", "--format=csv,noheader,nounits"]
    try:
        done = subprocess.run(asked, capture_output=True, text=True, timeout=20, check=True)
    except (OSError, subprocess.SubprocessError):
        return []
    return [line for line in done.stdout.splitlines() if re.fullmatch(r".+,\s*\d+\s*", line)]


def _sized(cpu: Device) -> Device:
    """The CPU with the cores and the memory that this process may use."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    share = cores / _CORES
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") if hasattr(os, "sysconf") else cpu.memory_bytes
    return replace(
        cpu,
        memory_bytes=memory,
        flops_per_s={dtype: cpu.rate(dtype) * share for dtype in ("default", "float64")},
        bytes_per_s=cpu.bytes_per_s * min(share, 1.0),
    )
