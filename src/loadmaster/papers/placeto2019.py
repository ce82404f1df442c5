"""Placeto: Learning Generalizable Device Placement Algorithms: Addanki et al. 2019, arXiv 1906.08879.

An episode starts from a placement, comes to each group of ops once and gives it a device. The policy reads the whole
graph with its placement of the moment, so that weights learned on some graphs work on others. Read from the top: the
decision process (section 2.1), graph embedding and policy (2.2), REINFORCE with a baseline for each step (2.2.3),
training over many graphs (3), placing one graph. Numbers with "released" are those of the authors' code
(github.com/aravic/generalizable-device-placement).

Differs from the paper (docs/papers/placeto2019.md has the runs): weights begin as Xavier's, the last layer at zero, and
what the policy reads is normalised, since otherwise nothing of a graph reaches the output and nothing is learned. The
baseline of a step is the mean of the episodes side by side, not of the last ten; advantages are in units of their
deviation, step times shares of one device's, so that graphs of all sizes teach alike. One network serves all graphs of
a number of devices. Ops are grouped by module, at most 32 groups.
"""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from loadmaster.baselines.simple import OneDevice
from loadmaster.cost import price
from loadmaster.errors import InvalidSetting, UnreadableFile
from loadmaster.graph.columns import Ints, ints
from loadmaster.papers import training
from loadmaster.papers.adam import Adam
from loadmaster.papers.environment import Simulated
from loadmaster.papers.grouped import able_groups, edges_of, groups_of, relations, topological, totals
from loadmaster.papers.weights import read_policy, seeded, shipped
from loadmaster.problem import Problem
from loadmaster.search import Budget, Search

if TYPE_CHECKING:
    from loadmaster.papers.methods import Placeto

Floats = NDArray[np.float64]
Pools = Literal["three", "one"]

