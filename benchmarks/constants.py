"""What the numbers that no theory sets do: each constant of a method at half and at twice its value.

    python benchmarks/constants.py docs/constants.csv [--workers 2] [--only optimizers/racing.py] [--seconds 600]
    python benchmarks/constants.py docs/constants.csv --list

A scene is a set of problems and the method whose constants it judges. Every constant of a scene's files is changed in a
copy of the source, the scene is run there in a fresh process, and a line says how the values compare with those of the
source as it is: geometric mean over the runs, its standard error, and the time of the processor. Budgets count
simulations, so values repeat on every machine; a constant with no effect there is run again by the clock, where the
scene has runs of that kind. Shares stay below 1, and of factors between 1 and 2 the part above 1 is changed. The file
is gone on from when the command is given again; lines whose value is no longer that of the source are made anew.
"""

from __future__ import annotations

import argparse
import ast
import csv
import json
import math
import os
import queue
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import mean, stdev
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
PACKAGE = "src/loadmaster"
COLUMNS = ("constant", "value", "scene", "runs", "change", "ratio", "error", "time")
Runs = Iterator[tuple[str, float]]  # what was run, and its value: less is better


def placing(seconds: float | None = None) -> Runs:
    """Step time: eleven rows of 80 to 2,700 ops, three seeds, 2,000 simulations or a second."""
    rows = "go:0,6,7,8,9,12 placeto:0,1 synthetic-time:0,1,4"
    yield from searched("placement", rows, 3, 2_000, seconds)


def holding(seconds: float | None = None) -> Runs:
    """Peak memory: seven rows, two seeds, 1,000 simulations or a second."""
    yield from searched("placement", "zoo:1,4,9 synthetic-regal:2,5 synthetic-unlike:1,4", 2, 1_000, seconds)


def fusing(seconds: float | None = None) -> Runs:
    """Kernels, devices and order together: five rows, two seeds, 2,000 simulations or two seconds."""
    yield from searched("joint", "go:0,7,9,12 placeto:0", 2, 2_000, seconds and 2 * seconds)


def fitting(seconds: float | None = None) -> Runs:
    """Transformer-XL's and ViT's training steps in 60 % of the memory that they take, on one device and beside a host;
    and a plan on four devices with little more than the least."""
    from loadmaster import Budget, price, solve
    from loadmaster.cluster import Cluster
    from loadmaster.zoo.shelf import load_zoo

    budget = Budget(None, 60) if seconds is None else Budget(4 * seconds, None)
    for name in ("transformer-xl-2", "vit-base"):
        graph = load_zoo(f"{name}/train")
        peak = solve(price(graph, "1xa100-nvlink", objective="peak-memory"), "memory-order", Budget(None, 1)).value
        for place in ("1xa100-nvlink", "1xa100-nvlink+1xcpu"):
            cluster = Cluster.preset(place)
            devices = tuple(limited(device, int(0.6 * peak)) for device in cluster.devices)
            problem = price(graph, replace(cluster, devices=devices))
            yield f"{name} {place}", worth(solve(problem, "auto", budget, 0).score)
    yield from searched("auto", "tight:0", 1, 100, seconds and 2 * seconds)


def limited(device: Any, memory_bytes: int) -> Any:
    return device if device.kind == "cpu" else replace(device, memory_bytes=memory_bytes)


def shortening(seconds: float | None = None) -> Runs:
    """Large problems: GNMT-4 and NMT in windows."""
    yield from searched("multilevel", "go:4 placeto:5", 2, 2_000, seconds and 4 * seconds)
    yield from searched("rolling", "go:4,9 placeto:5", 1, 8, seconds)


def cutting(seconds: float | None = None) -> Runs:
    """One-shot cuts: partitioners, pipelines of one step and the expert on eleven rows, of like and unlike devices and
    with much and little memory; downsets, which take long, on six of them."""
    short = "placeto:0 synthetic-time:0,1 synthetic-unlike:1 tight:1,2"
    for method in ("metis", "kahip", "scotch", "mtkahypar", "pipeline", "expert"):
        yield from searched(method, f"{short} go:7,9,12 placeto:1 synthetic-time:4", 1, 100, seconds)
    yield from searched("downsets", short, 1, 100, seconds)


