"""How much code the default search is, how much of it a plan runs, and how many functions are compiled.

    python benchmarks/size.py

Lines and numbers are those of the packages that `auto` is made of. A tuning number is any number in them but 0, 1, 2
and -1, whether it has a name or not. Functions are those (`def` and `lambda`) that `loadmaster plan zoo:gnmt-4 --on
4xp100-pcie --simulations 300` runs: the first time in a process, and again in the same one; modules are all that it has
imported then. A compiled function is one with the decorator `compiled`, or `part` of the simulator.
"""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

SOURCE = Path(__file__).parents[1] / "src" / "loadmaster"
ENGINE = ("methods/default", "methods/annealing", "baselines/fusion")
PLAIN = {0, 1, 2, -1}  # numbers that tune nothing
PLAN = ("plan", "zoo:gnmt-4", "--on", "4xp100-pcie", "--simulations", "300")

COUNT = """
import sys
seen, ours = set(), {source!r}
def look(frame, event, given):
    code = frame.f_code
    if event == "call" and code.co_filename.startswith(ours) and (code.co_name[0] != "<" or code.co_name == "<lambda>"):
        seen.add((code.co_filename, code.co_firstlineno, code.co_name))
from loadmaster.cli.verbs import main
def plan():
    seen.clear()
    sys.argv = ["loadmaster", *{plan!r}]
    sys.setprofile(look)
    try:
        main()
    except SystemExit:
        pass
    sys.setprofile(None)
    return len(seen)
counts = plan(), plan()
modules = sum(name.split(".")[0] == "loadmaster" for name in sys.modules)
print("COUNTED", *counts, modules)
"""


def tuning_numbers(tree: ast.AST) -> int:
    """Numbers in the code. Subscripts are places, and a range that names are unpacked from numbers them."""
    slices = [node.slice for node in ast.walk(tree) if isinstance(node, ast.Subscript)]
    slices += [
        node.value
        for node in ast.walk(tree)
        if isinstance(node, ast.Assign)
        and isinstance(node.targets[0], ast.Tuple)
        and isinstance(node.value, ast.Call)
        and getattr(node.value.func, "id", "") == "range"
    ]
    places = {id(inner) for outer in slices for inner in ast.walk(outer)}
    numbers = (node for node in ast.walk(tree) if isinstance(node, ast.Constant) and id(node) not in places)
    return sum(type(node.value) in (int, float) and node.value not in PLAIN for node in numbers)


def compiled_functions() -> int:
    """In all of the source."""
    trees = (ast.parse(file.read_text()) for file in SOURCE.rglob("*.py"))
    made = (node for tree in trees for node in ast.walk(tree) if isinstance(node, ast.FunctionDef))
    return sum(any(_is_compiled(one) for one in node.decorator_list) for node in made)


def _is_compiled(decorator: ast.expr) -> bool:
    name = decorator.func if isinstance(decorator, ast.Call) else decorator
    return isinstance(name, ast.Name) and name.id in ("compiled", "part")


def main() -> None:
    balancing = sorted((SOURCE / "methods/default").glob("*balancing.py"))
    rooms = {room: sorted({*(SOURCE / room).rglob("*.py")} - {*balancing}) for room in ENGINE}
    for room, files in (rooms | {"balancing, for peak memory": balancing}).items():
        texts = [file.read_text() for file in files]
        lines = sum(len(text.splitlines()) for text in texts)
        numbers = sum(tuning_numbers(ast.parse(text)) for text in texts)
        print(f"{room:26} {len(files):3} files {lines:5} lines {numbers:4} tuning numbers")
    print(f"{compiled_functions()} compiled functions")
    code = COUNT.format(source=str(SOURCE), plan=PLAN)
    for _ in range(2):  # the first process may compile
        done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    first, again, modules = done.stdout.split("COUNTED")[1].split()
    print(f"loadmaster {' '.join(PLAN)}: {again} functions ({first} the first time), {modules} modules")


if __name__ == "__main__":
    main()
