"""Whether more seconds make better plans, in the mean over seeds.

    python benchmarks/seconds.py [--models nmt gnmt-4] [--seconds 1 2 4] [--seeds 5] [--methods auto]

A row for each method and budget: the geometric mean of its steps, relative to those of the smallest budget, with its
standard error, and how many single runs were worse than the same seed with fewer seconds. Ends with 1 where a larger
budget is worse than the one before by more than two standard errors. Plans of earlier runs are not used.
"""

from __future__ import annotations

import argparse
import sys

import numpy as np

import loadmaster as lm


def ratios(method: str, models: list[str], cluster: str, seconds: list[float], seeds: int) -> np.ndarray:
    """[budgets, models * seeds] logarithms of each step over that of the smallest budget with the same seed."""
    rows = []
    for model in models:
        problem = lm.price(lm.load(f"zoo:{model}"), cluster)
        for seed in range(seeds):
            found = [lm.solve(problem, method, lm.Budget(budget), seed).timeline.step_ns for budget in seconds]
            rows.append(np.log(np.array(found) / found[0]))
            print(f"{method}, {model}, seed {seed}: {[f'{ns / 1e6:.2f} ms' for ns in found]}", file=sys.stderr)
    return np.array(rows).T


def is_worse(before: np.ndarray, after: np.ndarray) -> bool:
    """Whether the second of two paired rows is larger by more than chance."""
    change = after - before
    return len(change) > 1 and bool(change.mean() > 2 * change.std(ddof=1) / len(change) ** 0.5 + 1e-12)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--models", nargs="+", default=["nmt", "gnmt-4", "inception-v3"])
    parser.add_argument("--on", default="4xp100-pcie")
    parser.add_argument("--seconds", nargs="+", type=float, default=[1.0, 2.0, 4.0, 8.0])
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--methods", nargs="+", default=["auto", "placement", "anneal"])
    options = parser.parse_args()
    budgets, worse = sorted(options.seconds), False
    print("| method | seconds | step over the first | standard error | single runs worse than before |")
    print("|---|--:|--:|--:|--:|")
    for method in options.methods:
        table = ratios(method, options.models, options.on, budgets, options.seeds)
        for number, (budget, row) in enumerate(zip(budgets, table, strict=True)):
            before = table[max(0, number - 1)]
            error = row.std(ddof=1) / len(row) ** 0.5 if len(row) > 1 else 0.0
            count = int((row > before + 1e-12).sum())
            print(f"| {method} | {budget:g} | {np.exp(row.mean()):.4f} | {error:.4f} | {count} of {len(row)} |")
            worse |= is_worse(before, row)
    sys.exit(worse)


if __name__ == "__main__":
    main()
