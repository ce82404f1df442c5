"""apply: a module, example inputs and a plan to a step that runs as planned.

The module is captured as it was for planning (`match`), and the digest of that graph says whether the plan is of this
model. Then the plan becomes one order of kernels and sends (`schedule`), the order straight-line Python (`program`),
and that is bound to the module's own parameters and buffers (`execute`), which move to the devices the plan has them
on. In a run of several processes each builds its own part of the same step (`processes`). Plans with ops in parts, with
every op on every device, or of a pipeline come the same way through `splitting`, `sharding` and `pipelines`.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, TypeAlias, TypeGuard

import numpy as np
import torch
from torch import nn

from loadmaster.cluster import Cluster, Device, Link
from loadmaster.cost import price
from loadmaster.errors import CannotRun, InvalidPlan, InvalidSetting
from loadmaster.files.plan import PlanFile
from loadmaster.graph.columns import ints
from loadmaster.importers.torch.arguments import seen_inside
from loadmaster.importers.torch.export import capture_step
from loadmaster.importers.torch.graph import CapturedStep, Update
from loadmaster.importers.torch.step import Target
from loadmaster.passes.splitting import Sharded, sharded_of, splits_of
from loadmaster.pipelines.pipelined import pipelined_of
from loadmaster.plans import Plan, check
from loadmaster.plans.expansion import whole
from loadmaster.problem import Problem
from loadmaster.runtime.contract import refuse_input, refuse_module, refuse_optimizer
from loadmaster.runtime.devices import torch_devices
from loadmaster.runtime.execute import AppliedStep, Binding, tensors_by_name
from loadmaster.runtime.guard import Guard, refuse_autocast
from loadmaster.runtime.naming import Backend, homes_of, lodged_of
from loadmaster.runtime.processes import Post, Throttle, joined_group, places_of_ranks, same_everywhere, share_state
from loadmaster.runtime.program import write_program
from loadmaster.runtime.python_state import tensors_within
from loadmaster.runtime.questions import Answers, refuse_truths
from loadmaster.runtime.schedule import Event, host_last, schedule
from loadmaster.runtime.updates import Updates, check_kind, default_optimizer
from loadmaster.runtime.watching import watch

if TYPE_CHECKING:  # to run a plan takes no search and no simulator
    from loadmaster.search import Result
    from loadmaster.simulator import Timeline

    Planned: TypeAlias = Result | Plan | str | os.PathLike[str]


@dataclass(frozen=True, eq=False)
class Planning:
    """A plan with all that is known of how it was made.

    Attributes:
        plan: for the captured step.
        problem: that it is a plan of; a stand-in of equal devices where the cluster is not known.
        timeline: gives the order of kernels and sends; None: the cluster is not known, only how many devices it has, or
            ranks say all.
        modelled: of a pipeline: that of its actions.
    """

    plan: Plan
    problem: Problem
    timeline: Timeline | None
    modelled: Timeline | None = None


def apply(
    module: nn.Module,
    inputs: Any,
    plan: Planned,
    *,
    training: bool | None = None,
    optimizer: torch.optim.Optimizer | None = None,
    devices: Sequence[str | torch.device] | None = None,
    cuda_graphs: bool | None = None,
    compile_kernels: bool | None = None,
    verify: bool | None = None,
) -> AppliedStep:
    """The module's step as the plan has it: placed, ordered, and called like the module.

    >>> import loadmaster as lm, torch
    >>> module, x = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.ReLU()), torch.randn(2, 4)
    >>> graph = lm.load(module, inputs=(x,), training=False)
    >>> result = lm.solve(lm.price(graph, "1xcpu"), "one-device", lm.Budget(None, 1))
    >>> step = apply(module, (x,), result, devices=["cpu"])
    >>> torch.equal(step(x), module(x))
    True

    Args:
        module: with real weights; its parameters move to the devices of the plan, in place.
        inputs: examples, as for `load`: sizes are theirs.
        plan: a Result, a Plan, or a plan's file.
        training, optimizer: those of the plan's file by default; for a Plan or a Result they are found by the graph it
            was made for. An optimizer that is given does the updates, and must be of the kind that was planned.
        devices: a torch device for each device of the plan; by default those that suit the plan's cluster.
        cuda_graphs: True always, False never, by default where they are faster.
        compile_kernels: whether kernels of several ops are compiled, by default on GPUs (on CPUs it takes seconds a
            kernel).
        verify: a step is run both ways here, and once more on the batch of the first call, and compared; the module is
            as it was afterwards. By default where there is memory for a copy; `step.verified` says what came of it.

    Raises:
        InvalidPlan: the plan is of another model or other inputs; plan again with these.
        InvalidSetting: an optimizer for an inference, or of another kind; too few devices.
        CannotRun: the module does what a step cannot carry (hooks, Python state, a step of its own); weights without
            values, an op without a kernel there, or results that differ (`verify`).
    """
    from loadmaster.runtime.proving import prove

    step, planning = bound(
        module,
        inputs,
        plan,
        training=training,
        optimizer=optimizer,
        devices=devices,
        cuda_graphs=cuda_graphs,
        compile_kernels=compile_kernels,
    )
    prove(step, inputs, planning, verify)
    return step


def bound(
    module: nn.Module,
    inputs: Any,
    plan: Planned,
    *,
    training: bool | None = None,
    optimizer: torch.optim.Optimizer | None = None,
    **settings: Any,
) -> tuple[AppliedStep, Planning]:
    """The step of `apply`, not compared with its module yet; CannotRun for what a step cannot carry. `settings`: of
    `build`."""
    module = getattr(module, "_orig_mod", module)  # inside what torch.compile returns
    refuse_autocast()
    if isinstance(module, nn.Module):
        refuse_module(module)
    captured, planning = match(module, inputs, plan, training, optimizer)
    with seen_inside(inputs):
        leaves = torch.utils._pytree.tree_leaves(inputs)
    for leaf in leaves:
        if isinstance(leaf, torch.Tensor):
            refuse_input(leaf, captured.training)
        elif tensors_within(leaf):
            what = f"an input is a {type(leaf).__name__}, which holds tensors that a step would not read again"
            raise CannotRun(what, "the inputs of the step", "give its tensors, or make it a dataclass or a dict")
    if optimizer is not None and captured.training:
        check_kind(optimizer, captured.optimizer)
        refuse_optimizer(optimizer, module)
    watched = watch(module, inputs, captured.training, bool(captured.graph.captured.get("gpu")))
    if watched.answers is not None:
        _refuse_answers_of_parts(plan, watched.answers)
    if watched.truths != len(captured.trace.truths):
        what = "what the model runs depends on values of its tensors that this plan's step does not compute"
        raise CannotRun(what, type(module).__name__, "use torch.where or masks in place of if")
    step = build(module, captured, planning, optimizer=optimizer, **settings)
    step.answers, step.words = watched.answers, frozenset(watched.words)
    step.guard = Guard(module, step.optimizer, captured.training, watched)
    return step, planning


def _refuse_answers_of_parts(plan: Planned, answers: Answers) -> None:
    """What is asked of a whole batch may have another answer for a microbatch or a share of it."""
    made = plan_file(plan).captured
    if pipelined_of(made) is not None or sharded_of(made) is not None:
        question = answers.questions[0]
        what = "the model looks at values of its inputs, which may differ from one part of a batch to the next"
        raise CannotRun(what, question.line, "use torch.where or masks in place of if, .item() and float()")


def match(
    module: nn.Module,
    inputs: Any,
    plan: Planned,
    training: bool | None = None,
    optimizer: torch.optim.Optimizer | None = None,
) -> tuple[CapturedStep, Planning]:
    """Captures the module the way the plan was made; refuses a plan of another model.

    A plan's file says how: training or not, by which optimizer, for a GPU or not. A Plan alone does not: then each way
    is captured in turn until a digest fits.
    """
    file = plan_file(plan)
    made = pipelined_of(file.captured)
    if made is not None:
        from loadmaster.runtime.pipelines import match_pipeline

        return match_pipeline(module, inputs, plan, file, made)
    tried = []
    for mode, kind, gpu in _ways(file.captured, training, optimizer):
        captured = capture_step(module, inputs, training=mode, optimizer=kind, target=Target(gpu=gpu))
        shares = sharded_of(file.captured)
        if shares is not None and shares.graph == captured.graph.digest:
            return _on_shares(captured, shares, plan, file)
        captured = _in_parts(captured, file)
        if captured.graph.digest == file.plan.graph_digest:
            return captured, planning_of(captured, plan if is_result(plan) else file.plan, file.cluster)
        tried.append(f"{'training with ' + kind if mode else 'inference'} has {captured.graph.digest}")
    what = f"the plan was made for another model, or for other inputs: digest {file.plan.graph_digest}"
    raise InvalidPlan(what, "; ".join(tried), _advice(file.captured))


def _on_shares(captured: CapturedStep, shares: Sharded, plan: Planned, file: PlanFile) -> tuple[CapturedStep, Planning]:
    """Every op on every device; the plan's own graph has collectives, which are sends and sums here."""
    from loadmaster.runtime.sharding import spread

    if file.cluster is None:
        raise InvalidPlan("the cluster that it was made for is not in its file", "plan", "plan again")
    refuse_truths(captured.trace)
    found = spread(captured, shares, file.cluster)
    return found.captured, Planning(found.plan, found.problem, None, plan.timeline if is_result(plan) else None)


