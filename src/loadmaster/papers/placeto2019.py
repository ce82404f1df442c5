"""Placeto: Learning Generalizable Device Placement Algorithms: Addanki et al. 2019, arXiv 1906.08879.

An episode starts from a placement, comes to each group of ops once and gives it a device. The policy reads the whole
graph with its placement of the moment, so that weights learned on some graphs work on others. Read from the top: the
decision process (section 2.1), graph embedding and policy (2.2), REINFORCE with a baseline for each step (2.2.3),
training over many graphs (3), placing one graph. Numbers with "released" are those of the authors' code
(github.com/aravic/generalizable-device-placement).

Differs from the paper: step times count as shares of one device's, so that graphs of all sizes teach alike; a graph has
one network for its number of devices; ops are grouped by module, at most 32 groups. Effects not measured.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import cache
from importlib import resources
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar, Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from loadmaster.baselines.simple import OneDevice
from loadmaster.cost import price
from loadmaster.errors import InvalidSetting, UnreadableFile
from loadmaster.graph.columns import Ints, ints
from loadmaster.importers import load
from loadmaster.papers import training
from loadmaster.papers.adam import Adam
from loadmaster.papers.environment import Simulated
from loadmaster.papers.grouped import able_groups, edges_of, relations, topological, totals
from loadmaster.papers.weights import network_of, read_tensors, seeded
from loadmaster.passes.groups import group_ops
from loadmaster.problem import Problem
from loadmaster.search import Budget, Search
from loadmaster.zoo.families import FAMILIES, MEMBERS

if TYPE_CHECKING:
    from loadmaster.papers.methods import PlacetoPublished

Floats = NDArray[np.float64]
Pools = Literal["three", "one"]

ROUNDS = 8  # released: messages go so many times up and so many times down
OVER_PER_GB, MOST_OVER = 2.0, 8.0  # released: what bytes over the memory cost, and the most they can
RECENT = 10  # released: episodes that the baseline of a step is the mean of
CLIP = 1.25  # released: norm of the gradient
RATES = (1e-3, 1e-4)  # released: Adam's at first and at the end
ENTROPY = 0.01  # weight of the entropy bonus at first; it falls to 0 as the rate does
PLENTY = Budget(None, 2**31)

# ---------------------------------------------------------------- the decision process: section 2.1


@dataclass(frozen=True, eq=False)
class PlacetoBoard:
    """What of a grouped problem does not change in an episode.

    Attributes:
        time: [groups] on the fastest device that can run it.
        out: [groups] bytes that it makes.
        able: [groups, devices] bool.
        edges: [groups, groups] 1 where the second waits for the first.
        related: [3, groups, groups] 1 where the second is an ancestor, a descendant, parallel to the first.
        order: [groups] in which an episode comes to them.
    """

    time: Tensor
    out: Tensor
    able: Tensor
    edges: Tensor
    related: Tensor
    order: Ints


def board_of(problem: Problem, label: Ints, traversal: str, rng: np.random.Generator) -> PlacetoBoard:
    count, graph = int(label.max()) + 1, problem.graph
    edges = edges_of(problem, label)
    made = graph.is_made
    out = totals(label[graph.producer[made]], graph.own_bytes[made][:, None], count)[:, 0]
    order = {"topological": lambda: topological(edges), "random": lambda: ints(rng.permutation(count))}[traversal]()
    whole = totals(label, problem.best_ns[:, None], count)[:, 0]
    floats = [torch.from_numpy(np.asarray(each, np.float32)) for each in (whole, out, edges, relations(edges))]
    return PlacetoBoard(
        floats[0], floats[1], torch.from_numpy(able_groups(problem, label)), floats[2], floats[3], order
    )


@dataclass(frozen=True, eq=False)
class PlayedEpisodes:
    """PlayedEpisodes side by side: what the policy saw, what it did, what each placement on the way cost.

    Attributes:
        nodes: [episodes, steps, groups, width] what the policy read before each step.
        actions: [episodes, steps] device that the group of that step was given.
        cost: [episodes, steps + 1] of the start, and after each step.
    """

    nodes: Tensor
    actions: Tensor
    cost: Floats


def play(
    network: PlacetoPolicy,
    board: PlacetoBoard,
    environment: Simulated,
    start: Ints,
    episodes: int,
    rng: np.random.Generator | None,
) -> PlayedEpisodes:
    """Every group is come to once; devices are drawn, or the likeliest ones where there is no rng."""
    place = np.tile(start, (episodes, 1))
    steps, begun = _simulated(environment, place)
    cost, nodes, actions = [steps], [], []
    done = torch.zeros(len(start))
    for group in board.order.tolist():
        seen = node_features(board, place, begun, done, group)
        with torch.no_grad():
            scores = network(board, seen, torch.full((episodes,), group))
        noise = 0.0 if rng is None else torch.from_numpy(rng.gumbel(size=scores.shape).astype(np.float32))
        chosen = (scores + noise).argmax(dim=1)
        place[:, group] = chosen.numpy()
        done[group] = 1
        steps, begun = _simulated(environment, place)
        nodes.append(seen)
        actions.append(chosen)
        cost.append(steps)
    return PlayedEpisodes(torch.stack(nodes, dim=1), torch.stack(actions, dim=1), np.stack(cost, axis=1))


def _simulated(environment: Simulated, place: Ints) -> tuple[Floats, Ints]:
    """([episodes] cost, [episodes, groups] start of each group in ns); equal placements are simulated once.

    Cost: step time as a share of one device's, and a penalty for memory over the limit (released: 2 per GB, capped).
    """
    rows, which = np.unique(place, axis=0, return_inverse=True)
    seen = [environment.starts(row) for row in rows]
    step = np.array([float(measured.step_ns[0]) for measured, _ in seen]) / environment.unit_ns
    over = np.array([float(measured.over_bytes[0]) for measured, _ in seen]) / 2**30
    cost = step + np.minimum(OVER_PER_GB * over, MOST_OVER)
    begun = np.stack([start for _, start in seen])
    return cost[which.reshape(-1)], ints(begun[which.reshape(-1)])


def node_features(board: PlacetoBoard, place: Ints, begun: Ints, done: Tensor, group: int) -> Tensor:
    """[episodes, groups, 5 + devices] time, output bytes, done, current, start time, device (table 1 of the appendix).

    Released: start times count from the current group's; columns are shares of their largest value.
    """
    episodes, (groups, devices) = len(place), board.able.shape
    hot = nn.functional.one_hot(torch.from_numpy(place.copy()), devices).float()
    current = torch.zeros(groups)
    current[group] = 1
    start = torch.from_numpy((begun - begun[:, [group]]).astype(np.float32))
    start = start / start.abs().amax(dim=1, keepdim=True).clamp(min=1)
    still = [board.time / board.time.max().clamp(min=1), board.out / board.out.max().clamp(min=1), done, current]
    same = torch.stack(still, dim=1).expand(episodes, -1, -1)
    return torch.cat([same, start[:, :, None], hot], dim=2)


# ---------------------------------------------------------------- graph embedding and policy: section 2.2


class PlacetoPolicy(nn.Module):
    """Messages up and down the graph, pooled by relation to the current group, then a softmax over devices.

    Attributes:
        rounds: 0: no messages are passed; the pools are all that is seen of other groups.
        pools: three: ancestors, descendants and parallel groups apart, as published; one: all together.
    """

    def __init__(self, devices: int, rounds: int = ROUNDS, pools: Pools = "three") -> None:
        super().__init__()
        self.devices, self.rounds, self.pools = devices, rounds, pools
        width = 5 + devices  # released: messages are as wide as what is known of a group
        self.own = feed_forward(width, width, width, width)
        self.ways = nn.ModuleList(Aggregator(width) for _ in range(2))  # up, down: separate parameters
        self.kin = nn.ModuleList(Aggregator(2 * width) for _ in range(3))
        self.head = feed_forward(8 * width, 16 * width, 8 * width, devices)

    def forward(self, board: PlacetoBoard, nodes: Tensor, group: Tensor) -> Tensor:
        """[steps, devices] log-chances for the current groups [steps], of nodes [steps, groups, width]."""
        embedded = self.embed(board, nodes)  # [steps, groups, 2 width]
        related = board.related[:, group]  # [3, steps, groups]
        if self.pools == "one":
            related = related.sum(dim=0, keepdim=True).expand(3, -1, -1)
        pooled = [pool(embedded, mask[:, None])[:, 0] for pool, mask in zip(self.kin, related, strict=True)]
        current = embedded[torch.arange(len(group)), group]
        scores: Tensor = self.head(torch.cat([*pooled, current], dim=1))
        return scores.masked_fill(~board.able[group], -1e9).log_softmax(dim=1)

    def embed(self, board: PlacetoBoard, nodes: Tensor) -> Tensor:
        """Equation 1: x = g(sum over neighbours of f(x)) + own, `rounds` times in each direction."""
        own = self.own(nodes)
        both = []
        for way, neighbours in zip(self.ways, (board.edges.T, board.edges), strict=True):
            seen, hears = own, (neighbours.sum(dim=1) > 0).float()[:, None]
            for _ in range(self.rounds):
                seen = way(seen, neighbours) * hears + own
            both.append(seen)
        return torch.cat(both, dim=2)


class Aggregator(nn.Module):
    """g(sum of f(x) over the groups of a mask), f and g feed-forward (released)."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.f, self.g = feed_forward(width, width, width), feed_forward(width, width, width)

    def forward(self, nodes: Tensor, mask: Tensor) -> Tensor:
        """[..., rows, width] for each row of the mask [..., rows, groups] over nodes [..., groups, width]."""
        heard: Tensor = self.g(mask @ self.f(nodes).relu()).relu()
        return heard


