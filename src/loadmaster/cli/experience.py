"""`tools list plans`: the plans found before, which searches begin from."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from loadmaster.cli.guarding import print_json

if TYPE_CHECKING:
    from loadmaster.methods.experience import Store


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
