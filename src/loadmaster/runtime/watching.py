"""What forward and backward do besides ops on tensors, found by running them once on a copy without memory.

The copy has the module's structure and Python state; its tensors are fake. What differs in that state afterwards would
stand still in a step: counters, lists, reassigned buffers, random numbers of Python, module-level variables. Calls to
clocks and files are seen as they are made, with the line of the model's code; so are random ops that a checkpoint
draws a second time. The names that the code mentions tell the guard which attributes matter later.
"""

from __future__ import annotations

import dis
import gc
import os
import random
import sys
import sysconfig
import warnings
from collections.abc import Callable, Collection, Iterator, MutableMapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from types import CodeType, FrameType, FunctionType, ModuleType, SimpleNamespace
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch._dispatch.python import enable_python_dispatcher
from torch._subclasses.fake_tensor import FakeTensor
from torch.utils import _pytree as pytree
from torch.utils._python_dispatch import TorchDispatchMode

from loadmaster.errors import CannotRun, LoadmasterError
from loadmaster.importers.torch.arguments import as_arguments, seen_inside, split
from loadmaster.importers.torch.caches import Surroundings
from loadmaster.importers.torch.export import switched
from loadmaster.importers.torch.interrupts import waiting_interrupts
from loadmaster.importers.torch.step import Target, as_run, fake_mode, loss_of
from loadmaster.importers.torch.twin import Twins
from loadmaster.importers.torch.values import ValueMode, fixed_draws
from loadmaster.runtime.python_state import (
    PLAIN,
    STREAMS,
    State,
    memory_of,
    roots_of,
    slots_of,
    state_of,
    tensors_within,
)
from loadmaster.runtime.questions import Answers

_TORCH, _STANDARD = str(Path(torch.__file__).parent), sysconfig.get_path("stdlib")
_SITE, _HERE = sysconfig.get_path("purelib"), str(Path(__file__).parents[1])
_OWN = (str(Path(_HERE, "runtime")), str(Path(_HERE, "importers")))
_CHECKPOINT = str(Path(_TORCH, "utils", "checkpoint.py"))
_CLOCKS = ("time", "time_ns", "perf_counter", "perf_counter_ns", "monotonic", "monotonic_ns", "process_time")
_SEEDING = ("manual_seed", "seed", "set_rng_state", "fork_rng", "set_state")
_LOOKS = (torch.ops.aten._local_scalar_dense.default, torch.ops.aten.is_nonzero.default, torch.ops.aten.equal.default)
_ASSERTIONS = (torch.ops.aten._assert_async.default, torch.ops.aten._assert_async.msg)
_WARNING_ONLY = ("warn_if_padding_and_no_attention_mask",)  # functions of transformers that look, and only warn
SETTLES = "only the first call does: call the module once in this mode, then plan and apply"
_ENVIRONMENT = {"environ", "getenv"}
_OF_GLOBALS = ("LOAD_GLOBAL", "LOAD_NAME", "STORE_GLOBAL", "DELETE_GLOBAL")
_WHOLE = ("__dict__", "vars", "getattr")  # code that has these may read any attribute


@dataclass
class Watched:
    """What was seen while a module ran.

    Attributes:
        names: that its code mentions; with `any_name` any attribute may be read.
        words: the same, of the user's own files.
        variables: of the user's own files and enclosing functions: (where, holder, name); a holder is a dict or a cell.
        notes: calls that a step would not make, as (what, line).
        draws_again: a checkpoint drew random numbers a second time.
        backward_inside: forward, or the backward of a Function, left gradients itself.
        outside: 0 and the sizes of a tensor that the loss depends on, needs a gradient and is no Parameter.
        generators: ops drew from a generator of their own.
        asserts: torch._assert_async was called.
        asked: lines that look at values other than those of inputs.
        truths: how many truth values it looked at that come of more than inputs; the step computes them, too.
        answers: what was asked of the inputs.
    """

    names: set[str] = field(default_factory=set)
    words: set[str] = field(default_factory=set)
    any_name: bool = False
    variables: list[tuple[str, Any, str]] = field(default_factory=list)
    notes: list[tuple[str, str]] = field(default_factory=list)
    draws_again: bool = False
    backward_inside: bool = False
    outside: list[int] = field(default_factory=list)
    generators: bool = False
    asserts: bool = False
    asked: list[str] = field(default_factory=list)
    truths: int = 0
    answers: Answers | None = None
    loss: type = Tensor


