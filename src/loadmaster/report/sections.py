"""All of a report in words: sections of tables behind the four answers, which terminal and page both show.

Sections are data (titles, sentences, grids), so that every view shows the same ones.
"""

from __future__ import annotations

from collections.abc import Iterator

from loadmaster.report.added import Added
from loadmaster.report.answers import answer_lines, fullest
from loadmaster.report.explain import Report
from loadmaster.report.grids import Grid, Section, section_text, share_text, signed
from loadmaster.report.moves import MoveCost
from loadmaster.report.units import size_text, time_text, value_text


def in_words(found: Report, width: int | None = None) -> str:
    """The four answers, then every table, for a terminal so wide."""
    head = "\n".join(answer_lines(found, 100 if width is None else min(width, 100)))
    rest = [section_text(section, width) for section in sections(found)]
    return "\n\n".join([head, *rest]) + "\n"


def sections(found: Report) -> tuple[Section, ...]:
    """Tables behind the answers."""
    return tuple(_sections(found))


def _sections(found: Report) -> Iterator[Section]:
    yield _step(found)
    yield _memory(found)
    if len(found.devices) > 1:
        yield _placement(found)
    if found.what_ifs:
        yield _changed(found)
    if found.fusion.kernels:
        yield _fusion(found)
    if found.added.ops_again + found.added.stays + found.added.homes:
        yield Section("Recomputation and offload", tuple(_added(found.added)))
    if found.expense.money is not None or found.expense.energy_j is not None:
        yield _expense(found)
    if found.hardware:
        yield _elsewhere(found)


def _many(count: int, word: str, plural: str | None = None) -> str:
    return f"{count:,} {word if count == 1 else plural or word + 's'}"


def _step(found: Report) -> Section:
    path, step = found.path, found.verdict.step_ns
    ops = sum(1 for piece in path.pieces if piece.kind == "op")
    line = (
        f"The critical path is {_many(ops, 'kernel' if found.fusion.kernels else 'op')} and "
        f"{_many(len(path.pieces) - ops, 'transfer')}, one after the other: "
        f"{time_text(path.compute_ns)} computing and {time_text(path.transfer_ns)} sending."
    )
    times = ("compute_ns", "transfer_wait_ns", "idle_ns", "finished_ns")
    of_path = [
        (
            share.scope,
            f"{share.ops:,}",
            time_text(share.compute_ns),
            time_text(share.transfer_ns),
            share_text(share.compute_ns + share.transfer_ns, step),
        )
        for share in path.by_scope
    ]
    devices = [
        (
            row.device,
            f"{row.ops:,}",
            *(time_text(getattr(row, time)) for time in times),
            share_text(row.compute_ns, step),
        )
        for row in found.devices
    ]
    wires = [
        (
            wire.name,
            f"{wire.sends:,}",
            size_text(wire.sent_bytes),
            time_text(wire.busy_ns),
            time_text(wire.queue_ns),
            share_text(wire.busy_ns, step),
        )
        for wire in found.wires
    ]
    path_head = ("module", "ops", "compute", "transfers", "of the step")
    device_head = ("device", "ops", "computes", "waits: transfer", "waits: other", "finished", "busy")
    wire_head = ("link", "transfers", "bytes", "busy", "queues", "of the step")
    grids = [
        Grid("Critical path by module", path_head, tuple(of_path), frozenset(range(1, 5))),
        Grid("Devices", device_head, tuple(devices), frozenset(range(1, 7))),
        *([Grid("Links", wire_head, tuple(wires), frozenset(range(1, 6)))] if wires else []),
    ]
    return Section("Where the step goes", (line,), tuple(grids))


def _memory(found: Report) -> Section:
    rows = [
        (
            peak.device,
            size_text(peak.peak_bytes),
            share_text(peak.peak_bytes, peak.limit_bytes),
            time_text(peak.at_ns),
            peak.cause.name,
        )
        for peak in found.peaks
    ]
    most = found.peaks[fullest(found.peaks)]
    parts = tuple((part.scope, part.role, f"{part.tensors:,}", size_text(part.nbytes)) for part in most.parts)
    head, part_head = ("device", "peak", "of its memory", "at", "reached by"), ("module", "role", "tensors", "bytes")
    title = f"Alive on {most.device} at its peak"
    grids = (Grid("Peaks", head, tuple(rows), frozenset((1, 2, 3))), Grid(title, part_head, parts, frozenset((2, 3))))
    return Section("Where the memory goes", (), grids)


