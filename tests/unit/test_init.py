"""The public names, as data."""

import ast
import subprocess
import sys
from pathlib import Path

import pytest

import loadmaster
from loadmaster import errors

VERBS = {
    "plan",
    "load",
    "load_plan",
    "save_plan",
    "price",
    "solve",
    "simulate",
    "simulate_many",
    "check",
    "settle",
    "fuse",
    "lower_bound",
    "explain",
    "diff",
    "apply",
    "make_optimizer",
}
TYPES = {"Graph", "GraphBuilder", "Cluster", "Device", "Budget", "Plan", "Problem", "Timeline", "Result"}
TYPES |= {"Search", "Optimizer", "Score"}
ERRORS = {kind.__name__ for kind in (errors.LoadmasterError, *errors.LoadmasterError.__subclasses__())}


def test_exports_are_exactly_these():
    assert set(loadmaster.__all__) == VERBS | TYPES | ERRORS | {"__version__"}
    assert len(loadmaster.__all__) == len(set(loadmaster.__all__))


@pytest.mark.parametrize("name", sorted(VERBS | TYPES | ERRORS))
def test_each_name_is_there_and_no_module(name):
    value = getattr(loadmaster, name)
    assert callable(value)
    assert value.__module__.startswith("loadmaster.")


def test_type_checkers_see_the_same_names_from_the_same_modules():
    tree = ast.parse(Path(loadmaster.__file__).read_text())
    imports = [
        node
        for node in ast.walk(tree)
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("loadmaster.")
    ]
    seen = {alias.asname: node.module for node in imports for alias in node.names}
    assert seen == {name: f"loadmaster.{home}" for name, home in loadmaster._HOMES.items()}


def test_a_submodule_of_the_same_name_does_not_hide_the_function():
    code = "import loadmaster.report.explain, loadmaster; assert callable(loadmaster.plan), loadmaster.plan"
    subprocess.run([sys.executable, "-c", code], check=True)


def test_unknown_names_are_refused():
    with pytest.raises(AttributeError, match="no attribute 'sollve'"):
        _ = loadmaster.sollve


def test_import_is_light():
    heavy = "numpy numba torch scipy onnx rich typer"
    code = f"import sys, loadmaster; print([m for m in '{heavy}'.split() if m in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True)
    assert done.stdout.strip() == "[]"


def test_version_is_the_packages():
    from importlib.metadata import version

    assert loadmaster.__version__ == version("loadmaster")
