"""One GO network trained by PPO on many graphs (section 4: pre-training), for zero-shot plans of graphs never seen.

    loadmaster lab train go --out FOLDER [--corpus zoo,generated] [--minutes 5]

Each step draws some examples and a set of tasks for each, samples plans of all on the network's device, simulates them
in processes that each keep their own problems, and follows PPO's gradient. What is kept: the weights with the best
zero-shot plans on validation examples. An example is named by a number alone, so every process makes the same one.
"""

from __future__ import annotations

import os
import re
import time
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from functools import cache, lru_cache
from pathlib import Path
from typing import Any, ClassVar, NamedTuple

import numpy as np
import torch

from loadmaster.baselines.lists.schedulers import Heft
from loadmaster.cost import price
from loadmaster.errors import InvalidSetting, UnreadableFile
from loadmaster.files import graph_from_json
from loadmaster.files.text import parse_json, read_lines
from loadmaster.graph import Graph
from loadmaster.graph.columns import Ints, ints
from loadmaster.importers import load
from loadmaster.papers import training
from loadmaster.papers.drawing import draw_cluster, draw_graph, vary
from loadmaster.papers.go2020 import GoDecoder, Rewards, advantages, decided, draw, ppo_loss, rewards
from loadmaster.papers.go2020_network import TASKS, GoDecisions, GoGraph, GoNetwork, GoShape, batch_of, read_problem
from loadmaster.papers.weights import seeded
from loadmaster.problem import Problem
from loadmaster.search import Budget, Search
from loadmaster.zoo.shelf import on_shelf

# The families of the fourteen workloads that GO is measured on: recurrent language models, translation, Transformer-XL
# (XLNet is one), Inception (GoogLeNet is the first), AmoebaNet and other searched cells, WaveNet.
HELD_OUT = re.compile(
    r"rnn|lstm|(?<![a-z])gru(?![a-z])|nmt|marian|transfo-?xl|transformer-?_?xl|xlnet|inception|googlenet|amoeba|nasnet"
    r"|nas-cells|pnas|wavenet",
    re.IGNORECASE,
)
TASK_SETS = (("placement",), ("placement", "schedule"), ("placement", "schedule"), TASKS, ("fusion",))
FEWEST_OPS, MOST_OPS = 40, 3_000
TIGHT = 0.25  # of the examples have memory for little more than an equal share
VALID = 1_000_000  # numbers from here on are of validation

# ---------------------------------------------------------------- examples


class GoExample(NamedTuple):
    """Which one: its number, and the graphs of the corpus, which are loaded where it is made."""

    number: int
    corpus: tuple[str, ...]


def sources_of(corpus: str, hold_out: bool = True, most: int = MOST_OPS) -> tuple[str, ...]:
    """Names of graphs, of which each is as likely: of the zoo, files and lines of a corpus of one's own; "generated"
    as often as all others together. Held out: the families of GO's workloads; lines with more ops are left out."""
    words = corpus.split(",")
    named: list[tuple[str, str, int]] = []
    for word in words:
        if word == "zoo":
            named += [(f"zoo:{place.name}", place.name, 0) for place in on_shelf()]
        elif word != "generated":
            named += _own(Path(word))
    kept = [source for source, name, ops in named if ops <= most and not (hold_out and HELD_OUT.search(name))]
    return (*kept, *["generated"] * max(1, len(kept))) if "generated" in words else tuple(kept)


def _own(path: Path) -> list[tuple[str, str, int]]:
    """(source, name, ops, if known) of graphs in a file, in a folder of `loadmaster lab corpus` or in one of models."""
    path = path / "train.jsonl.xz" if (path / "train.jsonl.xz").is_file() else path
    if path.is_dir():
        return [(str(file), file.name, 0) for file in sorted(path.iterdir()) if file.is_file()]
    if not path.is_file():
        fix = "give zoo, generated, a folder of graphs, a .jsonl.xz file, or several with commas"
        raise UnreadableFile(f"there is nothing called '{path}'", "--corpus", fix)
    return [(f"{path}#{n}", _name(line), line.count(b'"kind":')) for n, line in enumerate(_lines(str(path)))]


def _name(line: bytes) -> str:
    """What a line says of its graph before the ops."""
    head = line[:4096].decode("utf-8", "replace").partition('"ops"')[0]
    return " ".join(re.findall(r'"(?:name|family|model)"\s*:\s*"([^"]*)"', head))


@lru_cache(maxsize=64)
def graph_of(source: str) -> Graph:
    path, lines, line = source.rpartition("#")
    if not lines:
        return load(source)
    return graph_from_json(parse_json(_lines(path)[int(line)], source), source)


@lru_cache(maxsize=4)
def _lines(path: str) -> list[bytes]:
    return read_lines(path)


