"""REGAL, Transfer Learning for Fast Optimization of Computation Graphs: Paliwal et al. 2020, arXiv 1905.02494.

A network reads a graph once and says from which distributions BRKGA draws its genes. BRKGA then searches as always.
Read from the top: levels and the action (section 3.2), the action as genes of BRKGA (3.1 and 3.2), the graph network
and GAS, which reads the graph as a sequence (3.3 and 4), REINFORCE on what BRKGA reaches (3.2), training over many
graphs, planning one graph.

Differs from the paper (docs/papers/regal2020.md has the runs): levels are drawn from a normal around one number, not
from 16 free chances; it begins where plain BRKGA is. Levels of like ops are drawn together, while their chances are
taken one by one: without that, 21 steps on four graphs taught nothing, with it 25 gained 12 %. The baseline is the
mean of a graph's other samples, not a learned one. The weights that ship had rewards from 400 evaluations, not 5,000,
where their means alone (levels=means) gain 2.4 ± 1.2 % and all levels 0.8 ± 2.0 %. A device is scored by
its features, so there may be any number of unlike devices. Genes of transfers stay uniform. Features, sizes of the
network and the population are ours: the paper publishes none.
"""

from __future__ import annotations

import os
import time
from concurrent.futures import Executor
from dataclasses import dataclass
from functools import lru_cache
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar, Literal

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.special import betaincinv
from torch import Tensor, nn

from loadmaster.baselines.genetic.breeding import GeneDecoder, Prior
from loadmaster.baselines.genetic.brkga import Brkga, decoder_of, evolve, prior_of
from loadmaster.cost import price
from loadmaster.errors import InvalidSetting
from loadmaster.papers import training
from loadmaster.papers.drawing import draw_cluster, draw_graph, vary
from loadmaster.papers.features import DEVICES_WIDTH, GRAPH_WIDTH, OPS_WIDTH, PAIRS_WIDTH, Features, features_of
from loadmaster.papers.go2020_training import graph_of, sources_of
from loadmaster.papers.weights import read_policy, seeded, shipped
from loadmaster.problem import Problem
from loadmaster.search import Budget, Search

if TYPE_CHECKING:
    from loadmaster.papers.methods import Regal

Levels = NDArray[np.uint8]
Reads = Literal["graph", "sequence", "nothing"]
Says = Literal["op", "graph"]

# ---------------------------------------------------------------- levels and the action: section 3.2

LEVELS = 16  # of each mean, variance and bias
MEANS = np.array([1 / 32, *(np.arange(1, LEVELS) / LEVELS)])  # level 8 is one half
VARIANCES = 1.5 ** (np.arange(LEVELS) - 13.0) / 3  # as a share of mean · (1 - mean), which no variance can reach
BIASES = 0.5 + np.arange(LEVELS) / 30
HALF, UNIFORM, USUAL = 8, 13, 6  # plain BRKGA: a mean of one half, every gene as likely, a bias of 0.7
PAIR_COLUMNS, OP_COLUMNS = 2, 3  # mean and variance; mean, variance and elite bias
PLAIN = torch.tensor([HALF, UNIFORM, HALF, UNIFORM, USUAL], dtype=torch.float32)


@dataclass(frozen=True, eq=False)
class RegalAction:
    """What the policy says of one graph, as levels.

    Attributes:
        pairs: [ops, devices, 2] mean and variance of the op's affinity to the device.
        ops: [ops, 3] mean and variance of the op's priority, and how often its genes come from the elite parent.
    """

    pairs: Levels  # [ops, devices, PAIR_COLUMNS]
    ops: Levels  # [ops, OP_COLUMNS]


def random_action(problem: Problem, rng: np.random.Generator) -> RegalAction:
    """Every level as likely: the control with the same actions and no policy."""
    shape = (problem.num_ops, problem.num_devices, PAIR_COLUMNS)
    pairs, ops = rng.integers(LEVELS, size=shape), rng.integers(LEVELS, size=(problem.num_ops, OP_COLUMNS))
    return RegalAction(pairs.astype(np.uint8), ops.astype(np.uint8))


