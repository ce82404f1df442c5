"""What a policy could gain that chooses for each problem how to search it: which method, from which start, how hot.

    python benchmarks/choosing.py OUT [--budgets 1] [--seeds 3] [--workers 4] [--seconds 400]

Every way below plans the same problems with several seeds (problems, OUT and what is kept as in benchmarks/policy.py).
Three figures for each set of problems: the best way of each run in hindsight, which is also the luckiest of so many
draws; as many draws of the default by itself (its best seed over its mean), which is luck alone; and the way that was
best on the other seeds of a problem, which is what the most knowing policy would choose.
"""

from __future__ import annotations

import argparse
import sys
from collections import defaultdict
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).parent))
from policy import interval, measure, rows_of

DEFAULT = "placement"
WAYS = (
    DEFAULT,
    "placement:temperature=0.0003",
    "placement:temperature=0.003",
    "placement:temperature=0.01",
    "anneal:start=expert",
    "anneal:start=heft",
    "anneal:start=one-device",
    "local-search:start=expert",
)

Found = dict[str, dict[int, tuple[int, float]]]  # way -> seed -> (bytes over, value)


def found_by(rows: list[dict[str, str]]) -> dict[tuple[str, ...], Found]:
    """By problem and budget."""
    found: dict[tuple[str, ...], Found] = defaultdict(lambda: defaultdict(dict))
    for row in rows:
        key = (row["set"], row["budget"], row["problem"], row["cluster"])
        found[key][row["variant"]][int(row["seed"])] = (int(row["over"]), float(row["value"]))
    return found


def gains(found: Found) -> tuple[list[float], list[float], list[float]]:
    """Over the default with each seed where that fits, in per cent: (best of this run, best seed of the default, the
    way that was best on the other seeds)."""
    seeds = [seed for seed in found[DEFAULT] if all(seed in found.get(way, {}) for way in WAYS)]
    hindsight, luck, chosen = list[float](), list[float](), list[float]()
    for seed in seeds:
        over, value = found[DEFAULT][seed]
        rest = [other for other in seeds if other != seed]
        if over or not rest:
            continue
        hindsight.append(100 * (value / min(found[way][seed] for way in WAYS)[1] - 1))
        luck.append(100 * (value / min(found[DEFAULT].values())[1] - 1))
        way = min(WAYS, key=lambda way: [sum(found[way][at][part] for at in rest) for part in (0, 1)])
        chosen.append(100 * (value / found[way][seed][1] - 1) if not found[way][seed][0] else -100.0)
    return hindsight, luck, chosen


def summary(rows: list[dict[str, str]]) -> None:
    found = found_by(rows)
    for kind, budget in dict.fromkeys(key[:2] for key in found):
        parts = [gains(ways) for key, ways in found.items() if key[:2] == (kind, budget)]
        # Seeds of one problem count as one: their mean.
        means = np.array([[np.mean(one) for one in part] for part in parts if part[0]])
        if len(means):
            said = (interval(means[:, at]) for at in range(3))
            print(
                f"{kind}, {budget}: best in hindsight {next(said)}, luck {next(said)}, best of the others {next(said)}"
            )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out", type=Path)
    parser.add_argument("--sets", default="large,tight,small")
    parser.add_argument("--budgets", default="1", help="seconds; from 50 on, simulations")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--limit", type=int)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--seconds", type=float, default=400.0, help="no run is begun later")
    given = parser.parse_args()
    given.long = 0.0
    given.out.mkdir(parents=True, exist_ok=True)
    ways = {way: way for way in WAYS}
    measure(given.out, given, ways, tuple(map(float, given.budgets.split(","))), "choosing.csv")
    summary(rows_of(given.out / "choosing.csv"))


if __name__ == "__main__":
    main()