@cache
def problem_of(example: GoExample) -> Problem:
    """A graph of the corpus, varied, or a generated one, on a drawn cluster; other graphs are drawn until one has a
    size to learn from."""
    rng = np.random.default_rng([example.number, 11])
    for _ in range(20):
        source = example.corpus[int(rng.integers(len(example.corpus)))]
        graph = draw_graph(rng) if source == "generated" else vary(graph_of(source), rng)
        problem = price(graph, draw_cluster(rng))
        if FEWEST_OPS <= problem.num_ops <= MOST_OPS:
            return _tight(problem, rng) if rng.random() < TIGHT else problem
    raise InvalidSetting(
        "20 graphs in turn have too few ops or too many", "--corpus", f"give some of {FEWEST_OPS} to {MOST_OPS:,}"
    )


def _tight(problem: Problem, rng: np.random.Generator) -> Problem:
    """Memory for 1.2 to 2.2 times an equal share of all weights and of what is alive at once on one device."""
    plan = Heft().optimize(search := Search(problem, Budget(None, 1)))
    peak = int(search.timeline(plan).peak_bytes.sum())
    cluster = problem.cluster.with_memory(max(1, int(peak * rng.uniform(1.2, 2.2) / problem.num_devices)))
    return replace(problem, cluster=cluster, memory_bytes=cluster.memory_bytes)


@cache
def read_of(example: GoExample, groups: int) -> tuple[GoGraph, Ints, int]:
    """What the network reads, half of the time without scopes; the groups of HEFT's plan; and its worth."""
    problem = problem_of(example)
    graph = read_problem(problem, groups, scopes=example.number % 2 == 0)
    search = Search(problem, Budget(None, 4))
    plan = Heft().optimize(search)
    given = GoDecoder(problem, graph.label, TASKS, plan).given
    assert given is not None
    search.score(plan)
    return graph, given, worth(problem, *(ints([part]) for part in search.best_score))[0]


def worth(problem: Problem, over_bytes: Ints, value: Ints) -> list[int]:
    """Step ns; of a plan that does not fit, four times that."""
    return [int(v * 4 if o else v) for o, v in zip(over_bytes.tolist(), value.tolist(), strict=True)]


def simulate(
    example: GoExample, groups: int, tasks: tuple[str, ...], found: tuple[Ints, Ints, Ints]
) -> tuple[Rewards, list[int]]:
    """(rewards, worths) of rows of decisions."""
    problem, (graph, _, _) = problem_of(example), read_of(example, groups)
    fixed = None if "placement" in tasks else Heft().optimize(Search(problem, Budget(None, 1)))
    search = Search(problem, Budget(None, len(found[0])))
    over, value = GoDecoder(problem, graph.label, tasks, fixed).score(search, *found)
    return rewards(problem, over, value), worth(problem, over, value)


class Crew:
    """Processes that make examples and simulate: an example is always with the same one, which keeps its problem."""

    def __init__(self, processes: int, stack: ExitStack) -> None:
        self.pools = [stack.enter_context(training.crew(1)) for _ in range(processes)]

    def map(self, function: Any, jobs: Sequence[tuple[Any, ...]]) -> list[Any]:
        """function(*job) of each; a job begins with its example."""
        waiting = [self.pools[job[0].number % len(self.pools)].submit(function, *job) for job in jobs]
        return [one.result() for one in waiting]


# ---------------------------------------------------------------- settings and standing


@dataclass(frozen=True)
class GoTrainingSettings(training.TrainingSettings):
    """How to train. The corpus is zoo (without the families of GO's workloads), generated, a folder of graphs or a
    .jsonl.xz file of one graph a line; several with commas.

    Attributes:
        hold_out: leave out the families of GO's workloads.
        examples: graphs on clusters that are drawn from the corpus and come back.
        tasks: multi: sets of all three are drawn; else one set for all, such as [placement].
        graphs: of a step.
        samples: plans of each.
        last_rate: of Adam at the end; the entropy bonus falls to 0.
    """

    CORPUS: ClassVar = "zoo,generated"

    policy: str = "go"
    hold_out: bool = True
    examples: int = 384
    tasks: str = "multi"
    groups: int = 32
    steps: int = 10_000
    graphs: int = 8
    samples: int = 16
    epochs: int = 2
    rate: float = 1.5e-3
    last_rate: float = 1e-4
    entropy: float = 0.003
    valid_graphs: int = 24
    valid_every: int = 250
    hidden: int = 32
    embedding: bool = True
    attention: bool = True
    modulation: bool = True

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.samples < 2 or self.graphs < 1 or self.examples < 1:
            raise InvalidSetting(f"{self.graphs} graphs, {self.samples} samples", "go", "give 1 and 2 or more")
        if unknown := [task for each in self.task_sets for task in each if task not in TASKS]:
            raise InvalidSetting(f"tasks '{unknown[0]}'", "go", f"give multi, or some of {', '.join(TASKS)}")

    @property
    def task_sets(self) -> tuple[tuple[str, ...], ...]:
        if self.tasks == "multi":
            return TASK_SETS
        return (tuple(task.strip() for task in self.tasks.strip("[]").split(",")),)

    @property
    def shape(self) -> GoShape:
        parts = {"embedding": self.embedding, "attention": self.attention, "modulation": self.modulation}
        return GoShape(hidden=self.hidden, **parts)


