"""mkdocs hook: puts the options of a verb, as the command line has them, where its page has a mark."""

from __future__ import annotations

import re
from typing import Any

MARK = re.compile(r"<!-- options: ([\w ]+) -->")


def options_table(verb: str) -> str:
    """Every option and argument of a verb, with its help."""
    import typer

    from loadmaster.cli.verbs import app

    found: Any = typer.main.get_command(app)
    for word in verb.split():
        found = found.commands[word]
    rows = ["| option | | |", "|---|---|---|"]
    for one in found.params:
        words = [name for name in (*one.opts, *one.secondary_opts) if name.startswith("-")]
        names = ", ".join(f"`{word}`" for word in words) or f"`{one.name.upper()}`"
        kind = f"`{one.metavar}`" if one.metavar else ""
        rows.append(f"| {names} | {kind} | {(getattr(one, 'help', '') or '').replace('|', chr(92) + '|')} |")
    return "\n".join(rows)


def on_page_markdown(markdown: str, **_: Any) -> str:
    return MARK.sub(lambda mark: options_table(mark[1]) + "\n\n", markdown)
