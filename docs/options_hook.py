"""mkdocs hook: puts options of verbs and live pages of plans where a page has a mark for them."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

OPTIONS = re.compile(r"<!-- options: ([\w ]+) -->")
PAGE = re.compile(r"<!-- page: ([\w.-]+) -->")
GALLERY = Path(__file__).parent / "gallery"


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
        kind = f"`{one.metavar}`".replace("|", "\\|") if one.metavar else ""
        rows.append(f"| {names} | {kind} | {(getattr(one, 'help', '') or '').replace('|', chr(92) + '|')} |")
    return "\n".join(rows)


def live_page(name: str) -> str:
    """The page that `make docs` wrote, in a frame; nothing where it was not written."""
    if not (GALLERY / name).exists():
        return ""
    frame = f'<iframe src="gallery/{name}" title="The page of this plan" width="100%" height="620"></iframe>'
    return f'{frame}\n\n<p><a href="gallery/{name}">Open the page of this plan</a></p>'


def on_page_markdown(markdown: str, **_: Any) -> str:
    """Called by mkdocs for every page."""
    markdown = PAGE.sub(lambda mark: live_page(mark[1]), markdown)
    return OPTIONS.sub(lambda mark: options_table(mark[1]) + "\n\n", markdown)