def closing(seconds: float | None = None) -> Runs:
    """Small problems by exact methods: generated graphs of 8 to 40 ops on two A100 and two P100; the plan, and how far
    above the bound it is."""
    from loadmaster import Budget, Cluster, price, solve
    from loadmaster.zoo.synthetic import KINDS, generate

    for number, kind in enumerate(KINDS):
        *_, graph = generate(kind, 1, number, (8, 14) if number % 2 else (20, 40))
        problem = price(graph, Cluster.preset("2xa100-nvlink+2xp100-pcie"))
        for method, simulations in (("cp-sat", 2_000), ("placement", 12_000), ("branch-and-bound", 12_000)):
            result = solve(problem, method, Budget(None, simulations))
            yield f"{method} {kind}", result.value
            yield f"{method} {kind}, over its bound", result.value / max(1, result.lower_bound)


def in_turns(seconds: float | None = None) -> Runs:
    """Fusion, placement and order one after the other; and a search that begins with the plan of another."""
    yield from searched("separate", "go:7,9 placeto:0", 2, 2_000, seconds)
    yield from searched("placement:also=[anneal:start=expert]", "go:7,9", 2, 1_000, seconds)


def dividing(seconds: float | None = None) -> Runs:
    """Ops split over devices: training steps on four A100 and on two P100."""
    from loadmaster import Budget, Cluster, price
    from loadmaster.optimizers.splitting import solve_split
    from loadmaster.zoo.shelf import load_zoo

    for name in ("vit-base", "gpt2", "transformer-xl-2"):
        for preset in ("4xa100-nvlink", "2xp100-pcie"):
            cluster = Cluster.preset(preset)
            problem = price(load_zoo(f"{name}/train"), cluster)
            found = solve_split(problem, lambda graph, on=cluster: price(graph, on), "placement", Budget(None, 400))  # type: ignore[misc]
            yield f"{name} {preset}", worth(found.result.score)


def serving(seconds: float | None = None) -> Runs:
    """Modules of a language model of 8 billion weights on four sets of devices, two seeds, 1 s each: by the clock, for
    there is no other budget."""
    from serving import CLUSTERS, MODELS, REQUESTS, cluster_of

    from loadmaster.serving.phases import serve
    from loadmaster.serving.planning import plan_serving
    from loadmaster.serving.services import service_of

    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "config.json").write_text(json.dumps(MODELS["llama-8b"]))
        served = serve(folder, REQUESTS["mixed"])
    graphs = [(phase.name, phase.graph, phase.times) for phase in served.phases]
    for name in ("v100 8 + p100 8", "3 unlike", "a100 8 + host", "p100 6 + v100 6 + host"):
        service = service_of(graphs, cluster_of(*CLUSTERS[name]), served.requests, blocks=served.blocks)
        for seed in range(2):
            best = plan_serving(served, service, None, seconds=1.0, seed=seed).best
            yield f"{name} {seed}", best.value * (1 if best.fits else 10)


def microbatching(seconds: float | None = None) -> Runs:
    """Pipelines of eight microbatches on four A100, one of them at half speed."""
    from pipelines import with_a_slow_one

    from loadmaster import Budget, price
    from loadmaster.cluster import Cluster
    from loadmaster.optimizers.pipeline.microbatched import plan_pipeline
    from loadmaster.zoo.shelf import load_zoo

    for name in ("vit-base", "transformer-xl-4"):
        cluster = with_a_slow_one(Cluster.preset("4xa100-nvlink"))
        found = plan_pipeline(price(load_zoo(f"{name}/train"), cluster), 8, Budget(None, 40))
        yield name, worth(found.best.score)


def bounding(seconds: float | None = None) -> Runs:
    """What lower bounds leave: bounds on the step and on the peak of eleven problems, upside down."""
    from loadmaster.problem.bounds import lower_bound

    for text in ("go:0,7,9,12", "placeto:0,1", "synthetic-time:0,1,4", "zoo:1", "synthetic-unlike:1"):
        for name, problem in problems(text):
            yield name, 1.0 / lower_bound(problem)


def packing(seconds: float | None = None) -> Runs:
    """Arenas of plans by HEFT and the expert, over their peaks."""
    from loadmaster import Budget, solve
    from loadmaster.simulator.arenas import assign_addresses

    for name, problem in problems("go:0,7,9,12"):
        for method in ("heft", "expert"):
            result = solve(problem, method, Budget(None, 1))
            yield f"{name} {method}", assign_addresses(problem, result.plan, result.timeline).ratio


