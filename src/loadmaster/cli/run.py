"""The verb that runs a plan."""

from __future__ import annotations

import json as json_text
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from loadmaster.cli import stages
from loadmaster.cli.guarding import print_json
from loadmaster.cli.options import Debug, Json
from loadmaster.errors import InvalidSetting, MissingExtra

if TYPE_CHECKING:
    from loadmaster.runtime.running import Running

_MODEL = "package.module:callable, which returns (module, example inputs), or an .onnx or .tflite file."


def run(
    model: Annotated[str, typer.Argument(metavar="MODEL", help=_MODEL, show_default=False)],
    plan: Annotated[Path, typer.Option("--plan", metavar="FILE", help="A plan that 'loadmaster plan --save' wrote.")],
    verify: Annotated[
        bool | None,
        typer.Option("--verify/--no-verify", help="Compare one step with plain torch. [default: where memory allows]"),
    ] = None,
    steps: Annotated[int, typer.Option("--steps", min=1, help="How many steps to time.")] = 5,
    devices: Annotated[
        str | None,
        typer.Option("--devices", metavar="A,B", help="The torch device for each device of the plan: cuda:0,cpu."),
    ] = None,
    compile_kernels: Annotated[
        bool | None, typer.Option("--compile/--no-compile", help="Compile fused kernels. [default: on GPUs]")
    ] = None,
    out: Annotated[
        Path | None, typer.Option("--out", metavar="FILE", help="Write an .onnx or .tflite model in plan order.")
    ] = None,
    json: Json = False,
    debug: Debug = False,
) -> None:
    """Run a plan on this machine, and print modelled beside measured times."""
    from loadmaster.importers import sizes_behind

    if sizes_behind(model)[0].endswith((".onnx", ".tflite")):
        found = _reorder(model, plan, out)
        print(json_text.dumps(found, indent=2) if json else found["text"])
        return
    if out is not None:
        raise InvalidSetting(
            "only an .onnx or .tflite model is written", "--out", "leave it out: torch models run where they are"
        )
    try:
        from loadmaster.runtime.running import run_plan
    except ModuleNotFoundError as error:
        raise MissingExtra.of(error.name or "torch", "torch", "running a plan") from error
    with stages.status(f"running {model}"):
        places = devices.split(",") if devices else None
        ran = run_plan(model, plan, verify=verify, steps=steps, devices=places, compile_kernels=compile_kernels)
    if ran is None:  # another process of this run reports
        return
    if json:
        print_json(ran.as_data())
    else:
        _show(ran)


def _show(ran: Running) -> None:
    from loadmaster.report.terminal import console, running_view

    console().print(*running_view(ran.as_data()), sep="\n")


def _reorder(model: str, plan: Path, out: Path | None) -> dict[str, Any]:
    from loadmaster.files import load_plan
    from loadmaster.importers import sizes_behind

    path, sizes = sizes_behind(model)
    try:
        if path.endswith(".tflite"):
            from loadmaster.importers.tensorflow.tflite import reorder
        else:
            from loadmaster.importers.onnx.reorder import reorder
    except ModuleNotFoundError as error:
        raise MissingExtra.of(error.name or "onnx", "onnx", "ordering an .onnx model") from error
    if out is None:
        fix = f"give --out ordered{Path(path).suffix}; a runtime then runs it in that order"
        raise InvalidSetting("where is the ordered model to go?", "--out", fix)
    moved = reorder(path, load_plan(plan), out, sizes)
    return {"file": str(out), "moved": moved, "text": f"{moved} nodes in another place; written to {out}"}
