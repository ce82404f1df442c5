"""What a column of a table may be: any method of the catalog, and a few that only a comparison needs.

One-shot methods are run once whatever the number of seeds.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial

from loadmaster import catalog
from loadmaster.baselines.expert import expert_placement
from loadmaster.baselines.memory_order import MemoryOrder
from loadmaster.baselines.ordering import ordered
from loadmaster.baselines.simple import legal
from loadmaster.bench.peers import Inductor
from loadmaster.catalog.specs import make_method
from loadmaster.errors import UnknownName
from loadmaster.plans import Plan
from loadmaster.search import Method, Search


@dataclass(frozen=True)
class ExpertBestOrder:
    """The expert's placement under the best of the usual orders: what the order alone is worth."""

    def optimize(self, search: Search) -> Plan:
        problem = search.problem
        return ordered(search, legal(problem, expert_placement(problem)), "best")


EXTRA: Mapping[str, Callable[[], Method]] = {
    "expert-best-order": ExpertBestOrder,
    "given-order": partial(MemoryOrder, "given"),
    "inductor": Inductor,
    "inductor-lpmf": partial(Inductor, "lpmf"),
    "inductor-bfs": partial(Inductor, "bfs"),
    "inductor-dfs": partial(Inductor, "dfs"),
}

PEERS = frozenset(name for name in EXTRA if name.startswith("inductor"))

# They draw no random numbers, so one seed says all.
_ONE_SHOT = frozenset(
    (
        *("one-device", "round-robin", "expert", "memory-order", "pipeline", "greedy-fusion"),
        *("heft", "etf", "cpop", "sct", "m-heft", "m-etf", "m-sct"),
        *EXTRA,
    )
)


def is_known(spec: str) -> bool:
    """Whether there is such a method at all; its settings may still be wrong."""
    return spec in EXTRA or spec.partition(":")[0] in catalog.methods()


def method(spec: str) -> Method:
    """The method of a column. A name of the catalog wins over one of ours."""
    if spec.partition(":")[0] not in catalog.methods() and spec in EXTRA:
        return EXTRA[spec]()
    if not is_known(spec):
        raise UnknownName.among("method", spec, [*catalog.methods(), *EXTRA], "--method")
    made: Method = make_method(spec)
    return made


def seeds_of(spec: str, seeds: int) -> range:
    """One-shot methods give the same plan for every seed; nested ones may not."""
    return range(1 if spec.partition(":")[0] in _ONE_SHOT and "[" not in spec else seeds)
