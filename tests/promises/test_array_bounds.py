"""No index of compiled code leaves its array: a share of `make bounds`, which runs all promises so."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

CODE = """
import numba, numpy as np, loadmaster as lm
from loadmaster.zoo.synthetic import generate
assert numba.config.BOUNDSCHECK == 1
from loadmaster.compiled import compiled
@compiled
def beyond(a):
    return a[len(a)]
try:
    beyond(np.zeros(3))
except IndexError:
    print("checked")
for seed, kind in enumerate(("layered", "barabasi-albert", "watts-strogatz")):
    for ops in (1, 2, 30):
        problem = lm.price(next(generate(kind, 1, seed=seed, ops=max(ops, 8))), "4xp100-pcie", memory_limit=10**9)
        for method in ("one-device", "heft"):
            lm.solve(problem, method, lm.Budget(None, 20))
print("sound")
"""


@pytest.mark.full
def test_a_few_problems_with_every_access_checked() -> None:
    environment = {**os.environ, "NUMBA_BOUNDSCHECK": "1"}
    done = subprocess.run([sys.executable, "-c", CODE], env=environment, capture_output=True, text=True)
    assert done.stdout.split() == ["checked", "sound"], done.stderr