def feed_forward(*widths: int) -> nn.Sequential:
    layers: list[nn.Module] = []
    for wide, narrow in pairwise(widths):
        layers += [nn.Linear(wide, narrow), nn.ReLU()]
    return nn.Sequential(*layers[:-1])


# ---------------------------------------------------------------- REINFORCE: section 2.2.3


class StepBaselines:
    """For each step of an episode the mean return of the last ten rounds of episodes (released)."""

    def __init__(self, returns: Sequence[Sequence[float]] = ()) -> None:
        self.returns: deque[Floats] = deque((np.array(each) for each in returns), maxlen=RECENT)

    def advantages(self, cost: Floats) -> Floats:
        """[episodes, steps] returns over the baseline. The reward of a step is the cost before it less the cost after:
        the return from a step on is the cost before it less the cost at the end."""
        returns = cost[:, :-1] - cost[:, -1:]
        self.returns.append(returns.mean(axis=0))
        advantages: Floats = returns - np.mean(self.returns, axis=0)
        return advantages


def reinforce(
    network: PlacetoPolicy, board: PlacetoBoard, episodes: PlayedEpisodes, advantage: Floats, entropy: float
) -> tuple[Tensor, float]:
    """(loss, mean entropy): minus the mean of advantage · log-chance over all steps, and a bonus for even choices."""
    many, steps = episodes.actions.shape
    group = torch.from_numpy(np.tile(board.order, many))
    chances = network(board, episodes.nodes.flatten(0, 1), group)
    chosen = chances.gather(1, episodes.actions.reshape(-1, 1))[:, 0]
    even = -(chances.exp() * chances.clamp(min=-50)).sum(dim=1).mean()
    weight = torch.from_numpy(advantage.astype(np.float32)).reshape(many * steps)
    return -(weight * chosen).mean() - entropy * even, float(even.detach())