# ---------------------------------------------------------------- the action as genes of BRKGA: sections 3.1 and 3.2


def prior_of_action(problem: Problem, action: RegalAction) -> tuple[GeneDecoder, Prior]:
    """Where BRKGA draws its genes from, and how often each comes from the elite parent. A chromosome is affinities
    [ops, devices], priorities [ops] and priorities of transfers, of which the policy says nothing."""
    decoder, plain = decoder_of(problem, Brkga()), prior_of(problem, Brkga())
    devices = problem.num_devices
    affinities = slice(0, problem.num_ops * devices)
    priorities = slice(affinities.stop, affinities.stop + problem.num_ops)
    shape = np.full(len(plain.center), HALF * LEVELS + UNIFORM, np.uint8)
    shape[affinities] = (action.pairs[:, :, 0] * LEVELS + action.pairs[:, :, 1]).reshape(-1)
    shape[priorities] = action.ops[:, 0] * LEVELS + action.ops[:, 1]
    elite = np.minimum(255, np.round(256 * BIASES[action.ops[:, 2]])).astype(np.uint8)
    bias = plain.bias.copy()
    bias[affinities], bias[priorities] = np.repeat(elite, devices), elite
    return decoder, Prior(plain.center, plain.width, shape, beta_table(), bias)


@lru_cache(maxsize=1)
def beta_table() -> NDArray[np.float32]:
    """[LEVELS · LEVELS, 256] inverse distribution functions of Beta(m · r, (1 - m) · r), r = m (1 - m) / v - 1; the row
    of a mean m and a variance v is the level of m times LEVELS plus that of v."""
    rest = 1 / VARIANCES[None] - 1
    alpha, beta = ((mean[:, None] * rest).reshape(-1, 1) for mean in (MEANS, 1 - MEANS))
    table: NDArray[np.float32] = betaincinv(alpha, beta, np.arange(256)[None] / 256).astype(np.float32)
    return table


def run_brkga(search: Search, action: RegalAction | None, settings: Brkga) -> int:
    """BRKGA under the action, or plain; returns what it reached, where a plan that does not fit counts double."""
    problem = search.problem
    if action is None:
        evolve(search, settings, decoder_of(problem, settings), prior_of(problem, settings))
    else:
        evolve(search, settings, *prior_of_action(problem, action))
    score = search.best_score
    return max(1, 2 * score.value + score.over_bytes if score.over_bytes else score.value)


# ---------------------------------------------------------------- the networks: sections 3.3 (REGAL) and 4 (GAS)


SPREAD = 2.0  # of levels around their number, at first
REACH = 2.0  # an output of one moves a level in the middle by five


@dataclass(frozen=True, eq=False)
class RegalGraph:
    """One problem as the network reads it, ops in program order."""

    ops: Tensor  # [ops, OPS_WIDTH + GRAPH_WIDTH]
    devices: Tensor  # [devices, DEVICES_WIDTH + GRAPH_WIDTH]
    pairs: Tensor  # [ops, devices, PAIRS_WIDTH]
    before: Tensor  # [edges] op that comes first
    after: Tensor  # [edges] op that waits for it


def read_problem(features: Features) -> RegalGraph:
    whole = features.graph[None]
    count, devices = len(features.ops), len(features.devices)
    ops = np.concatenate([features.ops, whole.repeat(count, 0)], axis=1)
    placed = np.concatenate([features.devices, whole.repeat(devices, 0)], axis=1)
    pairs = features.pairs.reshape(count, devices, -1)
    return RegalGraph(
        *(torch.from_numpy(np.array(each)) for each in (ops, placed, pairs, features.before, features.after))
    )


