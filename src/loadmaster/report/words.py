"""An explanation in words: sections of sentences and small tables, which terminal and page both show.

The one place where reports become English. Sections are data (titles, sentences, grids), so that every view shows the
same ones.
"""

from __future__ import annotations

from collections.abc import Callable

from loadmaster.report.explain import Explanation
from loadmaster.report.grids import Grid, Section, section_text, share_text, signed
from loadmaster.report.memory import Peak
from loadmaster.report.moves import Decision, MoveCost
from loadmaster.report.standing import standing_words
from loadmaster.report.units import size_text, time_text, value_text
from loadmaster.report.whatif import WhatIf


def sections(found: Explanation) -> tuple[Section, ...]:
    """The explanation as sections of sentences and tables; page, terminal and notebook show the same ones."""
    parts = [_headline(found), _step(found), _memory(found), _placement(found), _faster(found)]
    parts += [section(found) for section, wanted in _OPTIONAL if wanted(found)]
    return tuple(parts)


def in_words(found: Explanation) -> str:
    """Plain text, no wider than its longest table."""
    return "\n\n".join(section_text(section) for section in sections(found)) + "\n"


def _many(count: int, word: str, plural: str | None = None) -> str:
    return f"{count:,} {word if count == 1 else plural or word + 's'}"


def _headline(found: Explanation) -> Section:
    shown = value_text(found.objective)
    bound = standing_words(found, shown(found.lower_bound))
    took = time_text(found.step_ns)
    lines = [f"A step of {found.graph} on {found.cluster} takes {took}, planned by {found.method}."]
    if found.objective.sentence:
        lines.append(found.objective.sentence.format(value=shown(found.value)))
    lines.append(bound)
    if found.over_bytes:
        lines.append(f"It does not fit: {size_text(found.over_bytes)} over the memory of the devices.")
    return Section("In short", tuple(lines))


def _step(found: Explanation) -> Section:
    path, step = found.path, found.step_ns
    ops = sum(1 for piece in path.pieces if piece.kind == "op")
    lines = [
        f"The critical path is {_many(ops, 'kernel' if found.fusion.kernels else 'op')} and "
        f"{_many(len(path.pieces) - ops, 'transfer')}, one after the other from 0 to the end: "
        f"{time_text(path.compute_ns)} computing ({share_text(path.compute_ns, step)}) and "
        f"{time_text(path.transfer_ns)} sending ({share_text(path.transfer_ns, step)})."
    ]
    if path.queue_ns:
        lines.append(
            f"For {time_text(path.queue_ns)} of it ({share_text(path.queue_ns, step)}) the next piece was ready, "
            "and waited only because its device or its wire was taken."
        )
    lines.append(_busiest_link(found))
    return Section("Where the step goes", tuple(lines), (_path_grid(found), _device_grid(found), *_wire_grid(found)))


def _busiest_link(found: Explanation) -> str:
    if not found.wires:
        return "Nothing is sent between devices."
    wire = found.wires[0]
    queue = f"; transfers waited {time_text(wire.queue_ns)} for it, added up" if wire.queue_ns else ""
    return (
        f"The busiest link is {wire.name}: {_many(wire.sends, 'transfer')} of {size_text(wire.sent_bytes)} together, "
        f"busy {share_text(wire.busy_ns, found.step_ns)} of the step{queue}."
    )


def _path_grid(found: Explanation) -> Grid:
    rows = [
        (
            share.scope,
            f"{share.ops:,}",
            time_text(share.compute_ns),
            time_text(share.transfer_ns),
            share_text(share.compute_ns + share.transfer_ns, found.step_ns),
        )
        for share in found.path.by_scope
    ]
    head = ("module", "ops", "compute", "transfers", "of the step")
    return Grid("Critical path by module", head, tuple(rows), frozenset((1, 2, 3, 4)))


def _device_grid(found: Explanation) -> Grid:
    rows = [
        (
            row.device,
            f"{row.ops:,}",
            time_text(row.compute_ns),
            time_text(row.transfer_wait_ns),
            time_text(row.idle_ns),
            time_text(row.finished_ns),
            share_text(row.compute_ns, found.step_ns),
        )
        for row in found.devices
    ]
    head = ("device", "ops", "computes", "waits for a transfer", "waits for another", "has finished", "busy")
    return Grid("Devices", head, tuple(rows), frozenset(range(1, 7)))


def _wire_grid(found: Explanation) -> tuple[Grid, ...]:
    rows = [
        (
            wire.name,
            f"{wire.sends:,}",
            size_text(wire.sent_bytes),
            time_text(wire.busy_ns),
            time_text(wire.queue_ns),
            share_text(wire.busy_ns, found.step_ns),
        )
        for wire in found.wires
    ]
    head = ("link", "transfers", "bytes", "busy", "queues", "of the step")
    return (Grid("Links", head, tuple(rows), frozenset(range(1, 6))),) if rows else ()


