"""What devices hold while the loop runs (rules 7 to 9): bytes come with the start of an op or of a transfer and go when
nobody needs them any more.

Each function becomes machine code inside the loop (`heaps.part`).
"""

from __future__ import annotations

import numpy as np

from loadmaster.graph.columns import Whole
from loadmaster.simulator.heaps import part
from loadmaster.simulator.state import MADE, Ledger, Step


@part
def hold(ledger: Ledger, device: Whole, nbytes: Whole) -> bool:
    """The device holds more; False where that passes the most it may."""
    held = ledger.held[device] + nbytes
    ledger.held[device] = held
    if held <= ledger.peak[device]:
        return True
    ledger.peak[device] = held
    return held <= ledger.most_bytes  # type: ignore[no-any-return]


@part
def needed_by(step: Step, op: Whole) -> Whole:
    """What a device takes when an op starts: its workspace, and what it makes that has bytes of its own."""
    layout = step.layout
    nbytes = layout.workspace[op]
    for make in range(layout.make_start[op], layout.make_start[op + 1]):
        if layout.base[layout.makes[make]] < 0:
            nbytes += layout.nbytes[layout.makes[make]]
    return nbytes  # type: ignore[no-any-return]


@part
def let_go(step: Step, ledger: Ledger, tensor: Whole, device: Whole) -> None:
    """One use of the tensor on the device less; when none is left it is freed, and what it kept alive there."""
    layout = step.layout
    while True:
        slot = tensor << layout.shift | device
        ledger.uses[slot] -= 1
        if ledger.uses[slot] > 0:
            break
        if layout.base[tensor] < 0 or step.place[layout.maker[tensor]] != device:
            ledger.held[device] -= layout.nbytes[tensor]
            break
        tensor = np.int64(layout.base[tensor])
        if layout.origin[tensor] != MADE:
            break


@part
def let_go_after(step: Step, ledger: Ledger, op: Whole, device: Whole) -> None:
    """What an op no longer needs when it has ended and announced what it made."""
    layout = step.layout
    ledger.held[device] -= layout.workspace[op]
    # What is written in place comes before what it overwrites, which it may keep alive.
    for make in range(layout.make_start[op + 1] - 1, layout.make_start[op] - 1, -1):
        tensor = np.int64(layout.makes[make])
        under = np.int64(layout.base[tensor])
        if ledger.uses[tensor << layout.shift | device] == 0:
            if under < 0:
                ledger.held[device] -= layout.nbytes[tensor]
        elif under >= 0 and layout.origin[under] == MADE:
            ledger.uses[under << layout.shift | device] += 1
    for read in range(layout.read_start[op], layout.read_start[op + 1]):
        tensor = np.int64(layout.reads[read])
        # What is updated in place stays at home, with its updater; elsewhere it is a copy like any other (rule 7).
        if layout.origin[tensor] == MADE or step.place[layout.maker[tensor]] != device:
            let_go(step, ledger, tensor, device)


@part
def settle_residents(step: Step, ledger: Ledger) -> None:
    """What is there before the step: what no op updates, on every device that reads it; what is updated, at home."""
    layout, place, seen = step.layout, step.place, step.scratch.far
    for device in range(layout.devices):
        ledger.held[device] = 0
        seen[device] = -1
    for tensor in layout.fixed:
        for at in range(layout.reader_start[tensor], layout.reader_start[tensor + 1]):
            device = place[layout.readers[at]]
            if seen[device] != tensor:
                seen[device] = tensor
                ledger.held[device] += layout.nbytes[tensor]
    for tensor in layout.updated:
        ledger.held[place[layout.maker[tensor]]] += layout.nbytes[tensor]
    for device in range(layout.devices):
        ledger.peak[device] = ledger.held[device]
