"""What `--help` prints: the verbs of every day before the groups of others, and a dozen options before the rest."""

from __future__ import annotations

from typing import Annotated, Any

import typer
from typer.core import TyperCommand, TyperGroup

DAILY = ("plan", "compare", "explain", "run", "export", "fits", "measure")
SHOWN: tuple[str, ...] = (
    "model",
    "on",
    "objective",
    "memory_limit",
    "seconds",
    "method",
    "microbatches",
    "split",
    "serve",
)  # of `plan`
SHOWN += ("save", "report", "json", "help", "help_all")
HELP_ALL = "--help-all"

_NOW = {name: f"lab {name}" for name in ("bench", "generate", "train", "pack")}
_NOW |= {name: f"tools {name}" for name in ("simulate", "inspect", "diff", "plot", "race", "tradeoff", "list")}
_NOW |= {"plans list": "tools list plans", "plans clear": "tools forget", "plans": "tools list plans"}
_NOW |= {"list optimizers": "tools list methods"}


class Verbs(TyperGroup):
    """The verbs; a word that the command line once had is refused with the one it has now."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        if any(word.partition("=")[0] == "--with" for word in args):
            ctx.fail("`--with` is now `--method`")
        for old in (" ".join(args[:2]), *args[:1]):
            if old in _NOW:
                ctx.fail(f"`{old}` is now `{_NOW[old]}`")
        return super().parse_args(ctx, args)

    def format_commands(self, ctx: Any, formatter: Any) -> None:
        groups = [name for name in self.commands if name not in DAILY]
        for title, names in (("Verbs", DAILY), ("Groups of verbs", groups)):
            rows = [(name, self.commands[name].get_short_help_str(200)) for name in names]
            with formatter.section(title):
                formatter.write_dl(rows)


def _show_all(context: typer.Context, wanted: bool) -> None:
    if wanted:
        context.meta[HELP_ALL] = True
        typer.echo(context.get_help())
        raise typer.Exit()


HelpAll = Annotated[
    bool,
    typer.Option(HELP_ALL, is_eager=True, callback=_show_all, show_default=False, help="Show all options, by subject."),
]


class LongVerb(TyperCommand):
    """A verb with more options than a screen holds: `--help` shows the dozen of every day, `--help-all` all of them."""

    def format_options(self, ctx: Any, formatter: Any) -> None:
        everything = ctx.meta.get(HELP_ALL, False)
        sections: dict[str, list[tuple[str, str]]] = {}
        for param in self.get_params(ctx):
            record = param.get_help_record(ctx)
            if record is None or not (everything or param.name in SHOWN):
                continue
            title = "Arguments" if param.param_type_name == "argument" else "Options"
            subject = getattr(param, "rich_help_panel", None) if everything else None
            sections.setdefault(subject or title, []).append(record)
        for title, rows in sections.items():
            with formatter.section(title):
                formatter.write_dl(rows)