def _memory(found: Explanation) -> Section:
    fullest = max(found.peaks, key=lambda peak: peak.peak_bytes / max(1, peak.limit_bytes))
    lines = [peak_sentence(fullest)]
    rows = [
        (
            peak.device,
            size_text(peak.peak_bytes),
            share_text(peak.peak_bytes, peak.limit_bytes),
            time_text(peak.at_ns),
            peak.cause.name,
            ", ".join(f"{role} {size_text(nbytes)}" for role, nbytes in peak.by_role[:3]) or "-",
        )
        for peak in found.peaks
    ]
    head = ("device", "peak", "of its memory", "first at", "reached by", "most of it")
    parts = [(part.scope, part.role, f"{part.tensors:,}", size_text(part.nbytes)) for part in fullest.parts]
    return Section(
        "Where the memory goes",
        tuple(lines),
        (
            Grid("Peaks", head, tuple(rows), frozenset((1, 2, 3))),
            Grid(
                f"Alive on {fullest.device} at its peak",
                ("module", "role", "tensors", "bytes"),
                tuple(parts),
                frozenset((2, 3)),
            ),
        ),
    )


def peak_sentence(peak: Peak) -> str:
    """When a device holds most, and why then."""
    reached = {
        "op": f"when {peak.cause.name} starts and needs {size_text(peak.cause.nbytes)}",
        "transfer": f"when {peak.cause.name} ({size_text(peak.cause.nbytes)}) begins to arrive",
        "start": "before the step begins",
    }[peak.cause.kind]
    return (
        f"{peak.device} is the fullest: {size_text(peak.peak_bytes)} of {size_text(peak.limit_bytes)} "
        f"({share_text(peak.peak_bytes, peak.limit_bytes)}), first at {time_text(peak.at_ns)}, {reached}."
    )


def _placement(found: Explanation) -> Section:
    tried = found.decisions
    if len(found.devices) == 1:
        return Section("Why each group is where it is", ("There is one device; there is nothing to choose.",))
    counts = (
        (tried.count("better elsewhere"), "would be better elsewhere", "would be better elsewhere"),
        (tried.count("matters"), "costs time or memory to move", "cost time or memory to move"),
        (tried.count("does not matter"), "could as well be elsewhere", "could as well be elsewhere"),
        (tried.count("nowhere else"), "can run nowhere else", "can run nowhere else"),
        (tried.count("not tried"), "was not tried", "were not tried"),
    )
    said = ", ".join(_many(count, one, many) for count, one, many in counts if count)
    line = f"Of {_many(len(tried.rows), 'group')}, {said} ({_many(tried.simulations, 'simulation')} of one move each)."
    rows = tuple(_decision_row(found, row) for row in tried.rows)
    head = ("group", "on", "ops", "compute", "best elsewhere", "would change the goal by", "verdict")
    return Section("Why each group is where it is", (line,), (Grid("Groups", head, rows, frozenset((2, 3, 5))),))


def _decision_row(found: Explanation, row: Decision) -> tuple[str, ...]:
    best = row.moves[0] if row.moves else None
    where, change = ("-", "-") if best is None else (best.device, _change_text(found, best))
    return (row.group, row.device, f"{row.ops:,}", time_text(row.compute_ns), where, change, row.verdict)


def _change_text(found: Explanation, move: MoveCost) -> str:
    """Of the goal, and of the bytes over the memory where a move changes those."""
    over = move.over_bytes - found.over_bytes
    change = signed(move.change, value_text(found.objective))
    return f"{signed(over, size_text)} over, {change}" if over else change


_BINDS = {
    "work": "Work binds: shared out evenly with no wait at all, it takes {work}, more than any other bound. "
    "Faster devices or more of them are what helps.",
    "critical path": "The longest chain of ops binds: it takes {path} on the fastest device for each op, "
    "however many devices there are. Fusing, or a faster device, shortens it; more devices do not.",
    "link": "The busiest link binds: it alone is busy for {link}, longer than the work shared out or the longest chain."
    " Faster links, or groups moved so that less is sent, are what helps.",
    "memory": "Memory binds: the fullest device uses {memory} of its memory, and better plans do not fit.",
}


def _faster(found: Explanation) -> Section:
    why, shown = found.why_not_faster, value_text(found.objective)
    bound = {one.name: one for one in why.bounds}
    texts = {
        "work": time_text(bound["work"].value),
        "path": time_text(bound["critical path"].value),
        "link": time_text(bound["link"].value),
        "memory": share_text(bound["memory"].value, bound["memory"].limit),
    }
    free = f"Over links that take no time, the same plan would take {time_text(why.without_transfers_ns)}."
    binds = found.objective.binds or _BINDS[why.binds]
    rows = [_help_row(found, row, shown) for row in (why.control, *why.helps)]
    limits = [
        (
            one.name,
            size_text(one.value) if one.name == "memory" else time_text(one.value),
            share_text(one.value, one.limit),
            "of its memory" if one.name == "memory" else "of the step",
        )
        for one in why.bounds
    ]
    grids = (
        Grid("Bounds", ("bound", "value", "share", ""), tuple(limits), frozenset((1, 2))),
        Grid(
            "What would help",
            ("change", "step", "largest peak", "gain", "share", "by"),
            tuple(rows),
            frozenset((1, 2, 3, 4)),
        ),
    )
    return Section("Why not faster", (binds.format(**texts), free, _best_help(found)), grids)


