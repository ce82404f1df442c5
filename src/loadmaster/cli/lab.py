"""`loadmaster lab`, for those who make methods: benchmarks, graphs to learn from, trained policies, packed memory."""

from __future__ import annotations

import sys
from contextlib import redirect_stdout
from pathlib import Path
from typing import Annotated, Literal

import typer

from loadmaster.cli import words
from loadmaster.cli.guarding import print_json, verb
from loadmaster.cli.options import Debug, Json, Ray, Seed, Simulations
from loadmaster.errors import InvalidSetting, MissingExtra, UnreadableFile, printable

lab_app = typer.Typer(
    help="Research on methods: bench, generate, corpus, train, pack.",
    no_args_is_help=True,
    rich_markup_mode=None,
)


@lab_app.command()
@verb
def generate(
    kind: Annotated[
        str,
        typer.Argument(
            metavar="KIND", help="layered, erdos-renyi, barabasi-albert, watts-strogatz or stochastic-block-model."
        ),
    ],
    out: Annotated[
        Path, typer.Option("--out", metavar="FILE", help="Where to: a .jsonl, .jsonl.gz or .jsonl.xz file.")
    ],
    count: Annotated[int, typer.Option("--count", min=1, help="How many graphs.")] = 100,
    seed: Seed = 0,
    ops: Annotated[str, typer.Option("--ops", metavar="N|LOW-HIGH", help="Ops in a graph.")] = "50-200",
    json: Json = False,
    debug: Debug = False,
) -> None:
    """Make random graphs of the kinds that REGAL trained on; the same seed gives the same graphs everywhere."""
    from loadmaster.files import save_graphs
    from loadmaster.zoo.synthetic import generate, parse_ops

    graphs = generate(kind, count, seed, parse_ops(ops))
    words.check_writable(out)
    save_graphs(graphs, out)
    if json:
        print_json({"kind": kind, "count": count, "seed": seed, "ops": ops, "file": str(out)})
    else:
        print(f"{count:,} graphs of kind {kind}, seed {seed}, in {out}")


@lab_app.command()
@verb
def corpus(
    folder: Annotated[Path, typer.Argument(metavar="FOLDER", help="Where to; graphs that are there stay.")],
    seed: Annotated[int, typer.Option("--seed", help="Of the split by families.")] = 0,
    limit: Annotated[int | None, typer.Option("--limit", min=1, help="At most so many graphs.")] = None,
    json: Json = False,
    debug: Debug = False,
) -> None:
    """Capture the public corpus: architectures of transformers and the zoo's families, split into train and valid by
    family. Needs torch and transformers."""
    from loadmaster.zoo.public import make_corpus

    if folder.exists() and not folder.is_dir():
        raise UnreadableFile(f"'{folder}' is not a folder", "FOLDER", "give a folder, new or of an earlier run")
    counts = make_corpus(folder, seed, limit, lambda text: print(text, file=sys.stderr, flush=True))
    if json:
        print_json({"folder": str(folder), "seed": seed, **counts})
    else:
        print(f"{counts['train']} graphs in {folder}/train.jsonl.xz, {counts['valid']} in {folder}/valid.jsonl.xz")


@lab_app.command()
@verb
def bench(
    what: Annotated[
        list[str],
        typer.Argument(
            metavar="SUITE | best SUITE",
            help="regal, regal-unlike, regal-time, go, go-fusion, joint, placeto, families, mirhoseini, "
            "peers-zoo, tight, synthetic or zoo; 'best' looks for best-known values by long runs.",
        ),
    ],
    methods: Annotated[
        str | None, typer.Option("--method", metavar="A,B,C", help="Methods. [default: those of the suite]")
    ] = None,
    seeds: Annotated[int | None, typer.Option("--seeds", min=1, help="[default: 3; 1 for best]")] = None,
    simulations: Simulations = None,
    seconds: Annotated[float | None, typer.Option("--seconds", help="Time for each search.")] = None,
    times: Annotated[
        float | None, typer.Option("--times-baseline", help="As long as the baseline took, so many times, if more.")
    ] = None,
    corpus: Annotated[Path | None, typer.Option("--corpus", metavar="FILE", help="Graphs, one a line.")] = None,
    mode: Annotated[
        Literal["training", "inference", "all"], typer.Option("--mode", help="Of its graphs.")
    ] = "training",
    limit: Annotated[int | None, typer.Option("--limit", min=1, help="At most so many graphs.")] = None,
    part: Annotated[str | None, typer.Option("--part", metavar="K/N", help="Every N-th graph, from the K-th.")] = None,
    out: Annotated[
        Path,
        typer.Option("--out", metavar="FOLDER", help="Where results are kept; a run that was stopped is continued."),
    ] = Path("results"),
    best: Annotated[
        Path | None, typer.Option("--best", metavar="FILE", help="Another file of best-known values.")
    ] = None,
    again: Annotated[bool, typer.Option("--again", help="Run what is finished once more.")] = False,
    ray: Ray = None,
    json: Json = False,
    debug: Debug = False,
) -> None:
    """Run every method on every problem of a suite and print the tables. A run that was stopped continues."""
    from loadmaster.bench.command import BenchSettings, call, parse_part
    from loadmaster.bench.rows import Source
    from loadmaster.bench.suite import Allowance
    from loadmaster.report.screen import solving

    given = (simulations, seconds, times)
    allowance = None if given == (None, None, None) else Allowance(*given)
    source = Source(corpus, mode, limit, parse_part(part))
    specs = None if methods is None else words.split_specs(methods)
    found = call(what, BenchSettings(specs, seeds, allowance, source, out, best, again, solving, ray=ray or ""))
    if json:
        print_json({"suites": [report.as_data() for report in found]})
    else:
        print(printable("\n".join(report.text() for report in found)))
    if any(report.outcome.failed or report.outcome.stopped for report in found):
        raise typer.Exit(1)