def steering(seconds: float | None = None) -> Runs:
    """Policies with the weights that are shipped, as they are used."""
    yield from searched("regal", "zoo:1,4 synthetic-regal:2", 2, 1_000, None)
    yield from searched("gas", "zoo:1,4 synthetic-regal:2", 2, 1_000, None)
    yield from searched("learned-list", "go:7,9 placeto:0", 1, 8, None)
    yield from searched("anneal:start=learned-list", "go:7", 1, 100, None)


def improvising(seconds: float | None = None) -> Runs:
    """Policies that learn as they go: the recurrent placer, HDP, Placeto and GO, from no weights or from theirs."""
    yield from searched("rnn", "mirhoseini:0", 2, 400, None)
    yield from searched("hdp", "mirhoseini:0", 2, 400, None)
    yield from searched("placeto", "placeto:0", 1, 400, None)
    yield from searched("go:finetune=4", "go:7", 1, 400, None)


def searched(method: str, rows: str, seeds: int, simulations: int, seconds: float | None) -> Runs:
    from loadmaster.search import Budget, solve

    budget = Budget(None, simulations) if seconds is None else Budget(seconds, None)
    for text in rows.split():
        for name, problem in problems(text):
            for seed in range(seeds):
                yield f"{method} {name} {seed}", worth(solve(problem, method, budget, seed).score)


def problems(text: str) -> Iterator[tuple[str, Any]]:
    """SUITE:NUMBER,NUMBER…"""
    from quality import problem_of

    suite, _, numbers = text.partition(":")
    for number in numbers.split(","):
        found: Any = problem_of(suite, int(number))
        yield f"{suite}:{number}", found[1]


def worth(score: Any) -> float:
    """A plan that does not fit counts for ten times as much."""
    return max(1.0, float(score.value)) * (10.0 if score.over_bytes else 1.0)


@dataclass(frozen=True)
class Scene:
    """Runs, and the files whose constants they judge.

    Attributes:
        files: within the package; a folder stands for all in it.
        clock: whether it has runs by the clock, too.
    """

    run: Callable[[float | None], Runs]
    files: tuple[str, ...]
    clock: bool = False


SCENES = {
    "step time": Scene(
        placing,
        (
            *("optimizers/annealing", "optimizers/auto.py", "optimizers/racing.py", "optimizers/crossing.py"),
            *("optimizers/starts.py", "passes/chaining.py"),
        ),
        clock=True,
    ),
    "peak memory": Scene(
        holding,
        (
            *("optimizers/balancing.py", "optimizers/rebalancing.py", "optimizers/dealing.py"),
            *("passes/groups.py", "passes/joining.py"),
        ),
        clock=True,
    ),
    "fusion": Scene(
        fusing, ("optimizers/joint.py", "optimizers/fusion", "optimizers/annealing/moves/fusion.py"), clock=True
    ),
    "memory limits": Scene(fitting, ("optimizers/memory", "optimizers/complete.py"), clock=True),
    "large graphs": Scene(shortening, ("optimizers/multilevel", "optimizers/lists", "passes/blocks.py"), clock=True),
    "cuts": Scene(
        cutting,
        (
            *("optimizers/partition", "optimizers/downsets", "optimizers/expert"),
            *("optimizers/pipeline/split.py", "optimizers/pipeline/stages.py"),
        ),
    ),
    "microbatches": Scene(microbatching, ("optimizers/pipeline",)),
    "exact": Scene(closing, ("optimizers/exact.py", "optimizers/branching")),
    "in turns": Scene(in_turns, ("optimizers/separate.py", "optimizers/simple.py", "search/search.py"), clock=True),
    "splitting": Scene(dividing, ("optimizers/splitting.py", "passes/splitting")),
    "serving": Scene(serving, ("serving/placing.py",)),
    "bounds": Scene(bounding, ("problem/bounds",)),
    "arenas": Scene(packing, ("simulator/arenas",)),
    "policies": Scene(steering, ("learn/regal2020/optimizer.py", "optimizers/policy")),
    "learning": Scene(
        improvising,
        (
            *("learn/recurrent", "learn/mirhoseini2017", "learn/hdp2018", "learn/go2020/chains.py"),
            *("learn/placeto2019/episodes.py", "learn/placeto2019/network.py"),
        ),
    ),
}
ELSEWHERE = {  # constants that another scene than that of their file shows
    "optimizers/annealing/chains.py:PLACING_FOR_MEMORY": "peak memory",
    "optimizers/annealing/chains.py:ORDERING_FOR_MEMORY": "peak memory",
    "optimizers/annealing/chains.py:FUSING": "fusion",
    "optimizers/annealing/engine.py:LOOKS": "memory limits",
    "optimizers/annealing/engine.py:AMPLE": "memory limits",
    "optimizers/auto.py:PATIENT": "peak memory",
    "optimizers/auto.py:LESS_PATIENT": "peak memory",
    "optimizers/racing.py:EVOLVED": "peak memory",
    "optimizers/racing.py:EVOLVED_AFTER": "peak memory",
    "optimizers/starts.py:HELD": "peak memory",
    "optimizers/starts.py:BALANCED": "peak memory",
    "optimizers/starts.py:DEALT_PRICE": "peak memory",
}
# Their numbers are names, or shapes of weights that are shipped.
NAMES_ALONE = (
    *("optimizers/annealing/state.py", "optimizers/annealing/proposals.py", "optimizers/policy/views.py"),
    *("optimizers/policy/decoding.py", "optimizers/policy/weights.py", "learn/recurrent/inputs.py"),
    *("learn/recurrent/seq2seq.py", "learn/recurrent/weights.py", "learn/recurrent/training.py"),
    *("optimizers/branching/moments.py", "optimizers/branching/tree.py", "passes/splitting/parts.py"),
    "passes/splitting/tensor_parallel.py",
)
SENTINEL = 2**40  # a number that large stands for "never" or "cannot"
NOT_TUNED = re.compile(
    r"TOP_RANK|HIDDEN|CHANGING|POOL|\w+_WIDTH|SCALE|SIX|TOTAL_WEIGHT|BITS|SEED|CANNOT_SCORE|LEAN|MOST_FLOW"
)


