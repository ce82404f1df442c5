"""apply: a module, example inputs and a plan to a step that runs as planned."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias, TypeGuard

import numpy as np
import torch
from torch import nn

from loadmaster.cluster import Cluster, Device, Link
from loadmaster.columns import ints
from loadmaster.cost import price
from loadmaster.errors import CannotRun, InvalidPlan, InvalidSetting
from loadmaster.importers.torch.export import capture_step
from loadmaster.importers.torch.graph import CapturedStep
from loadmaster.plans import Plan, check
from loadmaster.problem import Problem
from loadmaster.runtime.devices import torch_devices
from loadmaster.runtime.execute import AppliedStep, Binding
from loadmaster.runtime.program import Backend, write_program
from loadmaster.runtime.schedule import host_last, schedule
from loadmaster.runtime.updates import Updates, check_kind, default_optimizer

if TYPE_CHECKING:  # to run a plan takes no search and no simulator
    from loadmaster.search import Result
    from loadmaster.simulator import Timeline

    Planned: TypeAlias = Result | Plan | str | os.PathLike[str]


@dataclass(frozen=True, eq=False)
class Planning:
    """A plan with all that is known of how it was made."""

    plan: Plan
    problem: Problem
    timeline: Timeline | None  # None: the cluster is not known, only how many devices it has
    names: tuple[str, ...]


def apply(
    module: nn.Module,
    inputs: Any,
    plan: Planned,
    *,
    training: bool | None = None,
    optimizer: torch.optim.Optimizer | None = None,
    devices: Sequence[str | torch.device] | None = None,
    cuda_graphs: bool | None = None,
    verify: bool = False,
) -> AppliedStep:
    """The module's step as the plan has it: placed, ordered, and called like the module.

    `training` and the kind of optimizer are those of the plan's file; for a Plan or a Result they are found by the
    graph it was made for. `devices` gives a torch device for each device of the plan. `cuda_graphs`: True always, False
    never, by default where they are faster. With `verify` one step is run both ways first and compared; the module is
    as it was afterwards.
    """
    captured, planning = match(module, inputs, plan, training, optimizer)
    step = build(module, captured, planning, optimizer=optimizer, devices=devices, cuda_graphs=cuda_graphs)
    if verify:
        from loadmaster.runtime.verify import verify_step

        verify_step(step, inputs).require()
    return step


def match(
    module: nn.Module,
    inputs: Any,
    plan: Planned,
    training: bool | None = None,
    optimizer: torch.optim.Optimizer | None = None,
) -> tuple[CapturedStep, Planning]:
    """Captures the module the way the plan was made; refuses a plan of another model."""
    wanted = plan if isinstance(plan, Plan) else plan.plan if is_result(plan) else _load(plan)  # type: ignore[arg-type]
    tried = []
    for mode, kind in _ways(training, optimizer):
        captured = capture_step(module, inputs, training=mode, optimizer=kind)
        if captured.graph.digest == wanted.graph_digest:
            return captured, planning_of(captured, plan if is_result(plan) else wanted)
        tried.append(f"{'training with ' + kind if mode else 'inference'} has {captured.graph.digest}")
    what = f"the plan was made for another model, or for other inputs: digest {wanted.graph_digest}"
    raise InvalidPlan(what, "; ".join(tried), "plan again with this module and these inputs")


def is_result(plan: object) -> TypeGuard[Result]:
    return hasattr(plan, "timeline")


def _load(plan: str | os.PathLike[str]) -> Plan:
    from loadmaster.files import load_plan

    return load_plan(Path(plan))


def _ways(training: bool | None, optimizer: torch.optim.Optimizer | None) -> list[tuple[bool, str]]:
    modes = [True, False] if training is None else [training]
    kinds = ["adam", "sgd", "adamw", "none"] if optimizer is None else [type(optimizer).__name__.lower()]
    return [(mode, kind) for mode in modes for kind in (kinds if mode else ["adam"])]


def planning_of(captured: CapturedStep, plan: Result | Plan) -> Planning:
    if is_result(plan):
        return Planning(plan.plan, plan.problem, plan.timeline, plan.problem.cluster.device_names)
    assert isinstance(plan, Plan)
    count = plan.send_rank.shape[1] if plan.send_rank is not None else int(plan.device.max()) + 1
    problem = price(captured.graph, stand_in_cluster(count))
    own = replace(plan, cluster_digest=problem.cluster.digest)
    check(own, problem)
    return Planning(own, problem, None, problem.cluster.device_names)


def stand_in_cluster(count: int) -> Cluster:
    """Equal devices for a plan whose cluster is not known: a runtime needs only how many there are."""
    devices = tuple(Device(f"device:{i}", "device", 2**62, 1e12, 1e12) for i in range(count))
    pairs = [(src, dst) for src in range(count) for dst in range(count) if src != dst]
    channel = np.full((count, count), -1, np.int64)
    for number, pair in enumerate(pairs):
        channel[pair] = number
    return Cluster("devices", devices, dict.fromkeys(pairs, Link(None)), ints(channel))


def build(
    module: nn.Module,
    captured: CapturedStep,
    planning: Planning,
    *,
    optimizer: torch.optim.Optimizer | None = None,
    devices: Sequence[str | torch.device] | None = None,
    cuda_graphs: bool | None = None,
) -> AppliedStep:
    """The step of a captured module under a plan, bound to the module."""
    problem, plan = planning.problem, planning.plan
    places = torch_devices(problem, devices)
    if optimizer is not None:
        if not captured.training:
            raise InvalidSetting("an inference has no use for an optimizer", "optimizer", "leave it out")
        check_kind(optimizer, captured.optimizer)
    binding = Binding(captured, module)
    updates = _updates(captured, binding, problem, plan, places, optimizer)
    try:
        events = schedule(problem, plan, planning.timeline)
        if len({place.type for place in places}) > 1:
            events = host_last(problem, plan, events, {d for d, place in enumerate(places) if place.type == "cpu"})
        program = write_program(
            captured, problem, plan, events, Backend(places, lambda update: updates.call(update.weight))
        )
        return AppliedStep(program, binding, updates, problem, places, cuda_graphs)
    except BaseException:
        binding.give_back()
        updates.follow_weights()
        raise


def _updates(
    captured: CapturedStep,
    binding: Binding,
    problem: Problem,
    plan: Plan,
    places: Sequence[torch.device],
    optimizer: torch.optim.Optimizer | None,
) -> Updates:
    """Weights go to their devices before their state is made beside them."""
    weights = binding.weights()
    named = {given.name: tensor for tensor, given in binding.given.items()}
    device = dict(zip(problem.graph.op_name, plan.device.tolist(), strict=True))
    for name in weights if captured.optimizer != "none" else ():
        binding.move(named[name], places[device[f"{captured.optimizer}:{name}"]])
    updates = Updates(optimizer or default_optimizer(captured.optimizer, list(weights.values())), weights)
    updates.follow_weights()
    return updates


def modelled(planning: Planning) -> Timeline:
    """What the simulator says of the plan on its cluster."""
    from loadmaster.simulator import simulate

    if planning.timeline is None:
        raise CannotRun("the cluster of the plan is not known", "", "give a Result, or the cluster with --on")
    return simulate(planning.problem, planning.plan)
