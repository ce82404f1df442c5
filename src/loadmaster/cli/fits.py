"""The verb fits: whether a model fits, and what would make it fit."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated, Any

import typer

from loadmaster.cli import serve as serving
from loadmaster.cli import stages, words
from loadmaster.cli.guarding import print_json
from loadmaster.cli.options import Assume, Batch, Debug, Dtype, Json, Optimizer, Seconds, Seed, Simulations, Training
from loadmaster.errors import DoesNotFit, InvalidSetting

if TYPE_CHECKING:
    from loadmaster.graph import Graph

SECONDS = 2.0  # for each trial, where nobody says: ten take twenty seconds
_MODEL = "hf:FOLDER with a config.json, to serve it; package.module:callable and whatever else plan takes, for a step."


def fits(
    model: Annotated[str, typer.Argument(metavar="MODEL", help=_MODEL)],
    on: Annotated[str, typer.Option("--on", metavar="CLUSTER", help="A size such as 24GiB, a preset or a file.")],
    serve: Annotated[
        str | None,
        typer.Option("--serve", metavar="REQUESTS", help=f"Of hf: models. {serving.SERVE_HELP}"),
    ] = None,
    weights: Annotated[
        str | None, typer.Option("--weights", help="Of hf: models: float32, float16, bfloat16, int8 or int4.")
    ] = None,
    training: Training = None,
    optimizer: Optimizer = None,
    dtype: Dtype = None,
    batch: Batch = None,
    seconds: Seconds = None,
    simulations: Simulations = None,
    seed: Seed = 0,
    assume: Assume = False,
    json: Json = False,
    debug: Debug = False,
) -> None:
    """Say whether a model fits (exit code 0, else 3) and what would make it fit, cheapest first."""
    if serving.is_served(model):
        capture = {"--train": training, "--optimizer": optimizer, "--dtype": dtype, "--batch": batch}
        _refuse(model, capture, "say it with --serve and --weights")
        found: Any = _served(model, on, serve or "prompt=2048,new=256,batch=1", weights or "bfloat16", seconds)
        rows = [(c.what, c.request_ns, c.peak_bytes, c.command) for c in found.changes]
    else:
        _refuse(model, {"--serve": serve, "--weights": weights}, "they are for hf:FOLDER")
        how = words.capture_settings(model, training, optimizer, dtype, batch) | {"assume": assume}
        found = _step(model, on, how, words.budget_of(seconds or (None if simulations else SECONDS), simulations), seed)
        rows = [(c.what, c.step_ns, c.peak_bytes, c.command) for c in found.changes]
    if json:
        print_json(asdict(found))
    else:
        _show(model, found, rows, "request" if serving.is_served(model) else "step")
    if not found.fits:
        raise typer.Exit(DoesNotFit.exit_code)


def _refuse(model: str, given: Mapping[str, Any], fix: str) -> None:
    for option, value in given.items():
        if value is not None:
            raise InvalidSetting(f"{option} says nothing about '{model}'", option, fix)


def _served(model: str, on: str, serve: str, weights: str, seconds: float | None) -> Any:
    from loadmaster.serving.fitting import fit
    from loadmaster.serving.requests import Requests

    path, cluster, requests = model.removeprefix("hf:"), words.cluster_of(on), Requests.of(serve)
    with stages.status("trying what would help"):
        return fit(path, cluster, requests, precision=weights, seconds=seconds or 1.0)


def _step(model: str, on: str, how: Mapping[str, Any], budget: Any, seed: int) -> Any:
    from loadmaster.importers import load
    from loadmaster.report.remedies import verdict

    cluster = words.cluster_of(on)

    def captured(settings: Mapping[str, Any]) -> Graph:
        return load(model, gpu=cluster.has_gpu, **settings)

    settings = dict(how)
    if words.is_callable(model) and how.get("training") is not False:
        settings.setdefault("optimizer", "adam")
    with stages.status("trying what would help"):
        return verdict(captured, cluster, settings, budget=budget, seed=seed)


def _show(model: str, found: Any, rows: Sequence[tuple[str, float, int, str]], unit: str) -> None:
    from loadmaster.report.terminal import console, plain_table
    from loadmaster.report.units import size_text, time_text

    word = "fits" if found.fits else "does not fit"
    sizes = f"{size_text(found.need_bytes)} needed, {size_text(found.have_bytes)} there"
    console().print(f"{model} {word}: {sizes} on the fullest device")
    if rows:
        table = plain_table("what would make it fit", f">{unit}", ">peak", "~how")
        for what, time_ns, peak, command in rows:
            table.add_row(what, time_text(time_ns), size_text(peak), command)
        console().print(table)
    elif not found.fits:
        console().print("no change that was tried makes it fit")


VERBS = (fits,)
