"""How Placeto's policy learns: episodes over many graphs and clusters, REINFORCE with a baseline for each step.

Graphs are of a corpus or of the paper's families; each is met on several clusters, named and drawn. A run goes on where
it was killed: what it draws depends on the seed and the step alone.
"""

from __future__ import annotations

import math
import os
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import Executor
from dataclasses import dataclass, field, replace
from functools import lru_cache
from pathlib import Path
from typing import Any, ClassVar, NamedTuple

import numpy as np
import torch

from loadmaster.baselines.simple import OneDevice
from loadmaster.cluster import Cluster, Device, Link
from loadmaster.cost import price
from loadmaster.errors import InvalidSetting
from loadmaster.files import graph_from_json
from loadmaster.files.text import parse_json, read_lines
from loadmaster.graph import Graph
from loadmaster.graph.columns import Ints, digest, ints
from loadmaster.learn import examples
from loadmaster.learn.placeto2019.board import TRAVERSALS, Board, Traversal, board_of, group_start, groups_of, visits
from loadmaster.learn.placeto2019.episodes import Episodes, advantages, costs, play, reinforce
from loadmaster.learn.placeto2019.method import CLIP
from loadmaster.learn.placeto2019.network import AGGREGATORS, EMBEDDINGS, ONCE, BoardTensors, PlacetoNetwork, tensors_of
from loadmaster.learn.regal2020.rollouts import in_order
from loadmaster.papers import training
from loadmaster.papers.environment import Simulated
from loadmaster.problem import Problem
from loadmaster.search import Budget, Search
from loadmaster.simulator import simulate
from loadmaster.zoo.families import FAMILIES, MEMBERS, member

# Where no reason is given: part of how the weights that are shipped were trained; another value needs new ones.
NAMED = ("placeto-2", "placeto-4")
MOST_DEVICES = 5  # of the clusters that are drawn
PLENTY = Budget(None, 2**31)
KEPT_APART = 6  # every so many graphs of a family, one is for validation


@dataclass(frozen=True)
class PlacetoSettings(training.TrainingSettings):
    """How to train. `corpus` may be several files, with commas between them; `family` captures the families' training
    members on the spot.

    Attributes:
        family: nas-cells, rnnlm-family, nmt-family, with commas.
        graphs: per step.
        episodes: per graph and step.
        variants: clusters per graph: the named ones, then drawn ones.
        every: groups between two rewards; 1: after each, as published.
        rate: three times the published rates.
        entropy: falls to a hundredth.
        elsewhere: share of graphs whose episodes start from a random placement.
    """

    corpus: str = ""
    out: str = ""
    policy: str = "placeto"
    family: str = ""
    steps: int = 1_500
    graphs: int = 16
    episodes: int = 16
    variants: int = 6
    groups: int = 128
    every: int = 8
    rate: float = 3e-3
    last_rate: float = 3e-4
    entropy: float = 0.05
    discount: float = 1.0
    elsewhere: float = 0.25
    aggregator: str = "messages"
    embedding: str = "graph"
    once: str = "episode"
    traversal: str = "topological"
    valid_every: int = 50

    def __post_init__(self) -> None:
        super().__post_init__()
        for name, known in (
            ("aggregator", AGGREGATORS),
            ("embedding", EMBEDDINGS),
            ("once", ONCE),
            ("traversal", TRAVERSALS),
        ):
            if getattr(self, name) not in known:
                what = f"'{getattr(self, name)}' is no {name}"
                raise InvalidSetting(what, "placeto", f"use one of {', '.join(known)}")
        if not self.corpus and not self.family:
            raise InvalidSetting("nothing to learn from", "placeto", "give --corpus FILE, or --set family=NAME")
        if not self.out:
            raise InvalidSetting("nowhere to write", "placeto", "give --out DIR")
        if self.episodes < 2:
            raise InvalidSetting("fewer than 2 episodes per graph", "placeto", "they are compared: give 2 or more")


@dataclass
class PlacetoState:
    """Where training stands, besides the weights."""

    step: int = 0
    best: float = 1e9
    results: dict[str, float] = field(default_factory=dict)


class VariantKey(NamedTuple):
    """Which problem: a line of the corpus and a variant of the cluster."""

    line: int
    variant: int


# ---------------------------------------------------------------- problems, made alike in every process

