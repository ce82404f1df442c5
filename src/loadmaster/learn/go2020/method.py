"""GO 2020: one network decides fusion, placement and schedule of all ops at once.

Three ways to use it, by settings of the one class: zero-shot with trained weights, `finetune` steps of PPO from them,
or `scratch`, which learns on the problem alone. docs/methods/go.md has the figures, and what learning was found to add.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal

from loadmaster.baselines.expert.expert import Expert
from loadmaster.baselines.simple import OneDevice
from loadmaster.errors import InvalidSetting, MissingExtra
from loadmaster.plans import Plan
from loadmaster.search import Method, Search

if TYPE_CHECKING:
    from loadmaster.learn.go2020.network import NetworkShape

TASKS = ("fusion", "placement", "schedule")


@dataclass(frozen=True)
class Go:
    """GO (Zhou et al. 2020, arXiv 2010.12438): graph network and recurrent attention; all decisions in one pass.

    Zero-shot by default: `samples` plans are simulated and the best kept; no search. They are those of the placements
    by simple rules (candidates) that the network finds most promising. `finetune=N` goes on from there with N steps of
    PPO; `scratch=yes` (go-one) learns on the problem alone, from random weights and all candidates and the plan of
    `inner`, until the budget is spent: a search, to which the learning adds nothing that was measured (docs, "What
    learning adds to GO"). Between two passes of a network that learns, two chains of changes walk from where they
    stand: a set of ops is drawn by a rule, its device, level or fusion by the network's scores, and what the simulator
    finds worse is undone, or seldom kept. PPO learns from a sample of those draws.

    Differs from the paper: scores groups of ops and, besides devices, unlike ones with their memory and links; starts
    from placements by rules, not from nothing; a pass sees the timeline of the decisions before it; priorities move ops
    from their place in the order that stands; far more is simulated than the network is asked, and plans a little worse
    are gone on from at first, as in annealing. Sizes of the network are ours. The shipped weights were first fitted to
    what candidates and single changes are worth.

    Attributes:
        checkpoint: a .safetensors file, or the name of shipped weights; empty: "go"; none: random weights.
        samples: plans that are simulated zero-shot.
        groups: at most so many are scored; 0: every op by itself. Draws while learning are finer.
        tasks: or with fusion; without placement: on the devices of `inner`.
        finetune: steps of PPO on the problem; they share the time that there is.
        scratch: no trained weights: it learns on the problem alone.
        rollouts: draws in each step of PPO, where the budget is one of simulations.
        share: of the time goes into simulated draws, where the budget is one of time.
        temperature: how much worse a plan may get and still be gone on from, at first, as a share.
        order: fifo: first come, first served, as the expert runs; no schedule.
        rate: of Adam while it learns on the problem.
        imitate: weight of a pull towards the best plan so far (self-imitation)
        uniform: chance of a draw that asks nobody, while learning.
        attention: these three are for a network from scratch; weights know their own.
        modulation: a factor for each layer and column from the pooled graph, as published; no: none.
        pooling: of neighbours in a round of GraphSAGE: max or sum.
        inner: gives the devices where placement is none of the tasks, and a plan to learn from scratch with.
    """

    checkpoint: str = ""
    samples: int = 8
    groups: int = 1024
    tasks: str = "placement,schedule"
    finetune: int = 0
    scratch: bool = False
    rollouts: int = 256
    share: float = 0.75
    temperature: float = 0.01
    order: Literal["critical", "fifo"] = "critical"
    rate: float = 1e-3
    imitate: float = 0.0
    uniform: float = 0.05
    attention: bool = True
    modulation: bool = True
    pooling: str = "max"
    inner: Method = field(default_factory=Expert)

    def __post_init__(self) -> None:
        unknown = [task for task in self.wanted if task not in TASKS]
        if unknown or not self.wanted:
            fix = f"give some of {', '.join(TASKS)}; first come, first served leaves no schedule to decide"
            raise InvalidSetting(f"tasks '{self.tasks}' in order '{self.order}'", "go", fix)
        if self.samples < 1 or self.rollouts < 2:
            raise InvalidSetting("fewer than 1 sample or 2 rollouts", "go", "give more")
        if not 0 < self.share < 1 or self.temperature < 0:
            raise InvalidSetting(
                f"share {self.share}, temperature {self.temperature}",
                "go",
                "give a share in (0, 1), temperature from 0 up",
            )
        if self.pooling not in ("max", "sum"):
            raise InvalidSetting(f"pooling '{self.pooling}'", "go", "give max or sum")

    @property
    def wanted(self) -> tuple[str, ...]:
        tasks = tuple(task.strip() for task in self.tasks.strip("[]").split(",") if task.strip())
        return tuple(task for task in tasks if task != "schedule" or self.order == "critical")

    @property
    def shape(self) -> NetworkShape:
        """Of a network from scratch."""
        from loadmaster.learn.go2020.network import NetworkShape

        return NetworkShape(
            tasks=self.wanted, attention=self.attention, modulation=self.modulation, pooling=self.pooling
        )

    def optimize(self, search: Search) -> Plan:
        if search.problem.num_devices == 1 and "placement" in self.wanted and len(self.wanted) == 1:
            return OneDevice().optimize(search)
        try:
            from loadmaster.learn.go2020.agent import Agent
        except ImportError as error:
            raise MissingExtra.of(str(error.name or "torch"), "torch", "a learned policy") from error
        agent = Agent(self, search)
        if self.scratch or self.finetune:
            agent.learn(None if self.scratch else self.finetune)
        else:
            agent.propose()
        return search.best if search.best is not None else agent.first_plan()
