"""Plans of pipelines on real devices: found for a module and a whole batch, and held against the ordinary step.

The module is captured for one microbatch, cut into the plan's stages and repeated (`microbatches`); what comes out is
run like any plan. The reference is the same module run microbatch by microbatch, gradients averaged.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from loadmaster.cost import price
from loadmaster.errors import CannotRun, InvalidPlan
from loadmaster.importers.torch.arguments import split
from loadmaster.importers.torch.export import capture_step, switched
from loadmaster.importers.torch.graph import CapturedStep
from loadmaster.importers.torch.step import Target, loss_of
from loadmaster.pipelines.microbatched import coupled_ops
from loadmaster.pipelines.pipelined import Pipelined
from loadmaster.plans import check
from loadmaster.runtime.apply import Planning, is_result
from loadmaster.runtime.differences import Values
from loadmaster.runtime.microbatches import MICROBATCH, draws, microbatch_of, unrolled
from loadmaster.runtime.questions import refuse_truths
from loadmaster.runtime.verify import Verification, after_update, of_capture, twin, verify_step
from loadmaster.simulator import simulate

if TYPE_CHECKING:
    from loadmaster.files.plan import PlanFile
    from loadmaster.runtime.apply import Planned
    from loadmaster.runtime.execute import AppliedStep


CALLS = "its calls in the same order on one device (it draws random numbers)"


def match_pipeline(
    module: nn.Module, inputs: Any, plan: Planned, file: PlanFile, made: Pipelined
) -> tuple[CapturedStep, Planning]:
    """The module's step over a whole batch in the order of the pipeline. `inputs`: all rows of the batch."""
    if is_result(plan):
        problem, line = plan.problem, plan.timeline
    elif file.graph is None or file.cluster is None:
        raise InvalidPlan("the graph of its actions is not in its file", "plan", "plan again")
    else:
        problem = price(file.graph, file.cluster)
        check(file.plan, problem)
        line = simulate(problem, file.plan)
    microbatch, names = microbatch_of(inputs, made, file.captured.get("inputs", ()))
    target = Target(gpu=bool(file.captured.get("gpu")))
    training, kind = file.captured.get("mode") == "train", str(file.captured.get("optimizer", "adam"))
    captured = capture_step(module, microbatch, training=training, optimizer=kind, target=target)
    refuse_truths(captured.trace)
    batch = [number for number, given in enumerate(captured.trace.given) if given.name in names]
    found = unrolled(captured, made, problem, file.plan, line, batch)
    return found.captured, Planning(found.plan, found.problem, None, line)


def verify_pipeline(step: AppliedStep, inputs: Any, made: Pipelined) -> Verification:
    """Against the module on the whole batch. A model that looks at several samples at once is held against itself on
    one microbatch after another, one that draws random numbers against its captured calls alone: microbatches draw
    them in another order."""
    if draws(step.captured):
        return verify_step(step, inputs, of_capture, CALLS)
    if coupled_ops(step.problem):
        return verify_step(step, inputs, partial(in_turn, made), "the module on one microbatch after another")
    return verify_step(step, inputs, None, "the module on the whole batch")


def in_turn(made: Pipelined, step: AppliedStep, inputs: Any) -> Values:
    """The module on one microbatch after another, gradients added up and divided by their number, and one update."""
    module, optimizer = twin(step)
    if not step.captured.training:
        raise CannotRun("an inference of a model that couples samples", "verify", "leave --verify out")
    count, losses, described = made.microbatches, [], step.captured.graph.captured[MICROBATCH]
    with switched(module, training=True), torch.enable_grad():
        for number in range(count):
            args, kwargs = split(microbatch_of(inputs, made, described, number)[0])
            loss = loss_of(module(*args, **kwargs), type(module).__name__)
            loss.backward()  # type: ignore[no-untyped-call]
            losses.append(loss.detach())
    weights = dict(module.named_parameters())
    for name in step.captured.learned:
        gradient = weights[name].grad
        assert gradient is not None
        weights[name].grad = gradient.div(count)
    gradients = {name: weights[name].grad for name in step.captured.learned}
    return after_update(module, optimizer, [_sum(losses) / count], gradients)


def _sum(losses: list[Tensor]) -> Tensor:
    total = losses[0]
    for loss in losses[1:]:
        total = total + loss
    return total
