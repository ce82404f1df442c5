"""A step bound to a module: its weights and buffers on their planned devices, called like the module itself.

`Binding` knows what each tensor of the captured step is in the module and where it was before; `AppliedStep` is what
the user holds: call it with a batch, read its optimizer, `detach` to have the module back. On GPUs the first steps
decide whether CUDA graphs are used (`GraphRace`). Errors of torch become ours, with the op and the device.
"""

from __future__ import annotations

import traceback
from collections.abc import Callable, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from loadmaster.errors import CannotRun, DoesNotFit, LoadmasterError
from loadmaster.importers.torch.arguments import joined, split
from loadmaster.importers.torch.graph import CapturedStep
from loadmaster.importers.torch.step import Given
from loadmaster.runtime.batches import dtype_text, tensors_of_batch
from loadmaster.runtime.copies import Copies
from loadmaster.runtime.cuda_graphs import GraphRace
from loadmaster.runtime.devices import moved
from loadmaster.runtime.processes import Post, share, share_random, share_state

if TYPE_CHECKING:
    from collections.abc import Iterator

    from loadmaster.problem import Problem
    from loadmaster.runtime.guard import Guard
    from loadmaster.runtime.listing import Line
    from loadmaster.runtime.program import Program
    from loadmaster.runtime.questions import Answers
    from loadmaster.runtime.regions import RegionKernels
    from loadmaster.runtime.updates import Updates


class Binding:
    """What each tensor that a step is given is in the user's module, and where it was before.

    `move` puts one on its planned device in place, so that the module and its optimizer still hold it; `give_back`
    undoes all moves.
    """

    def __init__(self, captured: CapturedStep, module: nn.Module) -> None:
        self.captured, self.module = captured, module
        self.named = named = tensors_by_name(module)
        self.copies = Copies(captured.trace.given, named)
        placeholders = captured.trace.module.graph.find_nodes(op="placeholder")
        self.given: dict[int, Given] = {}  # tensor of the graph -> what it is
        self.number: dict[int, int] = {}  # tensor -> its number among the given ones
        self.tensors: dict[int, Tensor] = {}  # weights, buffers and constants
        numbers = {node: number for number, node in enumerate(placeholders)}
        for tensor, node in captured.given.items():
            if node not in numbers:
                self.tensors[tensor] = getattr(captured.trace.module, str(node.target))
                continue
            self.number[tensor], self.given[tensor] = numbers[node], captured.trace.given[numbers[node]]
            if self.given[tensor].role != "input":
                name = self.given[tensor].name
                copy = self.copies.weights.get(name)
                self.tensors[tensor] = _real(named[name], name) if copy is None else copy
        self.before = {tensor: value.device for tensor, value in self.tensors.items()}

    def is_input(self, tensor: int) -> bool:
        return tensor in self.given and self.given[tensor].role == "input"

    def weights(self) -> dict[str, nn.Parameter]:
        """Those with a gradient."""
        parameters = {**dict(self.module.named_parameters()), **self.copies.weights}
        return {name: parameters[name] for name in (*self.captured.learned, *self.captured.copies)}

    def move(self, tensor: int, device: torch.device) -> None:
        """Puts a tensor on a device in place, so that whoever holds it still does."""
        value = self.tensors[tensor]
        if value.device != device:
            value.data = value.data.to(device)

    def give_back(self) -> None:
        for tensor, device in self.before.items():
            self.move(tensor, device)


def tensors_by_name(module: nn.Module) -> dict[str, Tensor]:
    """Its parameters and buffers."""
    return {**dict[str, Tensor](module.named_parameters()), **dict(module.named_buffers())}


def _memory(tensor: Tensor) -> int:
    return tensor.untyped_storage().data_ptr()


def _real(tensor: Tensor, name: str) -> Tensor:
    if isinstance(tensor, torch._subclasses.FakeTensor) or tensor.device.type == "meta":
        what = f"'{name}' has no values: the module was built without memory"
        raise CannotRun(what, "apply", "build the module with real weights")
    return tensor


