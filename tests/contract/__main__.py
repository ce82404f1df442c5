"""Every case against eager torch: equal, refused by name, or wrong.

    python -m tests.contract [--only TEXT] [--seed 0] [--verify on,off] [--show]

Prints a line for each case that is not as expected, then how many were equal, refused or wrong. Exits with 1 where a
step trained something else than eager torch without a word, or another error than ours came out.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections import Counter

import torch

from tests.contract import listed
from tests.contract.cases import Case, Outcome, outcome_of


def main() -> None:
    given = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    given.add_argument("--only", default="", help="cases whose group or name has this in it")
    given.add_argument("--seed", type=int, default=0)
    given.add_argument("--verify", default="on,off")
    given.add_argument("--show", action="store_true", help="print every outcome")
    words = given.parse_args()
    torch.set_num_threads(1)
    cases = [case for case in listed() if words.only in f"{case.group}: {case.name}"]
    begun, found = time.perf_counter(), []
    for mode in words.verify.split(","):
        for case in cases:
            outcome = outcome_of(case, words.seed, mode == "on")
            found.append((case, mode, outcome))
            if words.show or not as_expected(case, mode, outcome):
                print(f"{outcome.kind:8} verify {mode:3} {case.group}: {case.name}: {outcome.said[:230]}", flush=True)
    counts = Counter((mode, outcome.kind) for _, mode, outcome in found)
    for mode in words.verify.split(","):
        said = ", ".join(f"{counts[mode, kind]} {kind}" for kind in ("equal", "refused", "wrong", "leaked"))
        print(f"verify {mode}: {len(cases)} cases, seed {words.seed}: {said}")
    print(f"{time.perf_counter() - begun:.0f} s: python -m tests.contract --seed {words.seed} --verify {words.verify}")
    silent = [entry for entry in found if entry[2].kind in ("wrong", "leaked") and not as_expected(*entry)]
    sys.exit(bool(silent))


def as_expected(case: Case, mode: str, outcome: Outcome) -> bool:
    """What only `verify` can see goes wrong without it."""
    return outcome.kind == ("wrong" if case.needs_verify and mode == "off" else case.expected)


if __name__ == "__main__":
    main()