# ---------------------------------------------------------------- training over many graphs: section 3


@dataclass(frozen=True)
class PlacetoTrainingSettings(training.TrainingSettings):
    """How to train. The corpus is families of the zoo, with commas: nas-cells, rnnlm-family, nmt-family.

    Attributes:
        cluster: that all graphs are placed on; the network is one for its number of devices.
        graphs: training members of each family; one in four of a family is never among them.
        steps: of Adam; one graph each.
        episodes: of that graph, side by side.
        groups: at most so many.
    """

    policy: str = "placeto"
    cluster: str = "placeto-2"
    graphs: int = 8
    steps: int = 400
    episodes: int = 8
    groups: int = 32
    rate: float = RATES[0]
    last_rate: float = RATES[1]
    entropy: float = ENTROPY
    rounds: int = ROUNDS
    pools: Pools = "three"
    traversal: str = "topological"
    valid_every: int = 25

    def __post_init__(self) -> None:
        super().__post_init__()
        for family in self.corpus.split(","):
            if family not in FAMILIES:
                raise InvalidSetting(f"there is no family '{family}'", "--corpus", f"use {', '.join(FAMILIES)}")
        if self.episodes < 2:
            raise InvalidSetting("fewer than 2 episodes of a graph", "placeto", "they are compared: give 2 or more")

    def members(self, held_out: bool) -> Iterator[str]:
        """Names of the zoo: those to learn from, or two of each family to choose the weights by."""
        for family in self.corpus.split(","):
            known = [number for number in range(MEMBERS) if number % 4 != 3]
            chosen = known[-2:] if held_out else known[: min(self.graphs, len(known) - 2)]
            yield from (f"zoo:{family}/{number}/train" for number in chosen)