@dataclass(frozen=True, eq=False)
class RegalSaid:
    """What the network says.

    Attributes:
        pairs, ops: around which level each is drawn.
        of_pair, of_op: the last hidden layers: ops that look alike lean alike while samples are drawn.
    """

    pairs: Tensor  # [ops, devices, PAIR_COLUMNS]
    ops: Tensor  # [ops, OP_COLUMNS]
    of_pair: Tensor  # [ops, devices, hidden]
    of_op: Tensor  # [ops, hidden]


class RegalNetwork(nn.Module):
    """Embeds ops and devices, lets ops hear of each other, and answers with a real number for each level.

    Attributes:
        reads: graph: messages along edges, as published; sequence: the ops in program order, the paper's GAS; nothing:
            the same five numbers everywhere, a control.
        says: op: numbers for each op, as published; graph: the same for all ops of a graph.
    """

    def __init__(self, reads: Reads = "graph", says: Says = "op", hidden: int = 48, rounds: int = 3) -> None:
        super().__init__()
        self.reads, self.says, self.hidden, self.rounds = reads, says, hidden, rounds
        self.common = nn.Parameter(torch.zeros(PAIR_COLUMNS + OP_COLUMNS))
        self.spread = nn.Parameter(torch.full((PAIR_COLUMNS + OP_COLUMNS,), SPREAD).log())
        if reads == "nothing":
            return
        self.enter = feed_forward(OPS_WIDTH + GRAPH_WIDTH, hidden, hidden)
        self.enter_device = feed_forward(DEVICES_WIDTH + GRAPH_WIDTH, hidden, hidden)
        self.body = {"graph": GraphBody, "sequence": SequenceBody}[reads](hidden, rounds)
        self.of_pair = feed_forward(2 * hidden + PAIRS_WIDTH, hidden, PAIR_COLUMNS)
        self.of_op = feed_forward(hidden, hidden, OP_COLUMNS)
        for head in (self.of_pair, self.of_op):  # untrained it is plain BRKGA
            last = head[-1]
            assert isinstance(last, nn.Linear)
            nn.init.zeros_(last.weight)
            nn.init.zeros_(last.bias)

    def forward(self, graph: RegalGraph) -> RegalSaid:
        count, devices = graph.pairs.shape[:2]
        common = (PLAIN / (LEVELS - 1)).logit() + REACH * self.common
        pair = common[:PAIR_COLUMNS].expand(count, devices, -1)
        op = common[PAIR_COLUMNS:].expand(count, -1)
        if self.reads == "nothing":
            return RegalSaid(level(pair), level(op), pair.new_zeros(count, devices, 1), op.new_zeros(count, 1))
        state = self.body(self.enter(graph.ops), graph)
        seen = graph.pairs
        if self.says == "graph":
            state, seen = state.mean(dim=0).expand_as(state), seen.mean(dim=0).expand_as(seen)
        there = self.enter_device(graph.devices).relu()
        both = [state[:, None].expand(-1, devices, -1), there[None].expand(count, -1, -1), seen]
        of_pair, of_op = self.of_pair[:2](torch.cat(both, dim=2)), self.of_op[:2](state)
        pair, op = pair + REACH * self.of_pair[2](of_pair), op + REACH * self.of_op[2](of_op)
        return RegalSaid(level(pair), level(op), of_pair, of_op)

    @torch.no_grad()
    def keep_means(self) -> None:
        """Variances and elite biases as plain BRKGA has them, again."""
        self.common[[1, 3, 4]] = 0.0
        self.spread.fill_(np.log(SPREAD))
        for head, rows in ((self.of_pair, [1]), (self.of_op, [1, 2])):
            last = head[2]
            assert isinstance(last, nn.Linear)
            last.weight[rows] = last.bias[rows] = 0.0

    @property
    def known(self) -> dict[str, object]:
        """What a file of weights says of itself."""
        shape = {"hidden": self.hidden, "rounds": self.rounds}
        return {"reads": self.reads, "says": self.says, "shape": shape}