def watch(module: nn.Module, inputs: Any, training: bool, gpu: bool = False) -> Watched:
    """Runs a copy without memory, and refuses a module that does what a step cannot carry."""
    mode, name = fake_mode(), type(module).__name__
    given = as_arguments(inputs, name)
    around = Surroundings(module, mode.comes_of_given)
    with waiting_interrupts(), seen_inside(given), fixed_draws(), around:
        twin, twins = _twin(module, mode)
        fakes = pytree.tree_map_only(Tensor, twins, given)
        watcher = _Watcher()
        watcher.look_at_classes(twin)
        before, numbers = state_of(twin), _numbers()
        with switched(twin, training), _quietly(name):
            _run(twin, fakes, mode, training, gpu, watcher)
        after = state_of(twin)
        seen = watcher.seen
        _sort_questions(seen, mode, watcher.draws.idle, _names_of(twin, fakes))
        drawn = [
            one for one, old, new in zip(("random", "numpy.random"), numbers, _numbers(), strict=True) if old != new
        ]
        if after != before:
            _refuse_changes(before, after, name, again=lambda: _after_another(twin, fakes, mode, training, gpu))
        watcher.refuse_changed_variables()
    _refuse_notes(seen, drawn, name)
    if around.stale:
        what = f"what '{around.stale[0]}' remembers depends on weights or inputs, and a step computes it anew"
        raise CannotRun(what, around.stale[0], "leave functools.lru_cache out there")
    return seen


def _names_of(twin: nn.Module, fakes: Any) -> dict[int, str]:
    """Fake tensors of inputs, by id, which are none of the module's own -> how a capture calls them."""
    own = set(map(id, tensors_within(twin)))
    names: dict[int, str] = {}
    for path, leaf in pytree.tree_flatten_with_path(fakes)[0]:
        if isinstance(leaf, Tensor) and id(leaf) not in own:
            names.setdefault(id(leaf), f"input{pytree.keystr(path)}")
    return names


def _sort_questions(seen: Watched, mode: ValueMode, idle: set[str], names: dict[int, str]) -> None:
    """Those of inputs can be asked again of every batch; the others are a reason to refuse."""
    asked = [one for one in mode.questions if one.line and one.line not in idle]
    again = [one for one in asked if one.is_of(names)]
    computed = [one for one in asked if one.truth(names) is not None]
    seen.truths = len([one for one in mode.questions if one.line and one.truth(names) is not None])
    seen.asked = sorted({one.line for one in asked if one not in again and one not in computed})
    seen.answers = Answers(mode, again, names) if again else None


@contextmanager
def _quietly(name: str) -> Iterator[None]:
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    except LoadmasterError:
        raise
    except Exception as error:
        reason = (str(error).strip() or type(error).__name__).splitlines()[0]
        fix = "check that the module runs eagerly on these inputs, and that copy.deepcopy(module) does"
        raise CannotRun(f"{name} could not be run on a copy without memory: {reason}", name, fix) from error


def _run(twin: nn.Module, fakes: Any, mode: Any, training: bool, gpu: bool, watcher: _Watcher) -> None:
    args, kwargs = split(fakes)
    held = {id(tensor) for tensor in (*tensors_within(twin), *pytree.tree_leaves(fakes)) if isinstance(tensor, Tensor)}
    grad = torch.enable_grad() if training else torch.no_grad()
    run = as_run(mode, Target(gpu=gpu))
    with mode, enable_python_dispatcher(), run, grad, watcher.draws, watcher.watching():
        result = twin(*args, **kwargs)
        if training:
            loss = loss_of(result, type(twin).__name__)
            watcher.seen.loss = type(result if isinstance(result, Tensor) else loss)
            if loss.requires_grad:
                watcher.seen.outside = _learns_outside(loss, twin, held)
                leaves = [weight for weight in twin.parameters() if weight.requires_grad]
                torch.autograd.grad(loss, leaves, allow_unused=True)
        watcher.seen.backward_inside = any(weight.grad is not None for weight in twin.parameters())


def _learns_outside(loss: Tensor, twin: nn.Module, held: Collection[int]) -> list[int]:
    """Sizes of a tensor that gets a gradient, is no Parameter of the module, and was there before the call: somebody
    could look at its gradient. `held`: of the module and the inputs, by id; what is real is of neither."""
    own, seen, todo = set(map(id, twin.parameters())), set(), [loss.grad_fn]
    while todo:
        node = todo.pop()
        if node is None or node in seen:
            continue
        seen.add(node)
        weight = getattr(node, "variable", None)
        held_so = id(weight) in held or not isinstance(weight, FakeTensor)
        if isinstance(weight, Tensor) and id(weight) not in own and held_so:
            return [0, *weight.shape]
        todo += [before for before, _ in node.next_functions]
    return []