@dataclass
class PlacetoStanding:
    """Where training stands, besides the weights.

    Attributes:
        returns: of each graph, those that its baselines are the mean of.
    """

    step: int = 0
    returns: dict[str, list[list[float]]] = field(default_factory=dict)
    best: float = float("inf")
    results: dict[str, float] = field(default_factory=dict)


class PlacetoTraining(training.TrainingRun):
    """A run over the boards of all graphs, which stay in memory."""

    columns: ClassVar[tuple[str, ...]] = ("step", "seconds", "loss", "reward", "entropy", "valid", "rate")
    settings: PlacetoTrainingSettings
    state: PlacetoStanding

    def __init__(self, settings: PlacetoTrainingSettings) -> None:
        boards = {name: table(name, settings) for held in (False, True) for name in settings.members(held)}
        self.boards = boards
        with seeded(settings.seed):
            first = next(iter(boards.values()))[1]
            network = PlacetoPolicy(first.num_devices, settings.rounds, settings.pools)
        super().__init__(settings, network, PlacetoStanding(), settings.rate, time.monotonic())

    def learn(self) -> None:
        names = list(self.settings.members(False))
        self.validate()
        while self.state.step < self.settings.steps and not self.late(0.97):
            rng = self.rng(1, self.state.step)
            name = names[int(rng.integers(len(names)))]
            board, environment, start = self.boards[name]
            left = 1 - self.share
            self.set_rate(self.settings.last_rate + (self.settings.rate - self.settings.last_rate) * left)
            episodes = play(self.network, board, environment, start, self.settings.episodes, rng)
            baselines = StepBaselines(self.state.returns.get(name, ()))
            advantage = baselines.advantages(episodes.cost)
            self.state.returns[name] = [each.tolist() for each in baselines.returns]
            loss, even = reinforce(self.network, board, episodes, advantage, self.settings.entropy * left)
            self.descend(loss, CLIP)
            self.state.step += 1
            gain = float((episodes.cost[:, 0] - episodes.cost[:, -1]).mean())
            self.note(loss=float(loss.detach()), reward=gain, entropy=even, rate=self.adam.param_groups[0]["lr"])
            if self.state.step % self.settings.valid_every == 0:
                self.validate()
            self.save_now_and_then()

    @property
    def share(self) -> float:
        """How much of the training is done, by steps or by time."""
        minutes, spent = self.settings.minutes, time.monotonic() - self.begun
        return min(1.0, max(self.state.step / self.settings.steps, 0.0 if minutes is None else spent / 60 / minutes))

    def validate(self) -> None:
        """The likeliest episode on members kept apart; keeps the best weights."""
        ratios = []
        for name in self.settings.members(True):
            board, environment, start = self.boards[name]
            cost = play(self.network, board, environment, start, 1, None).cost[0]
            ratios.append(cost[-1] / cost[0])
        valid = float(np.exp(np.mean(np.log(ratios))))
        self.note(valid=valid)
        self.say(f"step {self.state.step}: step time over one device's {valid:.4f}")
        if valid < self.state.best:
            self.state.best, self.state.results = valid, {"valid": valid, "at_step": self.state.step}
            self.export({"devices": self.network.devices, "rounds": self.network.rounds, "pools": self.network.pools})