@dataclass(frozen=True)
class Constant:
    """A number, or a few of them, that a file names."""

    file: str
    name: str
    value: Any
    scene: str
    place: tuple[int, int, int, int]  # of its value in the text: line and column, from and to

    @property
    def words(self) -> str:
        return f"{self.file}:{self.name}"

    def changed(self, factor: float) -> Any:
        return scaled(self.value, factor)

    def text(self, source: str, factor: float) -> str:
        """The file with another value."""
        line, column, end_line, end_column = self.place
        lines = source.splitlines(keepends=True)
        before = "".join(lines[: line - 1]) + lines[line - 1][:column]
        after = lines[end_line - 1][end_column:] + "".join(lines[end_line:])
        return before + repr(self.changed(factor)) + after


def scaled(value: Any, factor: float) -> Any:
    """Numbers grow or shrink by the factor: shares stay shares, and factors above 1 stay above it."""
    if isinstance(value, tuple):
        return tuple(scaled(one, factor) for one in value)
    if isinstance(value, str) or value in (0, math.inf):
        return value
    if isinstance(value, int):
        return max(1, round(value * factor)) if value > 0 else value
    if 0.9 < value < 1:  # what counts is how near to 1 it is
        return 1 - (1 - value) / factor
    if 0 < value < 1:
        return min(value * factor, (1 + value) / 2)
    if 1 < value < 2:
        return 1 + (value - 1) * factor
    return value * factor


def constants() -> list[Constant]:
    """All that scenes judge; a file belongs to the first scene that names it, or its folder most closely."""
    homes = {file: scene for scene, found in SCENES.items() for file in reversed(found.files)}
    some = list[Constant]()
    for path in sorted((ROOT / PACKAGE).rglob("*.py")):
        file = path.relative_to(ROOT / PACKAGE).as_posix()
        home = max((name for name in homes if file == name or file.startswith(f"{name}/")), key=len, default=None)
        if home is not None and file not in NAMES_ALONE:
            some += named(file, path.read_text(), homes[home])
    return some


