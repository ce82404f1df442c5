"""Options that several verbs share, each written once: its name, its type and its help."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

import typer

from loadmaster import catalog
from loadmaster.cli.words import DEFAULT_SECONDS

# Subjects of `--help-all`.
_SEARCH, _MEMORY, _KERNELS, _PIPELINE = "Search", "Memory", "Kernels", "Pipelines"
_MODEL, _OUTPUT = "Torch models", "Output"
SERVING = "Serving and other runtimes"

_MODEL_HELP = "zoo:NAME, a file (.onnx, .pt2, .gguf, .json and others), or package.module:callable for torch."
SERVE_HELP = "Plan inference for such requests: prompt=2048,new=256,batch=4,flight=1."
TARGETS_HELP = "device-map, vllm, llama.cpp, pipelining, megatron or onnxruntime"
LIKE_HELP = "Warm-start from this plan of a similar model or cluster, or from a library (loadmaster lab train plans)."
EXPERIENCE_HELP = "Warm-start from your earlier plans of similar problems. [default: with --seconds and no --method]"
METHOD_HELP = "How to search: a name from 'loadmaster tools list methods', with settings: best-of:of=[heft,etf]."

Model = Annotated[str, typer.Argument(metavar="MODEL", help=_MODEL_HELP, show_default=False)]
_ON = typer.Option(
    "--on",
    metavar="CLUSTER",
    help="Devices to plan for: 4xp100-pcie, 4090+3090, here (measured), or a JSON file. [default: this machine]",
)
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
    str | None,
    typer.Option("--memory-limit", metavar="SIZE", help="Memory that each device may use, hosts apart: 16GiB."),
]
Assume = Annotated[
    bool,
    typer.Option(
        "--assume", rich_help_panel=_MODEL, help="Accept a model even if over a tenth of its work is a guess."
    ),
]
Seconds = Annotated[
    float | None,
    typer.Option("--seconds", help=f"Time to search. [default: {DEFAULT_SECONDS:g}, or no limit with --simulations]"),
]
Simulations = Annotated[
    int | None,
    typer.Option(
        "--simulations",
        rich_help_panel=_SEARCH,
        help="Plans to simulate; without --seconds, the same seed gives the same plan on every machine.",
    ),
]
Seed = Annotated[int, typer.Option("--seed", min=0, rich_help_panel=_SEARCH, help="Of random choices.")]
Fusion = Annotated[
    Literal["auto", "none", "greedy"],
    typer.Option(
        "--fusion",
        rich_help_panel=_KERNELS,
        help="Fuse ops into kernels: the method decides, never, or greedily before planning.",
    ),
]
SplitOps = Annotated[
    Literal["none", "auto"],
    typer.Option("--split", rich_help_panel=_KERNELS, help="Split large ops over several devices where it pays."),
]
Microbatches = Annotated[
    int | None,
    typer.Option(
        "--microbatches",
        min=1,
        metavar="N",
        rich_help_panel=_PIPELINE,
        help="Plan a pipeline; the model is one of N microbatches.",
    ),
]
Replicate = Annotated[
    Literal["none", "auto"],
    typer.Option("--replicate", rich_help_panel=_PIPELINE, help="Let stages of a pipeline be replicated."),
]
ScheduleFile = Annotated[
    Path | None,
    typer.Option(
        "--schedule",
        metavar="FILE",
        rich_help_panel=_PIPELINE,
        help="Write the pipeline's order for torch.distributed.pipelining.",
    ),
]
Recompute = Annotated[
    Literal["auto", "none"],
    typer.Option("--recompute", rich_help_panel=_MEMORY, help="Recompute tensors where a plan does not fit."),
]
Offload = Annotated[
    Literal["auto", "none"],
    typer.Option("--offload", rich_help_panel=_MEMORY, help="Keep tensors in host memory where a plan does not fit."),
]
Save = Annotated[Path | None, typer.Option("--save", metavar="FILE", help="Write the plan to a file: plan.json.")]
Report = Annotated[
    Path | None, typer.Option("--report", metavar="FILE", help="Write a page for the browser: page.html.")
]
Trace = Annotated[
    Path | None,
    typer.Option(
        "--trace", metavar="FILE", rich_help_panel=_OUTPUT, help="Write a trace for ui.perfetto.dev: trace.json."
    ),
]
Addresses = Annotated[
    Path | None,
    typer.Option("--addresses", metavar="FILE", help="Write the address of every tensor to this JSON file."),
]
Costs = Annotated[
    str | None,
    typer.Option(
        "--costs",
        metavar="COSTS",
        rich_help_panel=_KERNELS,
        help="Times of ops: roofline, learned, here (measured), or a file: costs.json, trace.json.",
    ),
]
Training = Annotated[
    bool | None,
    typer.Option(
        "--train/--infer", rich_help_panel=_MODEL, help="Plan a training step or an inference. [default: train]"
    ),
]
Optimizer = Annotated[
    Literal["adam", "adamw", "sgd", "none"] | None,
    typer.Option(
        "--optimizer", rich_help_panel=_MODEL, help="What updates the weights of a torch model. [default: adam]"
    ),
]
Dtype = Annotated[
    Literal["float32", "bfloat16", "float16", "float64"] | None,
    typer.Option("--dtype", rich_help_panel=_MODEL, help="Build a torch model in this type."),
]
Mode = Annotated[
    Literal["eager", "planned", "compiled", "cuda-graphs"] | None,
    typer.Option("--mode", rich_help_panel=_KERNELS, help="How the host launches kernels, measured or learned."),
]
Batch = Annotated[
    int | None, typer.Option("--batch", min=1, rich_help_panel=_MODEL, help="Rows of a torch model's example inputs.")
]
Ray = Annotated[
    str | None,
    typer.Option(
        "--ray",
        metavar="auto|ADDRESS",
        rich_help_panel=_SEARCH,
        help="Search on a Ray cluster: this machine's, or the one at the address.",
    ),
]
Verbose = Annotated[bool, typer.Option("--verbose", rich_help_panel=_OUTPUT, help="Show all tables.")]
Json = Annotated[bool, typer.Option("--json", help="Print JSON.")]
Debug = Annotated[bool, typer.Option("--debug", rich_help_panel=_OUTPUT, help="Show the traceback of an error.")]