ROUNDS = 8  # released: messages go so many times up and so many times down
OVER_PER_GB, MOST_OVER = 2.0, 8.0  # released: what bytes over the memory cost, and the most they can
CLIP = 1.25  # released: norm of the gradient
ENTROPY = 0.03  # weight of the entropy bonus at first; it falls to 0 as the rate does
PLENTY = Budget(None, 2**31)
MOST_OPS = 4_000  # of graphs to learn from: they are simulated at every step of every episode

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
    """Episodes side by side: what the policy saw, what it did, what each placement on the way cost.

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
    step = np.array([step_ns for step_ns, _, _ in seen]) / environment.unit_ns
    over = np.array([over_bytes for _, over_bytes, _ in seen]) / 2**30
    cost = step + np.minimum(OVER_PER_GB * over, MOST_OVER)
    begun = np.stack([start for _, _, start in seen])
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
        last = nn.Linear(8 * width, devices)
        self.head = nn.Sequential(
            nn.LayerNorm(8 * width), *feed_forward(8 * width, 16 * width, 8 * width), nn.ReLU(), last
        )
        for layer in self.modules():
            if isinstance(layer, nn.Linear):
                nn.init.xavier_uniform_(layer.weight)
                nn.init.zeros_(layer.bias)
        nn.init.zeros_(last.weight)  # the untrained policy prefers no device

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


def advantages(cost: Floats) -> Floats:
    """[episodes, steps] returns over those of the other episodes at the same step, in units of their deviation. The
    reward of a step is the cost before it less the cost after: the return from it on is the cost before it less the
    cost at the end."""
    returns = cost[:, :-1] - cost[:, -1:]
    over = returns - returns.mean(axis=0)
    scaled: Floats = over / (over.std() + 1e-6)
    return scaled


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
    """How to train. The corpus is a file of graphs, one a line, or a folder of models.

    Attributes:
        cluster: that all graphs are placed on; the network is one for its number of devices.
        families: of the corpus, with commas; empty: all.
        steps: of Adam; one graph each.
        episodes: of that graph, side by side.
        groups: at most so many.
        traversal: topological, or random: the order in which an episode comes to the groups.
    """

    policy: str = "placeto"
    cluster: str = "placeto-2"
    families: str = ""
    steps: int = 2_000
    episodes: int = 24
    groups: int = 32
    entropy: float = ENTROPY
    rounds: int = ROUNDS
    pools: Pools = "three"
    traversal: str = "topological"

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.episodes < 2:
            raise InvalidSetting("fewer than 2 episodes of a graph", "placeto", "they are compared: give 2 or more")


@dataclass(frozen=True, eq=False)
class PlacetoTask:
    """A graph on its cluster, ready for episodes that start with all groups on one device."""

    name: str
    board: PlacetoBoard
    environment: Simulated
    start: Ints


class PlacetoTraining(training.TrainingRun):
    """A run over the tasks of all graphs, which stay in memory."""

    columns: ClassVar[tuple[str, ...]] = ("step", "seconds", "loss", "reward", "entropy", "valid", "rate")
    settings: PlacetoTrainingSettings

    def __init__(self, settings: PlacetoTrainingSettings) -> None:
        begun = time.monotonic()
        self.tasks, self.held_out = tasks_of(settings)
        with seeded(settings.seed):
            network = PlacetoPolicy(self.tasks[0].board.able.shape[1], settings.rounds, settings.pools)
        known = {"devices": network.devices, "rounds": network.rounds, "pools": network.pools}
        super().__init__(settings, network, known, begun)
        self.say(f"{len(self.tasks)} graphs to learn from, {len(self.held_out)} to choose weights by")

    def step(self, rng: np.random.Generator) -> dict[str, float]:
        task = self.tasks[int(rng.integers(len(self.tasks)))]
        episodes = play(self.network, task.board, task.environment, task.start, self.settings.episodes, rng)
        entropy = self.settings.entropy * (1 - self.share)
        loss, even = reinforce(self.network, task.board, episodes, advantages(episodes.cost), entropy)
        self.descend(loss, CLIP)
        gain = float((episodes.cost[:, 0] - episodes.cost[:, -1]).mean())
        return {"loss": float(loss.detach()), "reward": gain, "entropy": even}

    def validate(self) -> None:
        """The likeliest episode and seven drawn ones on graphs kept apart; keeps the weights whose likeliest is best:
        drawing makes untrained ones good, too."""
        likeliest, best = [], []
        for task in self.held_out:
            played = (self.network, task.board, task.environment, task.start)
            likeliest.append(play(*played, 1, None).cost[0, -1])
            best.append(min(likeliest[-1], play(*played, 7, np.random.default_rng(0)).cost[:, -1].min()))
        first, valid = (float(np.exp(np.log(costs).mean())) for costs in (likeliest, best))
        told = f"over one device's step, likeliest {first:.4f}, best of eight {valid:.4f}"
        self.judge(first, told, valid=first, best_of_eight=valid)


def tasks_of(settings: PlacetoTrainingSettings) -> tuple[list[PlacetoTask], list[PlacetoTask]]:
    """(those to learn from, those to choose weights by): of each family two in twelve are kept apart."""
    wanted = [family for family in settings.families.split(",") if family]
    by_family: dict[str, list[PlacetoTask]] = defaultdict(list)
    for name, family, graph in training.corpus_graphs(settings.corpus):
        if not wanted or family in wanted:
            by_family[family].extend(task_of(name, price(graph, settings.cluster), settings))
    if settings.valid:
        apart = [(name, price(graph, settings.cluster)) for name, _, graph in training.corpus_graphs(settings.valid)]
        held = [task for name, problem in apart for task in task_of(name, problem, settings)]
        return _some([task for row in by_family.values() for task in row], settings.corpus), _some(held, settings.valid)
    learn = [task for row in by_family.values() for i, task in enumerate(row) if i % 6 != 5]
    held = [task for row in by_family.values() for i, task in enumerate(row) if i in (5, 11)]
    return _some(learn, settings.corpus), _some(held or learn[-1:], settings.corpus)


def _some(tasks: list[PlacetoTask], where: str) -> list[PlacetoTask]:
    if not tasks:
        fix = "give training steps with three groups of ops or more, or other families"
        raise InvalidSetting("no graph of the corpus can be learned from", where, fix)
    return tasks


def task_of(name: str, problem: Problem, settings: PlacetoTrainingSettings) -> Iterator[PlacetoTask]:
    """None where the graph has too few groups for decisions, or is too large to be played often."""
    label = groups_of(problem, settings.groups, "scope")
    if problem.num_devices > 1 and label.max() >= 2 and problem.num_ops <= MOST_OPS:
        board = board_of(problem, label, settings.traversal, np.random.default_rng(0))
        yield PlacetoTask(name, board, Simulated(Search(problem, PLENTY), label), start_of(problem, label))


def start_of(problem: Problem, label: Ints) -> Ints:
    """[groups] all on the fastest device; a group that cannot run there, on the first that can."""
    fastest = int(np.bincount(OneDevice().optimize(Search(problem, PLENTY)).device).argmax())
    able = able_groups(problem, label)
    return ints(np.where(able[:, fastest], fastest, able.argmax(axis=1)))


def train(settings: PlacetoTrainingSettings) -> Path:
    """Trains the policy, or goes on with what `out` holds; returns the file of the weights."""
    run = PlacetoTraining(settings)
    return run.learn(graphs=[task.name for task in run.tasks])


SETTINGS = PlacetoTrainingSettings

# ---------------------------------------------------------------- placing one graph


def learn(placeto: Placeto, search: Search) -> None:
    """The likeliest episode, then `samples` drawn ones; with tune=yes it then learns on this graph until the budget is
    spent. An episode that the budget has no room for is not begun."""
    problem = search.problem
    label = groups_of(problem, placeto.groups, placeto.by)
    environment = Simulated(search, label)
    board = board_of(problem, label, placeto.traversal, search.rng)
    network = load_network(placeto, problem.num_devices, search.seed)
    start, each = start_of(problem, label), environment.num_groups + 1
    if environment.measurements_left >= each:
        play(network, board, environment, start, 1, None)
    adam, drawn = Adam(network.parameters(), placeto.rate), 0
    while (many := min(placeto.episodes, environment.measurements_left // each)) > 0:
        if drawn >= placeto.samples and not placeto.tune:
            return
        episodes = play(network, board, environment, start, many, search.rng)
        drawn += many
        if placeto.tune and placeto.rate:
            adam.descend(reinforce(network, board, episodes, advantages(episodes.cost), placeto.entropy)[0], CLIP)


def load_network(placeto: Placeto, devices: int, seed: int) -> PlacetoPolicy:
    """Trained weights of a checkpoint, else as the seed makes it."""
    if placeto.checkpoint in ("", "none"):
        with seeded(seed):
            return PlacetoPolicy(devices, placeto.rounds, placeto.pools)

    def make(known: dict[str, Any]) -> PlacetoPolicy:
        if known["devices"] != devices:
            what = f"'{placeto.checkpoint}' places on {known['devices']} devices, this cluster has {devices}"
            raise UnreadableFile(what, "checkpoint", "train one for this cluster, or give checkpoint=none")
        return PlacetoPolicy(devices, known["rounds"], known["pools"])

    return read_policy(shipped("placeto-2") if placeto.checkpoint == "shipped" else placeto.checkpoint, "placeto", make)