def named(file: str, source: str, scene: str) -> Iterator[Constant]:
    """Those of a file."""
    for node in ast.parse(source).body:
        if not isinstance(node, ast.Assign) or len(node.targets) != 1:
            continue
        target, value = node.targets[0], node.value
        several = isinstance(target, ast.Tuple) and isinstance(value, ast.Tuple)
        targets, values = (target.elts, value.elts) if several else ([target], [value])  # type: ignore[attr-defined]
        numbers = [number_of(given) for given in values]
        if enumerates(numbers):
            continue
        for name, given, number in zip(targets, values, numbers, strict=True):
            if (
                number is None
                or not isinstance(name, ast.Name)
                or not name.id.isupper()
                or NOT_TUNED.fullmatch(name.id)
            ):
                continue
            end = (given.end_lineno or given.lineno, given.end_col_offset or 0)
            judge = ELSEWHERE.get(f"{file}:{name.id}", scene)
            yield Constant(file, name.id, number, judge, (given.lineno, given.col_offset, *end))


def enumerates(numbers: list[Any]) -> bool:
    """Whether they are names for things: 0, 1, 2 in any order."""
    whole = all(isinstance(number, int) for number in numbers)
    return whole and len(numbers) > 1 and 0 in numbers and max(numbers) - min(numbers) == len(numbers) - 1


def number_of(node: ast.expr) -> Any:
    """What an expression of numbers alone is worth; None for others, and for numbers that stand for none."""
    if any(isinstance(part, ast.Name | ast.Call | ast.Attribute | ast.Dict) for part in ast.walk(node)):
        return None
    value = eval(compile(ast.Expression(node), "", "eval"), {"__builtins__": {}})
    flat = value if isinstance(value, tuple) else (value,)
    tuned = all(isinstance(one, int | float | tuple) and not isinstance(one, bool) for one in flat)
    if not flat or not tuned or (isinstance(value, int) and not -1 < value < SENTINEL):
        return None
    return None if isinstance(value, float) and not -SENTINEL < value < SENTINEL else value


class Judge:
    """Runs scenes in copies of the source."""

    def __init__(self, folder: Path, workers: int, until: float) -> None:
        self.until, self.copies, self.known = until, queue.Queue[Path](), dict[tuple[str, float | None], Any]()
        for number in range(workers):
            copy = folder / str(number)
            shutil.copytree(ROOT / PACKAGE, copy / PACKAGE, ignore=shutil.ignore_patterns("__pycache__"))
            self.copies.put(copy)

    def values(self, scene: str, seconds: float | None, constant: Constant | None = None, factor: float = 1.0) -> Any:
        """({run: value}, seconds of the processor); None where it failed or no time was left."""
        copy = self.copies.get()
        try:
            if constant is None:
                return self._run(copy, scene, seconds)
            file = copy / PACKAGE / constant.file
            source = file.read_text()
            file.write_text(constant.text(source, factor))
            try:
                return self._run(copy, scene, seconds)
            finally:
                file.write_text(source)
        finally:
            self.copies.put(copy)

    def _run(self, copy: Path, scene: str, seconds: float | None) -> Any:
        left = self.until - time.monotonic()
        if left < 5:
            return None
        own = {
            "PYTHONPATH": os.pathsep.join((str(copy / "src"), str(ROOT / "benchmarks"))),
            "PYTHONDONTWRITEBYTECODE": "1",
        }
        settings = {**os.environ, **own, "LOADMASTER_THREADS": "1", "OMP_NUM_THREADS": "1"}
        command = [sys.executable, "-W", "ignore", __file__, "-", "--judge", scene]
        command += [] if seconds is None else ["--clock", str(seconds)]
        try:
            done = subprocess.run(command, env=settings, capture_output=True, text=True, timeout=min(left, 400))
        except subprocess.TimeoutExpired:
            return None
        if done.returncode:
            print(f"failed: {scene}: {done.stderr.strip().splitlines()[-1:]}", flush=True)
            return None
        return json.loads(done.stdout.splitlines()[-1])


def judged(scene: str, seconds: float | None) -> None:
    """In a process of its own: prints what the runs of a scene are worth, and what they took."""
    from loadmaster.compiled.clock import CLOCK

    if seconds is not None:  # what is compiled is not to be counted
        for _ in SCENES[scene].run(0.2):
            pass
    begun, values = time.process_time() - CLOCK.seconds, dict[str, float]()
    for name, value in SCENES[scene].run(seconds):
        values[name] = value
    print(json.dumps([values, time.process_time() - CLOCK.seconds - begun]))


