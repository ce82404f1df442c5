"""Verbs over what is kept: models of the zoo, and plans found before."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from loadmaster.cli import experience as experiences
from loadmaster.cli import stages
from loadmaster.cli.guarding import print_json, verb
from loadmaster.cli.options import Debug, Json
from loadmaster.errors import MissingExtra, printable

zoo_app = typer.Typer(
    help="Real models to plan without bringing one.", invoke_without_command=True, rich_markup_mode=None
)
plans_app = typer.Typer(
    help="Plans found before, from which searches on similar problems begin.",
    no_args_is_help=True,
    rich_markup_mode=None,
)


@plans_app.command("list")
@verb
def plans_list(json: Json = False, debug: Debug = False) -> None:
    """List the plans found before, the last used first."""
    from loadmaster.methods.experience import Store

    if json:
        print_json(experiences.listed(Store.default()))
    else:
        experiences.show_list(Store.default())


@plans_app.command("clear")
@verb
def plans_clear(json: Json = False, debug: Debug = False) -> None:
    """Forget the plans found before."""
    from loadmaster.methods.experience import Store

    store = Store.default()
    removed = 0 if store is None else store.clear()
    if json:
        print_json({"removed": removed})
    else:
        print(f"{removed} plans removed")


@zoo_app.callback()
def zoo(context: typer.Context, json: Json = False, debug: Debug = False) -> None:
    """Real models to plan without bringing one: list them, or capture one again."""
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
        screen.print(f"\nmade by 'loadmaster zoo capture NAME', which needs torch: {', '.join(others)}")


@zoo_app.command("capture")
@verb
def zoo_capture(
    name: Annotated[str, typer.Argument(metavar="NAME", help="A name from 'loadmaster zoo', with /train or /infer.")],
    out: Annotated[Path, typer.Option("--out", metavar="FOLDER", help="Where to.")] = Path("."),
    json: Json = False,
    debug: Debug = False,
) -> None:
    """Make the graph of a model in the zoo again from its source, without its weights. Needs torch."""
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