_lines: list[bytes | Graph] = []


def read_graphs(settings: PlacetoSettings) -> tuple[list[int], list[int], str]:
    """(lines to learn from, lines to choose the checkpoint by, digest of all)."""
    _lines.clear()
    for made in (make_problem, make_board):
        made.cache_clear()
    learn: list[int] = []
    apart: list[int] = []
    for path in filter(None, settings.corpus.split(",")):
        _split(read_lines(path), settings.valid == "", learn, apart)
    for family in filter(None, settings.family.split(",")):
        _split(list(_captured(family)), settings.valid == "", learn, apart)
    for path in filter(None, settings.valid.split(",")):
        apart += range(len(_lines), len(_lines) + len(read_lines(path)))
        _lines.extend(read_lines(path))
    parts = [line if isinstance(line, bytes) else line.digest for line in _lines]
    return learn, apart, digest(*parts)


def _split(found: Sequence[bytes | Graph], keep: bool, learn: list[int], apart: list[int]) -> None:
    numbers = range(len(_lines), len(_lines) + len(found))
    _lines.extend(found)
    held = [n for i, n in enumerate(numbers) if keep and i % KEPT_APART == KEPT_APART - 1]
    apart += held
    learn += [n for n in numbers if n not in held]


def _captured(family: str) -> Iterator[Graph]:
    """Three members in four; the fourth is for tests."""
    from loadmaster.zoo.capture import capture_entry

    if family not in FAMILIES:
        raise InvalidSetting(f"there is no family '{family}'", "placeto", f"use {', '.join(FAMILIES)}")
    for index in range(MEMBERS):
        if index % 4 != 3:
            yield capture_entry(member(family, index), True)


@lru_cache(maxsize=512)
def make_problem(key: VariantKey) -> Problem:
    line = _lines[key.line]
    where = f"line {key.line + 1} of the corpus"
    graph = line if isinstance(line, Graph) else graph_from_json(parse_json(line, where), where)
    if key.variant < len(NAMED):
        return price(graph, NAMED[key.variant])
    rng = np.random.default_rng([key.line, key.variant])
    problem = price(graph, draw_cluster(rng))
    return _tight(problem, rng) if rng.random() < 0.25 else problem


def draw_cluster(rng: np.random.Generator) -> Cluster:
    """2 to 5 devices, most often unlike, over links of any speed."""
    count = int(rng.integers(2, MOST_DEVICES + 1))
    unlike = rng.random() < 0.7
    speed = 2.0 ** rng.uniform(-2, 0, count) if unlike else np.ones(count)
    flops, traffic = 1e13 * 2.0 ** rng.uniform(-1, 1), 7e11 * 2.0 ** rng.uniform(-1, 1)
    launch = int(rng.integers(2_000, 8_000))
    devices = tuple(Device(f"d{i}", "drawn", 2**34, flops * s, traffic * s, launch) for i, s in enumerate(speed))
    link = Link(7.6e9 * 2.0 ** rng.uniform(-1, 4), int(rng.integers(2_000, 30_000)))
    return examples.all_linked(devices, link, bus=True)


def _tight(problem: Problem, rng: np.random.Generator) -> Problem:
    """With so little memory that one device may not hold the step."""
    peak = int(simulate(problem, OneDevice().optimize(Search(problem, PLENTY))).peak_bytes.max())
    share = rng.uniform(0.5, 1.1)
    return replace(problem, memory_bytes=ints(np.full(problem.num_devices, int(peak * share))))


@lru_cache(maxsize=512)
def make_board(key: VariantKey, groups: int) -> tuple[Board, Ints, Ints]:
    """The board, the label of each op, and the start: all on one device."""
    problem = make_problem(key)
    label = groups_of(problem, groups)
    start = group_start(problem, label, OneDevice().optimize(Search(problem, PLENTY)).device)
    return board_of(problem, label), label, start


# ---------------------------------------------------------------- what the processes do


class EpisodeJob(NamedTuple):
    """Episodes over one problem under the weights of the moment.

    Attributes:
        start: groups' devices; none: all on one device.
    """

    key: VariantKey
    weights: dict[str, np.ndarray]
    settings: PlacetoSettings
    seed: tuple[int, ...]
    start: Ints | None


def alone() -> None:
    examples.alone()
    torch.set_num_threads(1)


