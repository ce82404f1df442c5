"""The network of GO at work on one problem: proposing plans, and learning on the problem itself.

Zero-shot, candidates by rules are simulated in the order the network favours. When it learns, passes of the network
alternate with chains of draws from its scores (`chains`): the network is asked seldom, the simulator often, and PPO
learns from a sample of what was drawn.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import lru_cache, partial
from importlib import resources
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn import functional

from loadmaster.baselines.simple import legal
from loadmaster.errors import UnreadableFile
from loadmaster.graph.columns import Ints, ints
from loadmaster.learn.go2020.chains import DrawPace, Manner, PolicyChains, Sample
from loadmaster.learn.go2020.input import go_input, group_majority
from loadmaster.learn.go2020.losses import entropy_of, freed, imitation_loss, policy_loss, sample_loss
from loadmaster.learn.go2020.network import GoNetwork, GoOutputs, LastDecisions, go_batch, shape_of
from loadmaster.learn.go2020.policy import (
    Decided,
    Drawing,
    Draws,
    Fixed,
    Stand,
    advantages,
    decided_key,
    decided_of,
    draw_plans,
    middle_levels,
    plan_of,
    rewards,
    score_decided,
    stand_of,
)
from loadmaster.learn.go2020.zero import Judged, candidate_decided, outcome_of, seen_decisions, zero_shot
from loadmaster.methods.annealing.fusion_starts import simple_fusions
from loadmaster.methods.annealing.proposals import Policy, chances
from loadmaster.papers.adam import Adam
from loadmaster.papers.weights import network_of, read_tensors
from loadmaster.plans import Plan
from loadmaster.search import WORST, Score, Search
from loadmaster.simulator import simulate

if TYPE_CHECKING:
    from loadmaster.learn.go2020.method import Go

# Where no reason is given: part of how the weights that are shipped were trained; another value needs new ones.
WHOLE = 4  # plans a step in which all is decided anew


class Agent:
    """The network at work on one problem.

    It holds the search, what the network sees, the few best decisions and, while it learns, the chains that walk
    between passes. `propose` is zero-shot; `learn` is PPO until the budget, or the number of steps, is spent.
    """

    def __init__(self, settings: Go, search: Search) -> None:
        self.settings, self.search, self.problem = settings, search, search.problem
        torch.manual_seed(search.seed)
        untrained = settings.scratch or settings.checkpoint == "none"
        self.network = GoNetwork(settings.shape) if untrained else load_go(settings.checkpoint or "go")
        placing, ordering, fusing = (task in settings.wanted for task in ("placement", "schedule", "fusion"))
        # Trained levels look at what candidates say of devices.
        offered = placing or (ordering and not settings.scratch)
        self.one = go_input(self.problem, settings.groups, kernels=fusing, offered=offered)
        self.batch = go_batch([self.one])
        self.all_bytes = float(self.problem.graph.nbytes.sum())
        self.how = Drawing(WHOLE, whole=1.0, uniform=settings.uniform, tasks=settings.wanted)
        # Without placement among the tasks, another method's stands.
        self.fixed = None if "placement" in settings.wanted else self._inner()
        self.given = Fixed(self.fixed, "schedule" not in settings.wanted, settings.order == "fifo")
        self.manner = Manner(placing, ordering, fusing, self.given.fifo, settings.uniform)
        self.pool: list[Judged] = []
        self.unit = 1.0

    def _inner(self) -> Plan:
        return self.settings.inner.optimize(self.search.part(simulations=1))

    def propose(self) -> None:
        """The plans that the network proposes, simulated."""
        most = min(self.settings.samples, self.search.simulations_left)
        if not most:
            return
        last = self.search.simulations + most
        if self.fixed is not None:
            self._start()
            self._likeliest()
        else:
            # Where kernels are decided too, a few placements leave simulations for ways to fuse the best of them.
            placed = -(-most // 2) if self.manner.fusing else most
            zero_shot(self.network, [self.one], self.batch, placed, lambda wanted: [self._look(wanted[0])])
        if self.manner.fusing and (self.settings.checkpoint == "none" or not self.network.decides("fusion")):
            self._fuse_by_rules(last - self.search.simulations)

    def _fuse_by_rules(self, most: int) -> None:
        """The best plan with kernels by simple rules: what a network that was not trained to fuse leaves to them."""
        if most > 0 and self.pool and not self.search.spent:
            plan = self.plan_of(self.pool[0].decided)
            with self.search.keeping(simulations=most) as part:
                simple_fusions(part, Plan.of(self.problem, plan.device, plan.rank), 1, self.given.fifo)

    def _likeliest(self) -> None:
        """On a placement that stands: the likeliest levels and fusion."""
        if self.pool and not self.search.spent:
            with torch.no_grad():
                outputs = self.network(self.batch, seen_decisions(self.batch, [self.pool[0]]))
            self.score([stand_of(outputs, self.batch, 0, self.one).decided])

    def _look(self, many: list[Decided]) -> list[Judged]:
        """Simulates decisions one by one, with what their timelines show."""
        found = []
        for decided in many[: self.search.simulations_left]:
            plan = self.plan_of(decided)
            if self.given.fifo:
                plan = self.search.first_come(plan.device, plan.kernel)
            self.search.score(plan)
            line = self.search.timeline(plan)
            found.append(outcome_of(self.problem, self.one.label, decided, plan, line))
        self._keep(found)
        return found

    # ---------------------------------------------------------------- learning on the problem

    def learn(self, steps: int | None) -> None:
        """PPO on this problem until the budget, or the number of steps, is spent."""
        self._start()
        if not self.pool or self.search.spent:
            return
        # Chains look for kernels themselves.
        plans = [self.plan_of(replace(outcome.decided, fusion=ints([]))) for outcome in self.pool]
        chains = PolicyChains(self.search, self.one, self.manner, plans)
        adam = Adam(self.network.parameters(), self.settings.rate)
        pace, step = DrawPace(self.search, self.settings, steps, self.settings.temperature * self.manner.warmth), 0
        while not self.search.spent and (steps is None or step < steps):
            base = self._base(chains)
            last = seen_decisions(self.batch, [base])
            with pace:
                outputs = self.network(self.batch, last)
                stand = stand_of(outputs, self.batch, 0, self.one, base.decided)
                draws, gain = self._draw_whole(stand)
            seconds, trials = pace.next(step, chains.draw_s)
            sample = chains.walk(self._policy(outputs, last), partial(pace.temperature, step), seconds, trials)
            if self.search.spent:
                break
            with pace:
                self._learn_from(adam, outputs, last, (draws, gain), sample, 1 - pace.share(step))
            step += 1
            self.search.note = f"go: step {step}"

    def _policy(self, outputs: GoOutputs, last: LastDecisions) -> Policy:
        said = self._scores(outputs, last)
        place, level, fusion = (np.ascontiguousarray(part.detach()[0].numpy(), np.float64) for part in said)
        return Policy(self.one.label, place, level, fusion, chances(fusion), self.settings.uniform)

    def _scores(self, outputs: GoOutputs, last: LastDecisions) -> tuple[Tensor, Tensor, Tensor]:
        """By which chains draw devices, levels and fusion."""
        return *freed(outputs, last, self.network.stay), outputs.fusion[None]

    def _draw_whole(self, stand: Stand) -> tuple[Draws, NDArray[np.float64]]:
        """A few plans in which all is decided anew, and what they gain against each other."""
        draws = draw_plans(self.one, stand, self.how, self.search.rng)
        over, value = self.score(draws.decided())
        reward = rewards(over, value, self.unit, self.all_bytes)
        return draws, np.where(value < WORST.value, advantages(reward, draws.whole, 0.0), 0.0)

    def _learn_from(
        self,
        adam: Adam,
        outputs: GoOutputs,
        last: LastDecisions,
        whole: tuple[Draws, NDArray[np.float64]],
        sample: Sample,
        left: float,
    ) -> None:
        """Two steps of PPO on the same draws, with the pull towards the best plan."""
        best = self.pool[0].decided
        device, level = torch.from_numpy(best.device.copy())[None], torch.from_numpy(best.level.copy())[None]
        fusion = torch.from_numpy(best.fusion.copy())
        entropy = 0.01 * left
        for turn in range(2):
            said = outputs if turn == 0 else self.network(self.batch, last)
            loss = policy_loss(said, self.batch, [whole[0]], [whole[1]])
            if self.manner.placing or self.manner.ordering:
                loss = loss - entropy * entropy_of(said, self.batch)
            loss = loss + sample_loss(self._scores(said, last), sample)
            loss = loss + self.settings.imitate * imitation_loss(said, self.batch, last, device, level)
            if len(fusion):
                loss = loss + 0.3 * self.settings.imitate * functional.cross_entropy(said.fusion, fusion)
            adam.zero_grad()
            loss.backward()  # type: ignore[no-untyped-call]
            torch.nn.utils.clip_grad_norm_(self.network.parameters(), 1.0)
            adam.step()

    def _start(self) -> None:
        """What draws begin with: proposals of a trained network; else all candidates and the plan of `inner`."""
        if self.fixed is None and not self.settings.scratch:
            self.propose()
            return
        inner = (self.fixed or self._inner()).device
        level, fusion = middle_levels(self.one.num_groups), middle_levels(len(self.one.single))
        many = [Decided(group_majority(self.problem, self.one.label, inner), level, fusion, inner)]
        if self.fixed is None:
            many += [candidate_decided(self.one, candidate) for candidate in range(len(self.one.candidates))]
        self.score(list({decided_key(decided): decided for decided in many}.values()))

    def _base(self, chains: PolicyChains) -> Judged:
        """Where the better chain stands. A trained network sees its timeline, which costs a simulation; one from
        scratch does not: that did not pay."""
        plan, fusion, score = chains.standing()
        outcome = Judged(score, decided_of(self.problem, self.one.label, plan, fusion))
        if not self.settings.scratch and self.search.simulations_left > 1:
            line = simulate(self.problem, plan)
            self.search.count(1)
            outcome = outcome_of(self.problem, self.one.label, outcome.decided, plan, line)
        self._keep([outcome])
        return outcome

    # ---------------------------------------------------------------- both

    def score(self, many: Sequence[Decided]) -> tuple[Ints, Ints]:
        """Simulates decisions and keeps the best few."""
        over, value = score_decided(self.search, self.one.label, many, self.given)
        scores = [Score(int(o), int(v)) for o, v in zip(over, value, strict=True)]
        self._keep([Judged(score, decided) for score, decided in zip(scores, many, strict=True)])
        return over, value

    def _keep(self, found: Sequence[Judged]) -> None:
        for outcome in found:
            if outcome.score.value < WORST.value and all(outcome.score != other.score for other in self.pool):
                self.pool = sorted([*self.pool, outcome], key=lambda each: each.score)[:4]
        if self.pool and self.unit == 1.0:
            self.unit = float(max(1, self.pool[0].score.value))

    def plan_of(self, decided: Decided) -> Plan:
        return plan_of(self.problem, self.one.label, decided, self.given)

    def first_plan(self) -> Plan:
        """What stands before anything is simulated."""
        if self.fixed is not None:
            return self.fixed
        return Plan.of(self.problem, legal(self.problem, ints(self.one.candidates.device[0])))


RETRAIN = "train it again with this version: loadmaster train go"


def load_go(name: str) -> GoNetwork:
    """The network of a file of weights, or of shipped ones by name; a copy of its own."""
    known, tensors = _file(name)
    network = network_of(lambda: GoNetwork(shape_of(known["shape"])), tensors, name, RETRAIN)
    return network.eval()


def _file(name: str) -> tuple[dict[str, Any], dict[str, torch.Tensor]]:
    path = Path(name)
    if not name.endswith(".safetensors"):
        path = Path(str(resources.files("loadmaster.learn").joinpath("weights", f"{name}.safetensors")))
    if not path.is_file():
        fix = "give checkpoint=FILE.safetensors, train one with loadmaster train go, or use go-one"
        raise UnreadableFile(f"there are no trained weights '{name}'", "", fix)
    return _read(str(path), path.stat().st_mtime_ns)


@lru_cache(maxsize=4)
def _read(path: str, changed: int) -> tuple[dict[str, Any], dict[str, torch.Tensor]]:
    known, held = read_tensors(path, "policy", RETRAIN)
    tensors = {name.removeprefix("network."): tensor for name, tensor in held.items()}
    if "shape" not in known or "choice_prior" not in tensors:
        raise UnreadableFile(f"'{path}' holds no policy that this version can run", "", RETRAIN)
    return known, tensors
