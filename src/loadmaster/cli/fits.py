"""The verb fits: whether a model fits, and what would make it fit."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated, Any

import typer

from loadmaster.cli import languages, stages, words
from loadmaster.cli.guarding import print_json
from loadmaster.cli.options import (
    SERVE_HELP,
    Assume,
    Batch,
    Debug,
    Dtype,
    Json,
    Optimizer,
    Seconds,
    Seed,
    Simulations,
    Training,
)
from loadmaster.errors import DoesNotFit, InvalidSetting

if TYPE_CHECKING:
    from loadmaster.graph import Graph

SECONDS = 2.0  # for each trial, where nobody says: ten take twenty seconds
_MODEL = "A .gguf file or hf:FOLDER, to serve it; any model that plan takes, for a step."


def fits(
    model: Annotated[str, typer.Argument(metavar="MODEL", help=_MODEL)],
    on: Annotated[str, typer.Option("--on", metavar="CLUSTER", help="A size such as 24GiB, a preset or a file.")],
    serve: Annotated[
        str | None,
        typer.Option("--serve", metavar="REQUESTS", help=f"For served models. {SERVE_HELP}"),
    ] = None,
    weights: Annotated[
        str | None, typer.Option("--weights", help="For hf: models: float32, float16, bfloat16, int8 or int4.")
    ] = None,
    cache: Annotated[
        str | None, typer.Option("--cache", help="For served models: f16, q8_0 or q4_0. [default: f16]")
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
    """Say whether a model fits (exit code 0, else 3), and what would make it fit, cheapest first."""
    served = words.is_read(model, None) or words.is_served(model)
    if served:
        capture = {"--train": training, "--optimizer": optimizer, "--dtype": dtype, "--batch": batch}
        _refuse(model, capture, "say it with --serve and --weights")
        found, changes = _served(model, on, serve, weights, cache)
    else:
        _refuse(
            model, {"--serve": serve, "--weights": weights, "--cache": cache}, "they are for hf:FOLDER and .gguf files"
        )
        how = words.capture_settings(model, training, optimizer, dtype, batch) | {"assume": assume}
        found, changes = _step(
            model, on, how, words.budget_of(seconds or (None if simulations else SECONDS), simulations), seed
        )
    if json:
        print_json(asdict(found) | {"changes": [asdict(change) for change in changes]})
    else:
        _show(model, found, changes)
    if not found.fits:
        raise typer.Exit(DoesNotFit.exit_code)


def _refuse(model: str, given: Mapping[str, Any], fix: str) -> None:
    for option, value in given.items():
        if value is not None:
            raise InvalidSetting(f"{option} says nothing about '{model}'", option, fix)


def _served(
    model: str, on: str, serve: str | None, weights: str | None, cache: str | None
) -> tuple[Any, Iterator[Any]]:
    from loadmaster.serving.fitting import fit, remedies

    setup = languages.fits_setup(model, on, serve, weights, cache)
    found = fit(setup)
    return found, iter(()) if found.fits else remedies(setup)


def _step(model: str, on: str, how: Mapping[str, Any], budget: Any, seed: int) -> tuple[Any, Iterator[Any]]:
    from loadmaster.importers import load
    from loadmaster.report.remedies import answer

    cluster = words.cluster_of(on)

    def captured(settings: Mapping[str, Any]) -> Graph:
        return load(model, gpu=cluster.has_gpu, **settings)

    settings = dict(how)
    if words.is_callable(model) and how.get("training") is not False:
        settings.setdefault("optimizer", "adam")
    with stages.status("planning for the cluster as it is"):
        return answer(captured, cluster, settings, budget=budget, seed=seed)


def _show(model: str, found: Any, changes: Iterator[Any]) -> None:
    from loadmaster.report.units import size_text, time_text

    word = "fits" if found.fits else "does not fit"
    sizes = f"{size_text(found.need_bytes)} needed, {size_text(found.have_bytes)} there"
    print(f"{model} {word}: {sizes} on the fullest device", flush=True)
    if found.fits:
        return
    helped = False
    while True:
        with stages.status("trying what would help"):
            change = next(changes, None)
        if change is None:
            break
        if not helped:
            print("what makes it fit, the smallest change first:")
        helped = True
        time_ns = change.request_ns if hasattr(change, "request_ns") else change.step_ns
        unit = "request" if hasattr(change, "request_ns") else "step"
        peak = size_text(change.peak_bytes)
        print(f"  {change.what}: {peak} at most, {time_text(time_ns)} a {unit}\n    {change.command}", flush=True)
    if not helped:
        print("no change that was tried makes it fit")