@cache
def table(name: str, settings: PlacetoTrainingSettings) -> tuple[PlacetoBoard, Simulated, Ints]:
    """A graph's board, the environment that judges it, and the start: all on one device."""
    problem = price(load(name), settings.cluster)
    label = group_ops(problem, settings.groups, "scope")
    search = Search(problem, PLENTY)
    start = start_of(problem, label)
    return board_of(problem, label, settings.traversal, np.random.default_rng(0)), Simulated(search, label), start


def start_of(problem: Problem, label: Ints) -> Ints:
    """[groups] all on the fastest device; a group that cannot run there, on the first that can."""
    fastest = int(np.bincount(OneDevice().optimize(Search(problem, PLENTY)).device).argmax())
    able = able_groups(problem, label)
    return ints(np.where(able[:, fastest], fastest, able.argmax(axis=1)))


def train(settings: PlacetoTrainingSettings) -> Path:
    """Trains the policy, or goes on with what `out` holds; returns the file of the weights."""
    run = PlacetoTraining(settings)
    run.resume()
    run.learn()
    run.validate()
    run.save()
    run.card(graphs=list(settings.members(False)), steps=run.state.step, results=run.state.results)
    return run.weights


SETTINGS = PlacetoTrainingSettings

# ---------------------------------------------------------------- placing one graph


def learn(placeto: PlacetoPublished, search: Search) -> None:
    """The likeliest episode, then `samples` drawn ones; with tune=yes it then learns on this graph until the budget is
    spent. An episode that the budget has no room for is not begun."""
    problem = search.problem
    label = group_ops(problem, placeto.groups, placeto.by)
    environment = Simulated(search, label, placeto.order, placeto.noise, placeto.failures)
    board = board_of(problem, label, placeto.traversal, search.rng)
    network = load_network(placeto, problem.num_devices, search.seed)
    start, each = start_of(problem, label), environment.num_groups + 1
    if environment.measurements_left >= each:
        play(network, board, environment, start, 1, None)
    adam, baselines, drawn = Adam(network.parameters(), placeto.rate), StepBaselines(), 0
    while (many := min(placeto.episodes, environment.measurements_left // each)) > 0:
        if drawn >= placeto.samples and not placeto.tune:
            return
        episodes = play(network, board, environment, start, many, search.rng)
        drawn += many
        if placeto.tune and placeto.rate:
            loss, _ = reinforce(network, board, episodes, baselines.advantages(episodes.cost), placeto.entropy)
            adam.zero_grad()
            loss.backward()  # type: ignore[no-untyped-call]
            nn.utils.clip_grad_norm_(network.parameters(), CLIP)
            adam.step()


def load_network(placeto: PlacetoPublished, devices: int, seed: int) -> PlacetoPolicy:
    """Trained weights where there are some for so many devices, else as the seed makes it."""
    path = weights_path(placeto.checkpoint, devices)
    if path is None:
        with seeded(seed):
            return PlacetoPolicy(devices, placeto.rounds, placeto.pools)
    fix = "train it again: loadmaster train placeto"
    known, tensors = read_tensors(path, "policy", fix)
    if known.get("devices") != devices:
        what = f"'{path}' places on {known.get('devices')} devices, this cluster has {devices}"
        raise UnreadableFile(what, "checkpoint", "train one for this cluster, or give checkpoint=none")
    weights = {n.removeprefix("network."): tensor for n, tensor in tensors.items() if n.startswith("network.")}
    return network_of(lambda: PlacetoPolicy(devices, known["rounds"], known["pools"]), weights, path, fix)


def weights_path(checkpoint: str, devices: int) -> Path | None:
    """The file of the weights; none where the policy is to be untrained, or none are shipped for so many devices."""
    if checkpoint == "none":
        return None
    if checkpoint:
        if not Path(checkpoint).is_file():
            fix = "give checkpoint=FILE.safetensors, or train one: loadmaster train placeto"
            raise UnreadableFile(f"there is no file '{checkpoint}'", "checkpoint", fix)
        return Path(checkpoint)
    shipped = Path(str(resources.files("loadmaster.papers").joinpath("weights", f"placeto-{devices}.safetensors")))
    return shipped if shipped.is_file() else None
