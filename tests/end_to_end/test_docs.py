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


def words_of(verbs: dict[str, Any], before: str = "") -> dict[str, Any]:
    """Every verb by what is typed: "plan", "tools diff"."""
    found = {f"{before}{name}": verb for name, verb in verbs.items()}
    return found | {word: verb for name, one in verbs.items() for word, verb in inner(one, f"{before}{name} ").items()}


def inner(verb: Any, before: str) -> dict[str, Any]:
    return words_of(getattr(verb, "commands", {}), before)


WORDS = {word: verb for word, verb in words_of(VERBS).items() if word not in ("tools", "lab")}


def test_every_verb_has_a_heading_and_all_its_options_under_it() -> None:
    pages = [(DOCS / "reference" / f"{name}.md").read_text() for name in ("verbs", "tools", "lab")]
    shown = "\n".join(hook().on_page_markdown(page) for page in pages)
    for word, verb in WORDS.items():
        assert re.search(rf"^## {word}\b", shown, re.MULTILINE), word
        for name in (name for param in verb.params for name in (*param.opts, *param.secondary_opts)):
            assert not name.startswith("--") or f"`{name}`" in hook().options_table(word), (word, name)
        assert any(f"<!-- options: {word} -->" in page for page in pages), word


@pytest.mark.parametrize("path", [*sorted(DOCS.rglob("*.md")), ROOT / "README.md"], ids=lambda path: path.name)
def test_options_that_a_page_names_are_options(path: Path) -> None:
    """Of loadmaster, in lines that begin with it."""
    if "log" in path.parts:
        return
    known = {name for verb in WORDS.values() for param in verb.params for name in (*param.opts, *param.secondary_opts)}
    lines = re.findall(r"^loadmaster .*$|`loadmaster [^`]*`", path.read_text().replace("\\\n", " "), re.MULTILINE)
    named = {name for line in lines for name in re.findall(r"(?<![\w-])--[a-z][a-z-]+", line)}
    assert named <= known | {"--version", "--help", "--help-all"}, named - known


def test_every_public_name_is_in_the_reference_with_an_example() -> None:
    import inspect

    import loadmaster as lm

    page = (DOCS / "reference" / "python.md").read_text()
    for name in (name for name in lm.__all__ if name != "__version__"):
        assert f"::: loadmaster.{name}\n" in page, name
        assert ">>> " in (inspect.getdoc(getattr(lm, name)) or ""), name


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
