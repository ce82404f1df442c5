"""What a step costs under a plan: the rules in words (`rules`), the compiled loop that follows them (`loop`)."""

from loadmaster.simulator.rules import (
    NO_LIMIT,
    Scores,
    Timeline,
    contraction_facts,
    cores,
    first_come,
    layout,
    settle,
    simulate,
    simulate_fused,
    simulate_many,
    spread,
)

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
