"""Which small mistakes the tests catch: one change to the source at a time, then the tests of that room.

    python benchmarks/mutants.py [--count 60] [--seed 0] [--seconds 300] [PATH ...]

A mutant swaps a comparison, an arithmetic operator, min and max, and and or, drops a `not`, or adds one to a whole
number. The sites are drawn at random from the files under PATH (default: plans, problem, search, simulator,
passes, optimizers, learn). Tests run are those of the nearest folder of tests/unit that mirrors the file, with the
properties of the simulator and the promises of optimizers where they apply. One that runs out of time is counted apart:
an endless loop is a mistake that is seen, a busy machine is not. Survivors are printed with their line; some are
equivalent to the source and need a look.
"""

from __future__ import annotations

import argparse
import ast
import os
import random
import shutil
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
ROOMS = ("plans", "problem", "search", "simulator", "passes", "optimizers", "learn")
SWAPS: dict[type[ast.AST], type[ast.AST]] = {
    ast.Lt: ast.LtE,
    ast.LtE: ast.Lt,
    ast.Gt: ast.GtE,
    ast.GtE: ast.Gt,
    ast.Eq: ast.NotEq,
    ast.NotEq: ast.Eq,
    ast.Add: ast.Sub,
    ast.Sub: ast.Add,
    ast.Mult: ast.FloorDiv,
    ast.FloorDiv: ast.Mult,
    ast.And: ast.Or,
    ast.Or: ast.And,
}
KILLED, SURVIVED, OUT_OF_TIME = "killed", "SURVIVED", "out of time"
NAMES = {"min": "max", "max": "min", "minimum": "maximum", "maximum": "minimum", "argmin": "argmax", "argmax": "argmin"}


@dataclass(frozen=True)
class Site:
    """The n-th place of a file where a small mistake can be made."""

    file: Path
    number: int


def sites_in(tree: ast.AST) -> Iterator[ast.AST]:
    """Nodes of which something can be changed, in a fixed order; annotations are left alone."""
    for node in _code(tree):
        if _can_change(node):
            yield node


def _can_change(node: ast.AST) -> bool:
    if isinstance(node, ast.Compare):
        return len(node.ops) == 1 and type(node.ops[0]) in SWAPS
    if isinstance(node, (ast.BinOp, ast.BoolOp)):
        return type(node.op) in SWAPS
    if isinstance(node, ast.UnaryOp):
        return isinstance(node.op, ast.Not)
    if isinstance(node, ast.Constant):
        return type(node.value) is int
    return getattr(node, "id", None) in NAMES or getattr(node, "attr", None) in NAMES


def _code(tree: ast.AST) -> Iterator[ast.AST]:
    for field, value in ast.iter_fields(tree):
        if field in ("annotation", "returns"):
            continue
        for child in value if isinstance(value, list) else [value]:
            if isinstance(child, ast.AST):
                yield child
                yield from _code(child)


def mutated(source: str, number: int) -> tuple[str, int]:
    """(the source with its n-th mistake, the line of it)."""
    tree = ast.parse(source)
    node = list(sites_in(tree))[number]
    line = node.lineno  # type: ignore[attr-defined]
    if isinstance(node, ast.Compare):
        node.ops = [SWAPS[type(node.ops[0])]()]  # type: ignore[list-item]
    elif isinstance(node, (ast.BinOp, ast.BoolOp)):
        node.op = SWAPS[type(node.op)]()  # type: ignore[assignment]
    elif isinstance(node, ast.UnaryOp):
        node.op = ast.UAdd()
        node.operand = ast.Call(ast.Name("bool", ast.Load()), [node.operand], [])
    elif isinstance(node, ast.Constant):
        node.value = int(node.value) + 1  # type: ignore[arg-type]
    elif isinstance(node, ast.Name):
        node.id = NAMES[node.id]
    elif isinstance(node, ast.Attribute):
        node.attr = NAMES[node.attr]
    return ast.unparse(ast.fix_missing_locations(tree)), line


def tests_of(file: Path) -> list[str]:
    """The tests that guard a file: of its name where there are any, else of the nearest room that has some."""
    inside = file.relative_to(ROOT / "src" / "loadmaster")
    unit = Path("tests/unit") / inside.parent
    named = ROOT / unit / f"test_{inside.stem}.py"
    while not any((ROOT / unit).glob("test_*.py")):
        unit = unit.parent
    chosen = [str(named.relative_to(ROOT))] if named.exists() else [str(unit)]
    chosen += ["tests/properties/test_simulator.py"] if inside.parts[0] in ("simulator", "problem.py", "passes") else []
    chosen += ["tests/promises"] if inside.parts[0] in ("optimizers", "search.py") else []
    return chosen


def killed(site: Site, copy: Path, seconds: float) -> tuple[str, int]:
    target = copy / site.file.relative_to(ROOT)
    source = site.file.read_text()
    text, line = mutated(source, site.number)
    target.write_text(text)
    settings = os.environ | {"PYTHONPATH": str(copy / "src"), "OMP_NUM_THREADS": "1", "PYTHONDONTWRITEBYTECODE": "1"}
    settings |= {"LOADMASTER_CACHE": str(Path(tempfile.gettempdir()) / "loadmaster-mutants")}
    command = [sys.executable, "-m", "pytest", "-x", "-q", "-p", "no:xdist", *tests_of(site.file)]
    try:
        done = subprocess.run(command, cwd=copy, env=settings, capture_output=True, timeout=seconds, check=False)
        return KILLED if done.returncode else SURVIVED, line
    except subprocess.TimeoutExpired:
        return OUT_OF_TIME, line
    finally:
        target.write_text(source)


def all_sites(paths: list[Path]) -> list[Site]:
    files = [file for path in paths for file in (sorted(path.rglob("*.py")) if path.is_dir() else [path])]
    return [
        Site(file, number)
        for file in files
        for number in range(sum(1 for _ in sites_in(ast.parse(file.read_text()))))
        if file.name != "__init__.py"
    ]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0] if __doc__ else "")
    parser.add_argument("paths", nargs="*", type=Path)
    parser.add_argument("--count", type=int, default=60)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--seconds", type=float, default=300.0)
    given = parser.parse_args()
    home = ROOT / "src" / "loadmaster"
    sites = all_sites(
        [path.resolve() for path in given.paths] or [home / room for room in ROOMS if (home / room).exists()]
    )
    drawn = random.Random(given.seed).sample(sites, min(given.count, len(sites)))
    with tempfile.TemporaryDirectory() as folder:
        copy = Path(folder)
        for part in ("src", "tests", "docs", "benchmarks"):
            shutil.copytree(ROOT / part, copy / part, ignore=shutil.ignore_patterns("__pycache__"))
        for file in ("pyproject.toml", "README.md"):
            shutil.copy(ROOT / file, copy / file)
        seen: Counter[str] = Counter()
        for at, site in enumerate(drawn, 1):
            verdict, line = killed(site, copy, given.seconds)
            seen[verdict] += 1
            where = f"{site.file.relative_to(ROOT)}:{line}"
            print(f"{at}/{len(drawn)} {verdict:11} {where} #{site.number}", flush=True)
    share = f"{100 * seen[KILLED] / max(1, len(drawn) - seen[OUT_OF_TIME]):.0f} %"
    ended = f"{seen[KILLED]} killed and {seen[SURVIVED]} not ({share}), {seen[OUT_OF_TIME]} out of time"
    print(f"{len(drawn)} of {len(sites):,} places: {ended}")


if __name__ == "__main__":
    main()