def board_job(job: tuple[VariantKey, int]) -> Board:
    return make_board(*job)[0]


def episodes_job(job: EpisodeJob) -> tuple[Episodes, np.ndarray]:
    """Episodes and what they cost."""
    settings, rng = job.settings, np.random.default_rng(job.seed)
    board, label, start = make_board(job.key, settings.groups)
    played = _play(job, board, start if job.start is None else job.start, rng, settings.episodes)
    cost = costs(Simulated(Search(make_problem(job.key), PLENTY), label), played, settings.every)
    assert cost is not None, "there is room for all"
    return played, cost


def valid_job(job: EpisodeJob) -> tuple[float, float]:
    """Step time over that of one device: of the likeliest episode, and of the best of it and 15 more."""
    board, label, start = make_board(job.key, job.settings.groups)
    problem = make_problem(job.key)
    environment = Simulated(Search(problem, PLENTY), label)
    greedy = _play(job, board, start, None, 1).last
    drawn = _play(job, board, start, np.random.default_rng(job.seed), 15).last
    step = environment.measure(np.concatenate([start[None], greedy, drawn])).step_ns
    return float(step[1] / step[0]), float(step[1:].min() / step[0])


def _play(job: EpisodeJob, board: Board, start: Ints, rng: np.random.Generator | None, count: int) -> Episodes:
    settings: Any = job.settings
    network = PlacetoNetwork(settings.aggregator, settings.embedding)
    network.load_state_dict({name: torch.from_numpy(value) for name, value in job.weights.items()})
    traversal: Traversal = settings.traversal
    order = visits(board, traversal, rng or np.random.default_rng(0))
    board_tensors = tensors_of(board)
    return play(network, board, board_tensors, start, order, settings.once, count, rng, traversal == "reverse")


# ---------------------------------------------------------------- the run


