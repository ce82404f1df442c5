"""Measuring: this machine, and each distinct op of a captured model alone; kept so that nothing is measured twice.

Results lie in `$LOADMASTER_CACHE`, or where the platform keeps caches, under a digest of hardware and versions. What
was measured while others used the machine is marked, and measured again when it is quiet.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import replace

import torch

from loadmaster.cluster import Cluster, Device
from loadmaster.cost import Learned, Measured, OpTime, fit
from loadmaster.cost.measured import samples_of
from loadmaster.graph import Graph
from loadmaster.importers.torch.signature import UPDATED_TOGETHER, call_of
from loadmaster.runtime.kept import Kept
from loadmaster.runtime.machine import kind_of, measure_machine, torch_names
from loadmaster.runtime.quiet import Reference, was_busy
from loadmaster.runtime.timing import DeviceClock, Timing

Say = Callable[[str], None]
Times = dict[str, OpTime]  # by signature

PATIENCE_S = 5.0  # that a busy machine is given to become quiet
PASSES = 3  # over ops that were timed while it was busy
WIDE = 0.25  # of the median between the quartiles of an op: worth a second look
BUSY_BASIS = "measured on a busy machine"


def here(*, fresh: bool = False, say: Say = lambda text: None) -> Cluster:
    """The cluster of this machine: measured once, then read from the cache while hardware and versions stay.

    One that was measured on a busy machine says so (`basis`), and is measured again once the machine is quiet.
    """
    kept = Kept.here()
    if fresh:
        kept.forget_references()
    known = None if fresh else kept.cluster()
    if known is None or (kept.machine_was_busy() and _is_quiet(kept, 0.0)):
        known = _measured(kept, say)
        if kept.machine_was_busy() and _is_quiet(kept, PATIENCE_S):
            say("others used this machine and it is quiet now: measuring again")
            known = _measured(kept, say)
    if not kept.machine_was_busy():
        return known
    say("others used this machine while it was measured: that is done again when it is quiet")
    return replace(known, basis=BUSY_BASIS)


def _measured(kept: Kept, say: Say) -> Cluster:
    with torch.random.fork_rng():
        machine = measure_machine(say, kept.quietest_ns())
    kept.keep_quietest(machine.quietest_ns)
    kept.keep_machine(machine.cluster, machine.learned, machine.reference_ns)
    return machine.cluster


def _is_quiet(kept: Kept, within_s: float) -> bool:
    """Whether every device is quiet now, or soon."""
    quietest, until = kept.quietest_ns(), time.monotonic() + within_s
    references = {kind_of(name): Reference(name, quietest.get(kind_of(name), 0)) for name in torch_names()}
    quiet = all(reference.is_quiet(until - time.monotonic()) for reference in references.values())
    kept.keep_quietest({kind: reference.quietest_ns for kind, reference in references.items()})
    return quiet


def known_costs() -> Measured:
    """All that has been measured on this machine so far."""
    return Kept.here().costs()


def keep_costs(costs: Measured) -> None:
    """What is known of this machine from now on."""
    Kept.here().keep_costs(costs)


def reference_of(name: str) -> Reference:
    """To see how busy a device is now, beside the quietest it was."""
    return Reference(name, Kept.here().quietest_ns().get(kind_of(name), 0))


def keep_reference(reference: Reference) -> None:
    """The quietest that it was, from now on."""
    Kept.here().keep_quietest({kind_of(reference.device): reference.quietest_ns})


def busy_ops(times: Mapping[str, OpTime], kind: str) -> set[str]:
    """Signatures of ops that were timed on a busy machine, as far as is known today."""
    quietest = Kept.here().quietest_ns().get(kind, 0)
    return {signature for signature, op in times.items() if was_busy(op.reference_ns, quietest)}


def measure_ops(graph: Graph, cluster: Cluster, *, seconds: float = 120.0, say: Say = lambda text: None) -> Measured:
    """Times each distinct op of the graph that has no time yet, or one from a busy machine, on each kind of device of
    this machine, and keeps them.

    An op that a device cannot run, or has no memory for, is left to the network, scaled to what was measured there.

    Args:
        graph: captured here: ops are told apart by their signatures.
        cluster: of this machine (`here`).
        seconds: after which it stops; the network prices what is left.
        say: is told what goes on.

    Returns:
        Measured: a cost model for `price`, of all that is known of this machine.
    """
    kept, until = Kept.here(), time.monotonic() + seconds
    costs = kept.costs()
    times = {kind: dict(table) for kind, table in costs.times.items()}
    fallback: dict[str, Learned] = dict(costs.fallback)
    names = torch_names()
    try:
        for device in {device.kind: device for device in cluster.devices}.values():
            name = next((n for n, d in zip(names, cluster.devices, strict=False) if d.kind == device.kind), None)
            if name is not None:
                table = times.setdefault(device.kind, {})
                _measure_on(name, graph, table, until, say)
                if table:
                    fallback[device.kind] = _fitted(table, device)
    finally:  # also where Ctrl-C ends it: what was timed is kept
        measured = Measured(times, fallback)
        kept.keep_costs(measured)
    return measured


def _measure_on(name: str, graph: Graph, table: Times, until: float, say: Say) -> None:
    reference = reference_of(name)
    try:
        with torch.random.fork_rng():  # arguments are drawn
            _Session(name, graph, table, reference, until, say).run()
    finally:
        keep_reference(reference)


def _fitted(table: Times, device: Device) -> Learned:
    """The network scaled to what was timed on a quiet machine, or at all."""
    busy = busy_ops(table, device.kind)
    return fit(samples_of({signature: op for signature, op in table.items() if signature not in busy} or table), device)


class _Session:
    """Times the ops of one graph on one device into its table, each beside a look at the reference."""

    def __init__(self, name: str, graph: Graph, table: Times, reference: Reference, until: float, say: Say) -> None:
        self.name, self.graph, self.table, self.reference = name, graph, table, reference
        self.until, self.say = until, say
        self.op = {graph.signature[op]: number for number, op in enumerate(graph.op_name) if op in graph.signature}

    def run(self) -> None:
        new = [signature for signature in self.op if signature not in self.table]
        if not new and not self._busy():
            return
        clock = DeviceClock(self.name)
        self._time_all(clock, new)
        self._again(clock, {signature for signature in new if _is_wide(self.table.get(signature))})
        if left := self._busy():
            self.say(
                f"{self.name}: others use this machine; {len(left)} of {len(self.op)} ops were timed meanwhile "
                "and are timed again when it is quiet"
            )

    def _again(self, clock: DeviceClock, wide: set[str]) -> None:
        """Those timed on a busy machine as soon as it is quiet, and once those whose repeats differed."""
        late = min(self.until, time.monotonic() + PATIENCE_S)
        for _ in range(PASSES):
            again = self._busy() | wide
            if not again or not self.reference.is_quiet(late - time.monotonic()):
                return
            self._time_all(clock, [signature for signature in self.op if signature in again])
            wide = set()

    def _busy(self) -> set[str]:
        quietest = self.reference.quietest_ns
        return {s for s in self.op if s in self.table and was_busy(self.table[s].reference_ns, quietest)}

    def _time_all(self, clock: DeviceClock, signatures: list[str]) -> None:
        before = self.reference.look() if signatures else 0
        for done, signature in enumerate(signatures):
            if time.monotonic() > self.until:
                left = f"{len(signatures) - done} of {len(signatures)} ops"
                self.say(f"{self.name}: out of time, {left} are left to the network or their earlier times")
                return
            if done % 50 == 0:
                self.say(f"{self.name}: op {done + 1} of {len(signatures)}")
            timing = _time(clock, signature)
            after = self.reference.look()
            if timing is not None:
                self._keep(signature, timing, max(before, after))
            before = after

    def _keep(self, signature: str, timing: Timing, reference_ns: int) -> None:
        """Keeps the new time, but for one of a quieter moment."""
        known, graph, number = self.table.get(signature), self.graph, self.op[signature]
        quietest = self.reference.quietest_ns
        if known is not None and was_busy(reference_ns, quietest) and known.reference_ns < reference_ns:
            return
        facts = graph.kind[number], graph.dtype[number], int(graph.flops[number]), int(graph.bytes_moved[number])
        self.table[signature] = OpTime(*facts, **vars(timing), reference_ns=reference_ns)


def _is_wide(op: OpTime | None) -> bool:
    return op is not None and op.high_ns - op.low_ns > WIDE * op.hot_ns


def _time(clock: DeviceClock, signature: str) -> Timing | None:
    """None where the device cannot run it or has no room for it."""
    try:
        with torch.no_grad():
            timing = clock.time(call_of(signature, clock.device))
    except (RuntimeError, NotImplementedError, MemoryError, TypeError, AttributeError, IndexError):
        return None
    if not signature.startswith('["optim.'):
        return timing
    whole = ("hot_ns", "low_ns", "high_ns", "cold_ns", "host_ns")
    return replace(timing, **{key: round(getattr(timing, key) / UPDATED_TOGETHER) for key in whole})