class GraphBody(nn.Module):
    """Rounds of messages along edges, both ways with weights of their own; each op also hears the mean of all."""

    def __init__(self, hidden: int, rounds: int) -> None:
        super().__init__()
        self.down = nn.ModuleList(nn.Linear(hidden, hidden) for _ in range(rounds))
        self.up = nn.ModuleList(nn.Linear(hidden, hidden) for _ in range(rounds))
        self.join = nn.ModuleList(feed_forward(4 * hidden, hidden, hidden) for _ in range(rounds))
        self.norm = nn.ModuleList(nn.LayerNorm(hidden) for _ in range(rounds))

    def forward(self, state: Tensor, graph: RegalGraph) -> Tensor:
        for down, up, join, norm in zip(self.down, self.up, self.join, self.norm, strict=True):
            above = mean_by(down(state).relu()[graph.before], graph.after, len(state))
            below = mean_by(up(state).relu()[graph.after], graph.before, len(state))
            whole = state.mean(dim=0).expand_as(state)
            state = norm(state + join(torch.cat([state, above, below, whole], dim=1)))
        return state


class SequenceBody(nn.Module):
    """The graph as a sequence: a recurrent network over the ops in program order, both ways. It sees no edge."""

    def __init__(self, hidden: int, rounds: int) -> None:
        super().__init__()
        self.cell = nn.GRU(hidden, hidden // 2, num_layers=2, bidirectional=True)
        self.norm = nn.LayerNorm(hidden)

    def forward(self, state: Tensor, graph: RegalGraph) -> Tensor:
        heard: Tensor = self.norm(state + self.cell(state[:, None])[0][:, 0])
        return heard


def level(output: Tensor) -> Tensor:
    """Between the lowest level and the highest."""
    return (LEVELS - 1) * output.sigmoid()


def mean_by(values: Tensor, row: Tensor, count: int) -> Tensor:
    """[count, width] the mean of the values of each row; 0 where there are none."""
    total = values.new_zeros(count, values.shape[1]).index_add(0, row, values)
    size = values.new_zeros(count).index_add(0, row, values.new_ones(len(row)))
    return total / size.clamp(min=1)[:, None]


def feed_forward(*widths: int) -> nn.Sequential:
    layers: list[nn.Module] = []
    for wide, narrow in pairwise(widths):
        layers += [nn.Linear(wide, narrow), nn.ReLU()]
    return nn.Sequential(*layers[:-1])


@torch.no_grad()
def likeliest_action(network: RegalNetwork, graph: RegalGraph) -> RegalAction:
    """The level nearest to each number."""
    said = network(graph)
    return RegalAction(nearest(said.pairs), nearest(said.ops))


def nearest(centre: Tensor) -> Levels:
    levels: Levels = centre.round().clamp(0, LEVELS - 1).to(torch.uint8).numpy()
    return levels


# ---------------------------------------------------------------- REINFORCE on what BRKGA reaches: section 3.2


LEAN = 0.8  # of the variance of drawn levels
FLOOR = 0.003  # of the deviation of rewards: where all samples end alike, their order is noise


def level_chances(network: RegalNetwork, said: RegalSaid) -> tuple[Tensor, Tensor]:
    """([ops, devices, 2, LEVELS], [ops, 3, LEVELS]) log-chances of all levels: a normal around each number."""
    width = network.spread.exp()
    found = []
    for centre, each in ((said.pairs, width[:PAIR_COLUMNS]), (said.ops, width[PAIR_COLUMNS:])):
        away = (torch.arange(LEVELS) - centre[..., None]) / each[:, None]
        found.append((-away.square() / 2).log_softmax(dim=-1))
    return found[0], found[1]


@torch.no_grad()
def draw_action(network: RegalNetwork, said: RegalSaid, rng: np.random.Generator) -> RegalAction:
    """Levels drawn around the network's numbers. Ops that look alike to it lean alike: what single ops drawn apart do
    to the whole cancels out, so that hardly anything could be learned from it."""
    width = network.spread.exp()
    drawn = []
    for centre, hidden, each in (
        (said.pairs, said.of_pair, width[:PAIR_COLUMNS]),
        (said.ops, said.of_op, width[PAIR_COLUMNS:]),
    ):
        own = normal(rng, *centre.shape)
        noise = LEAN**0.5 * lean(hidden, centre.shape[-1], rng) + (1 - LEAN) ** 0.5 * own
        drawn.append(nearest(centre + each * noise))
    return RegalAction(drawn[0], drawn[1])


def lean(hidden: Tensor, columns: int, rng: np.random.Generator) -> Tensor:
    """[..., columns] standard normal, half of it common to all, half a random linear function of the hidden layer."""
    apart = hidden - hidden.flatten(0, -2).mean(dim=0)
    apart = apart / (apart.norm(dim=-1, keepdim=True) + 1e-6)
    common: Tensor = normal(rng, columns) + apart @ normal(rng, hidden.shape[-1], columns)
    return common / 2**0.5


def normal(rng: np.random.Generator, *shape: int) -> Tensor:
    return torch.from_numpy(rng.standard_normal(shape).astype(np.float32))


def reinforce(chances: tuple[Tensor, Tensor], actions: list[RegalAction], rewards: NDArray[np.float64]) -> Tensor:
    """Minus the mean over samples of advantage · log-chance of the action, where log-chances are averaged over the ops
    and summed over the kinds of levels, so that large graphs teach no more than small ones."""
    others = (rewards.sum() - rewards) / (len(rewards) - 1)
    advantage = torch.from_numpy((rewards - others) / (rewards.std() + FLOOR)).float().clamp(-3, 3)
    loss = torch.zeros(())
    for action, gain in zip(actions, advantage, strict=True):
        for chance, levels in zip(chances, (action.pairs, action.ops), strict=True):
            picked = chance.gather(-1, torch.from_numpy(levels).long()[..., None])
            loss = loss - gain * picked.sum() * (1 / chance[..., 0, 0].numel())
    return loss / len(actions)


# ---------------------------------------------------------------- training over many graphs: section 4

FEWEST_OPS = 40
COUNTS = (2, 2, 3, 4)  # of devices, each as likely
VALID = 1_000_000  # numbers from here on are of validation
BASELINE_SEEDS = (1, 2, 3, 4)  # of plain BRKGA on validation examples; one on others, where samples are compared
SETTINGS_DRAWN = (0.7, 0.85)  # two equal devices and peak memory, as published; unlike ones; the rest for step time


@dataclass(frozen=True)
class RegalTrainingSettings(training.TrainingSettings):
    """How to train. The corpus: zoo, generated, a folder of graphs or a .jsonl.xz file of one graph a line; several
    with commas. Of weights to start from, means stay; variances and elite biases begin where plain BRKGA is.

    Attributes:
        hold_out: leave out the families of GO's workloads.
        reads: as in `RegalNetwork`; empty: graph for regal, sequence for gas.
        says: op, or graph: one action for all ops of a graph.
        examples: graphs that are drawn from the corpus and come back.
        most: ops of a graph.
        evaluations: of BRKGA under each action, as published.
        graphs: of a step.
        samples: actions for each.
    """

    CORPUS: ClassVar = "zoo,generated"

    policy: str = "regal"
    hold_out: bool = False
    reads: str = ""
    says: str = "op"
    examples: int = 256
    most: int = 500
    evaluations: int = 5_000
    steps: int = 500
    graphs: int = 6
    samples: int = 12
    rate: float = 2e-3
    last_rate: float = 3e-4
    valid_graphs: int = 24
    valid_every: int = 40
    hidden: int = 48
    rounds: int = 3

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.samples < 2 or min(self.graphs, self.examples, self.evaluations) < 1:
            what = f"{self.samples} samples, {self.graphs} graphs, {self.examples} examples"
            raise InvalidSetting(what, self.policy, "samples are compared: give 2 or more, and 1 or more of the others")
        if self.kind not in ("graph", "sequence", "nothing") or self.says not in ("op", "graph"):
            what = f"reads={self.reads}, says={self.says}"
            raise InvalidSetting(what, self.policy, "give reads=graph, sequence or nothing; says=op or graph")

    @property
    def kind(self) -> str:
        return self.reads or {"regal": "graph", "gas": "sequence"}[self.policy]


@dataclass(frozen=True, eq=False)
class RegalExample:
    """A problem, and what the network reads of it."""

    number: int
    problem: Problem
    graph: RegalGraph


class RegalTraining(training.TrainingRun):
    """A run over examples that come back; those seen stay in memory."""

    columns: ClassVar[tuple[str, ...]] = ("step", "seconds", "loss", "reward", "valid", "rate")
    settings: RegalTrainingSettings

    def __init__(self, settings: RegalTrainingSettings, pool: Executor) -> None:
        self.pool, self.sources = pool, sources_of(settings.corpus, settings.hold_out, settings.most)
        if not self.sources:
            raise InvalidSetting(f"no graph to learn from in '{settings.corpus}'", "--corpus", "give more graphs")
        with seeded(settings.seed):
            network = RegalNetwork(settings.kind, settings.says, settings.hidden, settings.rounds)  # type: ignore[arg-type]
        super().__init__(settings, network, network.known, time.monotonic())
        if settings.start:
            network.keep_means()
        self.valid_sources = sources_of(settings.valid or settings.corpus, settings.hold_out, settings.most)
        self.seen: dict[int, RegalExample] = {}

    def step(self, rng: np.random.Generator) -> dict[str, float]:
        settings = self.settings
        examples = [self.example(int(n)) for n in rng.integers(settings.examples, size=settings.graphs)]
        said = [self.network(example.graph) for example in examples]
        actions = [[draw_action(self.network, each, rng) for _ in range(settings.samples)] for each in said]
        rewards = self.rewards(examples, actions, [[int(rng.integers(2**31))] for _ in examples])
        chances = [level_chances(self.network, each) for each in said]
        loss = torch.stack(list(map(reinforce, chances, actions, rewards))).mean()
        self.descend(loss)
        return {"loss": float(loss.detach()), "reward": float(np.mean(rewards))}

    def rewards(
        self, examples: list[RegalExample], actions: list[list[RegalAction]], seeds: list[list[int]]
    ) -> list[NDArray[np.float64]]:
        """[actions] of each example: how much better than plain BRKGA after as many evaluations, as a logarithm; the
        mean of seeds. The processes of the pool search."""
        plain, jobs, sizes = self.state.known, list[tuple[Problem, RegalAction | None, int]](), []
        new = {example.number: example for example in examples if str(example.number) not in plain}
        for number, example in new.items():
            jobs += [(example.problem, None, seed) for seed in (BASELINE_SEEDS if number >= VALID else [1])]
            sizes.append(len(BASELINE_SEEDS) if number >= VALID else 1)
        for example, drawn, each in zip(examples, actions, seeds, strict=True):
            jobs += [(example.problem, action, seed) for action in drawn for seed in each]
            sizes.append(len(drawn) * len(each))
        many = [self.settings.evaluations] * len(jobs)
        values = np.array(list(self.pool.map(reached, *zip(*jobs, strict=True), many)), np.float64)
        parts = np.split(values, np.cumsum(sizes)[:-1])
        plain |= {str(number): float(np.log(part.mean())) for number, part in zip(new, parts, strict=False)}
        means = [part.reshape(len(drawn), -1).mean(1) for part, drawn in zip(parts[len(new) :], actions, strict=True)]
        return [plain[str(one.number)] - np.log(mean) for one, mean in zip(examples, means, strict=True)]

    def example(self, number: int) -> RegalExample:
        if number not in self.seen:
            sources = self.valid_sources if number >= VALID else self.sources
            problem = draw_problem(number, sources, self.settings.most)
            features = features_of(problem)
            read = read_problem(features if number % 2 == 0 else features.without_scopes())
            self.seen[number] = RegalExample(number, problem, read)
        return self.seen[number]

    def validate(self) -> None:
        """The likeliest action's improvement over plain BRKGA on validation examples, in %; keeps the best weights."""
        examples = [self.example(number) for number in range(VALID, VALID + self.settings.valid_graphs)]
        actions = [[likeliest_action(self.network, example.graph)] for example in examples]
        found = self.rewards(examples, actions, [[5, 6, 7, 8]] * len(examples))
        gained = 100 * (1 - np.exp(-np.concatenate(found)))
        valid, worse = float(np.mean(gained)), int((gained < 0).sum())
        told = f"{valid:+.2f} % over plain BRKGA, worse on {worse} of {len(gained)} graphs"
        self.judge(-valid, told, valid_percent=valid)


def reached(problem: Problem, action: RegalAction | None, seed: int, evaluations: int) -> int:
    return run_brkga(Search(problem, Budget(None, evaluations), seed), action, Brkga(evaluations=evaluations))


def draw_problem(number: int, sources: tuple[str, ...], most: int) -> Problem:
    """A graph of the corpus, varied, or a generated one; of validation on two equal devices, else on a drawn setting.
    Other graphs are drawn until one has a size to learn from."""
    rng = np.random.default_rng([number, 12])
    for _ in range(20):
        source = sources[int(rng.integers(len(sources)))]
        graph = draw_graph(rng) if source == "generated" else vary(graph_of(source), rng)
        kind = 0.0 if number >= VALID else rng.random()
        cluster = "regal" if kind < SETTINGS_DRAWN[0] else draw_cluster(rng, COUNTS)
        problem = price(graph, cluster, objective="peak-memory" if kind < SETTINGS_DRAWN[1] else "step-time")
        if FEWEST_OPS <= problem.num_ops <= most:
            return problem
    raise InvalidSetting(
        "20 graphs in turn have too few ops or too many", "--corpus", f"give some of {FEWEST_OPS} to {most:,}"
    )


def train(settings: RegalTrainingSettings) -> Path:
    """Trains a policy, or goes on with what `out` holds; returns the file of the weights."""
    with training.crew(settings.workers or os.cpu_count() or 1) as pool:
        run = RegalTraining(settings, pool)
        graphs = sorted({Path(source).name for source in run.sources})
        return run.learn(corpus=graphs if len(graphs) < 100 else len(graphs))


SETTINGS = RegalTrainingSettings

# ---------------------------------------------------------------- planning one graph


def learn(regal: Regal, search: Search) -> None:
    """One pass of the network, then BRKGA under its likeliest action. Nothing is learned on this graph."""
    if search.spent:
        return
    if regal.actions == "random":
        action = random_action(search.problem, search.rng)
    else:
        network, graph = load_network(regal, search.seed), read_problem(features_of(search.problem))
        if regal.levels == "means":
            network.keep_means()
        action = likeliest_action(network, graph)
    settings = Brkga(evaluations=min(regal.evaluations, search.simulations_left), population=regal.population)
    run_brkga(search, action, settings)


def load_network(regal: Regal, seed: int) -> RegalNetwork:
    """Trained weights, or untrained ones."""
    if regal.checkpoint == "none":
        with seeded(seed):
            return RegalNetwork(regal.network)
    return read_network(regal.checkpoint or shipped("regal" if regal.network == "graph" else "gas"))


def read_network(path: Path | str) -> RegalNetwork:
    return read_policy(path, "regal", lambda known: RegalNetwork(known["reads"], known["says"], **known["shape"]))
