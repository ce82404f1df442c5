"""`loadmaster zoo`: models that ship, or can be captured again."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from loadmaster.cli import stages
from loadmaster.cli.guarding import print_json, verb
from loadmaster.cli.options import Debug, Json
from loadmaster.errors import MissingExtra, printable

zoo_app = typer.Typer(
    help="Models that ship with loadmaster: list them, or capture one again.",
    invoke_without_command=True,
    rich_markup_mode=None,
)


@zoo_app.callback()
def zoo(context: typer.Context, json: Json = False, debug: Debug = False) -> None:
    """Models that ship with loadmaster: list them, or capture one again."""
    if context.invoked_subcommand is None:
        _list_zoo(json=json, debug=debug)


@verb
def _list_zoo(json: bool, debug: bool) -> None:
    from loadmaster.zoo import ENTRIES
    from loadmaster.zoo.shelf import shelf_rows

    rows = shelf_rows()
    shipped = {row["name"].rpartition("/")[0] for row in rows}
    others = [name for name in ENTRIES if name not in shipped]
    if json:
        print_json({"models": rows, "to_capture": others})
        return
    from loadmaster.report.terminal import console, zoo_models_table, zoo_table

    screen = console()
    screen.print(zoo_table(rows))
    screen.print()
    screen.print(zoo_models_table(rows))
    if others:
        screen.print(f"\n'loadmaster zoo capture NAME' makes these too (needs torch): {', '.join(others)}")


@zoo_app.command("capture")
@verb
def zoo_capture(
    name: Annotated[str, typer.Argument(metavar="NAME", help="A name from 'loadmaster zoo', with /train or /infer.")],
    out: Annotated[Path, typer.Option("--out", metavar="FOLDER", help="Where to write the graph.")] = Path("."),
    json: Json = False,
    debug: Debug = False,
) -> None:
    """Capture the graph of a zoo model again from its source. Needs torch."""
    from loadmaster.files import load_graph
    from loadmaster.zoo.shelf import capture

    stem = name.removeprefix("zoo:")
    try:
        with stages.status(f"capturing {stem}"):
            file = capture(stem, out)
            graph = load_graph(file)
    except ModuleNotFoundError as error:
        raise MissingExtra.of(error.name or "torch", "zoo", "capturing a model of the zoo") from error
    if json:
        facts = {"name": graph.name, "digest": graph.digest, "ops": graph.num_ops, "tensors": graph.num_tensors}
        print_json({"graph": facts, "file": str(file)})
    else:
        name = printable(graph.name)
        print(f"{name}: {graph.num_ops:,} ops, {graph.num_tensors:,} tensors, digest {graph.digest}, in {file}")
