"""Options that several verbs share, each written once: its name, its type and its help."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

import typer

from loadmaster import catalog
from loadmaster.cli.words import DEFAULT_SECONDS

_MODEL_HELP = "zoo:NAME[/train|/infer], a .json, .json.gz, .onnx or .gguf file, or package.module:callable"
METHOD_HELP = "A name from 'loadmaster list methods', with settings: best-of:of=[heft,etf]."

Model = Annotated[str, typer.Argument(metavar="MODEL", help=_MODEL_HELP, show_default=False)]
_ON = typer.Option("--on", metavar="CLUSTER", help="A preset such as 4xp100-pcie, or a JSON file.")
On = Annotated[str | None, _ON]
NeededOn = Annotated[str, _ON]


def known_objective(name: str | None) -> str | None:
    """Refuses a name that is no objective as wrong usage (exit code 2)."""
    if name is not None and name not in catalog.OBJECTIVES:
        raise typer.BadParameter(f"'{name}' is not one of {', '.join(catalog.OBJECTIVES)}")
    return name


OBJECTIVES = "|".join(catalog.OBJECTIVES)
Objective = Annotated[
    str, typer.Option("--objective", metavar=OBJECTIVES, callback=known_objective, help="What to minimise.")
]
MemoryLimit = Annotated[
    str | None, typer.Option("--memory-limit", metavar="SIZE", help="At most this per device, hosts apart: 16GiB.")
]
Assume = Annotated[
    bool, typer.Option("--assume", help="Accept a model of which over a tenth of the work is assumed, not known.")
]
Seconds = Annotated[
    float | None,
    typer.Option(
        "--seconds", help=f"Time for each search. [default: {DEFAULT_SECONDS:g}, or no limit with --simulations]"
    ),
]
Simulations = Annotated[
    int | None, typer.Option("--simulations", help="Simulations for each search; alone, answers repeat.")
]
Seed = Annotated[int, typer.Option("--seed", min=0, help="For methods that draw random numbers.")]
Fusion = Annotated[
    Literal["auto", "none", "greedy"],
    typer.Option("--fusion", help="Fuse ops into kernels: as the method decides, not at all, or all before planning."),
]
SplitOps = Annotated[
    Literal["none", "auto"],
    typer.Option("--split", help="Split ops that hold the step up into parts for several devices, where it pays."),
]
Microbatches = Annotated[
    int | None,
    typer.Option(
        "--microbatches", min=1, metavar="N", help="Plan a pipeline: the model's step is one of N microbatches."
    ),
]
Replicate = Annotated[
    Literal["none", "auto"],
    typer.Option("--replicate", help="Of a pipeline: stages may be there several times over, as in data parallelism."),
]
ScheduleFile = Annotated[
    Path | None,
    typer.Option("--schedule", metavar="FILE", help="Of a pipeline: write its order for torch.distributed.pipelining."),
]
Recompute = Annotated[
    Literal["auto", "none"], typer.Option("--recompute", help="Make tensors again where a plan does not fit.")
]
Offload = Annotated[
    Literal["auto", "none"],
    typer.Option("--offload", help="Let tensors wait or live on a host where a plan does not fit."),
]
Save = Annotated[Path | None, typer.Option("--save", metavar="FILE", help="Write the plan to this JSON file.")]
Report = Annotated[
    Path | None, typer.Option("--report", metavar="FILE", help="Write a page about the plan: page.html.")
]
Trace = Annotated[
    Path | None, typer.Option("--trace", metavar="FILE", help="Write a trace for ui.perfetto.dev: trace.json.")
]
Addresses = Annotated[
    Path | None,
    typer.Option("--addresses", metavar="FILE", help="Write where every tensor lies in memory to this JSON file."),
]
Costs = Annotated[
    str | None,
    typer.Option(
        "--costs", metavar="COSTS", help="What ops take: calibrated, here, or a file: costs.json, trace.json."
    ),
]
Training = Annotated[
    bool | None,
    typer.Option("--train/--infer", help="Of a torch model or one of the zoo: which step. [default: train]"),
]
Optimizer = Annotated[
    Literal["adam", "adamw", "sgd", "none"] | None,
    typer.Option("--optimizer", help="Of a torch model: what updates the weights. [default: adam]"),
]
Dtype = Annotated[
    Literal["float32", "bfloat16", "float16", "float64"] | None,
    typer.Option("--dtype", help="Of a torch model: build it in this type."),
]
Mode = Annotated[
    Literal["eager", "planned", "compiled", "cuda-graphs"] | None,
    typer.Option("--mode", help="How kernels are asked for, where the cluster knows what that takes."),
]
Batch = Annotated[int | None, typer.Option("--batch", min=1, help="Of a torch model: rows of its example inputs.")]
Ray = Annotated[
    str | None,
    typer.Option(
        "--ray", metavar="auto|ADDRESS", help="Work on a Ray cluster: this machine's, or that at the address."
    ),
]
Verbose = Annotated[bool, typer.Option("--verbose", help="Show all tables: methods, devices, links, memory, groups.")]
Json = Annotated[bool, typer.Option("--json", help="Print JSON.")]
Debug = Annotated[bool, typer.Option("--debug", help="Show the traceback of an error.")]