# ---------------------------------------------------------------- training


class GoTraining(training.TrainingRun):
    """A run over examples that come back; inputs of those seen stay in memory."""

    columns: ClassVar[tuple[str, ...]] = ("step", "seconds", "loss", "over_heft", "entropy", "valid", "rate")
    settings: GoTrainingSettings

    def __init__(self, settings: GoTrainingSettings, crew: Crew) -> None:
        with seeded(settings.seed):
            network = GoNetwork(settings.shape)
        super().__init__(settings, network, network.known(), time.monotonic())
        self.crew, self.sources = crew, sources_of(settings.corpus, settings.hold_out)
        self.valid_sources = sources_of(settings.valid, settings.hold_out) if settings.valid else self.sources
        self.seen: dict[GoExample, tuple[GoGraph, Ints, int]] = {}
        if not self.sources:
            raise InvalidSetting(
                f"no graph to learn from in '{settings.corpus}'", "--corpus", "give more, or hold_out=no"
            )
        if self.device.type == "cuda":
            torch.set_float32_matmul_precision("high")

    def step(self, rng: np.random.Generator) -> dict[str, float]:
        settings = self.settings
        examples = [GoExample(int(n), self.sources) for n in rng.integers(settings.examples, size=settings.graphs)]
        tasks = [settings.task_sets[int(n)] for n in rng.integers(len(settings.task_sets), size=settings.graphs)]
        batch, drawn, found = self.play(examples, tasks, torch.ones(settings.samples), int(rng.integers(2**62)))
        gained = np.concatenate([advantages(reward) for reward, _ in found])
        advantage = torch.from_numpy(gained).float().to(self.device)
        for _ in range(settings.epochs):
            loss, even = ppo_loss(self.network, batch, drawn, advantage, settings.entropy * (1 - self.share))
            self.descend(loss)
        over = [np.log(np.mean(worths) / self.seen[one][2]) for one, (_, worths) in zip(examples, found, strict=True)]
        return {"loss": float(loss.detach()), "over_heft": float(np.exp(np.mean(over))), "entropy": even}

    def play(
        self, examples: list[GoExample], tasks: list[tuple[str, ...]], temperature: torch.Tensor, seed: int
    ) -> Any:
        """(batch, passes, [(rewards, worths) of each example]) of samples at these temperatures."""
        groups, samples = self.settings.groups, len(temperature)
        new = [one for one in dict.fromkeys(examples) if one not in self.seen]
        self.seen.update(zip(new, self.crew.map(read_of, [(one, groups) for one in new]), strict=True))
        read = [self.seen[one] for one in examples]
        given = [None if "placement" in each else at for each, (_, at, _) in zip(tasks, read, strict=True)]
        batch = batch_of([graph for graph, _, _ in read], tasks, given, self.device)
        generator = torch.Generator(self.device).manual_seed(seed)
        drawn = draw(self.network, batch, temperature.to(self.device), generator)
        last = drawn.passes[-1].made
        last = GoDecisions(*(each.cpu() for each in last))
        jobs = [
            (one, groups, each, decided(last, slice(row * samples, (row + 1) * samples), len(graph.ops)))
            for row, (one, each, (graph, _, _)) in enumerate(zip(examples, tasks, read, strict=True))
        ]
        return batch, drawn, self.crew.map(simulate, jobs)

    def validate(self) -> None:
        """Zero-shot step time over HEFT's on validation examples, placement and schedule; keeps the best weights."""
        examples = [GoExample(VALID + number, self.valid_sources) for number in range(self.settings.valid_graphs)]
        wanted = TASK_SETS[1] if self.settings.tasks == "multi" else self.settings.task_sets[0]
        _, _, found = self.play(examples, [wanted] * len(examples), torch.linspace(0, 1, 8), VALID)
        logs = [np.log(min(worths) / self.seen[one][2]) for one, (_, worths) in zip(examples, found, strict=True)]
        greedy = [np.log(worths[0] / self.seen[one][2]) for one, (_, worths) in zip(examples, found, strict=True)]
        valid, first = float(np.exp(np.mean(logs))), float(np.exp(np.mean(greedy)))
        told = f"zero-shot step time over HEFT's {valid:.4f}, of the likeliest plan {first:.4f}"
        self.judge(valid, told, valid_over_heft=valid, likeliest_over_heft=first)


def train(settings: GoTrainingSettings) -> Path:
    """Trains the network, or goes on with what `out` holds; returns the file of the weights."""
    sources_of(settings.corpus, settings.hold_out)  # files are read before processes are forked, which then have them
    with ExitStack() as stack:
        crew = Crew(settings.workers or os.cpu_count() or 1, stack)
        run = GoTraining(settings, crew)
        return run.learn(
            corpus=sorted({source.rpartition("/")[2] if "#" in source else source for source in run.sources})
        )


SETTINGS = GoTrainingSettings