def _help_row(found: Explanation, row: WhatIf, shown: Callable[[float], str]) -> tuple[str, ...]:
    fits = "" if not row.over_bytes else f" ({size_text(row.over_bytes)} over)"
    gain = share_text(row.gain, found.value)
    peak = size_text(row.peak_bytes) + fits
    return (row.change, time_text(row.step_ns), peak, signed(row.gain, shown), gain, row.how)


def _best_help(found: Explanation) -> str:
    """What gains most beyond what searching alone gains."""
    why = found.why_not_faster
    best = max(why.helps, key=lambda row: (-row.over_bytes, row.gain))
    more = best.gain - max(0, why.control.gain)
    if best.over_bytes or more * 1000 < found.value:
        return "None of the changes tried (one more device, links twice as fast, 10 % more memory) helps by itself."
    helped = share_text(more, found.value)
    return f"What would help most is {best.change}: {helped} less, beyond what searching longer gains."


def _fusion(found: Explanation) -> Section:
    made = found.fusion
    launches = _many(made.launches_saved, "launch", "launches")
    line = (
        f"{_many(made.ops, 'op')} are fused into {_many(made.kernels, 'kernel')}. That saves {launches}, "
        f"{size_text(made.traffic_saved_bytes)} of memory traffic and {time_text(made.time_saved_ns)} of compute; "
        f"{size_text(made.memory_saved_bytes)} of tensors are never stored."
    )
    rows = tuple(
        (
            gain.name,
            gain.device,
            f"{gain.ops:,}",
            f"{gain.launches_saved:,}",
            size_text(gain.traffic_saved_bytes),
            time_text(gain.time_saved_ns),
            " ".join(gain.kinds[:4]) + (" …" if len(gain.kinds) > 4 else ""),
        )
        for gain in made.largest
    )
    head = ("kernel", "on", "ops", "launches", "bytes", "time", "of")
    return Section("Fusion", (line,), (Grid("Kernels that save most", head, rows, frozenset((2, 3, 4, 5))),))


def _added(found: Explanation) -> Section:
    made, lines = found.added, []
    if made.ops_again:
        inside = (
            f"{made.inside:,} of them inside kernels that read what they make"
            if made.inside
            else "none inside another kernel"
        )
        lines.append(
            f"{_many(made.ops_again, 'op')} run again, {inside}; the kernels of the others take "
            f"{time_text(made.again_ns)}. {size_text(made.again_bytes)} of tensors are not held meanwhile."
        )
    if made.stays:
        wait, come = ("waits", "comes") if made.stays == 1 else ("wait", "come")
        lines.append(f"{_many(made.stays, 'tensor')} {wait} on a host, {size_text(made.stay_bytes)}, and {come} back.")
    if made.homes:
        back = f", {size_text(made.return_bytes)} go back updated" if made.return_bytes else ""
        lines.append(
            f"{_many(made.homes, 'weight, state or input', 'weights, states and inputs')} "
            f"{'lives' if made.homes == 1 else 'live'} elsewhere, "
            f"{size_text(made.home_bytes)}: {size_text(made.visit_bytes)} come in a step{back}."
        )
    return Section("Recomputation and offload", tuple(lines))


def _expense(found: Explanation) -> Section:
    cost, lines = found.expense, []
    if cost.money is not None:
        per_million = f"{cost.money * 1e6:,.2f} for a million steps"
        idle = share_text(cost.money_idle or 0.0, cost.money)
        lines.append(f"A step costs {cost.money:.3g} ({per_million}); {idle} of it pays for devices that wait.")
    if cost.energy_j is not None:
        lines.append(f"Computing takes {cost.energy_j:.3g} J a step; what devices draw while they wait is not counted.")
    return Section("Money and energy", tuple(lines))


def _elsewhere(found: Explanation) -> Section:
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


_OPTIONAL: tuple[tuple[Callable[[Explanation], Section], Callable[[Explanation], bool]], ...] = (
    (_fusion, lambda found: found.fusion.kernels > 0),
    (_added, lambda found: found.added.ops_again + found.added.stays + found.added.homes > 0),
    (_expense, lambda found: found.expense.money is not None or found.expense.energy_j is not None),
    (_elsewhere, lambda found: len(found.hardware) > 0),
)
