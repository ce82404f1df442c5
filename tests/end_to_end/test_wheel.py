"""The built wheel holds what the package needs, and works from there."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from loadmaster import load, load_plan, price, simulate
from tests.end_to_end.conftest import ROOT

pytestmark = pytest.mark.full
NEEDED = ("src", "pyproject.toml", "README.md", "LICENSE")


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Built from a copy, so that nothing is left in the repository."""
    place = tmp_path_factory.mktemp("wheel")
    for name in NEEDED:
        source = ROOT / name
        ignore = shutil.ignore_patterns("__pycache__", "*.egg-info")
        (shutil.copytree(source, place / name, ignore=ignore) if source.is_dir() else shutil.copy(source, place))
    build = [
        sys.executable,
        "-m",
        "pip",
        "wheel",
        "--quiet",
        "--no-deps",
        "--disable-pip-version-check",
        ".",
        "-w",
        "out",
    ]
    # The environment's own setuptools is used where it is new enough, so that the test needs no network.
    if _setuptools_is_new_enough():
        build.insert(4, "--no-build-isolation")
    done = subprocess.run(build, cwd=place, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stderr
    return next((place / "out").glob("loadmaster-*.whl"))


def _setuptools_is_new_enough() -> bool:
    from importlib.metadata import PackageNotFoundError, version

    try:
        return int(version("setuptools").partition(".")[0]) >= 77
    except PackageNotFoundError:
        return False


def test_it_holds_every_file_of_the_package_and_nothing_else(wheel: Path) -> None:
    inside = {name for name in zipfile.ZipFile(wheel).namelist() if not name.partition("/")[0].endswith(".dist-info")}
    package = wheel.parents[1] / "src" / "loadmaster"
    ours = {f"loadmaster/{path.relative_to(package).as_posix()}" for path in package.rglob("*") if path.is_file()}
    assert inside == ours
    assert "loadmaster/py.typed" in inside
    graphs = {name for name in inside if name.startswith("loadmaster/zoo/graphs/") and name.endswith(".json.xz")}
    for name in ("rnnlm-2", "gnmt-4", "gnmt-8", "transformer-xl-2", "inception-v3-b32", "gpt2"):
        assert f"loadmaster/zoo/graphs/{name}.train.json.xz" in graphs


def test_it_says_what_it_is(wheel: Path) -> None:
    archive = zipfile.ZipFile(wheel)
    info = next(name.partition("/")[0] for name in archive.namelist() if ".dist-info/" in name)
    about = archive.read(f"{info}/METADATA").decode()
    assert "License-Expression: Apache-2.0" in about
    assert "Requires-Python: >=3.11" in about
    needs = [line for line in about.splitlines() if line.startswith("Requires-Dist:") and "extra ==" not in line]
    assert not any("torch" in line or "onnx" in line for line in needs)
    assert "loadmaster = loadmaster.__main__:main" in archive.read(f"{info}/entry_points.txt").decode()


def test_it_plans_a_shipped_model_from_where_it_is_unpacked(wheel: Path, tmp_path: Path) -> None:
    """With nothing compiled: the first answer of a new installation."""
    zipfile.ZipFile(wheel).extractall(tmp_path / "site")
    code = "import loadmaster as lm; print(lm.__file__); from loadmaster.cli.verbs import app; app()"
    plan = ("plan", "zoo:transformer-xl-2", "--on", "2xp100-pcie", "--method", "heft", "--save", "plan.json", "--json")
    env = {**os.environ, "PYTHONPATH": str(tmp_path / "site"), "LOADMASTER_CACHE": str(tmp_path / "cache")}
    program = [sys.executable, "-c", code, *plan]
    done = subprocess.run(program, cwd=tmp_path, env=env, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stderr
    place, _, answer = done.stdout.partition("\n")
    assert Path(place) == tmp_path / "site" / "loadmaster" / "__init__.py"
    problem = price(load("zoo:transformer-xl-2"), "2xp100-pcie")
    step_ns = simulate(problem, load_plan(tmp_path / "plan.json")).step_ns
    assert json.loads(answer)["step_ns"] == step_ns
