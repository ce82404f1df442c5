"""REGAL 2020: a network reads the graph once and tells BRKGA where to draw its genes from.

One pass of the network, then a genetic search with the evaluations that are left. The docstring of `Regal` says what
was added to the paper's method; docs/methods/regal_learned.md says what each part brings.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from itertools import chain, cycle
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
from numpy.typing import NDArray

from loadmaster.baselines.cuts import device_order
from loadmaster.baselines.genetic import breeding
from loadmaster.baselines.genetic.brkga import Brkga, decoder_of, evolve, prior_of
from loadmaster.baselines.simple import Ready, legal
from loadmaster.graph.columns import ints
from loadmaster.learn.regal2020.actions import (
    BIASES,
    BLOCKS,
    FIRST,
    HALF,
    LEVELS,
    MEANS,
    ORDER,
    SENDS,
    STANDARD,
    UNIFORM_VARIANCE,
    VARIANCES,
    WIDTHS,
    RegalAction,
    best_action,
    constant_action,
    load_policy,
    random_action,
    replace_blocks,
    untrained_policy,
)
from loadmaster.methods.annealing.anneal import Anneal
from loadmaster.papers.features import Features, features_of
from loadmaster.plans import Plan
from loadmaster.problem import Problem
from loadmaster.search import Method, Search

if TYPE_CHECKING:
    pass


WAYS = (("edges", 64), ("edges", 24), ("op", 1))  # to share affinities, tried beside the one that the policy chose
HEDGED, LEAST_HEDGE = 16, 20  # a try takes at most one of so many evaluations; with fewer for each none is tried

NEAR_MEAN, NEAR_VARIANCE, NEAR_WIDTH = 14, 2, 0.05  # levels and width for genes around a plan
SHIFTS = (0.0, 0.7, -0.7, 1.5, -1.5, 3.0, -3.0, 5.0)  # of the chances' logits, towards the last or the first devices


@dataclass(frozen=True)
class Regal:
    """REGAL (Paliwal et al. 2020, arXiv 1905.02494): learned Beta distributions for the genes of BRKGA.

    One pass of a graph network gives, for each op and device, the mean and variance of the affinity genes; for each op,
    how widely its priority is drawn and how often genes come from the elite parent; 16 levels each. `network=sequence`
    is the paper's GAS, a recurrent network over the ops in program order.

    Differs from the paper: devices are scored one by one, so any number of unlike devices will do; priorities are drawn
    around an order that the policy chooses or makes; ops may share affinities by blocks of the mirrored order or by
    heavy tensors; a few plans read off the policy's chances are tried first and the best joins the first population;
    one generation each of standard BRKGA and of affinities shared in other ways hedges against graphs that the policy
    reads wrongly, and the way whose best plan is best goes on; when the best has not changed for a while, genes are
    drawn around it, op by op, and then under the other ways in turn; annealing takes the second half of the evaluations
    (finish=none: BRKGA has them all); the network is fitted to plans of long classical runs, which reinforcement has
    not improved on. Sizes of the network and the population are ours.

    Attributes:
        checkpoint: a .safetensors file, or the name of shipped weights; empty: those of the network; none.
        evaluations: simulations of BRKGA and what goes with it, the second half of `finish`.
        population, elites, mutants: of BRKGA, as in `Brkga`.
        policy: learned: the network's action; random or constant ones, to compare with.
        network: graph: a graph network, as published; sequence: the paper's GAS.
        by: what shares affinities; policy: as it chooses.
        blocks: how many, by mirror or edges.
        proposals: plans read off the chances and tried first.
        hedge: evaluations, at most, of a first generation under each of five ways to draw; 0: one way alone.
        patience: evaluations without a gain before genes are drawn around the best plan, or another way.
        plans_only: end with the plans read off the chances.
        direct: draw plans from the policy only, without BRKGA.
        finish: takes the second half of the evaluations, from the best plan; none: BRKGA has all of them, as published.
    """

    checkpoint: str = ""
    evaluations: int = 5_000
    population: int = 100
    elites: float = 0.2
    mutants: float = 0.1
    policy: Literal["learned", "random", "constant"] = "learned"
    network: Literal["graph", "sequence"] = "graph"
    by: Literal["policy", "op", "mirror", "edges"] = "policy"
    blocks: int = 32
    proposals: int = 32
    hedge: int = 100
    patience: int = 400
    plans_only: bool = False
    direct: bool = False
    finish: Method | None = field(default_factory=Anneal)

    def optimize(self, search: Search) -> Plan:
        features = features_of(search.problem)
        action = self.act(features, search)
        total = min(self.evaluations, search.simulations_left)
        last = 0 if self.finish is None or self.direct or self.plans_only else total // 2
        plan = run_action(search, features, action, self, total - last)
        if not last or search.spent:
            return plan
        finish: Any = self.finish
        with search.keeping(simulations=min(last, search.simulations_left)) as part:
            finished: Plan = (replace(finish, start=Ready(plan)) if hasattr(finish, "start") else finish).optimize(part)
        return search.best or finished

    def shaped(self, plain: Brkga, evaluations: int) -> Brkga:
        """BRKGA with the population of these settings."""
        shape = {"population": self.population, "elites": self.elites, "mutants": self.mutants}
        return replace(plain, **shape, evaluations=evaluations, patience=self.patience)  # type: ignore[arg-type]

    def act(self, features: Features, search: Search) -> RegalAction:
        """The action this policy takes, at its most likely."""
        if self.policy == "random":
            return random_action(features, search.rng)
        if self.checkpoint == "none":
            network, known = untrained_policy(self.network, search.seed)
        else:
            network, known = load_policy(self.checkpoint or {"graph": "regal", "sequence": "gas"}[self.network])
        if self.policy == "constant":
            return constant_action(features, tuple(known.get("constant", FIRST)))
        action = best_action(features, network)
        return replace_blocks(action, self.by, self.blocks)


def run_action(search: Search, features: Features, action: RegalAction, settings: Regal, evaluations: int) -> Plan:
    """Tries the plans read off the action and the other ways to draw, then BRKGA with the prior of the best of them."""
    part = search.part(simulations=evaluations)
    most = min(settings.proposals, part.simulations_left if settings.plans_only else part.simulations_left // 4)
    first = propose(part, features, action, most) if most else None
    if settings.direct:
        _draw_only(part, features, action, settings)
    elif not settings.plans_only or first is None:
        _guide(part, features, action, settings, first)
    search.offer(_best(part), part.best_score)
    return _best(search)


def _guide(search: Search, features: Features, action: RegalAction, settings: Regal, first: Plan | None) -> None:
    """BRKGA under the best of the ways to draw; when it tires, around the best plan and under the others in turn."""
    ways, each = [action], min(settings.hedge, search.simulations_left // HEDGED)
    if each >= LEAST_HEDGE:
        ways = _ranked_ways(search, features, action, settings, each)
        first = search.best
    later: list[RegalAction | None] = [turn for way in [*ways[1:], ways[0]] for turn in (None, way)]
    for turn in chain(ways[:1], cycle(later)):
        decoder, prior, plain = _prior_of_turn(search, features, turn)
        evolve(search, settings.shaped(plain, search.simulations_left), decoder, prior, first)
        first = search.best
        if search.spent:
            break


def _prior_of_turn(
    search: Search, features: Features, turn: RegalAction | None
) -> tuple[breeding.GeneDecoder, breeding.Prior, Brkga]:
    """Of a way to draw; of none: around the best plan."""
    if turn is None:
        return prior_around(search.problem, _best(search))
    return prior_of_action(search.problem, features, turn)


def _best(search: Search) -> Plan:
    assert search.best is not None
    return search.best


def _draw_only(search: Search, features: Features, action: RegalAction, settings: Regal) -> None:
    decoder, prior, plain = prior_of_action(search.problem, features, action)
    while not search.spent:
        count = min(search.simulations_left, settings.population)
        evolve(search, replace(settings.shaped(plain, count), population=count), decoder, prior)


def _ranked_ways(
    search: Search, features: Features, action: RegalAction, settings: Regal, each: int
) -> list[RegalAction]:
    """One generation under each way to draw; the way whose best plan is best comes first."""
    shared = [replace_blocks(action, by, blocks) for by, blocks in WAYS]
    ways = [action, *shared, constant_action(features, STANDARD)]
    scores = []
    for way in ways:
        part = search.part(simulations=each)
        decoder, prior, plain = prior_of_action(search.problem, features, way)
        evolve(part, replace(settings.shaped(plain, each), population=each), decoder, prior)
        search.offer(_best(part), part.best_score)
        scores.append(part.best_score)
    return [ways[at] for at in sorted(range(len(ways)), key=lambda at: scores[at])]


def prior_around(problem: Problem, plan: Plan) -> tuple[breeding.GeneDecoder, breeding.Prior, Brkga]:
    """Genes op by op near those of the plan: most keep its devices, ranks move a little."""
    plain = Brkga(by="op", sends=False, rho=0.6)
    decoder, uniform = decoder_of(problem, plain), prior_of(problem, plain)
    count, places = problem.num_ops, problem.num_ops * problem.num_devices
    mean = np.full((count, problem.num_devices), LEVELS - NEAR_MEAN)
    mean[np.arange(count), plan.device] = NEAR_MEAN
    shape = np.full(len(uniform.center), HALF * LEVELS + UNIFORM_VARIANCE, np.uint8)
    shape[:places] = (mean * LEVELS + NEAR_VARIANCE).reshape(-1)
    center, width = uniform.center.copy(), uniform.width.copy()
    order = np.argsort(plan.rank, kind="stable")
    center[places:][order] = 0.5 + ((np.arange(count) + 0.5) / count - 0.5) * (1 - NEAR_WIDTH)
    width[places:] = NEAR_WIDTH
    return decoder, breeding.Prior(center, width, shape, beta_table(shape), uniform.bias), plain


def propose(search: Search, features: Features, action: RegalAction, most: int) -> Plan:
    """The best of up to `most` plans: the likeliest device per op, tilted this way and that, under each order."""
    problem = search.problem
    chance = action.chance.reshape(problem.num_ops, problem.num_devices)
    tilt = np.empty(problem.num_devices)
    tilt[device_order(problem)] = np.linspace(-1, 1, problem.num_devices) if problem.num_devices > 1 else 0.0
    ranks = [np.argsort(np.argsort(order, kind="stable"), kind="stable") for order in orders_of(features, action)]
    devices = [legal(problem, ints((chance + shift * tilt).argmax(axis=1))) for shift in SHIFTS]
    pairs = [(device, rank) for device in devices for rank in ranks][:most]
    over, value = search.score_many(np.stack([device for device, _ in pairs]), np.stack([rank for _, rank in pairs]))
    at = int(np.lexsort((value, over))[0])
    return Plan.of(problem, pairs[at][0], pairs[at][1])


def orders_of(features: Features, action: RegalAction) -> Iterator[NDArray[np.float32]]:
    """The learned order, then those that the policy may choose from."""
    yield action.place
    yield from features.orders.T[: len(ORDER) - 1]


def prior_of_action(
    problem: Problem, features: Features, action: RegalAction
) -> tuple[breeding.GeneDecoder, breeding.Prior, Brkga]:
    """Where BRKGA draws its genes from under the action."""
    choices = dict(
        zip(("strength", "spread", "order", "width", "bias", "blocks", "sends"), action.choices.tolist(), strict=True)
    )
    by, blocks = BLOCKS[choices["blocks"]]
    plain = Brkga(by=by, blocks=blocks or 8, sends=SENDS[choices["sends"]])
    decoder, uniform = decoder_of(problem, plain), prior_of(problem, plain)
    shape = np.full(len(uniform.center), HALF * LEVELS + UNIFORM_VARIANCE, np.uint8)
    center, width, bias = uniform.center.copy(), uniform.width.copy(), uniform.bias.copy()
    per_op = (problem.num_ops, problem.num_devices)
    mean = _by_block(action.mean.reshape(per_op), decoder, features.weight)
    variance = _by_block(action.variance.reshape(per_op), decoder, features.weight)
    places, ranks = decoder.blocks * problem.num_devices, slice(decoder.blocks * problem.num_devices, None)
    shape[:places] = (mean * LEVELS + variance).reshape(-1)
    share = WIDTHS[action.width]
    position = _position(features, action, choices["order"])
    center[ranks][: problem.num_ops] = 0.5 + (position - 0.5) * (1 - share)
    width[ranks][: problem.num_ops] = share
    elite = np.minimum(255, np.round(BIASES * 256)).astype(np.uint8)
    blocked = _by_block(action.bias[:, None], decoder, features.weight)
    bias[:places] = elite[np.repeat(blocked[:, 0], problem.num_devices)]
    bias[ranks][: problem.num_ops] = elite[action.bias]
    return decoder, breeding.Prior(center, width, shape, beta_table(shape), bias), plain


def _by_block(
    levels: NDArray[np.uint8], decoder: breeding.GeneDecoder, weight: NDArray[np.float32]
) -> NDArray[np.int64]:
    """[blocks, width] the mean level of the ops of each block, the heavy ones counting more."""
    total = np.zeros((decoder.blocks, levels.shape[1]))
    np.add.at(total, decoder.block_of, levels * weight[:, None])
    size = np.bincount(decoder.block_of, weight, decoder.blocks)
    filled = np.where(size[:, None] > 0, total / np.maximum(size, 1e-9)[:, None], HALF)
    rounded: NDArray[np.int64] = np.round(filled).astype(np.int64)
    return rounded


def _position(features: Features, action: RegalAction, order: int) -> NDArray[np.float64]:
    """[ops] places 0 to 1 in the chosen order."""
    if order < len(ORDER) - 1:
        return features.orders[:, order].astype(np.float64)
    place = np.empty(features.num_ops)
    place[np.argsort(action.place, kind="stable")] = (np.arange(features.num_ops) + 0.5) / features.num_ops
    return place


_table = np.full((LEVELS * LEVELS, 256), np.nan, np.float32)


def beta_table(shapes: NDArray[np.uint8]) -> NDArray[np.float32]:
    """[LEVELS * LEVELS, 256] inverse distribution functions of the Betas; row = mean level * LEVELS + variance level.

    Rows are worked out when first asked for: all of them take longer than a short run.
    """
    from scipy.special import betaincinv

    used = np.unique(shapes)
    fresh = used[np.isnan(_table[used, 0])]
    alpha, beta = (column.reshape(-1, 1)[fresh] for column in beta_parameters())
    _table[fresh] = betaincinv(alpha, beta, np.arange(256)[None] / 256)
    return _table


def beta_parameters() -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """[LEVELS, LEVELS] alpha = m(m(1-m)/v - 1), beta = (1-m)(m(1-m)/v - 1), with v = share · m(1-m)."""
    rest = 1 / VARIANCES[None, :] - 1
    return MEANS[:, None] * rest, (1 - MEANS[:, None]) * rest