class AppliedStep:
    """One step of a module as planned: call it with a batch, as the module would be called.

    A training step returns its loss and updates the module's weights; an inference returns what the module returns. The
    weights stay in the module, on the devices of the plan, until `detach`. In a run of several processes each holds its
    own part.
    """

    def __init__(
        self,
        program: Program,
        binding: Binding,
        updates: Updates,
        problem: Problem,
        devices: Sequence[torch.device],
        placement: Sequence[int],
        cuda_graphs: bool | None = None,
        post: Post | None = None,
    ) -> None:
        self.post = post
        self.placement = tuple(placement)  # [ops] device of each op of the problem
        self.program, self.binding, self.updates, self.problem = program, binding, updates, problem
        self.devices = tuple(devices)
        self.captured = binding.captured
        self.steps, self._detached = 0, False
        self.guard: Guard | None = None  # looks before each step whether the module is as it was captured
        self.words: frozenset[str] = frozenset()  # of the model's own code
        self.answers: Answers | None = None  # to what the model asks of its inputs
        self.verified = "not verified"  # or what came of it; why not
        self.unproven: Callable[[AppliedStep, Any], None] | None = None  # proves the next call's batch, once
        self._inputs = [
            (index, binding.number[tensor], self.devices[device])
            for index, (tensor, device) in enumerate(program.residents)
            if binding.is_input(tensor)
        ]
        self._residents: list[Any] = [None] * len(program.residents)
        self._replicas: list[tuple[int, Tensor, int, torch.device]] = []
        self._place_residents()
        self.updates.note()
        self._pace = GraphRace(self, cuda_graphs) if cuda_graphs is not False and self._on_gpu else None

    @property
    def _on_gpu(self) -> bool:
        own = self.devices if self.post is None else (self.post.device,)
        return any(device.type == "cuda" for device in own)

    @property
    def kernels(self) -> RegionKernels:
        """Those of several ops: how many there are, and how many run op by op."""
        return self.program.kernels

    @property
    def optimizer(self) -> torch.optim.Optimizer | None:
        """Whose settings and state the updates use."""
        return self.updates.optimizer

    def _place_residents(self) -> None:
        """The first place of a resident is where the module keeps it; the others hold copies that follow it."""
        seen: dict[int, torch.device] = {}
        self._replicas = []
        sent = self.program.written | self.program.lodged
        for index, (tensor, number) in enumerate(self.program.residents):
            if self.binding.is_input(tensor):
                continue
            device, value = self.devices[number], self.binding.tensors[tensor]
            if tensor not in seen:
                self.binding.move(tensor, device)
                seen[tensor] = device
                if device.type == "cpu" and self.post is None and self._on_gpu and tensor in sent:
                    value.data = value.data.pin_memory()  # a GPU reads it in every step; whoever writes it waits
            self._residents[index] = moved(value.detach(), device)
            if seen[tensor] != device:
                self._replicas.append((index, value, value._version, device))
        self._placed = [self.binding.tensors[tensor] for tensor in seen]
        self._memory = list(map(Tensor.data_ptr, self._placed))
        written = [tensor for tensor in seen if tensor in self.program.written and self.binding.tensors[tensor].numel()]
        self._overwritten = {_memory(self.binding.tensors[tensor]): tensor for tensor in written}
        self._forms = [(value.shape, value.dtype) for value in self._placed]

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        if self._detached:
            what = "the step was taken off its module by detach()"
            raise CannotRun(what, "the applied step", "apply the plan again: lm.apply(module, inputs, plan)")
        if self.guard is not None:
            self.guard.check()
        if self.answers is not None:
            self._ask(self.answers, args, kwargs)
        if self.unproven is not None:
            self._given(args, kwargs)
            prove, self.unproven = self.unproven, None
            prove(self, joined(args, kwargs))
        return self.compute(args, kwargs)

    def _ask(self, answers: Answers, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> None:
        given = self.captured.trace.given
        answers.check({given[number].name: value for number, value in self._given(args, kwargs).items()})

    def compute(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
        """One step, without looking first whether the module is as it was captured."""
        self._follow()
        self._bind(args, kwargs)
        self.binding.copies.follow()
        restoring = self.steps == 0 or bool(self.captured.trace.truths)
        with self._guarded(restoring), torch.no_grad():
            made = self._run() if self.post is None else self._run_together(self.post)
            self._refuse_other_truths(made)
        self.steps += 1
        self.binding.copies.note()
        self.updates.stepped()
        result = self._result(made)
        self._let_go()
        return result

    def _refuse_other_truths(self, made: Sequence[Tensor]) -> None:
        """Where the module would have run other ops than its capture did."""
        truths = self.captured.trace.truths
        first = len(self.captured.outputs) - len(truths)
        for value, (before, line) in zip(made[first:], truths, strict=False):
            if bool(value) != before:
                what = f"the model asks whether something holds: it was {before} at capture and is {not before} now"
                fix = "the module is as it was before the step; run this batch without the plan"
                raise CannotRun(what, line, fix)

    def _follow(self) -> None:
        """Takes over what was loaded into the optimizer, and memory that was put in a tensor's place by `.data`."""
        followed = self.updates.follow_optimizer()
        if self._memory != list(map(Tensor.data_ptr, self._placed)):
            self._check_placed()
            self._place_residents()
            followed = True
        if followed and self._pace is not None:
            self._pace.recorded = None

    def _check_placed(self) -> None:
        for value, (shape, dtype) in zip(self._placed, self._forms, strict=True):
            if value.shape != shape or value.dtype != dtype:
                name = next(n for n, one in tensors_by_name(self.binding.module).items() if one is value)
                form = f"{dtype_text(value.dtype)}{list(value.shape)}"
                what = f"'{name}' is {form}, and was {dtype_text(dtype)}{list(shape)} at capture"
                raise CannotRun(what, f"'{name}'", "put it back, or plan and apply again for this type")

    def _run(self) -> list[Tensor]:
        run = self.program.run if self._pace is None or self.updates.gradients is not None else self._pace.run
        return run(self._residents)

    def _run_together(self, post: Post) -> list[Tensor]:
        """This process's part; what the step returns is then shared with all."""
        last = self.program.last_random
        if last is not None:
            share_random(0, post)
        mine = iter(self._run())
        post.finish()
        if last is not None:
            share_random(last, post)
        made = []
        for tensor, device in self.program.outputs:
            form = self.captured.forms[tensor]
            value = next(mine) if device == post.rank else torch.empty(form.shape, dtype=form.dtype, device=post.device)
            made.append(share(value.cpu() if post.mixed else value, device))
        return made

    @property
    def local(self) -> frozenset[str] | None:
        """Names of the weights and buffers that are this process's to keep; None: all."""
        if self.post is None:
            return None
        homes = self._homes()
        return frozenset(name for name, device in homes.items() if device == self.post.rank)

    def _homes(self) -> dict[str, int]:
        """The device of each weight and buffer that the step overwrites, or that lives where a stay is."""
        homes = self.program.homes
        return {given.name: homes[tensor] for tensor, given in self.binding.given.items() if tensor in homes}

    def _result(self, made: Sequence[Tensor]) -> Any:
        if not self.captured.training:
            assert self.captured.trace.result is not None
            return self.captured.trace.result.filled(made)
        if self.captured.optimizer == "none":
            self._accumulate(made)
        return made[0]

    def _accumulate(self, made: Sequence[Tensor]) -> None:
        """Gradients to `.grad` as `backward()` leaves them: each in memory of its own, in the order of its weight."""
        held = {_memory(value) for value in (made[0], *self._residents) if isinstance(value, Tensor)}
        for name, gradient in zip(self.captured.gradients, made[len(self.captured.outputs) :], strict=True):
            weight = self.binding.weights()[name]
            if weight.grad is not None:
                with torch.no_grad():
                    weight.grad.add_(gradient)
            elif _memory(gradient) in held or gradient.stride() != weight.stride():
                weight.grad = torch.empty_like(weight, requires_grad=False).copy_(gradient)
            else:
                weight.grad = gradient
                held.add(_memory(gradient))

    def residents(self) -> Sequence[Any]:
        """What the program is called with, bound to the last batch."""
        return self._residents

    def bind(self, inputs: Any) -> None:
        """Takes a batch without running: `residents` are complete until the next call."""
        self._bind(*split(inputs))

    def _bind(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> None:
        given = self._given(args, kwargs)
        for index, number, device in self._inputs:
            self._residents[index] = moved(given[number], device)
        for place, (index, value, version, device) in enumerate(self._replicas):
            if value._version != version:  # somebody loaded other weights
                self._residents[index] = moved(value.detach(), device)
                self._replicas[place] = (index, value, value._version, device)

    def given_tensors(self, inputs: Any) -> dict[int, Tensor]:
        """The tensors of a batch by their number among the given ones."""
        return self._given(*split(inputs))

    def _given(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> dict[int, Tensor]:
        found = tensors_of_batch(self.captured, self.binding.named, args, kwargs, self.words)
        for number, value in found.items():
            given = self.captured.trace.given[number]
            if given.role == "input" and _memory(value) in self._overwritten:
                own = self.binding.given[self._overwritten[_memory(value)]].name
                what = f"{given.name} shares memory with '{own}', which the step writes"
                raise CannotRun(what, "the inputs of the step", "give it a memory of its own: .clone()")
        return found

    def _let_go(self) -> None:
        for index, _, _ in self._inputs:
            self._residents[index] = None

    @contextmanager
    def _guarded(self, restoring: bool) -> Iterator[None]:
        """Says where in the model a failure was; of the first step, puts back what it had overwritten."""
        written = self._written() if restoring else []
        kept = [value.detach().to("cpu", copy=True) for value in written]
        known = {id(value) for value in self.updates.state()} if restoring else set()
        try:
            yield
        except Exception as error:
            with torch.no_grad():
                for value, old in zip(written, kept, strict=True):
                    value.copy_(old)
                for state in self.updates.state() if restoring else ():
                    if id(state) not in known:
                        state.zero_()
            raise self._explained(error, restoring) from error

    def _written(self) -> list[Tensor]:
        values = [
            self.binding.tensors[tensor] for tensor in sorted(self.program.written) if tensor in self.binding.tensors
        ]
        return [*values, *self.updates.state()]

    def _explained(self, error: Exception, restored: bool) -> LoadmasterError:
        if isinstance(error, LoadmasterError):
            return error
        where = _where(error, self.program, self.problem)
        reason = (str(error).strip() or type(error).__name__).splitlines()[0]
        state = "the module is as it was before the step" if restored else "the module is in the middle of a step"
        if isinstance(error, (torch.OutOfMemoryError, MemoryError)) or "allocate memory" in reason:
            fix = f"{state}; plan with a smaller --memory-limit, or a smaller batch"
            return DoesNotFit(f"out of memory: {reason}", where, fix)
        return CannotRun(f"an op failed: {reason}", where, f"{state}; place this op on another device")

    def detach(self) -> nn.Module:
        """Gives the weights back to where they were before, in every process of several; the step must not be called
        afterwards."""
        homes = self._homes()
        if self.post is not None:
            share_state(tensors_by_name(self.binding.module), homes)
        self.binding.copies.give_back(None if self.post is None else homes)
        self.updates.give_back(self.captured.cuts)
        self.binding.give_back()
        self.updates.follow_weights()
        self._residents, self._detached = [], True
        return self.binding.module

    def __repr__(self) -> str:
        kind = "training" if self.captured.training else "inference"
        where = ", ".join(map(str, dict.fromkeys(self.devices)))
        fused = f", {self.kernels}" if self.kernels.total else ""
        step = f"AppliedStep({self.captured.graph.name!r}, {kind}, {self.problem.num_ops} ops on {where}{fused})"
        return f"{self.verified}\n{step}" if self.verified.startswith("not verified") else step


def _where(error: Exception, program: Program, problem: Problem) -> str:
    """The op, its module, its line and its device, by the line of the program that failed."""
    frames = [f.lineno for f in traceback.extract_tb(error.__traceback__) if f.filename.startswith("<loadmaster step")]
    line: Line | None = program.lines.get(frames[0] or 0) if frames else None
    if line is None:
        return ""
    device = problem.cluster.device_names[line.device]
    if line.op < 0:
        return f"a send to '{device}'"
    graph = problem.graph
    parts = [f"op '{graph.op_name[line.op]}'", graph.scope[line.op], graph.source[line.op], f"on '{device}'"]
    return ", ".join(part for part in parts if part)
