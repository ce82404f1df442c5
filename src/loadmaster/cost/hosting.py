"""What the host needs to ask for each op (rule 14), by how a step is run.

In units of a bare call, which asks for a kernel that adds a number to a small tensor. An op of a library takes several:
it looks for a kernel, sets up descriptors, asks for memory. Eager execution has Python and autograd beside.
"""

from __future__ import annotations

import re
from dataclasses import replace
from typing import NamedTuple

import numpy as np

from loadmaster.cluster import Cluster
from loadmaster.cost.features import group_of
from loadmaster.graph import Graph
from loadmaster.graph.columns import Ints, ints
from loadmaster.graph.kinds import bare_name

# Bare calls of an op that was asked for alone, the median on the machine of docs/fidelity.md; 1 for all others.
CALLS = {"product": 1.75, "convolution": 2.6, "attention": 2.6, "attention backward": 2.6}
NAMED = ((re.compile(r"batch_norm"), 3.0), (re.compile(r"layer_norm"), 1.8), (re.compile(r"^_safe_softmax$"), 4.0))


class BareCalls(NamedTuple):
    """Bare calls for each of an op's own, for the op itself, and for each view that is made before it.

    Attributes:
        call: for each bare call that the op itself is (`calls_of`).
        op: for the op, whatever it is.
        view: for each view that is made before it.
    """

    call: float
    op: float
    view: float


# Fitted to the models of docs/fidelity.md that may be fitted to, by benchmarks/fidelity_host.py.
FORWARD = BareCalls(1.86, 0.58, 0.92)  # of a training step
BACKWARD = BareCalls(0.0, 1.01, 1.53)  # autograd's own thread, without Python
INFERENCE = BareCalls(1.86, 0.0, 0.68)
COMPILED = BareCalls(0.0, 2.57, 0.0)
PLANNED = BareCalls(0.0, 1.0, 0.28)  # the calls of a plan, one after the other; all updates are one of them
# For each weight: its gradient is handed over, and the optimizer looks at it; where compiled, its guards are checked.
UPDATED = {"eager": 1.68, "compiled": 6.35}
ENTERED = {"eager": 0.0, "compiled": 21.05}  # before the first op
# A step strays over more memory than a bare call in a loop: a host that others slow down slows it down more.
USUAL_NS, STRAIN = 10_000, 1.21
# A bare call of a host that nobody timed: the median of those of docs/fidelity.md, and how far four of five are off.
ASSUMED_NS, UNSURE = 12_000, 1.5
DEVICE_LAUNCH_NS = 1_000  # of a kernel that waits in a queue


def hosted(cluster: Cluster, mode: str | None) -> Cluster:
    """The cluster run in a mode; where it has GPUs and says nothing of its host, with a usual one, compiled. A launch
    is then what the device takes for it."""
    mode = None if mode is None else mode.removeprefix("cuda-")
    if cluster.dispatch_ns or not cluster.has_gpu:
        return cluster if mode is None else cluster.with_mode(mode)
    asked = {way: plain_ns(way, ASSUMED_NS) for way in ("eager", "planned", "compiled")} | {"graphs": 0}
    devices = tuple(replace(device, launch_ns=min(device.launch_ns, DEVICE_LAUNCH_NS)) for device in cluster.devices)
    return replace(cluster, devices=devices, mode=mode or "compiled", dispatch_ns=asked)


def asked_ns(graph: Graph, views: Ints, mode: str, plain_ns: int) -> Ints:
    """[ops] where a plain op of the mode takes `plain_ns`; so many `views` are made before each op."""
    update = np.array([kind.startswith("optim.") for kind in graph.kind])
    calls = np.array([calls_of(kind) for kind in graph.kind])
    shares = halves(graph) if mode in UPDATED else np.ones(graph.num_ops)
    bare_ns = plain_ns / plain_calls(mode)
    asked = np.zeros(graph.num_ops)
    for way, some in _ways(graph, mode, bool(update.any())):
        asked[some] = (way.call * calls + way.op)[some] * shares[some] + way.view * views[some]
    asked[update] = UPDATED.get(mode, 0.0)
    asked[0] += ENTERED.get(mode, 0.0)
    return ints(np.rint(asked * bare_ns))


def plain_calls(mode: str) -> float:
    """Bare calls of a plain op in that mode: of a training step where it is eager."""
    way = {"eager": FORWARD, "compiled": COMPILED}.get(mode, PLANNED)
    return way.call + way.op


def plain_ns(mode: str, bare_ns: float) -> int:
    """What a plain op of the mode takes a host that needs that for a bare call."""
    strain = (bare_ns / USUAL_NS) ** (STRAIN - 1) if mode in UPDATED else 1.0
    return round(plain_calls(mode) * bare_ns * strain)


def calls_of(kind: str) -> float:
    """Bare calls of the host that an op of that kind takes, by its group, else by its name, else one."""
    bare = bare_name(kind)
    named = next((calls for pattern, calls in NAMED if pattern.search(bare)), 1.0)
    return CALLS.get(group_of(kind), named)


def _ways(graph: Graph, mode: str, training: bool) -> list[tuple[BareCalls, np.ndarray]]:
    every = np.arange(graph.num_ops)
    if mode != "eager":
        return [(COMPILED if mode == "compiled" else PLANNED, every)]
    if not training:
        return [(INFERENCE, every)]
    back = next((op for op, kind in enumerate(graph.kind) if "backward" in kind), graph.num_ops)
    return [(FORWARD, every[:back]), (BACKWARD, every[back:])]


def halves(graph: Graph) -> np.ndarray:
    """[ops] the share of a call that each is: torch has both halves of a convolution's backward op in one."""
    return np.array([0.5 if bare_name(kind) == "convolution_backward" else 1.0 for kind in graph.kind])