def _in_parts(captured: CapturedStep, file: PlanFile) -> CapturedStep:
    """The step with the ops split that the plan has in parts; as it is where it has no such ops."""
    splits = splits_of(file.captured)
    if not splits:
        return captured
    from loadmaster.runtime.splitting import split_step

    try:
        return split_step(captured, splits)
    except InvalidSetting:
        return captured  # another model, which the digest will tell


def plan_file(plan: Planned) -> PlanFile:
    """A plan in whatever form with what is known of how it was made."""
    if isinstance(plan, Plan):
        return PlanFile(plan, {}, None)
    if is_result(plan):
        return PlanFile(plan.plan, plan.problem.source.captured, plan.problem.cluster)
    from loadmaster.files import load_plan_file

    return load_plan_file(plan)  # type: ignore[arg-type]


def _advice(captured: Mapping[str, Any]) -> str:
    if not captured:
        return "plan again with this module and these inputs"
    inputs = ", ".join(f"{i['name']} {i['dtype']}{i['shape']}" for i in captured.get("inputs", ()))
    made = f"the plan is of a step captured with {inputs} by torch {captured.get('torch', '?')}"
    older = "a file of an earlier version may have masks and copies that no real step has"
    return f"{made}, here is {torch.__version__}; {older}; plan again with this module and these inputs"


