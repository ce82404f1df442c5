"""Plans found before: which of them a search begins from, and what lists them."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from loadmaster.cli.guarding import print_json

if TYPE_CHECKING:
    from loadmaster.methods.experience import Store
    from loadmaster.problem import Problem
    from loadmaster.search import Budget, Result, Start

LIKE_HELP = "Warm-start from this plan of a similar model or cluster, or from a library (loadmaster lab train plans)."
EXPERIENCE_HELP = "Warm-start from your earlier plans of similar problems. [default: with --seconds and no --method]"


def store_for(wanted: bool | None, budget: Budget, named: bool) -> Store | None:
    """The user's store, where it is to be used."""
    by_default = budget.simulations is None and not named
    if not (by_default if wanted is None else wanted):
        return None
    from loadmaster.methods.experience import Store

    return Store.default()


def starts_for(problem: Problem, like: Path | None, store: Store | None) -> list[Start]:
    """Plans to begin from: those of `--like`, then the most alike of the user's own."""
    if like is None and store is None:
        return []
    from loadmaster.cli.stages import status
    from loadmaster.methods.experience import starts_from

    given = [] if like is None else starts_from(like, problem)
    if store is None:
        return given
    with status("looking for plans of similar problems"):
        return [*given, *store.starts(problem)]


def tell_starts(result: Result) -> None:
    """Says which earlier plans a search began from."""
    if result.started_from:
        print(f"warm-started from earlier plans: {', '.join(result.started_from)}")


def listed(store: Store | None) -> dict[str, Any]:
    """What `tools list plans` shows, as data."""
    entries = [] if store is None else store.entries()
    rows = [
        {
            "model": entry.model,
            "cluster": entry.cluster,
            "objective": entry.objective,
            "value": entry.value,
            "ops": entry.ops,
        }
        for entry in entries
    ]
    folder = None if store is None else str(store.folder)
    return {"folder": folder, "bytes": 0 if store is None else store.nbytes, "plans": rows}


def show_list(store: Store | None) -> None:
    """Prints what `tools list plans` shows."""
    from loadmaster.errors import printable
    from loadmaster.problem.objective import objective_named
    from loadmaster.report.units import size_text, value_text

    known = listed(store)
    if not known["plans"]:
        print("no plans are kept" if store is not None else "plans are not kept: LOADMASTER_PLANS is off")
        return
    for row in known["plans"]:
        shown = value_text(objective_named(row["objective"]))(row["value"])
        print(printable(f"{shown:>10}  {row['objective']:11}  {row['model']} ({row['ops']:,} ops) on {row['cluster']}"))
    print(f"{len(known['plans'])} plans, {size_text(known['bytes'])}, in {known['folder']}")


def list_plans(json: bool) -> None:
    """`loadmaster tools list plans`."""
    from loadmaster.methods.experience import Store

    if json:
        print_json(listed(Store.default()))
    else:
        show_list(Store.default())
