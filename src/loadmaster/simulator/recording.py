"""What a recorded run writes down: when ops and sends start and end, in which order, and the curve of each device's
memory.

Each function becomes machine code inside the loop (`heaps.part`).
"""

from __future__ import annotations

from loadmaster.graph.columns import Whole
from loadmaster.simulator.heaps import part
from loadmaster.simulator.state import POINTS, SENDS, TURNS, Ledger, Step


@part
def note_op(step: Step, ledger: Ledger, op: Whole, start: Whole, end: Whole) -> None:
    """An op starts; without a host that is when it is dispatched."""
    if ledger.recording:
        ledger.record.start_ns[op] = start
        ledger.record.end_ns[op] = end
        if not step.hosted:
            note_turn(step, ledger, op)


@part
def note_turn(step: Step, ledger: Ledger, op: Whole) -> None:
    """An op is dispatched next."""
    if ledger.recording:
        ledger.record.turn[op] = step.scratch.tally[TURNS]
        step.scratch.tally[TURNS] += 1


@part
def note_send(step: Step, ledger: Ledger, tensor: Whole, where: Whole, start: Whole, end: Whole) -> None:
    """A transfer starts."""
    if ledger.recording:
        record, index = ledger.record, step.scratch.tally[SENDS]
        record.send_key[index] = tensor * step.layout.devices + where
        record.send_start_ns[index] = start
        record.send_end_ns[index] = end
        step.scratch.tally[SENDS] += 1


@part
def note_memory(step: Step, ledger: Ledger, now: Whole, first: bool) -> None:
    """A point of the curve of each device that holds another amount than at its last point."""
    if ledger.recording:
        record, before, tally = ledger.record, step.scratch.before, step.scratch.tally
        for device in range(step.layout.devices):
            if first or ledger.held[device] != before[device]:
                before[device] = ledger.held[device]
                record.curve_device[tally[POINTS]] = device
                record.curve_ns[tally[POINTS]] = now
                record.curve_bytes[tally[POINTS]] = before[device]
                tally[POINTS] += 1