def is_result(plan: object) -> TypeGuard[Result]:
    """Whether it is a Result of `solve`, beside whose plan the problem is known."""
    return hasattr(plan, "timeline")


def _ways(
    captured: Mapping[str, Any], training: bool | None, optimizer: torch.optim.Optimizer | None
) -> list[tuple[bool, str, bool]]:
    """(training, optimizer, for a GPU) in which the model may have been captured."""
    if captured.get("mode") in ("train", "infer"):
        return [(captured["mode"] == "train", str(captured.get("optimizer", "adam")), bool(captured.get("gpu")))]
    modes = [True, False] if training is None else [training]
    kinds = ["adam", "sgd", "adamw", "none"] if optimizer is None else [type(optimizer).__name__.lower()]
    return [(mode, kind, gpu) for gpu in (False, True) for mode in modes for kind in (kinds if mode else ["adam"])]


def planning_of(captured: CapturedStep, plan: Result | Plan, cluster: Cluster | None = None) -> Planning:
    """With the timeline where the cluster is known."""
    if is_result(plan):
        return Planning(plan.plan, plan.problem, plan.timeline)
    assert isinstance(plan, Plan)
    if cluster is not None:
        from loadmaster.simulator import simulate

        problem = price(captured.graph, cluster)
        check(plan, problem)
        return Planning(plan, whole(problem, plan), simulate(problem, plan))
    count = plan.send_rank.shape[1] if plan.send_rank is not None else int(plan.device.max()) + 1
    problem = price(captured.graph, stand_in_cluster(count))
    own = replace(plan, cluster_digest=problem.cluster.digest)
    check(own, problem)
    return Planning(own, whole(problem, own), None)


