"""BRKGA: a biased random-key genetic algorithm over placement, order and sends.

Evaluations are whole simulations, so a search costs what its evaluations do; how genes decode (`decoder_of`) and where
fresh ones come from (`prior_of`) are separate, so that REGAL's policy can replace the second.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, replace
from importlib import resources
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from loadmaster.baselines.genetic import breeding
from loadmaster.baselines.memory_order import memory_order
from loadmaster.errors import InvalidSetting
from loadmaster.graph.columns import Ints, ints, positions
from loadmaster.passes.groups import group_ops, mirrored_position
from loadmaster.plans import Plan
from loadmaster.problem import Problem
from loadmaster.problem.objective import Objective
from loadmaster.search import Method, Score, Search
from loadmaster.simulator import layout, spread

Order = Literal["uniform", "given", "memory"]
By = Literal["op", "mirror", "program", "scope", "edges"]


@dataclass(frozen=True)
class Brkga:
    """Biased random-key genetic algorithm (Gonçalves and Resende, 2011) as REGAL 2020 uses it (arXiv 1905.02494).

    A chromosome holds a device affinity per op and device (the largest wins), a priority per op, and a priority per
    tensor and destination. Each generation keeps its elites, adds mutants drawn from the prior, and fills up with
    children that take each gene from the elite parent with probability rho.

    Differs from the paper: its population and shares are not published, these are ours; affinities can be shared by
    blocks of ops, priorities can be drawn around a given order, and an evaluation stops once it cannot join the elites.

    Attributes:
        evaluations: simulations, at most.
        population: chromosomes of a generation.
        elites: share of them that is kept.
        mutants: share of them that is drawn afresh.
        rho: chance that a child takes a gene from its elite parent.
        order: what priorities are drawn around.
        width: how far from it, where there is one.
        by: what shares an affinity.
        blocks: how many blocks of ops share one, unless by op or scope.
        sends: the order of sends is decided by genes, too.
        patience: evaluations without a gain before it ends; 0: it goes on.
        start: a plan to put into the first population.
    """

    evaluations: int = 5_000
    population: int = 100
    elites: float = 0.2
    mutants: float = 0.1
    rho: float = 0.7
    order: Order = "uniform"
    width: float = 0.25
    by: By = "op"
    blocks: int = 8
    sends: bool = True
    patience: int = 0
    start: Method | None = None

    def optimize(self, search: Search) -> Plan:
        first = None if self.start is None else self.start.optimize(search)
        return evolve(search, self, decoder_of(search.problem, self), prior_of(search.problem, self), first)


@dataclass(frozen=True)
class TunedBrkga:
    """BRKGA with the one setting that did best on a training corpus; tuned_brkga.json says how it was found.

    Attributes:
        evaluations: simulations, at most.
    """

    evaluations: int = 5_000

    def optimize(self, search: Search) -> Plan:
        return replace(Brkga(**tuned_settings(search.problem.objective)), evaluations=self.evaluations).optimize(search)


def tuned_settings(objective: Objective) -> dict[str, Any]:
    """Those found for the objective; for one that nobody tuned for, those for the step time."""
    text = resources.files("loadmaster.baselines.genetic").joinpath("tuned_brkga.json").read_text()
    found: dict[str, dict[str, Any]] = json.loads(text)["settings"]
    return found.get(objective.name, found["step-time"])


def decoder_of(problem: Problem, settings: Brkga) -> breeding.GeneDecoder:
    """How genes become a plan of this problem under these settings."""
    block_of = _blocks(problem, settings)
    return breeding.GeneDecoder(
        block_of[problem.leader],
        int(block_of.max()) + 1,
        settings.sends,
        np.ascontiguousarray(problem.able),
        problem.memory_bytes,
        problem.goal,
    )


def _blocks(problem: Problem, settings: Brkga) -> Ints:
    """[ops] the block of each op."""
    ops = np.arange(problem.num_ops)
    if settings.by == "scope" and any(problem.graph.scope):
        names = {name: index for index, name in enumerate(dict.fromkeys(problem.graph.scope))}
        return ints([names[scope] for scope in problem.graph.scope])
    if settings.by == "edges":
        return group_ops(problem, settings.blocks)
    if settings.by in ("mirror", "scope"):
        order = np.argsort(mirrored_position(problem), kind="stable")
        ops = positions(order)
    if settings.by == "op":
        return ints(ops)
    return ints(ops * min(settings.blocks, problem.num_ops) // problem.num_ops)


UNIFORM = (np.arange(256, dtype=np.float32) / 256)[None]


def prior_of(problem: Problem, settings: Brkga) -> breeding.Prior:
    """Where fresh genes come from: the whole range alike, as in the paper; priorities around an order where the
    settings name one."""
    blocks = int(_blocks(problem, settings).max()) + 1
    genes = blocks * problem.num_devices + problem.num_ops
    genes += problem.graph.num_tensors * problem.num_devices if settings.sends else 0
    center, width = np.full(genes, 0.5, np.float32), np.ones(genes, np.float32)
    if settings.order != "uniform":
        part = slice(blocks * problem.num_devices, blocks * problem.num_devices + problem.num_ops)
        order = np.arange(problem.num_ops) if settings.order == "given" else memory_order(problem)
        center[part][order] = (np.arange(problem.num_ops) + 0.5) / problem.num_ops
        width[part] = settings.width
    bias = np.full(genes, round(settings.rho * 256), np.uint8)
    return breeding.Prior(center, width, np.zeros(genes, np.uint8), UNIFORM, bias)


def _check_shares(settings: Brkga) -> None:
    if not (0 <= settings.elites < 1 and 0 <= settings.mutants <= 1):
        what = f"{settings.elites} of the population as elites, {settings.mutants} as mutants"
        raise InvalidSetting(what, "brkga", "give shares: elites=0.2,mutants=0.1")


def evolve(
    search: Search, settings: Brkga, decoder: breeding.GeneDecoder, prior: breeding.Prior, first: Plan | None = None
) -> Plan:
    """Generations until the evaluations or the budget are spent."""
    _check_shares(settings)
    size = max(3, min(settings.population, settings.evaluations))
    elites, mutants = max(1, int(size * settings.elites)), int(size * settings.mutants)
    mutants = min(mutants, size - elites - 1)
    plain, done = layout(search.problem), 0
    seed = int(search.rng.integers(1, 2**62))
    old, new = (np.empty((size, len(prior.center)), np.uint16) for _ in range(2))
    fitness, fresh = (np.full(size, breeding.STOPPED) for _ in range(2))
    order = np.arange(size)
    gained = search.simulations

    def generation(low: int, rows: int, mutants: int, most: int) -> int:
        high = min(low + rows, low + settings.evaluations - done, low + search.simulations_left)
        turn = seed + done * 1_000_003

        def part(a: int, b: int) -> None:
            breeding.breed(plain, decoder, prior, old, new, order, elites, mutants, turn, low + a, low + b, fresh, most)

        spread(part, high - low)
        search.count(high - low)
        return high - low

    done = generation(0, size, size, int(breeding.STOPPED))
    if first is not None and done < settings.evaluations and not search.spent:
        new[done - 1] = genes_of(search.problem, decoder, first)
        search.score(first)
        fresh[done - 1] = _fitness(search.best_score)
        done += 1
    while True:
        old, new, fitness, fresh = new, old, fresh, fitness
        order = np.argsort(fitness, kind="stable")
        order[elites:] = np.sort(order[elites:])  # the rest have no known order: some were stopped early
        if _offer(search, plain, decoder, old[order[0]], int(fitness[order[0]])):
            gained = search.simulations
        tired = 0 < settings.patience <= search.simulations - gained
        if done >= settings.evaluations or search.spent or tired:
            break
        fresh[:] = breeding.STOPPED
        new[:elites], fresh[:elites] = old[order[:elites]], fitness[order[:elites]]
        worst = int(fitness[order[elites - 1]])
        most = worst if worst < breeding.HEAVY_PENALTY else int(breeding.STOPPED)
        done += generation(elites, size - elites, mutants, most)
    assert search.best is not None
    return search.best


def _fitness(score: Score) -> int:
    return int(breeding.HEAVY_PENALTY) + score.over_bytes if score.over_bytes else score.value


def _offer(search: Search, plain: Any, decoder: breeding.GeneDecoder, genes: NDArray[np.uint16], fitness: int) -> bool:
    fits = fitness < breeding.HEAVY_PENALTY
    score = Score(0, fitness) if fits else Score(fitness - int(breeding.HEAVY_PENALTY), 0)
    best = search.best_score
    known = score >= best if fits else score.over_bytes >= best.over_bytes
    if known and search.best is not None:
        return False
    place, rank, sends = breeding.decode_one(plain, decoder, genes)
    plan = Plan.of(search.problem, ints(place), ints(rank))
    if decoder.sends:
        plan = replace(plan, send_rank=ints(sends.reshape(-1, search.problem.num_devices)))
    # Of what does not fit the loop keeps only how much it is over.
    return search.offer(plan, score if fits else Score.of(search.problem, search.timeline(plan)))


def genes_of(problem: Problem, decoder: breeding.GeneDecoder, plan: Plan) -> NDArray[np.uint16]:
    """A chromosome that decodes to the plan, as far as blocks allow."""
    affinity = np.full((decoder.blocks, problem.num_devices), 16_384, np.uint16)
    affinity[decoder.block_of, plan.device] = 49_152
    order = np.argsort(plan.rank, kind="stable")
    priority = np.empty(problem.num_ops, np.uint16)
    priority[order] = np.arange(problem.num_ops) * 65_535 // max(1, problem.num_ops)
    parts = [affinity.reshape(-1), priority]
    if decoder.sends:
        low = np.full(problem.graph.num_tensors, 65_535, np.uint16)
        start, readers = problem.graph.readers
        np.minimum.at(low, np.repeat(np.arange(problem.graph.num_tensors), np.diff(start)), priority[readers])
        parts.append(np.repeat(low, problem.num_devices))
    return np.concatenate(parts)
