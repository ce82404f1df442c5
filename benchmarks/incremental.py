"""What incremental evaluation could save: how much of a simulation a move of annealing leaves as it was.

    python benchmarks/incremental.py [--graphs layered:10000 zoo:gnmt-4 zoo:rnnlm-8] [--moves 1000] [--begin 300]

From a plan that annealing came to, moves as it draws them. For each, the share of ops that start before the first that
starts at another time (a run could begin there), and of those at the end that all start later or earlier by the same
time (a run could end there). A search stops most runs early, when they must be worse: `now` is the share of ops that
such a run looks at, `ideal` what is left of that without the beginning and, where the run is not stopped, without the
end. Their quotient is a ceiling: it counts neither saving states to begin from, nor finding out where to begin and end.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray
from simulator import layered

from loadmaster import Budget, Problem, load, price
from loadmaster.compiled import compiled
from loadmaster.optimizers.annealing import engine
from loadmaster.optimizers.annealing.chains import Decisions, walkers
from loadmaster.optimizers.annealing.critical import measure_tails
from loadmaster.optimizers.annealing.state import SHIFT, WAYS
from loadmaster.optimizers.lists.schedulers import Heft
from loadmaster.plans import Plan
from loadmaster.search import Search
from loadmaster.simulator import NO_LIMIT, layout, loop, simulate, state

Row = NDArray[np.int32]
PLACING = ["window", "group", "part of a group", "neighbours", "one op", "border", "swap"]
KINDS = [*PLACING, "ranks shifted", "rank of one", "ranks by the critical path", "overtaking"]


@compiled(_nrt=False)
def _move(layout, terrain, chain, scratch, arm, state):  # type: ignore[no-untyped-def]
    return engine._move(layout, terrain, chain, scratch, None, None, arm, False, state)


class Incumbent:
    """A plan, and when its ops start."""

    def __init__(self, problem: Problem, begin: int) -> None:
        self.problem, self.layout = problem, layout(problem)
        search = Search(problem, Budget(None, 10**9))
        plan = Heft().optimize(search)
        self.chains = walkers(search, plan, search.score(plan), Decisions(), chains=1)
        self.chains.cool(begin, 0.001, 1e-4)
        self.chain, self.scratch = self.chains.chains[0], self.chains.scratch[0]
        self.place, self.rank = self.chain.place.copy(), self.chain.rank.copy()
        self.value, self.start = self._times(self.place, self.rank)
        self.scratch = state.make_run_scratch(self.layout, True)

    def moves(self, count: int, rng: np.random.Generator) -> Iterator[tuple[str, Row, Row]]:
        """(kind, placement, ranks) of moves that change something."""
        given = (self.layout, self.chains.terrain, self.chain, self.scratch)
        chances = self.scratch.arms / self.scratch.arms.sum()
        while count:
            arm = int(rng.choice(len(chances), p=chances))
            done: Any = _move(*given, np.int64(arm), self.chain.random)
            moved, top, pairs, ranked = done[3:]
            if moved or ranked:
                count -= 1
                anew = ", ranks anew" if arm // WAYS < SHIFT and ranked else ""
                yield KINDS[arm // WAYS] + anew, self.chain.place.copy(), self.chain.rank.copy()
            engine._undo(*given, None, moved, top, pairs, ranked)

    def _times(self, place: Row, rank: Row) -> tuple[int, NDArray[np.int64]]:
        line = simulate(self.problem, Plan.of(self.problem, place.astype(np.int64), rank.astype(np.int64)))
        return line.step_ns, line.start_ns

    def shares(self, place: Row, rank: Row) -> tuple[float, float, float]:
        """(ops that a run looks at which is stopped when it must be worse, those before the first change, those after
        the last, which only a run that is not stopped comes to), all as shares."""
        _, start = self._times(place, rank)
        changed = (start != self.start) | (place != self.place)
        if not changed.any():
            return self._looked_at(place, rank)[0], 1.0, 0.0
        first = min(int(start[changed].min()), int(self.start[changed].min()))
        before = float((np.maximum(start, self.start) < first).mean())
        looked_at, stopped = self._looked_at(place, rank)
        return looked_at, min(before, looked_at), 0.0 if stopped else self._after(start, place, before)

    def _after(self, start: NDArray[np.int64], place: Row, before: float) -> float:
        """The share of ops at the end that all start later by the same time."""
        order = np.argsort(self.start, kind="stable")[::-1]
        later = (start - self.start)[order]
        same = (later == later[0]) & (place == self.place)[order]
        return min(1.0 - before, float(np.argmin(same) if not same.all() else len(same)) / len(same))

    def _looked_at(self, place: Row, rank: Row) -> tuple[float, bool]:
        plain, scratch = self.layout, self.scratch
        measure_tails(plain, place, len(place) - 1, scratch.tail)
        each = plain.op_ns.reshape(-1, plain.devices)[np.arange(len(place)), place]
        scratch.ahead[:] = np.bincount(place, weights=each.astype(np.float64), minlength=plain.devices).astype(np.int64)
        nothing, peak = np.empty(0, np.int64), np.zeros(plain.devices, np.int64)
        record = state.make_record(0, 0, 0)
        time = loop.run(plain, place, rank, nothing, scratch, self.value, NO_LIMIT, peak, False, record)
        return float(scratch.tally[1]) / len(place), time < 0


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--graphs", nargs="+", default=["layered:10000", "zoo:gnmt-4", "zoo:rnnlm-8"])
    parser.add_argument("--moves", type=int, default=1000)
    parser.add_argument("--begin", type=int, default=300, help="simulations that the plan is from")
    given = parser.parse_args()
    form = "{:<14} {:>7} {:<28} {:>6} {:>6} {:>7} {:>6} {:>6} {:>8}".format
    print(form("graph", "ops", "move", "moves", "now", "before", "after", "ideal", "ceiling"))
    for name in given.graphs:
        kind, _, size = name.partition(":")
        problem = layered(int(size), 4) if kind == "layered" else price(load(name), "4xp100-pcie")
        incumbent, by_kind = Incumbent(problem, given.begin), dict[str, list[tuple[float, ...]]]()
        for label, place, rank in incumbent.moves(given.moves, np.random.default_rng(0)):
            by_kind.setdefault(label, []).append(incumbent.shares(place, rank))
        by_kind["all"] = [shares for some in by_kind.values() for shares in some]
        for label, shares in sorted(by_kind.items()):
            row = (name, f"{problem.num_ops:,}", label, len(shares), *cells(np.array(shares)))
            print(form(*row), flush=True)


def cells(shares: NDArray[np.float64]) -> list[str]:
    now, before, after = shares.mean(axis=0)
    ideal = max(1e-4, now - before - after)
    return [f"{share:.3f}" for share in (now, before, after, ideal)] + [f"{now / ideal:.2f}x"]


if __name__ == "__main__":
    main()