def _twin(module: nn.Module, mode: Any) -> tuple[nn.Module, Any]:
    """A copy whose tensors have no memory; the values of small ones are known, as when a step is traced."""
    made: dict[int, Tensor] = {}

    def fake(real: Tensor) -> Tensor:
        if id(real) not in made:
            with mode:
                twin = torch.empty_strided(real.shape, real.stride(), dtype=real.dtype, device="cpu")
            mode.know(twin, real.detach())
            if isinstance(real, nn.Parameter):
                twin = nn.Parameter(twin, requires_grad=real.requires_grad)
                mode.know(twin, real.detach())
            elif real.is_leaf and real.requires_grad:
                twin.requires_grad_()
            made[id(real)] = twin
        return made[id(real)]

    return Twins(fake)(module), fake


def _numbers() -> tuple[Any, Any]:
    return random.getstate(), str(np.random.get_state())


def _after_another(twin: nn.Module, fakes: Any, mode: Any, training: bool, gpu: bool) -> State:
    """What the next call leaves; {} where it fails."""
    held = tensors_within(twin)  # whose ids no other tensor must get
    with suppress(Exception):
        with switched(twin, training):
            _run(twin, fakes, mode, training, gpu, _Watcher())
        return state_of(twin) if held else {}
    return {}


def _refuse_changes(before: State, after: State, name: str, again: Callable[[], State]) -> None:
    path = next(path for path in {**before, **after} if before.get(path) != after.get(path))
    if path.startswith("buffer "):
        what = f"forward puts another tensor in the place of {path}, and a step would keep the first"
        own = path.split("'")[1].rpartition(".")[2]
        fix = f"write into it: self.{own}.copy_(…) instead of self.{own} = …"
    else:
        what = f"forward changes {path} of {name}, and a step would not: it is Python's, not a tensor's"
        fix = "keep it in a buffer that forward writes in place, or change it outside of the step and plan again"
    raise CannotRun(what, path, SETTLES if again() == after else fix)


def _refuse_notes(seen: Watched, drawn: list[str], name: str) -> None:
    if seen.draws_again:
        what = "a checkpoint runs ops that draw random numbers a second time, and in a step they would draw others"
        fix = "leave torch.utils.checkpoint out (a plan recomputes by itself), or set the dropout inside it to 0"
        raise CannotRun(what, f"{name}, torch.utils.checkpoint", fix)
    if seen.backward_inside:
        what = "the model calls backward() itself, and a step has the gradients of the loss that it returns alone"
        fix = "return that loss with the others, as one sum; in a Function use torch.autograd.grad"
        raise CannotRun(what, name, fix)
    if seen.outside:
        what = f"the loss has a gradient for a tensor of shape {seen.outside[1:]} that is no Parameter of {name}"
        fix = "make it a Parameter of the module, or detach it: no step would fill its .grad"
        raise CannotRun(what, name, fix)
    if seen.asserts:
        what = "forward asserts something of its tensors' values, which no step looks at"
        raise CannotRun(what, f"{name}, torch._assert_async", "check it outside of the step, or leave it out")
    if seen.generators:
        fix = "draw from torch's own generator"
        raise CannotRun(f"{name} draws from a torch.Generator of its own", name, fix)
    for what, line in seen.notes:
        raise CannotRun(f"forward {what}, and a step would keep what it was", line, "give it to the module as an input")
    for source in drawn:
        what = f"forward draws numbers of {source}, which a step would repeat from its capture"
        raise CannotRun(what, name, "draw them by torch.rand, or give them to the module as an input")
    if seen.asked:
        what = f"what {name} runs depends on values of its tensors, and a step always runs the same ops"
        raise CannotRun(what, ", ".join(seen.asked[:3]), "use torch.where or masks in place of if, .item() and float()")
    if issubclass(seen.loss, Tensor) and seen.loss.backward is not Tensor.backward:
        what = f"the loss is a {seen.loss.__name__}, whose own backward() would not run in a step"
        raise CannotRun(what, f"{seen.loss.__name__}.backward", "return a plain tensor")


