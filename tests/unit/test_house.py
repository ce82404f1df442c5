"""What holds of the source as a whole: a class name stands for one idea, all of it is typed, and what is public says
what it is."""

from __future__ import annotations

import ast
import gc
import re
from collections import Counter
from functools import cache
from pathlib import Path

import loadmaster
from loadmaster import errors

SOURCE = Path(loadmaster.__file__).parent


@cache
def trees() -> dict[str, ast.Module]:
    """Of all files. Nothing of a tree is garbage, and looking for some while they grow takes longer than to parse."""
    gc.disable()
    try:
        return {path.relative_to(SOURCE).as_posix(): ast.parse(path.read_text()) for path in SOURCE.rglob("*.py")}
    finally:
        gc.enable()


def classes() -> list[tuple[str, ast.ClassDef]]:
    return [(path, node) for path, tree in trees().items() for node in tree.body if isinstance(node, ast.ClassDef)]


def test_no_class_name_stands_twice() -> None:
    count = Counter(node.name for _, node in classes())
    assert {name: [path for path, node in classes() if node.name == name] for name in count if count[name] > 1} == {}


def test_modules_and_public_classes_say_what_they_are() -> None:
    silent = [path for path, tree in trees().items() if not ast.get_docstring(tree)]
    silent += [
        f"{path}: {node.name}" for path, node in classes() if node.name[0] != "_" and not ast.get_docstring(node)
    ]
    assert silent == []


def test_no_module_is_exempt_from_types() -> None:
    exempt = [path for path in trees() if "allow-untyped" in (SOURCE / path).read_text()]
    assert exempt == []
    for path, tree in trees().items():
        for node in ast.walk(tree):
            if isinstance(node, ast.FunctionDef):
                given = [*node.args.posonlyargs, *node.args.args, *node.args.kwonlyargs]
                bare = [one.arg for one in given if one.annotation is None and one.arg not in ("self", "cls")]
                assert node.returns is not None, f"{path}: {node.name}"
                assert not bare, f"{path}: {node.name}"


def test_no_constant_is_said_to_be_chosen_by_hand() -> None:
    """That is no reason."""
    assert [path for path in trees() if "chosen by hand" in (SOURCE / path).read_text().lower()] == []


def test_docstrings_name_fields_and_arguments_that_are_there() -> None:
    wrong = []
    for path, tree in trees().items():
        for node in ast.walk(tree):
            if isinstance(node, ast.ClassDef):
                fields = {part.target for part in node.body if isinstance(part, ast.AnnAssign)}
                plain = {name for part in node.body if isinstance(part, ast.Assign) for name in part.targets}
                there = {name.id for name in fields | plain if isinstance(name, ast.Name)}
                stored = [
                    part
                    for part in ast.walk(node)
                    if isinstance(part, ast.Attribute) and isinstance(part.ctx, ast.Store)
                ]
                there |= {part.attr for part in stored}
                wrong += [f"{path}: {node.name}: {name}" for name in told(node, "Attributes") if name not in there]
            elif isinstance(node, ast.FunctionDef):
                given = {one.arg for one in [*node.args.posonlyargs, *node.args.args, *node.args.kwonlyargs]}
                wrong += [f"{path}: {node.name}: {name}" for name in told(node, "Args") if name not in given]
                raised = {name for name in told(node, "Raises") if not hasattr(errors, name)}
                wrong += [f"{path}: {node.name}: {name}" for name in raised]
    assert wrong == []


def told(node: ast.ClassDef | ast.FunctionDef, section: str) -> list[str]:
    """Names that a section of its docstring explains."""
    found = re.search(rf"^{section}:\n((?: {{4}}.*\n?)+)", ast.get_docstring(node) or "", re.MULTILINE)
    heads = re.findall(r"^ {4}(\w+(?:, \w+)*):", found[1], re.MULTILINE) if found else []
    return [name for head in heads for name in head.split(", ")]
