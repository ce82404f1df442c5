"""Mutants that behave as the source does, judged one by one: no test can tell them, and `mutants.py` leaves them out.

By file, line (its first 90 characters), what stands there and what the mutant makes of it; behind it the reason. More
of them are in mutants_equivalent.txt: a line with a reason, then mutants as a run prints them, without their place.
What is merely hard to test does not belong here.
"""

from __future__ import annotations

import re
from pathlib import Path

STREAM = "which stream of random numbers it is does not matter, only that no other has its number"
EMPTY = "nothing is recorded, so that the size of what would hold it does not matter"
REMEMBERED = "what is remembered changes no answer"
BELOW = "any number below 0 says that there is none"
ROWS = [
    ("learn/scheduling/examples.py", "KEPT = 400  # examples in memory", "400", "401", REMEMBERED),
    ("learn/examples.py", "@lru_cache(maxsize=64)", "maxsize=64", "maxsize=65", REMEMBERED),
    (
        "learn/go2020/examples.py",
        "rng = np.random.default_rng([seed, 3, turn])",
        "[seed, 3, turn]",
        "[seed, 4, turn]",
        STREAM,
    ),
    (
        "learn/placeto2019/board.py",
        "for _ in range(max(1, int(np.ceil(np.log2(max(2, count)))))):",
        "max(1, int(np.ceil(np.log2(max(2, count)))))",
        "max(2, int(np.ceil(np.log2(max(2, count)))))",
        "a round more than is needed finds nothing new and ends",
    ),
    (
        "learn/placeto2019/episodes.py",
        'size = steps if once == "episode" else max(1, AT_ONCE // max(1, many * len(episodes.start)',
        "many * len(episodes.start)",
        "many // len(episodes.start)",
        "how many steps are looked at together changes the memory that takes, and no chance",
    ),
    (
        "learn/recurrent/controllers.py",
        "environment.rng = np.random.default_rng([place.seed, 3, task.number])",
        "[place.seed, 3, task.number]",
        "[place.seed, 4, task.number]",
        STREAM,
    ),
    (
        "optimizers/annealing/state.py",
        "make_record(0, 0, 0),",
        "make_record(0, 0, 0)",
        "make_record(0, 0, 1)",
        EMPTY,
    ),
    (
        "optimizers/genetic/breeding.py",
        "_breed(layout, *given, make_run_scratch(layout, False), make_record(0, 0, 0))  # type: ign",
        "make_record(0, 0, 0)",
        "make_record(0, 1, 0)",
        EMPTY,
    ),
    (
        "optimizers/lists/steps.py",
        "if busy_to[middle] <= ready:",
        "busy_to[middle] <= ready",
        "busy_to[middle] < ready",
        "a span that ends when the op is ready is passed in the loop that follows: it is no gap",
    ),
    (
        "optimizers/memory/exact_orders.py",
        "if change < best or (change == best and op < ready[chosen]):",
        "op < ready[chosen]",
        "op <= ready[chosen]",
        "no op is ready twice",
    ),
    (
        "optimizers/memory/order_moves.py",
        "for at in range(max(last, there - 1) + 1, here):",
        "there - 1",
        "there - 2",
        "the place that it writes too is written afresh after the loop",
    ),
    (
        "passes/splitting/parts.py",
        "self.origin[name] = SplitOrigin(maker, dim=self.region.dims.get(tensor, -1))",
        "-1",
        "-2",
        "of a sum, which is along no dimension, nobody asks for one",
    ),
    (
        "problem/bounds/step.py",
        "return (bundle.reshape(-1), size) if size <= 400 else (bundle.reshape(-1) * 400 // size, 4",
        "size <= 400",
        "size < 400",
        "of 400 bundles, 400 are made by either way, each of itself",
    ),
    ("simulator/arenas/sections.py", "twin = np.full(len(order), -1, np.int64)", "-1", "-2", BELOW),
    (
        "simulator/arenas/waiting.py",
        "while here > 0 and keys[order[here - 1]] > keys[item]:",
        "keys[order[here - 1]] > keys[item]",
        "keys[order[here - 1]] >= keys[item]",
        "blocks that may begin at the same address are stacked to the same height in any order",
    ),
    (
        "learn/go2020/drawing.py",
        "reads = list(dict.fromkeys([ends[lane], *([ends[int(rng.integers(lanes))]] if rng.random()",
        "rng.random() < 0.2",
        "rng.random() <= 0.2",
        "no random number is exactly so large",
    ),
    (
        "simulator/state.py",
        "running = resources + 1 + (0 if layout.contention else layout.most_sends)",
        "resources + 1",
        "resources + 2",
        "scratch that is larger than it need be",
    ),
    (
        "simulator/waking.py",
        "order = np.int64(rank[op]) if len(rank) > 0 else np.int64(0)",
        "np.int64(0)",
        "np.int64(1)",
        "without ranks all ops have the same, whichever it is",
    ),
    (
        "optimizers/branching/least.py",
        "one, two = _mix(one, value + (slot << 44)), _mix(two, value ^ (slot << 41))",
        "slot << 44",
        "slot << 45",
        "any way to spread bits serves a digest",
    ),
    (
        "simulator/state.py",
        "depth += under >= 0",
        "under >= 0",
        "under > 0",
        "all that is written over tensor 0 is one less deep, and of those as deep tensor 0 comes first by its number",
    ),
    (
        "problem/bounds/turns.py",
        "if int((head + self.time + tail).max()) > most:",
        "head + self.time + tail",
        "head + self.time - tail",
        "an op that is too long by itself is too long for `least_span`, too, which is asked next",
    ),
    ("optimizers/memory/exact_orders.py", "done[earlier] = 1", "1", "2", "any number but 0 says that it is done"),
    (
        "problem/problem.py",
        "spread_ns: Ints = field(default_factory=lambda: ints(np.zeros((2, 0, 0))))  # [2, ops, dev",
        "(2, 0, 0)",
        "(2, 1, 0)",
        "it is empty either way, and that is all that is asked of it",
    ),
    (
        "learn/regal2020/summary.py",
        "depth = [0] * (len(start) - 1)",
        "[0]",
        "[1]",
        "each is written before it is read",
    ),
    (
        "optimizers/genetic/brkga.py",
        "score = Score(0, fitness) if fits else Score(fitness - int(breeding.HEAVY_PENALTY), 0)",
        "Score(fitness - int(breeding.HEAVY_PENALTY), 0)",
        "Score(fitness - int(breeding.HEAVY_PENALTY), 1)",
        "where the best plan so far is as far over and its value 1, the plan is scored anew, and is no better",
    ),
    (
        "optimizers/pipeline/split.py",
        "free = {kind: np.flatnonzero(kind_of == kind).tolist() for kind in range(int(kind_of.max()",
        "int(kind_of.max()) + 1",
        "int(kind_of.max()) + 2",
        "of a kind more there is no device, and nobody asks for one",
    ),
    (
        "simulator/state.py",
        "channels = int(channel.max(initial=-1)) + 1",
        "-1",
        "-2",
        "there is a device, so a channel or a -1 is in the table",
    ),
    (
        "problem/bounds/together.py",
        "if int((head + time + tail).max()) > most:",
        "(head + time + tail).max()",
        "(head + time + tail).min()",
        "what is too long is seen a few lines later, too, by `too_long`",
    ),
    (
        "optimizers/memory/exact_orders.py",
        "change = np.int64(0)",
        "np.int64(0)",
        "np.int64(1)",
        "all that are ready are compared by the same number more",
    ),
    (
        "optimizers/memory/draft.py",
        "read_start = np.searchsorted(which, np.arange(graph.num_ops + 1))",
        "graph.num_ops + 1",
        "graph.num_ops + 2",
        "the start of a row more, which nobody looks at",
    ),
    (
        "simulator/arenas/fitting.py",
        "if not all_stack(scratch, 0, count, 0, sections, 0, -1):",
        "-1",
        "-2",
        "all turns are at least 0",
    ),
    (
        "optimizers/memory/draft.py",
        "return bool(self.open[at]) or (version.last() > at and all(where != at for where, _ in ver",
        "version.last() > at",
        "version.last() >= at",
        "where the last is at that place, one of its uses is, and that is asked next",
    ),
    (
        "learn/scheduling/examples.py",
        "last = op([below[step], *([last] if last >= 0 else [])], weights[layer], flops)",
        "last >= 0",
        "last >= 1",
        "tensor 0 is a weight, so that no op makes it",
    ),
    (
        "optimizers/branching/least.py",
        "weight, total, highest = 0.0, work, np.int64(-1)",
        "-1",
        "-2",
        BELOW,
    ),
    (
        "problem/bounds/step.py",
        "unit_ns, unit_bytes = max(1.0, times.max()), max(1.0, float(nbytes.max()))",
        "times.max()",
        "times.min()",
        "it is the same program in another unit of time",
    ),
    (
        "search/warming.py",
        "for budget in (Budget(None, 200), Budget(1.0, 200)):",
        "Budget(None, 200)",
        "Budget(None, 201)",
        "it is run for what it compiles, and what it finds is thrown away",
    ),
    (
        "optimizers/pipeline/edges.py",
        "times = np.where(problem.op_ns == CANNOT, 2**50, problem.op_ns) * share[:, None]",
        "2 ** 50",
        "2 ** 51",
        "both are more than all times together",
    ),
]
TOLD = re.compile(r"(\S+\.py)(?::\d+ #\d+)? (.*?)  \[(.*?) -> (.*)\]")


def read(file: Path) -> dict[tuple[str, str, str, str], str]:
    """Those of a file of lines: "# reason", and below it "file line  [right -> wrong]"."""
    found, why = dict[tuple[str, str, str, str], str](), ""
    for line in filter(None, file.read_text().splitlines()):
        if line.startswith("# "):
            why = line[2:]
        else:
            told = TOLD.fullmatch(line)
            if told is None or not why:
                raise SystemExit(f"{file.name}: {line!r} is no reason and no mutant")
            found[told[1], told[2].rstrip(), told[3], told[4]] = why
    return found


EQUIVALENT = {(file, line.rstrip(), right, wrong): why for file, line, right, wrong, why in ROWS}
EQUIVALENT |= read(Path(__file__).with_suffix(".txt"))
