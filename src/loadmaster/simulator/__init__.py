"""What a step costs under a plan: the rules in words (`rules`), the compiled loop that follows them (`loop`).

In go a Problem and a Plan, out comes a Timeline; many at once give Scores. `state` is what the loop works on and
`heaps` its queues; `contraction` has the same for plans that fuse, without making a coarser Problem for each; `lives`
says afterwards where each tensor lay and until when, and `arenas` gives each an offset in one block per device. A slow
simulator in plain Python (tests/reference.py) follows the same rules, and the two agree to the nanosecond and the byte.
"""

from loadmaster.simulator.rules import (
    NO_LIMIT,
    Scores,
    Timeline,
    contraction_facts,
    first_come,
    layout,
    settle,
    simulate,
    simulate_fused,
    simulate_many,
)
from loadmaster.simulator.threads import cores, spread

__all__ = [
    "NO_LIMIT",
    "Scores",
    "Timeline",
    "contraction_facts",
    "cores",
    "first_come",
    "layout",
    "settle",
    "simulate",
    "simulate_fused",
    "simulate_many",
    "spread",
]
