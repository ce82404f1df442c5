"""What `--help` prints: the verbs of every day before the groups of others, and a dozen options before the rest."""

from __future__ import annotations

from collections import UserDict
from collections.abc import Mapping
from importlib import import_module
from typing import Annotated, Any

import typer
from typer.core import TyperCommand, TyperGroup

from loadmaster.cli.guarding import verb

DAILY = ("plan", "compare", "explain", "run", "export", "fits", "measure")
# Imported when they are typed, or listed: "module:what is in it".
ELSEWHERE: Mapping[str, str] = {
    "explain": "reports:explain",
    "run": "run:run",
    "export": "serve:export",
    "fits": "fits:fits",
    "measure": "measure:measure",
    "zoo": "zoo:zoo_app",
    "tools": "tools:tools_app",
    "lab": "lab:lab_app",
}
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

    def __init__(self, *, commands: Mapping[str, Any], **settings: Any) -> None:
        super().__init__(commands={}, **settings)
        self.commands: Any = _Commands({**commands, **ELSEWHERE})

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


class _Commands(UserDict[str, Any]):
    """Verbs by name, each imported when it is asked for."""

    def __getitem__(self, name: str) -> Any:
        found = self.data[name]
        if isinstance(found, str):
            module, _, attribute = found.partition(":")
            found = self.data[name] = _command(name, getattr(import_module(f"loadmaster.cli.{module}"), attribute))
        return found


def _command(name: str, found: Any) -> Any:
    """A verb of a function, or a group of verbs."""
    if isinstance(found, typer.Typer):
        found.info.name = name
        return typer.main.get_group(found)
    alone = typer.Typer(add_completion=False, pretty_exceptions_enable=False, rich_markup_mode=None)
    alone.command(name)(verb(found))
    return typer.main.get_command(alone)


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
