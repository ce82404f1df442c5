"""Small mistakes in the source for `mutants.py`: drawn at random, named, or picked from the lines of an earlier run."""

from __future__ import annotations

import ast
import random
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from mutants_equivalent import EQUIVALENT
from mutants_named import NAMED

HOME = Path(__file__).resolve().parents[1] / "src" / "loadmaster"
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
NAMES = {"min": "max", "max": "min", "minimum": "maximum", "maximum": "minimum", "argmin": "argmax", "argmax": "argmin"}
MARK = re.compile(r"(compiled|part)\b")  # the decorators of compiled functions
SHOWN = 90  # characters of a line that a mutant is told by


@dataclass(frozen=True)
class Mutant:
    """A file with a mistake in it."""

    file: str  # within src/loadmaster
    function: str  # that it is in; "" for none
    words: str  # where and what it is
    text: str
    compiled: bool = False  # what it is in is compiled, or frozen into what is
    same: str = ""  # why it behaves as the source does, where that has been judged


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


def mutated(source: str, number: int) -> tuple[str, int, str, str]:
    """(the source with its n-th mistake, the line of it, what stood there, what stands there now)."""
    tree = ast.parse(source)
    node = list(sites_in(tree))[number]
    line, around = node.lineno, _around(tree, node)  # type: ignore[attr-defined]
    right = ast.unparse(around)
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
    wrong = ast.unparse(ast.fix_missing_locations(around))
    return ast.unparse(ast.fix_missing_locations(tree)), line, right, wrong


def _around(tree: ast.AST, node: ast.AST) -> ast.AST:
    """What to show a change in: of a number or a name the expression that it stands in, so that two are told apart."""
    if not isinstance(node, (ast.Constant, ast.Name, ast.Attribute)):
        return node
    holders = (other for other in ast.walk(tree) if any(child is node for child in ast.iter_child_nodes(other)))
    holder = next(holders)
    return holder if isinstance(holder, (ast.expr, ast.keyword)) else node


def function_at(tree: ast.Module, line: int) -> str:
    """The outermost function or method that holds the line, "" for none."""
    for node in tree.body:
        inner = [node] if isinstance(node, ast.FunctionDef) else getattr(node, "body", [])
        for each in inner if isinstance(node, (ast.FunctionDef, ast.ClassDef)) else ():
            if isinstance(each, ast.FunctionDef) and each.lineno <= line <= (each.end_lineno or 0):
                return each.name if each is node else f"{node.name}.{each.name}"  # type: ignore[union-attr]
    return ""


def is_compiled(tree: ast.Module, function: str) -> bool:
    """Whether the function is compiled; of what stands outside functions, whether the file has one that is."""
    marked = [node.name for node in ast.walk(tree) if isinstance(node, ast.FunctionDef) and is_marked(node)]
    return function in marked if function else bool(marked)


def is_marked(node: ast.FunctionDef) -> bool:
    return any(MARK.match(ast.unparse(mark)) for mark in node.decorator_list)


# Mutants


def drawn(paths: list[Path], count: int, seed: int) -> tuple[list[Mutant], int]:
    """(mutants, places there were): each place as likely as any other."""
    files = [file for path in paths for file in (sorted(path.rglob("*.py")) if path.is_dir() else [path])]
    places = [
        (file, number)
        for file in files
        for number in range(sum(1 for _ in sites_in(ast.parse(file.read_text()))))
        if file.name != "__init__.py"
    ]
    chosen = random.Random(seed).sample(places, min(count, len(places)))
    return [_mutant(file, number) for file, number in chosen], len(places)


def picked(told: str) -> list[Mutant]:
    """Those that an earlier run told of, by their line and what became of it, wherever that line is now."""
    found, gone = [], 0
    for file, line, change in dict.fromkeys(re.findall(r"(\S+\.py):\d+ #\d+ (.*?)  \[(.* -> .*)\]", told)):
        path = HOME / file
        source = path.read_text() if path.exists() else ""
        lines = [text.strip()[:SHOWN].rstrip() for text in source.splitlines()]
        numbers = [at for at, node in enumerate(sites_in(ast.parse(source))) if lines[node.lineno - 1] == line.strip()]  # type: ignore[attr-defined]
        mutants = [mutant for mutant in (_mutant(path, at) for at in numbers) if f"[{change}]" in mutant.words]
        found += mutants[:1]
        gone += not mutants
    print(f"{len(found)} mutants told of, {gone} more whose lines have changed since")
    return found


def _mutant(file: Path, number: int) -> Mutant:
    source, inside = file.read_text(), str(file.relative_to(HOME))
    text, line, right, wrong = mutated(source, number)
    tree = ast.parse(source)
    function = function_at(tree, line)
    shown = source.splitlines()[line - 1].strip()[:SHOWN]
    words = f"{inside}:{line} #{number} {shown}  [{right} -> {wrong}]"
    same = EQUIVALENT.get((inside, shown.rstrip(), right, wrong), "")
    return Mutant(inside, function, words, text, is_compiled(tree, function), same)


def named() -> list[Mutant]:
    found = []
    for mistake in NAMED:
        source = (HOME / mistake.file).read_text()
        if source.count(mistake.right) != 1:
            raise SystemExit(f"{mistake.name}: its lines stand {source.count(mistake.right)} times in {mistake.file}")
        text = source.replace(mistake.right, mistake.wrong)
        pairs = zip(source.splitlines(), text.splitlines(), strict=False)
        line = next(at for at, (right, wrong) in enumerate(pairs, 1) if right != wrong)
        tree = ast.parse(source)
        function = function_at(tree, line)
        found.append(Mutant(mistake.file, function, mistake.name, text, is_compiled(tree, function)))
    return found