def _placement(found: Report) -> Section:
    tried = found.reasons
    line = f"Each group of ops was moved to each other device alone: {_many(tried.simulations, 'simulation')}."
    rows = tuple(
        (
            row.group,
            row.device,
            f"{row.ops:,}",
            time_text(row.compute_ns),
            row.moves[0].device if row.moves else "-",
            _change_text(found, row.moves[0]) if row.moves else "-",
            row.verdict,
        )
        for row in tried.rows
    )
    head = ("group", "on", "ops", "compute", "next best", "would cost", "verdict")
    return Section("Why each group is where it is", (line,), (Grid("Groups", head, rows, frozenset((2, 3, 5))),))


def _change_text(found: Report, move: MoveCost) -> str:
    """Of the goal, and of the bytes over the memory where a move changes those."""
    over = move.over_bytes - found.verdict.over_bytes
    change = signed(move.change, value_text(found.objective))
    return f"{signed(over, size_text)} over, {change}" if over else change


def _changed(found: Report) -> Section:
    rows = tuple(
        (
            row.change,
            time_text(row.step_ns),
            signed(-row.gain, value_text(found.objective)),
            share_text(row.gain, found.verdict.value),
        )
        for row in found.what_ifs
    )
    head = ("changed alone", "step", "change", "gain")
    grid = Grid("What if", head, rows, frozenset((1, 2, 3)))
    return Section("The same plan on other hardware", ("Decisions and order stay as they are.",), (grid,))


def _fusion(found: Report) -> Section:
    made = found.fusion
    launches = _many(made.launches_saved, "launch", "launches")
    line = (
        f"{_many(made.ops, 'op')} are fused into {_many(made.kernels, 'kernel')}. That saves {launches}, "
        f"{size_text(made.traffic_saved_bytes)} of memory traffic and {time_text(made.time_saved_ns)} of compute; "
        f"{size_text(made.memory_saved_bytes)} of tensors are never stored."
    )
    rows = tuple(
        (gain.name, gain.device, f"{gain.ops:,}", size_text(gain.traffic_saved_bytes), time_text(gain.time_saved_ns))
        for gain in made.largest
    )
    head = ("kernel", "on", "ops", "bytes saved", "time saved")
    return Section("Fusion", (line,), (Grid("Kernels that save most", head, rows, frozenset((2, 3, 4))),))


def _added(made: Added) -> Iterator[str]:
    if made.ops_again:
        inside = (
            f"{made.inside:,} of them inside kernels that read what they make" if made.inside else "none inside one"
        )
        took = time_text(made.again_ns)
        yield f"{_many(made.ops_again, 'op')} run again, {inside}; the kernels of the others take {took}."
        yield f"{size_text(made.again_bytes)} of tensors are not held meanwhile."
    if made.stays:
        wait, come = ("waits", "comes") if made.stays == 1 else ("wait", "come")
        yield f"{_many(made.stays, 'tensor')} {wait} on a host, {size_text(made.stay_bytes)}, and {come} back."
    if made.homes:
        back = f", {size_text(made.return_bytes)} go back updated" if made.return_bytes else ""
        yield (
            f"{_many(made.homes, 'weight, state or input', 'weights, states and inputs')} "
            f"{'lives' if made.homes == 1 else 'live'} elsewhere, "
            f"{size_text(made.home_bytes)}: {size_text(made.visit_bytes)} come in a step{back}."
        )


def _expense(found: Report) -> Section:
    cost, lines = found.expense, []
    if cost.money is not None:
        per_million = f"{cost.money * 1e6:,.2f} for a million steps"
        idle = share_text(cost.money_idle or 0.0, cost.money)
        lines.append(f"A step costs {cost.money:.3g} ({per_million}); {idle} of it pays for devices that wait.")
    if cost.energy_j is not None:
        lines.append(f"Computing takes {cost.energy_j:.3g} J a step; what devices draw while they wait is not counted.")
    return Section("Money and energy", tuple(lines))


def _elsewhere(found: Report) -> Section:
    base = found.hardware[0].step_ns
    rows = tuple(
        (
            row.cluster,
            f"{row.devices}",
            time_text(row.step_ns),
            f"{base / row.step_ns:.2f}x" if row.step_ns else "-",
            size_text(row.peak_bytes),
            "yes" if row.fits else f"no, {size_text(row.over_bytes)} over",
            "-" if row.money is None else f"{row.money:.3g}",
            "-" if row.energy_j is None else f"{row.energy_j:.3g} J",
            row.method,
        )
        for row in found.hardware
    )
    head = ("cluster", "devices", "step", "speed-up", "largest peak", "fits", "cost", "energy", "planned by")
    return Section("Other hardware", (), (Grid("The same model elsewhere", head, rows, frozenset((1, 2, 3, 4, 6, 7))),))