class PlacetoRun(training.TrainingRun):
    """One training run."""

    columns: ClassVar[tuple[str, ...]] = ("step", "seconds", "loss", "reward", "entropy", "valid", "valid_best", "rate")
    state: PlacetoState

    def __init__(self, settings: PlacetoSettings, pool: Executor, begun: float) -> None:
        torch.manual_seed(settings.seed)
        chosen: Any = settings
        super().__init__(
            settings, PlacetoNetwork(chosen.aggregator, chosen.embedding), PlacetoState(), settings.rate, begun
        )
        self.pool, self.options = pool, settings
        self.tensors: dict[VariantKey, BoardTensors] = {}

    def see(self, keys: list[VariantKey]) -> None:
        """Makes the boards of all problems, in all processes."""
        jobs = [(key, self.options.groups) for key in keys]
        boards = in_order(self.pool, board_job, jobs, self.options.window)
        for key, board in zip(keys, boards, strict=True):
            self.tensors[key] = tensors_of(board, self.device)
        self.say(f"{len(keys)} problems")

    def learn(self, keys: list[VariantKey], valid: list[VariantKey]) -> None:
        settings = self.options
        while self.state.step < settings.steps and not self.late(0.95):
            rng = self.rng(1, self.state.step)
            chosen = [keys[i] for i in rng.choice(len(keys), min(settings.graphs, len(keys)), replace=False)]
            jobs = [self._job(key, (2, self.state.step, i)) for i, key in enumerate(chosen)]
            self._step(chosen, list(in_order(self.pool, episodes_job, jobs, len(jobs))))
            self.state.step += 1
            if self.state.step % settings.valid_every == 0:
                self.validate(valid)
            self.save_now_and_then()

    def _step(self, chosen: list[VariantKey], played: list[tuple[Episodes, np.ndarray]]) -> None:
        settings = self.options
        share = self._share()
        rate = settings.rate * (settings.last_rate / settings.rate) ** share
        entropy = settings.entropy * 0.01**share
        self.set_rate(rate)
        self.adam.zero_grad()
        once: Any = settings.once
        noted = [
            reinforce(self.network, self.tensors[key], episodes, advantages(cost, settings.discount), once, entropy)
            for key, (episodes, cost) in zip(chosen, played, strict=True)
        ]
        for parameter in self.network.parameters():
            if parameter.grad is not None:
                parameter.grad /= len(chosen)
        torch.nn.utils.clip_grad_norm_(self.network.parameters(), CLIP)
        self.adam.step()
        gain = float(np.mean([np.log(cost[:, 0] / cost[:, -1]).mean() for _, cost in played]))
        loss, unsure = (float(np.mean(column)) for column in zip(*noted, strict=True))
        self.note(loss=loss, reward=gain, entropy=unsure, rate=rate)

    def _share(self) -> float:
        """How much of the training is done, by steps or by time."""
        by_step = self.state.step / self.options.steps
        if self.options.minutes is None:
            return by_step
        spent = (time.monotonic() - self.begun) / 60 / self.options.minutes
        return min(1.0, max(by_step, spent))

    def _job(self, key: VariantKey, seed: tuple[int, ...]) -> EpisodeJob:
        weights = {name: tensor.detach().cpu().numpy().copy() for name, tensor in self.network.state_dict().items()}
        start = None
        if seed[0] == 2 and self.rng(3, *seed[1:]).random() < self.options.elsewhere:
            start = self._other_start(key, self.rng(4, *seed[1:]))
        return EpisodeJob(key, weights, self.options, (self.options.seed, *seed), start)

    def _other_start(self, key: VariantKey, rng: np.random.Generator) -> Ints:
        """Any placement: groups in random runs along the order."""
        able = self.tensors[key].able.cpu().numpy()
        count, devices = able.shape
        cuts = np.sort(rng.integers(0, count, int(rng.integers(1, 2 * devices))))
        device = rng.integers(0, devices, len(cuts) + 1)[np.searchsorted(cuts, np.arange(count), side="right")]
        return ints(np.where(able[np.arange(count), device], device, able.argmax(axis=1)))

    def validate(self, valid: list[VariantKey]) -> None:
        """The policy on graphs kept apart, on the named clusters; keeps the best weights."""
        jobs = [self._job(key, (5, i)) for i, key in enumerate(valid)]
        found = np.log(np.array(list(in_order(self.pool, valid_job, jobs, self.options.window))))
        greedy, best = (float(np.exp(column.mean())) for column in found.T)
        self.note(valid=greedy, valid_best=best)
        last: dict[str, Any] = next((row for row in reversed(self.rows) if "reward" in row), {})
        self.say(
            f"step {self.state.step}: step time over one device's {greedy:.4f}, best of 16 {best:.4f}; "
            f"entropy {last.get('entropy', 0):.3f}, reward {last.get('reward', 0):+.3f}"
        )
        if math.sqrt(greedy * best) < self.state.best:
            self.state.best = math.sqrt(greedy * best)
            self.state.results = {"step_time_over_one_device": greedy, "best_of_16": best, "at_step": self.state.step}
            self.export({"aggregator": self.options.aggregator, "embedding": self.options.embedding})


def train(settings: training.TrainingSettings) -> Path:
    """Trains the policy, or goes on with what `out` holds; returns the file of the weights."""
    assert isinstance(settings, PlacetoSettings)
    begun = time.monotonic()
    learn, apart, corpus_digest = read_graphs(settings)
    if not learn:
        raise InvalidSetting("too few graphs to learn from", "placeto", "give a corpus of several graphs")
    apart = apart or learn[:1]
    keys = [VariantKey(line, variant) for variant in range(max(1, settings.variants)) for line in learn]
    valid = [VariantKey(line, variant) for line in apart for variant in range(len(NAMED))]
    make_board(keys[0], settings.groups)  # compiles what the processes will call, before they part
    episodes_job(EpisodeJob(keys[0], _fresh(settings), replace(settings, episodes=2, every=10**6), (0,), None))
    with examples.crew(settings.workers or os.cpu_count(), settings.ray, alone) as pool:
        list(pool.map(abs, range(64)))  # starts the processes before this one has threads of its own
        run = PlacetoRun(settings, pool, begun)
        run.see(sorted({*keys, *valid}))
        run.resume()
        if not run.state.step:
            run.validate(valid)
        run.learn(keys, valid)
        run.validate(valid)
        run.save()
        run.card(corpus_digest=corpus_digest, graphs=len(learn), steps=run.state.step, results=run.state.results)
    return run.weights


def _fresh(settings: Any) -> dict[str, np.ndarray]:
    network = PlacetoNetwork(settings.aggregator, settings.embedding)
    return {name: tensor.numpy().copy() for name, tensor in network.state_dict().items()}


SETTINGS = PlacetoSettings
