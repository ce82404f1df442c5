"""How the recurrent placers are trained on one graph outside a search: taken up again where they were, with curves.

For runs of hours, such as the papers': `loadmaster train rnn` and `train hdp`. What comes out is a checkpoint that the
method takes as a setting, and the curve of what it measured.
"""

from __future__ import annotations

import time
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import Any, ClassVar, get_args

import torch
from torch import nn

from loadmaster import catalog
from loadmaster.cost import price
from loadmaster.errors import InvalidSetting, UnknownName
from loadmaster.files import save_plan
from loadmaster.graph.columns import ints
from loadmaster.importers import load
from loadmaster.learn.hdp2018.optimizer import Hdp
from loadmaster.learn.mirhoseini2017.optimizer import Rnn
from loadmaster.learn.recurrent.reinforce import Learner, Standing, StepSummary
from loadmaster.papers import training
from loadmaster.papers.environment import Order, Simulated
from loadmaster.passes.groups import GROUPERS
from loadmaster.plans import Plan
from loadmaster.problem import Problem
from loadmaster.search import WORST, Budget, Score, Search
from loadmaster.simulator import first_come, simulate
from loadmaster.zoo import ENTRIES

PLENTY = Budget(None, 2**62)
LEARN, MEASURE = 1, 2  # phases of the random numbers


@dataclass(frozen=True)
class RecurrentSettings(training.TrainingSettings):
    """How to train on one graph: `corpus` is its file, or a name of the zoo. 0 and "": as the optimizer has it.

    Attributes:
        features: of rnn.
        warm: of hdp.
    """

    policy: str = "rnn"
    cluster: str = "2xp100-pcie"
    objective: str = "step-time"
    steps: int = 2_000
    samples: int = 0
    hidden: int = 0
    groups: int = 0
    rate: float = 0.0
    entropy: float = 0.0
    by: str = ""
    features: str = ""
    warm: str = ""
    order: str = ""
    root: bool = True
    noise: float = 0.0
    failures: float = 0.0
    say_every: int = 50

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.policy not in POLICIES:
            raise InvalidSetting(f"policy '{self.policy}' is unknown", "", f"use one of {', '.join(POLICIES)}")
        if self.steps < 1:
            raise InvalidSetting(f"{self.steps} steps", "", "give 1 or more")
        for name, known in (("objective", tuple(catalog.OBJECTIVES)), ("by", ("", *GROUPERS)), ("order", ORDERS)):
            if getattr(self, name) not in known:
                raise UnknownName.among(name, getattr(self, name), [word for word in known if word])

    @property
    def torch_device(self) -> torch.device:
        """The decoder takes many small steps, for which a GPU is slow: one is used only where it is asked for."""
        return torch.device("cpu" if self.device == "auto" else self.device)

    @property
    def optimizer(self) -> Rnn | Hdp:
        kind = POLICIES[self.policy]
        names = {each.name for each in fields(kind)} & {each.name for each in fields(self)}
        given = {name: getattr(self, name) for name in names if getattr(self, name) not in (0, "")}
        chosen: Rnn | Hdp = kind(**{**given, "root": self.root})
        return chosen


POLICIES: dict[str, Any] = {"rnn": Rnn, "hdp": Hdp}
ORDERS = ("", *get_args(Order))


@dataclass
class RecurrentState(Standing):
    """Where the run stands, besides the weights.

    Attributes:
        device: of the best plan.
    """

    simulations: int = 0
    best: tuple[int, int] = WORST
    device: list[int] = field(default_factory=list)
    rank: list[int] = field(default_factory=list)


