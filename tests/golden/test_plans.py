"""One plan of every method at one seed stays what it was. One that changes is no mistake; one that changes unawares is.

`python -m tests.golden.test_plans [METHOD ...]` writes them afresh; read the difference before you keep it.
"""

from __future__ import annotations

import hashlib
import json
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from loadmaster import Budget, catalog, solve
from tests.problems import halves

FILE = Path(__file__).parent / "plans.json"
# Networks add up fractions, whose last digits are the machine's; others call packages that may be of another version.
LEFT_OUT = {"cp-sat", "kahip", "metis", "mtkahypar", "scotch"}
LEFT_OUT |= {"gas", "go", "go-fusion", "go-one", "hdp", "placeto", "regal", "rnn"}
METHODS = sorted(set(catalog.methods()) - LEFT_OUT)


def found(method: str) -> dict[str, Any]:
    """What the method makes of weights that fit on two devices and not on one, and ops that may share a kernel."""
    result = solve(halves(), method, Budget(None, 120), seed=3)
    plan, columns = result.plan, []
    for column in (plan.device, plan.rank, plan.kernel, plan.send_rank):
        columns.append(b"" if column is None else np.ascontiguousarray(column, np.int64).tobytes())
    digest = hashlib.sha256(b"|".join([*columns, repr(plan.added).encode()])).hexdigest()[:12]
    return {"value": result.value, "over_bytes": result.timeline.over_bytes, "plan": digest}


@pytest.mark.full
def test_plans_are_the_kept_ones() -> None:
    kept = json.loads(FILE.read_text())
    changed = [method for method in METHODS if found(method) != kept.get(method)]
    assert not changed, f"python -m tests.golden.test_plans {' '.join(changed)}, if they should change"


def main() -> None:
    kept = json.loads(FILE.read_text()) if FILE.exists() else {}
    kept |= {method: found(method) for method in sys.argv[1:] or METHODS}
    rows = [f'"{method}": {json.dumps(kept[method])}' for method in METHODS if method in kept]
    FILE.write_text("{\n" + ",\n".join(rows) + "\n}\n")


if __name__ == "__main__":
    main()