class _Draws(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Sees random ops that run inside a checkpoint's second run, or draw from a generator of their own."""

    def __init__(self, seen: Watched) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.seen = seen
        self.idle: set[str] = set()  # lines that look at a value, and run the same ops whatever it is

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func in _LOOKS:
            self._note_idle(sys._getframe(1))
        self.seen.asserts |= func in _ASSERTIONS
        if torch.Tag.nondeterministic_seeded in func.tags:
            self.seen.draws_again |= _inside_checkpoint(sys._getframe(1))
            self.seen.generators |= any(isinstance(value, torch.Generator) for value in (kwargs or {}).values())
        return func(*args, **(kwargs or {}))

    def _note_idle(self, frame: FrameType | None) -> None:
        while frame is not None and (
            _is_librarys(frame.f_code.co_filename) or frame.f_code.co_filename.startswith(_OWN)
        ):
            frame = frame.f_back
        if frame is None:
            return
        part = frame.f_locals.get("self")
        rate = getattr(part, "layerdrop", getattr(getattr(part, "config", None), "layerdrop", 1))
        never_drops = "layerdrop" in frame.f_code.co_names and not rate
        if frame.f_code.co_name in _WARNING_ONLY or never_drops:
            self.idle.add(f"{Path(frame.f_code.co_filename).name}:{frame.f_lineno}")


def _inside_checkpoint(frame: FrameType | None) -> bool:
    while frame is not None:
        if frame.f_code.co_filename == _CHECKPOINT and frame.f_code.co_name == "recompute_fn":
            return not _keeps_state(frame)
        frame = frame.f_back
    return False


def _keeps_state(frame: FrameType) -> bool:
    """Whether it draws anew in eager torch, too."""
    return frame.f_locals.get("preserve_rng_state") is False


class _Watcher:
    """Notes every function that runs while it is `watching`: what its code mentions, and what it calls."""

    def __init__(self) -> None:
        self.seen = Watched()
        self.draws = _Draws(self.seen)
        self._codes: set[CodeType] = set()
        self._classes: set[type] = set()
        self._kept: list[Any] = []

    @contextmanager
    def watching(self) -> Iterator[None]:
        callbacks, gc.callbacks[:] = list(gc.callbacks), []  # other tools' code, such as a timer of collections
        before = sys.getprofile()
        sys.setprofile(self._note)
        try:
            yield
        finally:
            sys.setprofile(before)
            gc.callbacks[:] = callbacks

    def _note(self, frame: FrameType, event: str, called: Any) -> None:
        if event == "call":
            if frame.f_code not in self._codes:
                self._codes.add(frame.f_code)
                self._read(frame)
            if frame.f_code.co_name in _SEEDING and frame.f_code.co_filename.startswith(_TORCH):
                self._say("sets torch's random state", frame, checkpoints=False)
        elif event == "c_call":
            self._called(frame, called)

    def _called(self, frame: FrameType, called: Any) -> None:
        name, owner = getattr(called, "__name__", ""), getattr(called, "__module__", None)
        clock = name in _CLOCKS and owner == "time"
        if clock or (name in ("now", "utcnow", "today") and isinstance(called.__self__, type)):
            self._say("reads a clock", frame)
        elif name == "urandom" or owner == "secrets":
            self._say("draws random numbers of the machine", frame)
        elif name == "open" and owner in ("io", "_io", "posix"):
            self._say("reads a file", frame)
        elif name in _SEEDING and isinstance(getattr(called, "__self__", None), torch.Generator):
            self._say("sets a torch.Generator", frame, checkpoints=False)

    def _say(self, what: str, frame: FrameType, checkpoints: bool = True) -> None:
        """Where the model's own code asks for it; what torch and we do is none of the model's."""
        at: FrameType | None = frame
        while at is not None:
            file = at.f_code.co_filename
            if file.startswith(_HERE) or (file == _CHECKPOINT and not checkpoints):
                return
            if not _is_librarys(file):
                self.seen.notes.append((what, f"{Path(file).name}:{at.f_lineno}"))
                return
            at = at.f_back

    def _read(self, frame: FrameType) -> None:
        """What code mentions; of the user's own files, also the variables around it, as they are before it runs."""
        code, file = frame.f_code, frame.f_code.co_filename
        if file.startswith(_HERE):
            return
        words = [word for word in code.co_consts if isinstance(word, str) and word.isidentifier()]
        self.seen.names.update(code.co_names, words)
        if _is_librarys(file) or file.startswith(_SITE):
            return
        self.seen.any_name |= any(name in _WHOLE for name in code.co_names)
        self.seen.words.update(code.co_names, words)
        for name in _globals_of(code) & frame.f_globals.keys():
            self._keep(f"'{name}' of {Path(file).name}", frame.f_globals, name, code.co_names)
        for cell in _cells(code):
            self._keep(f"'{cell[0]}' of the function around {code.co_name}", cell[1], cell[0], code.co_names)
        if not _ENVIRONMENT.isdisjoint(code.co_names):
            self._keep("os.environ", vars(os.environ), "_data")
        kind = type(frame.f_locals.get(code.co_varnames[0])) if code.co_argcount else type(None)  # whose method it is
        if _is_users(kind) and not issubclass(kind, nn.Module):
            self._keep_class(kind)

    def look_at_classes(self, module: nn.Module) -> None:
        """What the user's own classes of layers hold themselves."""
        kinds = {kind for part in module.modules() for kind in type(part).__mro__ if _is_users(kind)}
        for kind in sorted(kinds, key=lambda one: one.__qualname__):
            self._keep_class(kind)

    def _keep_class(self, kind: type) -> None:
        if kind not in self._classes:
            self._classes.add(kind)
            self._keep(f"'{kind.__name__}' (an attribute of the class)", {kind.__name__: kind}, kind.__name__)

    def _keep(self, where: str, holder: Any, name: str, attributes: Collection[str] = ()) -> None:
        """`attributes`: that the code mentions, which may be those of a module of Python."""
        if any(one is holder and known == name for _, one, known in self.seen.variables):
            return
        value = holder[name] if isinstance(holder, dict) else holder.cell_contents
        if isinstance(value, ModuleType):
            for part in attributes if _is_users_module(value) and attributes else ():
                if part in vars(value):
                    self._keep(f"'{part}' of {value.__name__}", vars(value), part, set(attributes) - {part})
        elif _is_users(value) if isinstance(value, type) else is_state(value):
            self.seen.variables.append((where, holder, name))
            self._kept.append(state_of(roots_of(holder, name)))

    def refuse_changed_variables(self) -> None:
        for (where, holder, name), before in zip(self.seen.variables, self._kept, strict=True):
            if state_of(roots_of(holder, name)) != before:
                what = f"forward or backward changes the variable {where}, and a step would not"
                fix = (
                    "keep it in a buffer that forward writes in place, or change it outside of the step and plan again"
                )
                raise CannotRun(what, where, fix)


def _is_librarys(file: str) -> bool:
    inside_site = file.startswith(_SITE)
    standard = file.startswith((_STANDARD, "<frozen")) and not inside_site
    return standard or file.startswith((_TORCH, "<eval_with_key>", "<string>"))


def is_state(value: Any) -> bool:
    """Whether a variable holds something that may change and that we can compare."""
    if isinstance(value, (*PLAIN, list, MutableMapping, set, SimpleNamespace, Iterator, np.ndarray, Tensor, *STREAMS)):
        return True
    if memory_of(value) is not None:
        return True
    if isinstance(value, FunctionType):
        return not _is_librarys(value.__code__.co_filename) and not value.__code__.co_filename.startswith(
            (_SITE, _HERE)
        )
    return isinstance(value, nn.Module) or (
        _is_users(type(value)) and bool(hasattr(value, "__dict__") or slots_of(value))
    )


def _is_users(kind: type) -> bool:
    return kind.__module__ != "builtins" and _is_users_module(sys.modules.get(kind.__module__))


def _is_users_module(module: ModuleType | None) -> bool:
    file = str(getattr(module, "__file__", None) or "")
    return not _is_librarys(file) and not file.startswith((_SITE, _HERE))


def _globals_of(code: CodeType) -> set[str]:
    """Names of globals, among which attributes are not."""
    return {one.argval for one in dis.get_instructions(code) if one.opname in _OF_GLOBALS}


def _cells(code: CodeType) -> list[tuple[str, Any]]:
    """Variables of enclosing functions that this code reads, with the cells that hold them."""
    names = [name for name in code.co_freevars if name != "__class__"]
    if not names:
        return []
    functions = [one for one in gc.get_referrers(code) if isinstance(one, FunctionType) and one.__closure__]
    found = []
    for function in functions:
        for name, cell in zip(code.co_freevars, function.__closure__ or (), strict=True):
            if name in names and _filled(cell):
                found.append((name, cell))
    return found


def _filled(cell: Any) -> bool:
    try:
        _ = cell.cell_contents
    except ValueError:
        return False
    return True
