"""Writes afresh how methods share out what they have: python -m tests.golden.efforts [SCENE ...]

Of each run it is kept what parts of it were asked to do and when: how long and how hot coolings are, which starts were
made, what parts of a budget went where. Two that differ there may well come to the same plan. The clock of those that
go by it is one that goes on with what they do.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, nullcontext
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest import mock

import numpy as np

from loadmaster import Budget
from loadmaster.catalog.specs import make_optimizer
from loadmaster.learn.regal2020 import optimizer as regal
from loadmaster.optimizers import auto, complete, racing, starts
from loadmaster.optimizers.annealing import chains
from loadmaster.optimizers.annealing.chains import Chains, Pace
from loadmaster.optimizers.crossing import Crossing
from loadmaster.optimizers.genetic.brkga import Brkga
from loadmaster.optimizers.racing import Waiting
from loadmaster.optimizers.rebalancing import Rebalancer
from loadmaster.search import Score, Search, search
from tests.golden.inputs import sums_of
from tests.golden.plans import ALL
from tests.golden.scenes import Scenes, Told, checksum

scene = Scenes(Path(__file__).with_suffix(".json"))
EACH = 12  # calls that a number is kept for


def _cooled(walking: Chains, simulations: int, hot: float, cold: float, *_: Any) -> tuple[Any, ...]:
    return simulations, hot, cold, walking.active, float(walking.weights.sum()), walking.search.simulations


def _parted(whole: Search, share: float = 1.0, problem: Any = None, *, simulations: int | None = None) -> Any:
    return share, simulations, (problem or whole.problem).num_ops, whole.simulations


def _due(found: Any) -> list[int]:
    return [start.price for start in found]


def _drawn(prior: Any) -> list[float]:
    """From where genes are drawn."""
    columns = (prior.center, prior.width, prior.shape, prior.bias)
    return [number for column in columns for number in sums_of(np.asarray(column))]


# What is watched, and what is told of a call or of what came of it.
CALLS: dict[tuple[Any, str], Callable[..., Any]] = {
    (Chains, "cool"): _cooled,
    (Search, "part"): _parted,
    (Search, "prove"): lambda _, bound: bound,
    (Crossing, "improve"): lambda crossed, _: (crossed.due, crossed.used),
    (Rebalancer, "improve"): lambda _, score, __, patience: (score, patience),
    (Brkga, "optimize"): lambda _, part: part.simulations_left,
    (regal, "evolve"): lambda part, plain, decoder, prior, *first: (
        *(part.simulations_left, plain.evaluations, plain.population, plain.patience, plain.by, plain.blocks),
        *(plain.sends, plain.rho, decoder.blocks, bool(first) and first[0] is not None, _drawn(prior)),
    ),
}


@contextmanager
def watched() -> Iterator[list[str]]:
    """All that is asked for within the block."""
    seen: list[str] = []

    def watching(name: str, function: Any, telling: Callable[..., Any]) -> Any:
        def told(*given: Any, **named: Any) -> Any:
            words = telling(*given, **named)
            numbers = words if isinstance(words, (tuple, list)) else (words,)
            seen.append(f"{name} {[f'{part:.9g}' if isinstance(part, float) else part for part in numbers]}")
            return function(*given, **named)

        return told

    own = Waiting.due

    def due(some: Waiting) -> Any:
        found = own(some)
        seen.append(f"due {_due(found)}")
        return found

    with ExitStack() as stack:
        for (kind, name), telling in CALLS.items():
            stack.enter_context(mock.patch.object(kind, name, watching(name, getattr(kind, name), telling)))
        stack.enter_context(mock.patch.object(Waiting, "due", due))
        stack.enter_context(mock.patch.object(starts, "PARTITIONS", {}))  # which need packages
        yield seen


def run(method: str, whole: Search) -> Told:
    with watched() as seen:
        plan = make_optimizer(method).optimize(whole)
    told = [f"{moment.simulations} {moment.score}" for moment in whole.history]
    score = Score(0, 0) if whole.best is None else whole.best_score
    last = [float(whole.simulations), float(score.over_bytes), float(score.value), checksum(plan.device.tolist())]
    parts = [seen[at : at + EACH] for at in range(0, len(seen), EACH)]
    return {"calls": [float(len(seen)), *map(checksum, parts)], "history": [checksum(told)], "end": last}


COUNTED = {
    ("auto", "fused"): 2_600,
    ("auto", "unlike"): 2_600,
    ("auto", "brisk"): 700,
    ("auto", "hosted"): 150,
    ("placement", "tasks"): 3_000,
    ("placement", "crowded"): 3_600,
    ("placement", "tight"): 900,
    ("joint", "halves"): 1_500,
    ("joint", "crowded"): 1_200,
    ("joint", "drawing"): 900,
    ("separate", "fused"): 1_200,
    ("separate", "tight"): 500,
    ("islands", "unlike"): 900,
    ("anneal", "tasks"): 1_500,
    ("anneal-fusion", "fused"): 900,
    ("multilevel", "large"): 400,
    ("local-search", "unlike"): 700,
    ("regal:policy=random,evaluations=2400,patience=3", "tasks"): 3_000,
    ("regal:policy=random,evaluations=900,proposals=5,finish=none", "tight"): 2_000,
    ("regal:policy=random,evaluations=300,direct=yes", "odd"): 400,
    ("regal:policy=random,plans_only=yes", "small"): 60,
}


def run_counted(method: str, name: str, simulations: int) -> Told:
    return run(method, Search(ALL[name](), Budget(None, simulations), 5))


scene.made |= {
    f"{method} of {name}": partial(run_counted, method, name, simulations)
    for (method, name), simulations in COUNTED.items()
}


LOOK_S, SIMULATION_S = 1e-4, 5e-4  # what a look at the clock takes, and a simulation


class Clock:
    """One that goes on when it is looked at, and with the simulations of a search."""

    def __init__(self) -> None:
        self.looks, self.ledger = 0, SimpleNamespace(simulations=0)

    def __call__(self) -> float:
        self.looks += 1
        return LOOK_S * self.looks + SIMULATION_S * self.ledger.simulations

    @contextmanager
    def going(self) -> Iterator[None]:
        """Within the block it is the clock of searches. Nothing is proved beside them, on other threads."""
        own = Pace.took

        def took(pace: Pace, simulations: int, _: float) -> None:
            own(pace, simulations, SIMULATION_S * simulations)

        with ExitStack() as stack:
            stack.enter_context(mock.patch.object(search, "_clock", self))
            stack.enter_context(mock.patch.object(Pace, "took", took))
            for place in (auto, racing, complete):
                stack.enter_context(mock.patch.object(place, "lower_bound", lambda *_, **__: 0))
            stack.enter_context(mock.patch.object(auto, "closing", lambda _: nullcontext()))
            stack.enter_context(mock.patch.object(chains, "cores", lambda: 1))
            yield


def run_by_the_clock(method: str, name: str, seconds: float) -> Told:
    clock = Clock()
    with clock.going():
        whole = Search(ALL[name](), Budget(seconds, None), 5)
        clock.ledger = whole._ledger  # type: ignore[assignment]
        return run(method, whole)


CLOCKED = {
    ("auto", "fused"): 1.5,
    ("auto", "brisk"): 1.0,
    ("auto", "hosted"): 0.3,
    ("placement", "unlike"): 1.5,
    ("placement", "crowded"): 1.5,
    ("joint", "halves"): 1.0,
    ("joint", "tight"): 0.5,
    ("separate", "tight"): 0.5,
    ("anneal", "tasks"): 0.5,
}
scene.made |= {
    f"{method} of {name} by the clock": partial(run_by_the_clock, method, name, seconds)
    for (method, name), seconds in CLOCKED.items()
}


if __name__ == "__main__":
    scene.write(sys.argv[1:])