@lab_app.command()
@verb
def train(
    policy: Annotated[
        Literal["regal", "gas", "go", "placeto", "plans"],
        typer.Argument(
            metavar="POLICY",
            show_default=False,
            help="regal, gas, go or placeto; plans: a library.",
        ),
    ],
    out: Annotated[Path, typer.Option("--out", metavar="FOLDER", help="Where to; a run that is there is continued.")],
    corpus: Annotated[
        str,
        typer.Option(
            "--corpus",
            metavar="FILE",
            help="Graphs to learn from, one a line. [default for go, regal, gas: zoo,generated]",
        ),
    ] = "",
    valid: Annotated[
        Path | None,
        typer.Option("--valid", metavar="FILE", help="Graphs to choose weights by. [default: some of the corpus]"),
    ] = None,
    settings: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="NAME=VALUE", help="A setting of that policy's training, e.g. steps=200."),
    ] = None,
    minutes: Annotated[float | None, typer.Option("--minutes", min=0.01, help="Stop by then. [default: never]")] = None,
    workers: Annotated[
        int | None, typer.Option("--workers", min=0, help="Processes that simulate; 0: one per core. [default: 0]")
    ] = None,
    device: Annotated[
        Literal["auto", "cpu", "cuda"] | None, typer.Option("--device", help="Of the network. [default: auto]")
    ] = None,
    seed: Seed = 0,
    json: Json = False,
    debug: Debug = False,
) -> None:
    """Train a policy by what its plans are worth in the simulator, or keep the plans of long searches. Needs torch."""
    try:
        from loadmaster.papers import training
    except ModuleNotFoundError as error:
        raise MissingExtra.of(error.name or "torch", "torch", "training a policy") from error
    if out.exists() and not out.is_dir():
        raise UnreadableFile(f"'{out}' is not a folder", "--out", "give a folder, new or of an earlier run")
    given = dict(_named(text) for text in settings or ())
    named = {"minutes": minutes, "workers": workers, "valid": valid, "seed": seed, "device": device}
    given |= {name: str(value) for name, value in named.items() if value is not None}
    chosen = training.make_settings(policy, {**given, "corpus": corpus, "out": str(out)})
    with redirect_stdout(sys.stderr):  # progress; the answer alone goes to stdout
        weights = training.train(chosen)
    if not weights.is_file():
        what = f"none of the graphs of '{valid or corpus}' is fit to choose weights by, so none were kept"
        raise InvalidSetting(what, "", "give more graphs, or others with --valid")
    card = out / "card.json"
    what = "plans" if policy == "plans" else "weights"
    print(card.read_text() if json else f"{what} written to {weights}, their card to {card}", end="" if json else "\n")


@lab_app.command()
@verb
def pack(
    lifetimes: Annotated[
        Path, typer.Argument(metavar="LIFETIMES", help="A CSV file with columns id, lower, upper and size.")
    ],
    capacity: Annotated[str, typer.Option("--capacity", metavar="BYTES", help="Room for all: 1048576, 16MiB.")],
    out: Annotated[Path, typer.Option("--out", metavar="FILE", help="Write id and offset to this CSV file.")],
    seconds: Annotated[float, typer.Option("--seconds", help="How long to look for offsets.")] = 300.0,
    json: Json = False,
    debug: Debug = False,
) -> None:
    """Give blocks of memory offsets within a capacity: no two alive at once overlap. Exit 3 when they do not fit."""
    from loadmaster.cli.pack import pack as packed

    told = packed(lifetimes, capacity, out, seconds)
    if json:
        print_json(told)
        return
    arena, most = told["arena_bytes"], told["peak_bytes"]
    print(f"{told['blocks']} blocks in {arena:,} bytes; {most:,} are alive at once; offsets written to {out}")


def _named(text: str) -> tuple[str, str]:
    name, sign, value = text.partition("=")
    if not sign:
        raise InvalidSetting(f"'{text}' sets nothing", "--set", "write NAME=VALUE, as in --set steps=200")
    return name.replace("-", "_"), value