def line_of(constant: Constant, factor: float, before: Any, after: Any, clock: bool) -> dict[str, Any]:
    """How the runs with a change compare with those without."""
    same = sorted(before[0].keys() & after[0].keys())
    logs = [math.log(after[0][name] / before[0][name]) for name in same]
    error = stdev(logs) / math.sqrt(len(logs)) if len(logs) > 1 else 0.0
    return {
        "constant": constant.words,
        "value": repr(constant.value),
        "scene": constant.scene + (", by the clock" if clock else ""),
        "runs": len(same),
        "change": repr(constant.changed(factor)),
        "ratio": f"{math.exp(mean(logs)):.4f}",
        "error": f"{error:.4f}",
        "time": f"{after[1] / before[1]:.2f}",
    }


def compared(judge: Judge, plain: dict[tuple[str, float | None], Any], constant: Constant, factor: float) -> Any:
    """The line of a change; by the clock, where simulations do not show it."""
    after = judge.values(constant.scene, None, constant, factor)
    before = plain[constant.scene, None]
    if after is None or before is None:
        return None
    if after[0] == before[0] and (constant.scene, 1.0) in plain:
        timed, base = judge.values(constant.scene, 1.0, constant, factor), plain[constant.scene, 1.0]
        if timed is not None and base is not None:
            return line_of(constant, factor, base, timed, True)
    return line_of(constant, factor, before, after, False)


def read(path: Path) -> list[dict[str, str]]:
    if not path.exists():
        return []
    with path.open() as lines:
        return list(csv.DictReader(lines))


def write(path: Path, rows: list[dict[str, Any]], order: list[str]) -> None:
    with path.open("w", newline="") as out:
        table = csv.DictWriter(out, COLUMNS, lineterminator="\n")
        table.writeheader()
        table.writerows(sorted(rows, key=lambda row: order.index(row["constant"])))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out", type=Path)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--only", nargs="+", default=[], help="files, scenes or FILE:NAME")
    parser.add_argument("--seconds", type=float, default=1e9, help="after which no run begins or goes on")
    parser.add_argument("--no-clock", action="store_true", help="no runs by the clock")
    parser.add_argument("--list", action="store_true", help="what would be changed, and to what")
    parser.add_argument("--judge", help="run a scene here, and print what it is worth")
    parser.add_argument("--clock", type=float)
    given = parser.parse_args()
    if given.judge:
        return judged(given.judge, given.clock)
    every = constants()
    order = [constant.words for constant in every]
    known = {constant.words: repr(constant.value) for constant in every}
    rows: list[dict[str, Any]] = [row for row in read(given.out) if known.get(row["constant"]) == row["value"]]
    done = {(row["constant"], row["change"]) for row in rows}
    jobs = [
        (constant, factor)
        for constant in every
        for factor in (0.5, 2.0)
        if constant.changed(factor) != constant.value
        and (constant.words, repr(constant.changed(factor))) not in done
        and (not given.only or any(part in (constant.file, constant.scene, constant.words) for part in given.only))
    ]
    if given.list:
        for constant, factor in jobs:
            print(f"{constant.scene:14} {constant.words} {constant.value!r} -> {constant.changed(factor)!r}")
        return None
    with tempfile.TemporaryDirectory() as folder, ThreadPoolExecutor(given.workers) as pool:
        judge = Judge(Path(folder), given.workers, time.monotonic() + given.seconds)
        asked = {constant.scene for constant, _ in jobs}
        clock = {scene for scene in asked if SCENES[scene].clock and not given.no_clock}
        needed = [(s, t) for s in SCENES if s in asked for t in ((None, 1.0) if s in clock else (None,))]
        first = list(pool.map(lambda key: judge.values(*key), needed))  # compiles what all others read from the cache
        print(f"{len(jobs)} changes of {len({c.words for c, _ in jobs})} constants", flush=True)
        for key, found in zip(needed, first, strict=True):
            runs, took = (0, 0.0) if found is None else (len(found[0]), found[1])
            print(f"{key[0]}{', by the clock' if key[1] else ''}: {runs} runs, {took:.0f} s", flush=True)
        again = list(pool.map(lambda key: judge.values(*key), needed))
        plain = dict(zip(needed, again, strict=True))
        waiting = {pool.submit(compared, judge, plain, *job): job for job in jobs}
        for ready in as_completed(waiting):
            line = ready.result()
            if line is not None:
                rows.append(line)
                write(given.out, rows, order)
                print(*line.values(), flush=True)
    return None


if __name__ == "__main__":
    main()
