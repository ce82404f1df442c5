"""The tables of docs/zoo.md: python -m loadmaster.zoo.page docs/zoo.md writes them afresh."""

from __future__ import annotations

import re
import sys
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from loadmaster.files.writing import write_text
from loadmaster.graph.columns import Ints
from loadmaster.zoo import ENTRIES
from loadmaster.zoo.shelf import GraphFacts, index, load_zoo

# Workloads of Mirhoseini et al. 2017 and Placeto, which were planned for two and for four GPUs.
TWO_AND_FOUR = ("rnnlm", "nmt", "inception-v3", "nasnet")
NAMES = ("one device", "shares, fifo", "shares, program", "expert, fifo", "expert, program")


def zoo_table() -> str:
    """A row per shipped graph, from the index alone."""
    head = "| graph | ops | planned | weights | activations | FLOPs | work | work ÷ path | digest |"
    return "\n".join(
        [head, "|---|--:|--:|--:|--:|--:|--:|--:|---|", *(_zoo_row(name, facts) for name, facts in index().items())]
    )


def _zoo_row(name: str, facts: GraphFacts) -> str:
    sizes = f"{_bytes(facts.weight_bytes)} | {_bytes(facts.activation_bytes)} | {facts.flops / 1e9:,.0f} G"
    times = f"{facts.work_ns / 1e6:,.1f} ms | {facts.parallelism:.2f}"
    return f"| {name} | {facts.ops:,} | {facts.planned_ops:,} | {sizes} | {times} | `{facts.digest}` |"


def source_table() -> str:
    head = "| model | sizes | optimizer | source |\n|---|---|---|---|"
    rows = [f"| {entry.name} | {entry.note} | {entry.optimizer} | {entry.source} |" for entry in ENTRIES.values()]
    return "\n".join([head, *rows])


def _bytes(count: int) -> str:
    return f"{count / 1e9:,.1f} GB" if count >= 1e9 else f"{count / 1e6:,.1f} MB"


def expert_workloads() -> list[tuple[str, int]]:
    """(model, devices) of every row of the table of experts."""
    planned = [(entry.name, entry.devices) for entry in ENTRIES.values() if entry.devices]
    return planned + [(name, devices) for name in TWO_AND_FOUR for devices in (2, 4)]


@dataclass(frozen=True)
class FivePlans:
    """One training step under five plans.

    Attributes:
        step_ns: by NAMES.
        peak_bytes: the largest of any device.
    """

    model: str
    devices: int
    step_ns: tuple[int, ...]
    peak_bytes: tuple[int, ...]
    fits: tuple[bool, ...]

    def row(self) -> str:
        cells = [f"{step / 1e6:.1f}{'' if fits else ' *'}" for step, fits in zip(self.step_ns, self.fits, strict=True)]
        peaks = f"{self.peak_bytes[0] / 2**30:.1f} | {self.peak_bytes[3] / 2**30:.1f}"
        return f"| {self.model} | {self.devices} | {' | '.join(cells)} | {peaks} |"


def race(model: str, devices: int) -> FivePlans:
    """Simulates the expert's placement, contiguous shares of the program and one device, on P100s joined by PCIe."""
    from loadmaster.baselines.expert.expert import expert_placement, shares
    from loadmaster.baselines.simple import legal
    from loadmaster.cost import price
    from loadmaster.plans import Plan
    from loadmaster.simulator import first_come, simulate

    problem = price(load_zoo(model), f"{devices}xp100-pcie")

    def both(device: Ints) -> list[Plan]:
        return [first_come(problem, legal(problem, device)), Plan.of(problem, legal(problem, device))]

    one = both(np.zeros(problem.num_ops, np.int64))[1]
    lines = [
        simulate(problem, plan)
        for plan in (one, *both(shares(problem.best_ns, problem)), *both(expert_placement(problem)))
    ]
    return FivePlans(
        model,
        devices,
        tuple(line.step_ns for line in lines),
        tuple(int(line.peak_bytes.max()) for line in lines),
        tuple(not line.over_bytes for line in lines),
    )


def expert_table() -> str:
    head = f"| model | devices | {' | '.join(NAMES)} | GiB, one | GiB, expert |\n|---|--:|--:|--:|--:|--:|--:|--:|--:|"
    return "\n".join([head, *(race(model, devices).row() for model, devices in expert_workloads())])


def advice_list() -> str:
    from loadmaster.baselines.expert.known import ADVICE

    return "\n".join(f"- {_models(advice.models)}: {advice.why}" for advice in ADVICE)


def _models(pattern: str) -> str:
    return ", ".join(f"`{name}`" for name in ENTRIES if re.fullmatch(pattern, name))


TABLES = {"zoo": zoo_table, "sources": source_table, "advice": advice_list, "experts": expert_table}


def filled(page: str, names: tuple[str, ...] = tuple(TABLES)) -> str:
    """The page with what stands between <!-- name --> and <!-- end name --> written afresh."""
    for name in names:
        begin, end = f"<!-- {name} -->\n", f"\n<!-- end {name} -->"
        before, _, rest = page.partition(begin)
        page = before + begin + TABLES[name]() + end + rest.partition(end)[2]
    return page


if __name__ == "__main__":
    target = Path(sys.argv[1])
    write_text(target, filled(target.read_text()))
