"""The public names, as data."""

import ast
import subprocess
import sys
from collections.abc import Callable
from importlib import import_module
from pathlib import Path

import numpy as np
import pytest

import loadmaster
import loadmaster as lm
from loadmaster import errors
from loadmaster.graph.columns import ints
from loadmaster.plans import Plan
from loadmaster.zoo.synthetic import generate

VERBS = {
    "plan",
    "load",
    "cost_of",
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
    "place",
    "make_method",
}
TYPES = {"Graph", "GraphBuilder", "Cluster", "Device", "Budget", "Plan", "Problem", "Timeline", "Result"}
TYPES |= {"Search", "Method", "Score"}
ERRORS = {kind.__name__ for kind in (errors.LoadmasterError, *errors.LoadmasterError.__subclasses__())}


def test_exports_are_exactly_these():
    assert set(loadmaster.__all__) == VERBS | TYPES | ERRORS | {"__version__"}
    assert len(loadmaster.__all__) == len(set(loadmaster.__all__))


@pytest.mark.parametrize("name", sorted(VERBS | TYPES | ERRORS))
def test_each_name_is_there_and_no_module(name):
    value = getattr(loadmaster, name)
    assert callable(value)
    assert value.__module__.startswith("loadmaster.")


DEFERRED = (
    "loadmaster",
    "loadmaster.compiled",
    "loadmaster.cost",
    "loadmaster.files",
    "loadmaster.simulator",
    "loadmaster.simulator.arenas",
)


@pytest.mark.parametrize("package", DEFERRED)
def test_type_checkers_see_the_same_names_from_the_same_modules(package: str) -> None:
    module = import_module(package)
    tree = ast.parse(Path(str(module.__file__)).read_text())
    imports = [node for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)]
    seen = {alias.asname: node.module for node in imports for alias in node.names if alias.asname}
    assert seen == {name: f"{package}.{home}" for name, home in module._HOMES.items()}
    assert set(seen) == set(module.__all__) - {"__version__"}
    for name, home in seen.items():
        assert getattr(module, name) is getattr(import_module(str(home)), name)


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


@pytest.mark.parametrize(
    "call",
    [
        lambda graph, problem, plan: lm.solve(graph),
        lambda graph, problem, plan: lm.simulate(graph, plan),
        lambda graph, problem, plan: lm.simulate_many(graph, plan.device[None]),
        lambda graph, problem, plan: lm.simulate_many(problem, plan.device),
        lambda graph, problem, plan: lm.lower_bound(graph),
        lambda graph, problem, plan: lm.check(problem, plan),
        lambda graph, problem, plan: lm.check(plan.device, problem),
    ],
)
def test_wrong_kinds_of_arguments_are_told(call: Callable[..., object]) -> None:
    graph = next(iter(generate("layered", 1, 0, (12, 16))))
    problem = lm.price(graph, "2xa100-nvlink")
    plan = Plan.of(problem, ints(np.zeros(problem.num_ops)))
    with pytest.raises(lm.InvalidSetting) as told:
        call(graph, problem, plan)
    assert told.value.fix
