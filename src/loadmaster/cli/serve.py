"""The verbs for whole modules: plan for serving, export to other runtimes."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from loadmaster.cli import reports, stages, words
from loadmaster.cli.guarding import print_json
from loadmaster.cli.options import TARGETS_HELP, Debug, Json
from loadmaster.cli.reports import OfModel
from loadmaster.errors import InvalidSetting

if TYPE_CHECKING:
    from loadmaster.cluster import Cluster
    from loadmaster.report.served import SplitAtLength, Strip
    from loadmaster.serving.exports import ModulePlan
    from loadmaster.serving.planning import ServingResult
    from loadmaster.serving.readback import Exported
    from loadmaster.serving.requests import Goal


def plan_served(
    model: str,
    on: str | None,
    serve: str,
    target: str | None,
    *,
    goal: Goal,
    weights: str,
    sweep: str | None,
    seconds: float | None,
    seed: int,
    save: Path | None,
    report: Path | None,
    plot: Path | None,
    json: bool,
) -> None:
    """What `plan` does with a model that answers requests."""
    from loadmaster.cluster.presets import THIS_MACHINE
    from loadmaster.serving.exports import target_of
    from loadmaster.serving.planning import plan_serving, service_for
    from loadmaster.serving.requests import Requests

    chosen, requests = None if target is None else target_of(target), Requests.of(serve)
    cluster = words.cluster_of(on or THIS_MACHINE)
    stages.check_targets(save, report, plot)
    if sweep is not None:
        wait = 2.0 if seconds is None else seconds
        found = _swept(model.removeprefix("hf:"), cluster, requests, sweep, chosen, goal, weights, wait)
        _show_sweep(found, plot, json)
        return
    if plot is not None:
        raise InvalidSetting("there is no sweep to draw", "--plot", "give --sweep context=1k..64k too")
    with stages.status(f"capturing {model}"):
        served, service = service_for(
            model.removeprefix("hf:"),
            cluster,
            requests,
            goal=goal,
            precision=weights,  # type: ignore[arg-type]
            target=chosen,
        )
    with stages.status("placing modules"):
        result = plan_serving(served, service, chosen, seconds=5.0 if seconds is None else seconds, seed=seed)
    if save is not None and result.best.fits:
        from loadmaster.serving.documents import module_plan, save_modules

        save_modules(module_plan(result.name, service, result.best), service, result.best, save)
    if report is not None:
        write_page(report, result)
    _show(result, save if result.best.fits else None, json)
    if report is not None and not json:
        print(f"report written to {report}")
    if not result.best.fits:
        from loadmaster.serving.placing import check_fits

        check_fits(service, result.best)


def show_modules(plan: ModulePlan, time_head: str) -> None:
    """A row for each module: its device, what becomes of its weights, what it takes."""
    from loadmaster.report.terminal import console, plain_table
    from loadmaster.report.units import size_text, time_text
    from loadmaster.serving.exports import module_table

    table = plain_table("modules", "device", "weights", ">bytes", f">{time_head}")
    for label, device, fate, nbytes, time_ns in module_table(plan):
        table.add_row(label, device, fate, size_text(nbytes), time_text(time_ns))
    console().print(table)


def _swept(
    path: str, cluster: Cluster, requests: Any, text: str, target: Any, goal: str, dtype: str, seconds: float
) -> list[tuple[int, ServingResult]]:
    from loadmaster.serving.planning import sweep

    contexts = contexts_of(text)
    with stages.status("planning for each context"):
        return sweep(path, cluster, requests, contexts, target, goal=goal, precision=dtype, seconds=seconds)


def _show_sweep(found: list[tuple[int, ServingResult]], plot: Path | None, json: bool) -> None:
    from loadmaster.report.served import changes, plot_sweep
    from loadmaster.report.terminal import console, plain_table
    from loadmaster.report.units import time_text
    from loadmaster.serving.documents import module_plan, summary, to_json

    columns = [_column(context, result) for context, result in found]
    if plot is not None:
        plot_sweep(plot, f"{found[0][1].name} on {found[0][1].service.cluster.name}", columns)
    if json:
        told = {
            str(context): {**to_json(module_plan(r.name, r.service, r.best)), "serving": summary(r.service, r.best)}
            for context, r in found
        }
        print_json(told)
        return
    new = {0, *changes(columns)}
    table = plain_table(">context", ">first token", ">per token", "fits", "~split")
    for at, column in enumerate(columns):
        split = "; ".join(f"{label}: {column.strip.devices[device]}" for label, device, *_ in column.strip.parts)
        times = time_text(column.first_token_ns), time_text(column.per_token_ns)
        table.add_row(f"{column.context:,}", *times, "yes" if column.fits else "no", split if at in new else "same")
    console().print(table)
    if plot is not None:
        print(f"picture written to {plot}")


def _column(context: int, result: ServingResult) -> SplitAtLength:
    from loadmaster.report.served import SplitAtLength
    from loadmaster.serving.documents import module_plan

    first, *later = result.best.step_ns
    plan = module_plan(result.name, result.service, result.best)
    return SplitAtLength(context, strip_of(plan), first, sum(later) / len(later), result.best.fits)


def strip_of(plan: ModulePlan) -> Strip:
    """Runs of modules with the same fate, in the order of the model."""
    from loadmaster.report.served import Strip
    from loadmaster.serving.exports import module_table

    number = {name: at for at, name in enumerate(plan.devices)}
    rows = module_table(plan)
    parts = tuple((label, number[device], size, fate != "resident") for label, device, fate, size, _ in rows)
    return Strip(parts, plan.devices)


def write_page(path: Path, result: ServingResult) -> None:
    """The page about a served model: what the terminal shows, and the bar of modules."""
    from loadmaster.report.grids import Grid, Section
    from loadmaster.report.served import ServedPage, write_served
    from loadmaster.report.units import size_text, time_text
    from loadmaster.serving.documents import module_plan, tokens_per_s
    from loadmaster.serving.exports import module_table

    service, best = result.service, result.best
    plan = module_plan(result.name, service, best)
    first, *later = best.step_ns
    fullest = int((best.peak_bytes / service.cluster.memory_bytes).argmax())
    memory = size_text(int(service.cluster.memory_bytes[fullest]))
    figures = (
        ("first token", time_text(first), "modelled"),
        ("per token", time_text(sum(later) / len(later)), "mean of the first and the last"),
        ("tokens a second", f"{tokens_per_s(service, best):,.1f}", "of all sequences"),
        (
            "fullest device",
            size_text(int(best.peak_bytes[fullest])),
            f"of {memory} on {service.cluster.device_names[fullest]}",
        ),
        ("over the bound", f"{best.value / max(1.0, best.bound):.2f}x", "no placement can go under it"),
    )
    head = ("modules", "device", "weights", "bytes", "time a request")
    modules = tuple((m, d, fate, size_text(size), time_text(ns)) for m, d, fate, size, ns in module_table(plan))
    every = ("module", "device", "kept on", "bytes", "time a request")
    rows = tuple((r.module, r.device, r.home, size_text(r.weight_bytes), time_text(r.time_ns)) for r in plan.rows)
    methods = ("method", "first token", "per token", "tokens/s", "peak per device", "fits")
    sections = (
        Section("Modules", (), (Grid("", head, modules, frozenset((3, 4))),)),
        Section("Beside what other tools do", (), (Grid("", methods, _methods(result), frozenset((1, 2, 3, 4))),)),
        Section("Every module", (), (Grid("", every, rows, frozenset((3, 4))),)),
    )
    title = f"{result.name} on {service.cluster.name}"
    weights = size_text(int(service.weight_bytes.sum()))
    subtitle = f"Which device keeps and computes each of {len(service.names)} modules, {weights} of weights."
    basis = f"Requests: {service.requests}; goal: {service.goal}; {result.basis}."
    write_served(path, ServedPage(title, subtitle, basis, figures, strip_of(plan), sections))


def _methods(result: ServingResult) -> tuple[tuple[str, ...], ...]:
    """A row for each rule of others, and one for ours, the best first."""
    from loadmaster.report.units import size_text, sizes_text, time_text
    from loadmaster.serving.documents import tokens_per_s

    rows = []
    found = (("loadmaster", result.best), *result.rules.items())
    for name, placement in sorted(found, key=lambda row: (row[1].over_bytes, row[1].value)):
        first, *later = placement.step_ns
        speed = tokens_per_s(result.service, placement)
        peaks = sizes_text([int(peak) for peak in placement.peak_bytes])
        fits = "yes" if placement.fits else f"no, {size_text(placement.over_bytes)} over"
        rows.append((name, time_text(first), time_text(sum(later) / len(later)), f"{speed:,.1f}", peaks, fits))
    return tuple(rows)


def contexts_of(text: str) -> list[int]:
    """Of "context=1k..64k": doubled from the first to the last."""
    from loadmaster.serving.requests import tokens

    name, _, span = text.partition("=")
    low, dots, high = span.partition("..")
    if name != "context" or not dots:
        raise InvalidSetting(f"'{text}' is no sweep", "--sweep", "write context=1k..64k")
    first, last = tokens(low, text), tokens(high, text)
    if not 0 < first <= last:
        raise InvalidSetting(f"'{span}' runs backwards", "--sweep", "write context=1k..64k")
    found = [first]
    while found[-1] * 2 <= last:
        found.append(found[-1] * 2)
    return found


def _show(result: ServingResult, saved: Path | None, json: bool) -> None:
    from loadmaster.report.terminal import console, plain_table
    from loadmaster.report.units import size_text
    from loadmaster.serving.documents import module_plan, summary, to_json

    service, plan = result.service, module_plan(result.name, result.service, result.best)
    if json:
        rules = {name: summary(service, rule) for name, rule in result.rules.items()}
        print_json({**to_json(plan), "serving": summary(service, result.best), "rules": rules})
        return
    screen = console()
    screen.print(
        f"{result.name}: {len(service.names)} modules, {size_text(int(service.weight_bytes.sum()))} of weights"
    )
    screen.print(f"on {service.cluster.name}, {service.requests}; {result.basis}")
    screen.print(f"{_reserve_line(result)}\n", soft_wrap=True)
    table = plain_table("method", ">first token", ">per token", ">tokens/s", "~>peak per device", "fits")
    for row in _methods(result):
        table.add_row(*row)
    screen.print(table)
    show_modules(plan, "time a request")
    from loadmaster.report.units import percent_text, time_text
    from loadmaster.serving.planning import op_by_op, simplest

    free = op_by_op(service, result.best)
    times = f"{time_text(result.best.value)} against {time_text(free)} op by op, each phase by itself"
    screen.print(f"\nevery module whole: {times} ({percent_text(result.best.value / max(1.0, free) - 1)})")
    screen.print(f"at most {result.best.value / max(1.0, result.best.bound):.2f}x the best possible")
    if (simple := simplest(result)) is not None:
        name, more = simple
        screen.print(f"simpler, and within the model's error of 5 %: {name} ({percent_text(more)})")
    if result.target is not None and result.best.fits:
        from loadmaster.serving.readback import exported

        found = exported(plan, result.target)
        print(f"\n{found.text}")
        tell_read_back(found, result.target.name)
    if saved is not None:
        to = "device-map" if result.target is None else result.target.name
        screen.print(f"plan written to {saved}; next: loadmaster export {saved} --to {to}")


def _reserve_line(result: ServingResult) -> str:
    """What the runtime takes of GPUs, which the memory of the plan is without."""
    from loadmaster.report.units import size_text
    from loadmaster.serving.reserve import reserve_of

    service = result.service
    kept = {name: int(size) for name, size in zip(service.cluster.device_names, service.reserve_bytes, strict=True)}
    sizes = ", ".join(f"{size_text(size)} of {name}" for name, size in kept.items() if size)
    if not sizes:
        return "reserve: nothing, the memory given is a limit for the plan alone"
    return (
        f"reserve, beside the peaks below: {sizes} ({reserve_of(result.target.name if result.target else None).source})"
    )


def export(
    plan: Annotated[Path, typer.Argument(metavar="PLAN", help="A plan that 'loadmaster plan --save' wrote.")],
    to: Annotated[str, typer.Option("--to", metavar="TARGET", help=TARGETS_HELP)],
    model: OfModel = None,
    on: Annotated[
        list[str] | None, typer.Option("--on", metavar="CLUSTER", help="The cluster, for a plan made without --serve.")
    ] = None,
    json: Json = False,
    debug: Debug = False,
) -> None:
    """Print a plan in the format of another runtime."""
    from loadmaster.serving.exports import main_device, target_of
    from loadmaster.serving.readback import exported

    loaded = _read_modules(plan, to, model, on)
    found = exported(loaded, target_of(to))
    if json:
        memory = {"peak_bytes": found.peak_bytes, "reserve_bytes": found.reserve_bytes}
        words = {"target": to, "text": found.text, "main_device": main_device(loaded), "notes": list(found.notes)}
        print_json(words | {"read_back": memory})
        return
    print(found.text)
    tell_read_back(found, to)


def tell_read_back(found: Exported, to: str) -> None:
    """What the runtime will make of the text, beside it: the text itself goes to a file or a shell."""
    from loadmaster.report.units import size_text
    from loadmaster.serving.reserve import reserve_of

    plan = found.plan
    for name, limit in zip(plan.devices, plan.memory_bytes, strict=True):
        if found.peak_bytes[name]:
            kept = [row.module for row in plan.rows if row.home == name]
            span = kept[0] if len(kept) == 1 else f"{kept[0]} … {kept[-1]} ({len(kept)} modules)" if kept else "nothing"
            sizes = f"{size_text(found.peak_bytes[name])} of {size_text(limit)}"
            _aside(f"{name}: {span}; {sizes}, reserve {size_text(found.reserve_bytes[name])}")
    _aside(f"read back as {to} takes it; reserve: {reserve_of(to).source}")
    for note in found.notes:
        _aside(note)


def _aside(text: str) -> None:
    print(text, file=sys.stderr)


def _read_modules(path: Path, to: str, model: str | None, on: list[str] | None) -> ModulePlan:
    from loadmaster.files.text import PLAN_SCHEMA, read_json
    from loadmaster.serving.documents import load_modules

    data = read_json(path)
    if not isinstance(data, dict) or data.get("schema") != PLAN_SCHEMA:
        return load_modules(path)
    from loadmaster.serving.plans import modules_of

    problem, saved, _ = reports.read_plan(path, model, on or [], None, None)
    return modules_of(problem, saved, to)
