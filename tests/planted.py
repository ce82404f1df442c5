"""Mistakes that tests must see: each is one line of the source made wrong, in a copy of it.

For the fifteen rules of the simulator (`simulator/rules.py`) the mistake is in the loop, or in what the loop is given;
the check is that it no longer agrees with the slow reference. For bounds it makes one say more than is true; the check
is the best of all plans, found by trying them. Code is not compiled for it, which
would take longer than it runs. `python -m tests.planted [NAME …]` prints which are seen.

The order of a line: the rule or bound, what holds, the file, what stands there, the mistake, the check.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[1]
WRONG = 3  # how a check ends that sees a mistake


@dataclass(frozen=True)
class Mistake:
    """`right` stands in the file once; `wrong` takes its place, and `check` of `tests.planted_checks` must see it."""

    name: str
    says: str
    file: str
    right: str
    wrong: str
    check: str = "reference"


RULES = (
    Mistake(
        "rule 1",
        "times are whole nanoseconds, not pairs of them",
        "simulator/state.py",
        "problem.op_ns.reshape(-1),",
        "(problem.op_ns // 2 * 2).reshape(-1),",
    ),
    Mistake(
        "rule 2",
        "a kernel takes its time on its device, not that on the slowest",
        "simulator/state.py",
        "problem.op_ns.reshape(-1),",
        "np.repeat(problem.op_ns.max(axis=1), devices),",
    ),
    Mistake(
        "rule 3",
        "of equal rank the op of lowest index is first, not of the highest",
        "simulator/state.py",
        'op_of_tie = np.argsort(problem.tie, kind="stable")',
        'op_of_tie = np.argsort(-problem.tie, kind="stable")',
    ),
    Mistake(
        "rule 4",
        "transfers are rounded up, not down",
        "cost/pricing.py",
        "-(-exact.numerator // exact.denominator)",
        "exact.numerator // exact.denominator",
    ),
    Mistake(
        "rule 5",
        "without contention a channel carries any number at once, not one",
        "simulator/state.py",
        "problem.cluster.contention,",
        "True,",
    ),
    Mistake(
        "rule 6",
        "a device computes as fast while channels are busy",
        "simulator/loop.py",
        "note_end(step, device, now + ns)",
        "note_end(step, device, now + ns * (1 + (scratch.resources.busy[step.layout.devices :] != FREE).any()))",
    ),
    Mistake(
        "rule 7",
        "what is updated lives on its updater's device, not on every reader's",
        "simulator/state.py",
        "np.where(problem.is_updated, UPDATED, FIXED)",
        "np.where(problem.is_updated, FIXED, FIXED)",
    ),
    Mistake(
        "rule 8",
        "outputs live to the end",
        "simulator/state.py",
        "problem.stays.astype(np.int8),",
        "np.zeros(graph.num_tensors, np.int8),",
    ),
    Mistake(
        "rule 9",
        "bytes over memory are summed over devices",
        "simulator/rules.py",
        "over_bytes=int(np.maximum(peak - problem.memory_bytes, 0).sum()),",
        "over_bytes=int(np.maximum(peak - problem.memory_bytes, 0).max()),",
    ),
    Mistake(
        "rule 10",
        "the step ends with the last op, not with the last of the program",
        "simulator/rules.py",
        "step_ns=step,",
        "step_ns=int(record.end_ns[-1]),",
    ),
    Mistake(
        "rule 11",
        "all that ends at an instant ends in one round",
        "simulator/loop.py",
        "while tally[EVENTS] > 0 and scratch.event_ns[0] == now:",
        "for _ in range(1):",
    ),
    Mistake(
        "rule 12",
        "a kernel is launched once, not once for each op",
        "passes/fusing.py",
        "launch = _highest(problem.launches, member_of, count)",
        "launch = _total(problem.launches, member_of, count)",
    ),
    Mistake(
        "rule 13",
        "only what views show is their base's: what is written in place is not",
        "graph/folding.py",
        "shown = graph.is_alias & (made_by_view | made_with_base)",
        "shown = graph.is_alias",
        "timelines",
    ),
    Mistake(
        "rule 14",
        "a host asks for a kernel as long as for the longest of its members",
        "passes/fusing.py",
        "dispatch_ns=_highest(problem.dispatch_ns, member_of, count)",
        "dispatch_ns=_total(problem.dispatch_ns, member_of, count)",
    ),
    Mistake(
        "rule 15",
        "what overwrites in place after an op follows the ops that run it again",
        "plans/expansion.py",
        "writes = overwriters(graph)[later]",
        "writes = np.zeros(len(later), bool)",
        "additions",
    ),
)

BOUNDS = (
    Mistake(
        "paths",
        "what another device of the kind made may be sent",
        "problem/bounds/levels.py",
        "if there != kind or ways.several[kind]:",
        "if there != kind:",
        "tiny",
    ),
    Mistake(
        "bottlenecks",
        "the work before a join is what leads to it alone",
        "problem/bounds/levels.py",
        "joins: Bools = (latest <= np.arange(ops)) & (earliest >= np.arange(ops))",
        "joins: Bools = earliest >= np.arange(ops)",
        "tiny",
    ),
    Mistake(
        "work of devices",
        "equal devices share the work",
        "problem/bounds/kinds.py",
        "return ints(kinds.times[:, 0]), int(kinds.count[0])",
        "return ints(kinds.times[:, 0]), 1",
        "tiny",
    ),
    Mistake(
        "prices of devices",
        "prices add up to one over all devices",
        "problem/bounds/kinds.py",
        "return levels.cheapest(kinds.times, price, scale), scale",
        "return levels.cheapest(kinds.times, 2 * price, scale), scale",
        "tiny",
    ),
    Mistake(
        "crowds",
        "ancestors share all devices",
        "problem/bounds/crowds.py",
        "latest = max(latest, first + (sum_of + share - 1) // share)",
        "latest = max(latest, first + sum_of)",
        "tiny",
    ),
    Mistake(
        "crowds with sends",
        "what runs here is not sent",
        "problem/bounds/crowds.py",
        "latest = max(latest, first + min(sum_of, shared))",
        "latest = max(latest, first + shared + lost)",
        "tiny",
    ),
    Mistake(
        "spans",
        "ops that start late and end early share the time between",
        "problem/bounds/crowds.py",
        "+ -(-total // share)",
        "+ total",
        "tiny",
    ),
    Mistake(
        "memory prices",
        "memory that there is is paid for",
        "problem/bounds/step.py",
        "- float((room * rent).sum()) * (1 + 1e-9)",
        "",
        "tight",
    ),
    Mistake(
        "devices that are too small",
        "an op runs where it fits",
        "problem/bounds/kinds.py",
        "> problem.memory_bytes[None, :]",
        "> problem.memory_bytes[None, :] // 2",
        "tight",
    ),
    Mistake(
        "turns",
        "a send is late if it makes the step longer, and not before",
        "problem/bounds/turns.py",
        "late: Bools = ends > most",
        "late: Bools = ends > most * 0.8",
        "equal",
    ),
    Mistake(
        "what shares a device",
        "an op comes first if the other can come after it",
        "problem/bounds/sharing.py",
        "if other != op and end + time[other] + late[other] > most:",
        "if other != op and end + 2 * time[other] + late[other] > most:",
        "equal",
    ),
    Mistake(
        "groups together",
        "two groups are apart if they take too long one after the other",
        "problem/bounds/together.py",
        "apart[np.ix_(large, large)] |= (span > most)",
        "apart[np.ix_(large, large)] |= (span > most * 0.7)",
        "equal",
    ),
    Mistake(
        "launches of kernels",
        "the shortest launch is the least",
        "problem/bounds/kernels.py",
        "return int(self.problem.launches[self.problem.op_ns != CANNOT].min())",
        "return int(self.problem.launches[self.problem.op_ns != CANNOT].sum())",
        "fused",
    ),
    Mistake(
        "work of kernels",
        "ops of a kernel share a launch",
        "problem/bounds/kernels.py",
        "least = problem.launches // np.minimum(size, self.sharing.most)[:, None] +",
        "least = problem.launches +",
        "pairs",
    ),
    Mistake(
        "memory of a device",
        "what an op needs is not there with what lives to the end",
        "problem/bounds/holding.py",
        "np.maximum(running, ending[group])",
        "(running + ending[group])",
        "tiny",
    ),
    Mistake(
        "cuts",
        "devices share what must be held",
        "problem/bounds/peak.py",
        "return max(alone, -(-(residents + int(cut)) // devices))",
        "return max(alone, residents + int(cut))",
        "tiny",
    ),
    Mistake(
        "minimum cuts",
        "what an op itself needs is there once",
        "problem/bounds/cuts.py",
        "forced += net.own[op]",
        "forced += 2 * net.own[op]",
        "tiny",
    ),
    Mistake(
        "memory where ops run again",
        "results are there once they are made",
        "problem/bounds/holding.py",
        "(needs[order] + np.cumsum(lasts[order]))",
        "(needs[order] + lasts.sum())",
        "again",
    ),
    Mistake(
        "transfers that hold up",
        "of groups that nothing leads between, none is sent",
        "problem/bounds/held_up.py",
        "count - max(0, min(free, count) - 1) - ways.groups)",
        "count - max(0, min(free, count) - 1))",
        "load",
    ),
    Mistake(
        "groups that transfers join",
        "a device that overlaps has no more than its work",
        "problem/bounds/held_up.py",
        "free: Bools = np.any(total[groups][:, ~held_up] <= load, axis=1)",
        "free: Bools = np.any(total[groups][:, ~held_up] + sent[:, None] <= load, axis=1)",
        "load",
    ),
)
MISTAKES = {mistake.name: mistake for mistake in (*RULES, *BOUNDS)}


def planted(folder: Path, mistake: Mistake) -> None:
    """A copy of the source in the folder, wrong in one place."""
    shutil.copytree(ROOT / "src", folder / "src", copy_function=os.symlink, ignore=shutil.ignore_patterns("*.pyc"))
    file = folder / "src" / "loadmaster" / mistake.file
    text = file.read_text()
    if text.count(mistake.right) != 1:
        raise LookupError(f"{mistake.name}: what it changes stands {text.count(mistake.right)} times in {mistake.file}")
    file.unlink()
    file.write_text(text.replace(mistake.right, mistake.wrong))


def checked(source: Path, check: str, least: Path) -> str:
    """What the check says of the source: nothing, or that it is wrong. `least`: the best of all plans."""
    environment = {**os.environ, "PYTHONPATH": str(source), "NUMBA_DISABLE_JIT": "1", "LOADMASTER_THREADS": "1"}
    command = [sys.executable, "-m", "tests.planted_checks", check, str(least)]
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)
    if done.returncode not in (0, WRONG):
        raise RuntimeError(f"the check did not end: {done.stderr[-2000:]}")
    return done.stdout.strip()


def seen(mistake: Mistake, least: Path) -> str:
    """The complaint about the source with this mistake."""
    with tempfile.TemporaryDirectory() as folder:
        planted(Path(folder), mistake)
        return checked(Path(folder) / "src", mistake.check, least)


def main() -> None:
    from tests.planted_checks import least_of_all

    with tempfile.TemporaryDirectory() as folder:
        least = Path(folder) / "least.json"
        least.write_text(json.dumps(least_of_all()))
        for check in dict.fromkeys(mistake.check for mistake in MISTAKES.values()):
            print(f"as it is, {check}: {checked(ROOT / 'src', check, least) or 'fine'}", flush=True)
        for name in sys.argv[1:] or MISTAKES:
            print(f"{name}: {seen(MISTAKES[name], least) or 'NOT SEEN'}", flush=True)


if __name__ == "__main__":
    main()
