"""Writes afresh the numbers that modules and functions begin with: python -m tests.golden.constants

Limits of effort, sizes and shares stand at the head of a module or behind an argument's name. Small problems do not
reach most of them, and figures in the documents are of these: one that changes unawares makes them wrong.
"""

from __future__ import annotations

import ast
import importlib
import inspect
import json
import pkgutil
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

FILE = Path(__file__).with_suffix(".json")
ROOMS = ("optimizers", "passes", "plans", "problem", "search", "simulator")


def modules() -> Iterator[ModuleType]:
    for room in ROOMS:
        package = importlib.import_module(f"loadmaster.{room}")
        for module in pkgutil.walk_packages(package.__path__, f"{package.__name__}."):
            yield importlib.import_module(module.name)


def constants() -> dict[str, dict[str, str]]:
    """By module; those of a function or method under its name."""
    return {module.__name__: found for module in modules() if (found := dict(_constants(module)))}


def _constants(module: ModuleType) -> Iterator[tuple[str, str]]:
    tree = ast.parse(inspect.getsource(module))
    own = {node.id for line in tree.body if isinstance(line, (ast.Assign, ast.AnnAssign)) for node in _names(line)}
    for name, value in vars(module).items():
        function = getattr(value, "py_func", value)  # of a compiled one
        if name in own and name.strip("_").isupper() and _plain(value):
            yield name, repr(value)
        elif inspect.isfunction(function) and function.__module__ == module.__name__:
            yield from _defaults(name, function)
        elif inspect.isclass(value) and value.__module__ == module.__name__:
            for inner, method in vars(value).items():
                if inspect.isfunction(method) and method.__code__.co_filename == module.__file__:
                    yield from _defaults(f"{name}.{inner}", method)


def _names(line: ast.Assign | ast.AnnAssign) -> Iterator[ast.Name]:
    """Those that the line gives a value."""
    targets = line.targets if isinstance(line, ast.Assign) else [line.target]
    return (node for target in targets for node in ast.walk(target) if isinstance(node, ast.Name))


def _defaults(name: str, function: Any) -> Iterator[tuple[str, str]]:
    for given in inspect.signature(function).parameters.values():
        if given.default is not given.empty and _plain(given.default):
            yield f"{name}({given.name})", repr(given.default)


def _plain(value: Any) -> bool:
    if isinstance(value, (tuple, list)):
        return all(map(_plain, value))
    if isinstance(value, dict):
        return all(map(_plain, (*value.keys(), *value.values())))
    return value is None or (isinstance(value, (bool, int, float, str)) and type(value).__module__ == "builtins")


def main() -> None:
    rows = [f"{json.dumps(name)}: {json.dumps(found)}" for name, found in constants().items()]
    FILE.write_text("{\n" + ",\n".join(rows) + "\n}\n")


if __name__ == "__main__":
    main()
