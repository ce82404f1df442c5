"""How much code the default search is, and how much of it a plan runs: lines, tuning numbers, functions, modules.

    python benchmarks/size.py

Lines and numbers are those of the packages that `auto` is made of. A tuning number is any number in them but 0, 1, 2
and -1, whether it has a name or not. Functions and modules are counted over one warm run of
`loadmaster plan zoo:gnmt-4 --on 4xp100-pcie --simulations 300`.
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
    if event == "call" and frame.f_code.co_filename.startswith(ours):
        seen.add((frame.f_code.co_filename, frame.f_code.co_firstlineno, frame.f_code.co_name))
from loadmaster.cli.verbs import main
sys.argv = ["loadmaster", *{plan!r}]
sys.setprofile(look)
try:
    main()
except SystemExit:
    pass
sys.setprofile(None)
modules = sum(name.split(".")[0] == "loadmaster" for name in sys.modules)
print("COUNTED", len(seen), len({{file for file, _, _ in seen}}), modules)
"""


def tuning_numbers(tree: ast.AST) -> int:
    """Numbers in the code, subscripts left out: these are places, not settings."""
    places = {id(inner) for node in ast.walk(tree) if isinstance(node, ast.Subscript) for inner in ast.walk(node.slice)}
    numbers = (node for node in ast.walk(tree) if isinstance(node, ast.Constant) and id(node) not in places)
    return sum(type(node.value) in (int, float) and node.value not in PLAIN for node in numbers)


def main() -> None:
    for room in ENGINE:
        files = sorted((SOURCE / room).rglob("*.py"))
        texts = [file.read_text() for file in files]
        lines = sum(len(text.splitlines()) for text in texts)
        numbers = sum(tuning_numbers(ast.parse(text)) for text in texts)
        print(f"{room:24} {len(files):3} files {lines:5} lines {numbers:4} tuning numbers")
    code = COUNT.format(source=str(SOURCE), plan=PLAN)
    for _ in range(2):  # the first one may compile
        done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    functions, files, modules = done.stdout.split("COUNTED")[1].split()
    print(f"loadmaster {' '.join(PLAN)}: {functions} functions in {files} files, {modules} modules")


if __name__ == "__main__":
    main()
