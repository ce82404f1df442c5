"""Placeto 2019: a policy walks over the groups of a graph and gives each a device, one after the other.

With trained weights a few episodes are played and judged by where they end; with `tune` it learns on the graph at hand
until the budget is spent. docs/methods/placeto.md has what either reaches.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from importlib import resources
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from loadmaster.baselines.simple import OneDevice
from loadmaster.errors import MissingExtra, UnreadableFile
from loadmaster.graph.columns import Ints, ints
from loadmaster.learn.cooling import Cooling
from loadmaster.learn.placeto2019.board import Board, Traversal, board_of, group_start, groups_of, visits
from loadmaster.papers.environment import Environment, Order, Simulated
from loadmaster.passes.groups import Grouper
from loadmaster.plans import Plan
from loadmaster.search import Method, Search

if TYPE_CHECKING:
    from loadmaster.learn.placeto2019.episodes import Episodes
    from loadmaster.learn.placeto2019.network import Aggregator, BoardTensors, Embedding, Once, PlacetoNetwork
else:  # settings are read from text by their types: these are those of placeto_network, without torch
    from typing import Literal

    Aggregator, Embedding = Literal["messages", "simple"], Literal["graph", "partitioner"]
    Once = Literal["step", "episode"]

CLIP = 1.25  # of the gradient, as published


@dataclass(frozen=True)
class Placeto:
    """Placeto (Addanki et al. 2019, arXiv 1906.08879): each group of ops is visited once and given a device.

    The policy reads messages passed up and down the graph, pooled over ancestors, descendants and unrelated groups. The
    likeliest episode and `samples` drawn ones come first, each judged by where it ends. With tune=yes the policy then
    learns on this graph until the budget is spent: REINFORCE with step rewards and a baseline for each step. Without
    trained weights (checkpoint=none, or none shipped) the policy starts as it is before training.

    Differs from the paper: devices are scored one by one, so any number of unlike devices will do, where the paper's
    softmax has a fixed size; rewards are in roots of relative step time and may be measured only every so many groups;
    placements that an episode does not change are not measured again; start times are estimates, not simulated; the
    network reads the graph once per episode unless once=step; Adam's rates are three times the published 1e-3 to 1e-4.

    Attributes:
        start: where the first episodes start from.
        checkpoint: a .safetensors file or the name of shipped weights; empty: "placeto" if shipped; none.
        tune: learn on the graph until the budget is spent.
        samples: episodes drawn before tuning.
        episodes: side by side in one step of tuning.
        every: groups between two rewards; 1: after each, as published.
        again: share of tuning steps that start from the best placement so far; 0: as published.
        groups: at most so many.
        by: edges where the graph has too few scopes.
        order: in which order a device takes its ops, as `ordering` has it.
        traversal: the order in which an episode comes to the groups.
        once: how often groups are embedded: anew for every step, as published, or once an episode.
        aggregator: messages: passed along the graph, as published; simple: sums of raw columns.
        embedding: graph: as published; partitioner: without the graph, to compare with.
        rate, last_rate: of Adam, at first and at the end.
        entropy: weight of the bonus for even choices.
        noise: of the measured times, as deviation of their logarithm.
        failures: chance that a measurement fails.
    """

    start: Method = field(default_factory=OneDevice)
    checkpoint: str = ""
    tune: bool = True
    samples: int = 31
    episodes: int = 8
    every: int = 8
    again: float = 0.0
    groups: int = 128
    by: Grouper = "scope"
    order: Order = "critical"
    traversal: Traversal = "topological"
    once: Once = "episode"
    aggregator: Aggregator = "messages"
    embedding: Embedding = "graph"
    rate: float = 3e-3
    last_rate: float = 3e-4
    entropy: float = 0.02
    noise: float = 0.0
    failures: float = 0.0

    def optimize(self, search: Search) -> Plan:
        plan = self.start.optimize(search)
        if search.simulations_left:
            search.score(plan)
        label = groups_of(search.problem, self.groups, self.by)
        environment = Simulated(search, label, self.order, noise=self.noise, failures=self.failures)
        if search.problem.num_devices > 1 and not search.spent:
            _Player(self, search, environment, group_start(search.problem, label, plan.device)).run()
        return search.best if search.best is not None else plan


class _Player:
    """One run on one problem."""

    def __init__(self, settings: Placeto, search: Search, environment: Environment, start: Ints) -> None:
        self.settings, self.search, self.environment = settings, search, environment
        self.start = self.best_start = start
        self.best = np.inf
        self.board: Board = board_of(search.problem, environment.label)
        self.network = load_policy(settings.checkpoint, settings.aggregator, settings.embedding, search.seed)
        self.board_tensors = _ground(self.board)

    def run(self) -> None:
        self.search.note = "placeto: zero-shot"
        self._try(1, None)
        left = self.settings.samples
        while left > 0 and not self.search.spent:
            self._try(min(left, 32, max(1, self.environment.measurements_left)), self.search.rng)
            left -= 32
        if self.settings.tune:
            self._tune()

    def _play(self, start: Ints, count: int, rng: np.random.Generator | None) -> Episodes:
        from loadmaster.learn.placeto2019.episodes import play

        order = visits(self.board, self.settings.traversal, self.search.rng)
        backwards = self.settings.traversal == "reverse"
        return play(
            self.network, self.board, self.board_tensors, start, order, self.settings.once, count, rng, backwards
        )

    def _try(self, count: int, rng: np.random.Generator | None) -> None:
        from loadmaster.learn.placeto2019.episodes import cost_of

        last = self._play(self.start, count, rng).last
        measured = self.environment.measure(last)
        self._keep(last, cost_of(self.environment, measured))

    def _keep(self, last: Ints, cost: np.ndarray) -> None:
        """Remembers the best placement as a start of later episodes."""
        cost = np.where(np.isnan(cost), np.inf, cost)
        at = int(cost.argmin())
        if cost[at] < self.best:
            self.best, self.best_start = float(cost[at]), ints(last[at])

    def _tune(self) -> None:
        """REINFORCE on this problem; the rate falls with what was simulated, or with the time."""
        import torch

        from loadmaster.learn.placeto2019.episodes import advantages, costs, reinforce
        from loadmaster.papers.adam import Adam

        settings, search = self.settings, self.search
        adam = Adam(self.network.parameters(), settings.rate)
        search.note = "placeto: tuning"
        cooling, step = Cooling(search), 0
        while not search.spent:
            from_best = (step + 1) * settings.again % 1.0 < settings.again
            episodes = self._play(self.best_start if from_best else self.start, settings.episodes, search.rng)
            cost = costs(self.environment, episodes, settings.every)
            if cost is None:
                break
            self._keep(episodes.last, cost[:, -1])
            left = 1.0 - cooling.share
            adam.rate = settings.last_rate + (settings.rate - settings.last_rate) * left
            adam.zero_grad()
            reinforce(
                self.network, self.board_tensors, episodes, advantages(cost), settings.once, settings.entropy * left
            )
            torch.nn.utils.clip_grad_norm_(self.network.parameters(), CLIP)
            adam.step()
            step += 1


def _ground(board: Board) -> BoardTensors:
    from loadmaster.learn.placeto2019.network import tensors_of

    return tensors_of(board)


def load_policy(checkpoint: str, aggregator: Aggregator, embedding: Embedding, seed: int) -> PlacetoNetwork:
    """The network of a checkpoint; an untrained one where there is none."""
    try:
        import torch

        from loadmaster.learn.placeto2019.network import PlacetoNetwork
        from loadmaster.papers.weights import network_of, read_tensors
    except ImportError as error:
        raise MissingExtra.of(str(error.name or "torch"), "torch", "a learned policy") from error
    path = weights_path(checkpoint)
    if path is None:
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            return PlacetoNetwork(aggregator, embedding)
    fix = "train it again with this version: loadmaster train placeto"
    known, tensors = read_tensors(path, "policy", fix)
    weights = {n.removeprefix("network."): tensor for n, tensor in tensors.items() if n.startswith("network.")}
    kinds = known.get("aggregator", aggregator), known.get("embedding", embedding)
    return network_of(lambda: PlacetoNetwork(*kinds), weights, path, fix)


def weights_path(checkpoint: str) -> Path | None:
    """The file of the weights; none where the policy is to be untrained."""
    if checkpoint == "none":
        return None
    if checkpoint.endswith(".safetensors"):
        path = Path(checkpoint)
    else:
        name = f"{checkpoint or 'placeto'}.safetensors"
        path = Path(str(resources.files("loadmaster.learn").joinpath("weights", name)))
        if not checkpoint and not path.is_file():
            return None
    if not path.is_file():
        fix = "give checkpoint=FILE.safetensors, or train one: loadmaster train placeto --corpus FILE --out DIR"
        raise UnreadableFile(
            f"there are no trained weights '{checkpoint}'", str(path) if "/" in checkpoint else "", fix
        )
    return path
