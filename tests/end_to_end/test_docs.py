"""The site: a page per verb with its options, every page in the navigation, and a notebook that runs."""

from __future__ import annotations

import importlib.util
import json
import re
from pathlib import Path
from typing import Any

import pytest
import typer

from loadmaster.cli.verbs import app
from tests.end_to_end.conftest import ROOT

DOCS = ROOT / "docs"
VERBS: dict[str, Any] = typer.main.get_command(app).commands  # type: ignore[attr-defined]


def hook() -> Any:
    spec = importlib.util.spec_from_file_location("options_hook", DOCS / "options_hook.py")
    assert spec and spec.loader
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize("verb", sorted(VERBS))
def test_every_verb_has_a_page_and_all_its_options_on_it(verb: str) -> None:
    page = (DOCS / "verbs" / f"{verb}.md").read_text()
    assert page.startswith(f"# {verb}: ")
    shown = hook().on_page_markdown(page)
    words = VERBS["lab"].commands.values() if verb == "lab" else [VERBS[verb]]
    for param in (param for word in words for param in word.params):
        for name in (*param.opts, *param.secondary_opts):
            assert not name.startswith("--") or f"`{name}`" in shown, name
    mentioned = set(re.findall(r"--[a-z][a-z-]+", page)) - {"--help"}
    groups = (getattr(other, "commands", {}).values() for other in VERBS.values())
    everywhere = [*VERBS.values(), *(word for group in groups for word in group)]
    params = [param for other in everywhere for param in other.params]
    known = {name for param in params for name in (*param.opts, *param.secondary_opts)}
    assert mentioned <= known, mentioned - known


def test_every_page_is_in_the_navigation() -> None:
    listed = set(re.findall(r"([\w./-]+\.(?:md|ipynb))", (ROOT / "mkdocs.yml").read_text()))
    there = {str(path.relative_to(DOCS)) for kind in ("*.md", "*.ipynb") for path in DOCS.rglob(kind)}
    assert listed == {page for page in there if not page.startswith("log/")}, "history is outside the navigation"


@pytest.mark.parametrize("path", sorted(DOCS.rglob("*.md")), ids=lambda path: path.name)
def test_links_of_the_site_stay_in_it(path: Path) -> None:
    """`mkdocs build --strict` refuses others."""
    for target in re.findall(r"\]\(([^)#:]+)(?:#[^)]*)?\)", path.read_text()):
        assert (path.parent / target).resolve().is_relative_to(DOCS), target


@pytest.mark.parametrize("path", sorted(DOCS.rglob("*.ipynb")), ids=lambda path: path.name)
def test_notebooks_run(path: Path, folder: Path) -> None:
    """Cell by cell in one namespace, as a kernel would; what a cell ends with can show itself."""
    book = json.loads(path.read_text())
    space: dict[str, Any] = {"__name__": "__main__"}
    shown = 0
    for cell in book["cells"]:
        if cell["cell_type"] != "code":
            continue
        assert cell["outputs"] == [], "notebooks are kept without outputs"
        *lines, last = "".join(cell["source"]).splitlines()
        if re.fullmatch(r"\w+", last):
            exec("\n".join(lines), space)
            value = space[last]
            shown += hasattr(value, "_repr_html_")
            assert value._repr_html_() if hasattr(value, "_repr_html_") else repr(value)
        else:
            exec("\n".join([*lines, last]), space)
    assert shown
