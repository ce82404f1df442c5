"""warm_up: compiles all that a method can reach before the clock of a search runs, in two processes where it can.

The clock of a search stands still while code is compiled, but a process that compiles here and there as it goes cannot
share that work. So the method first runs on a few ops, on the same cluster and for the same objective: what it will
call is made, or loaded, and weights of policies are read. From the first thing on that is not in the cache a second
process makes what the method says it needs last (`compile_late`). Once per process, method and objective.
"""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import threading
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from loadmaster.catalog.specs import make_method, spec_of
from loadmaster.cluster import Cluster
from loadmaster.compiled import cache_folder, telling
from loadmaster.compiled.claims import can_claim
from loadmaster.cost import price
from loadmaster.errors import LoadmasterError, MissingExtra
from loadmaster.graph import Graph, GraphBuilder
from loadmaster.problem.bounds import lower_bound
from loadmaster.problem.objective import Objective
from loadmaster.search.budget import Budget
from loadmaster.search.search import Method, Search
from loadmaster.simulator import cores, settle, simulate

_WARM: set[tuple[str, bool, str]] = set()


def warm_up(method: Method, cluster: Cluster, objective: Objective | str) -> None:
    """Runs the method on a few ops under both kinds of budget, once in a process: compiled loops are made or loaded,
    and weights read, before the clock of a search runs. What goes wrong there is left for the real problem to show,
    except for a package that is missing."""
    key = (repr(method), len(cluster.devices) > 1, str(objective))
    if key in _WARM:
        return
    small = price(_few_ops(), cluster, objective=objective)
    with _helped(method, str(objective)):
        early = getattr(method, "compile_early", None)
        for budget in (Budget(None, 200), Budget(1.0, 200)):
            try:
                if early is not None and budget.seconds is None:
                    early(Search(small, budget))
                plan = method.optimize(Search(small, budget))
                line = simulate(small, settle(small, plan, simulate(small, plan)))
                lower_bound(small, fusing=plan.fuses, fitting=line.over_bytes == 0)
            except MissingExtra:
                raise
            except Exception:
                return
    _WARM.add(key)


# The second process


@contextmanager
def _helped(method: Any, objective: str) -> Iterator[None]:
    """Within the block, from the first thing on that has to be compiled, a second process compiles what the method
    says that it will need later: it is put into the cache, where this one finds it. Nothing depends on that process: if
    it ends too soon, this one compiles all that is missing."""
    started: list[subprocess.Popen[bytes]] = []

    def start() -> None:
        if not started:
            with contextlib.suppress(OSError, LoadmasterError):
                started.append(_start(spec_of(method), objective))

    two = hasattr(method, "compile_late") and cores() > 1 and _usable_cores() > 1
    try:
        with telling(start) if two and can_claim(cache_folder()) else contextlib.nullcontext():
            yield
    finally:
        for process in started:
            process.kill()
            process.communicate()


def _usable_cores() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def _start(*given: str) -> subprocess.Popen[bytes]:
    """A fresh process, never a copy of this one, which may have threads. It ends when its input does."""
    code = f"import sys; sys.path[:] = {sys.path!r}; from {__name__} import compile_late; compile_late{given!r}"
    nothing = subprocess.DEVNULL
    return subprocess.Popen([sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=nothing, stderr=nothing)


def compile_late(spec: str, objective: str) -> None:
    """What the second process does. Where it cannot write, it is of no use."""
    threading.Thread(target=_end_with_parent, daemon=True).start()
    warnings.simplefilter("error")
    method: Any = make_method(spec)
    small = price(_few_ops(), Cluster.preset("2xp100-pcie"), objective=objective)
    method.compile_late(Search(small, Budget(None, 200)))


def _end_with_parent() -> None:
    sys.stdin.buffer.read()
    os._exit(1)


def _few_ops() -> Graph:
    """Layers of three ops, each of which reads two of the layer before and a weight of its own."""
    build = GraphBuilder("warming up")
    layer = [build.tensor(4096, "input") for _ in range(3)]
    for depth in range(5):
        made = [build.tensor(4096, "output" if depth == 4 else "activation") for _ in range(3)]
        for i, out in enumerate(made):
            reads = [layer[i], layer[(i + 1) % 3], build.tensor(1 << 14, "weight")]
            build.op(f"op{depth}.{i}", "add" if i else "matmul", reads, [out], flops=1 << 20)
        layer = made
    return build.build()