def stand_in_cluster(count: int) -> Cluster:
    """Equal devices for a plan whose cluster is not known: a runtime needs only how many there are."""
    devices = tuple(Device(f"device:{i}", "device", 2**50, 1e12, 1e12) for i in range(count))
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
    compile_kernels: bool | None = None,
    throttle: Throttle | None = None,
    together: bool = True,
) -> AppliedStep:
    """The step of a captured module under a plan, bound to the module; in a run of several processes, this one's part
    of it.

    Args:
        module, captured, planning: as `match` returns them.
        optimizer, devices, cuda_graphs, compile_kernels: as in `apply`.
        throttle: slows messages between processes down to a link's rate, to try a plan for other wires.
        together: neighbouring updates are one call.
    """
    problem, plan = planning.problem, planning.plan
    rank = joined_group(problem.num_devices)
    events = schedule(problem, plan, planning.timeline)
    if rank is None:
        places = torch_devices(problem, devices)
    else:
        same_everywhere(_digests(captured, problem, events), rank, problem.cluster.device_names)
        places = places_of_ranks(problem.cluster, devices, rank)
        if places[rank].type == "cuda":
            torch.cuda.set_device(places[rank])
    if optimizer is not None:
        if not captured.training:
            raise InvalidSetting("an inference has no use for an optimizer", "optimizer", "leave it out")
        check_kind(optimizer, captured.optimizer)
    post = None if rank is None else Post(rank, places, throttle)
    if post is not None:
        refuse_truths(captured.trace)
        share_state(tensors_by_name(module), {})
    binding = Binding(captured, module)
    updates = _updates(captured, binding, problem, plan, places, optimizer, rank)
    try:
        if rank is None and len({place.type for place in places}) > 1:
            events = host_last(problem, plan, events, {d for d, place in enumerate(places) if place.type == "cpu"})
        wanted = [place.type != "cpu" if compile_kernels is None else compile_kernels for place in places]
        compiled = frozenset(device for device, compiles in enumerate(wanted) if compiles)
        backend = Backend(places, updates, post=post, together=together, compiled=compiled)
        program = write_program(captured, problem, plan, events, backend)
        return AppliedStep(program, binding, updates, problem, places, plan.device.tolist(), cuda_graphs, post)
    except BaseException:
        binding.give_back()
        updates.follow_weights()
        raise


def _digests(captured: CapturedStep, problem: Problem, events: Sequence[Event]) -> dict[str, str]:
    """What all processes of a run must share: messages are numbered by it."""
    order = hashlib.sha256("\n".join(map(repr, events)).encode()).hexdigest()
    return {"model": captured.graph.digest, "cluster": problem.cluster.digest, "plan": order}


def _updates(
    captured: CapturedStep,
    binding: Binding,
    problem: Problem,
    plan: Plan,
    places: Sequence[torch.device],
    optimizer: torch.optim.Optimizer | None,
    rank: int | None,
) -> Updates:
    """Weights go to their devices before their state is made beside them; of several processes each moves its own."""
    weights = binding.weights()
    named = {given.name: tensor for tensor, given in binding.given.items()}
    homes = homes_of(captured, problem, plan)
    for name in captured.gradients if captured.optimizer != "none" else ():
        home = homes.get(named[name])  # None: a weight of no bytes, which goes where it is read
        if home is not None and rank in (None, home):
            binding.move(named[name], places[home])
    own = [weights[name] for name in captured.learned]
    copies = {name: of for name, of in captured.copies.items() if name in captured.gradients}
    updates = Updates(optimizer or default_optimizer(captured.optimizer, own), weights, copies, captured.cuts)
    updates.follow_weights()
    lodged = lodged_of(captured, problem)
    for call in captured.calls if lodged else ():
        if isinstance(call, Update):
            for part, tensor in enumerate(call.reads[2:]):
                if tensor in lodged:
                    binding.tensors[tensor] = updates.lodging(call.weight, part)
                    if rank not in (None, homes[tensor]):
                        binding.move(tensor, torch.device("cpu"))  # another process has it
    return updates
