"""What a step costs under a plan: the rules in words (`rules`), the compiled loop that follows them (`loop`).

In go a Problem and a Plan, out comes a Timeline; many at once give Scores. The loop's steps are in `steps`; `state` is
what it works on and `heaps` its queues; `step_time` is the same loop without memory, for searches that ask for the time
alone; `contraction` has both for plans that fuse, without making a coarser Problem for each; `lives` says afterwards
where each tensor lay and until when, and `arenas` gives each an offset in one block per device. A slow simulator in
plain Python (tests/reference.py) follows the same rules, and the two agree to the nanosecond and the byte.

Names here are imported when they are first used.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from loadmaster.deferred import deferred

if TYPE_CHECKING:
    from loadmaster.simulator.rules import NO_LIMIT as NO_LIMIT
    from loadmaster.simulator.rules import Scores as Scores
    from loadmaster.simulator.rules import Timeline as Timeline
    from loadmaster.simulator.rules import contraction_facts as contraction_facts
    from loadmaster.simulator.rules import first_come as first_come
    from loadmaster.simulator.rules import layout as layout
    from loadmaster.simulator.rules import run_first_come as run_first_come
    from loadmaster.simulator.rules import settle as settle
    from loadmaster.simulator.rules import simulate as simulate
    from loadmaster.simulator.rules import simulate_fused as simulate_fused
    from loadmaster.simulator.rules import simulate_many as simulate_many
    from loadmaster.simulator.threads import cores as cores
    from loadmaster.simulator.threads import spread as spread

_HOMES = {
    "NO_LIMIT": "rules",
    "Scores": "rules",
    "Timeline": "rules",
    "contraction_facts": "rules",
    "cores": "threads",
    "first_come": "rules",
    "layout": "rules",
    "run_first_come": "rules",
    "settle": "rules",
    "simulate": "rules",
    "simulate_fused": "rules",
    "simulate_many": "rules",
    "spread": "threads",
}

__all__ = [
    "NO_LIMIT",
    "Scores",
    "Timeline",
    "contraction_facts",
    "cores",
    "first_come",
    "layout",
    "run_first_come",
    "settle",
    "simulate",
    "simulate_fused",
    "simulate_many",
    "spread",
]

__getattr__ = deferred(__name__, _HOMES)