class RecurrentRun(training.TrainingRun):
    """A run on one graph."""

    columns: ClassVar[tuple[str, ...]] = (
        *("step", "seconds", "simulations", "loss", "reward", "entropy", "valid"),
        *("best_over_bytes", "best_value"),
    )
    settings: RecurrentSettings
    state: RecurrentState

    def __init__(
        self, settings: RecurrentSettings, problem: Problem, policy: nn.Module, environment: Simulated
    ) -> None:
        optimizer = settings.optimizer
        self.learner = Learner(policy, optimizer.rule)
        super().__init__(settings, policy, RecurrentState(), optimizer.rate, time.monotonic())
        self.adam = self.learner.adam
        self.problem, self.environment = problem, environment

    def go(self) -> None:
        settings, search = self.settings, self.environment.search
        self.learner.standing = self.state
        while self.state.step < settings.steps and not self.late(0.99):
            step = self.state.step
            self.environment.rng = self.rng(MEASURE, step)
            outcome = self.learner.step(self.environment, self.rng(LEARN, step), self._share())
            self._keep(search)
            self._tell(outcome)
            self.save_now_and_then()

    def _share(self) -> float:
        by_step, minutes = self.state.step / self.settings.steps, self.settings.minutes
        return by_step if minutes is None else max(by_step, (time.monotonic() - self.begun) / 60 / minutes)

    def _keep(self, search: Search) -> None:
        """What must outlive the process."""
        self.state.simulations = search.simulations
        if search.best is not None and tuple(search.best_score) != tuple(self.state.best):
            self.state.best = (search.best_score.over_bytes, search.best_score.value)
            self.state.device, self.state.rank = search.best.device.tolist(), search.best.rank.tolist()

    def _tell(self, outcome: StepSummary) -> None:
        over, value = self.state.best
        known = {"simulations": self.state.simulations, "valid": outcome.valid}
        best = {"best_over_bytes": over, "best_value": value} if self.state.device else {}
        self.note(loss=outcome.loss, reward=outcome.reward, entropy=outcome.even, **known, **best)
        if self.state.step % self.settings.say_every == 0:
            self.say(f"step {self.state.step}: reward {outcome.reward:.4f}, entropy {outcome.even:.2f}, best {value}")

    def take_up(self) -> None:
        """The checkpoint, if there is one; the search then knows what it knew."""
        self.resume()
        search = self.environment.search
        search.count(self.state.simulations)
        if self.state.device:
            plan = Plan.of(self.problem, self.state.device, self.state.rank)
            if self.environment.order == "fifo":
                plan = first_come(self.problem, plan.device)
            search.offer(plan, Score(*self.state.best))


def train(settings: RecurrentSettings) -> Path:
    """Trains on one graph, or goes on with what `out` holds; returns the file of the weights."""
    graph = load(f"zoo:{settings.corpus}" if settings.corpus.partition("/")[0] in ENTRIES else settings.corpus)
    problem = price(graph, settings.cluster, objective=settings.objective)
    if problem.num_devices < 2:
        raise InvalidSetting(f"'{settings.cluster}' has one device", "cluster", "give two or more to choose from")
    optimizer = settings.optimizer
    label = optimizer.label_of(problem)
    policy = optimizer.policy_of(problem, label, settings.seed)
    policy.move(settings.torch_device)
    search = Search(problem, PLENTY, settings.seed)
    environment = Simulated(search, label, optimizer.order, optimizer.noise, optimizer.failures)
    run = RecurrentRun(settings, problem, policy, environment)
    run.take_up()
    run.go()
    _finish(run, optimizer)
    return run.weights


def _finish(run: RecurrentRun, optimizer: Rnn | Hdp) -> None:
    run.save()
    devices = run.problem.num_devices
    groups = {"groups": optimizer.groups_on(devices)} if isinstance(optimizer, Hdp) else {}
    run.export({**asdict(optimizer), **groups, "policy": run.settings.policy, "devices": devices})
    search, facts = run.environment.search, dict[str, Any]()
    if search.best is not None:
        save_plan(search.best, run.problem, run.out / "plan.json")
        line = simulate(run.problem, search.best)
        facts = {"best_step_ns": line.step_ns, "best_over_bytes": line.over_bytes}
        facts["best_peak_bytes"] = ints(line.peak_bytes).tolist()
    run.card(
        optimizer=asdict(optimizer),
        graph=run.problem.source.name,
        graph_digest=run.problem.source.digest,
        cluster_digest=run.problem.cluster.digest,
        groups=run.environment.num_groups,
        steps=run.state.step,
        simulations=run.state.simulations,
        **facts,
    )


SETTINGS = RecurrentSettings
